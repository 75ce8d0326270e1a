"""Elements and rows that a mask chooses, of which something is computed and written back to their places.

How many there are in ``x[mask] = f(y[mask])``, or in ``i = torch.where(mask)[0]; x[i] += f(y[i])``, depends on the
data, and programs have tensors of known sizes. What is computed of each element or row alone is the same for all of
them, so that it is ``x = where(mask, f(y), x)``: as the experts of a mixture are computed, for one.

What is chosen by a mask of several dimensions, (u, …) with u places, is computed in all its places, (S…, …) for a mask
of shape S. Where ``b, k = torch.where(mask)``, ``y[b]`` is the same along the second dimension of the mask: it is
computed once, with size 1 there.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from intact8.capture.constants import leaves, writes_in_place
from intact8.capture.decompose import out_of_place
from intact8.capture.fx_nodes import added_like, erase_with_users, is_view, only_checked, written
from intact8.capture.partial_functions import NOTS, PUTS, elementwise, harmless, mask_of, partial_argument

aten = torch.ops.aten

ADDS = (aten.index_add.default, aten.index_add_.default)
WRITES = (*PUTS, *ADDS)

PLACES = (aten.where.default, aten.nonzero_numpy.default)
"""Operators that return where a mask is true, one tensor for each of its dimensions."""

ALONG = {
    *(aten.softmax.int, aten.log_softmax.int, aten.unsqueeze.default, aten.squeeze.dim, aten.glu.default),
    *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.select.int, aten.slice.Tensor),
}
"""Operators that work along the dimensions of their second argument and keep all others apart."""

MOST_WRITES = 64
"""Most writes, one after the other, of what a mask chooses for one place."""


@dataclass(frozen=True)
class Choice:
    """What a node reads of a tensor, or writes into it: the places in which a mask is true.

    Attributes:
        mask: true where something is chosen.
        axes: of the first dimensions of the tensor, in order, those of the mask that they are.
    """

    mask: Node
    axes: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions of the mask."""
        rank: int = self.mask.meta["val"].ndim
        return rank

    @property
    def others(self) -> list[int]:
        """Dimensions of the mask that the tensor does not have."""
        return [axis for axis in range(self.rank) if axis not in self.axes]

    def aligned(self, like: Node, x: Node) -> Node:
        """Add what makes (dimensions of the mask …, others …) of a tensor, with size 1 where it lacks one."""
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        x = _permuted(like, x, order)
        for axis in self.others:
            x = added_like(like, aten.unsqueeze.default, x, axis)
        return x

    def turned_back(self, like: Node, x: Node) -> Node:
        """Add what makes the tensor's order of the mask's, for a tensor without the dimensions that this one lacks."""
        return _permuted(like, x, [sorted(self.axes).index(axis) for axis in self.axes])


def _permuted(like: Node, x: Node, order: list[int]) -> Node:
    """Add another order of the first dimensions, unless it is the one they have."""
    if order == sorted(order):
        return x
    return added_like(like, aten.permute.default, x, [*order, *range(len(order), x.meta["val"].ndim)])


def write_whole(gm: GraphModule) -> None:
    """Compute for all elements what is computed for those of a mask, where they come back to its places."""
    for node in [*gm.graph.nodes]:
        if node.target is aten.index.Tensor:
            _without_first(node)
    for node in [*gm.graph.nodes]:
        if node.target is aten.index.Tensor or node.target in WRITES:
            choice = _choice(node)
            if choice is not None and not written(choice.mask) and (found := _between(node, choice)) is not None:
                _rewrite(gm, choice.mask, found)


def _without_first(node: Node) -> None:
    """Take ``x[None, i].reshape(-1, d)`` for the ``x[i]`` that it is."""
    given, indices = node.args[0], node.args[1]
    plain = isinstance(given, Node) and given.target is aten.unsqueeze.default and given.args[1] == 0
    if not plain or not isinstance(indices, (list, tuple)) or len(indices) != 2 or indices[0] is not None:
        return
    assert isinstance(given, Node)
    of: Any = given.args[0]
    readers = [user for user in node.users if not only_checked(user)]
    sizes = [*map(str, of.meta["val"].shape[1:])]  # symbols are not compared, which would limit them
    if (
        not readers
        or _rank(indices[1]) != 1
        or any(
            user.target not in (aten.reshape.default, aten.view.default)
            or user.args[0] is not node
            or [*map(str, user.meta["val"].shape[1:])] != sizes
            for user in readers
        )
    ):
        return
    rows = added_like(node, aten.index.Tensor, of, [indices[1]])
    for user in readers:
        user.replace_all_uses_with(rows)
        erase_with_users(user)
    erase_with_users(node)


def _choice(node: Node) -> Choice | None:
    """Return what a node reads or writes; None where that is not what a mask chooses."""
    if node.target in ADDS:
        plain = len(node.args) == 4 and not node.kwargs and node.args[1] == 0
        found = _place(node.args[2]) if plain else None
        return Choice(found[0], (found[1],)) if found is not None else None
    if (node.target is not aten.index.Tensor and node.target not in PUTS) or node.kwargs or len(node.args) < 2:
        return None
    if (mask := mask_of(node)) is not None:
        return Choice(mask, tuple(range(_rank(mask))))
    indices: Any = node.args[1]
    places = [_place(index) for index in indices]
    axes = tuple(place[1] for place in places if place is not None)
    masks = {place[0] for place in places if place is not None}
    whole = len(axes) == len(places) == len(set(axes)) and len(masks) == 1
    return Choice(masks.pop(), axes) if whole else None


def _place(index: Any) -> tuple[Node, int] | None:
    """Return the mask of which an index says where it is true, and in which dimension; None for others."""
    if not isinstance(index, Node) or not isinstance(index.args[0] if index.args else None, Node):
        return None
    made: Any = index.args[0]
    if index.target is operator.getitem and made.target in PLACES:
        return made.args[0], index.args[1]  # type: ignore[return-value]
    if index.target is operator.getitem and made.target is aten.unbind.int and len(made.args) == 2:
        made, dim, axis = made.args[0], made.args[1], index.args[1]
    elif index.target is aten.select.int:
        dim, axis = index.args[1], index.args[2]
    elif index.target is aten.squeeze.dim:
        dim, axis = index.args[1], 0
    else:
        return None
    if made.target is not aten.nonzero.default or dim not in (1, -1):
        return None
    mask = made.args[0]
    single = index.target is not aten.squeeze.dim or mask.meta["val"].ndim == 1
    return (mask, axis % mask.meta["val"].ndim) if single else None


def _same(a: Any, b: Any) -> bool:
    """Return whether two masks are one, or the opposites of one."""
    while a is not None and a is not b and a.target in NOTS and b.target in NOTS:
        a, b = a.args[0], b.args[0]
    return a is b


def _value(write: Node) -> Any:
    """Return what a node writes."""
    return write.args[3] if write.target in ADDS else write.args[2]


def _between(start: Node, choice: Choice) -> list[Node] | None:
    """Return the nodes from the choice of rows to where they are written, in order; None if they go elsewhere."""
    if start.target in WRITES:
        alike = _rank(_value(start)) <= _rank(start) - len(choice.axes)
        by_mask = start.target in PUTS and mask_of(start) is not None  # that is a choice between two already
        return [start] if alike and not by_mask and _few_writes(start) else None
    found, pending = {start}, [start]

    def joins(node: Node) -> bool:
        """Return whether a node is computed of each of the chosen rows alone, and note it."""
        if node not in found:
            chosen = node.target is aten.index.Tensor and _chooses_by(node, choice.mask)
            if not chosen and not elementwise(node) and not _by_row(node):
                return False
            found.add(node)
            pending.append(node)
        return True

    while pending:
        node = pending.pop()
        for user in node.users:
            reads = user.op == "output" or (user.users and not only_checked(user))  # others ask for the size alone
            if user.target in WRITES:
                if not _chooses_by(user, choice.mask) or _value(user) is not node or not _few_writes(user):
                    return None
                found.add(user)
            elif reads and not joins(user):
                return None
        for arg in _of_rows(node):
            value = arg.meta.get("val") if isinstance(arg, Node) else None
            alike = not _by_row(node) and isinstance(value, Tensor) and value.ndim < node.meta["val"].ndim
            if isinstance(value, Tensor) and not alike and not joins(arg):
                return None  # what has fewer dimensions is the same for all rows
    if not any(node.target in WRITES for node in found) or any(_mixed(node, found) for node in found):
        return None
    return [node for node in start.graph.nodes if node in found]


def _rank(node: Any) -> int:
    """Return the number of dimensions of a tensor; 0 for a number."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.ndim if isinstance(value, Tensor) else 0


def _few_writes(node: Node) -> bool:
    """Return whether it is known, and not many, how often a place may be written to one after the other."""
    choice = _choice(node)
    assert choice is not None
    lengths = [choice.mask.meta["val"].shape[axis] for axis in choice.others]
    return _adds(node) or (all(isinstance(n, int) for n in lengths) and math.prod(lengths) <= MOST_WRITES)


def _adds(node: Node) -> bool:
    """Return whether what a node writes is added to what is there."""
    return node.target in ADDS or (len(node.args) > 3 and bool(node.args[3]))


def _chooses_by(node: Node, mask: Node) -> bool:
    """Return whether a node reads or writes what this mask chooses."""
    other = _choice(node)
    return other is not None and _same(other.mask, mask)


def _of_rows(node: Node) -> list[Any]:
    """Return the arguments of a node of which its rows are computed, if they are rows."""
    if node.target is aten.index.Tensor:
        return []
    return [node.args[0]] if _by_row(node) else leaves([*node.args])


def _mixed(node: Node, found: set[Node]) -> bool:
    """Return whether a node takes rows for something else, as a weight; or writes into rows that others may see."""
    if node.target is aten.index.Tensor or node.target in WRITES:
        return False
    if _by_row(node):
        return bool(found.intersection(leaves([*node.args[1:]])))
    if not writes_in_place(node.target):
        return False
    target: Any = node.target
    into = node.args[0]
    near = (into, *into.users) if isinstance(into, Node) else ()
    seen = any(isinstance(other.target, torch._ops.OpOverload) and is_view(other.target) for other in near)
    return into not in found or seen or out_of_place(target) is None


def _by_row(node: Node) -> bool:
    """Return whether an operator works on each row of its first argument alone, and gives one row for it."""
    rank = _rank(node.args[0]) if node.args else 0
    target = node.target
    if target is aten.linear.default:
        return rank > 1
    if target is aten.matmul.default:
        return rank > 1 and _rank(node.args[1]) == 2
    if target in (aten.layer_norm.default, aten.rms_norm.default):
        return len(node.args[1]) < rank  # type: ignore[arg-type]
    if target is aten.dropout.default:
        return not node.args[2]
    return target in ALONG and all(dim + rank + (target is aten.unsqueeze.default) > 0 for dim in _dims(node))


def _dims(node: Node) -> list[int]:
    """Return the dimensions along which an operator works, counted from the end: all, where they are not told."""
    given: Any = node.args[1] if len(node.args) > 1 else None
    rank = _rank(node.args[0]) + (node.target is aten.unsqueeze.default)
    dims = [given] if isinstance(given, int) else given or range(rank)
    return [dim if dim < 0 else dim - rank for dim in dims]


def _rewrite(gm: GraphModule, mask: Node, found: list[Node]) -> None:
    whole = dict[Node, Node]()

    def among(node: Node, rank: int) -> Node:
        """Return the mask as wide as what it chooses from."""
        places = mask
        if places.meta["val"].dtype != torch.bool:
            places = added_like(node, aten.ne.Scalar, places, 0)
        while places.meta["val"].ndim < rank:
            places = added_like(node, aten.unsqueeze.default, places, -1)
        return places

    for node in found:
        given: Any = node.args
        choice = _choice(node)
        if node.target is aten.index.Tensor and choice is not None:
            whole[node] = added_like(node, aten.clone.default, choice.aligned(node, given[0]))
        elif node.target not in WRITES:
            args, kwargs = torch.fx.map_arg((given, node.kwargs), lambda n: whole.get(n, n))
            if node.target in ALONG:
                dims = _dims(node)
                args = (args[0], dims if isinstance(given[1], (list, tuple)) else dims[0], *args[2:])
            place = partial_argument(node)
            if place is not None and given[place] in whole:
                of = args[place]
                hidden = added_like(node, aten.where.ScalarOther, among(node, _rank(of)), of, harmless(node))
                args = (*args[:place], hidden, *args[place + 1 :])
            target: Any = node.target
            target = out_of_place(target) if writes_in_place(target) else target
            whole[node] = added_like(node, target, *args, **kwargs)
            if writes_in_place(node.target):
                whole[given[0]] = whole[node]
        else:
            assert choice is not None
            value = whole.get(_value(node), _value(node))
            result = _written(node, choice, among(node, choice.rank + _rank(node) - len(choice.axes)), value)
            if writes_in_place(node.target):
                result = added_like(node, aten.copy_.default, given[0], result)
            node.replace_all_uses_with(result)
    for node in reversed(found):
        erase_with_users(node)
    for node in reversed([*gm.graph.nodes]):
        place = node.target in (*PLACES, aten.nonzero.default, aten.unbind.int) or _place(node) is not None
        if place and all(map(_is_asserted, node.users)):
            erase_with_users(node)
    gm.recompile()


def _written(node: Node, choice: Choice, places: Node, value: Any) -> Node:
    """Add what a tensor is when ``value`` was written, or added, where ``places`` is true."""
    into: Node = node.args[0]  # type: ignore[assignment]
    if _adds(node):
        shares = added_like(node, aten.where.ScalarOther, places, value, 0)
        if choice.others:
            shares = added_like(node, aten.sum.dim_IntList, shares, choice.others)
        return added_like(node, aten.add.Tensor, into, choice.turned_back(node, shares))
    lengths = [range(choice.mask.meta["val"].shape[axis]) for axis in choice.others]
    for place in itertools.product(*lengths):
        here, there = choice.turned_back(node, _at(node, choice, place, places)), value
        if isinstance(value, Node) and _rank(value) == _rank(places):
            there = choice.turned_back(node, _at(node, choice, place, value))
        into = added_like(node, aten.where.self, here, there, into)
    return into


def _at(node: Node, choice: Choice, place: tuple[int, ...], x: Node) -> Node:
    """Add what a tensor is at a place of the dimensions of the mask that are not those written to."""
    for axis, k in sorted(zip(choice.others, place, strict=True), reverse=True):
        x = added_like(node, aten.select.int, x, axis, 0 if x.meta["val"].shape[axis] == 1 else k)
    return x


def _is_asserted(node: Node) -> bool:
    """Return whether a node is an assertion, or a size that only assertions read."""
    return only_checked(node) or node.target is aten._assert_tensor_metadata.default
