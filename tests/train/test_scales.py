"""Scales in training: learned, observed, fixed; nothing that evaluation does moves them."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.networks import batch, exact, optimizer_of, prepared, train
from torch import Tensor, nn

import intact8
from intact8 import RecipeError, recipes
from intact8.calibration.weights import weight_scales
from intact8.recipe.recipe import Recipe, Scheme
from intact8.train.learned_scale import FLOOR, LearnedScale, lsq_factor
from intact8.train.scale_phase import ScaleWarning
from intact8.train.weight_scales import live_weight_scales

KINDS = ["learned", "observed", "fixed"]


@pytest.mark.parametrize("scales", KINDS)
def test_recipes_for_training_survive_toml(scales: str) -> None:
    recipe = recipes.qat(scales, bits=4)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.scales == scales and recipe.weight.range == (-7, 7)


def test_recipes_without_meaning() -> None:
    with pytest.raises(RecipeError, match="learned or lsq. or pact or observed or fixed"):
        recipes.qat("calibrated")
    with pytest.raises(RecipeError, match="scale_gradient"):
        Recipe(scale_gradient="lsq+")
    assert Recipe().scales == "calibrated"


@pytest.mark.parametrize(("lo", "hi"), [(-127, 127), (-128, 127), (-7, 7)])
@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_live_scales_of_weights_are_those_that_calibration_computes(
    lo: int, hi: int, portable: bool, observer: str
) -> None:
    w = torch.randn(9, 20, generator=torch.Generator().manual_seed(3))
    w[4] = 0
    w[5] *= 1e-9
    expected = weight_scales(w.numpy(), lo, hi, observer, portable)
    np.testing.assert_allclose(live_weight_scales(w, lo, hi, observer, portable).numpy(), expected, rtol=1e-6)


def test_learned_scales_are_parameters_that_start_where_calibration_ended() -> None:
    sim = prepared("learned")
    learners = {n for n, _ in sim.named_parameters() if n.endswith("learner.value")}
    assert len(learners) == len(sim.points) - 1 + len(sim.weight_points)
    assert sim.points["x"].learner is None, "the input's range is in the data"
    for point in [*(p for p in sim.points.values() if p.name != "x"), *sim.weight_points.values()]:
        assert torch.equal(point.learner.value.detach(), point.scale)
    before = {n: p.detach().clone() for n, p in sim.named_parameters()}
    zero_points = {n: int(p.zero_point) for n, p in sim.points.items()}
    train(sim, optimizer_of(sim), range(5))
    for name in learners:
        assert not torch.equal(sim.get_parameter(name).detach(), before[name]), name
    exact(sim)
    assert {n: int(p.zero_point) for n, p in sim.points.items()} == zero_points
    for point in (
        p for p in sim.points.values() if p.learner is not None
    ):  # what ships is what was learned, made tie-free
        assert abs(float(point.scale) / float(point.learner.value.detach()) - 1) < 0.03


def test_other_recipes_have_no_parameters_of_their_own() -> None:
    for scales in ("observed", "fixed"):
        assert not any(isinstance(m, LearnedScale) for m in prepared(scales).modules())


def test_a_learned_scale_stays_positive_and_comes_back() -> None:
    scale = LearnedScale((2,))
    scale.start(torch.tensor([0.1, 0.2]))
    with torch.no_grad():
        scale.value[0] = -5.0
    assert scale().tolist() == pytest.approx([0.1 * FLOOR, 0.2])
    scale().sum().backward()
    assert scale.value.grad.tolist() == [1.0, 1.0]  # type: ignore[union-attr]


def test_the_gradient_factor_is_that_of_lsq() -> None:
    grads = {}
    for kind in ("lsq", "plain"):
        recipe = intact8.Recipe(scales="learned", scale_gradient=kind)
        sim = prepared("learned", recipe=recipe).train()
        sim.freeze_batch_norm()
        x, y = batch(1)
        nn.functional.cross_entropy(sim(x), y).backward()
        grads[kind] = {n: p.grad.clone() for n, p in sim.named_parameters() if "learner" in n}
    name = "quantizers.fc.weight_point.learner.value"
    torch.testing.assert_close(grads["lsq"][name], grads["plain"][name] / np.sqrt(8 * 127))
    name = "quantizers.conv2.activation_point.learner.value"
    assert name in grads["lsq"], sorted(grads["lsq"])
    torch.testing.assert_close(grads["lsq"][name], grads["plain"][name] / np.sqrt(8 * 36 * 255))


def test_a_learned_weight_scale_has_the_gradient_of_the_formula() -> None:
    """A linear layer without rounding of its output's sum to speak of: d(s·q(w/s))/ds = q − w/s inside the range."""
    torch.manual_seed(0)
    recipe = intact8.Recipe(scales="learned", scale_gradient="plain", weight={"bits": 4}, bias_correction=False)
    sim = intact8.prepare(nn.Linear(6, 3, bias=False).eval(), torch.randn(4, 6), recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(64, 6))
    sim.train()
    x, g = torch.randn(50, 6), torch.randn(50, 3)
    y = sim(x)
    (y * g).sum().backward()
    (point,) = sim.weight_points.values()
    s, w = point.learner.value.detach()[:, None], sim.get_parameter("weight").detach()
    q = (w / s).round().clamp(-7, 7)
    slope = torch.where((w / s).abs() > 7, q, q - w / s)
    px, py = sim.points["input"], sim.point(sim.graph.nodes[sim.graph.outputs[0]].inputs[0])
    z = int(px.zero_point)
    xq = (x / px.scale).round().clamp(-z, 255 - z) * px.scale
    inside = (y / py.learner.value).detach().round()
    g = torch.where((inside > -int(py.zero_point)) & (inside < 255 - int(py.zero_point)), g, torch.zeros(()))
    expected = (g.T @ xq * slope).sum(1)
    torch.testing.assert_close(point.learner.value.grad, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("scales", KINDS)
def test_evaluation_in_between_changes_nothing(scales: str) -> None:
    """(Except where it repairs a proof of a frozen scale, and says so: live batch norm can break any of them.)"""
    plain, looked = prepared(scales), prepared(scales)
    for sim in (plain, looked):
        sim.freeze_batch_norm(scales == "fixed")
        optimizer = optimizer_of(sim)
        for i in range(3):
            train(sim, optimizer, range(3 * i, 3 * i + 3))
            if sim is looked:
                sim.eval()(batch(5)[0])
    for (name, a), b in zip(plain.named_parameters(), looked.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_observed_ranges_follow_and_ship() -> None:
    sim = prepared("observed")
    before = {n: float(p.scale) for n, p in sim.points.items()}
    count = sim.points["x"].observer.count
    sim.train()
    for step in range(40):
        sim(3 * batch(step)[0])
    assert sim.points["x"].observer.count == count + 40 * 16 * 2 * 36
    sim.eval()
    sim(batch(0)[0])
    scale, _ = sim.points["x"].observed_qparams()
    assert float(sim.points["x"].scale) == pytest.approx(scale, rel=0.03)
    assert float(sim.points["x"].scale) > 1.3 * before["x"]
    exact(sim)


def test_training_from_scratch_observes_first() -> None:
    sim = prepared("observed", calibrated=False)
    train(sim, optimizer_of(sim), range(6))
    assert sim.calibrated and all(p.observer.count for p in sim.points.values())
    exact(sim)
    learned = prepared("learned", calibrated=False)
    optimizer = optimizer_of(learned)
    train(learned, optimizer, range(3))
    learned.stop_observing()
    assert learned.phase == "learn"
    before, held = float(learned.points["conv1"].learner.value.detach()), float(learned.points["x"].scale)
    train(learned, optimizer, range(3, 6))
    assert float(learned.points["conv1"].learner.value.detach()) != before and float(learned.points["x"].scale) == held
    exact(learned)


def test_fixed_scales_train_on_the_integers_that_ship() -> None:
    sim = prepared("fixed")
    sim.freeze_batch_norm()
    grids = [p.scale.clone() for p in [*sim.points.values(), *sim.weight_points.values()]]
    train(sim, optimizer_of(sim, 1e-4), range(4))
    x = batch(9)[0]
    trained = sim.train()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScaleWarning)
        shipped = sim.eval()(x)
    assert torch.equal(trained, shipped)
    points = [*sim.points.values(), *sim.weight_points.values()]
    assert all(torch.equal(p.scale, s) for p, s in zip(points, grids, strict=True))
    exact(sim)


@pytest.mark.parametrize("scales", ["learned", "observed"])
@pytest.mark.parametrize("residual", ["separate", "fused"])
def test_frozen_training_computes_what_ships(scales: str, residual: str) -> None:
    import dataclasses

    sim = prepared(scales, recipe=dataclasses.replace(recipes.qat(scales), residual=residual))
    optimizer = optimizer_of(sim)
    train(sim, optimizer, range(5))
    sim.freeze_batch_norm()
    sim.freeze_scales()
    for steps in (range(5, 8), range(8, 11)):
        train(sim, optimizer, steps)
        x = batch(50)[0]
        a = sim.train()(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ScaleWarning)
            b = sim.eval()(x)
        assert torch.equal(a, b)
        exact(sim)


def test_what_breaks_a_proof_is_solved_again_and_said() -> None:
    sim = prepared("fixed")
    before = {n: p.scale.clone() for n, p in sim.weight_points.items()}
    with torch.no_grad():
        sim.get_parameter("conv2.bias")[2] += 40.0
        sim.get_parameter("fc.weight")[1] *= 1.5
    with pytest.warns(ScaleWarning, match=r"1 layers: conv2 \(1 channels\)"):
        sim.eval()(batch(0)[0])
    exact(sim)
    same = sim.weight_points["conv2"].scale == before["conv2"]
    assert same.sum() == len(same) - 1 and not same[2]
    for name in ("conv1", "depthwise", "fc"):
        assert torch.equal(sim.weight_points[name].scale, before[name])


def test_calibrating_again_begins_again() -> None:
    sim = prepared("learned")
    sim.freeze_scales()
    assert sim.phase == "frozen"
    with pytest.raises(intact8.StateError, match="frozen"):
        sim.observe_in_training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, [batch(1)[0]])
    assert sim.phase == "learn"
    with pytest.raises(intact8.StateError, match="learned scales away"):
        intact8.prepare(sim, batch(0)[0])


def test_fixed_points_are_not_learned() -> None:
    recipe = intact8.Recipe(scales="learned", inputs={"*": {"fixed": (0.05, 128)}})
    sim = prepared("learned", recipe=recipe)
    assert sim.points["x"].learner is None
    train(sim, optimizer_of(sim), range(3))
    exact(sim)
    assert float(sim.points["x"].scale) == np.float32(0.05)


PER_TENSOR = intact8.Recipe(weight={"granularity": "per_tensor"})


@pytest.mark.parametrize("recipe", [recipes.w4a8(), recipes.full_range(), PER_TENSOR])
@pytest.mark.parametrize("scales", KINDS)
def test_other_schemes(recipe: intact8.Recipe, scales: str) -> None:
    import dataclasses

    sim = prepared(scales, recipe=dataclasses.replace(recipe, scales=scales))
    optimizer = optimizer_of(sim)
    train(sim, optimizer, range(4))
    sim.freeze_scales()
    sim.freeze_batch_norm()
    train(sim, optimizer, range(4, 6))
    program = intact8.convert(sim.eval())
    report = intact8.verify(program, batch(77, 8)[0], engines=("reference",), sim=sim)
    assert report.exact and not report.uncertified


def test_scales_of_sequences_of_any_length_are_learned() -> None:
    """The dimension that changes counts as one in LSQ's 1/√(n·Q)."""
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    sim = intact8.prepare(model, torch.randn(2, 5, 6), recipes.qat(), dynamic_shapes={"input": {1: "length"}})
    intact8.calibrate(sim, [torch.randn(16, length, 6) for length in (3, 8)])
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=1e-3, scale_lr=0.01, relative=True))
    learner = sim.points["0"].learner
    assert learner is not None and learner.factor == lsq_factor(4, 255)
    for length in (2, 9, 4):
        optimizer.zero_grad()
        sim.train()(torch.randn(4, length, 6)).square().sum().backward()
        optimizer.step()
    assert learner.moved
    program = intact8.convert(sim.eval())
    assert intact8.verify(program, torch.randn(4, 7, 6), engines=("reference",), sim=sim).exact


class PoolsBesideAConvolution(nn.Module):
    """A concatenation whose first operand has the fixed scale of the input, and is requantized for it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.conv, self.head = nn.MaxPool2d(2), nn.Conv2d(3, 4, 2, 2), nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.cat([self.pool(x), self.conv(x)], 1))


@pytest.mark.parametrize("scales", ["learned", "observed"])
def test_gradients_pass_requantization(scales: str) -> None:
    torch.manual_seed(0)
    recipe = dataclasses.replace(intact8.recipes.qat(scales), inputs={"x": Scheme(fixed=(1 / 255, 0))})
    x = torch.rand(64, 3, 4, 4)
    sim = intact8.prepare(PoolsBesideAConvolution(), x[:2], recipe)
    assert "requantize" in {node.op for node in sim.graph}
    intact8.calibrate(sim, x)
    x.requires_grad_()
    sim.train()(x).square().sum().backward()
    assert x.grad is not None and bool(x.grad.any())
    assert intact8.verify(intact8.convert(sim.eval()), x.detach(), sim=sim).exact
