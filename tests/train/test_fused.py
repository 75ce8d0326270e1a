"""The fused passes of training compute what the torch formulas compute."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.gradients import clamp
from tests.train.networks import batch, prepared
from torch import Tensor, nn

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.calibration.weights import DEAD
from intact8.simulation.ops import quantized_add
from intact8.train import fused
from intact8.train.fused_batch_norm import Running, normalize_round
from intact8.train.straight_through import Rounding, clipped, forward_as, round_ste, rounding_to
from intact8.train.weight_scales import largest_magnitudes, live_weight_scales, two_largest

pytestmark = [
    pytest.mark.usefixtures("threads"),
    pytest.mark.skipif(fused._library is None, reason="the compiled module is not there"),
]

SHAPES = [
    (2, 3),
    (7, 1),
    (5, 2, 17),
    (300, 3, 25),
    (9000, 2),
    (2, 3, 127),
    (2, 3, 128),
    (3, 8, 5, 5),
    (1, 4, 9, 21),
    (2, 3, 4, 5, 6),
    (2, 2, 70, 71),
]


def close(got: Tensor, wanted: Tensor) -> bool:
    return bool((got.double() - wanted.double()).norm() <= 1e-5 * wanted.double().norm() + 1e-6)


def same_integers(got: Tensor, exact: Tensor, lo: int, hi: int) -> bool:
    """Whether integers are those of ``exact``, float64, but where it lies next to the middle of two."""
    near = ((exact - exact.floor()) - 0.5).abs() < 1e-4
    return bool(((got == exact.round().clamp(lo, hi)) | near).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_batch_norm_and_rounding(shape: tuple[int, ...], first: bool, steps: bool, plain: bool) -> None:
    torch.manual_seed(0)
    channels, (lo, hi) = shape[1], (-20, 90)
    z = (torch.randn(shape) * 3 + 1).requires_grad_()
    weight, bias = (torch.rand(channels) * 40 + 1).requires_grad_(), torch.randn(channels, requires_grad=True)
    grad, found = torch.randn(shape), {}
    step = (torch.rand(channels if steps else ()) + 0.5).requires_grad_()
    for passes in (True, False):
        mean, var = torch.zeros(channels), torch.ones(channels)
        # A watcher is a reason to go the way of torch.
        to = Rounding(lo, hi, None if passes else lambda v: None, first)
        gains = fused.Gains(None, None, step) if plain else fused.Gains(weight, bias, step)
        q = normalize_round(z, gains, Running(mean, var, 0.3, 1e-5), to)
        found[passes] = (q, mean, var, *torch.autograd.grad(q, (z, *gains.known), grad))
    assert all(close(a, b) for a, b in zip(found[True][1:3], found[False][1:3], strict=True))
    if z.numel() > 4 * channels:
        assert all(close(a, b) for a, b in zip(found[True][3:-1], found[False][3:-1], strict=True))
        size = float(grad.norm() * q.detach().norm() / step.min())  # terms of the step's gradient may cancel
        assert (found[True][-1] - found[False][-1]).norm() <= 1e-5 * size
    dims = [d for d in range(z.dim()) if d != 1]
    rows = (1, -1, *[1] * (z.dim() - 2))
    x = z.detach().double()
    scaled = (x - x.mean(dims, keepdim=True)) / (x.var(dims, unbiased=False, keepdim=True) + 1e-5).sqrt()
    if not plain:
        scaled = scaled * weight.detach().double().reshape(rows) + bias.detach().double().reshape(rows)
    exact = scaled / (step.detach().double().reshape(rows) if steps else step.detach().double())
    assert same_integers(found[True][0], exact, lo, hi) and same_integers(found[False][0], exact, lo, hi)


@pytest.mark.parametrize("shape", [(7, 3), (2, 5, 9), (4, 6, 5, 5), (2, 3, 80, 70)], ids=str)
def test_ends_of_what_batch_norm_rounds(shape: tuple[int, ...]) -> None:
    """An observer that goes by the smallest and the largest number is told these by the same pass."""
    torch.manual_seed(5)
    z, gains = torch.randn(shape) * 3, fused.Gains(torch.randn(shape[1]), torch.randn(shape[1]), torch.tensor(0.05))
    told: list[Tensor] = []
    watched: list[Tensor] = []

    def ends(seen: Tensor, count: int) -> bool:
        assert count == z.numel()
        told.append(seen)
        return bool(seen.isfinite().all())

    def watch(v: Tensor) -> None:  # they are overwritten
        watched.append(v.clone())

    for to in (Rounding(-128, 127, watch), Rounding(-128, 127, watch, False, ends)):
        normalize_round(z, gains, Running(None, None, 0.1, 1e-5), to)
    assert len(watched) == len(told) == 1
    torch.testing.assert_close(told[0], torch.stack(torch.aminmax(watched[0])), rtol=1e-5, atol=1e-4)

    z.view(-1)[-1] = torch.nan  # of the last channel alone
    normalize_round(z, gains, Running(None, None, 0.1, 1e-5), to)
    assert len(watched) == 2 and watched[1].shape == z.shape and watched[1].isnan().any()


@pytest.mark.parametrize("shape", [(3, 1), (4, 2), (5, 15), (2, 16), (6, 33), (3, 8, 3, 3), (2, 4999)], ids=str)
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("limits", [None, (-7, 7), (-128, 127)], ids=str)
def test_rows_of_weights(shape: tuple[int, ...], folded: bool, limits: tuple[int, int] | None) -> None:
    torch.manual_seed(1)
    weight, scale, m = torch.randn(shape), torch.rand(shape[0]) * 0.01 + 0.05, torch.rand(shape[0])
    factor = torch.rand(shape[0]) + 0.5 if folded else None
    rows = (-1, *[1] * (len(shape) - 1))
    numbers = weight if factor is None else weight * factor.reshape(rows)
    assert torch.equal(largest_magnitudes(weight.flatten(1), factor), two_largest(numbers.flatten(1).abs()))
    v = numbers / scale.reshape(rows)
    ends = (-math.inf, math.inf) if limits is None else (float(limits[0]), float(limits[1]))
    taken = fused.Rows(weight, factor, scale, None, *ends)
    q = fused.round_rows(taken)
    assert torch.equal(q, v.round() if limits is None else v.round().clamp(*limits))
    product, compact = fused.multiply_rows(taken, m)
    assert torch.equal(product, q * m.reshape(rows)) and torch.equal(compact, q.to(torch.int8))
    assert torch.equal(fused.expand_rows(compact, m), product)
    grad, step = torch.randn(shape), torch.rand(shape[0])
    inside = grad if limits is None else clipped(grad, v, *limits)
    to_weight, dot_q, dot_weight = fused.rows_backward(grad.clone(), compact, taken, step)
    assert torch.equal(to_weight, inside * step.reshape(rows))
    assert close(dot_q, (grad * q).flatten(1).sum(1)) and close(dot_weight, (inside * weight).flatten(1).sum(1))


@pytest.mark.parametrize("shape", [(3, 1), (5, 15), (6, 33), (3, 8, 3, 3), (70, 2, 7, 7), (2, 4999)], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_weights_with_a_folded_batch_norm(shape: tuple[int, ...], bits: int, learned: bool, plain: bool) -> None:
    """The pass gives the integers and the gradients of the formulas, with a dead channel and a γ of 0."""
    torch.manual_seed(3)
    channels, largest = shape[0], 2 ** (bits - 1) - 1
    weight, gamma, variance = torch.randn(shape), torch.randn(channels), torch.rand(channels) + 0.1
    weight[-1] *= 1e-30
    gamma[0] = 0
    shrink, scale_x = None if plain else torch.rand(channels) + 0.5, None if plain else torch.tensor(0.03)
    scales = torch.rand(channels) * 0.1 if learned else None
    pairs, eps, rows = 126 if bits == 8 else 0, 1e-3, (-1, *[1] * (len(shape) - 1))
    ends = (-math.inf, math.inf) if bits == 8 or not learned else (float(-largest), float(largest))
    how = fused.Fold(None if plain else gamma, variance, shrink, scales, eps, largest, pairs, *ends)
    made = fused.fold(weight, how, scale_x, DEAD, SMALLEST_SCALE)

    leaves = [t.clone().requires_grad_() for t in (weight, gamma, torch.ones(()) if plain else scale_x)]
    w, g, s_x = leaves
    factor = 1 / torch.sqrt(variance + eps)
    factor = factor if plain else factor * g / shrink
    factor = torch.where(factor == 0, 1.0, factor)
    torch.testing.assert_close(made.factor, factor.detach(), rtol=3e-7, atol=0.0)  # torch's roots are off by a bit
    factor = forward_as(made.factor, factor)
    scale = live_weight_scales(weight.flatten(1), -largest, largest, "minmax", bits == 8, factor.detach())
    own = None if scales is None else scales.clone().requires_grad_()
    if own is not None:
        scale = forward_as(torch.maximum(own.detach(), scale), own) if pairs else own
    v = w * factor.reshape(rows) / scale.reshape(rows)
    q = round_ste(v) if ends[1] == math.inf else clamp(round_ste(v), *ends)
    product = q * (scale / factor * s_x).reshape(rows)
    assert torch.equal(made.scale, scale.detach())
    assert torch.equal(made.q, q.detach().to(torch.int8)) and torch.equal(made.product, product.detach())
    grad = torch.randn(shape)
    asked = [t for t in (w, None if plain else g, own, None if plain else s_x) if t is not None]
    wanted = iter(torch.autograd.grad(product, asked, grad))
    found = fused.fold_backward(grad.clone(), weight, made, ends)
    size = float(grad.norm() * product.detach().norm())  # terms of gradients cancel
    assert close(found[0], next(wanted))
    for there, got, unit in (
        (not plain, found[1], 0.1),
        (learned, found[2], float(scale.detach().min())),
        (not plain, found[3], 0.03),
    ):
        if there:
            assert (got - next(wanted)).norm() <= 1e-5 * size / unit


def test_own_threads_and_those_of_torch_give_the_same_bits() -> None:
    torch.manual_seed(0)
    x, before = torch.randn(4, 64, 40, 40), torch.get_num_threads()
    found = []
    try:
        for threads, team in ((1, 0), (3, 0), (3, fused._team()), (2, fused._team())):
            torch.set_num_threads(threads)
            fused._library.use_team(team)
            found.append(fused.round_clamp(x * 50, -128, 127))
    finally:
        torch.set_num_threads(before)
        fused._library.use_team(fused._team())
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_bounds_of_rows() -> None:
    """Integers on both sides of a bound, and ties at it: those beyond it are clipped and have no gradient."""
    bounds, scale = torch.tensor([64.0, 71.0, 127.0]), torch.tensor([0.5, 0.25, 1.0])
    v = torch.arange(-300, 301) / 2
    weight = v * scale[:, None]
    rows = fused.Rows(weight, None, scale, bounds, -127.0, 127.0)
    q = fused.round_rows(rows)
    assert torch.equal(q, torch.clamp(v.round().expand(3, -1), -bounds[:, None], bounds[:, None]))
    grad = torch.rand(3, len(v)) + 1
    to_weight, _, _ = fused.rows_backward(grad.clone(), q.to(torch.int8), rows, torch.ones(3))
    assert torch.equal(to_weight, grad * (v.round().abs() <= bounds[:, None]))


@pytest.mark.parametrize("count", [1, 15, 16, 4096, 4097, 70_001])
def test_sums(count: int) -> None:
    torch.manual_seed(2)
    a, b = torch.randint(0, 256, (count,)).float() - 3, torch.randint(0, 256, (count,)).float() - 200
    ratios, limits = (0.4375, 0.8125), (-11, 244)
    of = fused.Terms((3, 200), ratios)
    q, *packed = fused.add(a, b, of, *limits)
    v = quantized_add._weighted([a, b], [torch.tensor(r) for r in ratios])
    assert torch.equal(q, v.round().clamp(*limits))
    ends = torch.empty(fused.blocks_of(a), 2)
    assert torch.equal(fused.add_only(a, b, of, *limits, ends), q)
    assert torch.equal(torch.stack([ends[:, 0].min(), ends[:, 1].max()]), torch.stack(torch.aminmax(v)))
    fused.add(a, torch.cat([b[:-1], torch.tensor([torch.nan])]), of, *limits, ends)
    assert ends[-1].isnan().all() and ends[:-1].isfinite().all()
    assert [p.tolist() for p in packed] == [(a + 3).tolist(), (b + 200).tolist()]
    grad = torch.randn(count)
    inside = clipped(grad, v, *limits)
    to_a, to_b, dots = fused.add_backward(grad, (packed[0], packed[1]), of, rounding_to(*limits))
    assert torch.equal(to_a, inside * ratios[0]) and torch.equal(to_b, inside * ratios[1])
    assert close(dots, torch.stack([(inside * a).sum(), (inside * b).sum()]))


@pytest.mark.parametrize("lo, hi", [(0, 255), (-128, 127), (-3, 0)])
def test_rounding(lo: int, hi: int) -> None:
    v = torch.cat([torch.randn(40_000) * 300, torch.arange(-300, 300) + 0.5, torch.tensor([math.inf, -math.inf, -0.2])])
    q = fused.round_clamp(v, lo, hi)
    assert torch.equal(q, v.round().clamp(lo, hi))
    assert fused.round_clamp(v, lo, hi, out=v) is v and torch.equal(v, q)


def test_nan_stays() -> None:
    x = torch.ones(4, 40)
    x[1, 7] = math.nan
    assert fused.round_clamp(x, 0, 255).isnan().sum() == 1
    assert largest_magnitudes(x).isnan().tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert fused.round_rows(fused.Rows(x, None, torch.ones(4), None, -127.0, 127.0)).isnan().sum() == 1
    z = torch.randn(2, 3, 5)
    z[0, 1, 2] = math.nan
    to = Rounding(0, 255)
    q = normalize_round(z, fused.Gains(None, None, torch.tensor(1.0)), Running(None, None, 0.1, 1e-5), to)
    assert q.isnan().any((0, 2)).tolist() == [False, True, False]


@pytest.mark.parametrize("scales", ["fixed", "learned", "pact"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_step_is_that_of_torch(
    scales: str, layout: torch.memory_format, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = prepared(scales).to(memory_format=layout)
    if frozen:
        sim.freeze_batch_norm()
        sim.freeze_scales()
    sim.train()
    gradients: list[dict[str, Tensor]] = []
    outputs: list[Tensor] = []
    for passes in (True, False):
        own = copy.deepcopy(sim)
        if not passes:
            monkeypatch.setattr(fused, "_library", None)
        x, y = batch(3)
        outputs.append(own(x.contiguous(memory_format=layout)))
        nn.functional.cross_entropy(outputs[-1], y).backward()
        gradients.append({n: p.grad for n, p in own.named_parameters() if p.grad is not None})
    assert torch.equal(*outputs) if frozen else (outputs[0] - outputs[1]).abs().max() < 0.05 * outputs[1].abs().max()
    assert gradients[0].keys() == gradients[1].keys()
    for name, wanted in gradients[1].items():
        assert (gradients[0][name] - wanted).norm() <= (1e-4 if frozen else 0.1) * wanted.norm() + 1e-5, name


def test_evaluation_gives_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = prepared("learned").eval()
    x = batch(5, 64)[0]
    with torch.no_grad():
        integers = sim.integer_tensors([x])
        monkeypatch.setattr(fused, "_library", None)
        again = copy.deepcopy(sim).integer_tensors([x])
    assert all((integers[name] == again[name]).all() for name in integers)


@pytest.mark.parametrize("bends", ["", "leaky", "residual"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 5), 1), ((2, 3, 7), 1), ((2, 17, 3, 300), 1), ((2, 3, 4, 4, 4), 1), ((6, 4, 33), 2)]
)
def test_sums_become_integers_of_the_result(shape: tuple[int, ...], axis: int, bends: str) -> None:
    torch.manual_seed(4)
    channels, rank = shape[axis], len(shape)
    sums = torch.randint(-9000, 9000, shape).float()
    bias, m, below = torch.randint(-500, 500, (channels,)).float(), torch.rand(channels) / 50, torch.rand(channels) / 90
    residual = torch.randint(-128, 128, shape).float() if bends == "residual" else None
    of = fused.Multipliers(bias, m, below if bends == "leaky" else None, 0.4375, -28.0, 227.0)

    def spread(t: torch.Tensor) -> torch.Tensor:
        return t.reshape(-1, *[1] * (rank - 1 - axis))

    total = sums + spread(bias)
    v = total * torch.where(total < 0, spread(below), spread(m)) if bends == "leaky" else total * spread(m)
    want = torch.round(v if residual is None else v + residual * 0.4375).clamp(-28, 227)
    given = sums.clone()
    found = fused.requantize(given, of, axis, residual)
    assert found is given and torch.equal(found, want)

    if axis == 1 and rank in (4, 5):
        form = torch.channels_last if rank == 4 else torch.channels_last_3d
        last = sums.clone(memory_format=torch.contiguous_format).to(memory_format=form)
        found = fused.requantize(last, of, axis, None if residual is None else residual.to(memory_format=form))
        assert found is not None and found.data_ptr() == last.data_ptr()
        assert found.is_contiguous(memory_format=form) and torch.equal(found, want)
    assert fused.requantize(sums[..., ::2], of, axis, None) is None
    assert fused.requantize(sums.double(), of, axis, None) is None
