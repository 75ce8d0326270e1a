"""One call of an operation: its operands, its quantization parameters, and the integers exact arithmetic gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Grid:
    """Quantization parameters of a uint8 tensor: the real number of an integer q is (q − zero_point) · scale.

    Attributes:
        scale: a float32 number.
        zero_point: an integer from 0 to 255.
    """

    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        assert float(np.float32(self.scale)) == self.scale > 0 and 0 <= self.zero_point <= 255


@dataclass(frozen=True)
class Case:
    """A call of an operation.

    Attributes:
        operation: name of the operation, as ``OPERATIONS`` lists them.
        corner: what the case is about, "rounding boundary" say.
        inputs: uint8 tensors, images as (N, C, H, W); float32 for ``quantize``.
        grids: quantization parameters of the inputs; none for ``quantize``.
        output: quantization parameters of the result; None for ``dequantize``.
        expected: the exact result, uint8; float32 for ``dequantize``.
        weight: int8, output channels first; None where the operation has none.
        weight_scale: float32, one number per output channel.
        bias: int32, in steps of the input's scale times the weight's.
        attributes: of the operation: ``stride``, ``padding``, ``groups``, ``kernel``, ``slope``.
    """

    operation: str
    corner: str
    inputs: tuple[Array, ...]
    grids: tuple[Grid, ...]
    output: Grid | None
    expected: Array
    weight: Array | None = None
    weight_scale: Array | None = None
    bias: Array | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
