"""Pooling windows: their number, their edges and their divisors, as torch defines them; sums and maxima over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .integer import clamp_u8, round_ratio

Array = npt.NDArray[Any]
Ints = Sequence[int]
Edges = list[tuple[Array, Array]]
"""Start and end (exclusive) of every window, int64, per spatial dimension."""


def pool_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1, ceil_mode: bool = False) -> int:
    """Return how many windows fit. With ``ceil_mode`` the last may hang over, but starts in the input or left padding.

    Example:
        >>> pool_size(7, 2, 2, 0), pool_size(7, 2, 2, 0, ceil_mode=True)
        (3, 4)
    """
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= size + padding:
        out -= 1
    return out


def pool_windows(
    shape: Ints, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool, count_include_pad: bool
) -> tuple[Edges, Array]:
    """Return the windows of an average pool over spatial ``shape``.

    Returns:
        Edges clipped to the input, and the divisor of every window, int64, shape of the output's spatial dimensions:
        the elements within the padded input, or within the input when not ``count_include_pad``.
    """
    edges: Edges = []
    lengths = []
    for size, k, s, p in zip(shape, kernel, stride, padding, strict=True):
        start = np.arange(pool_size(size, k, s, p, 1, ceil_mode), dtype=np.int64) * s - p
        end = np.minimum(start + k, size + p)
        inside = np.maximum(start, 0), np.minimum(end, size)
        edges.append(inside)
        lengths.append(end - start if count_include_pad else inside[1] - inside[0])
    return edges, _outer(lengths)


def sees_padding_only(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False
) -> bool:
    """Return whether an output along this dimension has every tap of the kernel in the padding.

    Only windows that start before the input, or behind its end, can, and of those that are not dilated beyond the
    input only such as have more padding than taps.

    Example:
        >>> sees_padding_only(1, 2, 1, 1, 2), sees_padding_only(5, 3, 1, 1, 1)  # taps at −1 and 1 of one element
        (True, False)
    """
    if padding <= (kernel - 1) * dilation and length >= dilation and not ceil_mode:
        return False
    count = pool_size(length, kernel, stride, padding, dilation, ceil_mode)
    if count < 1 or (count - 1) * stride - padding >= length:
        return count >= 1
    starts = np.arange(min(count, -(-padding // stride)), dtype=np.int64) * stride - padding
    first = -(starts // dilation)  # the tap that is the first inside the input or behind it
    return bool(((first >= kernel) | (starts + first * dilation >= length)).any())


def adaptive_windows(shape: Ints, output_size: Ints) -> tuple[Edges, Array]:
    """Return the windows [⌊i·H/O⌋, ⌈(i+1)·H/O⌉) of an adaptive pool, and their sizes."""
    edges: Edges = []
    for size, out in zip(shape, output_size, strict=True):
        i = np.arange(out, dtype=np.int64)
        edges.append((i * size // out, -((-(i + 1) * size) // out)))
    return edges, _outer([end - start for start, end in edges])


def pool_divisors(
    shape: Ints, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool, count_include_pad: bool, most: int
) -> set[int] | None:
    """Return the divisors that occur among the windows of :func:`pool_windows`; None where there are more than
    ``most``.

    Only windows at the edges differ from those between, so that this takes no more than the kernel, however large the
    input is.

    Example:
        >>> sorted(pool_divisors([7, 1 << 30], [3, 3], [2, 2], [1, 1], False, False, 9))
        [4, 6, 9]
    """
    lengths = []
    for size, k, s, p in zip(shape, kernel, stride, padding, strict=True):
        count = pool_size(size, k, s, p, 1, ceil_mode)
        first, last = min(count, p // s + 1), max(0, count - (k + p) // s - 2)
        if first >= last:
            at = np.arange(count, dtype=np.int64)
        else:
            at = np.concatenate([np.arange(first + 1, dtype=np.int64), np.arange(last, count, dtype=np.int64)])
        start = at * s - p
        end = np.minimum(start + k, size + p)
        inside = np.minimum(end, size) - np.maximum(start, 0)
        lengths.append(set(np.unique(end - start if count_include_pad else inside).tolist()))
    return _products(lengths, most)


def adaptive_divisors(shape: Ints, output_size: Ints, most: int) -> set[int] | None:
    """Return the sizes that occur among the windows of :func:`adaptive_windows`; None where there are more than
    ``most``.

    Of size H and O windows, with H = q·O + r, they are q where r is 0, else q + 1, and q + 2 where r exceeds the
    greatest common divisor of r and O.

    Example:
        >>> sorted(adaptive_divisors([11, 1 << 30], [4, 1 << 30], 9))
        [3, 4]
    """
    lengths = []
    for size, out in zip(shape, output_size, strict=True):
        q, r = divmod(size, out)
        lengths.append({q} if not r else {q + 1, q + 2} if r > math.gcd(r, out) else {q + 1})
    return _products(lengths, most)


def _products(factors: list[set[int]], most: int) -> set[int] | None:
    found = {1}
    for lengths in factors:
        made: set[int] = set()
        for length in lengths:
            made.update(length * n for n in found)
            if len(made) > most:
                return None
        found = made
    return found


def _outer(lengths: list[Array]) -> Array:
    total = np.ones((), np.int64)
    for length in lengths:
        total = np.multiply.outer(total, length)
    return total


def window_sums(x: Array, edges: Edges) -> Array:
    """Return the sum over windows of the trailing dimensions, by differences of running sums.

    Args:
        x: (…, *S), int64 (exact) or float64.
        edges: one pair per spatial dimension.
    """
    first = x.ndim - len(edges)
    for axis, (start, end) in enumerate(edges, start=first):
        running = np.cumsum(x, axis=axis)
        zero = np.zeros_like(running.take([0], axis=axis))
        running = np.concatenate([zero, running], axis=axis)
        x = running.take(end, axis=axis) - running.take(start, axis=axis)
    return x


def window_matrix(start: Array, end: Array, size: int) -> Array:
    """Return a float32 matrix (size, windows) of ones inside each window of one dimension and zeros outside.

    Example:
        >>> window_matrix(np.array([0, 1]), np.array([2, 3]), 3).tolist()
        [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    position = np.arange(size)[:, None]
    return np.asarray((position >= start) & (position < end), np.float32)


def divisor_ratios(multipliers: Sequence[Ints], divisors: Array) -> Array:
    """Return the multiplier a/b of every window in float64, from rows [n, a, b] and the divisor n of each window."""
    ratio = {n: a / b for n, a, b in multipliers}
    return np.array([ratio[int(n)] for n in divisors.ravel()], np.float64).reshape(divisors.shape)


def average(
    x: Array, zx: int, edges: Edges, divisors: Array, multipliers: Sequence[Ints], z: int, lo: int = 0, hi: int = 255
) -> Array:
    """Compute clamp(R(Σ (x − zx)·a_n / b_n) + z, lo, hi) over windows, a_n/b_n by the window's divisor n.

    Args:
        x: uint8, (…, *S).
        edges, divisors: from :func:`pool_windows` or :func:`adaptive_windows`.
        multipliers: [n, a, b] for every divisor.
    """
    acc = window_sums(x.astype(np.int64) - zx, edges)
    by_n = {n: (a, b) for n, a, b in multipliers}
    sizes, where = np.unique(divisors, return_inverse=True)
    pairs = np.array([by_n[int(n)] for n in sizes], np.int64)[where.reshape(divisors.shape)]
    return clamp_u8(round_ratio(acc * pairs[..., 0], pairs[..., 1]), z, lo, hi)


def max_pool(x: Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> Array:
    """Return the maximum over windows of the trailing dimensions, of any dtype; padding never wins."""
    geometry = list(zip(x.shape[-len(kernel) :], kernel, stride, padding, dilation, strict=True))
    out = [pool_size(n, k, s, p, d, ceil_mode) for n, k, s, p, d in geometry]
    lowest = -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min if x.dtype.kind in "iu" else False
    for axis, (o, (size, k, s, p, d)) in enumerate(zip(out, geometry, strict=True), start=x.ndim - len(kernel)):
        hang = max(0, (o - 1) * s + d * (k - 1) + 1 - p - size)
        pads = [(0, 0)] * x.ndim
        pads[axis] = (p, hang)
        padded = np.pad(x, pads, constant_values=lowest) if p or hang else x
        window = [slice(None)] * x.ndim
        best: Array | None = None
        for i in range(k):
            window[axis] = slice(i * d, i * d + (o - 1) * s + 1, s)
            view = padded[tuple(window)]
            best = view if best is None else np.maximum(best, view)
        assert best is not None
        x = best
    return x
