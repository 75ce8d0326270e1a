"""An ONNX graph in the making: nodes, constants and their names, one program op at a time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from intact8.arithmetic.dimensions import Dim, Size, is_name, read
from intact8.errors import EngineError
from intact8.opset.kind import UNKNOWN, Interval, zero_point
from intact8.opset.op import Op, Tensor

CONTRIB = "com.microsoft"

Made = TypeVar("Made")

ONNX_TYPES: dict[str, int] = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bool": TensorProto.BOOL,
}
"""numpy dtype name → ONNX element type."""

MOVING = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze"})
"""Kinds of nodes that ONNX Runtime exchanges with a quantization behind them."""

SHARED = 64
"""Constants of up to this many bytes are stored once and shared between nodes."""


Choice = tuple[str, bool]
"""How a table is computed: the name of a form, and whether its result has to be clamped to what the table reaches."""


@dataclass(eq=False, repr=False)
class Builder:
    """Collects the nodes and initializers of a graph.

    Rules add nodes under names of their own; the value an op ends in then gets the op's name, so that every tensor of
    the program keeps its name in the file.

    Attributes:
        tensors: the program's tensors.
        contrib: whether operators of ONNX Runtime's own domain may be used.
        places: name of a dimension that changes (None: the batch) → an input, the dimension of it that tells the size,
            how many times it has that size, and the number that is added.
        forms: op name → how a table is computed that needs no lookup, see ``onnx_tables.choose``.
        byte_extremes: whether Max and Min take uint8.
        given: inputs of the program.
        nan_is_least: whether QuantizeLinear turns NaN into the least integer.
        unproved: embeddings whose indices may lie outside of their table → its rows.
        special: tensors that may hold NaN or infinity, see ``intact8.program.nonfinite``.
        intervals: int64 tensors → the least and largest value they may hold, where it is known.
        shapes: uint8 value that is not a tensor of the program → the op it belongs to, and its shape: where ONNX
            Runtime needs to be told.
        scope: the op that nodes belong to now.
    """

    tensors: dict[str, Tensor]
    contrib: bool
    places: Mapping[str | None, tuple[str, int, int, int]]
    forms: Mapping[str, Choice] = field(default_factory=dict)
    byte_extremes: bool = False
    given: Collection[str] = ()
    nan_is_least: bool = False
    unproved: Mapping[str, int] = field(default_factory=dict)
    special: Collection[str] = ()
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list, init=False)
    initializers: list[Any] = field(default_factory=list, init=False)
    shapes: dict[str, tuple[str, tuple[Dim, ...]]] = field(default_factory=dict, init=False)
    scope: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._first, self._used = 0, set(self.tensors)
        self._sizes: dict[str | None, str] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._made: dict[Hashable, Any] = {}

    def is_small(self, name: str) -> bool:
        """Return whether a tensor of integers is known to hold none from 2³¹ on."""
        return max(map(abs, self.intervals.get(name, UNKNOWN))) < 1 << 31

    def begin(self, op: Op) -> None:
        """Let the nodes that follow belong to ``op``."""
        self.scope, self._first = op.name, len(self.nodes)

    def set_apart(self, outputs: Collection[str]) -> None:
        """Give these outputs a value of their own where a node that moves values reads them.

        ONNX Runtime's transpose optimizer moves a quantization past such a node and writes what it rounded to the
        output, too (seen in 1.31, with ``disable_quant_qdq``).
        """
        read = {n for node in self.nodes if node.op_type in MOVING for n in node.input}
        inside = {name: self._fresh(name, "inside") for name in outputs if name in read}
        _rename(self.nodes, inside)
        for name, value in inside.items():
            self.nodes.append(helper.make_node("Identity", [value], [name], name=self._fresh(name, "apart")))

    def finish(self, op: Op, value: str) -> None:
        """Give ``value``, made since :meth:`begin`, the op's name; a value from outside is passed through Identity."""
        made = self.nodes[self._first :]
        if not any(value in node.output for node in made):
            self.nodes.append(helper.make_node("Identity", [value], [op.name], name=op.name))
            return
        _rename(made, {value: op.name})
        self._made = {key: op.name if known == value else known for key, known in self._made.items()}
        for node in made:
            if op.name in node.output:
                node.name = op.name

    def index(self, op: Op, x: str) -> str:
        """Return the indices of an embedding's rows. Gather counts negative ones from the end, so they become one it
        refuses."""
        if op.name not in self.unproved:
            return x
        rows, nothing = self.constant(np.int64(self.unproved[op.name]), "rows"), self.constant(np.int64(0), "nothing")
        return self.node("Where", [self.node("Less", [x, nothing]), rows, x])

    def transpose_input(self, name: str) -> None:
        """Let every node made so far read the images of input ``name`` with the channels moved from the end."""
        moved = self._fresh(name, "NCHW")
        _rename(self.nodes, {name: moved})
        self.nodes.insert(0, helper.make_node("Transpose", [name], [moved], name=moved, perm=[0, 3, 1, 2]))

    def node(self, kind: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Add a node with one output; returns the output's name."""
        name = self.value(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attrs))
        return name

    def second(self, kind: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Add a node with two outputs; returns the name of the second."""
        names = [self.value(kind), self.value(kind + "_index")]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attrs))
        return names[1]

    def value(self, role: str) -> str:
        """Return an unused name for a value of the op that nodes belong to now."""
        return self._fresh(self.scope, role)

    @contextmanager
    def body(self) -> Iterator[list[Any]]:
        """Collect the nodes of this block in a list of their own, the body of a loop; constants go to the graph."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of ``make()`` at the first request of ``key``, for values that several ops read."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def constant(self, value: Any, role: str) -> str:
        """Return an initializer; small ones that are equal are shared. ``value`` must have its final numpy dtype."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (array.dtype.name, array.shape, array.tobytes() if array.nbytes <= SHARED else b"")
        if array.nbytes <= SHARED and key in self._shared:
            return self._shared[key]
        name = self.value(role)
        if array.nbytes <= SHARED:
            self._shared[key] = name
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def add_bias(self, op: Op, value: str) -> str:
        """Build ``value`` plus the op's array ``bias``, if it has one."""
        return self.node("Add", [value, self.constant(op.arrays["bias"], "bias")]) if "bias" in op.arrays else value

    def nan_where(self, condition: str, value: str) -> str:
        """Build ``value``, and NaN where the condition holds."""
        return self.node("Where", [condition, self.float(np.nan, "nan"), value])

    def positive(self, value: str) -> str:
        """Where a float32 value is greater than 0."""
        return self.node("Greater", [value, self.float(0.0, "nothing")])

    def ints(self, values: Sequence[int], role: str) -> str:
        """Return an int64 vector."""
        return self.constant(np.array(values, np.int64), role)

    def float(self, value: Any, role: str = "factor") -> str:
        """Return a float32 constant, rounded once from ``value``."""
        return self.constant(np.asarray(value, np.float32), role)

    def byte(self, value: int, role: str = "zero_point") -> str:
        """Return a uint8 scalar."""
        return self.constant(np.uint8(value), role)

    def cast(self, value: str, dtype: str) -> str:
        """Build ``value`` as ``dtype`` (numpy name)."""
        return self.node("Cast", [value], to=ONNX_TYPES[dtype])

    def steps(self, value: str, zero_point: int, scale: Any = 1.0) -> str:
        """Build (value − zero_point)·scale in float32: exact integers for scale 1."""
        return self.node("DequantizeLinear", [value, self.float(scale, "scale"), self.byte(zero_point)])

    def operand(self, value: str, t: Tensor, scale: Any = 1.0) -> list[str]:
        """Return what a quantized operator takes for an input: value, scale in steps of the output, zero point."""
        return [value, self.float(scale, "scale"), self.byte(zero_point(t))]

    def grid(self, t: Tensor, scale: Any = 1.0) -> list[str]:
        """Return what a quantized operator takes for its output: scale and zero point."""
        return [self.float(scale, "scale"), self.byte(zero_point(t))]

    def weights(self, w: Any, scale: Any) -> list[str]:
        """Return what a quantized operator takes for int8 weights: values, multipliers, zero points of 0."""
        zeros = self.constant(np.zeros(np.shape(scale), np.int8), "weight_zero_point")
        return [self.constant(np.ascontiguousarray(w), "weight"), self.float(scale, "multiplier"), zeros]

    def result(self, op: Op, value: str, y: Tensor) -> str:
        """Build clamp(R(value) + zero point, lo, hi) of the output ``y`` of ``op``."""
        return self.quantized(value, zero_point(y), op.attrs["lo"], op.attrs["hi"])

    def clamped(self, op: Op, value: str) -> str:
        """Build ``value``, uint8, within the limits of ``op``."""
        return self.clipped(value, op.attrs["lo"], op.attrs["hi"])

    def quantized(self, value: str, zero_point: int, lo: int, hi: int, scale: Any = 1.0) -> str:
        """Build clamp(R(value / scale) + zero_point, lo, hi), uint8."""
        q = self.node("QuantizeLinear", [value, self.float(scale, "scale"), self.byte(zero_point)])
        return self.clipped(q, lo, hi)

    def clipped(self, value: str, lo: int, hi: int) -> str:
        """Build clamp(value, lo, hi) of uint8; nothing where the type's own limits do it."""
        if (lo, hi) == (0, 255):
            return value
        return self.node("Clip", [value, self.byte(lo, "lo"), self.byte(hi, "hi")])

    def largest(self, values: Sequence[str], dtype: str) -> str:
        """Return the largest of ``values``, element by element.

        ONNX Runtime's Max knows no uint8 before 1.24, and compares the lower 32 bits of int64 only.
        """
        return self._extreme("Max", values, dtype)

    def smallest(self, values: Sequence[str], dtype: str) -> str:
        """Return the smallest of ``values``, see :meth:`largest`."""
        return self._extreme("Min", values, dtype)

    def _extreme(self, kind: str, values: Sequence[str], dtype: str) -> str:
        if dtype == "int64":
            further = {"Max": "Greater", "Min": "Less"}[kind]
            return functools.reduce(lambda a, b: self.node("Where", [self.node(further, [a, b]), a, b]), values)
        if dtype != "uint8" or self.byte_extremes:
            return self.node(kind, values)
        return self.cast(self.node(kind, [self.cast(value, "int32") for value in values]), dtype)

    def shaped(self, value: str, shape: Sequence[Dim]) -> str:
        """Build ``value`` in a shape with at most one dimension that is a multiple of the batch."""
        if sum(d is None for d in shape) > 1:
            what, why = f"the shape {tuple(shape)} has several unknown dimensions", "ONNX's Reshape finds out one"
            raise EngineError(what, where=self.scope, why=why, remedy="fix all sizes but the batch")
        return self.node("Reshape", [value, self.vector([-1 if d is None else d for d in shape], "shape")])

    def span(self, start: int, end: int) -> list[str]:
        """Return where a slice begins and ends."""
        return [self.ints([start], "start"), self.ints([end], "end")]

    def vector(self, sizes: Sequence[Dim], role: str) -> str:
        """Return an int64 vector of sizes; the model reads named dimensions and None (the batch) from its inputs."""
        if all(isinstance(d, int) for d in sizes):
            return self.ints([d for d in sizes if isinstance(d, int)], role)
        parts: list[str] = []
        for known, run in itertools.groupby(sizes, key=lambda d: isinstance(d, int)):
            group = list(run)
            parts += [self.ints([d for d in group if isinstance(d, int)], role)] if known else map(self._size, group)
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, axis=0)

    def _size(self, dim: Dim) -> str:
        """Return a size that the model reads from an input, as a vector of one element."""
        assert not isinstance(dim, int)
        if dim not in self._sizes and dim is not None and not is_name(dim):
            self._sizes[dim] = self._computed(read(dim))
        if dim not in self._sizes:
            if dim not in self.places:
                what, why = "cannot find the batch size", "no input has a dynamic batch dimension"
                raise EngineError(what, where=self.scope, why=why, remedy="convert the model again")
            name, axis, times, more = self.places[dim]
            shape = self.node("Shape", [name])
            size = self.node("Slice", [shape, self.ints([axis], "from"), self.ints([axis + 1], "to")])
            size = self.node("Sub", [size, self.ints([more], "more")]) if more else size
            self._sizes[dim] = self.node("Div", [size, self.ints([times], "times")]) if times != 1 else size
        return self._sizes[dim]

    def _computed(self, size: Size) -> str:
        """Return a size that is computed of others, as a vector of one element."""
        parts: list[str] = []
        for product, times in size.terms:
            factors = [self.ints([times], "times")] if times != 1 else []
            for factor in product:
                if isinstance(factor, str):
                    factors.append(self._size(factor))
                else:  # of a number that is not negative, so that both ways of rounding are one
                    factors.append(self.node("Div", [self._computed(factor.of), self.ints([factor.by], "by")]))
            parts.append(functools.reduce(lambda a, b: self.node("Mul", [a, b]), factors))
        parts += [self.ints([size.number], "more")] if size.number else []
        return functools.reduce(lambda a, b: self.node("Add", [a, b]), parts)

    def _fresh(self, scope: str, role: str) -> str:
        name, count = f"{scope}/{role}", 1
        while name in self._used:
            count += 1
            name = f"{scope}/{role}_{count}"
        self._used.add(name)
        return name


def _rename(nodes: Sequence[Any], new: Mapping[str, str]) -> None:
    """Give values other names wherever these nodes read or write them."""
    for node in nodes:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name in new:
                    names[i] = new[name]


def reach(t: Tensor) -> int:
    """Return the largest |x − z|."""
    return max(zero_point(t), 255 - zero_point(t))


def spatial_size(t: Tensor) -> list[int]:
    """Return the sizes of the dimensions behind batch and channels.

    Raises:
        EngineError: one of them is only known when the network runs.
    """
    if named := [d for d in t.shape[2:] if isinstance(d, str)]:
        what, why = f"this operation needs a fixed size of {named[0]}", "its ONNX form has weights for every place"
        raise EngineError(what, where=t.name, why=why, remedy="use engine='native', or leave it out of dynamic_shapes")
    return [int(d or 0) for d in t.shape[2:]]


Rule = Callable[[Builder, Op, list[str], list[Tensor], Tensor], str]
"""Adds the nodes of one operation: (builder, operation, names of its inputs, their descriptions, its output) → name."""
