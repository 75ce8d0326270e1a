"""Functions that are not defined everywhere, where a mask hides what they make of such elements.

In where(mask, f(y), 0) f sees elements that it is not defined for, and programs have scales for finite numbers only.
Elements whose results are hidden are replaced before: where(mask, f(where(mask, y, 1)), 0).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from intact8.capture.constants import leaves, writes_in_place
from intact8.capture.fx_nodes import added_like, written
from intact8.capture.names import operator_name

aten = torch.ops.aten

PUTS = (aten.index_put.default, aten.index_put_.default)
WHERES = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
FILLS = tuple(form for packet in (aten.masked_fill, aten.masked_fill_) for form in (packet.Scalar, packet.Tensor))

FIRST = {
    *("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "pow"),
    *("acos", "asin", "acosh", "atanh", "logit", "erfinv"),
}
"""Functions that are not defined everywhere, or grow without bound, by their first argument."""

SECOND = {"div", "divide", "true_divide", "fmod", "remainder", "xlogy"}
"""The same by their second argument."""

OPEN = {"atanh", "logit", "erfinv"}
"""Those that have no value at 1."""

POSITIVE = {"mean", "var", "std", "sqrt", "norm", "linalg_vector_norm", "abs", "exp"}
"""What is positive when a small number is added, as norms do: a mean of squares, say."""

NOTS = (aten.bitwise_not.default, aten.logical_not.default)


CASTS = (aten.to.dtype, aten._to_copy.default, aten.type_as.default)
"""Operators that give the same numbers in another type."""


def elementwise(node: Node) -> bool:
    """Return whether an operator works on each element alone, as torch knows or we do."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or _function(node) in FIRST | SECOND or node.target in CASTS


def partial_argument(node: Node) -> int | None:
    """Return which argument of a node is one that its function is not defined for everywhere; None without any."""
    name = _function(node)
    place = 0 if name in FIRST else 1 if name in SECOND else None
    if place is None or len(node.args) <= place or not isinstance(node.args[place], Node):
        return None
    return None if name == "pow" and node.args[1] in (2, 3, 4) else place


def _function(node: Node) -> str:
    """Return the name of a function, however it is called."""
    return operator_name(node).removesuffix("_").removeprefix("special_")


def harmless(node: Node) -> float:
    """Return a number that a partial function is defined for, a whole one where that is possible."""
    return 0.5 if _function(node) in OPEN else 1


def hide_arguments(gm: GraphModule) -> None:
    """Give partial functions harmless numbers in the places where nothing that is computed of them is chosen."""
    known = _constants(gm)
    for node in [*gm.graph.nodes]:
        place = partial_argument(node) if node.op == "call_function" and elementwise(node) else None
        if place is None or writes_in_place(node.target):
            continue
        argument = node.args[place]
        if argument in known or _positive(argument) or (chosen := _chosen(node)) is None:
            continue
        mask, where_true = chosen
        if _fits(mask, argument, node) and not written(mask) and _made_before(mask, node):
            number = harmless(node)
            form, sides = aten.where.ScalarSelf, (number, argument)
            if where_true:
                form, sides = aten.where.ScalarOther, (argument, number)
            node.update_arg(place, added_like(node, form, mask, *sides))
    gm.recompile()


def mask_of(node: Node) -> Node | None:
    """Return the mask of a tensor's first dimensions by which a node reads or writes elements; None for others."""
    indices: Any = node.args[1]
    mask = indices[0] if len(indices) == 1 and isinstance(indices[0], Node) else None
    value = mask.meta.get("val") if mask is not None else None
    return mask if isinstance(value, Tensor) and value.dtype == torch.bool else None


def _constants(gm: GraphModule) -> set[Node]:
    """Return the nodes that are computed of the model's own tensors alone."""
    found = set[Node]()
    for node in gm.graph.nodes:
        own = node.op == "get_attr" or (node.op == "placeholder" and node.name.startswith(("p_", "b_", "c_")))
        if own or (node.op == "call_function" and found.issuperset(node.all_input_nodes)):
            found.add(node)
    return found


def _positive(node: Any) -> bool:
    """Return whether a node adds a positive number to what is not negative, or has a positive limit."""
    while operator_name(node) in ("expand", "expand_as"):
        node = node.args[0]
    name = operator_name(node)
    if name not in ("add", "clamp", "clamp_min") or len(node.args) < 2 or not isinstance(node.args[1], (int, float)):
        return False
    return node.args[1] > 0 and (name != "add" or operator_name(node.args[0]) in POSITIVE)


def _chosen(start: Node) -> tuple[Node, bool] | None:
    """Return the mask by which all is chosen that is computed, element by element, of a node, and whether it is true
    there; None where something else reads it."""
    found, pending, seen = set[tuple[Node, bool]](), [start], set[Node]()
    while pending:
        node = pending.pop()
        seen.add(node)
        for user in node.users:
            if user.target in (*WHERES, *FILLS, *PUTS):
                choice = _choice(user, node)
                if choice is None:
                    return None
                found.add(choice)
            elif _asks_for_size(user):
                continue
            elif user.op != "call_function" or not elementwise(user) or writes_in_place(user.target):
                return None
            elif user not in seen:
                pending.append(user)
    return found.pop() if len(found) == 1 else None


def _asks_for_size(node: Node) -> bool:
    """Return whether a node reads no elements: it gives a size, or asserts a dtype."""
    return node.target in (aten.sym_size.int, aten._assert_tensor_metadata.default)


def _choice(user: Node, node: Node) -> tuple[Node, bool] | None:
    """Return the mask by which ``user`` chooses elements of ``node``, and whether it is true there; None where it reads
    them in another way, or writes into what others read."""
    if writes_in_place(user.target) and len(node.users) > 1:
        return None
    given: Any = user.args
    if leaves([*given]).count(node) != 1 or len(given) != 3 or user.kwargs:
        return None
    if user.target in WHERES:
        mask, where_true = given[0], given[1] is node
    else:
        mask, where_true = mask_of(user) if user.target in PUTS else given[1], False
        if given[0] is not node or mask is None:
            return None
        if user.target in PUTS and mask.meta["val"].ndim != node.meta["val"].ndim:
            return None  # it chooses rows, and where() broadcasts along the first dimensions
    while mask.target in NOTS:
        mask, where_true = mask.args[0], not where_true
    return None if mask is node or mask.meta["val"].dtype != torch.bool else (mask, where_true)


def _fits(mask: Node, argument: Node, node: Node) -> bool:
    """Return whether a mask, broadcast with an argument, changes the shape of nothing."""
    wide, given, result = ([str(n) for n in x.meta["val"].shape] for x in (mask, argument, node))
    rank = max(len(wide), len(given))
    pairs = zip(["1"] * (rank - len(wide)) + wide, ["1"] * (rank - len(given)) + given, strict=True)
    return [a if b == "1" else b for a, b in pairs] in (given, result)


def _made_before(mask: Node, node: Node) -> bool:
    """Move what a mask is computed of to before a node; return whether that can be, with nothing written meanwhile."""
    nodes = [*node.graph.nodes]
    between = nodes[nodes.index(node) : nodes.index(mask) + 1]
    if any(_writes(other) for other in between):
        return False
    needed = {mask}
    for other in reversed(between):
        needed |= {*other.all_input_nodes} if other in needed else set()
    if node in needed and between:
        return False
    for other in between:
        if other in needed:
            node.prepend(other)
    return True


def _writes(node: Node) -> bool:
    """Return whether a node may write into a tensor."""
    if isinstance(node.target, torch._ops.OpOverload):
        return writes_in_place(node.target)
    return isinstance(node.target, torch._ops.HigherOrderOperator)
