"""Sums that float32 does not hold are added in parts; float32 products of integers keep their integers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Array, Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

ALL = {"lo": 0, "hi": 255}


def q(name: str, z: int, *shape: int) -> Tensor:
    return Tensor(name, "uint8", shape, 1 / 16, z)


def compared(op: Op, *tensors: Tensor) -> None:
    """All integers at both ends, and random ones, on a program whose certificate claims the engine."""
    made = Program({t.name: t for t in tensors}, (op,), op.inputs, (op.name,))
    check(made)
    certified = certify(made, ("reference", "openvino"))
    assert certified.ops[0].certificate is not None and "openvino" in certified.ops[0].certificate["engines"]
    runner, reference = ENGINE.prepare(certified, threads=1), ReferenceEngine().prepare(certified)
    rng = np.random.default_rng(0)
    for least in (255, 0):
        for step in (255, 1):
            drawn = {t.name: rng.integers(least // step, 255 // step + 1, t.shape) * step for t in tensors[:-1]}
            x = {name: value.astype(np.uint8) for name, value in drawn.items()}
            np.testing.assert_array_equal(runner(x)[0], reference(x)[0])
            np.testing.assert_array_equal(runner.tensors(x)[op.name], reference(x)[0])


@pytest.mark.parametrize("terms", [258, 259, 1000])
def test_products_of_two_activations(terms: int) -> None:
    op = Op("y", "matmul", ("x", "w"), {"a": 1, "b": 3001, **ALL})
    compared(op, q("x", 100, 2, 5, terms), q("w", 3, 2, terms, 4), q("y", 7, 2, 5, 4))


@pytest.mark.parametrize("bias", [0, 12345])
def test_linear_layers_beside_a_zero_point(bias: int) -> None:
    rng, terms = np.random.default_rng(1), 4096
    arrays: dict[str, Array] = {
        "weight": rng.integers(-64, 64, (6, terms)).astype(np.int8), "bias": np.full(6, bias, np.int32),
        "a": np.ones(6, np.int32), "b": np.full(6, 4001, np.int32),
    }  # fmt: skip
    arrays["weight"][0] = 63
    op = Op("y", "linear", ("x",), {"residual_a": 0, **ALL}, arrays)
    compared(op, q("x", 120, 3, 7, terms), q("y", 128, 3, 7, 6))
