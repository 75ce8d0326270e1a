"""Integer softmax and norms against exact rationals and float64, and torch's integers against numpy's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from intact8.arithmetic import norms, torch_nonlinear
from intact8.arithmetic.softmax import PEAK, softmax, softmax_table

ROWS = {
    "one score": np.array([[7]]),
    "equal scores": np.full((1, 300), 9),
    "one large score": np.array([[255] + [0] * 99]),
    "ends": np.array([[0, 255, 0, 255]]),
    "random": np.random.default_rng(0).integers(0, 256, (20, 197)),
    "long": np.random.default_rng(1).integers(200, 256, (2, 4096)),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("step", [0.004, 0.05, 2.0])
def test_softmax_is_near_the_exact_one(rows: str, step: float) -> None:
    x = ROWS[rows].astype(np.uint8)
    n = x.shape[1]
    wide = np.exp((x.astype(np.float64) - x.max(1, keepdims=True)) * step)
    p = wide / wide.sum(1, keepdims=True)
    y = softmax(x, softmax_table(step), 1, 255.0, 0)
    # Half a step for the rounding, and what half a unit in every entry of the table can do to the sum and to t.
    bound = 0.5 + 255 * (p * n + 1) * 0.5 / PEAK + 1e-4
    assert (np.abs(y - 255 * p) <= bound).all()


def test_softmax_of_a_sum_of_one_is_the_whole_range() -> None:
    table = np.zeros(256, np.int32)
    table[0] = 1  # the smallest sum there is, of a row with one largest entry
    assert softmax(np.array([[9, 3]], np.uint8), table, 1, 255.0, 0).tolist() == [[255, 0]]


@pytest.mark.parametrize("rows", ROWS)
def test_softmax_rounds_the_exact_quotient(rows: str) -> None:
    x, table, levels = ROWS[rows].astype(np.uint8), softmax_table(0.03), 301.5
    t = table[x.max(1, keepdims=True) - x]
    y = softmax(x, table, 1, levels, 3)
    for row, (entries, got) in enumerate(zip(t[:3], y[:3], strict=True)):
        exact = [Fraction(levels) * int(v) / int(entries.sum()) for v in entries]
        # Two float32 roundings: further than this from a boundary, the integer is that of the exact quotient.
        for value, integer in zip(exact, got, strict=True):
            if abs(value % 1 - Fraction(1, 2)) > Fraction(1, 10**4):
                assert integer == min(255, round(value) + 3), row


def test_deviations_of_long_rows_are_the_definitions_in_torch() -> None:
    """Their sums of squares pass 2^24, from where on not every integer is a float32 number."""
    x = np.random.default_rng(3).integers(0, 256, (64, 5001)).astype(np.uint8)
    squares = (x.astype(np.int64) ** 2).sum(1, keepdims=True)
    r = (np.float64(5001) / np.sqrt(5001.0 * squares + 1e-3)).astype(np.float32)
    assert np.array_equal(torch_nonlinear._rows(torch.from_numpy(x), 0, False, 1e-3).numpy(), x * r)


def test_a_mask_removes_positions_and_a_masked_row_is_zero() -> None:
    rng = np.random.default_rng(2)
    x, table = rng.integers(0, 256, (4, 9)).astype(np.uint8), softmax_table(0.02)
    masked = np.zeros((4, 9), bool)
    masked[0, 5:], masked[1, :8], masked[2] = True, True, True
    y = softmax(x, table, 1, 255.0, 11, masked=masked)
    assert (y[0, :5] == softmax(x[:1, :5], table, 1, 255.0, 11)[0]).all()
    assert (y[0, 5:] == 11).all() and y[1, 8] == 255 and (y[2] == 11).all()
    assert (y[3] == softmax(x[3:], table, 1, 255.0, 11)[0]).all()


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("rows", [r for r in ROWS if r != "one score"])
def test_norms_are_near_the_exact_ones(kind: str, rows: str) -> None:
    x = ROWS[rows].astype(np.uint8)
    n, rng = x.shape[1], np.random.default_rng(3)
    weight, bias, z, s_x, s_y, eps = rng.normal(1, 0.3, n), rng.normal(0, 1, n), 60, 0.07, 0.04, 1e-5
    real = (x.astype(np.float64) - z) * s_x
    centered = real - real.mean(1, keepdims=True) if kind == "layer_norm" else real
    v = centered / np.sqrt((centered**2).mean(1, keepdims=True) + eps) * weight + bias
    gain, offset = norms.gain_offset(weight, bias, n, s_y, 128)
    steps = norms.epsilon_steps(eps, s_x, n)
    y = norms.layer_norm(x, gain, offset, steps) if kind == "layer_norm" else norms.rms_norm(x, z, gain, offset, steps)
    want = v / s_y + 128
    assert (np.abs(y - np.clip(want, 0, 255)) <= 0.5 + 2.0**-20 * (np.abs(want) + 256)).all()


def test_a_row_of_equal_integers_gives_the_offset() -> None:
    gain, offset = norms.gain_offset(None, np.array([0.5, -3.0, 9.0]), 3, 0.1, 100)
    for value in (0, 77, 255):
        y = norms.layer_norm(np.full((1, 3), value, np.uint8), gain, offset, 1e-20)
        assert y.tolist() == [[105, 70, 190]]


def test_layer_norm_does_not_depend_on_a_shift() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 200, (9, 50)).astype(np.uint8)
    gain, offset = norms.gain_offset(rng.normal(size=50), rng.normal(size=50), 50, 0.03, 90)
    shifted = norms.layer_norm(x + np.uint8(32), gain, offset, 3.0)
    assert (shifted == norms.layer_norm(x, gain, offset, 3.0)).all()


@pytest.mark.parametrize("rows", ROWS)
def test_torch_gives_the_same_bits(rows: str) -> None:
    x = ROWS[rows].astype(np.uint8)
    n, rng, given = x.shape[1], np.random.default_rng(5), torch.from_numpy(x)
    table, levels = softmax_table(0.03), torch.tensor(400.25)
    got = torch_nonlinear.softmax(given, torch.from_numpy(table).float(), 1, levels, 2, 0, 255)
    assert (got.numpy() == softmax(x, table, 1, 400.25, 2)).all()
    gain, offset = norms.gain_offset(rng.normal(size=n), rng.normal(size=n), n, 0.03, 90)
    arrays = torch.from_numpy(gain), torch.from_numpy(offset)
    for eps in (1e-12, 1e3):
        layer = torch_nonlinear.layer_norm(given, *arrays, eps, 3, 250)
        assert (layer.numpy() == norms.layer_norm(x, gain, offset, eps, 3, 250)).all()
        root = torch_nonlinear.rms_norm(given, 40, *arrays, eps, 3, 250)
        assert (root.numpy() == norms.rms_norm(x, 40, gain, offset, eps, 3, 250)).all()
