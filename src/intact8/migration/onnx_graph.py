"""ONNX files as plain graphs: read with limits, without onnx's classes afterwards."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.errors import EngineError, InputError, in_short
from intact8.regular_file import opened

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]

LARGEST_FILE = (1 << 31) - 1
"""Bytes a protocol buffer can have."""

MOST_NODES = 100_000
DOMAINS = ("", "ai.onnx", "com.microsoft")
QUANTIZED_TYPES = ("uint8", "int8")


@dataclass(frozen=True)
class Node:
    """One operator.

    Attributes:
        name: unique.
        kind: operator of ONNX, whichever file it came from.
        inputs: names of tensors; "" where an optional one is missing.
        outputs: names of tensors.
        attrs: plain values and arrays.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignGraph:
    """A network in operators of ONNX.

    Attributes:
        tool: what made it, for reports.
        nodes: in order of execution.
        constants: name → array.
        inputs: name → numpy dtype and shape; None where a size may change.
        outputs: names.
    """

    tool: str
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: Mapping[str, tuple[str, Shape]]
    outputs: tuple[str, ...]


def read_onnx(path: Path) -> ForeignGraph:
    """Read an ONNX file, and external data beside it.

    Raises:
        EngineError: onnx is not installed.
        InputError: the file is damaged, too large, or asks for data outside of its folder.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError as error:
        remedy = "pip install 'intact8[onnx]'"
        raise EngineError("onnx is not installed", where=str(path), remedy=remedy) from error
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size > LARGEST_FILE:
            raise InputError("the file is too large for ONNX", where=str(path), why="protocol buffers end at 2 GiB")
        content = stream.read()
    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise InputError("this is no ONNX file, or a damaged one", where=str(path), why=in_short(error)) from error
    graph = model.graph
    if not model.ir_version and not graph.node:  # protocol buffers read many bytes as nothing but unknown fields
        why = "it has neither a version nor a graph"
        raise InputError("this is no ONNX file, or a damaged one", where=str(path), why=why)
    if len(graph.node) > MOST_NODES:
        raise InputError(f"{len(graph.node)} nodes", where=str(path), why=f"{MOST_NODES} are read at most")
    names = [x.name for part in (graph.initializer, graph.input, graph.output) for x in part]
    names += [text for n in graph.node for text in (n.name, n.op_type, n.domain, *n.input, *n.output)]
    if not all(isinstance(name, str) for name in names):  # protobuf gives bytes where they are not UTF-8
        raise InputError("a name in the file is no text", where=str(path), remedy="repair the file")
    constants = {t.name: _array(t, path) for t in graph.initializer}
    nodes = _in_order([_node(n, i, path) for i, n in enumerate(graph.node)])
    inputs = {x.name: _described(x, path) for x in graph.input if x.name not in constants}
    made = constants.keys() | inputs.keys() | {name for n in nodes for name in n.outputs}
    unknown = [name for n in nodes for name in n.inputs if name and name not in made]
    unknown += [x.name for x in graph.output if x.name not in made]
    if unknown:
        raise InputError("the graph reads a tensor that nothing makes", where=unknown[0], remedy="repair the file")
    tool = f"ONNX ({model.producer_name or 'unknown producer'})"
    return ForeignGraph(tool, nodes, constants, inputs, tuple(x.name for x in graph.output))


def _in_order(nodes: list[Node]) -> tuple[Node, ...]:
    """Return the nodes so that each stands behind those whose results it reads: some tools append new ones at the end.

    Raises:
        InputError: they read each other's results in a circle.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    order = TopologicalSorter({i: {maker[n] for n in node.inputs if n in maker} for i, node in enumerate(nodes)})
    try:
        order.prepare()
    except CycleError as error:
        where = nodes[error.args[1][0]].name
        raise InputError("the nodes of the graph form a circle", where=where, remedy="repair the file") from error
    ready, found = list(order.get_ready()), []
    heapify(ready)  # the file's order, wherever it is one
    while ready:
        i = heappop(ready)
        found.append(nodes[i])
        order.done(i)
        for j in order.get_ready():
            heappush(ready, j)
    return tuple(found)


def _node(n: Any, i: int, path: Path) -> Node:
    name = n.name or (n.output[0] if n.output else f"{n.op_type}_{i}")
    if n.domain not in DOMAINS:
        raise InputError(f"the operator {n.domain}.{n.op_type} is not known", where=name, remedy="export it without")
    return Node(
        name, n.op_type, tuple(n.input), tuple(n.output), {a.name: _attribute(a, name, path) for a in n.attribute}
    )


def _attribute(a: Any, where: str, path: Path) -> Any:
    from onnx import AttributeProto, helper

    if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise InputError("an operator with a body (If, Loop, Scan)", where=where, why="programs have no control flow")
    if a.type == AttributeProto.TENSOR:
        return _array(a.t, path)
    value = helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if a.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def _array(t: Any, path: Path) -> Array:
    """Return a stored tensor, whose data must be in the file or in its folder, and as long as its shape says."""
    from onnx import TensorProto, external_data_helper, numpy_helper

    if t.data_location == TensorProto.EXTERNAL:
        location = next((e.value for e in t.external_data if e.key == "location"), "")
        folder = path.parent.resolve()
        target = (folder / location).resolve()
        if folder not in target.parents or not target.is_file():
            why = f"it names {location!r}, and only files in the folder of the model are read"
            raise InputError("the data of a tensor lie outside", where=t.name, why=why, remedy="put them beside it")
    try:
        if t.data_location == TensorProto.EXTERNAL:
            external_data_helper.load_external_data_for_tensor(t, str(path.parent))
        if any(d < 0 for d in t.dims) or math.prod(t.dims) > LARGEST_FILE:
            raise ValueError(f"a shape of {list(t.dims)}")
        return np.asarray(numpy_helper.to_array(t))
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise InputError("the data of a tensor are damaged", where=t.name, why=in_short(error)) from error


def _described(x: Any, path: Path) -> tuple[str, Shape]:
    from onnx import helper

    kind = x.type.tensor_type
    if not x.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise InputError("an input without a known rank", where=x.name, remedy="export it with shapes")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("an input of an unknown type", where=x.name, why=in_short(error)) from error
    return dtype, tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim)
