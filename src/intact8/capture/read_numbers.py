"""Numbers that are read from tensors: ``table[t]`` and ``x * t.item()``, where ``t`` holds one number.

Its value is known when the model runs. A row that is chosen by it is a gather, and an operation with it is one with the
tensor itself; Python's own sums and products of it are those of tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from intact8.capture.fx_nodes import added_like, asserts, erase_with_users, is_view, only_checked, written

aten = torch.ops.aten

PYTHONS: Mapping[Any, Any] = MappingProxyType(
    {operator.add: aten.add.Tensor, operator.sub: aten.sub.Tensor, operator.mul: aten.mul.Tensor}
)
"""Python's operators of numbers, and those of tensors that do the same."""

WITH_TENSORS: Mapping[Any, Any] = MappingProxyType(
    {
        **{op.Tensor: op.Tensor for op in (aten.add, aten.sub, aten.mul, aten.div)},
        **{op.Scalar: op.Tensor for op in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)},
        aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    }
)
"""Operators of a tensor and a number, and those of two tensors that do the same."""


def keep_tensors(gm: GraphModule) -> None:
    """Compute with tensors of one number where numbers are read from them, if tensors can do all that is done."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=aten.item.default):
        if _replaceable(node):
            of: Any = node.args[0]
            # What is written into the tensor later does not change the number.
            _replace(node, added_like(node, aten.clone.default, added_like(node, aten.reshape.default, of, [])), node)
            changed = True
    if changed:
        gm.recompile()


def _replaceable(number: Node) -> bool:
    """Return whether a tensor does for everything that reads a number."""
    for user in number.users:
        args: Any = user.args
        once = [*args].count(number) == 1 and not user.kwargs
        if user.target in PYTHONS:
            plain = all(isinstance(arg, int) for arg in args if arg is not number)
            if not plain or not isinstance(number.meta["val"], torch.SymInt) or not _replaceable(user):
                return False
        elif user.target is aten.select.int:
            if not once or args[2] is not number or _memory_is_written(user):
                return False
        elif user.target in WITH_TENSORS:
            if not once or args[1] is not number:
                return False
        elif not only_checked(user) and not asserts(user):
            return False
    return True


def _memory_is_written(view: Node) -> bool:
    """Return whether something is written into the memory of a view, which a copy would not share."""
    node: Any = view
    while isinstance(node.target, torch._ops.OpOverload) and is_view(node.target):
        node = node.args[0]
    return written(node)


def _replace(number: Node, tensor: Node, like: Node) -> None:
    """Put a tensor of no dimension in place of a number, and erase what asserts something of the number."""
    for user in [*number.users]:
        args: Any = user.args
        if user.target in PYTHONS:
            given = [tensor if arg is number else arg for arg in args]
            if not isinstance(given[0], Node):
                given[0] = added_like(like, aten.full_like.default, tensor, given[0])
            _replace(user, added_like(like, PYTHONS[user.target], *given), like)
        elif user.target is aten.select.int:
            one = added_like(user, aten.reshape.default, tensor, [1])
            axis = args[1] % args[0].meta["val"].ndim
            rows = added_like(user, aten.index.Tensor, args[0], [*[None] * axis, one])
            user.replace_all_uses_with(added_like(user, aten.squeeze.dim, rows, axis))
            user.graph.erase_node(user)
        elif user.target in WITH_TENSORS:
            user.replace_all_uses_with(added_like(user, WITH_TENSORS[user.target], args[0], tensor, *args[2:]))
            user.graph.erase_node(user)
        else:
            erase_with_users(user)
    number.graph.erase_node(number)


__all__ = ["keep_tensors"]
