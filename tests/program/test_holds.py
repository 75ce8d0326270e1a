"""An engine is claimed only where every number of its formula fits what holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.program.build import affine_arrays, network, q, with_op

from intact8.errors import ProgramError
from intact8.opset.op import Op, Tensor
from intact8.program.certify import ENGINES, certify, prove
from intact8.program.check import check
from intact8.program.program import Program
from intact8.program.recheck import recheck

ALL = list(ENGINES)
CLAMP = {"lo": 0, "hi": 255}


def engines(op: Op, *tensors: Tensor) -> list[str]:
    certificate = prove(op, {t.name: t for t in (*tensors, q(op.name, None, 4))}, ENGINES)
    assert certificate["exact"], certificate
    found: list[str] = certificate["engines"]
    return found


def product(a: int, b: int = 1) -> list[str]:
    op = Op("y", "mul", ("x", "w"), {"a": a, "b": b, **CLAMP})
    return engines(op, q("x", None, 4, z=0), q("w", None, 4, z=255))


@pytest.mark.parametrize(
    ("a", "b", "claimed"),
    [
        (30, 1001, ALL),
        (8191, 1, ALL),
        (1 << 15, 1, ["reference"]),
        (1 << 24, 1, ["reference"]),
        (0, 1, [*ALL[:3], "native"]),
    ],
)
def test_products_beyond_int32_are_the_references(a: int, b: int, claimed: list[str]) -> None:
    assert product(a, b) == claimed


def test_a_product_of_nothing_is_not_openvinos() -> None:
    assert product(1) == ALL


def linear(rows: dict[str, Any], z: int = 128, width: int = 16) -> list[str]:
    arrays = {**affine_arrays(4, width), **{k: np.asarray(v) for k, v in rows.items()}}
    return engines(Op("y", "linear", ("x",), {"residual_a": 0, **CLAMP}, arrays), q("x", None, width, z=z))


def test_a_multiplier_of_zero() -> None:
    zero, slope = np.array([0, 1, 1, 1], np.int32), np.full(4, 5, np.int32)
    leaky = {"a_neg": slope, "b_neg": np.full(4, 1001, np.int32)}
    assert linear({}) == ALL
    assert linear({"a": zero}) == ["reference", "onednn", "onnxruntime", "native"]
    assert linear(leaky) == ALL
    assert linear({**leaky, "a": zero}) == ["reference", "onnxruntime", "native"]
    assert linear({**leaky, "a_neg": zero}) == ALL


def test_sums_of_raw_bytes_must_fit_int32() -> None:
    """Σ (x − 128)·w does, Σ x·w does not: kernels read x, and take 128·Σw off later."""
    width = 80_000
    weight = np.full((4, width), 127, np.int8)
    assert linear({"weight": weight, "a": np.ones(4, np.int32)}, width=width) == ["reference"]
    assert linear({"weight": weight // 2, "a": np.ones(4, np.int32)}, width=width) == [
        "reference",
        "onednn",
        "onnxruntime",
        "openvino",
        "native",
    ]


def test_results_of_affine_operations_must_fit_int32() -> None:
    far = {"a": np.full(4, 1 << 24, np.int32), "b": np.ones(4, np.int32)}
    assert linear(far | {"bias": np.zeros(4, np.int32)}) == ["reference"]


def test_more_than_two_terms_are_not_openvinos() -> None:
    for count in (1, 2, 3):
        names = [f"x{i}" for i in range(count)]
        op = Op("y", "add", tuple(names), {"a": [1] * count, "b": 101, **CLAMP})
        assert ("openvino" in engines(op, *(q(n, None, 4) for n in names))) == (count < 3)


def test_long_products_of_two_activations() -> None:
    for terms, claimed in ((100, ALL), (33_000, ALL), (34_000, ALL[:2])):
        op = Op("y", "matmul", ("x", "w"), {"a": 1, "b": 1001, **CLAMP})
        assert engines(op, q("x", None, 4, terms), q("w", None, terms, 4)) == claimed


def test_a_certificate_that_claims_such_an_engine_is_refused() -> None:
    program = certify(with_op(network(), "gate", attrs={"a": 1 << 20, "b": 1}), ENGINES)
    op = next(op for op in program.ops if op.name == "gate")
    assert op.certificate is not None and op.certificate["engines"] == ["reference"]
    recheck(program)
    forged = with_op(program, "gate", certificate={**op.certificate, "engines": ["reference", "onnxruntime"]})
    with pytest.raises(ProgramError, match="engines is stored as"):
        recheck(forged)


@pytest.mark.parametrize("scale", [1e-40, 1.4e-45, 2.0**-101, 3e38])
def test_scales_out_of_the_range_of_floats_are_refused(scale: float) -> None:
    t = Tensor("y", "uint8", (None, 4), float(np.float32(scale)), 0)
    op = Op("y", "quantize", ("x",), dict(CLAMP))
    with pytest.raises(ProgramError, match="not a positive float32 value within"):
        check(Program({"x": Tensor("x", "float32", (None, 4)), "y": t}, (op,), ("x",), ("y",)))
