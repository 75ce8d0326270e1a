"""Elements that a mask chooses and that are written back to the places of the same mask: x[mask] = f(y[mask]).

How many there are depends on the data, and programs have tensors of known sizes. What is computed element by element
is the same for all elements, so that it is x = where(mask, f(y), x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from intact8.capture.constants import leaves, writes_in_place
from intact8.capture.fx_nodes import added_like, only_checked

aten = torch.ops.aten

WRITES = (aten.index_put.default, aten.index_put_.default)

PARTIAL = {
    *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "pow", "div", "fmod", "remainder"),
    *("acos", "asin", "acosh", "atanh", "xlogy", "logit", "erfinv"),
}
"""Functions that are not defined everywhere, or grow without bound: they see 1 in the place of other elements."""


def write_whole(gm: GraphModule) -> None:
    """Compute for all elements what is computed for those of a mask, where they come back to its places."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.index.Tensor):
        mask = _mask(node)
        if mask is not None and (found := _between(node, mask)) is not None:
            _rewrite(gm, mask, found)


def _mask(node: Node) -> Node | None:
    """Return the mask by which a node chooses elements, of the first dimensions of a tensor; None for others."""
    if node.target not in (aten.index.Tensor, *WRITES) or len(node.args) < 2:
        return None
    indices: Any = node.args[1]
    mask = indices[0] if len(indices) == 1 and isinstance(indices[0], Node) else None
    value = mask.meta.get("val") if mask is not None else None
    return mask if isinstance(value, Tensor) and value.dtype == torch.bool else None


def _same(a: Any, b: Any) -> bool:
    """Return whether two masks are one, or the opposites of one."""
    nots = (aten.bitwise_not.default, aten.logical_not.default)
    while a is not None and a is not b and a.target in nots and b.target in nots:
        a, b = a.args[0], b.args[0]
    return a is b


def _between(start: Node, mask: Node) -> list[Node] | None:
    """Return the nodes from the choice of elements to where they are written, in order; None if they go elsewhere."""
    if start.target is not aten.index.Tensor:
        return None
    found, pending = {start}, [start]

    def joins(node: Node) -> bool:
        """Return whether a node is computed element by element of the chosen ones, and note it."""
        if node not in found:
            chosen = node.target is aten.index.Tensor and _same(_mask(node), mask)
            if not chosen and not _elementwise(node):
                return False
            found.add(node)
            pending.append(node)
        return True

    while pending:
        node = pending.pop()
        for user in node.users:
            reads = user.op == "output" or (user.users and not only_checked(user))  # others ask for the size alone
            if user.target in WRITES:
                if not _same(_mask(user), mask) or len(user.args) > 3 or user.kwargs or user.args[2] is not node:
                    return None
                found.add(user)
            elif reads and not joins(user):
                return None
        for arg in leaves([*node.args]) if node.target is not aten.index.Tensor else ():
            value = arg.meta.get("val") if isinstance(arg, Node) else None
            if isinstance(value, Tensor) and value.ndim >= node.meta["val"].ndim and not joins(arg):
                return None  # what has fewer dimensions is the same for all elements
    if not any(node.target in WRITES for node in found):
        return None
    return [node for node in start.graph.nodes if node in found]


def _elementwise(node: Node) -> bool:
    """Return whether torch knows an operator to work on each element alone."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _partial(node: Node) -> bool:
    """Return whether a node computes one of PARTIAL, other than a share or a square."""
    name = str(node.target).split(".")[1].removesuffix("_")
    if name in ("div", "pow"):
        return isinstance(node.args[1], Node) or (name == "pow" and node.args[1] not in (2, 3, 4))
    return name in PARTIAL


def _rewrite(gm: GraphModule, mask: Node, found: list[Node]) -> None:
    whole = dict[Node, Node]()
    partial = any(_partial(node) for node in found)

    def among(node: Node, rank: int) -> Node:
        """Return the mask as wide as what it chooses from."""
        places = mask
        while places.meta["val"].ndim < rank:
            places = added_like(node, aten.unsqueeze.default, places, -1)
        return places

    for node in found:
        given: Any = node.args
        if node.target is aten.index.Tensor and partial:
            places = among(node, given[0].meta["val"].ndim)
            whole[node] = added_like(node, aten.where.ScalarOther, places, given[0], 1)
        elif node.target is aten.index.Tensor:
            whole[node] = added_like(node, aten.clone.default, given[0])
        elif node.target not in WRITES:
            args, kwargs = torch.fx.map_arg((given, node.kwargs), lambda n: whole.get(n, n))
            whole[node] = added_like(node, node.target, *args, **kwargs)
        else:
            into, values = given[0], whole[given[2]]
            places = among(node, values.meta["val"].ndim)
            written = added_like(node, aten.where.self, places, values, into)
            if writes_in_place(node.target):
                written = added_like(node, aten.copy_.default, into, written)
            node.replace_all_uses_with(written)
            gm.graph.erase_node(node)
    for node in reversed(found):
        if node.target not in WRITES:
            _erase_sizes(node)
            gm.graph.erase_node(node)
    gm.recompile()


def _erase_sizes(node: Node) -> None:
    """Erase what is made of the number of chosen elements: assertions about it."""
    for user in [*node.users]:
        _erase_sizes(user)
        node.graph.erase_node(user)
