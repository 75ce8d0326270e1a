"""Run random convolutions and linear layers on the native library and compare them with the reference's integers.

Usage: python tests/engines/native/random_convolutions.py COUNT [SEED]
The environment variable INTACT8_ISA chooses the instruction set. Needs numpy and intact8 only, so that it runs under
emulation, too (scripts/arm.sh).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from intact8.arithmetic import integer
from intact8.arithmetic.bit_packing import fits_in_four, pack
from intact8.engines.native import _library
from intact8.engines.native.affine import AXES
from intact8.engines.native.builder import Constants, PlanBuilder, Value, address, float_bits

Array = np.ndarray[Any, Any]
GEOMETRIES = (
    "pointwise",
    "dense",
    "dense",
    "few channels",
    "few outputs",
    "depthwise",
    "depthwise",
    "grouped",
    "narrow groups",
    "transposed",
    "linear",
)


@dataclass
class Conv:
    """A random convolution: sizes per dimension, operands in the reference's layout (N, C, D, H, W)."""

    x: Array
    weight: Array  # int8: (O, I/groups, *kernel), transposed: (I, O/groups, *kernel)
    bias: Array
    stride: list[int]
    pad: list[int]
    dilation: list[int]
    output_pad: list[int]
    groups: int
    transposed: bool
    zero: int


def random_conv(rng: np.random.Generator) -> Conv:
    """Return a convolution of a random geometry."""
    geometry = GEOMETRIES[rng.integers(len(GEOMETRIES))]
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    channels, outputs = (int(n) for n in rng.integers(1, 80, 2))
    groups, kernel = 1, [int(n) for n in rng.integers(1, 6 if rank < 3 else 4, rank)]
    transposed = geometry == "transposed"
    if geometry in ("pointwise", "linear"):
        kernel, channels, outputs = [1] * rank, int(rng.integers(1, 200)), int(rng.integers(1, 150))
    elif geometry == "few channels":
        channels = int(rng.integers(1, 5))
    elif geometry == "few outputs":
        outputs = int(rng.integers(1, 9))
    elif geometry == "depthwise":
        groups = outputs = channels
    elif geometry == "narrow groups":
        groups, width = int(rng.integers(2, 12)), int(rng.choice([4, 8, 16]))
        channels = outputs = groups * width
    elif geometry == "grouped" or (transposed and rng.random() < 0.5):
        groups = int(rng.integers(2, 6))
        channels, outputs = groups * int(rng.integers(1, 24)), groups * int(rng.integers(1, 24))
    dilation = [int(n) for n in rng.integers(1, 4, rank)] if rng.random() < 0.3 else [1] * rank
    stride = [int(n) for n in rng.integers(1, 4, rank)] if rng.random() < 0.5 else [1] * rank
    pad = [int(rng.integers(0, d * (k - 1) + 1)) for k, d in zip(kernel, dilation, strict=True)]
    if geometry == "linear":
        stride, pad = [1] * rank, [0] * rank
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    smallest = [max(r - 2 * p, 1) for r, p in zip(reach, pad, strict=True)]
    if transposed:  # at least one result
        smallest = [-(-max(2 * p - r + 1, 0) // s) + 1 for r, p, s in zip(reach, pad, stride, strict=True)]
    size = [int(n + rng.integers(0, 18 // rank)) for n in smallest]
    magnitude = int(rng.choice([127, 63, 7, 3]))
    shape = (channels, outputs // groups) if transposed else (outputs, channels // groups)
    weight = rng.integers(-magnitude - (magnitude == 7), magnitude + 1, (*shape, *kernel)).astype(np.int8)
    if rng.random() < 0.2:
        weight[...] = magnitude  # the largest sums
    x = rng.integers(0, 256, (int(rng.integers(1, 4)), channels, *size)).astype(np.uint8)
    if rng.random() < 0.2:
        x[...] = rng.choice([0, 255])
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    spare = [int(rng.integers(0, max(s, d))) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    return Conv(x, weight, bias, stride, pad, dilation, spare, groups, transposed, int(rng.integers(0, 256)))


def sums(c: Conv) -> Array:
    """Return the exact sums, int64 (N, O, *sizes)."""
    if c.transposed:
        return integer.conv_transpose_accumulate(
            c.x, c.zero, c.weight, c.bias, c.stride, c.pad, c.output_pad, c.dilation, c.groups
        )
    return integer.conv_accumulate(c.x, c.zero, c.weight, c.bias, c.stride, c.pad, c.dilation, c.groups)


def grid(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return a zero point and a clamp."""
    zero, limits = int(rng.integers(0, 256)), sorted(rng.integers(0, 256, 2).tolist())
    return (zero, 0, 255) if rng.random() < 0.6 else (zero, int(limits[0]), int(limits[1]))


def last(x: Array) -> Array:
    """Return an array with channels last and three spatial dimensions."""
    x = np.moveaxis(x, 1, -1)
    return np.ascontiguousarray(x.reshape(x.shape[0], *[1] * (5 - x.ndim), *x.shape[1:]))


class Step:
    """A convolution with random requantization, as a plan of one step, and its results by the reference."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.conv = c = random_conv(rng)
        acc = sums(c)
        outputs = acc.shape[1]
        self.behind = str(rng.choice(["nothing", "nothing", "joint", "separate", "negative"]))
        zero, low, high = grid(rng)
        most = 2047 if self.behind in ("joint", "separate") else 8191  # so that float32 decides every rounding rightly
        b = 2 * rng.integers(most // 4, most // 2, outputs) + 1
        size = float(rng.choice([60, 60, 60, 3000, 100000]))  # of results before the clamp
        a = np.maximum(np.rint(b * size / max(float(np.abs(acc).mean()), 1e-3)), 1).astype(np.int64)
        if self.behind == "joint":
            b[:] = b[0]
        self.fields: dict[str, int] = {"residual_joint": int(self.behind == "joint")}
        self.ratio, self.negative = (a / b).astype(np.float32), None
        self.residual, self.table = None, None
        numbers = dict.fromkeys(("own_ratio", "residual_ratio", "residual_zero", "sum_zero", "sum_low", "sum_high"), 0)
        if self.behind in ("joint", "separate"):
            self.residual = rng.integers(0, 256, acc.shape).astype(np.uint8)
            numbers["residual_zero"] = residual_zero = int(rng.integers(0, 256))
        expected = integer.requantize(acc, a, b, zero, low, high, axis=1)
        if self.behind == "joint" and self.residual is not None:
            over = int(rng.integers(1, b[0]))
            numbers["residual_ratio"] = float_bits(over / b[0])
            centered = self.residual.astype(np.int64) - residual_zero
            expected = integer.requantize(acc, a, b, zero, low, high, axis=1, residual=centered, residual_a=over)
        elif self.behind == "separate" and self.residual is not None:
            own, over, common = (int(n) for n in (*rng.integers(1, 3000, 2), 2 * rng.integers(500, 1000) + 1))
            sum_zero, sum_low, sum_high = grid(rng)
            numbers |= {"sum_zero": sum_zero, "sum_low": sum_low, "sum_high": sum_high}
            numbers |= {"own_ratio": float_bits(own / common), "residual_ratio": float_bits(over / common)}
            expected = integer.add(
                [expected, self.residual], [zero, residual_zero], [own, over], common, sum_zero, sum_low, sum_high
            )
        elif self.behind == "negative":
            a_neg = np.maximum(a // int(rng.integers(2, 20)), 1)
            self.negative = (a_neg / b).astype(np.float32)
            expected = integer.requantize(acc, a, b, zero, low, high, axis=1, a_neg=a_neg, b_neg=b)
        if rng.random() < 0.2:
            self.table = rng.integers(0, 256, 256).astype(np.uint8)
            expected = self.table[expected]
        self.expected, self.fields = last(expected), self.fields | numbers
        self.fields |= {"zero": zero, "low": low, "high": high, "channels_first": int(rng.integers(2))}

    def geometry(self) -> dict[str, int]:
        """Return the fields of sizes, windows, and zero point."""
        c, found = self.conv, {}
        rank = c.x.ndim - 2
        kernel = c.weight.shape[2:]
        pads = c.pad
        if c.transposed:
            pads = [p - d * (k - 1) for p, d, k in zip(c.pad, c.dilation, kernel, strict=True)]
        parts = (("kernel", kernel, 1), ("stride", c.stride, 1), ("pad", pads, 0), ("dilation", c.dilation, 1))
        for name, given, rest in parts:
            all_axes = [rest] * (3 - rank) + list(given)
            found |= {f"{name}_{axis}": int(n) for axis, n in zip(AXES, all_axes, strict=True)}
        for prefix, shape in (("", last(c.x).shape), ("out_", self.expected.shape)):
            found |= {
                f"{prefix}{n}": int(s) for n, s in zip(("depth", "height", "width", "channels"), shape[1:], strict=True)
            }
        return found | {"batch": len(c.x), "groups": c.groups, "transposed": int(c.transposed), "zero_x": c.zero}

    def weight(self) -> Array:
        """Return the weights as the library takes them: (O, *kernel, I/groups), or with the channels first."""
        c = self.conv
        w = integer.flip_transposed(c.weight, c.groups) if c.transposed else c.weight
        return np.ascontiguousarray(w if self.fields["channels_first"] else np.moveaxis(w, 1, -1))

    def run(self, threads: int) -> Array:
        """Return the library's results."""
        constants = Constants(_library)
        builder = PlanBuilder(constants)
        c, weight, bits = self.conv, self.weight(), 8
        if fits_in_four(weight):
            weight, bits = pack(weight.reshape(1, -1), 4)[0], 4
        x, kept = last(c.x), [weight, c.bias, self.ratio]
        inputs = [x] if self.residual is None else [x, last(self.residual)]
        values = [builder.value(v.shape, "uint8", storage=2, at=i) for i, v in enumerate(inputs)]

        def constant(array: Array | None) -> Value | None:
            if array is None:
                return None
            kept.append(np.ascontiguousarray(array))
            return builder.constant(kept[-1])

        y = np.zeros(self.expected.shape, np.uint8)
        builder.step(
            "conv", x=values[0], residual=values[1] if len(values) > 1 else None, weight=constant(weight),
            bias=constant(c.bias), ratio=constant(self.ratio), ratio_negative=constant(self.negative),
            table=constant(self.table), y=builder.value(y.shape, "uint8", storage=3), bits=bits,
            **self.geometry(), **self.fields,
        )  # fmt: skip
        words = builder.words()
        plan = _library.open_plan(constants.model, address(words), words.size)
        size = _library.workspace_bytes(plan, threads)
        memory = np.full(size + 64, 0xAB, np.uint8)
        base = -(-address(memory) // 64) * 64
        _library.run(plan, 0, base, size, threads, 0, len(inputs), *(v.__array_struct__ for v in (*inputs, y)))
        return y


def main(count: int, seed: int = 0) -> int:
    """Run that many random convolutions; return the number of integers that differ."""
    wrong = compared = 0
    for i in range(count):
        step = Step(np.random.default_rng([seed, i]))
        differ = int((step.run(1 + i % 2) != step.expected).sum())
        if differ:
            c = step.conv
            shapes = f"x {c.x.shape} w {c.weight.shape} stride {c.stride} pad {c.pad} dilation {c.dilation}"
            behind = f"groups {c.groups} transposed {c.transposed} {step.behind} table {step.table is not None}"
            print(f"{seed}/{i}: {differ} differ: {shapes} {behind}")
        wrong, compared = wrong + differ, compared + step.expected.size
    print(f"{_library.instruction_set()}: {count} convolutions, {compared} integers, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
