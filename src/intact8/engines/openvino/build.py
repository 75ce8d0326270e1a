"""A program becomes an OpenVINO model for one batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.arithmetic.dimensions import known
from intact8.opset.op import Array, Op
from intact8.program.program import Program

from ..reference import evaluate
from ..shapes import sized
from . import input_quantize, nonfinite, scale_assignment
from .compile import refusals
from .execution_graph import END, FLOAT_PRODUCT
from .lowering import OpContext, Value, dequantized, fusion_barrier, port
from .lowerings import lowering
from .plan import Feeds, Plan, sources, truncates

PRODUCTS = frozenset({"conv", "linear", "matmul"})
"""Kinds that one of OpenVINO's kernels of products is to compute, which is checked."""

ELEMENTS = frozenset({"add", "mul", "mean"})
"""Kinds whose arithmetic and rounding are looked for in what is executed."""

WINDOWS = frozenset({"avg_pool", "adaptive_avg_pool"})
"""Kinds that run as convolutions; of these and of products the rounding is looked for."""


@dataclass(frozen=True)
class Output:
    """How a result of the model is read.

    Attributes:
        name: of the program's tensor.
        scale: integers are R(value / scale) + zero_point; None where the tensor is not quantized.
        zero_point: 0 where the tensor is not quantized.
        truncated: numpy casts float32 to int64.
    """

    name: str
    scale: float | None
    zero_point: int
    truncated: bool = False


@dataclass(frozen=True)
class Built:
    """A model with what it takes and gives.

    Attributes:
        model: static shapes, one parameter per entry of ``inputs``.
        inputs: names of program tensors: inputs, fed tensors, and what ``sources`` give.
        outputs: one per result.
        sources: those of ``inputs`` that are computed before.
        batch: size of the batch.
        channels_last: those of ``inputs`` that are given with channels last.
        products: names of the products that int8 kernels are to compute.
        checked: names inside the model of what multiplies or rounds → the op each belongs to, and the kind of what is
            evaluated there (see ``Node.evaluates``).
    """

    model: Any
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    sources: Mapping[str, Op]
    batch: int
    channels_last: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
    checked: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def build(plan: Plan, batch: int, wanted: Iterable[str], feeds: Feeds) -> Built:
    """Build the model that computes ``wanted``.

    Args:
        plan: of the program.
        batch: what stands for None in shapes.
        wanted: names of tensors to give, none of them fed.
        feeds: what else the caller gives.

    Raises:
        EngineError: OpenVINO cannot express an op; names it.
    """
    return _Builder(plan, batch, feeds).build(list(wanted))


def label(index: int) -> str:
    """Return the name, inside models, of the op of that index."""
    return f"op{index}"


class _Builder:
    def __init__(self, plan: Plan, batch: int, feeds: Feeds) -> None:
        self._plan, self._batch, self._fed = plan, batch, feeds.fed
        self._program = sized(plan.program, batch)
        self._labels = {op.name: label(i) for i, op in enumerate(self._program.ops)}
        self._reduced = scale_assignment.reduced(self._program)
        self._values: dict[str, Value] = {}
        self._constants: dict[str, Array] = {}
        self._parameters: dict[str, Any] = {}
        self._sources = {op.name: op for op in sources(plan, feeds)}
        last = feeds.channels_last
        self._channels_last = frozenset(name for name, op in self._sources.items() if op.inputs[0] in last)

    def build(self, wanted: list[str]) -> Built:
        program = self._program
        needed = _needed(program, wanted, self._fed | self._sources.keys())
        ops = [op for op in program.ops if op.name in needed]
        for name in program.inputs:
            if name in needed:
                self._parameter(name)
        for op in ops:
            self._values[op.name] = self._value(op)
        casts = {op.name: op.inputs[0] for op in ops if truncates(op, program)}
        results = [ov.result(self._values[casts.get(name, name)].port) for name in wanted]
        values = [self._values[name] for name in wanted]
        model = openvino.Model(results, list(self._parameters.values()), "intact8")
        given = self._parameters.keys() | self._constants.keys()
        computed = frozenset(op.name for op in ops if op.kind in PRODUCTS) - given
        return Built(
            model=model,
            inputs=tuple(self._parameters),
            outputs=tuple(Output(n, v.scale, v.zero_point, n in casts) for n, v in zip(wanted, values, strict=True)),
            sources=self._sources,
            batch=self._batch,
            channels_last=self._channels_last,
            products=computed - self._plan.float_products,
            checked=self._checked(model),
        )

    def _checked(self, model: Any) -> dict[str, tuple[str, str]]:
        names = {node.get_friendly_name() for node in model.get_ops()}
        found: dict[str, tuple[str, str]] = {}
        for op in self._program.ops:
            if op.kind in ELEMENTS | PRODUCTS | WINDOWS:
                found[self._labels[op.name] + END] = op.name, op.kind
            if op.kind in ELEMENTS:
                found[self._labels[op.name]] = op.name, op.kind
            elif op.name in self._plan.float_products:
                found[self._labels[op.name]] = op.name, FLOAT_PRODUCT
        return {name: what for name, what in found.items() if name in names}

    def _value(self, op: Op) -> Value:
        if op.name in self._fed or op.name in self._sources:
            return self._parameter(op.name)
        plan, tensors = self._plan, self._program.tensors
        op = self._folded(op)
        if op.kind != "constant" and op.name in plan.divided:
            return self._divided(op)
        if op.kind == "dequantize":
            op = replace(op, attrs={"scale": tensors[op.inputs[0]].scale})
        ctx = OpContext(
            op=op,
            label=self._labels[op.name],
            inputs=tuple(self._values[name] for name in op.inputs),
            out=tensors[op.name],
            scale=plan.scales.get(op.name, 1.0),
            rounded=op.name in plan.rounded | plan.float_products,
            float_product=op.name in plan.float_products,
            nonfinite=not plan.nonfinite.isdisjoint(op.inputs),
        )
        with refusals(f"OpenVINO refuses this {op.kind}", op.name):
            make = lowering(op)
            assert make is not None
            value = make(ctx)
        # What computes a mean also takes in constants behind it, and reads them wrongly.
        return replace(value, port=fusion_barrier(value.port)) if op.name in self._reduced else value

    def _folded(self, op: Op) -> Op:
        """Return the constant that an operation on constants alone gives, or else the operation itself.

        OpenVINO (2026.4) reads integers at other places where slices of a constant that it folded meet an input.
        """
        if op.kind == "constant":
            self._constants[op.name] = op.arrays["value"]
        if not op.inputs or not self._constants.keys() >= set(op.inputs):
            return op
        tensors, args = self._program.tensors, [self._constants[name] for name in op.inputs]
        value = evaluate(op, args, [tensors[name] for name in op.inputs], tensors[op.name], self._batch)
        if value.shape != tuple(tensors[op.name].shape):
            return op  # it repeats a constant for every sample
        self._constants[op.name] = value
        return Op(op.name, "constant", (), arrays={"value": value})

    def _divided(self, op: Op) -> Value:
        """Return what a ``quantize`` op gives that the model evaluates by a division."""
        grid, source = input_quantize.Grid.of(op, self._program), op.inputs[0]
        x = self._values[source].port
        if source not in self._program.inputs:
            x = nonfinite.replaced(x, -np.inf) if source in self._plan.nonfinite else fusion_barrier(x)
        return dequantized(input_quantize.divided(x, grid), grid.zero, self._plan.scales[op.name])

    def _parameter(self, name: str) -> Value:
        t, last = self._program.tensors[name], name in self._channels_last
        shape = known(t.shape)
        parameter = ov.parameter([shape[0], *shape[2:], shape[1]] if last else shape, np.dtype(t.dtype).type)
        parameter.set_friendly_name(f"input{len(self._parameters)}")  # which is the label of no op
        self._parameters[name] = parameter
        q = port(parameter)
        value = dequantized(q, int(t.zero_point or 0), self._plan.scales[name]) if t.quantized else Value(q)
        if last:  # moves nothing: OpenVINO's own order in memory is this one
            order = np.array([0, len(shape) - 1, *range(1, len(shape) - 1)])
            value = replace(value, port=port(ov.transpose(value.port, order)))
        self._values[name] = value
        return value


def _needed(program: Program, wanted: Iterable[str], given: Iterable[str]) -> set[str]:
    """Return every tensor ``wanted`` depends on; nothing behind ``given``."""
    given = set(given)
    inputs = {op.name: op.inputs for op in program.ops if op.name not in given}
    needed: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name not in needed:
            needed.add(name)
            queue += inputs.get(name, ())
    return needed
