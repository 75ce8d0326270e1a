"""An ONNX graph in the making: nodes, constants and their names, one program op at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from intact.errors import EngineError
from intact.program.ops import Op, Tensor

CONTRIB = "com.microsoft"

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

SHARED = 64
"""Constants of up to this many bytes are stored once and shared between nodes."""


class Builder:
    """Collects the nodes and initializers of a graph.

    Rules add nodes under names of their own; the value an op ends in then gets the op's name, so that every tensor of
    the program keeps its name in the file.

    Args:
        tensors: the program's tensors.
        contrib: whether operators of ONNX Runtime's own domain may be used.
        batch: name of an input whose dimension 0 is the dynamic batch size, None without one.
        forms: op name → name in ``onnx_tables.FORMS``, for tables that need no lookup.
    """

    def __init__(
        self, tensors: dict[str, Tensor], *, contrib: bool, batch: str | None, forms: Mapping[str, str] | None = None
    ) -> None:
        self.tensors, self.contrib, self.batch = tensors, contrib, batch
        self.forms = forms or {}
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._used = set(tensors)
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._scope, self._first = "", 0

    def begin(self, op: Op) -> None:
        """Nodes that follow belong to ``op``."""
        self._scope, self._first = op.name, len(self.nodes)

    def finish(self, op: Op, value: str) -> None:
        """Give ``value``, made since :meth:`begin`, the op's name; a value from outside is passed through Identity."""
        made = self.nodes[self._first :]
        if not any(value in node.output for node in made):
            self.nodes.append(helper.make_node("Identity", [value], [op.name], name=op.name))
            return
        for node in made:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == value:
                        names[i] = op.name
        for node in made:
            if op.name in node.output:
                node.name = op.name

    def node(self, kind: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Add a node with one output; returns the output's name."""
        name = self._fresh(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attrs))
        return name

    def constant(self, value: Any, role: str) -> str:
        """An initializer; small ones that are equal are shared. ``value`` must have its final numpy dtype."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (array.dtype.name, array.shape, array.tobytes() if array.nbytes <= SHARED else b"")
        if array.nbytes <= SHARED and key in self._shared:
            return self._shared[key]
        name = self._fresh(role)
        if array.nbytes <= SHARED:
            self._shared[key] = name
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, values: Sequence[int], role: str) -> str:
        """An int64 vector."""
        return self.constant(np.array(values, np.int64), role)

    def float(self, value: Any, role: str = "factor") -> str:
        """A float32 constant, rounded once from ``value``."""
        return self.constant(np.asarray(value, np.float32), role)

    def byte(self, value: int, role: str = "zero_point") -> str:
        """A uint8 scalar."""
        return self.constant(np.uint8(value), role)

    def cast(self, value: str, dtype: str) -> str:
        """``value`` as ``dtype`` (numpy name)."""
        return self.node("Cast", [value], to=ONNX_TYPES[dtype])

    def steps(self, value: str, zero_point: int, scale: Any = 1.0) -> str:
        """(value − zero_point)·scale in float32: exact integers for scale 1."""
        return self.node("DequantizeLinear", [value, self.float(scale, "scale"), self.byte(zero_point)])

    def quantized(self, value: str, zero_point: int, lo: int, hi: int, scale: Any = 1.0) -> str:
        """clamp(R(value / scale) + zero_point, lo, hi), uint8."""
        q = self.node("QuantizeLinear", [value, self.float(scale, "scale"), self.byte(zero_point)])
        return self.clipped(q, lo, hi)

    def clipped(self, value: str, lo: int, hi: int) -> str:
        """clamp(value, lo, hi) of uint8; nothing where the type's own limits do it."""
        if (lo, hi) == (0, 255):
            return value
        return self.node("Clip", [value, self.byte(lo, "lo"), self.byte(hi, "hi")])

    def shaped(self, value: str, shape: Sequence[int | None]) -> str:
        """``value`` in a shape with at most one unknown dimension."""
        if sum(d is None for d in shape) > 1:
            raise EngineError(
                f"the shape {tuple(shape)} has several unknown dimensions", where=self._scope,
                why="ONNX's Reshape finds out one", remedy="fix all sizes but the batch",
            )  # fmt: skip
        return self.node("Reshape", [value, self.ints([-1 if d is None else d for d in shape], "shape")])

    def _fresh(self, role: str) -> str:
        name, count = f"{self._scope}/{role}", 1
        while name in self._used:
            count += 1
            name = f"{self._scope}/{role}_{count}"
        self._used.add(name)
        return name


def zero(t: Tensor) -> int:
    """Zero point of a quantized tensor."""
    assert t.zero_point is not None  # the checker has seen to it
    return t.zero_point


def reach(t: Tensor) -> int:
    """Largest |x − z|."""
    return max(zero(t), 255 - zero(t))
