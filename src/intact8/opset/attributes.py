"""Attributes, arrays and combinations of dtypes that several kinds declare."""

from __future__ import annotations

from .types import PLAIN, QUANTIZED, signature
from .values import LARGEST_A, LARGEST_SIZE, Validator, boolean, integer, integers, odd

FLOAT, INT = "float32", "int64"
NUMBERS = " ".join(PLAIN)

INTEGERS = (signature(QUANTIZED, gives=QUANTIZED),)
FLOATS = (signature(FLOAT, gives=FLOAT),)
ROWS = (signature(INT, gives=FLOAT),)
REAL = (signature(NUMBERS, gives=FLOAT),)
"""The signature of kinds that turn integers into float32 first."""

SMALL = 1 << 16
STRIDES, PADDINGS = integers(1, SMALL), integers(0, SMALL)
SIZES = integers(1, LARGEST_SIZE)
IMAGE_SIZE = integers(1, LARGEST_SIZE, names=True)
AXIS, AXES = integer(0, 7), integers(0, 7)
NUMERATOR = integer(0, LARGEST_A)

BYTE = integer(0, 255)
CLAMP: dict[str, Validator] = {"lo": BYTE, "hi": BYTE}
RATIO: dict[str, Validator] = {"a": NUMERATOR, "b": odd, **CLAMP}
WINDOW: dict[str, Validator] = {"kernel": STRIDES, "stride": STRIDES, "padding": PADDINGS, "ceil_mode": boolean}
CONV: dict[str, Validator] = {
    **dict.fromkeys(("stride", "dilation"), STRIDES),
    **dict.fromkeys(("padding", "output_padding"), PADDINGS),
    "groups": integer(1, SMALL),
    "transposed": boolean,
}
KEPT_DIMENSIONS: dict[str, Validator] = {"dims": AXES, "keepdim": boolean}
CODES = {"bits": integer(4, 8), "columns": integer(1, LARGEST_SIZE), "group": integer(0, LARGEST_SIZE)}
WEIGHT, BIAS = {"weight": "float32"}, {"bias": "float32"}
CODE_ARRAYS = {"weight": "uint8", "scale": "float32"}
