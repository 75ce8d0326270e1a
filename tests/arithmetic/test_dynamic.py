"""The definition of dynamic quantization: numpy and torch agree to the bit, and both with exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from intact8.arithmetic import dynamic, dynamic_torch

TINY = np.float32(2.0**-140)


def rows(rng, shape, kind):
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "huge":
        x = x / np.abs(x).max() * np.float32(3e38)
    elif kind == "subnormal":
        x *= TINY
    elif kind == "mixed":
        x *= 10.0 ** rng.uniform(-25, 25, (*shape[:-1], 1)).astype(np.float32)
        x[..., 0, :] = 0
    elif kind == "ties":  # quotients k + 1/2 in rows whose scale is 1
        x = rng.integers(-253, 254, shape).astype(np.float32) / 2
        x[..., 0] = 127
    return x


KINDS = ("ordinary", "huge", "subnormal", "mixed", "ties")


@pytest.mark.parametrize("granularity", dynamic.GRANULARITIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 1), (4, 33), (2, 3, 7), (3, 1500)], ids=str)
def test_numpy_and_torch_give_the_same_bits(shape, kind, granularity):
    rng = np.random.default_rng(0)
    x = rows(rng, shape, kind)
    w = rng.integers(-127, 128, (6, shape[-1])).astype(np.int8)
    if shape[-1] > 1040:
        x[..., :], w[:] = np.abs(x) + np.float32(1e-3), np.abs(w)  # sums beyond 2²⁴
    scale = rng.uniform(1e-3, 1e-2, 6).astype(np.float32)
    bias = rng.standard_normal(6).astype(np.float32)
    q, s = dynamic.quantize_rows(x, granularity)
    tq, ts = dynamic_torch.quantize_rows(torch.from_numpy(x), granularity)
    np.testing.assert_array_equal(q, tq.numpy() + 128)
    np.testing.assert_array_equal(s.view(np.int32), ts.numpy().view(np.int32))
    want = dynamic.linear(x, w, scale, bias, granularity)
    have = dynamic_torch.linear(
        torch.from_numpy(x), torch.from_numpy(w).float(), torch.from_numpy(scale), torch.from_numpy(bias), granularity
    )
    np.testing.assert_array_equal(want.view(np.int32), have.numpy().view(np.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_one_correct_rounding(kind):
    rng = np.random.default_rng(1)
    x = rows(rng, (3, 9), kind)
    w = rng.integers(-127, 128, (4, 9)).astype(np.int8)
    scale, bias = rng.uniform(1e-3, 1e-2, 4).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    y = dynamic.linear(x, w, scale, bias)
    for i, row in enumerate(x):
        s = max(nearest(Fraction(float(np.abs(row).max())) / 127), Fraction(dynamic.SMALLEST))
        q = [round(nearest(Fraction(float(v)) / s)) for v in row]  # round() of a Fraction: half to even
        assert max(map(abs, q)) <= 127
        for c in range(4):
            acc = sum(a * int(b) for a, b in zip(q, w[c], strict=True))
            value = nearest(Fraction(acc))
            for factor in (Fraction(float(scale[c])), s):
                value = nearest(value * factor)
            value = nearest(value + Fraction(float(bias[c])))
            assert (float(value) == float(y[i, c])) if abs(value) < 2**128 else np.isinf(y[i, c])


def nearest(value):
    """The float32 number nearest to a rational, half to even, subnormals included."""
    if value == 0:
        return Fraction(0)
    exponent = 0
    magnitude = abs(value)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return round(value / unit) * unit


def test_rows_of_zeros_give_the_bias():
    bias = np.float32([0.5, -3])
    y = dynamic.linear(np.zeros((2, 4), np.float32), np.full((2, 4), 127, np.int8), np.float32([1, 1]), bias)
    np.testing.assert_array_equal(y, np.stack([bias, bias]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan_and_the_others_are_as_they_were(bad):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((3, 5)).astype(np.float32), rng.integers(-127, 128, (4, 5)).astype(np.int8)
    scale = np.full(4, 0.01, np.float32)
    good = dynamic.linear(x, w, scale)
    x[1, 2] = bad
    y = dynamic.linear(x, w, scale)
    t = dynamic_torch.linear(torch.from_numpy(x), torch.from_numpy(w).float(), torch.from_numpy(scale)).numpy()
    assert np.isnan(y[1]).all() and np.isnan(t[1]).all()
    np.testing.assert_array_equal(np.delete(y, 1, 0), np.delete(good, 1, 0))
    np.testing.assert_array_equal(np.delete(t, 1, 0), np.delete(good, 1, 0))


def test_an_empty_batch_stays_empty():
    w, scale = np.ones((4, 5), np.int8), np.ones(4, np.float32)
    for granularity in dynamic.GRANULARITIES:
        x = np.zeros((0, 5), np.float32)
        assert dynamic.linear(x, w, scale, None, granularity).shape == (0, 4)
        t = dynamic_torch.linear(torch.from_numpy(x), torch.ones(4, 5), torch.ones(4), None, granularity)
        assert t.shape == (0, 4)


def test_gradients_pass_straight_through():
    x = torch.tensor([[1.0, -2.0], [0.3, 0.1]], requires_grad=True)
    q, s = dynamic_torch.quantize_rows(x)
    (q * s).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1.0, rtol=1e-6)


def test_the_bound_counts_the_largest_row():
    assert dynamic.sum_bound(np.int8([[127, -127], [1, 0]])) == 127 * 254


def test_long_sums_are_exact_in_torch() -> None:
    """Beyond 2^24 not every integer is a float32 number, and beyond 1040 terms a sum may get there."""
    rng = np.random.default_rng(8)
    q, w = rng.integers(100, 128, (4, 20_001)), rng.integers(100, 128, (3, 20_001))
    got = dynamic_torch.accumulate(torch.from_numpy(q).float(), torch.from_numpy(w).float())
    assert np.array_equal(got.numpy(), (q @ w.T).astype(np.float32))
