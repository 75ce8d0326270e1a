"""Complex activations: an operator that has some becomes what its formula does with real and imaginary parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch import Tensor

from intact8.capture.aten_call import Prefix
from intact8.capture.constants import leaves, writes_in_place
from intact8.capture.decompose import traced
from intact8.capture.formulas_complex import COMPLEX, MOVES, ZEROS, Complex, moved
from intact8.capture.ops_scatter import filled

if TYPE_CHECKING:
    from intact8.capture.aten_call import Call

REMEDY = "write it for real and imaginary parts, or take abs() or torch.view_as_real before"


def in_pairs(call: Call) -> bool:
    """Return whether complex numbers go into an operator or come out of it, or are on its way."""
    on_its_way = call.op.startswith("fft_") and call.op in COMPLEX
    return on_its_way or any(x.is_complex() for x in _tensors(call))


def _tensors(call: Call) -> Iterator[Tensor]:
    """Yield the tensors that go into an operator and come out of it, as the export has them."""
    found = [*(node.meta.get("val") for node in call.fx.all_input_nodes), call.fx.meta.get("val")]
    yield from (x for x in leaves(found) if isinstance(x, Tensor))


def by_parts(call: Call) -> Any:
    """Record an operator of complex numbers by the formula of its parts.

    Raises:
        CaptureError: there is none.
    """
    if writes_in_place(call.fx.target):
        raise call.in_place("complex numbers")
    name = call.op.removesuffix("_copy")
    if name in ZEROS.split():
        zeros = filled(call, 0.0, call.out_shape, "float32")
        return Complex(zeros, zeros)
    formula = COMPLEX.get(name) or (moved(call.fx.target) if name in MOVES.split() else None)
    if formula is None:
        raise call.error("complex numbers in this operation", why="it has no form in real numbers", remedy=REMEDY)
    feed: list[Any] = []
    examples: list[Tensor] = []

    def entered(x: Any, example: Tensor) -> int:
        feed.append(x)
        examples.append(example)
        return len(feed) - 1

    def place(node: torch.fx.Node) -> Any:
        value, example = call.builder.env[node], node.meta.get("val")
        if isinstance(example, torch.SymInt):  # a tracer knows sizes of tensors only
            return SizeOf(entered(None, next(_tensors(call)).new_empty([example], dtype=torch.float32)))
        if not isinstance(example, Tensor):
            return example
        if isinstance(value, Tensor) and value.is_complex():
            value = Complex(*call.builder.parts(value))
        elif isinstance(value, Prefix) and value.full.is_complex():
            halves = (replace(value, full=part) for part in call.builder.parts(value.full))
            value = Complex(*(call.builder.made(half, node) for half in halves))
        if not isinstance(value, Complex):
            return Place(entered(call.builder.made(value, node), example))
        return Complex(*(Place(entered(x, example.new_empty(example.shape, dtype=torch.float32))) for x in value))

    args: Any = torch.fx.map_arg(call.fx.args, place)
    kwargs: Any = torch.fx.map_arg(call.fx.kwargs, place)
    structure: list[Any] = []

    def run(*inputs: Tensor) -> list[Any]:
        def pick(x: Any) -> Any:
            found = inputs[x.index] if isinstance(x, Place) else x
            return found.shape[0] if isinstance(x, SizeOf) else found

        result = formula(*pytree.tree_map(pick, args), **pytree.tree_map(pick, kwargs))
        if result is NotImplemented:
            raise NotImplementedError
        found, spec = pytree.tree_flatten(result)
        structure[:] = [spec]
        return found

    inner = traced(call, run, examples)
    return pytree.tree_unflatten(call.builder.run(inner, feed), structure[0])


class Place:
    """In place of a tensor among arguments: its number."""

    def __init__(self, index: int) -> None:
        self.index = index


class SizeOf(Place):
    """In place of a size among arguments: the number of a tensor of which it is the only dimension."""
