"""Where attention is NaN in torch: in rows in which a mask puts -inf everywhere, for models that guard against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from intact8.capture.aten_call import Call, Value
from intact8.capture.graph import Node

ROWS, MOVES, SAME = ("matmul", "linear"), ("reshape", "permute", "expand"), ("affine_scalar", "masked_fill")
"""Operations whose results are NaN in rows, in other places, and in the places in which their first operand is."""


ENDS = frozenset({"reshape", "permute", "expand", "slice", "log_softmax", "masked_fill"})
"""Operations behind which what is -inf in their first operand is -inf, or left out, on every engine."""


def infinite_outputs(nodes: Mapping[str, Node], filled: Iterable[str], outputs: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of outputs in which -inf was put by a mask, in tensors that are read for nothing else.

    Programs hold it there. Simulations compute with the least float32 number up to the end, so that differences are
    numbers.

    Args:
        nodes: all operations.
        filled: names of those that put -inf, of which there is the least float32 number so far.
        outputs: names of what the model returns.
    """
    users: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for given in node.inputs:
            users[given].append(node.name)
    found, read = set[str](), set[str]()
    for name in filled:
        pending, behind = [name], {name}
        while pending:
            at = pending.pop()
            if any(nodes[user].op not in ENDS or nodes[user].inputs[0] != at for user in users[at]):
                read.add(name)
                break
            pending += users[at]
            behind.update(users[at])
        else:
            found |= behind

    def sources(name: str) -> set[str]:
        """Return what an output is made of in the same places."""
        made = {name}
        while nodes[name].op in ENDS:
            name = nodes[name].inputs[0]
            made.add(name)
        return made

    # Where one of several masks is read for something else, too, the least number stays in all of them.
    return tuple(i for i, output in enumerate(outputs) if output in found and not read & sources(output))


def undefined(c: Call, name: str) -> Value | None:
    """Return where a value is NaN because a softmax read rows in which -inf was put everywhere; None where none did.

    Programs put the least float32 number there, of which the softmax is the same everywhere.
    """
    if name not in c.builder.undefined:
        c.builder.undefined[name] = _undefined(c, name)
    return c.builder.undefined[name]


def _undefined(c: Call, name: str) -> Value | None:
    node = c.builder.nodes[name]
    shape = node.shape
    if node.op == "softmax":
        mask = minus_infinity(c, node.inputs[0])
        axis = node.attrs["axis"] - len(shape) + (len(c.shape(mask)) if mask is not None else 0)
        return None if mask is None or axis < 0 else in_rows(c, mask, axis, "amin", name)
    if node.op in ("add", "mul", "sub"):
        return next((found for given in node.inputs if (found := undefined(c, given)) is not None), None)
    found = undefined(c, node.inputs[0]) if node.op in (*ROWS, *MOVES, *SAME) else None
    if found is None or node.op in SAME:
        return found
    if node.op in ROWS:
        return in_rows(c, found, len(shape) - 1, "amax", name)
    others = [Value(given, c.builder.new_storage()) for given in node.inputs[1:]]
    return c.move(node.op, found, *others, out=shape, **node.attrs)


def in_rows(c: Call, mask: Value, axis: int, fn: str, name: str) -> Value:
    """Record for the shape of a named value whether a mask is true everywhere (amin) or somewhere (amax) in a row."""
    out, most = c.builder.nodes[name].shape, torch.finfo(torch.float32).max
    thin = tuple(1 if at == axis else size for at, size in enumerate(c.shape(mask)))
    ones = c.cast(mask, "int64")
    row = c.emit("reduce", ones, out=thin, out_dtype="int64", fn=fn, dims=[axis], keepdim=True)
    like = c.emit("compare", Value(name, c.builder.new_storage()), out=out, out_dtype="bool", fn="gt", value=most)
    count = c.emit("add", c.cast(like, "int64"), row, out=out, out_dtype="int64")
    return c.emit("compare", count, out=out, out_dtype="bool", fn="ne", value=0)


def minus_infinity(c: Call, name: str) -> Value | None:
    """Return where a value is -inf because that was put there, or added; None where it is not known."""
    node = c.builder.nodes[name]
    if name in c.builder.minus_infinite:
        return Value(node.inputs[1], c.builder.new_storage())
    if node.op == "add":
        return next((m for m in (minus_infinity(c, given) for given in node.inputs) if m is not None), None)
    if node.op not in ("reshape", "expand", "permute"):
        return None
    mask = minus_infinity(c, node.inputs[0])
    if mask is None or c.shape(mask) != c.builder.nodes[node.inputs[0]].shape:
        return None
    others = [Value(given, c.builder.new_storage()) for given in node.inputs[1:]]
    return c.move(node.op, mask, *others, out=node.shape, **node.attrs)
