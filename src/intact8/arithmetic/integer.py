"""Sums of products and requantization on integers: the specification as code, exact by construction.

Activations are uint8 arrays with a zero point, weights int8, sums int64. Products run through floating point matrix
multiplication where a bound proves every partial sum exact (below 2²⁴ in float32, 2⁵³ in float64), so the path taken
never shows in the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = Sequence[int]

CHUNK = 1 << 22
"""Elements of the largest intermediate matrix: what a convolution unfolds at once, or weights as floats."""


def round_ratio(numerator: Array, b: Array | int) -> Array:
    """Round numerator/b to the nearest integer: floor((2·numerator + b) / (2·b)).

    With odd ``b`` there are no ties, so this is every rounding mode at once.

    Args:
        numerator: int64, |numerator| < 2⁶¹.
        b: odd, ≥ 1; broadcasts.

    Example:
        >>> round_ratio(np.array([-4, -1, 1, 4]), 3).tolist()
        [-1, 0, 0, 1]
    """
    doubled = np.asarray(numerator * np.int64(2))  # of one number numpy makes no array
    doubled += b
    np.floor_divide(doubled, np.asarray(b, np.int64) * 2, out=doubled)
    return doubled


def clamp_u8(values: Array, z: int, lo: int, hi: int) -> Array:
    """Compute clamp(values + z, lo, hi) as uint8; ``values`` is int64 and is overwritten."""
    values += z
    np.clip(values, lo, hi, out=values)
    return values.astype(np.uint8)


def requantize(
    acc: Array,
    a: Array | int,
    b: Array | int,
    z: int,
    lo: int = 0,
    hi: int = 255,
    axis: int | None = None,
    *,
    a_neg: Array | None = None,
    b_neg: Array | None = None,
    residual: Array | None = None,
    residual_a: int = 0,
) -> Array:
    """Compute clamp(R(acc·a/b + residual·residual_a/b) + z, lo, hi): the one rounding of an integer op.

    Args:
        acc: exact sums, int64.
        a, b: multiplier a/b, b odd; one number, or one per index of ``axis``.
        z, lo, hi: output zero point and clamp, within 0..255.
        axis: the axis of ``acc`` that ``a`` and ``b`` run along; None when they are numbers.
        a_neg, b_neg: the multiplier where acc < 0 (leaky ReLU, PReLU), like a and b; not together with a residual.
        residual: integers minus zero point, int64, the shape of ``acc``.
        residual_a: numerator of the residual's ratio over the same b.

    Returns:
        uint8, the shape of ``acc``.

    Example:
        >>> requantize(np.array([[10, -7]]), np.array([1, 2]), np.array([3, 5]), 100, axis=1).tolist()
        [[103, 97]]
    """
    a, b = _along(a, acc.ndim, axis), _along(b, acc.ndim, axis)
    numerator = acc * a
    if residual is not None:
        numerator += residual * np.int64(residual_a)
    result = round_ratio(numerator, b)
    if a_neg is not None and b_neg is not None:
        below = round_ratio(acc * _along(a_neg, acc.ndim, axis), _along(b_neg, acc.ndim, axis))
        result = np.where(acc < 0, below, result)
    return clamp_u8(result, z, lo, hi)


def _along(values: Array | int, rank: int, axis: int | None) -> Array:
    """Return ``values`` as int64, shaped to broadcast along ``axis``."""
    array = np.asarray(values, np.int64)
    if axis is None or array.ndim == 0:
        return array
    shape = [1] * rank
    shape[axis] = -1
    return array.reshape(shape)


def conv_accumulate(
    x: Array, z: int, w: Array, bias: Array | None, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Array:
    """Compute Σ (x − z)·w + bias for 1, 2 or 3 spatial dimensions; padding inserts z.

    Args:
        x: uint8, (N, I, *S).
        z: zero point of x.
        w: int8, (O, I/groups, *K).
        bias: int32, (O,), or None.
        stride, padding, dilation: one int per spatial dimension.

    Returns:
        int64, (N, O, *S').
    """
    bound = sum_bound(w, z)
    dtype = exact_dtype(bound)
    if w.shape[1] == 1 and bound < 1 << 31:
        dtype = np.dtype(np.int32)
    padded = centered(x, z, dtype, [(p, p) for p in padding])
    return _with_bias(correlate(padded, w.astype(dtype), stride, dilation, groups), bias)


def conv_transpose_accumulate(
    x: Array,
    z: int,
    w: Array,
    bias: Array | None,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> Array:
    """Compute the transposed convolution: every (x − z) spreads w over the output.

    Computed as an ordinary convolution of x with zeros between its elements, kernel flipped.

    Args:
        x: uint8, (N, I, *S).
        w: int8, (I, O/groups, *K).
        bias: int32, (O,), or None.

    Returns:
        int64, (N, O, *S') with S' = (S − 1)·stride − 2·padding + dilation·(K − 1) + output_padding + 1.
    """
    flipped = flip_transposed(w, groups)
    dtype = exact_dtype(sum_bound(flipped, z))
    spread = spread_transposed(centered(x, z, dtype, None), stride, padding, output_padding, dilation, w.shape[2:])
    return _with_bias(correlate(spread, flipped.astype(dtype), [1] * len(stride), dilation, groups), bias)


def linear_accumulate(x: Array, z: int, w: Array, bias: Array | None) -> Array:
    """Compute Σ (x − z)·w + bias over the last dimension.

    Args:
        x: uint8, (…, I).
        w: int8, (O, I).
        bias: int32, (O,), or None.

    Returns:
        int64, (…, O).
    """
    dtype = exact_dtype(sum_bound(w, z))
    values, block = centered(x, z, dtype, None), max(1, CHUNK // max(w.shape[1], 1))
    acc = np.empty((*x.shape[:-1], len(w)), np.int64)
    for i in range(0, len(w), block):  # a float copy of all weights would take eight times their memory
        acc[..., i : i + block] = np.matmul(values, w[i : i + block].astype(dtype).T)
    if bias is not None:
        acc += bias
    return acc


def sum_bound(w: Array, z: int) -> int:
    """Return the largest |Σ (x − z)·w| of any output and any part of its sum; ``w`` int8 (O, …), x in 0..255."""
    magnitude = np.abs(w.reshape(w.shape[0], -1).astype(np.int16)).sum(axis=1, dtype=np.int64)
    return int(magnitude.max()) * max(z, 255 - z)


def exact_dtype(bound: int) -> np.dtype[Any]:
    """Return the fastest float type in which sums of integers bounded by ``bound`` are exact in any order."""
    return np.dtype(np.float32) if bound < 1 << 24 else np.dtype(np.float64)


def centered(x: Array, z: int, dtype: np.dtype[Any], pads: Sequence[tuple[int, int]] | None) -> Array:
    """Compute x − z in ``dtype``, with zeros (which stand for z) added before and after each spatial dimension."""
    if not pads or not any(map(any, pads)):
        return np.subtract(x, z, dtype=dtype)
    sizes = list(zip(x.shape[2:], pads, strict=True))
    out = np.zeros((*x.shape[:2], *(s + p + q for s, (p, q) in sizes)), dtype)
    inside = (slice(None), slice(None), *(slice(p, p + s) for s, (p, _) in sizes))
    np.subtract(x, z, out=out[inside], dtype=dtype)
    return out


def flip_transposed(w: Array, groups: int) -> Array:
    """Return the weight (O, I/groups, *K) of the convolution that equals a transposed one of (I, O/groups, *K)."""
    inputs, outputs, *kernel = w.shape
    grouped = w.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    flipped = np.flip(grouped, axis=tuple(range(3, grouped.ndim)))
    return np.ascontiguousarray(flipped.reshape(groups * outputs, inputs // groups, *kernel))


def spread_transposed(
    x: Array, stride: Ints, padding: Ints, output_padding: Ints, dilation: Ints, kernel: Ints
) -> Array:
    """Put stride − 1 zeros between elements of (N, C, *S), and pad (or crop) for the flipped convolution."""
    reach = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    sizes = [(s - 1) * t + 1 for s, t in zip(x.shape[2:], stride, strict=True)]
    after = [r + o for r, o in zip(reach, output_padding, strict=True)]
    before, behind = [max(0, r) for r in reach], [max(0, r) for r in after]
    shape = [p + s + q for p, s, q in zip(before, sizes, behind, strict=True)]
    out = np.zeros((*x.shape[:2], *shape), x.dtype)
    inside: tuple[Any, ...] = tuple(slice(p, p + s, t) for p, s, t in zip(before, sizes, stride, strict=True))
    out[(..., *inside)] = x
    # A padding larger than the kernel's reach crops.
    kept: tuple[Any, ...] = tuple(
        slice(max(0, -r), n - max(0, -q)) for r, q, n in zip(reach, after, shape, strict=True)
    )
    return out[(..., *kept)]


def correlate(x: Array, w: Array, stride: Ints, dilation: Ints, groups: int) -> Array:
    """Return the convolve without padding, in the arithmetic of the arrays' common dtype.

    Args:
        x: (N, I, *S); w: (O, I/groups, *K), the dtype of x.

    Returns:
        (N, O, *S'), the dtype of x.
    """
    n, channels = x.shape[:2]
    kernel = w.shape[2:]
    out = [(s - d * (k - 1) - 1) // t + 1 for s, d, k, t in zip(x.shape[2:], dilation, kernel, stride, strict=True)]
    if w.shape[1] == 1:
        return _depthwise(x, w, stride, dilation, out)
    per_group, outputs, taps = channels // groups, w.shape[0], math.prod(kernel)
    weight = w.reshape(groups, outputs // groups, -1)
    result = np.empty((n, groups, outputs // groups, *out), x.dtype)
    for samples, *block in _blocks((n, *out), max(1, CHUNK // (channels * taps))):
        # The part of x that this block of the output reads begins at its first position.
        inside: tuple[Any, ...] = tuple(slice(b.start * t, None) for b, t in zip(block, stride, strict=True))
        part = x[(samples, slice(None), *inside)]
        sizes = [b.stop - b.start for b in block]
        by_sample, by_channel, *by_position = part.strides
        # (channel, kernel position, sample, output position): one matrix product serves all samples of the part.
        view = np.lib.stride_tricks.as_strided(
            part,
            (channels, *kernel, len(part), *sizes),
            (
                by_channel,
                *(s * d for s, d in zip(by_position, dilation, strict=True)),
                by_sample,
                *(s * t for s, t in zip(by_position, stride, strict=True)),
            ),
            writeable=False,
        )
        columns = view.reshape(groups, per_group * taps, len(part) * math.prod(sizes))
        product = np.matmul(weight, columns).reshape(groups, outputs // groups, len(part), *sizes)
        result[(samples, slice(None), slice(None), *block)] = np.moveaxis(product, 2, 0)
    return result.reshape(n, outputs, *out)


def _blocks(shape: Ints, most: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of an array of that shape, of at most ``most`` elements, that together are all of it."""
    if math.prod(shape) <= most:
        yield tuple(slice(0, size) for size in shape)
        return
    inner = math.prod(shape[1:])
    step = max(1, most // inner)
    for start in range(0, shape[0], step):
        first = slice(start, min(start + step, shape[0]))
        if inner <= most:
            yield (first, *(slice(0, size) for size in shape[1:]))
        else:
            yield from ((first, *rest) for rest in _blocks(shape[1:], most))


def _depthwise(x: Array, w: Array, stride: Ints, dilation: Ints, out: list[int]) -> Array:
    """Return the convolve one input channel per output channel: multiply and add, one kernel position at a time."""
    n, channels = x.shape[:2]
    multiplier = w.shape[0] // channels
    acc = np.zeros((n, channels, multiplier, *out), x.dtype)
    product = np.empty_like(acc)
    for position in np.ndindex(*w.shape[2:]):
        window: tuple[Any, ...] = tuple(
            slice(i * d, i * d + (o - 1) * t + 1, t) for i, d, o, t in zip(position, dilation, out, stride, strict=True)
        )
        at: tuple[Any, ...] = (slice(None), 0, *position)
        factor = w[at].reshape(1, channels, multiplier, *[1] * len(out))
        np.multiply(x[(slice(None), slice(None), *window)][:, :, None], factor, out=product)
        acc += product
    return acc.reshape(n, w.shape[0], *out)


def _with_bias(acc: Array, bias: Array | None) -> Array:
    total = acc.astype(np.int64)
    if bias is not None:
        total += bias.reshape(1, -1, *[1] * (acc.ndim - 2))
    return total


def add(xs: Sequence[Array], zs: Sequence[int], a: Sequence[int], b: int, z: int, lo: int = 0, hi: int = 255) -> Array:
    """Compute clamp(R(Σ a_j·(x_j − z_j) / b) + z, lo, hi), broadcasting.

    Example:
        >>> add([np.array([10, 20], np.uint8), np.array([3], np.uint8)], [0, 0], [1, -1], 1, 5).tolist()
        [12, 22]
    """
    total: Array | None = None
    for x, zero, factor in zip(xs, zs, a, strict=True):
        term = (x.astype(np.int64) - zero) * factor
        total = term if total is None else total + term
    assert total is not None
    return clamp_u8(round_ratio(total, b), z, lo, hi)


def mul(x: Array, zx: int, w: Array, zw: int, a: int, b: int, z: int, lo: int = 0, hi: int = 255) -> Array:
    """Compute clamp(R((x − zx)·(w − zw)·a / b) + z, lo, hi), broadcasting."""
    product = (x.astype(np.int64) - zx) * (w.astype(np.int64) - zw)
    return requantize(product, a, b, z, lo, hi)


def matmul(x: Array, zx: int, w: Array, zw: int, a: int, b: int, z: int, lo: int = 0, hi: int = 255) -> Array:
    """Compute clamp(R(Σ_k (x_ik − zx)·(w_kj − zw)·a / b) + z, lo, hi).

    Args:
        x: uint8, (…, I, K).
        w: uint8, (…, K, J); leading dimensions broadcast.

    Returns:
        uint8, (…, I, J).

    Example:
        >>> x, w = np.array([[3, 1]], np.uint8), np.array([[5], [7]], np.uint8)
        >>> matmul(x, 1, w, 2, 1, 3, 100).tolist()
        [[102]]
    """
    bound = x.shape[-1] * max(zx, 255 - zx) * max(zw, 255 - zw)
    dtype = exact_dtype(bound)
    acc = np.matmul(np.subtract(x, zx, dtype=dtype), np.subtract(w, zw, dtype=dtype))
    return requantize(np.asarray(acc, np.int64), a, b, z, lo, hi)


def mean(x: Array, zx: int, dims: Ints, keepdim: bool, a: int, b: int, z: int, lo: int = 0, hi: int = 255) -> Array:
    """Compute clamp(R(Σ (x − zx)·a / b) + z, lo, hi) over ``dims``; 1/n is part of a/b."""
    count = math.prod(x.shape[d] for d in dims)
    acc = np.asarray(x.sum(axis=tuple(dims), keepdims=keepdim, dtype=np.int64)) - count * zx
    return requantize(acc, a, b, z, lo, hi)


def table(x: Array, entries: Array) -> Array:
    """Look up entries[x]: any function of one uint8 tensor, ``entries`` uint8 (256,)."""
    return np.take(entries, x)
