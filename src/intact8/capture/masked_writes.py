"""Elements that a mask chooses: those that are written back to its places, and those that are computed and hidden.

How many there are in x[mask] = f(y[mask]) depends on the data, and programs have tensors of known sizes. What is
computed element by element is the same for all elements, so that it is x = where(mask, f(y), x).

In where(mask, f(y), 0) f sees elements that it is not defined for, and programs have scales for finite numbers only.
Elements whose results are hidden are replaced before: where(mask, f(where(mask, y, 1)), 0).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from intact8.capture.constants import leaves, writes_in_place
from intact8.capture.fx_nodes import added_like, only_checked, written
from intact8.capture.names import operator_name

aten = torch.ops.aten

WRITES = (aten.index_put.default, aten.index_put_.default)
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


def write_whole(gm: GraphModule) -> None:
    """Compute for all elements what is computed for those of a mask, where they come back to its places or are chosen
    later."""
    hide_arguments(gm)
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
    while a is not None and a is not b and a.target in NOTS and b.target in NOTS:
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
    """Return whether an operator works on each element alone, as torch knows or we do."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or _function(node) in FIRST | SECOND


def _partial(node: Node) -> int | None:
    """Return which argument of a node is one that its function is not defined for everywhere; None without any."""
    name = _function(node)
    place = 0 if name in FIRST else 1 if name in SECOND else None
    if place is None or len(node.args) <= place or not isinstance(node.args[place], Node):
        return None
    return None if name == "pow" and node.args[1] in (2, 3, 4) else place


def _function(node: Node) -> str:
    """Return the name of a function, however it is called."""
    return operator_name(node).removesuffix("_").removeprefix("special_")


def _harmless(nodes: list[Node]) -> float:
    """Return a number that some partial functions are defined for, a whole one where that is possible."""
    return 0.5 if any(_function(node) in OPEN for node in nodes) else 1


def _rewrite(gm: GraphModule, mask: Node, found: list[Node]) -> None:
    whole = dict[Node, Node]()
    partial = [node for node in found if _partial(node) is not None]

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
            whole[node] = added_like(node, aten.where.ScalarOther, places, given[0], _harmless(partial))
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


def hide_arguments(gm: GraphModule) -> None:
    """Give partial functions harmless numbers in the places where nothing that is computed of them is chosen."""
    known = _constants(gm)
    for node in [*gm.graph.nodes]:
        place = _partial(node) if node.op == "call_function" and _elementwise(node) else None
        if place is None or writes_in_place(node.target):
            continue
        argument = node.args[place]
        if argument in known or _positive(argument) or (chosen := _chosen(node)) is None:
            continue
        mask, where_true = chosen
        if _fits(mask, argument, node) and not written(mask) and _made_before(mask, node):
            number = _harmless([node])
            form, sides = aten.where.ScalarSelf, (number, argument)
            if where_true:
                form, sides = aten.where.ScalarOther, (argument, number)
            node.update_arg(place, added_like(node, form, mask, *sides))
    gm.recompile()


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
            if user.target in (*WHERES, *FILLS, *WRITES):
                choice = _choice(user, node)
                if choice is None:
                    return None
                found.add(choice)
            elif _asks_for_size(user):
                continue
            elif user.op != "call_function" or not _elementwise(user) or writes_in_place(user.target):
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
        mask, where_true = _mask(user) if user.target in WRITES else given[1], False
        if given[0] is not node or mask is None:
            return None
        if user.target in WRITES and mask.meta["val"].ndim != node.meta["val"].ndim:
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
