"""Running what was captured in float32: a graph, the yardstick for everything that changes graphs; and constants that
are computed from parameters, again wherever the parameters have changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.errors import CaptureError, InputError

from .graph import Graph


def run_float(graph: Graph, tensors: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Evaluate every node of ``graph`` in float with torch.

    Args:
        graph: a graph without ``quantize`` and ``dequantize`` nodes.
        tensors: parameters, buffers and constants by name, as in ``Captured.tensors()``.
        inputs: one tensor per graph input, in the order of ``graph.inputs``.

    Returns:
        Every node's output by name.

    Raises:
        InputError: the number of inputs is not the graph's.
        CaptureError: a node has no float form, or names a parameter that ``tensors`` lacks.

    Example:
        >>> import torch
        >>> from intact8.capture.graph import Node
        >>> graph = Graph({"x": Node("x", "input"), "relu": Node("relu", "relu", ["x"])}, ["x"], ["relu"])
        >>> run_float(graph, {}, [torch.tensor([-1.0, 2.0])])["relu"]
        tensor([0., 2.])
    """
    if len(inputs) != len(graph.inputs):
        raise InputError(
            f"{len(inputs)} inputs given, {len(graph.inputs)} needed", remedy=f"give {', '.join(graph.inputs)}"
        )
    values = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.sized(inputs):
        if node.op == "input":
            continue
        if node.op not in FLOAT_OPS:
            raise CaptureError(f"operation {node.op!r} has no float form", where=node.name)
        missing = [name for name in node.params.values() if name not in tensors]
        if missing:
            raise CaptureError(f"no tensor named {missing[0]!r}", where=node.name, remedy="pass Captured.tensors()")
        params = {role: tensors[name] for role, name in node.params.items()}
        values[node.name] = FLOAT_OPS[node.op](node.attrs, [values[name] for name in node.inputs], params)
    return values


@dataclass(frozen=True)
class Made:
    """How a constant came about.

    Attributes:
        tensor: the constant; it is kept alive, so that its id stays its own.
        parameters: names of the model's parameters it was computed from.
        target: the operator; None where that is not known.
        args, kwargs: of its call.
        leaf: which of the tensors it gave.
    """

    tensor: Tensor
    parameters: frozenset[str]
    target: Any = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    leaf: int = 0


@dataclass(frozen=True)
class Named:
    """In place of a tensor among arguments: the one of this name."""

    name: str


@dataclass(frozen=True)
class Result:
    """In place of a tensor among arguments: what an earlier step gave."""

    step: int
    leaf: int


@dataclass(frozen=True)
class Derived:
    """A constant as a function of parameters: rows of a table of positions, a bias looked up by distance.

    Attributes:
        steps: operator (``aten.embedding.default``), arguments and keyword arguments, in order, tensors by reference.
        result: which tensor it is.
        sources: names of the parameters, buffers and constants it is computed from.

    Example:
        >>> first = Derived((("aten.narrow.default", (Named("table"), 0, 0, 2), {}),), Result(0, 0), ("table",))
        >>> first.compute({"table": torch.arange(3.0)})
        tensor([0., 1.])
    """

    steps: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    result: Result
    sources: tuple[str, ...]

    def compute(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The constant, differentiable.

        Args:
            tensors: at least ``sources`` by name, on one device.
        """
        device, results = tensors[self.sources[0]].device, list[list[Any]]()

        def given(arg: Any) -> Any:
            if isinstance(arg, Named):
                return tensors[arg.name]
            if isinstance(arg, Result):
                return results[arg.step][arg.leaf]
            return device if isinstance(arg, torch.device) else arg

        for target, args, kwargs in self.steps:
            results.append(
                leaves([operator.attrgetter(target)(torch.ops)(*mapped(args, given), **mapped(kwargs, given))])
            )
        found: Tensor = given(self.result)
        return found


def derive(tensor: Tensor, made: Mapping[int, Made], name: Callable[[Tensor], str]) -> Derived | None:
    """What ``tensor`` is as a function of parameters; None where a call on the way is not known.

    Args:
        tensor: computed from some.
        made: by id of a tensor.
        name: gives the name of a tensor that was not computed from parameters, or is one.
    """
    steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    calls: dict[int, int] = {}
    sources: dict[str, None] = {}

    def reference(arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        how = made.get(id(arg))
        if how is None or not how.parameters:
            sources[name(arg)] = None
            return Named(name(arg))
        if id(how.args) not in calls:
            args, kwargs = mapped(tuple(how.args), reference), mapped(dict(how.kwargs), reference)
            calls[id(how.args)] = len(steps)
            steps.append(("" if how.target is None else str(how.target), args, kwargs))
        return Result(calls[id(how.args)], how.leaf)

    result = reference(tensor)
    return Derived(tuple(steps), result, tuple(sources)) if all(target for target, *_ in steps) else None


def mapped(arg: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with every leaf changed."""
    if isinstance(arg, dict):
        return {key: mapped(value, change) for key, value in arg.items()}
    if isinstance(arg, (list, tuple)):
        return (tuple if isinstance(arg, tuple) else list)(mapped(value, change) for value in arg)
    return change(arg)


def leaves(args: Sequence[Any]) -> list[Any]:
    """What dicts, lists and tuples hold, in order."""
    out: list[Any] = []
    for a in args:
        if isinstance(a, dict):
            out += leaves(list(a.values()))
        elif isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
            out += leaves(a)
        else:
            out.append(a)
    return out
