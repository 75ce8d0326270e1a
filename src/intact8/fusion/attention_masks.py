"""Masks of scores as booleans: what is added to hide positions becomes an input of the softmax behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from intact8.capture.graph import Node
from intact8.fusion.rewriter import Rewriter

FAR = -1e4
"""A score this far below the others does not count: exp(−1e4) is 0. Masks use this, −∞ or the smallest float."""

MOVED = frozenset({"reshape", "permute", "slice", "expand"})
"""Moves that carry a mask to the shape of the scores."""


def masks_into_softmax(work: Rewriter, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every softmax of masked scores the bare scores and a boolean input, true where a position is masked.

    A mask is a ``masked_fill`` with a number below ``FAR``, or a sum with a tensor that provably holds nothing but 0
    and such numbers: a constant, or arithmetic on booleans. A constant of other numbers and such is parted: what hides
    becomes the input, and the sum stays with the rest (ALiBi). Any other added tensor stays a sum.

    Returns:
        New constants by name.
    """
    made: dict[str, Tensor] = {}
    for node in list(work.graph):
        if node.op != "softmax" or len(node.inputs) > 1 or node.name not in work.graph.nodes:
            continue
        masker = work.producer(node)
        if not work.only_user(masker.name):
            continue
        for scores, masked in _candidates(masker):
            mask = masked if masker.op == "masked_fill" else _boolean(work, masked, node, tensors, made)
            if mask is not None:
                work.put(replace(node, inputs=[scores, mask], source=masker.parts + node.parts))
                work.note(masker.name, f"fused into {node.name}")
                work.prune(masker.name)
                _drop_zeros(work, node.name, mask)
                break
            if parted := _parted(work, masked, masker, tensors, made):
                hidden, rest = parted
                work.put(replace(masker, inputs=[rest if name == masked else name for name in masker.inputs]))
                work.put(replace(node, inputs=[masker.name, hidden]))
                _drop_zeros(work, node.name, hidden)
                break
    return made


def _parted(
    work: Rewriter, name: str, before: Node, tensors: Mapping[str, Tensor], made: dict[str, Tensor]
) -> tuple[str, str] | None:
    """Return a node that is true where a constant hides a position, and one of its other numbers, 0 there; None where
    it is no constant that hides some."""
    node = work.graph.nodes[name]
    if f"{name}.rest" in work.graph.nodes:
        return f"{name}.masked", f"{name}.rest"
    if node.op in MOVED:
        inner = _parted(work, node.inputs[0], before, tensors, made)
        if inner is None:
            return None
        pairs = zip(inner, ("bool", node.dtype), ("masked", "rest"), strict=True)
        hidden, rest = (
            work.insert(
                replace(node, name=f"{name}.{what}", inputs=[of, *node.inputs[1:]], dtype=dtype, source=[]), before
            )
            for of, dtype, what in pairs
        )
        return hidden, rest
    value = tensors[node.params["value"]] if node.op == "constant" else None
    if value is None or not value.is_floating_point() or not bool((far := value <= FAR).any()):
        return None
    made[f"constants.{name}.masked"], made[f"constants.{name}.rest"] = far, value.masked_fill(far, 0.0)
    hidden = work.insert(
        replace(node, name=f"{name}.masked", params={"value": f"constants.{name}.masked"}, dtype="bool", source=[]),
        before,
    )
    return hidden, work.insert(
        replace(node, name=f"{name}.rest", params={"value": f"constants.{name}.rest"}, source=[]), before
    )


def _drop_zeros(work: Rewriter, softmax: str, mask: str) -> None:
    """Drop zeros that are written where ``mask`` hides a position from ``softmax``, which has ``zero_rows`` then.

    A row of hidden positions alone is zero there; without them, a float softmax of equal scores gives the mean.
    """
    for name in dict.fromkeys(work.users(softmax)):
        reader = work.graph.nodes[name]
        if reader.op == "masked_fill" and reader.inputs == [softmax, mask] and reader.attrs["value"] == 0:
            node = work.graph.nodes[softmax]
            work.put(replace(node, attrs={**node.attrs, "zero_rows": True}))
            work.note(name, f"fused into {softmax}")
            work.drop(reader, softmax)


def _candidates(masker: Node) -> list[tuple[str, str]]:
    """Return pairs (scores, mask) as ``masker`` may combine them."""
    if masker.op == "masked_fill":
        return [(masker.inputs[0], masker.inputs[1])] if masker.attrs["value"] <= FAR else []
    if masker.op == "add":
        a, b = masker.inputs
        return [(a, b), (b, a)]
    return []


def _boolean(
    work: Rewriter, name: str, before: Node, tensors: Mapping[str, Tensor], made: dict[str, Tensor]
) -> str | None:
    """Return a node that is true where the tensor ``name`` hides a position; None where it is not a mask."""
    node = work.graph.nodes[name]
    values = _values(work, node, tensors)
    if node.op in MOVED and (inner := _boolean(work, node.inputs[0], before, tensors, made)) is not None:
        return work.insert(
            replace(node, name=f"{name}.masked", inputs=[inner, *node.inputs[1:]], dtype="bool", source=[]), before
        )
    if values is None or not all(v == 0 or v <= FAR for v in values):
        return None
    held = tensors.get(node.params.get("value", "")) if node.op == "constant" else None
    if isinstance(held, nn.Parameter) or (held is not None and held.requires_grad):
        return None  # a bias that begins with zeros hides nothing
    source = _source(work, node)
    if source is not None and {source[1], source[2]} != {0.0}:
        boolean, no, _, moves = source
        mask = boolean.name
        if no != 0:
            mask = _compared(work, f"{mask}.not", boolean, {"fn": "eq", "value": 0}, before)
        for move in moves:
            moved = replace(move, name=f"{move.name}.masked", inputs=[mask, *move.inputs[1:]], dtype="bool", source=[])
            mask = work.insert(moved, before)
        return mask
    if node.op == "constant":
        made[f"constants.{name}.masked"] = tensors[node.params["value"]] <= FAR
        params = {"value": f"constants.{name}.masked"}
        return work.insert(replace(node, name=f"{name}.masked", params=params, dtype="bool", source=[]), before)
    if node.op == "masked_fill" and work.graph.nodes[node.inputs[1]].shape == node.shape:
        filled = _values(work, work.producer(node), tensors)
        if filled == {0.0}:
            return node.inputs[1]
    return _compared(work, f"{name}.masked", node, {"fn": "le", "value": FAR}, before)


def _source(work: Rewriter, node: Node) -> tuple[Node, float, float, list[Node]] | None:
    """Return the boolean that arithmetic with numbers started from, what it made of false and true, and moves on the
    way."""
    if node.dtype == "bool":
        return node, 0.0, 1.0, []
    if node.op not in ("cast", "affine_scalar", *MOVED) or (inner := _source(work, work.producer(node))) is None:
        return None
    boolean, no, yes, moves = inner
    if node.op == "affine_scalar":
        no, yes = (v * node.attrs["mul"] + node.attrs["add"] for v in (no, yes))
    return boolean, no, yes, [*moves, node] if node.op in MOVED else moves


def _compared(work: Rewriter, name: str, node: Node, attrs: dict[str, Any], before: Node) -> str:
    """Return a comparison of ``node`` with a number."""
    made = Node(name, "compare", [node.name], attrs, {}, node.module, node.module_type, node.shape, "bool")
    return work.insert(made, before)


def _values(work: Rewriter, node: Node, tensors: Mapping[str, Tensor]) -> set[float] | None:
    """Return the all numbers ``node`` can hold, where they are provably few; None otherwise."""
    if node.dtype == "bool":
        return {0.0, 1.0}
    if node.op == "constant":
        found = torch.unique(tensors[node.params["value"]].detach())
        return {float(v) for v in found} if len(found) <= 4 else None
    if node.op not in ("cast", "affine_scalar", "masked_fill", *MOVED):
        return None
    inner = _values(work, work.producer(node), tensors)
    if inner is None:
        return None
    if node.op == "affine_scalar":
        return {v * node.attrs["mul"] + node.attrs["add"] for v in inner}
    return inner | {node.attrs["value"]} if node.op == "masked_fill" else inner
