"""Searches for rationals and bounds of errors, against every candidate there is, in exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from intact8.arithmetic import tie_free
from intact8.arithmetic.tie_free import (
    FORMS,
    LARGEST,
    LARGEST_NEGATIVE,
    OPENVINO,
    ROUNDINGS,
    STEPS,
    Roundings,
    best_ratios,
    error_bound,
    largest_denominator,
    largest_ratio,
    nearest_ratios,
    negative_steps,
    ratios_above,
)

COUNTED = {  # form: roundings of onednn and ONNX Runtime on the result, the bias, the residual; those of OpenVINO
    "affine": ((7, 5, 6), (6, 5, 0)), "leaky": ((9, 7, 0), (8, 5, 0)), "fused": ((7, 5, 6), (15, 7, 12)),
    "sum": ((4, 0, 8), (7, 0, 17)), "scaled": ((6, 0, 0), (9, 0, 0)), "mean": ((6, 0, 0), (7, 0, 7)),
    "resize": ((1, 0, 0), (1, 0, 0)),
}  # fmt: skip
"""Written down a second time: the counts of docs/arithmetic.md are claims, and no typing slip may move one."""


def test_the_counted_roundings() -> None:
    assert (LARGEST, LARGEST_NEGATIVE, STEPS, tie_free.U) == (8191, 1048575, 256, 2.0**-24)
    assert {f: (tuple(FORMS[f]), tuple(OPENVINO[f])) for f in FORMS} == COUNTED
    assert set(FORMS) == set(OPENVINO) and all(isinstance(n, Roundings) for n in FORMS.values())


@pytest.mark.parametrize("engines", [None, ("onednn",), ("openvino",), ("onednn", "openvino"), ("onnxruntime",)])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_error_bounds_and_denominators_in_fractions(form: str, engines: tuple[str, ...] | None) -> None:
    counted = COUNTED[form][: 1 + (engines is None or "openvino" in engines)]
    for bias, residual, result in itertools.product((0, 1, 300.5, 2**20), (0, 2, 510.25, 3 * 2**15), (256, 1, 17)):
        if any(b * bias + s * residual > 393216 * r for r, b, s in counted):
            assert error_bound(form, bias, residual, result_steps=result, engines=engines) >= 0.5
            assert largest_denominator(form, bias, residual, result_steps=result, engines=engines) == 1
            continue
        exact = Fraction(1, 2**24) * max(
            r * result + b * Fraction(bias) + s * Fraction(residual) for r, b, s in counted
        )
        got = float(error_bound(form, bias, residual, result_steps=result, engines=engines))
        assert got == pytest.approx(float(exact), rel=1e-12)
        for cap in (8191, 101, 1, LARGEST_NEGATIVE):
            b = int(largest_denominator(form, bias, residual, result_steps=result, cap=cap, engines=engines))
            fits = [n for n in (b, b + 2) if n <= cap and Fraction(1, 2 * n) > exact]
            assert b % 2 == 1 and 1 <= b <= cap
            assert fits == [b] or (b == 1 and not fits)


def test_bounds_take_arrays() -> None:
    bias, residual = np.array([0.0, 100.0, 5e6]), np.array([0.0, 3.0, 10.0])
    got = error_bound("affine", bias, residual)
    each = [float(error_bound("affine", x, y)) for x, y in zip(bias, residual, strict=True)]
    assert got.tolist() == each
    largest = largest_denominator("affine", bias, residual)
    assert largest.dtype == np.int64
    assert largest.tolist() == [int(largest_denominator("affine", *p)) for p in zip(bias, residual, strict=True)]
    assert largest[2] == 1


@pytest.mark.parametrize("limit", [1, 3, 5, 9, 15, 27, 101])
def test_ratios_above_are_the_least_of_all(limit: int) -> None:
    odd = range(1, limit + 1, 2)
    rng = np.random.default_rng(limit)
    reached = [float(Fraction(p, q)) for q in odd for p in range(1, min(2 * q, 9))]
    wanted = np.array([*rng.uniform(0, 2, 60), *reached, 1e-9, 1 / limit, 0.5, 37.25])
    a, b = ratios_above(wanted, np.full(len(wanted), limit))
    assert a.dtype == b.dtype == np.int64
    for m, x, y in zip(wanted.tolist(), a.tolist(), b.tolist(), strict=True):
        near = Fraction(m) * (1 - Fraction(1, 10**13))  # a float stands for the fraction it was made from
        least = min(max(Fraction(1, q), Fraction(-(-near.numerator * q // near.denominator), q)) for q in odd)
        assert y in odd and Fraction(x, y) == least, m


def test_ratios_above_keep_each_channels_limit() -> None:
    m, limits = np.array([0.3, 0.3, 0.007, 0.3, 0.9]), np.array([11, 5, 101, 8191, 11])
    a, b = ratios_above(m, limits)
    for i in range(len(m)):
        x, y = ratios_above(m[i : i + 1], limits[i : i + 1])
        assert (a[i], b[i]) == (x[0], y[0])
    assert (b <= limits).all()
    many = np.random.default_rng(0).uniform(0.001, 1, 3000)  # more than are looked at at once
    a, b = ratios_above(many, np.full(3000, 8191))
    assert (a / b >= many * (1 - 1e-13)).all()
    for i in (0, 1, 1499, 2999):
        x, y = ratios_above(many[i : i + 1], np.array([8191]))
        assert (a[i], b[i]) == (x[0], y[0])


@pytest.mark.parametrize("limit", [1, 3, 9, 31, 101])
def test_nearest_ratios_are_the_nearest_of_all(limit: int) -> None:
    rng = np.random.default_rng(limit)
    wanted = np.array([*rng.uniform(-0.6, 0.6, 200), 0.0, 1e-12, -1e-12, 0.4 / limit, -0.6 / limit, 1 / 3, 2 / 7, 0.5])
    a, b = nearest_ratios(wanted, np.full(len(wanted), limit))
    assert a.dtype == b.dtype == np.int64
    odd = np.arange(1, limit + 1, 2)
    for m, x, y in zip(wanted.tolist(), a.tolist(), b.tolist(), strict=True):
        least = np.abs(np.rint(m * odd) / odd - m).min()
        assert y in odd and abs(x / y - m) <= least + 1e-15, m
        assert x != 0 or y == 1
        assert x == 0 or (x > 0) == (m > 0)


def test_nearest_ratios_of_large_limits_are_near() -> None:
    rng = np.random.default_rng(0)
    m, limits = rng.uniform(-3, 3, 300), rng.integers(500, LARGEST_NEGATIVE // 2, 300) * 2 + 1
    a, b = nearest_ratios(m, limits)
    assert (b % 2 == 1).all() and (b >= 1).all() and (b <= limits).all()
    error = np.abs(a / b - m) * limits / np.abs(m)  # the nearest odd b to a/m is at most 1 away, in the mean ½
    assert error.max() < 0.25 and np.median(error) < 0.03


def cost(a: list[int], b: int, ratios: list[float], exact_first: bool, tolerance: float) -> float:
    """What is minimized: the largest error relative to the largest term, and a move beyond the tolerance."""
    r = [abs(Fraction(x)) for x in ratios]
    move = Fraction(abs(a[0]), 1) / (b * r[0]) if exact_first else Fraction(1)
    wanted = [x * b * move for x in r]
    error = max(abs(abs(n) - w) for n, w in zip(a, wanted, strict=True)) / max(wanted)
    return float(error + (abs(move - 1) if abs(move - 1) > tolerance and exact_first else 0))


@pytest.mark.parametrize("tolerance", [0.02, 0.001])
@pytest.mark.parametrize("exact_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 7, 21, 61])
def test_common_denominators_are_the_best_of_all(limit: int, exact_first: bool, tolerance: float) -> None:
    rng = np.random.default_rng(limit)
    lists = [rng.uniform(0.05, 3, n).tolist() for n in (1, 2, 2, 3, 3, 4)] + [[0.5, -0.25], [1 / 3, 2.0], [1.0], [2, 1]]
    for ratios in lists:
        a, b = best_ratios(ratios, limit, exact_first=exact_first, tolerance=tolerance)
        assert b % 2 == 1 and limit // 2 <= b <= limit and all(isinstance(n, int) for n in (*a, b))
        assert all(n != 0 and (n > 0) == (r > 0) for n, r in zip(a, ratios, strict=True))
        size, least = [abs(r) for r in ratios], np.inf
        for q in range(max(1, limit // 2) | 1, limit + 1, 2):
            for first in {max(1, int(size[0] * q)), max(1, -int(-size[0] * q // 1))}:
                move = first / (q * size[0]) if exact_first else 1.0
                rest = [max(1, int(np.rint(r * q * move))) for r in size[1:]]
                least = min(least, cost([first, *rest], q, ratios, exact_first, tolerance))
        assert cost(a, b, ratios, exact_first, tolerance) <= least + 1e-10, ratios


def test_of_equal_ones_the_largest_denominator_is_taken() -> None:
    assert best_ratios([1 / 3, 2 / 3], 101) == ([33, 66], 99)
    assert best_ratios([1.0, -1.0], 101) == ([101, -101], 101)
    assert best_ratios([0.2], 8191) == ([1637], 8185)
    # The first ratio is met by moving the output's scale: only its proportion to the second counts.
    assert best_ratios([0.3, 0.6], 7, exact_first=True, tolerance=0.2)[0] in ([2, 4], [1, 2])


def test_steps_below_zero() -> None:
    assert [negative_steps(z) for z in (0, 100, 255)] == [1, 101, 256]


@pytest.mark.parametrize("terms", [1, 2, 7, 64])
def test_the_largest_ratio_is_proved_for_every_engine(terms: int) -> None:
    """A sum whose terms all have it is rounded right by every engine's formula, with half of the margin left."""
    each = {name: largest_ratio(terms, engines=(name,)) for name in ROUNDINGS}
    assert largest_ratio(terms) == min(each.values()) and len(set(each.values())) > 1
    for name, ratio in each.items():
        steps = 255 * terms * ratio
        rest = float(error_bound("sum", 0.0, 0.0, engines=(name,)))
        assert rest < float(error_bound("sum", 0.0, 0.999 * steps, engines=(name,))) <= 0.25 + rest
        assert float(error_bound("sum", 0.0, 1.001 * steps, engines=(name,))) > 0.25 + rest
