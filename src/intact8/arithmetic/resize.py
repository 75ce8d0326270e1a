"""Linear resizing of integers, linear and cubic resizing of float arrays, all by torch's coordinate rules.

Integers: output i of an axis of n elements that becomes one of m lies at ((2i + 1)·n − m)/2m, not below 0, or with
``align_corners`` at i·(n − 1)/(m − 1), a rational number: between the elements ``left`` and ``left`` + 1, the second
one with the weight p/D, p = ⌊share·D + ½⌋, and the first one with (D − p)/D. Over all axes

    y = R(Σ w·x / ΠD)

with integers w that add up to ΠD. Every D is odd, so no exact value lies in the middle between two integers; the
weights add up to 1, so the zero point plays no part and no result leaves the range of what it is made of. Therefore
input and output share scale and zero point, as those of a move do, and a concatenation behind it costs nothing. The
weights differ from torch's by at most 1/(2D): :func:`denominators` chooses those D for which they differ the least,
among those whose product one IEEE division of float32 numbers still rounds right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CUBIC = -0.75
"""The cubic kernel's parameter A in torch (Keys 1981 has −0.5)."""

LARGEST_PRODUCT = (1 << 16) - 1
"""Limit of the product of all denominators: sums are integers that float32 holds, and what one division of them may be
off by, 2⁻¹⁷ below 256, is less than the distance 1/(2·ΠD) of a quotient from the middle of two integers."""

CANDIDATES = 128
"""How many denominators are tried."""


class Axis(NamedTuple):
    """Where the outputs of one resized axis come from.

    Attributes:
        left, right: int64 (out,), source indices.
        weight: int64 (out,), numerators p of the weights of ``right``; ``left`` has denominator − p.
        denominator: odd.
    """

    left: Array
    right: Array
    weight: Array
    denominator: int

    @property
    def taps(self) -> Array:
        """int32 (out, 3): ``left``, ``right`` and ``weight`` of every output, as the compiled passes read them."""
        return np.stack([self.left, self.right, self.weight], 1).astype(np.int32)


def _rational_shares(size: int, out: int, align_corners: bool) -> tuple[Array, Array, int]:
    """Return the source indices and what lies beyond them, as numerators and a denominator: exact integers."""
    i = np.arange(out, dtype=np.int64)
    if align_corners:
        position, denominator = i * (size - 1), max(out - 1, 1)
    else:
        position, denominator = np.maximum((2 * i + 1) * size - out, 0), 2 * out
    left = np.minimum(position // denominator, size - 1)
    return left, np.where(left == size - 1, 0, position - left * denominator), denominator


def linear_axis(size: int, out: int, align_corners: bool, denominator: int) -> Axis:
    """Return the source indices and integer weights of an axis.

    Example:
        >>> axis = linear_axis(2, 4, False, 255)
        >>> axis.left.tolist(), axis.right.tolist(), axis.weight.tolist()
        ([0, 0, 0, 1], [1, 1, 1, 1], [0, 64, 191, 0])
    """
    left, share, whole = _rational_shares(size, out, align_corners)
    weight = (2 * share * denominator + whole) // (2 * whole)
    return Axis(left, np.minimum(left + 1, size - 1), weight, denominator)


@lru_cache(maxsize=256)
def _denominator(size: int, out: int, align_corners: bool, largest: int) -> int:
    """Return the odd number up to ``largest`` of which multiples of 1/D come closest to all weights, the least of the
    best."""
    _, share, whole = _rational_shares(size, out, align_corners)
    tried = np.arange(max(1, largest - 2 * (CANDIDATES - 1)), largest + 1, 2)
    beyond = share[:, None] * tried % whole
    return int(tried[np.argmin(np.minimum(beyond, whole - beyond).max(0) / tried)])


def exact_denominators(size: Sequence[int], out: Sequence[int], align_corners: bool) -> list[int]:
    """Return the least denominator of the weights themselves for every axis: 1 where nothing is interpolated."""
    rows = [_rational_shares(n, o, align_corners) for n, o in zip(size, out, strict=True)]
    return [whole // int(np.gcd.reduce(share, initial=whole)) for _, share, whole in rows]


def denominators(size: Sequence[int], out: Sequence[int], align_corners: bool) -> list[int]:
    """Return the denominators of the weights of every axis: odd, with a product of at most ``LARGEST_PRODUCT``.

    They are those of the weights themselves where these are odd and small enough. The other axes share what is left.

    Example:
        >>> denominators([28, 28], [56, 56], False), denominators([10, 5], [19, 5], True), denominators([3], [7], True)
        ([255, 255], [65535, 1], [3])
    """
    exact = exact_denominators(size, out, align_corners)
    share = LARGEST_PRODUCT ** (1 / len(exact))
    found = [d if d % 2 and d <= share else 0 for d in exact]
    rest = LARGEST_PRODUCT // math.prod(d for d in found if d)
    largest = math.floor(rest ** (1 / max(found.count(0), 1)) + 1e-9)
    largest -= 1 - largest % 2
    rows = zip(size, out, found, strict=True)
    return [d or _denominator(n, o, align_corners, largest) for n, o, d in rows]


Phase = tuple[int, float, float]
"""Of outputs between two elements: the place of the first one before an element (−1 or 0), its weight, and that of the
one behind it."""


def phases(times: int) -> list[Phase]:
    """Return the weights by which an axis becomes ``times`` as long, in the order of its outputs for one element.

    Beyond the ends stand copies of the elements there.

    Example:
        >>> phases(2)
        [(-1, 0.25, 0.75), (0, 0.75, 0.25)]
    """
    shares = [(2 * j + 1 - times) / (2 * times) for j in range(times)]
    return [(math.floor(share), 1 - share % 1, share % 1) for share in shares]


def integer_phases(times: int, denominator: int) -> list[Phase]:
    """Return the same in integers, which add up to ``denominator``.

    Example:
        >>> integer_phases(2, 255)
        [(-1, 64, 191), (0, 191, 64)]
    """
    left, _, weight, _ = linear_axis(3, 3 * times, False, denominator)
    rows = zip(left[times : 2 * times].tolist(), weight[times : 2 * times].tolist(), strict=True)
    return [(at - 1, denominator - w, w) for at, w in rows]


def weight_matrix(size: int, out: int, align_corners: bool, denominator: int) -> Array:
    """Return float32 (out, size): the integer weights of an axis; rows add up to the denominator.

    Example:
        >>> weight_matrix(2, 3, True, 5).tolist()
        [[5.0, 0.0], [2.0, 3.0], [0.0, 5.0]]
    """
    left, right, weight, _ = linear_axis(size, out, align_corners, denominator)
    return _matrix([(left, denominator - weight), (right, weight)], size, out)


def resize_linear(x: Array, size: Sequence[int], align_corners: bool, denominators: Sequence[int]) -> Array:
    """Compute R(Σ w·x / ΠD) of the trailing dimensions, exact: linear, bilinear and trilinear resizing of uint8.

    Example:
        >>> resize_linear(np.array([[[10, 20]]], np.uint8), [4], False, [255]).tolist()
        [[[10, 13, 17, 20]]]
    """
    total, acc = math.prod(denominators), x.astype(np.uint32)  # 2·255·ΠD fits
    for axis, (out, d) in enumerate(zip(size, denominators, strict=True), start=x.ndim - len(size)):
        left, right, weight, _ = linear_axis(x.shape[axis], out, align_corners, d)
        weight = weight.astype(np.uint32).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        beside = acc.take(right, axis)
        acc = acc.take(left, axis)
        acc *= d - weight
        beside *= weight
        acc += beside
    acc *= 2
    acc += total
    acc //= 2 * total
    return acc.astype(np.uint8)


def _source(size: int, out: int, align_corners: bool, clip: bool) -> Array:
    i = np.arange(out, dtype=np.float32)
    if align_corners:
        return i * (np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0))
    source = (i + np.float32(0.5)) * (np.float32(size) / np.float32(out)) - np.float32(0.5)
    return np.maximum(source, np.float32(0)) if clip else source


Taps = list[tuple[Array, Array]]
"""Source position and float32 weight of every output, once per tap."""


def _linear_taps(size: int, out: int, align_corners: bool) -> Taps:
    if size == out:  # as in torch: both taps at the position itself
        at = np.arange(out)
        return [(at, np.ones(out, np.float32)), (at, np.zeros(out, np.float32))]
    source = _source(size, out, align_corners, clip=True)
    left = np.minimum(source.astype(np.int64), size - 1)
    share = np.clip(source - left.astype(np.float32), 0, 1)
    return [(left, 1 - share), (np.minimum(left + 1, size - 1), share)]


def _cubic_taps(size: int, out: int, align_corners: bool) -> Taps:
    source = _source(size, out, align_corners, clip=False)
    left = np.floor(source)
    t = (source - left).astype(np.float64)
    distances = np.stack([t + 1, t, 1 - t, 2 - t], axis=1)
    near = ((CUBIC + 2) * distances - (CUBIC + 3)) * distances**2 + 1
    far = ((distances - 5) * distances + 8) * distances * CUBIC - 4 * CUBIC
    weights = np.where(distances <= 1, near, far).astype(np.float32)
    return [(np.clip(left.astype(np.int64) + k - 1, 0, size - 1), weights[:, k]) for k in range(4)]


def taps(size: int, out: int, cubic: bool, align_corners: bool) -> Taps:
    """Return the source positions and weights of every output of one dimension, tap by tap: two of them, or four."""
    return (_cubic_taps if cubic else _linear_taps)(size, out, align_corners)


def _matrix(entries: Taps, size: int, out: int) -> Array:
    matrix = np.zeros((out, size), np.float32)
    for position, weight in entries:
        np.add.at(matrix, (np.arange(out), position), weight)
    return matrix


def linear_matrix(size: int, out: int, align_corners: bool) -> Array:
    """Return float32 (out, size): weights of every source position; two per row.

    Example:
        >>> linear_matrix(2, 3, True).tolist()
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    return _matrix(_linear_taps(size, out, align_corners), size, out)


def cubic_matrix(size: int, out: int, align_corners: bool) -> Array:
    """Return float32 (out, size): four weights per row, edges repeated."""
    return _matrix(_cubic_taps(size, out, align_corners), size, out)


def resize(x: Array, size: Sequence[int], cubic: bool, align_corners: bool) -> Array:
    """Return the resize the trailing dimensions of float32 ``x`` to ``size``, one dimension after the other.

    Every output is a sum of its own taps, so that NaN and infinity reach no others.
    """
    first = x.ndim - len(size)
    for axis, out in enumerate(size, start=first):
        shape = [1] * x.ndim
        shape[axis] = out
        rows = taps(x.shape[axis], out, cubic, align_corners)
        parts = [x.take(at, axis=axis) * weight.reshape(shape) for at, weight in rows]
        x = np.asarray(sum(parts[1:], parts[0]))
    return np.asarray(x, np.float32)
