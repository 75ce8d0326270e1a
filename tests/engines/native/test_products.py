"""Products of rows of bytes with packed weights, of random sizes around those of tiles: the reference's bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engines.native.random_attention import product
from tests.engines.native.test_attention import same

from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

EDGES = (1, 3, 4, 15, 16, 17, 31, 32, 33, 35, 36, 47, 48, 49, 63, 64, 65, 80, 96, 100, 127, 128, 129, 200)
"""Sizes at which rows, columns and depths of tiles end, and beside."""


def sizes(seed: int) -> tuple[np.random.Generator, int, int, int]:
    """Return random numbers, rows, a depth and columns."""
    rng = np.random.default_rng([seed, 7])
    rows, depth, columns = (int(n) for n in rng.choice(EDGES, 3))
    return rng, rows, depth, columns


@pytest.mark.parametrize("seed", range(60))
def test_products_of_activations(seed: int) -> None:
    rng, rows, depth, columns = sizes(seed)
    same(*product(rng, (2, rows, depth), (2, depth, columns), False))


@pytest.mark.parametrize("seed", range(60))
def test_dynamic_linear_layers(seed: int) -> None:
    rng, rows, depth, columns = sizes(seed)
    arrays = {
        "weight": rng.integers(-127, 128, (columns, depth)).astype(np.int8),
        "scale": rng.uniform(1e-3, 1e-2, columns).astype(np.float32),
    }
    tensors = {
        "x": Tensor("x", "float32", (None, depth)),
        "y": Tensor("y", "float32", (None, columns)),
    }
    layer = Op("y", "dynamic_linear", ("x",), {"granularity": "per_row"}, arrays)
    same(Program(tensors, (layer,), ("x",), ("y",)), {"x": rng.standard_normal((rows, depth)).astype(np.float32)})
