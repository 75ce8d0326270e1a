"""LSQ+ and PACT: gradients of the papers' closed forms, integer zero points, and exactness after training."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.gradients import clamp
from tests.train.networks import batch, exact, optimizer_of, prepared, train
from torch import Tensor, nn

import intact8
import intact8.train
from intact8 import recipes
from intact8.recipe.recipe import Scheme
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.train.learned_range import LearnedClip, LearnedOffset, LearnedRange
from intact8.train.learned_scale import LearnedScale
from intact8.train.scale_phase import ScaleWarning
from intact8.train.straight_through import round_ste, round_within

S, Z = 0.25, 5
BITS = 4
P = 2**BITS - 1


def learning(learner: LearnedRange, scale: float = S, zero_point: int = Z, symmetric: bool = False) -> QuantPoint:
    """A point in training that learns its range, from this scale and zero point."""
    scheme = Scheme(dtype="int8", symmetric=True, bits=BITS) if symmetric else Scheme(bits=BITS)
    point = QuantPoint("p", scheme, [])
    point.assign(scale, zero_point)
    point.learner, point.source = learner, "learned"
    learner.begin(point.scale, zero_point)
    return point.train()


def quantized(point: QuantPoint, x: Tensor) -> Tensor:
    """As the simulation quantizes an input, in real numbers."""
    point.zero_point.fill_(point.learned_zero_point)
    return point.rounded(x / point.live_scale, point.lo, point.hi) * point.live_scale


def values(n: int = 400) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return (2 * torch.randn(n, generator=g)).requires_grad_(), torch.randn(n, generator=g)


def test_lsq_plus_has_the_gradients_of_the_paper() -> None:
    learner = LearnedOffset(0, P, None)
    point, (x, g) = learning(learner), values()
    (quantized(point, x) * g).sum().backward()
    assert learner.below is not None and x.grad is not None
    v = ((x + Z * S) / S).detach()  # (x − β)/s with β = −Z·S
    inside = (v > 0) & (v < P)
    by_scale = torch.where(inside, v.round() - v, torch.where(v <= 0, torch.zeros(()), torch.full((), float(P))))
    torch.testing.assert_close(learner.value.grad, (g * by_scale).sum(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(-learner.below.value.grad, (g * ~inside).sum(), rtol=1e-5, atol=1e-5)  # type: ignore[operator]
    torch.testing.assert_close(x.grad, g * inside)


def test_an_offset_between_two_steps_rounds_to_one_and_keeps_its_gradient() -> None:
    learner = LearnedOffset(0, P, None)
    point = learning(learner)
    with torch.no_grad():
        learner.below.value.fill_(5.4 * S)  # type: ignore[union-attr]
    x = torch.tensor([-9.0, 9.0])
    y = quantized(point, x)
    assert int(point.zero_point) == 5 and y.tolist() == [-5 * S, (P - 5) * S]
    y.sum().backward()
    remainder = -5 + 5.4  # R(β/s) − β/s
    torch.testing.assert_close(learner.value.grad, torch.tensor(P + 2 * remainder))
    assert learner.below.value.grad == -2  # type: ignore[union-attr]


@pytest.mark.parametrize("zero_point", [None, 0], ids=["both ends", "never negative"])
def test_pact_has_the_gradients_of_the_paper(zero_point: int | None) -> None:
    learner = LearnedClip(0, P, zero_point)
    z = Z if zero_point is None else 0
    point, (x, g) = learning(learner, zero_point=z), values()
    (quantized(point, x) * g).sum().backward()
    assert x.grad is not None
    alpha, beta = S * (P - z), -S * z
    torch.testing.assert_close(learner.value.grad, g[x >= alpha].sum(), rtol=1e-5, atol=1e-5)
    if learner.below is not None:
        torch.testing.assert_close(-learner.below.value.grad, g[x <= beta].sum(), rtol=1e-5, atol=1e-5)  # type: ignore[operator]
    torch.testing.assert_close(x.grad, g * ((x > beta) & (x < alpha)))


@pytest.mark.parametrize("z", [0, Z])
def test_rounding_within_learned_ends_is_clamping_and_rounding(z: int) -> None:
    """The one pass of it has the value and the gradients of the operations it stands for."""
    low, high = torch.tensor(float(-z)), torch.tensor(float(P - z))
    (x, g), found = values(), []
    v = torch.cat([(8 * x).detach(), low[None], high[None]])
    for function in (round_within, lambda v, low, high: round_ste(clamp(v, low, high))):
        inputs = [t.clone().requires_grad_() for t in (v, low, high)]
        y = function(*inputs)
        found.append([y.detach(), *torch.autograd.grad(y, inputs, torch.cat([g, g[:2]]))])
    torch.testing.assert_close(*found)


def test_a_range_whose_zero_point_stays_learns_no_end() -> None:
    for learner, moves in (
        (LearnedOffset(0, P, 0), False),
        (LearnedOffset(0, P, None), True),
        (LearnedClip(0, P, 0), True),
    ):
        point = learning(learner, zero_point=0)
        assert (point.learns_range, point.learns_ends) == (True, moves)


def test_symmetric_pact_clips_at_both_ends_alike() -> None:
    point = QuantPoint("p", Scheme(dtype="int8", symmetric=True, bits=BITS), [])
    learner = LearnedClip(point.lo, point.hi, point.shift)
    point, (x, g) = learning(learner, zero_point=point.shift, symmetric=True), values()
    (quantized(point, x) * g).sum().backward()
    alpha = S * (point.hi - point.shift)
    expected = g[x >= alpha].sum() - g[x <= S * (point.lo - point.shift)].sum()
    torch.testing.assert_close(learner.value.grad, expected, rtol=1e-5, atol=1e-5)
    assert learner.zero_point() == point.shift == 128


@pytest.mark.parametrize("cls", [LearnedOffset, LearnedClip])
def test_gradients_of_clipped_values_are_finite_differences(cls: type[LearnedRange]) -> None:
    """Clipped values are linear in the parameters as long as β moves by whole steps."""
    x = torch.tensor([-50.0, 50.0, 60.0])

    def output(value: float, below: float) -> Tensor:
        learner = cls(0, P, None)
        point = learning(learner)
        with torch.no_grad():
            learner.value.fill_(value)
            learner.below.value.fill_(below)  # type: ignore[union-attr]
        return quantized(point, x).sum().detach()

    learner = cls(0, P, None)
    quantized(learning(learner), x).sum().backward()
    value, below = float(learner.value.detach()), Z * S
    grad_value, grad_below = float(learner.value.grad), float(learner.below.value.grad)  # type: ignore
    # For LSQ+ s is moved with β in proportion (no rounding changes); for PACT α and β by whole steps that keep s.
    if cls is LearnedOffset:
        d = 0.01
        change = float(output(value * (1 + d), below * (1 + d)) - output(value, below))
        assert change == pytest.approx(d * (value * grad_value + below * grad_below), rel=1e-4)
        change = float(output(value, below + S) - output(value, below))
        assert change == pytest.approx(S * grad_below, rel=1e-4)
    else:
        change = float(output(value - S, below + S) - output(value, below))
        assert change == pytest.approx(-S * grad_value + S * grad_below, rel=1e-4)
        d = 0.01
        change = float(output(value * (1 + d), below * (1 + d)) - output(value, below))
        assert change == pytest.approx(d * (value * grad_value + below * grad_below), rel=1e-4)


def test_a_fused_clamp_is_no_end_of_the_range() -> None:
    learner = LearnedClip(0, P, None)
    point = learning(learner)
    x = torch.tensor([-9.0, 9.0], requires_grad=True)
    point.rounded(x / point.live_scale, Z, P - 1).sum().backward()  # ReLU below, ReLU6 above
    assert learner.value.grad is None or float(learner.value.grad) == 0


@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize("scales", ["lsq+", "pact"])
@pytest.mark.parametrize("bits", [8, 4])
def test_exact_after_training(scales: str, bits: int) -> None:
    sim = prepared(scales, recipe=recipes.qat(scales, bits=bits, activation_bits=bits))
    learned = [p for p in sim.points.values() if isinstance(p.learner, LearnedRange) and p.learner.below is not None]
    expected = {"depthwise", "add", "conv2", "silu", "mean", "fc"} | ({"x"} if bits < 8 else set())
    assert {p.name for p in learned} == expected, "all but the ReLU, and an input of 8 bits"
    assert sim.points["conv1"].learner.zero_point() == 0
    before = {p.name: (float(p.learner()), int(p.zero_point)) for p in sim.points.values() if p.learner is not None}
    moving = [p for p in sim.points.values() if p.learner is not None]
    for p in moving:
        assert p.learned_zero_point == int(p.zero_point)
        assert float(p.learner()) == pytest.approx(float(p.scale), rel=1e-6)
    assert any(isinstance(w.learner, LearnedScale) for w in sim.weight_points.values()) == (scales == "lsq+")
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=2e-3, scale_lr=0.02, relative=True))
    train(sim, optimizer, range(20))
    moved = [p for p in learned if p.learned_zero_point != before[p.name][1]]
    assert moved, "no zero point was learned"
    exact(sim)
    # What ships is what was learned, made tie-free.
    for p in moving:
        assert int(p.zero_point) == p.learned_zero_point
        assert float(p.scale) == pytest.approx(float(p.learner()), rel=0.03)
    sim.freeze_batch_norm()
    sim.freeze_scales()
    train(sim, optimizer, range(20, 23))
    x = batch(50)[0]
    in_training = sim.train()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScaleWarning)
        assert torch.equal(in_training, sim.eval()(x))
    exact(sim)


def test_symmetric_schemes_keep_their_zero_point() -> None:
    import dataclasses

    recipe = dataclasses.replace(recipes.qat("lsq+"), activation=Scheme(dtype="int8", symmetric=True))
    sim = prepared("lsq+", recipe=recipe)
    assert all(p.learner.below is None for p in sim.points.values() if p.name != "x")
    train(sim, optimizer_of(sim), range(3))
    assert {int(p.zero_point) for p in sim.points.values()} == {128}
    exact(sim)


def test_the_penalty_of_pact() -> None:
    sim: Any = prepared("pact")
    clips = [m for m in sim.modules() if isinstance(m, LearnedClip)]
    penalty = intact8.train.clipping_penalty(sim)
    ends = [float(c.clip()) ** 2 + (float(c.below()) ** 2 if c.below is not None else 0) for c in clips]
    assert float(penalty.detach()) == pytest.approx(sum(ends), rel=1e-5)
    penalty.backward()
    for clip in clips:
        torch.testing.assert_close(clip.value.grad, 2 * clip.value.detach())
    # It brings clips down where nothing is clipped.
    optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=0.0, scale_lr=0.02))
    before = float(sim.points["fc"].learner.clip())
    for step in range(5):
        optimizer.zero_grad()
        x, y = batch(step)
        (nn.functional.cross_entropy(sim.train()(x), y) + intact8.train.clipping_penalty(sim)).backward()
        optimizer.step()
    assert float(sim.points["fc"].learner.clip()) < 0.95 * before
    exact(sim)
    with pytest.raises(intact8.StateError, match="no clip is learned"):
        intact8.train.clipping_penalty(prepared("learned"))
