"""Multipliers a/b with odd b, and the sums that a product with them brings to 1/(2b) from a rounding boundary.

With odd b, 2·a·sum is never an odd multiple of b, so no value lies on a boundary, and the nearest ones lie 1/(2b) away.
An engine whose float32 evaluation makes at most eight roundings errs by less than that where b stays below
:func:`largest_denominator`: it has no excuse.
"""

from __future__ import annotations

import math

import numpy as np

from intact8_conformance.case import Array

ROUNDINGS = 8
"""Roundings to float32 on the way from the exact sum to the integer, at most."""

LARGEST = 8191


def largest_denominator(beside: float = 0.0) -> int:
    """Return the largest odd b with 1/(2b) above the error of eight roundings of numbers up to 256 + 2·beside.

    Args:
        beside: size in output steps of what an engine may add in float32, the bias say.

    Example:
        >>> largest_denominator(), largest_denominator(1000.0)
        (4095, 463)
    """
    most = int(2**24 / (2 * ROUNDINGS * (256 + 2 * beside)))
    return min(most - 1 if most % 2 == 0 else most, LARGEST)


def coprime(ratio: float, b: int) -> int:
    """Return the numerator a near ratio·b that has no divisor in common with b."""
    a = max(1, round(ratio * b))
    while math.gcd(a, b) != 1:
        a += 1
    return a


def boundary_sum(a: int, b: int, near: int, above: bool) -> int:
    """Return the integer nearest to ``near`` whose product with a/b lies 1/(2b) above or below a rounding boundary.

    Example:
        >>> boundary_sum(7, 101, 1000, above=True) * 7 % 101  # (b + 1)/2 of 101 parts: just above a half
        51
    """
    half = (b + 1) // 2 if above else (b - 1) // 2
    rest = pow(a, -1, b) * half % b
    return near + (rest - near + b // 2) % b - b // 2


def split_scale(rng: np.random.Generator, a: Array, b: Array) -> tuple[float, Array, float]:
    """Return scales of input, weights and output as float32 numbers whose ratio is a/b but for one rounding."""
    x, y = (float(np.float32(rng.uniform(0.01, 0.1))) for _ in range(2))
    return x, (a / b * y / x).astype(np.float32), y
