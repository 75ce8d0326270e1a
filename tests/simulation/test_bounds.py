"""What rounds into a range, and how large a sum can get, against trying every number."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from intact8.capture.graph import Node
from intact8.simulation.weights.quantize import partial_sum_bound
from intact8.train.straight_through import rounding_to


@pytest.mark.parametrize(("lo", "hi"), [(-7, 8), (-8, 7), (0, 255), (-3, -1), (1, 1), (-2, 2)])
def test_the_ends_of_what_rounds_into_a_range_are_the_neighbours_outside(lo: int, hi: int) -> None:
    low, high = (np.float32(end) for end in rounding_to(lo, hi))
    assert np.rint(low) != lo or low == lo - 0.5
    assert not lo <= np.rint(low) <= hi and not lo <= np.rint(high) <= hi
    assert np.rint(np.nextafter(low, np.float32(np.inf))) == lo
    assert np.rint(np.nextafter(high, np.float32(-np.inf))) == hi


@pytest.mark.parametrize(("lo", "hi", "z"), [(0, 3, 0), (0, 3, 3), (0, 3, 1), (1, 4, 2), (0, 3, 2)])
def test_no_partial_sum_passes_its_bound_and_one_reaches_it(lo: int, hi: int, z: int) -> None:
    weight = torch.tensor([[2.0, -3.0, 1.0], [1.0, 4.0, 0.0], [-2.0, -1.0, -5.0], [0.0, 0.0, 0.0]])
    bound = partial_sum_bound(Node("fc", "linear"), weight, z, lo, hi)
    x = torch.tensor(list(itertools.product([lo - z, 0, hi - z], repeat=3)), dtype=torch.float32)
    assert torch.equal(bound, (x @ weight.T).abs().amax(0).double())


def test_the_bound_of_a_long_sum_is_exact() -> None:
    """Beyond 2^24 not every integer is a float32 number."""
    weight = torch.full((1, (1 << 18) + 1), 127.0)
    weight[0, 0] = 63
    assert partial_sum_bound(Node("fc", "linear"), weight, 0, 0, 1).item() == 127 * (1 << 18) + 63
