"""Integer sums in floating point are exact, and the bounds that say so are bounds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import EXACT, accumulate, chunk_edges, convolve
from intact8.simulation.ops.integer_conv import convolve_backward
from intact8.simulation.weights.quantize import partial_sum_bound


def conv(groups: int = 1, transposed: bool = False) -> Node:
    attrs: dict[str, Any] = {
        "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": groups,
        "transposed": transposed,
    }  # fmt: skip
    return Node("c", "conv", ["x"], attrs)


LINEAR = Node("fc", "linear", ["x"])


def edges_of(node: Node, w: torch.Tensor, z: int = 0) -> list[int] | None:
    return chunk_edges(node, w, float(partial_sum_bound(node, w, z, 0, 255).max()))


@pytest.mark.parametrize("wants", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("node", [LINEAR, conv(), Node("s", "scale_shift", ["x"])], ids=lambda node: node.op)
def test_gradients_that_are_wanted(node: Node, wants: tuple[bool, bool, bool]) -> None:
    """A frozen layer passes a gradient on to what comes before it."""
    torch.manual_seed(0)
    shape = {"linear": (4, 3), "conv": (4, 3, 2, 2), "scale_shift": (3,)}[node.op]
    operands = [torch.randn(s, requires_grad=True) for s in ((2, 3, 5, 3), shape, shape[:1])]
    y = convolve(node, *operands)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(y, operands, grad)
    found = convolve_backward(node, grad, operands[0].detach(), operands[1].detach(), wants)
    for wanted, g, e in zip(wants, found, expected, strict=True):
        assert (g is not None or not wanted) and (g is None or torch.allclose(g, e, atol=1e-5))


@pytest.mark.parametrize("k", [100, 517, 519, 4096, 70_001])
def test_linear_sums_of_any_length(k: int) -> None:
    """One sign throughout: the sum is as large as it gets, far above 2^24 for large k."""
    w = torch.full((2, k), 127.0)
    w[1, ::2] = -126.0
    x = torch.full((3, k), 255.0)
    x[1] -= torch.arange(k) % 3
    edges = edges_of(LINEAR, w)
    expected = (x.long() @ w.long().T).numpy()
    total = accumulate(LINEAR, x, w, edges)
    assert np.array_equal(total.double().numpy(), expected)
    assert edges is not None and edges[0] == 0 and edges[-1] == k and edges == sorted(set(edges))
    assert (len(edges) > 2) == (127 * 255 * k >= EXACT)


@settings(max_examples=40, deadline=None)
@given(
    c=st.integers(1, 300), o=st.integers(1, 4), k=st.integers(1, 3), z=st.integers(0, 255), seed=st.integers(0, 10**6),
    form=st.sampled_from(["dense", "grouped", "transposed"]), largest=st.sampled_from([3, 127]),
)  # fmt: skip
def test_convolution_sums(c: int, o: int, k: int, z: int, seed: int, form: str, largest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = 2 if form == "grouped" else 1
    c, o = c * groups, o * groups
    shape = (c, o, k, k) if form == "transposed" else (o, c // groups, k, k)
    node = conv(groups, form == "transposed")
    # Mostly of one sign, so that partial sums grow.
    w = torch.randint(largest // 2, largest + 1, shape, generator=generator).float()
    x = torch.randint(0, 256, (2, c, 4, 4), generator=generator).float() - z
    total = accumulate(node, x, w, edges_of(node, w, z))
    exact = accumulate(node, x, w, None)
    assert exact.dtype == torch.float64 and exact.abs().max() < 2**53
    assert torch.equal(total.double(), exact)
    bound = partial_sum_bound(node, w, z, 0, 255)
    assert (exact.abs().amax((0, 2, 3)) <= bound).all()


@settings(max_examples=60, deadline=None)
@given(
    w=st.lists(st.integers(-127, 127), min_size=1, max_size=6), z=st.integers(0, 255), lo=st.integers(0, 100),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_partial_sum_bound_is_the_largest_partial_sum(w: list[int], z: int, lo: int, seed: int) -> None:
    """By brute force: the worst input for every subset of terms is at an end of the range."""
    z = max(z, lo)
    weight = torch.tensor([w], dtype=torch.float32)
    bound = float(partial_sum_bound(LINEAR, weight, z, lo, 255)[0])
    worst = 0.0
    for subset in range(1 << len(w)):
        terms = [v for i, v in enumerate(w) if subset >> i & 1]
        high = sum(max(v * (255 - z), v * (lo - z)) for v in terms)
        low = sum(min(v * (255 - z), v * (lo - z)) for v in terms)
        worst = max(worst, high, -low)
    assert worst == bound


def test_a_channel_that_no_cut_makes_exact_goes_to_float64() -> None:
    node = conv(groups=2)
    w = torch.full((2, 600, 1, 1), 127.0)
    assert edges_of(node, w) is None
    wide = torch.full((1, 1, 40, 40), 127.0)  # one input channel alone passes 2^24
    assert edges_of(conv(), wide) is None
    x = torch.full((1, 1, 40, 40), 255.0)
    assert accumulate(conv(), x, wide, None).item() == 255 * 127 * 1600
