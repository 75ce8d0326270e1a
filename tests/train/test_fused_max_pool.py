"""The fused pass of max pooling computes what torch's does, gradients included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intact8
from intact8.arithmetic.windows import pool_size
from intact8.train import fused, fused_max_pool

pytestmark = [
    pytest.mark.usefixtures("threads"),
    pytest.mark.skipif(fused._library is None, reason="the compiled module is not there"),
]


def attributes(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool = False) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}


def same(attrs: dict[str, Any], x: Tensor) -> None:
    """Integers, of which many are equal: the gradient shows which of the largest was taken."""
    x = x.requires_grad_()
    pool = F.max_pool2d if len(attrs["kernel"]) == 2 else F.max_pool1d
    assert fused_max_pool.can_fuse(attrs, x)
    got, wanted = fused_max_pool.max_pool(attrs, x), pool(x, *attrs.values())
    assert torch.equal(got, wanted)
    grad = torch.randint(-8, 9, wanted.shape).float()  # whose sums are exact in any order
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (got, wanted)))


def empty(size: int, kernel: int, stride: int, padding: int, dilation: int, count: int) -> bool:
    """Whether a window has no place in the input: torch's gradient is then written outside of its memory."""
    places = ([i * stride - padding + k * dilation for k in range(kernel)] for i in range(count))
    return any(not any(0 <= place < size for place in window) for window in places)


pairs = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    pairs,
    pairs,
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_any_windows(shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    for one in zip(shape[2:], kernel, stride, padding, dilation, strict=True):
        count = pool_size(*one, ceil)
        assume(count > 0 and not empty(*one, count))
    same(attributes(kernel, stride, padding, dilation, ceil), torch.randint(-6, 6, shape).float())


@pytest.mark.parametrize("shape", [(2, 3, 70, 600), (1, 8, 112, 112)], ids=str)
def test_long_rows(shape: tuple[int, ...]) -> None:
    for stride in (1, 2, 3):
        same(attributes((3, 3), (stride, stride), (1, 1), (1, 1)), torch.randint(-6, 6, shape).float())


def test_one_dimension_and_large_windows() -> None:
    same(attributes([3], [2], [1], [1]), torch.randint(-6, 6, (2, 3, 41)).float())
    same(attributes([16, 16], [1, 1], [8, 8], [1, 1]), torch.randint(-6, 6, (1, 2, 20, 20)).float())


def test_infinities_and_nan() -> None:
    x = torch.full((1, 1, 6, 6), -math.inf)
    x[0, 0, 2, 3] = math.nan
    attrs = attributes((2, 2), (2, 2), (1, 1), (1, 1))
    got, wanted = fused_max_pool.max_pool(attrs, x), F.max_pool2d(x, 2, 2, 1)
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.nan_to_num(), wanted.nan_to_num())
    x = x.nan_to_num(nan=1.0).requires_grad_()
    got = fused_max_pool.max_pool(attrs, x)
    (grad,) = torch.autograd.grad(got, x, torch.ones_like(got))
    assert grad[0, 0, 2, 3] == 1 and bool(grad.isfinite().all())


def test_windows_without_a_place_in_the_input() -> None:
    attrs = attributes((1, 3), (2, 4), (0, 1), (3, 3), True)
    x = torch.randn(1, 1, 15, 2, requires_grad=True)
    got = fused_max_pool.max_pool(attrs, x)
    (grad,) = torch.autograd.grad(got, x, torch.ones_like(got))
    assert bool((got == -math.inf).all()) and not grad.any()


def test_what_it_does_not_take() -> None:
    attrs = attributes((3, 3), (2, 2), (1, 1), (1, 1))
    x = torch.zeros(2, 4, 8, 8)
    assert not fused_max_pool.can_fuse(attrs, x.to(memory_format=torch.channels_last))
    assert not fused_max_pool.can_fuse(attrs, x.double())
    assert not fused_max_pool.can_fuse({**attrs, "kernel": (17, 16)}, x)
    assert not fused_max_pool.can_fuse({**attrs, "kernel": (3, 3, 3)}, x[None])


def test_a_simulation_trains_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a simulation are those of torch's pooling, and integers do not change."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(4 * 7 * 7, 2))
    x = torch.randn(4, 3, 16, 16)
    sim = intact8.prepare(net, x, intact8.recipes.qat("learned"))
    intact8.calibrate(sim, [x])
    sim.train()
    found, taken = [], []
    pool = fused_max_pool.max_pool
    monkeypatch.setattr(fused_max_pool, "max_pool", lambda *given: taken.append(1) or pool(*given))
    for passes in (True, False):
        if not passes:
            monkeypatch.setattr(fused_max_pool, "can_fuse", lambda *_: False)
        sim.zero_grad()
        y = sim(x)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in sim.parameters() if p.grad is not None)])
    assert taken == [1] and all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(*found, strict=True))
