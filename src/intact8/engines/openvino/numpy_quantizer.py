"""Quantizes floats in numpy, where OpenVINO does not do it exactly or is given something else than floats."""

from __future__ import annotations

import numpy as np

from intact8.arithmetic.affine import quantize
from intact8.errors import InputError
from intact8.opset.op import Array, Op, Tensor


def quantize_into(own: Array, op: Op, tensor: Tensor, x: Array) -> Array:
    """Fill ``own`` with what a ``quantize`` op gives, and return it.

    Args:
        own: uint8 of the shape of ``x``, contiguous or with channels last.
        op, tensor: the op and its result.
        x: (N, …) float32, or uint8 integers that are only clamped; any layout.

    Raises:
        InputError: x holds NaN, or is of another shape than ``own``.

    Example:
        >>> op, result = Op("q", "quantize", ("x",), {"lo": 0, "hi": 200}), Tensor("q", "uint8", (None, 3), 0.5, 10)
        >>> quantize_into(np.empty((1, 3), np.uint8), op, result, np.array([[-9.0, 0.25, 999.0]], np.float32))
        array([[  0,  10, 200]], dtype=uint8)
    """
    source, lo, hi = op.inputs[0], int(op.attrs["lo"]), int(op.attrs["hi"])
    if x.shape != own.shape:
        raise InputError(f"expected shape {own.shape}, got {x.shape}", where=source, remedy="give that shape")
    if x.dtype == np.uint8:
        np.clip(x, lo, hi, out=own)
        return own
    if np.isnan(x).any():
        raise InputError("x holds NaN, for which no integer exists", where=source, remedy="repair the data")
    for i in range(len(x)):  # sample by sample, so that what lies between stays in the cache
        own[i] = quantize(x[i], np.float32(tensor.scale or 1.0), int(tensor.zero_point or 0), lo, hi)
    return own
