"""The ideal: sums in exact integers, one rounding of an exact fraction, half to even. No floats where none is named.

This file is the specification. It is slow and plain on purpose, and knows nothing of the project it came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from intact8_conformance.case import Array, Grid

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def round_ratio(numerator: Array, denominator: Array | int) -> Array:
    """Return numerator/denominator rounded to integers, half to even.

    Example:
        >>> round_ratio(np.array([1, 3, 5, -1, -3]), 2).tolist()
        [0, 2, 2, 0, -2]
    """
    quotient, rest = np.divmod(2 * numerator.astype(np.int64) + denominator, 2 * np.asarray(denominator, np.int64))
    return np.where((rest == 0) & (quotient % 2 == 1), quotient - 1, quotient)


def saturate(values: Array, zero_point: int) -> Array:
    """Return uint8: the integers plus the zero point, clamped to 0 and 255."""
    return np.asarray(np.clip(values + zero_point, 0, 255), np.uint8)


def requantize(accumulator: Array, a: Array | int, b: Array | int, zero_point: int) -> Array:
    """Return the integers of ``accumulator · a/b``."""
    assert np.abs(accumulator).max(initial=0) * int(np.max(a)) < 2**61
    return saturate(round_ratio(accumulator.astype(np.int64) * a, b), zero_point)


def convolution_sums(x: Array, zero_point: int, weight: Array, stride: int, padding: int, groups: int) -> Array:
    """Return Σ (x − zero_point) · weight in int64, (N, outputs, height, width); padding holds the zero point."""
    centred = x.astype(np.int64) - zero_point
    centred = np.pad(centred, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kernel = weight.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(centred, kernel, (2, 3))[:, :, ::stride, ::stride]
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    sums = [
        np.einsum(
            "nchwij,ocij->nohw",
            windows[:, g * inputs : (g + 1) * inputs],
            weight[g * outputs : (g + 1) * outputs].astype(np.int64),
        )
        for g in range(groups)
    ]
    return np.concatenate(sums, axis=1)


def linear_sums(x: Array, zero_point: int, weight: Array) -> Array:
    """Return Σ (x − zero_point) · weight in int64, (N, output channels)."""
    return (x.astype(np.int64) - zero_point) @ weight.astype(np.int64).T


def pool_sums(x: Array, zero_point: int, kernel: int) -> Array:
    """Return the sums of (x − zero_point) over windows of kernel × kernel that do not overlap, int64."""
    n, c, h, w = x.shape
    blocks = (x.astype(np.int64) - zero_point).reshape(n, c, h // kernel, kernel, w // kernel, kernel)
    return np.asarray(blocks.sum(axis=(3, 5)))


def quantize(x: Array, grid: Grid) -> Array:
    """Return the IEEE quotient in float32 rounded half to even, plus the zero point (ONNX's QuantizeLinear)."""
    with np.errstate(over="ignore"):
        steps = np.rint(x / np.float32(grid.scale)).astype(np.float64)
    return np.clip(steps + grid.zero_point, 0, 255).astype(np.uint8)


def dequantize(q: Array, grid: Grid) -> Array:
    """Return (q − zero_point) · scale in float32, one multiplication."""
    return (q.astype(np.int32) - grid.zero_point).astype(np.float32) * np.float32(grid.scale)


def steps_of_function(name: str, grid: Grid, output: Grid) -> Array:
    """Return f((q − z)·s)/s_y in float64 for every integer q from 0 to 255."""
    return np.array([FUNCTIONS[name]((q - grid.zero_point) * grid.scale) / output.scale for q in range(256)])


def steps_of_softmax(q: Array, grid: Grid, output: Grid) -> Array:
    """Return softmax over the last dimension in steps of the output, float64."""
    e = np.exp((q.astype(np.float64) - q.max(axis=-1, keepdims=True)) * grid.scale)
    return np.asarray(e / e.sum(axis=-1, keepdims=True) / output.scale)


def distance(steps: Array) -> Array:
    """Return how far every number of steps is from the nearest rounding boundary, 0 to 1/2."""
    return np.asarray(np.abs(steps - np.floor(steps) - 0.5))
