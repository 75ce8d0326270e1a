"""Convolutions of the compiled kernels on CPUs with AVX512-VNNI: depthwise ones, and those with one group (dense).

========= ==========================================================================================================
Depthwise 3 × 3 windows: 60 to 140 GMAC/s, others 40 to 85; ONNX Runtime (1.31) 13 to 42
Dense     sums of 64 products or more: 400 to 500 GMAC/s of one thread's 512, shorter ones 200 to 330; ONNX Runtime
          140 to 450, and 36 to 143 for images of few channels
========= ==========================================================================================================

They add exactly in int32 and finish in the formula of certificates: float32(sum) · M, rounded, + z, clamped. The
figures were measured on one core of a Zen 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from intact8.arithmetic.windows import pool_size
from intact8.engines import cpu
from intact8.opset.op import Array, Op

BLOCK = 64
"""Output channels of a packed block."""

MAX_WINDOW = 64
"""The largest window, stride or padding of the kernels."""


AMX_CHANNELS = 4
"""Input channels up to which Dense is used where the CPU has AMX, which the kernels of the engines use."""


@dataclass(frozen=True, eq=False)
class PackedConv:
    """A convolution as ``native/conv.c`` takes it.

    Attributes:
        kind: "Depthwise" or "Dense".
        numbers: height and width of the window, strides, padding, zero points of input and result, limits; then pixels
            of a block (Depthwise) or channels of the result (Dense).
        given: weights, initial accumulators and multipliers, by channel.
    """

    kind: str
    numbers: tuple[int, ...]
    given: tuple[Array, Array, Array]

    @staticmethod
    def of(op: Op, z_x: int, z: int) -> PackedConv | None:
        """Return the convolution of a ``conv``, from the zero points of its input and result.

        None where the kernels have no such convolution, or where sums times M might not fit int32, which is far beyond
        what networks have.
        """
        t, weight = op.attrs, op.arrays["weight"]
        if len(op.inputs) != 1 or weight.ndim != 4 or t["transposed"] or "a_neg" in op.arrays:
            return None
        count, channels, kernel_h, kernel_w = weight.shape
        if any(d != 1 for d in t["dilation"]) or max(kernel_h, kernel_w, *t["stride"], *t["padding"]) > MAX_WINDOW:
            return None
        if channels == 1 and t["groups"] == count:
            kind, last = "Depthwise", max(BLOCK // count, 1) if t["stride"][1] == 1 else 1
        elif t["groups"] == 1 and (channels <= AMX_CHANNELS or "amx_int8" not in cpu.flags()):
            kind, last = "Dense", count
        else:
            return None
        wider = weight.astype(np.int64)
        bias = op.arrays["bias"].astype(np.int64) - z_x * wider.sum((1, 2, 3))
        ratio = np.asarray(op.arrays["a"].astype(np.float64) / op.arrays["b"].astype(np.float64), np.float32)
        reach = np.abs(bias) + 255 * np.abs(wider).sum((1, 2, 3))
        if (reach * np.maximum(np.abs(ratio), 1)).max(initial=0) >= 1 << 30:
            return None
        numbers = (kernel_h, kernel_w, *t["stride"], *t["padding"], z_x, z, t["lo"], t["hi"], last)
        return PackedConv(kind, numbers, (weight, bias.astype(np.int32), ratio))

    def output_size(self, given: Sequence[int]) -> list[int]:
        """Return the height and width of the result, from those of the image."""
        windows, strides, pads = (self.numbers[i : i + 2] for i in (0, 2, 4))
        return [pool_size(*sizes) for sizes in zip(given, windows, strides, pads, strict=True)]

    @cached_property
    def packed(self) -> tuple[Array, Array, Array]:
        """``given`` in the order that the kernels read: int8, int32, float32."""
        weight, bias, ratio = self.given
        if self.kind == "Dense":
            return pack_dense(weight), pack_dense(bias), pack_dense(ratio)
        pixels = self.numbers[-1]
        return pack_depthwise(weight, pixels), pack_depthwise(bias, pixels), pack_depthwise(ratio, pixels)


def pack_dense(values: Array) -> Array:
    """Return the weights (O, C, rows, columns) or numbers (O) for Dense: rows, words of four bytes along them, results,
    bytes.

    Results are a multiple of BLOCK, the last of them 16 or 32 where there are no more.
    """
    count = len(values)
    whole = count // BLOCK * BLOCK
    last = next((n for n in (0, 16, 32) if count - whole <= n), BLOCK)
    if values.ndim == 1:
        return np.pad(values, (0, whole + last - count))
    _, channels, kernel_h, kernel_w = values.shape
    words = -(-kernel_w * channels // 4)
    padded = np.zeros((whole + last, kernel_h, 4 * words), values.dtype)
    padded[:count, :, : kernel_w * channels] = values.transpose(0, 2, 3, 1).reshape(count, kernel_h, -1)
    blocks = [(padded[:whole], BLOCK)] + ([(padded[whole:], last)] if last else [])
    parts = [part.reshape(-1, n, kernel_h, words, 4).transpose(0, 2, 3, 1, 4).reshape(-1) for part, n in blocks]
    return np.concatenate(parts)


def pack_depthwise(values: Array, pixels: int) -> Array:
    """Return the weights (C, 1, rows, columns) or numbers (C) for Depthwise, for ``pixels`` side by side.

    A multiple of BLOCK channels, of which c = 16·l + 4·q + i comes at (q, l, i); four rows of a column side by side.
    """
    values = np.concatenate([values] * pixels)
    blocks = -(-len(values) // BLOCK)
    if values.ndim == 1:
        padded = np.pad(values, (0, blocks * BLOCK - len(values)))
        return np.ascontiguousarray(padded.reshape(blocks, 4, 4, 4).transpose(0, 2, 1, 3)).reshape(-1)
    count, _, kernel_h, kernel_w = values.shape
    groups = -(-kernel_h // 4)
    padded = np.zeros((blocks * BLOCK, 4 * groups, kernel_w), values.dtype)
    padded[:count, :kernel_h] = values[:, 0]
    split = padded.reshape(blocks, 4, 4, 4, groups, 4, kernel_w)
    return np.ascontiguousarray(split.transpose(0, 6, 4, 2, 1, 3, 5)).reshape(-1)
