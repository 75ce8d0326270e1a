"""Tie-free multipliers: odd denominators, distance to boundaries, bounds that hold for the float formulas."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact8.arithmetic.tie_free import (
    FORMS,
    LARGEST,
    STEPS,
    best_ratios,
    error_bound,
    largest_denominator,
    ratios_above,
)


@given(st.sampled_from(sorted(FORMS)), st.floats(0, 1e6), st.floats(0, 1e5))
def test_largest_denominator_is_odd_and_leaves_room(form: str, bias: float, residual: float) -> None:
    b = int(largest_denominator(form, bias, residual))
    assert b % 2 == 1 and 1 <= b <= LARGEST
    if b > 1:
        assert 1 / (2 * b) > error_bound(form, bias, residual)
    if 1 < b < LARGEST:
        assert 1 / (2 * (b + 2)) <= error_bound(form, bias, residual)


@given(st.lists(st.floats(1e-7, 50), min_size=1, max_size=8), st.integers(0, 4000).map(lambda n: 2 * n + 1))
def test_ratios_above_are_minimal(ms: list[float], limit: int) -> None:
    m = np.array(ms)
    a, b = ratios_above(m, np.full(len(m), limit))
    assert (b % 2 == 1).all() and (b <= limit).all() and (a >= 1).all()
    assert (a / b >= m * (1 - 1e-12)).all()
    # No odd denominator in reach does better by more than rounding.
    every = np.arange(1, limit + 1, 2)
    best = np.maximum(1, np.ceil(m[:, None] * every * (1 - 1e-14))) / every
    assert (a / b <= best.min(axis=1) * (1 + 1e-3) + 1e-12).all()


@given(st.fractions(0, 5000, max_denominator=1), st.integers(1, 8191), st.integers(0, 4095).map(lambda n: 2 * n + 1))
def test_no_value_lies_near_a_boundary(acc: Fraction, a: int, b: int) -> None:
    value = Fraction(a, b) * int(acc)
    distance = abs(value - (value.__floor__() + Fraction(1, 2)))
    assert distance >= Fraction(1, 2 * b)


@given(st.lists(st.floats(1e-3, 4).map(lambda x: round(x, 6)), min_size=1, max_size=3), st.booleans())
def test_common_denominator(ratios: list[float], exact_first: bool) -> None:
    signed = [r if i % 2 == 0 else -r for i, r in enumerate(ratios)]
    a, b = best_ratios(signed, 2001, exact_first=exact_first)
    assert b % 2 == 1 and b <= 2001
    assert all((x > 0) == (r > 0) for x, r in zip(a, signed, strict=True))
    move = abs(a[0]) / b / ratios[0] if exact_first else 1.0
    if min(ratios) > 0.02:
        assert abs(move - 1) <= 0.03
        for x, r in zip(a, ratios, strict=True):
            assert abs(abs(x) / b / (r * move) - 1) < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_float32_formulas_stay_inside_their_bound(seed: int) -> None:
    """The affine formula of the engines, evaluated in float32, never errs by more than the bound."""
    rng = np.random.default_rng(seed)
    n = 200_000
    m = np.exp(rng.uniform(-9, 0, n))
    bias_steps = rng.uniform(0, 300, n)
    result = rng.uniform(-STEPS, STEPS, n)
    acc = np.rint((result - bias_steps) / m)
    exact = acc * m + bias_steps
    ws, bias = m.astype(np.float32), bias_steps.astype(np.float32)
    got = acc.astype(np.float32) * ws + bias
    assert got.dtype == np.float32
    assert (np.abs(got - exact) <= error_bound("affine", bias_steps)).all()


def test_the_smallest_denominator_is_one() -> None:
    """However large the error, and whatever is between 1 and 3 is 1."""
    assert int(largest_denominator("affine", 1e30)) == 1
    assert set(largest_denominator("affine", np.array([1e5, 1e6, 1e7, 1e8])).tolist()) >= {1}
    assert int(largest_denominator("affine", cap=2)) == 1
