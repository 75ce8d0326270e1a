"""What a tensor of a program is inside an OpenVINO model, and the few node patterns everything is made of.

A quantized tensor is float32 there: real = (q − zero point)·scale. OpenVINO's low precision transformations find the
FakeQuantize nodes and the dequantization patterns below and run the uint8 integers q instead. Scales inside the model
need not be the program's: one multiplier a/b of an op is all that matters, and it is put, whole, into the weights or
into the input range of the FakeQuantize that follows. So most scales are exactly 1, and where they are not they save a
multiplication (see ``scale_assignment``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from openvino import opset14 as ov

from intact8.engines.openvino.execution_graph import END
from intact8.opset.op import Array, Op, Tensor

if TYPE_CHECKING:
    pass

Port = Any
"""An ``openvino.Output``: one tensor of the model."""

LEVELS = 256

RELU = frozenset({"conv", "linear", "add"})
"""Kinds whose clamp may be a Relu: OpenVINO (2026.4) gets a Relu after a mean in three dimensions wrong."""


@dataclass(frozen=True)
class Value:
    """A tensor of the program in the model.

    Attributes:
        port: float32 for quantized tensors, the tensor's own dtype otherwise.
        scale: real value of one integer step inside the model; None where the tensor is not quantized.
        zero_point: 0 where the tensor is not quantized.
    """

    port: Port
    scale: float | None = None
    zero_point: int = 0

    @property
    def shape(self) -> list[int]:
        """The shape, batch included."""
        return [int(d) for d in self.port.get_shape()]

    @property
    def step(self) -> float:
        """The scale of a quantized tensor."""
        assert self.scale is not None
        return self.scale


@dataclass(frozen=True)
class OpContext:
    """An op where it is built: its inputs' values and what its output must become.

    Attributes:
        op: the operation.
        label: name of the node that stands for it inside the model; OpenVINO joins and splits such names, so it is not
            the op's own.
        inputs: one value per input.
        out: the output tensor, its shape that of this batch.
        scale: the scale chosen for the output inside the model (1.0 where it is not quantized).
        rounded: a Round stands before the FakeQuantize (see ``scale_assignment.rounded``).
        float_product: compute with integer weights in float32 instead of leaving the op to int8 kernels.
        nonfinite: an input may hold NaN or infinity (see ``intact8.program.nonfinite``).
    """

    op: Op
    label: str
    inputs: tuple[Value, ...]
    out: Tensor
    scale: float = 1.0
    rounded: bool = False
    float_product: bool = False
    nonfinite: bool = False

    @property
    def z(self) -> int:
        """The output's zero point."""
        return int(self.out.zero_point or 0)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer of the result."""
        return int(self.op.attrs["lo"]), int(self.op.attrs["hi"])


def port(node: Any) -> Port:
    """Return the only output of a node."""
    return node.output(0)


def named(x: Port, name: str) -> Port:
    """Build x, whose node is called so: what is executed is told by these names (see ``execution_graph``)."""
    x.get_node().set_friendly_name(name)
    return x


def scalar(value: float) -> Port:
    """Return a float32 constant without dimensions."""
    return port(ov.constant(np.float32(value)))


def constant(values: Any) -> Port:
    """Return a float32 constant."""
    return port(ov.constant(np.asarray(values, np.float32, order="C")))


def ints(values: object) -> Port:
    """Return an int64 constant."""
    return port(ov.constant(np.asarray(values, np.int64)))


def shaped(x: Port, shape: Sequence[int | str | None]) -> Port:
    """Build x in a shape of as many elements, and x itself where it has that shape."""
    if list(x.get_shape()) == list(shape):
        return x
    return port(ov.reshape(x, ints(shape), False))


def fusion_barrier(x: Port) -> Port:
    """Build x without NaN, behind a node that OpenVINO's kernels do not take in; nor do they take in what follows it.

    A Maximum that changes nothing. What a kernel does take in (2026.4) is not what was asked for in two cases: behind
    a Reduce, constants along a dimension, and any constant divisor, are read at the places of other dimensions; and
    behind a product, a Reduce or a normalization, a division by a constant is a multiplication with 1/constant.
    """
    dtype = x.get_element_type().to_dtype()
    least = np.array(-np.inf if dtype == np.float32 else -(1 << 24), dtype)
    return port(ov.maximum(x, ov.constant(least)))


def times(x: Port, factor: float) -> Port:
    """Build x·factor, and x itself where the factor is 1."""
    return x if factor == 1.0 else port(ov.multiply(x, scalar(factor)))


def whole(x: Port, scale: float = 1.0) -> Port:
    """Return the integers x / scale, behind a Round that changes nothing and that no pass of OpenVINO's moves factors
    across.

    Without it a factor behind a product in float32 (2026.4) is put into the weights, which are no integers then, and
    factors of integers into what follows.
    """
    return port(ov.round(times(x, 1.0 / scale), "half_to_even"))


def unscaled(x: Value) -> Port:
    """Build x − z as float32 integers."""
    return x.port if x.step == 1.0 else whole(x.port, x.step)


def integers(x: Value) -> Port:
    """Return the integers q of a quantized tensor, as float32."""
    y = times(x.port, 1.0 / x.step)
    return port(ov.round(port(ov.add(y, scalar(x.zero_point))) if x.zero_point else y, "half_to_even"))


def unsigned(x: Value) -> Port:
    """Return the integers q as uint8, where OpenVINO knows nothing of the scale they came with."""
    return port(ov.convert(integers(x), np.uint8))


def dequantized(q: Port, zero: int, scale: float) -> Value:
    """Build uint8 integers as (q − z)·scale, in the form the low precision transformations read as "these are
    uint8"."""
    x = port(ov.convert(q, np.float32))
    if zero:
        x = port(ov.subtract(x, scalar(zero)))
    return Value(port(ov.multiply(x, scalar(scale))), scale, zero)


def requantized(ctx: OpContext, x: Port, step: float) -> Value:
    """Build clamp(R(x / step) + z, lo, hi), as (q − z)·scale.

    Args:
        ctx: of the op.
        x: float32, the result before rounding, minus z.
        step: how much of ``x`` one output integer is.
    """
    z, scale = ctx.z, ctx.scale
    lo, hi = ctx.limits
    if ctx.rounded:
        x, step = named(port(ov.round(times(x, 1.0 / step), "half_to_even")), ctx.label + END), 1.0
    if lo > 0 or hi < LEVELS - 1:
        # The ends are integers, so clamping before rounding gives the same. Beyond them FakeQuantize clamps by itself.
        x = clamped(x, z, lo, hi, step, relu=ctx.op.kind in RELU)
    y = fake_quantize(x, z, step, scale)
    return Value(y if ctx.rounded else named(y, ctx.label + END), scale, z)


def clamped(x: Port, z: int, lo: int, hi: int, step: float, *, relu: bool) -> Port:
    """Build x between lo and hi, as a Relu where that is enough and allowed."""
    if relu and lo == z and hi == LEVELS - 1:
        return port(ov.relu(x))
    return port(ov.clamp(x, (lo - z) * step, (hi - z) * step))


def fake_quantize(x: Port, z: int, step: float, scale: float) -> Port:
    """Build R(x/step) + z, saturated to uint8, as (q − z)·scale."""
    low, top = -z, LEVELS - 1 - z
    ends = [scalar(v) for v in (low * step, top * step, low * scale, top * scale)]
    return port(ov.fake_quantize(x, *ends, LEVELS))


def ratios(a: Any, b: Any) -> Array:
    """Build a/b in float64."""
    return np.asarray(a, np.float64) / np.asarray(b, np.float64)
