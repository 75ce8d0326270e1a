"""Run random convolutions and linear layers with float32 results, and what follows them, on the native library, and
compare the bits with the reference's.

Usage: python -m tests.engines.native.random_float_results COUNT [SEED]
The environment variable INTACT8_ISA chooses the instruction set. Needs numpy and intact8 only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.engines.native.random_convolutions import random_conv

from intact8.engines import get_engine
from intact8.engines.native import _library
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
FUNCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("float.relu", {}),
    ("float.relu", {}),
    ("float.clamp", {"min": 0.0, "max": 6.0}),
    ("float.clamp", {"min": None, "max": 1.0}),
    ("float.leaky_relu", {"slope": 0.1}),
    ("float.unary", {"fn": "silu"}),
    ("float.unary", {"fn": "hardswish"}),
    ("float.affine_scalar", {"mul": 0.5, "add": -1.0}),
)


@dataclass
class Draft:
    """A program in the making."""

    rng: np.random.Generator
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)

    def input(self, shape: Shape) -> str:
        """Add an input of float32."""
        name = f"r{len(self.inputs)}"
        self.tensors[name] = Tensor(name, "float32", shape)
        self.inputs[name] = (self.rng.standard_normal(shape) * 3).astype(np.float32)
        self.inputs[name][self.rng.random(shape) < 0.05] = self.rng.choice([0.0, -0.0, 1e30, np.inf])
        return name

    def alike(self, shape: Shape) -> str:
        """Add floats that lie in memory as results do: where these are images, others that are computed before."""
        at = next(i for i, op in enumerate(self.ops) if op.name == "y")
        if self.ops[at].kind != "dequantized_conv":
            return self.input(shape)
        name, x, rank = f"i{len(self.inputs)}", f"r{len(self.inputs)}", len(shape) - 2
        kernel, stride = int(self.rng.choice([1, 3])), int(self.rng.choice([1, 1, 2]))
        read = (shape[0], int(self.rng.choice([3, 16, 37])), *(stride * (n - 1) + 1 for n in shape[2:]))
        self.tensors[x] = Tensor(x, "uint8", read, 0.05, int(self.rng.integers(0, 256)))
        self.inputs[x] = self.rng.integers(0, 256, read).astype(np.uint8)
        attrs = {"stride": [stride] * rank, "padding": [kernel // 2] * rank, "dilation": [1] * rank}
        attrs |= {"output_padding": [0] * rank}
        weight = self.rng.integers(-127, 128, (shape[1], read[1], *[kernel] * rank)).astype(np.int8)
        arrays = {"weight": weight, "scale": (self.rng.random(shape[1]) * 1e-3).astype(np.float32)}
        if self.rng.random() < 0.5:
            arrays["bias"] = self.rng.standard_normal(shape[1]).astype(np.float32)
        self.tensors[name] = Tensor(name, "float32", shape)
        self.ops.insert(at, Op(name, "dequantized_conv", (x,), attrs | {"groups": 1, "transposed": False}, arrays))
        return name

    def op(self, kind: str, inputs: tuple[str, ...], shape: Shape, attrs: Any = None, arrays: Any = None) -> str:
        """Add an operation with a float32 result."""
        name = f"t{len(self.ops)}"
        self.tensors[name] = Tensor(name, "float32", shape)
        self.ops.append(Op(name, kind, inputs, attrs or {}, arrays or {}))
        return name

    def quantize(self, x: str) -> str:
        """Add a quantization, whose grid has limits that some results leave."""
        name, zero = f"q{len(self.ops)}", int(self.rng.integers(0, 256))
        low, high = (0, 255) if self.rng.random() < 0.5 else sorted(self.rng.integers(0, 256, 2).tolist())
        scale = float(np.float32(self.rng.choice([0.05, 0.25, 0.011, 1e-33])))
        self.tensors[name] = Tensor(name, "uint8", self.tensors[x].shape, scale, zero)
        self.ops.append(Op(name, "quantize", (x,), {"lo": low, "hi": high}, {}))
        return name


def product(d: Draft) -> tuple[str, Shape]:
    """Add a convolution or a linear layer of random geometry; return its result."""
    rng, c = d.rng, random_conv(d.rng)
    linear = rng.random() < 0.2
    arrays: dict[str, Any] = {"weight": c.weight}
    attrs: dict[str, Any] = {}
    x, outputs = c.x, len(c.bias)
    if linear:
        arrays["weight"], x = c.weight.reshape(len(c.weight), -1), np.ascontiguousarray(np.moveaxis(c.x, 1, -1))
        arrays["weight"] = np.ascontiguousarray(arrays["weight"][:, : x.shape[-1]])
        x, outputs = np.ascontiguousarray(x[..., : arrays["weight"].shape[1]]), len(c.weight)
    else:
        attrs = {"stride": c.stride, "padding": c.pad, "dilation": c.dilation, "groups": c.groups}
        attrs |= {"output_padding": c.output_pad, "transposed": c.transposed}
    arrays["scale"] = (rng.random(outputs) * rng.choice([1e-3, 1e-4]) + 1e-6).astype(np.float32)
    if rng.random() < 0.7:
        arrays["bias"] = rng.standard_normal(outputs).astype(np.float32)
    d.tensors["x"] = Tensor("x", "uint8", x.shape, 0.05, c.zero)
    source = "x"
    if not linear and rng.random() < 0.5:  # what is computed lies in memory as convolutions read it
        ones = [1] * (x.ndim - 2)
        pool = {"kernel": ones, "stride": ones, "padding": [0] * len(ones), "dilation": ones, "ceil_mode": False}
        source = "p"
        d.tensors[source] = Tensor(source, "uint8", x.shape, 0.05, c.zero)
        d.ops.append(Op("x", "max_pool", (source,), pool, {}))
    d.inputs[source] = x
    op = Op("y", "dequantized_linear" if linear else "dequantized_conv", ("x",), attrs, arrays)
    alone = Program({"x": d.tensors["x"], "y": Tensor("y", "float32", x.shape)}, (op,), ("x",), ("y",))
    shape = get_engine("reference").prepare(alone)({"x": x})[0].shape
    d.tensors["y"] = Tensor("y", "float32", shape)
    d.ops.append(op)
    return "y", shape


def behind(d: Draft, last: str, shape: Shape) -> str:
    """Add a scaled and shifted tensor, or one of bytes; return the result."""
    rng, channels = d.rng, shape[1]
    if rng.random() < 0.5:
        arrays = {role: rng.standard_normal(channels).astype(np.float32) for role in ("weight", "bias")}
        other = d.op("float.scale_shift", (d.alike(shape),), shape, {}, arrays)
    else:
        name = f"r{len(d.inputs)}"
        d.tensors[name] = Tensor(name, "uint8", shape, 0.05, int(rng.integers(0, 256)))
        d.inputs[name] = rng.integers(0, 256, shape).astype(np.uint8)
        other = d.op("dequantize", (name,), shape)
    return d.op(str(rng.choice(["float.add", "float.sub", "float.mul"])), (last, other), shape)


def draw(rng: np.random.Generator) -> tuple[Program, dict[str, Array]]:
    """Return a program of one product and what follows it, and its inputs."""
    d = Draft(rng)
    last, shape = product(d)
    outputs = []
    if rng.random() < 0.5:
        axis = shape if rng.random() < 0.4 else (1, shape[1], *[1] * (len(shape) - 2))
        pair = last, d.alike(shape) if rng.random() < 0.6 else d.input(axis)
        last = d.op("float.add", pair if rng.random() < 0.5 else pair[::-1], shape)
    if rng.random() < 0.3:
        last = behind(d, last, shape)
    if rng.random() < 0.5:
        kind, attrs = FUNCTIONS[rng.integers(len(FUNCTIONS))]
        last = d.op(kind, (last,), shape, attrs)
    if rng.random() < 0.3:
        outputs.append(last)
    if rng.random() < 0.7:
        outputs.append(d.quantize(last))
    if rng.random() < 0.2:
        outputs.append(d.op("float.affine_scalar", (last,), shape, {"mul": 2.0, "add": 1.0}))
    outputs = outputs or [last]
    return Program(d.tensors, tuple(d.ops), tuple(d.inputs), tuple(outputs), structure=0), d.inputs


def bits(x: Array) -> Array:
    """Return an array's bytes, those of any NaN the same."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32) if x.dtype == np.float32 else x


def main(count: int, seed: int = 0) -> int:
    """Run that many random programs; return the number of elements that differ."""
    wrong = compared = 0
    for i in range(count):
        program, inputs = draw(np.random.default_rng([seed, i]))
        expected = get_engine("reference").prepare(program)(inputs)
        native = get_engine("native").prepare(program, threads=1 + i % 2)
        found = native(inputs)
        assert not native.numpy_operations, native.numpy_operations
        for name, y, other in zip(program.outputs, expected, found, strict=True):
            differ = int((bits(y) != bits(other)).sum())
            if differ:
                kinds = [(op.kind, dict(op.attrs), op.inputs) for op in program.ops]
                print(f"{seed}/{i}: {differ} of {y.size} differ in {name} {y.shape}: {kinds}")
            wrong, compared = wrong + differ, compared + y.size
    print(f"{_library.instruction_set()}: {count} programs, {compared} results, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
