"""Questions about nodes of an exported graph and the operators that they call."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from intact8.capture.aten_call import Call
from intact8.capture.constants import writes_in_place, writes_into


def only_checked(node: torch.fx.Node) -> bool:
    """Return whether nothing but assertions reads a number, so that it need not be known."""
    if not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return bool(node.users) and all(
        asserts(user) if isinstance(user.target, torch._ops.OpOverload) else only_checked(user) for user in node.users
    )


def asserts(node: torch.fx.Node) -> bool:
    """Return whether a node asserts something, and neither gives nor writes anything."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not target._schema.returns and not writes_in_place(target)


def erase_with_users(node: torch.fx.Node) -> None:
    """Erase a node and everything that is made of it: assertions, and the numbers that they are about."""
    for user in [*node.users]:
        erase_with_users(user)
    node.graph.erase_node(node)


def refuse_random(call: Call, target: Any) -> None:
    """Raise CaptureError where an operator draws random numbers."""
    if torch.Tag.nondeterministic_seeded in target.tags:
        why = "a program gives the same result whenever it is given the same input"
        raise call.error("random numbers", why=why, remedy="draw them outside the model and pass them as an input")


def bound_arguments(target: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the schema, defaults filled in."""
    bound: dict[str, Any] = {}
    for i, arg in enumerate(target._schema.arguments):
        if i < len(args) and not arg.kwarg_only:
            bound[arg.name] = args[i]
        elif arg.name in kwargs:
            bound[arg.name] = kwargs[arg.name]
        else:
            bound[arg.name] = arg.default_value
    return bound


def is_view(target: Any) -> bool:
    """Return whether the results of an operator share memory with its arguments."""
    return any(a.alias_info is not None and not a.alias_info.is_write for a in target._schema.arguments)


def written(node: Node) -> bool:
    """Return whether something is written into what a node makes, or into a view of it."""
    views = [user for user in node.users if isinstance(user.target, torch._ops.OpOverload) and is_view(user.target)]
    return any(writes_into(user, node) for user in node.users) or any(
        view.args[:1] == (node,) and written(view) for view in views
    )


def added_like(like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Add the call of an operator before another node, as if the same line of the model had made both."""
    with like.graph.inserting_before(like):
        node = like.graph.call_function(target, args, kwargs)
    given, named = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    found = next(n.meta["val"] for n in like.all_input_nodes if isinstance(n.meta.get("val"), FakeTensor))
    with found.fake_mode, enable_python_dispatcher():  # torch 2.8 has no products of symbolic sizes without
        node.meta = {**like.meta, "val": target(*given, **named)}
    return node
