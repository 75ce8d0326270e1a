"""The integer specification against exact fractions and against torch in float64."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from intact8.arithmetic import integer, windows
from intact8.arithmetic.moves import nearest_index

ODD = st.integers(0, 4095).map(lambda n: 2 * n + 1)
RNG = np.random.default_rng(0)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def s8(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


@settings(max_examples=300, deadline=None)
@given(acc=st.integers(-(2**31), 2**31 - 1), a=st.integers(0, 2**24), b=ODD, z=st.integers(0, 255),
       r=st.integers(-255, 255), ra=st.integers(0, 2**16))  # fmt: skip
def test_requantize_equals_exact_fractions(acc: int, a: int, b: int, z: int, r: int, ra: int) -> None:
    exact = Fraction(acc * a + r * ra, b)
    rounded = math.floor(exact + Fraction(1, 2))
    assert abs(exact - rounded) < Fraction(1, 2)  # odd b: never a tie
    got = integer.requantize(np.array([acc]), a, b, z, 3, 250, residual=np.array([r]), residual_a=ra)
    assert got.tolist() == [min(max(rounded + z, 3), 250)]


@settings(max_examples=100, deadline=None)
@given(acc=st.integers(-(2**20), 2**20), a=ODD, b=ODD, an=st.integers(-5000, 5000), bn=ODD)
def test_requantize_takes_the_second_multiplier_below_zero(acc: int, a: int, b: int, an: int, bn: int) -> None:
    m = Fraction(an, bn) if acc < 0 else Fraction(a, b)
    want = min(max(math.floor(m * acc + Fraction(1, 2)) + 100, 0), 255)
    x = np.array([[acc]])
    got = integer.requantize(x, np.array([a]), np.array([b]), 100, axis=1, a_neg=np.array([an]), b_neg=np.array([bn]))
    assert got.tolist() == [[want]]


CONVS = [
    # spatial, kernel, stride, padding, dilation, groups, in, out
    pytest.param((9,), (3,), (2,), (1,), (1,), 1, 4, 6, id="1d"),
    pytest.param((8, 9), (3, 2), (1, 2), (1, 0), (2, 1), 1, 5, 7, id="2d-dilated"),
    pytest.param((6, 6), (1, 1), (2, 2), (0, 0), (1, 1), 1, 8, 3, id="pointwise-strided"),
    pytest.param((6, 6), (1, 1), (1, 1), (1, 1), (1, 1), 1, 8, 3, id="pointwise-padded"),
    pytest.param((7, 8), (3, 3), (2, 1), (1, 1), (1, 2), 6, 6, 6, id="depthwise"),
    pytest.param((7, 8), (3, 3), (1, 1), (2, 1), (1, 1), 3, 3, 9, id="depthwise-multiplier"),
    pytest.param((7, 8), (3, 3), (1, 1), (1, 1), (1, 1), 3, 12, 6, id="grouped"),
    pytest.param((4, 5, 6), (2, 3, 3), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1, 3, 4, id="3d"),
]


def torch_conv(x: np.ndarray, z: int, w: np.ndarray, b: np.ndarray, **options: Any) -> np.ndarray:
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[w.ndim - 2]
    y = conv(torch.from_numpy(x).double() - z, torch.from_numpy(w).double(), torch.from_numpy(b).double(), **options)
    return y.numpy().astype(np.int64)


@pytest.mark.parametrize(("size", "kernel", "stride", "padding", "dilation", "groups", "cin", "cout"), CONVS)
@pytest.mark.parametrize("z", [0, 17, 255])
def test_conv_accumulates_exactly(size, kernel, stride, padding, dilation, groups, cin, cout, z) -> None:
    x, w = u8(2, cin, *size), s8(cout, cin // groups, *kernel)
    b = RNG.integers(-(2**30), 2**30, cout).astype(np.int32)
    got = integer.conv_accumulate(x, z, w, b, stride, padding, dilation, groups)
    want = torch_conv(x, z, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)


def test_float64_path_is_taken_and_exact_where_float32_would_not_be() -> None:
    x, w = np.full((1, 600, 3, 3), 255, np.uint8), np.full((2, 600, 1, 1), 127, np.int8)
    x[0, 0, 0, 0] = 254
    got = integer.conv_accumulate(x, 0, w, None, (1, 1), (0, 0), (1, 1), 1)
    assert got[0, 0, 0, 0] == 600 * 255 * 127 - 127
    assert got[0, 1, 1, 1] == 600 * 255 * 127
    assert integer.linear_accumulate(x[:, :, 0, 0], 0, w[:, :, 0, 0], None).tolist() == [[600 * 255 * 127 - 127] * 2]


def test_unfolding_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = u8(5, 3, 6, 6), s8(4, 3, 3, 3)
    whole = integer.conv_accumulate(x, 9, w, None, (1, 1), (1, 1), (1, 1), 1)
    monkeypatch.setattr(integer, "CHUNK", 1)
    np.testing.assert_array_equal(integer.conv_accumulate(x, 9, w, None, (1, 1), (1, 1), (1, 1), 1), whole)


@pytest.mark.parametrize(("stride", "padding", "output_padding", "dilation", "groups"), [
    ((2, 2), (1, 1), (1, 1), (1, 1), 1), ((1, 3), (0, 2), (0, 2), (2, 1), 2), ((2, 1), (4, 3), (1, 0), (1, 1), 1),
    ((3, 2), (0, 0), (2, 1), (1, 2), 4),
])  # fmt: skip
def test_transposed_conv_accumulates_exactly(stride, padding, output_padding, dilation, groups) -> None:
    x, w = u8(2, 4, 6, 7), s8(4, 8 // groups, 3, 3)
    b = RNG.integers(-1000, 1000, 8).astype(np.int32)
    got = integer.conv_transpose_accumulate(x, 33, w, b, stride, padding, output_padding, dilation, groups)
    want = F.conv_transpose2d(
        torch.from_numpy(x).double() - 33, torch.from_numpy(w).double(), torch.from_numpy(b).double(),
        stride=stride, padding=padding, output_padding=output_padding, dilation=dilation, groups=groups,
    )  # fmt: skip
    np.testing.assert_array_equal(got, want.numpy().astype(np.int64))


def test_what_is_unfolded_at_once_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = u8(3, 8, 20, 20).astype(np.float32), s8(4, 8, 3, 3).astype(np.float32)
    whole, sizes, matmul = integer.correlate(x, w, (1, 1), (1, 1), 1), list[int](), np.matmul

    def counted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        sizes.append(b.size)
        return matmul(a, b)  # type: ignore[no-any-return]

    monkeypatch.setattr(integer, "CHUNK", 2000)
    monkeypatch.setattr(np, "matmul", counted)
    assert np.array_equal(integer.correlate(x, w, (1, 1), (1, 1), 1), whole)
    assert 1000 < max(sizes) <= 2000


def test_add_mul_mean_against_fractions() -> None:
    x, y = u8(2, 3, 4, 4), u8(2, 3, 1, 1)
    total = (x.astype(int) - 7) * 301 - (y.astype(int) - 90) * 55
    assert (
        integer.add([x, y], [7, 90], [301, -55], 603, 128) == np.clip(np.floor(total / 603 + 0.5) + 128, 0, 255)
    ).all()
    product = (x.astype(int) - 7) * (y.astype(int) - 90)
    want = np.clip(np.floor(product * 5 / 601 + 0.5) + 100, 10, 200)
    assert (integer.mul(x, 7, y, 90, 5, 601, 100, 10, 200) == want).all()
    sums = (x.astype(int) - 7).sum((2, 3))
    assert (integer.mean(x, 7, [2, 3], False, 3, 49, 7) == np.clip(np.floor(sums * 3 / 49 + 0.5) + 7, 0, 255)).all()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_pools_follow_torch_geometry(data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(3, 12), st.integers(3, 12)))
    kernel = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    stride = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    ceil, include = data.draw(st.booleans()), data.draw(st.booleans())
    x = RNG.integers(0, 256, (1, 2, *size)).astype(np.uint8)
    t = torch.from_numpy(x).double()
    most = F.max_pool2d(t, kernel, stride, padding, 1, ceil).numpy()
    np.testing.assert_array_equal(windows.max_pool(x, kernel, stride, padding, (1, 1), ceil), most)
    edges, divisors = windows.pool_windows(size, kernel, stride, padding, ceil, include)
    sums = windows.window_sums(x.astype(np.int64), edges)
    want = F.avg_pool2d(t, kernel, stride, padding, ceil, include).numpy()
    np.testing.assert_allclose(sums / divisors, want, rtol=1e-12)


def test_dilated_max_pool_and_adaptive_windows() -> None:
    x = u8(1, 2, 9, 10)
    t = torch.from_numpy(x).double()
    got = windows.max_pool(x, (2, 3), (2, 1), (1, 1), (3, 2), True)
    np.testing.assert_array_equal(got, F.max_pool2d(t, (2, 3), (2, 1), (1, 1), (3, 2), True).numpy())
    edges, sizes = windows.adaptive_windows((9, 10), (4, 3))
    np.testing.assert_allclose(windows.window_sums(x.astype(np.int64), edges) / sizes, F.adaptive_avg_pool2d(t, (4, 3)))


def test_ragged_average_uses_the_multiplier_of_each_divisor() -> None:
    x = np.full((1, 1, 3, 3), 10, np.uint8)
    edges, divisors = windows.pool_windows((3, 3), (2, 2), (2, 2), (0, 0), True, True)
    assert sorted(set(divisors.ravel().tolist())) == [1, 2, 4]
    rows = [[1, 1, 1], [2, 1001, 2001], [4, 501, 2003]]
    assert windows.average(x, 0, edges, divisors, rows, 0).tolist() == [[[[10, 10], [10, 10]]]]


@pytest.mark.parametrize(("size", "out"), [(7, 14), (7, 11), (13, 5), (3, 49), (56, 57), (10, 10)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_index_is_torchs(size: int, out: int, mode: str) -> None:
    ramp = torch.arange(size, dtype=torch.float32).reshape(1, 1, size)
    want = F.interpolate(ramp, size=out, mode=mode).reshape(-1).long().tolist()
    assert nearest_index(size, out, mode == "nearest-exact").tolist() == want


def test_a_mean_over_everything_has_no_dimension() -> None:
    got = integer.mean(np.array([[3, 4], [5, 8]], np.uint8), 1, [0, 1], False, 1, 5, 10)
    assert got.shape == () and got.dtype == np.uint8 and got == 13
