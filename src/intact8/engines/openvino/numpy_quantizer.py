"""Quantizes floats in numpy, where OpenVINO does not do it exactly or is given something else than floats."""

from __future__ import annotations

import numpy as np

from intact8.errors import InputError
from intact8.opset.op import Array, Op, Tensor


class Quantizer:
    """clamp(R(x / s) + z, lo, hi), where R rounds half to even and the division is IEEE float32's.

    Args:
        op: a ``quantize`` op.
        tensor: its result.

    Example:
        >>> q = Quantizer(Op("q", "quantize", ("x",), {"lo": 0, "hi": 200}), Tensor("q", "uint8", (None, 3), 0.5, 10))
        >>> q(np.array([[-9.0, 0.25, 999.0]], np.float32), np.empty((1, 3), np.uint8))
        array([[  0,  10, 200]], dtype=uint8)
    """

    def __init__(self, op: Op, tensor: Tensor) -> None:
        self._source = op.inputs[0]
        self._scale, self._zero = np.float32(tensor.scale or 1.0), int(tensor.zero_point or 0)
        self._lo, self._hi = int(op.attrs["lo"]), int(op.attrs["hi"])

    def __call__(self, x: Array, own: Array) -> Array:
        """Fill ``own``, and return it.

        Args:
            x: (N, …) float32, or uint8 integers that are only clamped; any layout.
            own: uint8 of the same shape, contiguous or with channels last.

        Raises:
            InputError: x holds NaN, or is of another shape than ``own``.
        """
        if x.shape != own.shape:
            raise InputError(f"expected shape {own.shape}, got {x.shape}", where=self._source, remedy="give that shape")
        if x.dtype == np.uint8:
            np.clip(x, self._lo, self._hi, out=own)
        elif self._quantize(x, own):
            raise InputError("x holds NaN, for which no integer exists", where=self._source, remedy="repair the data")
        return own

    def _quantize(self, x: Array, own: Array) -> bool:
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
