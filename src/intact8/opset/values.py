"""Validators of attributes: plain functions that say what is wrong with a value, or None."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from intact8.arithmetic.tie_free import LARGEST, LARGEST_NEGATIVE

Validator = Callable[[Any], str | None]

LARGEST_SIZE = 1 << 31
"""No dimension and no tensor (batch dimension aside) has more elements than this."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

LARGEST_A = 1 << 24
"""Numerators stay below this, so that a·acc fits int64 with room."""

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-36, LARGEST_FLOAT32
"""Limits of what is added to a variance, in squared steps. The lower one is an ordinary float32 number: ONNX Runtime
leaves out additions of what is 0 in float32."""

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, LARGEST_FLOAT32 / 255
"""Limits of scales: a quotient or a product of a scale and an integer step is an ordinary float32 number, which is the
same whether or not subnormal numbers count as 0. (Conversion stays within 2⁻⁶⁰ … 2¹²⁰.)"""

LARGEST_LEVELS = 2.0**62
"""Of a softmax: more than the inverse of any scale that conversion gives."""

LARGEST_B, LARGEST_B_NEGATIVE = LARGEST, LARGEST_NEGATIVE


def is_int(value: Any) -> bool:
    """An int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def integer(low: int, high: int, *, name: bool = False) -> Validator:
    """An int within low..high, or the name of a dimension where ``name`` allows it."""

    def check(value: Any) -> str | None:
        return (
            None
            if (is_int(value) and low <= value <= high) or (name and isinstance(value, str))
            else f"must be an integer within {low}..{high}, not {value!r:.60}"
        )

    return check


def integers(low: int, high: int, *, empty: bool = False, names: bool = False) -> Validator:
    """A list of at most 8 ints within low..high, or names of dimensions where ``names`` allows them."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) > 8 or (not value and not empty):
            return f"must be a list of 1 to 8 integers, not {value!r:.60}"
        numbers = [v for v in value if not (names and isinstance(v, str))]
        bad = [v for v in numbers if not is_int(v) or not low <= v <= high]
        return f"must hold integers within {low}..{high}, not {bad[0]!r:.60}" if bad else None

    return check


def number(value: Any) -> str | None:
    """A finite int or float that float32 can hold."""
    fits = is_int(value) or isinstance(value, float)
    if not fits or not -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
        return f"must be a finite number, not {value!r:.60}"
    return None


def whole(value: Any) -> str | None:
    """A number that int64 holds as it is."""
    ok = number(value) is None and abs(value) < 1 << 63 and float(value).is_integer()
    return None if ok else f"must be a whole number, not {value!r:.60}"


def whole_or(unlimited: float) -> Validator:
    """A whole number, or None or this infinity where there is no limit."""
    return lambda value: None if value is None or value == unlimited else whole(value)


def exactly(wanted: object) -> Validator:
    """This value and no other."""
    return lambda value: None if type(value) is type(wanted) and value == wanted else f"must be {wanted!r:.60}"


def epsilon(value: Any) -> str | None:
    """A positive number whose root and its inverse are ordinary float32 numbers."""
    ok = number(value) is None and SMALLEST_EPSILON <= value <= LARGEST_EPSILON
    return None if ok else f"must be a number within {SMALLEST_EPSILON}..{LARGEST_EPSILON}, not {value!r:.60}"


def inverse_scale(value: Any) -> str | None:
    """The inverse of a scale, a float32 number."""
    ok = number(value) is None and 1 / LARGEST_SCALE <= value <= LARGEST_LEVELS and float(np.float32(value)) == value
    return None if ok else f"must be a positive float32 number, the inverse of a scale, not {value!r:.60}"


def limit_or_none(value: Any) -> str | None:
    """A number, infinite or not, or None."""
    return None if value is None else limit(value)


def limit(value: Any) -> str | None:
    """A number that may be infinite (the value of masked positions), but not NaN."""
    infinite = isinstance(value, float) and math.isinf(value)
    return None if infinite or number(value) is None else f"must be a number, not {value!r:.60}"


def boolean(value: Any) -> str | None:
    """True or False."""
    return None if isinstance(value, bool) else f"must be true or false, not {value!r:.60}"


def text(value: Any) -> str | None:
    """A string of at most 1000 characters."""
    return None if isinstance(value, str) and len(value) <= 1000 else f"must be a short string, not {value!r:.60}"


def one_of(*allowed: str) -> Validator:
    """One of some strings."""

    def check(value: Any) -> str | None:
        ok = isinstance(value, str) and value in allowed
        return None if ok else f"must be one of {', '.join(allowed)}, not {value!r:.60}"

    return check


def odd(value: Any) -> str | None:
    """An odd denominator within 1..8191."""
    if not is_int(value) or not 1 <= value <= LARGEST_B or value % 2 == 0:
        return f"must be odd and within 1..{LARGEST_B}, not {value!r:.60}"
    return None


def numerators(value: Any) -> str | None:
    """A list of nonzero ints below 2²⁴ in magnitude, one per input."""
    if not isinstance(value, list) or not value or len(value) > 64:
        return f"must be a list of 1 to 64 integers, not {value!r:.60}"
    bad = [v for v in value if not is_int(v) or v == 0 or abs(v) > LARGEST_A]
    return f"must hold nonzero integers up to {LARGEST_A}, not {bad[0]!r:.60}" if bad else None


def multipliers(value: Any) -> str | None:
    """[[n, a, b], …]: divisor, numerator, odd denominator; every n once."""
    if not isinstance(value, list) or not value or len(value) > 4096:
        return f"must be a list of [n, a, b], not {value!r:.60}"
    seen = set()
    for row in value:
        if not isinstance(row, list) or len(row) != 3 or not all(is_int(v) for v in row):
            return f"must hold [n, a, b], not {row!r:.60}"
        n, a, b = row
        if not 1 <= n <= LARGEST_SIZE or not 0 <= a <= LARGEST_A:
            return f"n or a is out of range in {row!r:.60}"
        if reason := odd(b):
            return f"b {reason}"
        if n in seen:
            return f"divisor {n} occurs twice"
        seen.add(n)
    return None


def paddings(value: Any) -> str | None:
    """[[before, after], …]; negative widths crop."""
    if not isinstance(value, list) or not value or len(value) > 8:
        return f"must be a list of [before, after], not {value!r:.60}"
    for row in value:
        if not isinstance(row, list) or len(row) != 2 or not all(is_int(v) and abs(v) < 1 << 20 for v in row):
            return f"must hold [before, after], not {row!r:.60}"
    return None
