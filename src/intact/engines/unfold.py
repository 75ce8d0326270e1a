"""The first convolution of an image as a product: its windows side by side, written while the image is in the cache.

ONNX Runtime (1.31) is slow at convolutions of three channels: the first one takes 2.4 of MobileNetV2's 16 ms (eight
images, one thread), and as a product 1.4 ms with 0.2 ms to write the windows here; 6.6 ms of ResNet18's 40, and 4.6
with 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intact.arithmetic.dimensions import known
from intact.arithmetic.windows import pool_size
from intact.program.ops import Array, Op, Tensor
from intact.program.program import Program

from .binding import images, sole_quantizers
from .native import address, load

LONGEST = 64
"""Bytes of a row of a window that the compiled pass takes."""

MANY = 4
"""Channels of an image from which its convolution is one like others."""


@dataclass(frozen=True)
class Windows:
    """Windows of a convolution without dilation, rows and columns each.

    Attributes:
        size: of a window.
        stride: between windows.
        padding: before the first row and column.
        count: of windows.
        zero: what stands in the padding.

    Example:
        >>> x = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
        >>> windows = Windows((2, 2), (1, 2), (1, 0), (2, 2), 9)
        >>> windows(x, np.empty((1, 2, 2, 4), np.uint8))[0, :, :].tolist()
        [[[9, 9, 0, 1], [9, 9, 2, 3]], [[0, 1, 4, 5], [2, 3, 6, 7]]]
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    count: tuple[int, int]
    zero: int

    def shape(self, x: Array) -> tuple[int, int, int, int]:
        """That of the windows of ``x``."""
        return x.shape[0], *self.count, self.size[0] * self.size[1] * x.shape[3]

    def __call__(self, x: Array, own: Array) -> Array:
        """Fill ``own`` with the windows of ``x``, and return it; in this thread.

        Args:
            x: (N, H, W, C) uint8, contiguous.
            own: (N, rows, columns, window·C) uint8, contiguous: see :meth:`shape`.
        """
        library: Any = load()
        library.unfold(
            address(x), address(own), *x.shape, *self.size, *self.stride, *self.padding, *self.count, self.zero
        )
        return own


def unfolded(program: Program) -> tuple[Program, dict[str, Windows]]:
    """The same integers from images whose windows are given, and the windows of each such input.

    An image is taken that is quantized for one ordinary convolution alone; its convolution becomes pointwise, with the
    elements of a window as channels, in the order of memory (row, column, channel).
    """
    if load() is None:
        return program, {}
    tensors, changed, windows = dict(program.tensors), {op.name: op for op in program.ops}, {}
    quantizers = sole_quantizers(program)
    for name in images(program):
        quantizer = quantizers.get(name)
        if quantizer is None or quantizer.name in program.outputs:
            continue
        readers = [op for op in program.ops for source in op.inputs if source == quantizer.name]
        found = _windows(readers[0], tensors[quantizer.name]) if len(readers) == 1 else None
        if found is None:
            continue
        conv = readers[0]
        windows[name] = found
        weight = conv.arrays["weight"]
        rows = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(weight.shape[0], -1, 1, 1)
        shape = (tensors[name].shape[0], rows.shape[1], *found.count)
        tensors |= {n: replace(tensors[n], shape=shape) for n in (name, quantizer.name)}
        changed[quantizer.name] = replace(quantizer, attrs={**quantizer.attrs, "lo": 0, "hi": 255})
        attrs = {**conv.attrs, "stride": [1, 1], "padding": [0, 0]}
        changed[conv.name] = replace(conv, attrs=attrs, arrays={**conv.arrays, "weight": rows})
    return replace(program, tensors=tensors, ops=tuple(changed.values())), windows


def _windows(op: Op, x: Tensor) -> Windows | None:
    """Those of a convolution that is worth it."""
    if op.kind != "conv" or op.inputs[0] != x.name:
        return None
    t, weight = op.attrs, op.arrays["weight"]
    if weight.ndim != 4 or t["transposed"] or t["groups"] != 1 or any(d != 1 for d in t["dilation"]):
        return None
    (_, channels, tall, wide), sizes = weight.shape, known(x.shape[2:])
    if channels > MANY or tall * wide == 1 or wide * channels > LONGEST or len(sizes) != 2:
        return None
    (down, right), (above, left) = t["stride"], t["padding"]
    count = pool_size(sizes[0], tall, down, above), pool_size(sizes[1], wide, right, left)
    return Windows((tall, wide), (down, right), (above, left), count, int(x.zero_point or 0))


__all__ = ["Windows", "unfolded"]
