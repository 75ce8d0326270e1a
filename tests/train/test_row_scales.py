"""Learned scales of recurrent layers, dynamic and decoded linear layers: LSQ's gradients, and what is learned ships."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
import intact8.train
from intact8 import recipes
from intact8.arithmetic.dynamic_torch import quantize_rows
from intact8.calibration.summary import CalibrationWarning
from intact8.engines import engine_status
from intact8.simulation.ops.recurrent import weight_names
from intact8.testing import assert_qparams_in
from intact8.train.learned_scale import LearnedScale, LearnedScales, lsq_factor

ENGINES = [e for e in ("reference", "onednn") if engine_status()[e] is None]
X = torch.randn(16, 5, 6, generator=torch.Generator().manual_seed(2))


class Tagger(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(8 * (1 + bool(options.get("bidirectional"))), 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.rnn(x)[0])
        return y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Tagger(nn.LSTM, bidirectional=True),
    "gru": lambda: Tagger(nn.GRU),
    "rnn": lambda: Tagger(nn.RNN, nonlinearity="relu", bias=False),
}


def learning(model: nn.Module, x: Tensor, recipe: intact8.Recipe) -> Any:
    sim = intact8.prepare(model.eval(), x[:2], recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        intact8.calibrate(sim, x)
    return sim


def tagger(name: str, recipe: intact8.Recipe | None = None) -> Any:
    torch.manual_seed(0)
    return learning(MODELS[name](), X, recipe or recipes.qat())


def optimizer_of(sim: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(intact8.train.parameter_groups(sim, lr=0.01, scale_lr=0.01, relative=True))


def train(sim: Any, optimizer: Any, steps: int, x: Tensor = X) -> None:
    sim.train()
    for _ in range(steps):
        optimizer.zero_grad()
        sim(x).square().mean().backward()
        optimizer.step()


def exact(sim: Any, x: Tensor = X) -> None:
    assert intact8.verify(intact8.convert(sim.eval()), x, ENGINES, sim=sim).exact


def slope(w: Tensor, s: Tensor, top: int) -> Tensor:
    """d(s·clamp(R(w/s)))/ds: R(w/s) − w/s where that rounds into the range, the ends outside (Esser et al. 2020)."""
    v = w / s
    return torch.where(v.round().abs() > top, v.sign() * top, v.round() - v)


@pytest.mark.parametrize("kind", ["lsq", "plain"])
@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_scales_of_recurrent_weights_have_the_gradients_of_the_formula(kind: str, granularity: str) -> None:
    """h1 = relu(Ŵ_ih·x̂1), h2 = relu(Ŵ_ih·x̂2 + Ŵ_hh·ĥ1): ∂L/∂Ŵ is known where the loss reads one step only."""
    torch.manual_seed(0)
    recipe = replace(
        recipes.qat(bits=4), scale_gradient=kind, weight=replace(recipes.qat(bits=4).weight, granularity=granularity)
    )
    sim = learning(nn.RNN(6, 8, nonlinearity="relu", bias=False, batch_first=True), X, recipe).train()
    (point,) = sim.recurrent_points.values()
    with torch.no_grad():
        for part in point.learner:
            part.value.mul_(0.6)  # so that some weights lie outside
    learned, rows, g = list(point.learner), 8, torch.randn(16, 8)
    s = [part.value.detach().expand(rows)[:, None] for part in learned]
    w = [sim.get_parameter(name).detach() for name in weight_names(sim.graph.nodes[point.name])]
    for v, step in zip(w, s, strict=True):
        assert 0 < int(((v / step).round().abs() > 7).sum()) < v.numel() / 2
    y, _ = sim(X)
    decoded = [(v / step).round().clamp(-7, 7) * step for v, step in zip(w, s, strict=True)]
    xs = torch.mul(*quantize_rows(X))
    h1 = (xs[:, 0] @ decoded[0].T).relu()
    hq = torch.mul(*quantize_rows(h1))
    h2 = (xs[:, 1] @ decoded[0].T + hq @ decoded[1].T).relu()
    torch.testing.assert_close(y[:, :2].detach(), torch.stack([h1, h2], 1), rtol=1e-4, atol=1e-4)
    for i, (h, seen) in enumerate([(h1, xs[:, 0]), (h2, hq)]):
        sim.zero_grad()
        (y[:, i] * g).sum().backward(retain_graph=True)
        by_weight = (g * (h > 0)).T @ seen
        expected = (by_weight * slope(w[i], s[i], 7)).sum(1)
        count = 6 if i == 0 else 8
        if granularity == "per_tensor":
            expected, count = expected.sum().reshape(1), count * rows
        factor = lsq_factor(count, 7) if kind == "lsq" else 1.0
        torch.testing.assert_close(learned[i].value.grad, expected * factor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_learned_scales_of_recurrent_layers_ship(name: str, granularity: str) -> None:
    weight = replace(recipes.qat().weight, granularity=granularity)
    sim = tagger(name, replace(recipes.qat(), weight=weight))
    (point,) = sim.recurrent_points.values()
    assert torch.equal(point.learner().detach(), point.scale)
    optimizer = optimizer_of(sim)
    train(sim, optimizer, 4)
    assert all(part.moved for part in point.learner)
    exact(sim)
    weights = [sim.get_parameter(n) for n in weight_names(sim.graph.nodes[point.name])]
    assert torch.equal(
        point.scale, torch.cat([point.scales_of(w, part) for w, part in zip(weights, point.learner, strict=True)])
    )
    assert not torch.equal(point.scale, torch.cat([point.scales_of(w, None) for w in weights]))
    sim.freeze_scales()
    held = point.scale.clone()
    train(sim, optimizer, 4)
    a = sim.train()(X)
    b = sim.eval()(X)
    assert torch.equal(a, b) and torch.equal(point.scale, held)
    exact(sim)
    assert torch.equal(point.scale, held)


@pytest.mark.parametrize("frozen", [False, True])
def test_no_pair_saturates_where_weights_outgrow_their_scales(frozen: bool) -> None:
    sim = tagger("lstm")
    if frozen:
        sim.freeze_scales()
    (point,) = sim.recurrent_points.values()
    with torch.no_grad():
        for name in weight_names(sim.graph.nodes[point.name]):
            sim.get_parameter(name).mul_(1.7)
    program = intact8.convert(sim.eval())
    assert "vnni" not in program.needs and intact8.verify(program, X, ENGINES, sim=sim).exact
    (op,) = (op for op in program.ops if op.kind == "lstm")
    for role in ("weight_ih", "weight_hh"):
        largest = torch.from_numpy(op.arrays[role].astype("int64")).abs().topk(2, -1).values.sum(-1)
        assert int(largest.max()) <= 128


def test_optimizers_without_them_are_refused() -> None:
    sim = tagger("gru")
    scales = [m.value for m in sim.modules() if isinstance(m, LearnedScale)]
    some = torch.optim.SGD([p for p in sim.parameters() if "rnn.weight_point" not in _name(sim, p)], lr=0.1)
    with pytest.raises(intact8.StateError, match=f"lacks 2 of {len(scales)} learned scales"):
        intact8.train.check_optimizer(some, sim)
    with pytest.raises(AssertionError):
        assert_qparams_in(some, sim)
    assert_qparams_in(optimizer_of(sim), sim)
    *_, last = intact8.train.parameter_groups(sim, lr=0.1)
    assert {id(p) for p in last["params"]} == {id(p) for p in scales}


def _name(sim: nn.Module, parameter: nn.Parameter) -> str:
    return next(name for name, p in sim.named_parameters() if p is parameter)


def loaded(sim: Any) -> Any:
    stream = io.BytesIO()
    torch.save(sim.state_dict(), stream)
    stream.seek(0)
    fresh = intact8.prepare(MODELS["lstm"]().eval(), X[:2], recipes.qat())
    fresh.load_state_dict(torch.load(stream, weights_only=True))
    return fresh


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda sim: pickle.loads(pickle.dumps(sim)), loaded], ids=["deepcopy", "pickle", "state"]
)
def test_training_resumes_to_the_bit(copied: Callable[[Any], Any], frozen: bool) -> None:
    sim = tagger("lstm")
    train(sim, optimizer_of(sim), 3)
    if frozen:
        sim.freeze_scales()
    other = copied(sim)
    for each in (sim, other):
        train(each, optimizer_of(each), 3)
    for (name, a), (_, b) in zip(sim.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(sim.eval()(X), other.eval()(X))
    exact(other)


def test_calibrating_again_begins_again() -> None:
    sim = tagger("gru")
    (point,) = sim.recurrent_points.values()
    began = point.scale.clone()
    with torch.no_grad():
        for part in point.learner:
            part.value.mul_(3)
    intact8.calibrate(sim.eval(), X.repeat(2, 1, 1))
    assert torch.equal(point.scale, began) and torch.equal(point.learner().detach(), began)


@pytest.mark.parametrize("scales", ["observed", "fixed", "pact", "calibrated"])
def test_other_recipes_follow_the_weights(scales: str) -> None:
    """In training and in evaluation alike: nothing of a recurrent layer is held, so nothing of it is clipped."""
    sim = tagger("gru", replace(recipes.qat(), scales=scales))
    (point,) = sim.recurrent_points.values()
    assert point.learner is None
    train(sim, torch.optim.Adam(sim.parameters(), 0.01), 3)
    exact(sim)
    weights = [sim.get_parameter(name) for name in weight_names(sim.graph.nodes[point.name])]
    assert torch.equal(point.scale, torch.cat([point.scales_of(w, None) for w in weights]))


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, None), (4, 4)])
def test_scales_of_decoded_linear_layers_are_learned(bits: int, group: int | None) -> None:
    torch.manual_seed(0)
    model, index = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 5)), torch.arange(40).reshape(8, 5) % 20
    sim = learning(model, index, replace(recipes.weight_only(bits, group), scales="learned"))
    embedding, linear = sim.coded_points["0"], sim.coded_points["1"]
    assert embedding.learner is None and isinstance(linear.learner, LearnedScale)
    assert linear.learner.value.shape == linear.scale.shape == (5, 2 if group else 1)
    optimizer = optimizer_of(sim)
    train(sim, optimizer, 3, index)
    assert linear.learner.moved
    for _ in range(2):
        trained = sim.train()(index)
        assert torch.equal(sim.eval()(index), trained)
        exact(sim, index)
        (op,) = (op for op in intact8.convert(sim).ops if op.kind == "float.decoded_linear")
        assert torch.equal(torch.from_numpy(op.arrays["scale"]).reshape(linear.scale.shape), linear.scale)
        sim.freeze_scales()
        train(sim, optimizer, 3, index)


def test_a_decoded_linear_layer_has_the_gradient_of_the_formula() -> None:
    torch.manual_seed(0)
    x, g = torch.randn(32, 6), torch.randn(32, 5)
    sim = learning(nn.Linear(6, 5, bias=False), x, replace(recipes.weight_only(4, 4), scales="learned")).train()
    (point,) = sim.coded_points.values()
    with torch.no_grad():
        point.learner.value.mul_(0.6)
    (sim(x) * g).sum().backward()
    s = point.learner.value.detach().repeat_interleave(4, 1)[:, :6]
    by_scale = slope(sim.get_parameter("weight").detach(), s, 7) * (g.T @ x)
    expected = torch.stack([by_scale[:, :4].sum(1), by_scale[:, 4:].sum(1)], 1) * lsq_factor(4, 7)
    torch.testing.assert_close(point.learner.value.grad, expected, rtol=1e-3, atol=1e-4)


def test_scales_of_dynamic_linear_layers_are_learned() -> None:
    torch.manual_seed(0)
    sim = learning(nn.Linear(6, 5), X, replace(recipes.dynamic(), scales="learned"))
    (point,) = sim.coded_points.values()
    train(sim, optimizer_of(sim), 3)
    assert point.learner is not None and point.learner.moved
    exact(sim)
    assert torch.equal(point.scale, point.live_scale(sim.get_parameter("weight")))


def test_joined_scales_start_at_those_of_rows() -> None:
    scales = LearnedScales([LearnedScale((3,), 2.0), LearnedScale((1,))], 3)
    scales.start(torch.tensor([1.0, 2.0, 3.0, 0.5, 0.5, 0.5]))
    scales().sum().backward()
    assert scales().tolist() == [1.0, 2.0, 3.0, 0.5, 0.5, 0.5]
    assert [part.value.grad.tolist() for part in scales] == [[2.0] * 3, [3.0]]  # type: ignore[union-attr]
