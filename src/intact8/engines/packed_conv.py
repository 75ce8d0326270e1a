"""Convolutions the compiled passes do on CPUs with AVX512-VNNI: depthwise ones, and all others without groups.

========= ==========================================================================================================
Depthwise 3 × 3 windows: 60 to 140 GMAC/s, others 40 to 85; ONNX Runtime (1.31) 13 to 42
Dense     sums of 64 products or more: 400 to 500 GMAC/s of one thread's 512, shorter ones 200 to 330; ONNX Runtime
          140 to 450, and 36 to 143 for images of few channels
========= ==========================================================================================================

They add exactly in int32 and finish in the formula of certificates: float32(sum) · M, rounded, + z, clamped.
Measured on one core of a Zen 5.
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
"""Results that are computed at a time."""

LARGEST = 64
"""Window, stride or padding."""


FEW = 4
"""Channels up to which a Dense is used where the CPU has AMX: the engines' own kernels use that, and it is faster."""


@dataclass(frozen=True, eq=False)
class PackedConv:
    """What ``native/conv.c`` takes.

    Attributes:
        kind: "Depthwise" or "Dense".
        numbers: height and width of the window, strides, padding, zero points of input and result, limits; then pixels
            of a block (Depthwise) or channels of the result (Dense).
        given: weights, sums to begin with and multipliers, by channel.
    """

    kind: str
    numbers: tuple[int, ...]
    given: tuple[Array, Array, Array]

    @staticmethod
    def of(op: Op, z_x: int, z: int) -> PackedConv | None:
        """That of a ``conv``, from zero points of its input and result; None where it is another one.

        Also where sums times M might not fit int32, far beyond what networks have.
        """
        t, weight = op.attrs, op.arrays["weight"]
        if len(op.inputs) != 1 or weight.ndim != 4 or t["transposed"] or "a_neg" in op.arrays:
            return None
        count, channels, tall, wide = weight.shape
        if any(d != 1 for d in t["dilation"]) or max(tall, wide, *t["stride"], *t["padding"]) > LARGEST:
            return None
        if channels == 1 and t["groups"] == count:
            kind, last = "Depthwise", max(BLOCK // count, 1) if t["stride"][1] == 1 else 1
        elif t["groups"] == 1 and (channels <= FEW or "amx_int8" not in cpu.flags()):
            kind, last = "Dense", count
        else:
            return None
        wider = weight.astype(np.int64)
        bias = op.arrays["bias"].astype(np.int64) - z_x * wider.sum((1, 2, 3))
        ratio = np.asarray(op.arrays["a"].astype(np.float64) / op.arrays["b"].astype(np.float64), np.float32)
        reach = np.abs(bias) + 255 * np.abs(wider).sum((1, 2, 3))
        if (reach * np.maximum(np.abs(ratio), 1)).max(initial=0) >= 1 << 30:
            return None
        numbers = (tall, wide, *t["stride"], *t["padding"], z_x, z, t["lo"], t["hi"], last)
        return PackedConv(kind, numbers, (weight, bias.astype(np.int32), ratio))

    def output_size(self, given: Sequence[int]) -> list[int]:
        """Height and width of the result, from those of the image."""
        windows, strides, pads = (self.numbers[i : i + 2] for i in (0, 2, 4))
        return [pool_size(*sizes) for sizes in zip(given, windows, strides, pads, strict=True)]

    @cached_property
    def packed(self) -> tuple[Array, Array, Array]:
        """``given`` as vectors in an order of their own: int8, int32, float32."""
        weight, bias, ratio = self.given
        if self.kind == "Dense":
            return for_dense(weight), for_dense(bias), for_dense(ratio)
        pixels = self.numbers[-1]
        return for_depthwise(weight, pixels), for_depthwise(bias, pixels), for_depthwise(ratio, pixels)


def for_dense(values: Array) -> Array:
    """Weights (O, C, rows, columns) or numbers (O) for Dense: rows, words of four bytes along them, results, bytes.

    Results are a multiple of BLOCK, the last of them 16 or 32 where there are no more.
    """
    count = len(values)
    whole = count // BLOCK * BLOCK
    last = next((n for n in (0, 16, 32) if count - whole <= n), BLOCK)
    if values.ndim == 1:
        return np.pad(values, (0, whole + last - count))
    _, channels, tall, wide = values.shape
    words = -(-wide * channels // 4)
    padded = np.zeros((whole + last, tall, 4 * words), values.dtype)
    padded[:count, :, : wide * channels] = values.transpose(0, 2, 3, 1).reshape(count, tall, -1)
    parts = (
        part.reshape(-1, block, tall, words, 4).transpose(0, 2, 3, 1, 4).reshape(-1)
        for part, block in ((padded[:whole], BLOCK), (padded[whole:], last)) if block
    )  # fmt: skip
    return np.concatenate(list(parts))


def for_depthwise(values: Array, pixels: int) -> Array:
    """Weights (C, 1, rows, columns) or numbers (C) for Depthwise, for ``pixels`` side by side.

    A multiple of BLOCK channels, of which c = 16·l + 4·q + i comes at (q, l, i); four rows of a column side by side.
    """
    values = np.concatenate([values] * pixels)
    blocks = -(-len(values) // BLOCK)
    if values.ndim == 1:
        padded = np.pad(values, (0, blocks * BLOCK - len(values)))
        return np.ascontiguousarray(padded.reshape(blocks, 4, 4, 4).transpose(0, 2, 1, 3)).reshape(-1)
    count, _, tall, wide = values.shape
    groups = -(-tall // 4)
    padded = np.zeros((blocks * BLOCK, 4 * groups, wide), values.dtype)
    padded[:count, :tall] = values[:, 0]
    split = padded.reshape(blocks, 4, 4, 4, groups, 4, wide)
    return np.ascontiguousarray(split.transpose(0, 6, 4, 2, 1, 3, 5)).reshape(-1)
