"""Every limit of the checker from both sides: the largest value that is taken, and the next one, which is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import affine_arrays, conv_attrs, q

from intact8.arithmetic.norms import LONGEST_ROW
from intact8.arithmetic.softmax import PEAK
from intact8.errors import ProgramError
from intact8.opset.affine import MOST_TERMS
from intact8.opset.op import Op, Tensor
from intact8.opset.pools import MOST_WINDOWS
from intact8.opset.values import LARGEST_A, LARGEST_B, LARGEST_B_NEGATIVE, LARGEST_SCALE, LARGEST_SIZE, SMALLEST_SCALE
from intact8.program.check import NAME_LENGTH, check
from intact8.program.program import Program

CLAMP = {"lo": 0, "hi": 255}


def single(op: Op, output: Tensor, *inputs: Tensor) -> Program:
    given = {t.name: t for t in inputs}
    return Program({**given, output.name: output}, (op,), tuple(given), (op.name,))


def linear(**arrays: Any) -> Program:
    changed = {**affine_arrays(2, 3), **{k: np.array(v, np.int32) for k, v in arrays.items()}}
    op = Op("y", "linear", ("x",), {**CLAMP, "residual_a": 0}, changed)
    return single(op, q("y", None, 2), q("x", None, 3))


def named(length: int) -> Program:
    name = "n" * length
    op = Op(name, "table", ("x",), {"fn": "t"}, {"table": np.zeros(256, np.uint8)})
    return single(op, q(name, None, 2), q("x", None, 2))


def tensor(**changes: Any) -> Program:
    return single(
        Op("y", "table", ("x",), {"fn": "t"}, {"table": np.zeros(256, np.uint8)}),
        replace(q("y", None, 2), **changes), q("x", None, 2),
    )  # fmt: skip


def norm(kind: str, length: int) -> Program:
    ones = np.ones(length, np.float32)
    attrs = {"shape": [length], "eps": 1.0, **CLAMP}
    return single(Op("y", kind, ("x",), attrs, {"gain": ones, "offset": ones}), q("y", 1, length), q("x", 1, length))


def pool(size: int) -> Program:
    attrs = {"output_size": [size, 1 << 12], "multipliers": [[1, 1, 1]], **CLAMP}
    x = q("x", None, 1, size, 1 << 12)
    return single(Op("y", "adaptive_avg_pool", ("x",), attrs), replace(x, name="y"), x)


def mean(length: int) -> Program:
    attrs = {"dims": [1], "keepdim": False, "a": 1, "b": 1, **CLAMP}
    return single(Op("y", "mean", ("x",), attrs), q("y", None), q("x", None, length))


def softmax(table: list[int]) -> Program:
    attrs = {"axis": 1, "levels": 256.0, **CLAMP}
    op = Op("y", "softmax", ("x",), attrs, {"table": np.array(table, np.int32)})
    return single(op, q("y", None, 3), q("x", None, 3))


def added(a: list[int], b: int) -> Program:
    inputs = [q(f"x{i}", None, 2) for i in range(len(a))]
    op = Op("y", "add", tuple(t.name for t in inputs), {"a": a, "b": b, **CLAMP})
    return single(op, q("y", None, 2), *inputs)


def clamped(lo: int, hi: int) -> Program:
    x = Tensor("x", "float32", (None, 2))
    return single(Op("y", "quantize", ("x",), {"lo": lo, "hi": hi}), q("y", None, 2), x)


def residual(a: int) -> Program:
    arrays = affine_arrays(4, 4, 3, 3)
    x, r = q("x", None, 4, 5, 5), q("r", None, 4, 5, 5)
    inputs = (x, r) if a else (x,)
    op = Op("y", "conv", tuple(t.name for t in inputs), conv_attrs(residual_a=a), arrays)
    return single(op, q("y", None, 4, 5, 5), *inputs)


BOUNDS: dict[str, tuple[Callable[[Any], Program], list[Any], list[Any]]] = {
    "a": (lambda v: linear(a=[v, 1]), [0, LARGEST_A], [-1, LARGEST_A + 1]),
    "b": (lambda v: linear(b=[v, 1]), [1, LARGEST_B], [0, -1, 2, LARGEST_B + 2]),
    "negative a": (
        lambda v: linear(a_neg=[v, 1], b_neg=[1, 1]), [-LARGEST_A, 0, LARGEST_A], [LARGEST_A + 1, -LARGEST_A - 1]
    ),
    "negative b": (
        lambda v: linear(a_neg=[1, 1], b_neg=[v, 1]), [1, LARGEST_B_NEGATIVE], [0, 2, LARGEST_B_NEGATIVE + 2]
    ),
    "bias of another length": (lambda v: linear(bias=[0] * v), [2], [1, 3]),
    "length of a name": (named, [1, NAME_LENGTH], [0, NAME_LENGTH + 1]),
    "zero point": (lambda v: tensor(zero_point=v), [0, 255], [-1, 256, 1.0, True]),
    "scale": (
        lambda v: tensor(scale=v),
        [SMALLEST_SCALE, 1.0, float(np.float32(LARGEST_SCALE))],
        [SMALLEST_SCALE / 2, 2 * LARGEST_SCALE, 0.0, -1.0, 1, 0.1],
    ),
    "row of a layer norm": (lambda v: norm("layer_norm", v), [LONGEST_ROW], [LONGEST_ROW + 1]),
    "row of a root mean square norm": (lambda v: norm("rms_norm", v), [LONGEST_ROW], [LONGEST_ROW + 1]),
    "windows": (pool, [MOST_WINDOWS >> 12], [(MOST_WINDOWS >> 12) + 1]),
    "terms of a mean": (mean, [1, MOST_TERMS], [MOST_TERMS + 1]),
    "peak of a softmax": (lambda v: softmax([v] * 256), [1, PEAK], [0, PEAK + 1]),
    "a table that falls": (
        softmax, [[9] + [0] * 255, [9, 9, 1] + [0] * 253], [[9, 8, 9] + [0] * 253, [9] + [0] * 254 + [-1]]
    ),
    "entries of a table": (softmax, [[1] * 256], [[1] * 255, [1] * 257]),
    "numerators of a sum": (
        lambda v: added([v, 1], 1), [-LARGEST_A, -1, 1, LARGEST_A], [0, LARGEST_A + 1, -LARGEST_A - 1]
    ),
    "inputs of a sum": (lambda v: added([1] * v, 1), [1, 64], [65]),
    "denominator of a sum": (lambda v: added([1, 1], v), [1, LARGEST_B], [0, 2, LARGEST_B + 2]),
    "ends of a clamp": (lambda v: clamped(*v), [(0, 255), (7, 7)], [(8, 7), (-1, 255), (0, 256)]),
    "residual": (residual, [0, 1, LARGEST_A], [LARGEST_A + 1]),
    "size of a dimension": (
        lambda v: single(Op("y", "reshape", ("x",), {"shape": [-1, v]}), q("y", None, v), q("x", None, v)),
        [1, LARGEST_SIZE], [0, LARGEST_SIZE + 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BOUNDS)
def test_both_sides(case: str) -> None:
    build, fine, beyond = BOUNDS[case]
    for value in fine:
        check(build(value))
    for value in beyond:
        with pytest.raises(ProgramError):
            check(build(value))


def test_a_residual_needs_its_numerator_and_one_denominator() -> None:
    program = residual(5)
    op = program.ops[0]
    for attrs, arrays in (({"residual_a": 0}, {}), ({}, {"b": np.array([1, 1, 1, 3], np.int32)})):
        changed = replace(op, attrs={**op.attrs, **attrs}, arrays={**op.arrays, **arrays})
        with pytest.raises(ProgramError, match="residual"):
            check(replace(program, ops=(changed,)))
    alone = replace(residual(0).ops[0], attrs={**op.attrs, "residual_a": 1})
    with pytest.raises(ProgramError, match="without a residual"):
        check(replace(residual(0), ops=(alone,)))
