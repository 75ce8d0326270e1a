"""Fused steps of the simulation against the same steps written out: same values, same gradients, less memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients import clamp
from tests.simulation.networks import quantized
from torch import Tensor, nn

import intact8
from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import convolve
from intact8.simulation.ops.integer_conv import weighted_sum
from intact8.simulation.ops.pools import adaptive_counts, window_counts
from intact8.simulation.ops.quantized_add import _dot, add_round
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.weights.grid import Limits, on_grid
from intact8.simulation.weights.layout import per_output
from intact8.train.fused import Gains
from intact8.train.fused_batch_norm import Running, normalize_round
from intact8.train.straight_through import Rounding, clipped, quantize_ste, round_ste
from intact8.train.weight_scales import two_largest


def conv(groups: int = 1, transposed: bool = False, **attrs: Any) -> Node:
    found: dict[str, Any] = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 1], "output_padding": [0, 0]}
    return Node("c", "conv", ["x"], found | {"groups": groups, "transposed": transposed} | attrs)


LAYERS: dict[str, tuple[Node, tuple[int, ...], tuple[int, ...]]] = {
    "conv": (conv(), (6, 4, 3, 3), (2, 4, 7, 7)),
    "grouped": (conv(2), (6, 2, 3, 3), (2, 4, 7, 7)),
    "transposed": (conv(2, True, stride=[2, 2], output_padding=[1, 0]), (4, 3, 3, 3), (2, 4, 5, 5)),
    "conv1d": (conv(stride=[1], padding=[1], dilation=[2], output_padding=[0]), (6, 4, 3), (2, 4, 9)),
    "linear": (Node("l", "linear", ["x"]), (6, 4), (3, 5, 4)),
    "scale_shift": (Node("s", "scale_shift", ["x"]), (6,), (2, 6, 3, 3)),
}


def leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.clone().requires_grad_() for t in tensors]


def assert_same_gradients(a: Tensor, inputs: list[Any], b: Tensor, others: list[Any]) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    grad = torch.randn(a.shape)
    kept = [(x, y) for x, y in zip(inputs, others, strict=True) if x is not None]
    one = torch.autograd.grad(a, [x for x, _ in kept], grad)
    two = torch.autograd.grad(b, [y for _, y in kept], grad)
    for g, expected in zip(one, two, strict=True):
        torch.testing.assert_close(g, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("clip", ["nothing", "ends", "pairs"])
@pytest.mark.parametrize("fold", [True, False], ids=["folded", "plain"])
@pytest.mark.parametrize("kind", list(LAYERS))
def test_a_sum_with_integer_weights(kind: str, fold: bool, clip: str) -> None:
    torch.manual_seed(0)
    node, weight_shape, x_shape = LAYERS[kind]
    channels = 6
    x, weight = torch.randint(-9, 200, x_shape).float(), torch.randn(weight_shape)
    factor = per_output(torch.randn(channels).abs() + 0.5, weight, node).clone() if fold else None
    scale = per_output(torch.rand(channels) * 0.02 + (0.1 if clip == "nothing" else 0.01), weight, node).clone()
    pairs = per_output(torch.full((channels,), 64.0), weight, node) if clip == "pairs" else None
    limits = None if clip == "nothing" else Limits(-127, 127, pairs)
    m, bias = torch.rand(channels) * 0.1, torch.randn(channels)
    one, two = leaves(x, weight, factor, scale, m, bias), leaves(x, weight, factor, scale, m, bias)

    def fused(x: Tensor, weight: Tensor, factor: Any, scale: Tensor, m: Tensor, bias: Tensor) -> Tensor:
        return weighted_sum(node, x, on_grid(weight, factor, scale, limits), m, bias)

    def written_out(x: Tensor, weight: Tensor, factor: Any, scale: Tensor, m: Tensor, bias: Tensor) -> Tensor:
        q = round_ste((weight if factor is None else weight * factor) / scale)
        q = q if limits is None else clamp(q, limits.lo, limits.hi)
        q = q if pairs is None else clamp(q, -pairs, pairs)
        return convolve(node, x, q * per_output(m, q, node), bias)

    assert_same_gradients(fused(*one), one, written_out(*two), two)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [False, True], ids=["rounded first", "clipped first"])
def test_batch_norm_and_rounding(first: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5)
    values = 3 * torch.randn(4, 5, 6, 6) + 1, 20 * torch.randn(5), 30 * torch.randn(5)
    one, two = leaves(*values), leaves(*values)
    mean, var = torch.zeros(5), torch.ones(5)
    seen: list[Tensor] = []
    watch = lambda v: seen.append(v.clone())  # noqa: E731
    fused = normalize_round(
        one[0],
        Gains(one[1], one[2], torch.tensor(1.0)),
        Running(mean, var, 0.1, norm.eps),
        Rounding(0, 20, watch, first),
    )  # type: ignore[arg-type]
    v = F.batch_norm(two[0], norm.running_mean, norm.running_var, two[1], two[2], True, 0.1, norm.eps)  # type: ignore[arg-type]
    torch.testing.assert_close(seen[0], v.detach())
    expected = round_ste(clamp(v, 0, 20)) if first else clamp(round_ste(v), 0, 20)
    assert_same_gradients(fused, one, expected, two)
    torch.testing.assert_close(mean, norm.running_mean)
    torch.testing.assert_close(var, norm.running_var)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("other", [(2, 3, 4, 4), (2, 3, 1, 1)], ids=["same shape", "broadcast"])
def test_sums_of_terms(whole: bool, other: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    class Point:
        zero_point_value = 7

    a, b = (torch.randint(-7, 249, shape).float() for shape in ((2, 3, 4, 4), other))
    values = (a, b, torch.tensor(0.41378), torch.tensor(-0.29713))
    values = values if whole else (a / 3, b / 3, *values[2:])
    one, two = leaves(*values), leaves(*values)
    terms = [Quantized(q, Point(), whole) for q in one[:2]]  # type: ignore[arg-type]
    fused = add_round(terms, one[2:], Rounding(-20, 50))  # type: ignore[arg-type]
    v = two[0] * two[2] + two[1] * two[3]  # type: ignore[operator]
    assert_same_gradients(fused, one, clamp(round_ste(v), -20, 50), two)


@pytest.mark.parametrize(("lo", "hi"), [(0, 255), (-3, 8), (-128, 127)])
def test_clipped_gradients_at_ties(lo: int, hi: int) -> None:
    """The gradient passes exactly where the rounded value lies inside, also for the numbers next to a tie."""
    ends = torch.tensor([lo - 0.5, hi + 0.5])
    v = torch.cat([ends, *(ends.nextafter(torch.full((2,), d)) for d in (-1e9, 1e9)), torch.tensor([0.0, 1e9, -1e9])])
    inside = (v.round() >= lo) & (v.round() <= hi)
    assert torch.equal(clipped(torch.ones_like(v), v, lo, hi), inside.float())
    ends = torch.tensor([float(lo), float(hi)])
    v = torch.cat([v, ends, *(ends.nextafter(torch.full((2,), d)) for d in (-1e9, 1e9))])
    assert torch.equal(clipped(torch.ones_like(v), v, lo, hi, first=True), ((v >= lo) & (v <= hi)).float())


def test_quantizing_without_gradient_leaves_its_input_alone() -> None:
    x = torch.tensor([0.26, 3.0])
    before = x.clone()
    assert quantize_ste(x, torch.tensor(0.1), 0, 0, 7).tolist() == [3.0, 7.0]
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (5, 147), (4, 1024), (2, 1031), (7, 4608)])
def test_two_largest(shape: tuple[int, int]) -> None:
    for rows in (torch.rand(shape), torch.randint(0, 9, shape).float()):
        assert torch.equal(two_largest(rows), rows.topk(min(2, shape[1]), dim=1).values)
    rows = torch.zeros(shape)
    rows[:, -1] = 2.0  # behind the last whole block
    rows[:, 0] += 1.0
    assert torch.equal(two_largest(rows), rows.topk(min(2, shape[1]), dim=1).values)


def test_divisors_of_pools_are_counted_once() -> None:
    attrs = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True, "count_include_pad": False}
    assert window_counts(attrs, [7, 6]) is window_counts(copy.deepcopy(attrs), (7, 6))
    assert adaptive_counts([2, 3], [7, 6]) is adaptive_counts((2, 3), (7, 6))
    with torch.inference_mode():
        assert not window_counts(attrs, [9, 9]).is_inference()


class Residual(nn.Module):
    """Convolutions with batch norm, ReLU and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
        )  # fmt: skip
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.head(torch.relu(self.body(x) + x).mean((2, 3)))
        return y


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes of the distinct tensors that a forward pass saves and that are no parameter or buffer."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = model(x)
    assert y.requires_grad
    return sum(t.untyped_storage().nbytes() for address, t in saved.items() if address not in own)


@pytest.mark.parametrize("scales", ["learned", "observed", "fixed"])
@pytest.mark.parametrize("frozen", [False, True], ids=["live", "frozen"])
def test_what_a_training_step_saves(scales: str, frozen: bool) -> None:
    """At most 1.3 times what the float32 network saves."""
    torch.manual_seed(0)
    model = Residual()
    x = torch.randn(8, 3, 32, 32)
    sim, _ = quantized(copy.deepcopy(model).eval(), x, intact8.recipes.qat(scales))
    if frozen:
        sim.freeze_batch_norm()
        sim.freeze_scales()
    assert saved_bytes(sim.train(), x) < 1.3 * saved_bytes(model.train(), x)


def test_autocast_moves_no_integer_that_ships() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 16, 16)
    sim, _ = quantized(Residual().eval(), x, intact8.recipes.qat("learned"))
    sim.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = sim(x).float().square().mean()
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in sim.parameters())
    sim.freeze_batch_norm()
    sim.freeze_scales()
    with torch.autocast("cpu", torch.bfloat16):
        trained = sim(x)
    assert torch.equal(trained, sim.eval()(x))


def test_a_product_of_tensors_with_channels_last() -> None:
    a, b = (torch.randint(9, (2, 3, 4, 5)).float().to(memory_format=torch.channels_last) for _ in range(2))
    assert _dot(a, b) == (a * b).sum()
