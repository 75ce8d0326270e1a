from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.calibration.weights import DEAD, pairs_can_saturate, weight_scales
from intact8.errors import CalibrationError, RecipeError

WEIGHTS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 12)),
    elements=st.floats(-8, 8, width=32, allow_subnormal=False),
)


def integers(w: np.ndarray, scale: np.ndarray, qmin: int = -127, qmax: int = 127) -> np.ndarray:
    return np.clip(np.rint(w / scale[:, None]), qmin, qmax)


def error(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return ((integers(w, scale) * scale[:, None] - w) ** 2).sum(axis=1)


@pytest.mark.parametrize("observer", ["minmax", "mse"])
@given(w=WEIGHTS)
@settings(deadline=None)
def test_portable_weights_saturate_no_pair(observer: str, w: np.ndarray) -> None:
    q = np.sort(np.abs(integers(w, weight_scales(w, -127, 127, observer, portable=True))), axis=1)
    assert (q[:, -2:].sum(axis=1) * 255 <= 32767).all()


@given(w=WEIGHTS, portable=st.booleans())
@example(w=np.array([[1e-5, 1e-5, 1e-5], [1.0, 2.0, 1e-5]], np.float32), portable=False)
@settings(deadline=None)
def test_mse_is_never_worse_than_minmax(w: np.ndarray, portable: bool) -> None:
    mse, minmax = (weight_scales(w, -127, 127, name, portable) for name in ("mse", "minmax"))
    assert (error(w, mse) <= error(w, minmax) * (1 + 1e-4) + 1e-30).all()


def test_mse_clips_an_outlier() -> None:
    w = np.concatenate([np.random.default_rng(0).normal(size=(2, 20_000)), np.full((2, 1), 12.0)], axis=1)
    mse, minmax = (weight_scales(w, -7, 7, name, portable=False) for name in ("mse", "minmax"))
    assert (mse < 0.6 * minmax).all()


@pytest.mark.parametrize(
    ("qmin", "qmax", "portable", "expected"),
    [
        (-127, 127, False, 1.0),
        (-128, 127, False, 127 / 128),
        (-127, 127, True, 130 / 126),
        (-7, 7, True, 127 / 7),
        (-128, 127, True, 130 / 126),
    ],
)
def test_formulas(qmin: int, qmax: int, portable: bool, expected: float) -> None:
    w = np.array([[3.0, -127.0, 1.0]])
    assert weight_scales(w, qmin, qmax, "minmax", portable)[0] == np.float32(expected)


@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_dead_channels_have_a_floor(observer: str) -> None:
    w = np.array([[1.0, 1.0], [0.0, 0.0], [1e-33, -1e-33]])
    scale = weight_scales(w, -127, 127, observer)
    assert (scale[1:] == np.float32(scale[0] * DEAD)).all()
    assert (weight_scales(np.zeros((2, 3)), -127, 127, observer) == np.float32(SMALLEST_SCALE)).all()


def test_any_shape_and_no_weights_at_all() -> None:
    w = np.random.default_rng(0).normal(size=(4, 3, 2, 2))
    assert np.array_equal(weight_scales(w, -127, 127), weight_scales(w.reshape(4, -1), -127, 127))
    assert weight_scales(w[:, 0, 0, 0], -127, 127).shape == (4,)
    assert weight_scales(np.zeros((3, 0)), -127, 127).shape == (3,)


def test_the_weights_are_left_alone() -> None:
    w = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    before = w.copy()
    weight_scales(w, -127, 127, "mse")
    assert np.array_equal(w, before)


def test_refusals() -> None:
    with pytest.raises(CalibrationError, match=r"1 of 2 output channels, first in 1"):
        weight_scales(np.array([[1.0], [np.nan]]), -127, 127)
    with pytest.raises(RecipeError, match="did you mean 'minmax'"):
        weight_scales(np.ones((1, 1)), -127, 127, "min_max")
    with pytest.raises(RecipeError, match="both signs"):
        weight_scales(np.ones((1, 1)), 0, 255)
    with pytest.raises(CalibrationError, match="channel dimension"):
        weight_scales(np.float32(1), -127, 127)


def test_mse_looks_no_further_than_it_says() -> None:
    # Steps of 1/6 would be exact, but are 7/6 times those of minmax.
    (scale,) = weight_scales(np.array([[1.0, 0.5]]), -7, 7, "mse", portable=False)
    assert 1 / 7 < scale < 1.13 / 7


@pytest.mark.parametrize(("qmin", "qmax"), [(-63, 63), (-64, 64), (-65, 64), (-127, 127)])
def test_ranges_in_which_two_products_can_saturate(qmin: int, qmax: int) -> None:
    assert pairs_can_saturate(qmin, qmax, True) is (2 * 255 * max(-qmin, qmax) > 32767)
    assert not pairs_can_saturate(qmin, qmax, False)
