"""Slices of a concatenation read its parts: a class token among patches is not rounded on their grid."""

from __future__ import annotations

from dataclasses import replace

from intact8.capture.graph import Node
from intact8.fusion.rewriter import Rewriter


def slices_of_parts(work: Rewriter) -> None:
    """Let every slice of a ``cat`` along its axis that lies within one operand read that operand.

    A slice that is a whole operand disappears, and so does a concatenation nobody reads any more.
    """
    for node in list(work.graph):
        if node.op != "slice" or node.attrs["step"] != 1:
            continue
        cat = work.producer(node)
        found = _part(work, cat, node) if cat.op == "cat" and cat.attrs["axis"] == node.attrs["axis"] else None
        if found is None:
            continue
        part, offset = found
        start, end = node.attrs["start"] - offset, node.attrs["end"] - offset
        last = work.only_user(cat.name)
        source = [*(cat.parts if last else []), *node.parts]
        if start == 0 and end == part.shape[node.attrs["axis"]] and part.op not in ("constant", "input"):
            work.put(replace(part, source=part.parts + source))
            work.drop(node, part.name)
        else:
            attrs = {**node.attrs, "start": start, "end": end}
            work.put(replace(node, inputs=[part.name], attrs=attrs, source=source))
        work.note(node.name, f"reads {part.name}, a part of {cat.name}")
        if last:
            work.prune(cat.name)


def _part(work: Rewriter, cat: Node, node: Node) -> tuple[Node, int] | None:
    """Return the operand of ``cat`` that ``node`` lies in, and where it begins."""
    axis, offset = cat.attrs["axis"], 0
    for name in cat.inputs:
        part = work.graph.nodes[name]
        size = part.shape[axis]
        if not isinstance(size, int) or not isinstance(node.attrs["end"], int) or part.dtype != node.dtype:
            return None
        if offset <= node.attrs["start"] and node.attrs["end"] <= offset + size:
            return part, offset
        offset += size
    return None
