"""What every validator of attributes takes, and the nearest thing it does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from intact8.opset import KINDS, values
from intact8.opset.values import LARGEST_A, LARGEST_B, LARGEST_FLOAT32, LARGEST_SIZE, Validator

INF, NAN = math.inf, math.nan
SMALLEST, LARGEST = 1 / values.LARGEST_SCALE, values.LARGEST_LEVELS
BEYOND = float(np.nextafter(LARGEST_FLOAT32, INF))
CASES: dict[str, tuple[Validator, list[Any], list[Any]]] = {
    "integer": (values.integer(-2, 5), [-2, 0, 5], [-3, 6, 1.0, True, None, "n", [1]]),
    "integer or name": (values.integer(0, 5, name=True), [0, 5, "n"], [-1, 6, False, 1.0, None]),
    "integers": (values.integers(0, 7), [[0], [7] * 8], [[], [0] * 9, [-1], [8], [1, 8], [True], ["n"], (1,), 1, None]),
    "integers or none": (values.integers(-1, 7, empty=True), [[], [-1, 7]], [[-2], [8], [1.0], ["n"], {}]),
    "integers or names": (values.integers(0, 7, names=True), [["n", 0], ["n"]], [["n", 8], ["n", -1], [], [None]]),
    "number": (
        values.number, [0, -1, 2.5, LARGEST_FLOAT32, -LARGEST_FLOAT32, 1 << 127],
        [BEYOND, -BEYOND, INF, NAN, True, "1", None, 1 << 128, -(1 << 128)],
    ),
    "whole": (
        values.whole, [0, -3, 2.0, (1 << 63) - 1, -(1 << 63) + 1, float(1 << 62)],
        [0.5, 1 << 63, float(1 << 63), -(1 << 63), INF, NAN, True, None],
    ),
    "whole or none": (values.whole_or(INF), [None, INF, 4, 4.0], [-INF, 0.5, NAN, "x", 1 << 63]),
    "exactly": (values.exactly(False), [False], [True, 0, None, 0.0]),
    "epsilon": (values.epsilon, [1e-36, 1.0, 1, 1e38], [0, 9e-37, -1.0, 1e39, INF, NAN, True, None]),
    "inverse of a scale": (
        values.inverse_scale, [float(np.float32(1.001 * SMALLEST)), 1.0, 256, LARGEST],
        [SMALLEST / 2, 0.0, -1.0, 0.1, float(np.nextafter(np.float32(LARGEST), np.float32(INF))), INF, NAN, None],
    ),
    "limit": (values.limit, [INF, -INF, 0, 1.5], [NAN, None, True, "inf", 1 << 128]),
    "limit or none": (values.limit_or_none, [None, INF, 2], [NAN, "x", True]),
    "boolean": (values.boolean, [True, False], [0, 1, None, "true"]),
    "text": (values.text, ["", "x" * 1000], ["x" * 1001, None, 1, ["x"]]),
    "one of": (values.one_of("a", "b"), ["a", "b"], ["c", "", None, ["a"], 1]),
    "odd": (values.odd, [1, 3, LARGEST_B], [0, -1, 2, LARGEST_B + 1, LARGEST_B + 2, 1.0, True, None]),
    "numerators": (
        values.numerators, [[1], [-LARGEST_A, LARGEST_A], [1] * 64],
        [[], [0], [1, 0], [LARGEST_A + 1], [-LARGEST_A - 1], [1] * 65, [1.0], [True], 1, None],
    ),
    "multipliers": (
        values.multipliers,
        [[[1, 0, 1]], [[LARGEST_SIZE, LARGEST_A, LARGEST_B]], [[1, 1, 1], [2, 1, 1]],
         [[n, 1, 1] for n in range(1, 4097)]],
        [[], [[0, 1, 1]], [[1, -1, 1]], [[1, 1, 2]], [[1, 1, 0]], [[1, 1, 1], [1, 2, 3]], [[1, 1]], [[1, 1, 1, 1]],
         [[1, True, 1]], [[1.0, 1, 1]], [(1, 1, 1)], [[LARGEST_SIZE + 1, 1, 1]], [[1, LARGEST_A + 1, 1]], None,
         [[1, 1, LARGEST_B + 2]], [[n, 1, 1] for n in range(1, 4098)]],
    ),
    "paddings": (
        values.paddings, [[[0, 0]], [[-(1 << 20) + 1, (1 << 20) - 1]], [[1, 2]] * 8],
        [[], [[0, 0]] * 9, [[1 << 20, 0]], [[0, -(1 << 20)]], [[0]], [[0, 0, 0]], [[0, 1.0]], [[True, 0]], [(0, 0)],
         None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_both_sides(case: str) -> None:
    validate, taken, refused = CASES[case]
    assert {repr(v): validate(v) for v in taken} == {repr(v): None for v in taken}
    assert not [v for v in refused if not isinstance(validate(v), str)]


def test_the_limits_themselves() -> None:
    """A file written by one version is read by others: none of these numbers may change unseen."""
    assert (LARGEST_SIZE, LARGEST_A, LARGEST_B, values.LARGEST_B_NEGATIVE) == (1 << 31, 1 << 24, 8191, (1 << 20) - 1)
    assert values.LARGEST_SCALE * 255 == LARGEST_FLOAT32 and values.SMALLEST_SCALE == 2.0**-100
    assert KINDS["add"].inputs == (1, 64)
    assert (values.SMALLEST_EPSILON, values.LARGEST_EPSILON, LARGEST) == (1e-36, values.LARGEST_FLOAT32, 2.0**62)
