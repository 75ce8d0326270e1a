"""Weights of 4 bits in a file: every int8 array whose integers are within −8..7 is stored two to a byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from intact8.arithmetic.bit_packing import fits_in_four, pack, unpack
from intact8.opset.op import Array
from intact8.opset.values import is_int
from intact8.opset.violation import need

KEY, SINCE = "packed", 4
"""Key of the JSON object: name of an array → its shape; and the version of the format from which on there is one."""

Shapes = dict[str, list[int]]


def in_four_bits(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], Shapes]:
    """Return arrays as they are stored, and the shapes of those that take 4 bits.

    Example:
        >>> import numpy as np
        >>> stored, shapes = in_four_bits({"fc/weight": np.array([[-7, 7, 1]], np.int8)})
        >>> stored["fc/weight"].tolist(), shapes
        ([241, 137], {'fc/weight': [1, 3]})
    """
    shapes = {name: list(a.shape) for name, a in arrays.items() if a.dtype.name == "int8" and fits_in_four(a)}
    stored = {name: pack(a.reshape(1, -1), 4)[0] if name in shapes else a for name, a in arrays.items()}
    return stored, shapes


def in_bytes(arrays: Mapping[str, Array], shapes: Any) -> dict[str, Array]:
    """Return stored arrays as operations have them.

    Raises:
        Violation: the shapes are none, or not those of such arrays.
    """
    need(isinstance(shapes, dict) and all(name in arrays for name in shapes), "packed names no arrays of the file")
    found = dict(arrays)
    for name, shape in shapes.items():
        sizes = isinstance(shape, list) and len(shape) <= 8 and all(is_int(n) and n >= 1 for n in shape)
        need(sizes, f"bad shape of the packed array {name!r:.80}")
        codes, count = arrays[name], math.prod(shape)
        fits = codes.dtype.name == "uint8" and codes.shape == (-(-count // 2),)
        need(fits, f"the packed array {name!r:.80} has other bytes than its shape takes")
        need(count % 2 == 0 or codes[-1] >> 4 == 8, f"the packed array {name!r:.80} does not end in the code of 0")
        found[name] = unpack(codes[None], 4, count)[0].reshape(shape)
    return found
