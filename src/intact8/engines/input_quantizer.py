"""Quantizes float inputs into the order of memory that an engine reads. This module does not import torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from intact8.engines.kernels import address, float_bits, load
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array, Op, Tensor

MAX_THREADS = 3
"""Threads of OpenVINO up to which its inputs are quantized here, by one thread: 28 µs per image of 224 × 224, against
90 µs that OpenVINO's threads share."""


def pays(threads: int | None) -> bool:
    """Return whether quantizing here is faster than leaving it to OpenVINO with so many threads (None: one per
    core)."""
    return load() is not None and (threads or os.cpu_count() or 1) <= MAX_THREADS


def channels_last(x: Array) -> bool:
    """Return whether images (N, C, …) lie in memory pixel by pixel and not plane by plane."""
    return not x.flags.c_contiguous and bool(np.moveaxis(x, 1, -1).flags.c_contiguous)


class Quantizer:
    """clamp(R(x / s) + z, lo, hi), where R rounds half to even and the division is IEEE float32's.

    Args:
        op: a ``quantize`` op.
        tensor: its result.

    Attributes:
        numbers: bits of the scale, limits before the zero point is added, zero point, as the kernels take them.

    Example:
        >>> q = Quantizer(Op("q", "quantize", ("x",), {"lo": 0, "hi": 200}), Tensor("q", "uint8", (None, 3), 0.5, 10))
        >>> q(np.array([[-9.0, 0.25, 999.0]], np.float32), np.empty((1, 3), np.uint8))
        array([[  0,  10, 200]], dtype=uint8)
    """

    def __init__(self, op: Op, tensor: Tensor) -> None:
        self._source, self._library = op.inputs[0], load()
        self._scale, self._zero = np.float32(tensor.scale or 1.0), int(tensor.zero_point or 0)
        self._lo, self._hi = int(op.attrs["lo"]), int(op.attrs["hi"])
        low, high = self._lo - self._zero, self._hi - self._zero
        self.numbers = (float_bits(float(self._scale)), low, high, self._zero)

    def __call__(self, x: Array, own: Array) -> Array:
        """Fill ``own``, and return it.

        Args:
            x: (N, …) float32, or uint8 integers that are only clamped; any layout.
            own: uint8 of the same shape, contiguous or with channels last.

        Raises:
            InputError: x holds NaN, or is of another shape than ``own``.
        """
        if x.shape != own.shape:  # the compiled kernels write as much as x has
            raise InputError(f"expected shape {own.shape}, got {x.shape}", where=self._source, remedy="give that shape")
        if x.dtype == np.uint8:
            np.clip(x, self._lo, self._hi, out=own)
        elif self._by_numpy(x, own) if self._library is None else self._compiled(self._library, x, own):
            raise self.refusal()
        return own

    def refusal(self) -> InputError:
        """Return the error to raise where x holds NaN."""
        return InputError("x holds NaN, for which no integer exists", where=self._source, remedy="repair the data")

    def _compiled(self, library: Any, x: Array, own: Array) -> bool:
        """Fill ``own`` in one pass of this thread, and return whether x holds NaN."""
        if x.dtype != np.float32 or own.dtype != np.uint8:
            what = f"{x.dtype} of shape {x.shape} cannot fill {own.dtype} of shape {own.shape}"
            raise EngineError(what, where=self._source, remedy="give float32, and memory of the same shape")
        moves_channels = not own.flags.c_contiguous
        if moves_channels and channels_last(x):
            moves_channels = False
        elif not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        sizes: tuple[int, ...] = (x.size,)
        kernel = library.quantize
        if moves_channels:
            samples, channels = x.shape[:2]
            sizes, kernel = (samples, channels, x.size // max(samples * channels, 1)), library.quantize_nhwc
        return bool(kernel(address(x), address(own), *sizes, *self.numbers, 1, x.nbytes, own.nbytes))

    def _by_numpy(self, x: Array, own: Array) -> bool:
        """Fill ``own`` sample by sample, so that steps stay in the cache, and return whether x holds NaN."""
        zero, nan = self._zero, False
        for i in range(len(x)):
            with np.errstate(over="ignore"):
                steps = np.divide(x[i : i + 1], self._scale)
            np.rint(steps, out=steps)
            # Clamping before z is added keeps large numbers from losing digits.
            np.clip(steps, np.float32(self._lo - zero), np.float32(self._hi - zero), out=steps)
            nan |= bool(np.isnan(steps.min(initial=0.0)))
            with np.errstate(invalid="ignore"):
                np.add(steps, np.float32(zero), out=own[i : i + 1], casting="unsafe")
        return nan
