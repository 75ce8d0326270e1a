"""Products of activations and attention on the native engine: the reference's integers, on every instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intact8.engines import get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program


def uint8(name, shape, zero=128, scale=0.125):
    return Tensor(name, "uint8", shape, scale, zero)


def same(program, given):
    """Assert that every tensor, and every output of the plan as it is usually run, is the reference's."""
    check(program)
    want = get_engine("reference").prepare(program).tensors(given)
    runner = get_engine("native").prepare(program, threads=1)
    for name, found in runner.tensors(given).items():
        np.testing.assert_array_equal(found, want[name], err_msg=name)
    for name, found in zip(program.outputs, runner(given), strict=True):
        np.testing.assert_array_equal(found, want[name], err_msg=name)


def product(rng, x_shape, w_shape, permuted):
    """Return a product of activations, read in another order of dimensions where ``permuted``, and inputs."""
    zeros = rng.integers(0, 256, 3).tolist()
    shapes, ops, tensors, names = (x_shape, w_shape), [], {}, []
    for i, shape in enumerate(shapes):
        dims = list(range(len(shape)))
        if permuted:
            dims = rng.permutation(len(shape)).tolist()
            given = [0] * len(shape)
            for d, size in zip(dims, shape, strict=True):
                given[d] = size
            shape = given
        tensors[f"x{i}"] = uint8(f"x{i}", tuple(shape), zeros[i])
        tensors[f"t{i}"] = uint8(f"t{i}", shapes[i], zeros[i])
        ops.append(Op(f"t{i}", "permute", (f"x{i}",), {"dims": dims}))
        names.append(f"t{i}")
    leading = np.broadcast_shapes(x_shape[:-2], w_shape[:-2])
    depth = x_shape[-1]
    a = max(1, int(8191 / (255 * 20 * depth**0.5)))
    lo, hi = sorted(rng.integers(0, 256, 2).tolist()) if rng.random() < 0.3 else (0, 255)
    tensors["y"] = uint8(
        "y", (*leading, x_shape[-2], w_shape[-1]), zeros[2], float(np.float32(0.125 * 0.125 * 8191 / a))
    )
    ops.append(Op("y", "matmul", tuple(names), {"a": a, "b": 8191, "lo": lo, "hi": hi}))
    program = Program(tensors, tuple(ops), ("x0", "x1"), ("y",))
    return program, {n: rng.integers(0, 256, tensors[n].shape).astype(np.uint8) for n in program.inputs}


SHAPES = [
    ((1, 1), (1, 1)),
    ((5, 7), (7, 3)),
    ((2, 3, 9, 32), (2, 3, 32, 70)),
    ((2, 12, 128, 32), (2, 12, 32, 128)),
    ((3, 1, 17, 13), (1, 4, 13, 65)),
    ((4, 31, 64), (64, 16)),
    ((200, 66), (3, 66, 129)),
    ((2, 1, 2, 1, 25, 4), (1, 3, 2, 2, 4, 48)),
    ((2, 3, 1, 300), (2, 3, 300, 1)),
]


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("x", "w"), SHAPES)
def test_products_of_activations(x, w, permuted):
    rng = np.random.default_rng([*x, *w])
    for _ in range(3):
        same(*product(rng, x, w, permuted))


@pytest.mark.skipif("INTACT8_ISA" in os.environ, reason="this is the child process")
@pytest.mark.parametrize("isa", ["plain", "avx2"])
def test_lower_instruction_sets(isa):
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "INTACT8_ISA": isa},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout + found.stderr
