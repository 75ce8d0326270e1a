"""Windows, moves and convolutions of small sizes, all of them, against definitions written out and against torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from intact8.arithmetic import dimensions, integer, moves, windows

WINDOWS = [
    (size, k, s, p, d)
    for size, k, s, d in itertools.product((1, 2, 4, 5, 6), (1, 2, 3), (1, 2, 3), (1, 2))
    for p in range(k // 2 + 1)
    if size + 2 * p >= d * (k - 1) + 1
]


@pytest.mark.parametrize("ceil", [False, True])
def test_every_pool_of_one_dimension(ceil: bool) -> None:
    for size, k, s, p, d in WINDOWS:
        x = torch.arange(1.0, size + 1)[None, None]
        want = F.max_pool1d(x, k, s, p, d, ceil)[0, 0]
        told = f"{size} {k} {s} {p} {d}"
        assert windows.pool_size(size, k, s, p, d, ceil) == len(want), told
        for dtype in (np.float32, np.int8, np.uint8) if want.isfinite().all() else (np.float32,):
            sign = 1 if dtype == np.uint8 else -1
            y = windows.max_pool((sign * x.numpy()).astype(dtype), [k], [s], [p], [d], ceil)
            assert y.dtype == dtype and y[0, 0].tolist() == F.max_pool1d(sign * x, k, s, p, d, ceil)[0, 0].tolist(), (
                told
            )
        if d == 1:
            for include in (False, True):
                edges, divisors = windows.pool_windows([size], [k], [s], [p], ceil, include)
                mean = F.avg_pool1d(x, k, s, p, ceil, include)[0, 0]
                np.testing.assert_allclose(windows.window_sums(x.numpy(), edges)[0, 0] / divisors, mean, rtol=1e-6)
                found = set(divisors.tolist())
                for most in (1, 2, 3):
                    told_divisors = windows.pool_divisors([size], [k], [s], [p], ceil, include, most)
                    assert told_divisors == (found if len(found) <= most else None), told


def test_max_pool_of_truth_values() -> None:
    x = np.array([[[False, True, False, False, False]]])
    assert windows.max_pool(x, [2], [2], [1], [1], False).tolist() == [[[False, True, False]]]


def test_divisors_of_large_pools_are_those_of_all_windows() -> None:
    for size, k, s, p in itertools.product((40, 41, 43), (3, 5, 8), (1, 2, 3, 9), (0, 1, 2)):
        if p > k // 2:
            continue
        for ceil, include in itertools.product((False, True), repeat=2):
            _, divisors = windows.pool_windows([size, 7], [k, 2], [s, 2], [p, 1], ceil, include)
            found = windows.pool_divisors([size, 7], [k, 2], [s, 2], [p, 1], ceil, include, 99)
            assert found == set(divisors.ravel().tolist()), (size, k, s, p, ceil, include)
            assert windows.pool_divisors([size, 7], [k, 2], [s, 2], [p, 1], ceil, include, len(found)) == found
            few = windows.pool_divisors([size, 7], [k, 2], [s, 2], [p, 1], ceil, include, len(found) - 1)
            assert few is None


def test_every_adaptive_pool() -> None:
    for size, out in itertools.product(range(1, 13), range(1, 13)):
        edges, sizes = windows.adaptive_windows([size], [out])
        assert windows.adaptive_divisors([size], [out], 9) == set(sizes.tolist())
        x = torch.arange(float(size))[None, None] ** 2
        got = windows.window_sums(x.numpy(), edges)[0, 0] / sizes
        np.testing.assert_allclose(got, F.adaptive_avg_pool1d(x, out)[0, 0], rtol=1e-5)
    both = windows.adaptive_divisors([7, 5], [3, 2], 9)
    assert both == set(windows.adaptive_windows([7, 5], [3, 2])[1].ravel().tolist())


def test_which_outputs_see_padding_only() -> None:
    for size, k, s, p, d in itertools.product(range(1, 6), (1, 2, 3), (1, 2, 3), (0, 1, 2, 3), (1, 2, 3)):
        if size + 2 * p < d * (k - 1) + 1:
            continue
        padded = [0] * p + [1] * size + [0] * p
        taps = [padded[start : start + d * (k - 1) + 1 : d] for start in range(0, len(padded) - d * (k - 1), s)]
        assert windows.sees_padding_only(size, k, s, p, d) == any(not any(t) for t in taps), (size, k, s, p, d)


def test_ragged_means_use_each_divisors_multiplier() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 3, 5, 4)).astype(np.uint8)
    edges, divisors = windows.pool_windows([5, 4], [3, 2], [2, 2], [1, 1], True, False)
    rows = [[n, 7 + n, 2 * n + 1] for n in sorted(set(divisors.ravel().tolist()))]
    sums = windows.window_sums(x.astype(np.int64) - 20, edges)
    want = np.floor(sums * (7 + divisors) / (2 * divisors + 1) + 0.5) + 99
    assert windows.average(x, 20, edges, divisors, rows, 99, 30, 180).tolist() == want.clip(30, 180).tolist()


def test_rows_takes_its_own_indices_only() -> None:
    table = np.arange(12).reshape(4, 3)
    assert moves.rows(table, np.array([[0, 3]])).tolist() == [[[0, 1, 2], [9, 10, 11]]]
    assert moves.rows(table, np.zeros((0, 2), np.int64)).shape == (0, 2, 3)
    for bad in (-1, 4, -4):
        with pytest.raises(IndexError, match="of 4 rows"):
            moves.rows(table, np.array([0, bad]))


def test_moves() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    assert moves.reshape(x, [-1, 12]).shape == (2, 12) and moves.reshape(x[:0], [-1, 12]).shape == (0, 12)
    assert moves.reshape(np.zeros((0, 4)), [-1, 0]).shape == (0, 0)
    assert moves.reshape(x, [4, 6]).tolist() == x.reshape(4, 6).tolist()
    assert moves.permute(x, [2, 0, 1]).tolist() == x.transpose(2, 0, 1).tolist()
    assert moves.cut(x, 2, 1, 4, 2).tolist() == x[:, :, 1:4:2].tolist()
    assert moves.cut(x, 0, 1, 2, 1).tolist() == x[1:2].tolist()
    pads = [[0, 0], [2, -1], [-1, 3]]
    want = F.pad(torch.from_numpy(x), (-1, 3, 2, -1), value=7)
    assert moves.pad(x, pads, 7).tolist() == want.tolist()
    assert moves.pad(x, [[0, 1], [-1, -1], [1, 0]], 5).tolist() == (
        F.pad(torch.from_numpy(x), (1, 0, -1, -1, 0, 1), value=5).tolist()
    )
    assert moves.roll(x, [1, -1], [0, 2]).tolist() == np.roll(np.roll(x, 1, 0), -1, 2).tolist()
    assert moves.expand(x[:, :1], [2, 5, 4]).shape == (2, 5, 4)


@pytest.mark.parametrize(
    ("wanted", "own", "declared", "batch", "shape"),
    [
        ([-1, 4, -1], [1, 1, 8], [None, 4, 8], 16, [16, 4, 8]),
        ([-1, 4], [1, 1], [None, 4], None, [1, 4]),
        ([-1, 4], [3, 1], [None, 4], 16, [3, 4]),
        ([-1, 4], [1, 1], [1, 4], 16, [1, 4]),
        ([2, -1, 4], [5, 1], [2, 5, 4], 16, [2, 5, 4]),
        ([-1, 3, 4], [4], [None, 3, 4], 6, [6, 3, 4]),
    ],
)
def test_expanded_shapes(wanted: Any, own: Any, declared: Any, batch: Any, shape: list[int]) -> None:
    assert moves.expanded_shape(wanted, own, declared, batch) == shape


@pytest.mark.parametrize("exact", [False, True])
def test_nearest_neighbours(exact: bool) -> None:
    for size, out in itertools.product(range(1, 8), range(1, 12)):
        x = torch.arange(float(size)).repeat(1, 1, 2, 1)
        mode = "nearest-exact" if exact else "nearest"
        want = F.interpolate(x, (3, out), mode=mode)
        assert moves.upsample_nearest(x.numpy(), [3, out], exact).tolist() == want.tolist()


def test_sizes_of_named_dimensions() -> None:
    bounds: dict[str, tuple[int, int | None]] = {"t": (2, 5), "u": (1, None)}
    shapes = [("x", (None, "t", 3), (9, 4, 3)), ("y", ("u", "t"), (1000, 4))]
    assert dimensions.measure(shapes, bounds) == {"t": 4, "u": 1000}
    for size in (2, 5):
        assert dimensions.measure([("x", ("t",), (size,))], bounds) == {"t": size}
    for size, what, remedy in ((1, "t is 1, outside 2 to 5", "at least"), (6, "t is 6, outside 2 to 5", "truncate")):
        with pytest.raises(dimensions.SizeError) as caught:
            dimensions.measure([("x", ("t",), (size,))], bounds)
        assert caught.value.args[:2] == (what, "x") and remedy in caught.value.args[2]
    with pytest.raises(dimensions.SizeError, match="u is 0, outside 1 or more"):
        dimensions.measure([("x", ("u",), (0,))], bounds)
    with pytest.raises(dimensions.SizeError, match="t is 3, but 4 in x"):
        dimensions.measure([shapes[0], ("y", ("u", "t"), (1000, 3))], bounds)
    attrs = {"shape": [-1, "t", 3], "end": "u", "start": 1}
    assert dimensions.resolve(attrs, {"t": 7, "u": 8}) == {"shape": [-1, 7, 3], "end": 8, "start": 1}
    assert dimensions.resolve({"shape": [2, 3]}, {}) == {"shape": [2, 3]}
    for named, has in ((attrs, True), ({"end": "u"}, True), ({"shape": [1, "t"]}, True), ({"shape": [1]}, False),
                       ({"end": 3}, False), ({}, False), ({"mode": "nearest"}, False)):  # fmt: skip
        assert dimensions.has_names(named) is has
    assert dimensions.fits((None, "t", 3), (1, 2, 3)) and not dimensions.fits((None, 3), (1, 2))
    assert not dimensions.fits((None, 3), (1, 3, 1)) and not dimensions.fits((3,), ())


RNG = np.random.default_rng(0)
CONVOLUTIONS = [
    # spatial, kernel, stride, padding, output_padding, dilation, groups, in, out
    ((7,), (3,), (2,), (2,), (1,), (2,), 1, 2, 3),
    ((7,), (2,), (1,), (0,), (0,), (1,), 4, 4, 8),
    ((5, 6), (3, 2), (1, 2), (0, 1), (0, 1), (1, 3), 2, 4, 6),
    ((6, 5), (1, 1), (2, 3), (0, 0), (1, 2), (1, 1), 1, 5, 2),
    ((5, 5), (2, 3), (1, 1), (1, 2), (0, 0), (1, 1), 3, 3, 3),
    ((3, 4, 5), (2, 1, 3), (1, 2, 2), (1, 0, 1), (0, 1, 0), (1, 1, 2), 1, 2, 2),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=[f"{len(c[0])}d of {c[6]} groups" for c in CONVOLUTIONS])
@pytest.mark.parametrize("large", [False, True], ids=["float32", "float64"])
def test_convolutions_in_parts_of_every_size(case: Any, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    size, kernel, stride, padding, output_padding, dilation, groups, cin, cout = case
    rank = len(size)
    x = RNG.integers(0, 256, (3, cin, *size)).astype(np.uint8)
    w = RNG.integers(-128, 128, (cout, cin // groups, *kernel)).astype(np.int8)
    wt = RNG.integers(-128, 128, (cin, cout // groups, *kernel)).astype(np.int8)
    bias = RNG.integers(-(2**30), 2**30, cout).astype(np.int32)
    if large:
        monkeypatch.setattr(integer, "exact_dtype", lambda bound: np.dtype(np.float64))
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    back = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    t = torch.from_numpy(x).double() - 77
    want = conv(t, torch.from_numpy(w).double(), torch.from_numpy(bias).double(), stride, padding, dilation, groups)
    spread = back(t, torch.from_numpy(wt).double(), None, stride, padding, output_padding, groups, dilation)
    for chunk in (1, 40, 300, 1 << 22):
        monkeypatch.setattr(integer, "CHUNK", chunk)
        got = integer.conv_accumulate(x, 77, w, bias, stride, padding, dilation, groups)
        assert got.dtype == np.int64 and got.tolist() == want.tolist()
        got = integer.conv_transpose_accumulate(x, 77, wt, None, stride, padding, output_padding, dilation, groups)
        assert got.dtype == np.int64 and got.tolist() == spread.tolist()


def test_blocks_are_small_and_cover_everything_once() -> None:
    for shape in ((7,), (3, 5), (2, 3, 4), (4, 1, 3)):
        for most in (1, 2, 3, 5, 8, 11, 24, 100):
            seen = np.zeros(shape, int)
            blocks = list(integer._blocks(shape, most))
            for block in blocks:
                seen[block] += 1
                assert seen[block].size <= most
            assert (seen == 1).all()
            assert len(blocks) == 1 or math.prod(shape) > most
            # No block could take the next one in along the first dimension.
            inner = math.prod(shape[1:])
            if math.prod(shape) > most >= inner:
                assert len(blocks) == -(-shape[0] // (most // inner))


def test_sums_at_the_ends_of_a_type_are_exact() -> None:
    # |sums| of just below and from 2²⁴ on, and of just below and from 2³¹ on for one channel per output.
    for terms, weight in ((519, 127), (520, 127), (518, 127)):
        x, w = np.full((1, terms), 255, np.uint8), np.full((1, terms), weight, np.int8)
        x[0, -1] = 254
        exact = 255 * weight * terms - weight
        assert integer.linear_accumulate(x, 0, w, None).tolist() == [[exact]]
        assert integer.linear_accumulate(x, 0, w, np.array([-5], np.int32)).tolist() == [[exact - 5]]
    for bound, dtype in (((1 << 24) - 1, np.float32), (1 << 24, np.float64)):
        assert integer.exact_dtype(bound) == dtype
    assert integer.sum_bound(np.array([[-128, 127], [1, 1]], np.int8), 100) == 255 * 155
    assert integer.sum_bound(np.array([[-128, 127]], np.int8), 200) == 255 * 200
    assert integer.sum_bound(np.zeros((2, 0), np.int8), 200) == 0


def test_products_of_activations_and_means() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 256, (2, 3, 300)).astype(np.uint8), rng.integers(0, 256, (2, 300, 4)).astype(np.uint8)
    for zx, zw in ((0, 0), (255, 3), (128, 255)):
        acc = (x.astype(object) - zx) @ (w.astype(object) - zw)
        exact = [[[min(max((2 * v * 3 + 200003) // (2 * 200003) + 90, 5), 250) for v in r] for r in m] for m in acc]
        assert integer.matmul(x, zx, w, zw, 3, 200003, 90, 5, 250).tolist() == exact
    full = np.full((1, 300), 255, np.uint8)
    assert integer.matmul(full, 0, full.T, 0, 1, 300 * 255 * 255 // 199 | 1, 0).tolist() == [[199]]
    sums = x.astype(np.int64).sum((0, 2)) - 600 * 9
    for keep in (False, True):
        got = integer.mean(x, 9, [0, 2], keep, 3, 1801, 9, 4, 200)
        assert got.shape == ((1, 3, 1) if keep else (3,))
        assert got.ravel().tolist() == [min(max((6 * s + 1801) // 3602 + 9, 4), 200) for s in sums.tolist()]
    assert integer.table(x, np.arange(256, dtype=np.uint8)[::-1]).tolist() == (255 - x).tolist()


def test_requantization_along_an_axis() -> None:
    acc = np.arange(-12, 12).reshape(2, 3, 4)
    a, b = np.array([3, 5, 7], np.int32), np.array([5, 7, 11], np.int32)
    n, d = np.array([-1, 2, 0], np.int32), np.array([3, 5, 1], np.int32)
    got = integer.requantize(acc, a, b, 50, 48, 54, axis=1, a_neg=n, b_neg=d)
    for i, j, k in np.ndindex(acc.shape):
        v = int(acc[i, j, k])
        p, q = (int(n[j]), int(d[j])) if v < 0 else (int(a[j]), int(b[j]))
        assert got[i, j, k] == min(max((2 * v * p + q) // (2 * q) + 50, 48), 54)


@pytest.mark.parametrize("call", [
    lambda x: integer.centered(x, 3, np.dtype(np.float32), [(1, 1)]),
    lambda x: integer.spread_transposed(x, [1, 1], [0, 0], [0], [1, 1], [2, 2]),
    lambda x: integer.correlate(x, np.ones((1, 2, 2, 2), np.float32), [1, 1], [1], 1),
], ids=["padding", "transposed", "convolution"])  # fmt: skip
def test_a_geometry_has_one_number_for_every_dimension(call: Any) -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter than argument 1"):
        call(np.ones((1, 2, 5, 5), np.float32))
