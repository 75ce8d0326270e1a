"""Operators without a handler, taken apart by our formulas or torch's own decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from .formulas import FORMULAS

if TYPE_CHECKING:
    from intact8.capture.aten_call import Call

Formula = Callable[..., Any]

FAILURES = (RuntimeError, TypeError, ValueError, AssertionError, AttributeError, LookupError)
"""Errors that tracing raises; their messages are about the inside of torch."""


def out_of_place(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes what ``target`` writes into its first argument; None where there is none.

    Example:
        >>> str(out_of_place(torch.ops.aten.addcmul_.default))
        'aten.addcmul.default'
    """
    namespace, name = target._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    found: torch._ops.OpOverload | None = getattr(packet, target._overloadname, None)
    return found


def decompose(call: Call, target: Any, formula: Formula | None = None) -> torch.fx.GraphModule | None:
    """Trace ``target`` into simpler ATen operators.

    Args:
        call: the call; the fx nodes it reads carry the export's fake tensors.
        target: the operator overload.
        formula: what computes the same; that entered for ``target``, or torch's own decomposition, where it is None.

    Returns:
        The traced graph, with one placeholder per tensor argument in order (see :func:`tensor_nodes`), or None when
        torch does not take the operator apart.
    """
    nodes = tensor_nodes(call.fx)
    args: Any = call.fx.args
    kwargs: Any = call.fx.kwargs
    formula = formula or FORMULAS.get(target)

    def run(*inputs: Tensor) -> Any:
        feed = iter(inputs)

        def pick(node: torch.fx.Node) -> Any:
            val = node.meta.get("val")
            return next(feed) if isinstance(val, Tensor) else val

        given, named = torch.fx.map_arg(args, pick), torch.fx.map_arg(kwargs, pick)
        found = NotImplemented if formula is None else formula(*given, **named)
        return target(*given, **named) if found is NotImplemented else found

    inner = traced(call, run, [node.meta["val"] for node in nodes])
    return None if any(node.target is target for node in inner.graph.nodes) else inner


def traced(call: Call, run: Callable[..., Any], examples: list[Tensor]) -> torch.fx.GraphModule:
    """Return a function of tensors as a graph of ATen operators, in the module and the line of a call.

    Raises:
        CaptureError: tracing fails.
    """
    table: Any = {**_of_torch(), **FORMULAS}
    try:
        graph: torch.fx.GraphModule = make_fx(run, decomposition_table=table, tracing_mode="symbolic")(*examples)
    except FAILURES as error:
        sizes = [arg.meta["val"] for arg in call.fx.all_input_nodes if isinstance(arg.meta.get("val"), torch.SymInt)]
        counted = any(size.node.expr.free_symbols & call.builder.batch_symbols for size in sizes)
        if counted or any(None in call.builder.shape_of_meta(example, call.fx) for example in examples):
            raise call.mixes(f"the operator {call.fx.target} needs a fixed batch size") from error
        reason = f"torch's own decomposition of it cannot be traced ({type(error).__name__})"
        raise call.error(f"the operator {call.fx.target} is not supported", why=reason) from error
    for node in graph.graph.nodes:
        node.meta |= {key: call.fx.meta.get(key) for key in ("nn_module_stack", "stack_trace")}
        node.meta["operator"] = call.operator
    return graph


@functools.cache
def _of_torch() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions into its core operators; torch takes 30 ms to collect them each time."""
    return dict(core_aten_decompositions().items())  # type: ignore[no-untyped-call]


def tensor_nodes(fx: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the fx arguments that are tensors, one entry per use."""
    nodes: list[torch.fx.Node] = []
    arguments: Any = (fx.args, fx.kwargs)

    def note(node: torch.fx.Node) -> torch.fx.Node:
        if isinstance(node.meta.get("val"), Tensor):
            nodes.append(node)
        return node

    torch.fx.map_arg(arguments, note)
    return nodes
