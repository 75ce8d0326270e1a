"""The compiled kernels of ``native/``, if the package was built with a C compiler. This module does not import torch.

Without them operations of numpy, torch or OpenVINO compute the same bits, one pass over memory each.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from intact8.opset.op import Array


def load() -> ModuleType | None:
    """Return the compiled kernels; None where they were not built."""
    try:
        from . import _native
    except ImportError:
        return None
    return _native


def operators() -> frozenset[str]:
    """Return the custom operators of ONNX Runtime that this machine has (``engines/onnxruntime/custom_ops.py``)."""
    library = load()
    if library is None:
        return frozenset()
    convolutions = ("Depthwise", "Dense") if library.can_convolve() else ()
    return frozenset({"Table", "Multiply", "Resize", "Quantize", "QuantizeNhwc", *convolutions})


def float_bits(value: float) -> int:
    """Return the bits of a float32, as the compiled kernels take it."""
    return int(np.float32(value).view(np.int32))


def address(x: Array) -> int:
    """Return the address of the first element of ``x``; several times faster than ``x.ctypes``."""
    return int(x.__array_interface__["data"][0])
