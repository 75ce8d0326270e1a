from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact8.arithmetic.affine import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    UNIT_SCALE,
    choose_qparams,
    dequantize,
    quantize,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
RANGES = pytest.mark.parametrize(("qmin", "qmax"), [(0, 255), (1, 255), (-128, 127), (-127, 127), (-7, 7)])


@pytest.mark.parametrize(
    ("lo", "hi", "qmin", "qmax", "symmetric", "scale", "zero_point"),
    [
        pytest.param(0, 255, 0, 255, False, 1.0, 0, id="ramp"),
        pytest.param(-255, 0, 0, 255, False, 1.0, 255, id="negative_only"),
        pytest.param(2, 255, 0, 255, False, 1.0, 0, id="widened_to_zero"),
        pytest.param(-128, 127, 0, 255, False, 1.0, 128, id="both_signs"),
        pytest.param(-3, 127, -127, 127, True, 1.0, 0, id="symmetric_255_values"),
        pytest.param(-3, 128, -128, 127, True, 1.0, 0, id="symmetric_256_values"),
        pytest.param(-127, 3, 1, 255, True, 1.0, 128, id="symmetric_stored_as_uint8"),
        pytest.param(-128, 3, 0, 255, True, 1.0, 128, id="symmetric_in_uint8"),
        pytest.param(0, 0, 0, 255, False, UNIT_SCALE, 0, id="nothing_but_zero"),
        pytest.param(0, 1e-30, 0, 255, False, SMALLEST_SCALE, 0, id="tiny"),
        pytest.param(0, 3.4e38, 0, 255, False, LARGEST_SCALE, 0, id="huge"),
        pytest.param(-1, 3.4e38, 0, 255, True, LARGEST_SCALE, 128, id="huge_symmetric"),
    ],
)
def test_formulas(lo: float, hi: float, qmin: int, qmax: int, symmetric: bool, scale: float, zero_point: int) -> None:
    s, z = choose_qparams(lo, hi, qmin, qmax, symmetric)
    assert (s.dtype, type(z)) == (np.float32, int)
    assert (float(s), z) == (np.float32(scale), zero_point)


@RANGES
@given(a=FLOATS, b=FLOATS, symmetric=st.booleans())
def test_any_range_gives_usable_qparams(qmin: int, qmax: int, a: float, b: float, symmetric: bool) -> None:
    s, z = choose_qparams(min(a, b), max(a, b), qmin, qmax, symmetric)
    assert SMALLEST_SCALE <= s <= LARGEST_SCALE or s == UNIT_SCALE
    assert qmin <= z <= qmax
    ends = dequantize(np.array([qmin, z, qmax]), s, z)
    assert np.isfinite(ends).all()
    assert ends[1] == 0.0


@given(a=st.floats(-1e10, 1e10), b=st.floats(-1e10, 1e10))
def test_both_ends_are_within_half_a_step(a: float, b: float) -> None:
    lo, hi = min(a, b, 0.0), max(a, b, 0.0)
    s, z = choose_qparams(lo, hi, 0, 255, False)
    x = np.array([lo, hi], np.float32)
    if s > SMALLEST_SCALE:
        # 255·2⁻²⁴ relative: the float32 rounding of the scale, seen from the far end of the range.
        assert (np.abs(dequantize(quantize(x, s, z, 0, 255), s, z) - x) <= s * 0.501).all()


@given(
    ranges=st.lists(st.tuples(st.floats(-100, 0), st.floats(0, 100)), min_size=1, max_size=6), symmetric=st.booleans()
)
def test_arrays_are_scalars_side_by_side(ranges: list[tuple[float, float]], symmetric: bool) -> None:
    lo, hi = np.array(ranges).T
    s, z = choose_qparams(lo, hi, 0, 255, symmetric)
    each = [choose_qparams(a, b, 0, 255, symmetric) for a, b in ranges]
    assert s.dtype == np.float32
    assert s.tolist() == [float(e[0]) for e in each]
    assert z.tolist() == [e[1] for e in each]


@pytest.mark.parametrize(
    ("lo", "hi", "qmin", "qmax"),
    [(np.nan, 1, 0, 255), (0, np.inf, 0, 255), (1, 0, 0, 255), (0, 1, 5, 5)],
    ids=["nan", "inf", "empty_range", "no_integers"],
)
def test_refusals(lo: float, hi: float, qmin: int, qmax: int) -> None:
    with pytest.raises(ValueError, match=r"range|qmin"):
        choose_qparams(lo, hi, qmin, qmax, False)


def test_every_integer_survives_the_round_trip() -> None:
    q = np.arange(256)
    for s, z in [(1.0, 0), (0.0173, 128), (3e-7, 255), (7e20, 3)]:
        assert (quantize(dequantize(q, s, z), s, z, 0, 255) == q).all()


def test_quantize_divides_in_float32() -> None:
    """x/s and x·(1/s) differ in the last bit, and a tie makes that a whole step: division is the contract."""
    s = np.float32(1 / 255)
    x = (np.arange(0, 512, dtype=np.float32) / 2) * s
    expected = np.clip(np.rint(x / s), 0, 255)
    assert (quantize(x, s, 0, 0, 255) == expected).all()
    x = np.random.default_rng(0).random(200_000, np.float32)
    x = np.concatenate([x, np.nextafter((np.arange(255, dtype=np.float32) + np.float32(0.5)) * s, np.float32(2))])
    assert (np.rint(x / s) != np.rint(x * (np.float32(1) / s))).any()
    assert (quantize(x, s, 0, 0, 255) == np.rint(x / s)).all()


def test_ties_go_to_even_and_ends_saturate() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -np.inf, np.inf, 3e38, -3e38], np.float32)
    assert quantize(x, 1e-3 * 1000, 10, 0, 255).tolist() == [10, 12, 12, 10, 0, 255, 255, 0]
    assert quantize(np.float32([3e38]), 1e-10, 0, 0, 255).tolist() == [255]


@pytest.mark.parametrize(("lo", "hi"), [(0, 255), (7, 200), (100, 255)])
def test_nan_is_the_least_integer(lo: int, hi: int) -> None:
    assert quantize(np.float32([np.nan, 1.0]), 1.0, 100, lo, hi).tolist() == [lo, 101]
