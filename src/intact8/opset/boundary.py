"""Where floats become integers, and integers floats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intact8.arithmetic import affine

from .attributes import CLAMP, FLOAT
from .kind import Call, Kind, Span, zero_point
from .op import Array, Op, Tensor
from .shapes import same
from .types import QUANTIZED, signature


def _quantize(call: Call) -> Array:
    if call.x[0].dtype == np.uint8:
        return call.x[0]  # the caller gave the integers themselves
    return affine.quantize(call.x[0], np.float32(call.output.scale), *call.grid).astype(np.uint8)


def _span(op: Op, ends: list[Span], inputs: Sequence[Tensor]) -> Span:
    scale, zero = float(inputs[0].scale or 1.0), zero_point(inputs[0])
    return -zero * scale, (255 - zero) * scale


def _dequantize(call: Call) -> Array:
    return affine.dequantize(call.x[0], np.float32(call.inputs[0].scale), call.zero_points[0])


KINDS = (
    Kind(
        "quantize",
        "clamp(R(x / s) + z, lo, hi): IEEE float32 division, then integers",
        (1, 1),
        (signature(FLOAT, gives=QUANTIZED),),
        same,
        _quantize,
        attrs=CLAMP,
        domain="quantize",
    ),
    Kind(
        "dequantize",
        "(q − z)·s in float32, one multiplication",
        (1, 1),
        (signature(QUANTIZED, gives=FLOAT),),
        same,
        _dequantize,
        domain="dequantize",
        span=_span,
    ),
)
