"""Functions of one number as ``table`` nodes: 256 entries each, however many functions follow one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from intact8.capture.graph import Node
from intact8.capture.operations import UNIVARIATE
from intact8.fusion.rewriter import Rewriter


def to_tables(work: Rewriter, tensors: Mapping[str, Tensor]) -> None:
    """Make every run of elementwise functions one ``table`` node, named like the last of them.

    ``attrs["chain"]`` lists {"op", "attrs"} in the order they apply; the slope of a PReLU at position i is the
    parameter ``chain.i.weight``. A function whose input somebody else reads as well starts a new table.
    """
    for node in list(work.graph):
        if node.op not in UNIVARIATE:
            continue
        reason = _no_table(work, node, tensors)
        if reason:
            work.note(node.name, f"float: {reason}")
            continue
        chain, params, source = [_step(node)], _slope(node, 0), node.parts
        before = work.producer(node)
        if before.op == "table" and work.only_user(before.name):
            chain = [*before.attrs["chain"], *chain]
            params = {**before.params, **_slope(node, len(chain) - 1)}
            source = before.parts + source
            node = replace(node, inputs=list(before.inputs))
            work.remove(before)
        work.put(replace(node, op="table", attrs={"chain": chain}, params=params, source=source))
        work.note(node.name, "table")


def _no_table(work: Rewriter, node: Node, tensors: Mapping[str, Tensor]) -> str | None:
    if node.dtype != "float32" or work.producer(node).dtype != "float32":
        return f"its numbers are {work.producer(node).dtype} → {node.dtype}, not float32"
    if node.op == "prelu" and tensors[node.params["weight"]].numel() != 1:
        return "one PReLU slope per channel is not one table, and the recipe fuses no leaky activation"
    return None


def _step(node: Node) -> dict[str, Any]:
    return {"op": node.op, "attrs": dict(node.attrs)}


def _slope(node: Node, index: int) -> dict[str, str]:
    return {f"chain.{index}.weight": node.params["weight"]} if node.op == "prelu" else {}
