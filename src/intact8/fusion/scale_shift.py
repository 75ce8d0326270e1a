"""Arithmetic with per-channel constants (ConvNeXt's layer scale, (x − mean) / std) as ``scale_shift``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from intact8.capture.graph import Graph, Node
from intact8.fusion.rewriter import Rewriter

_ROLE = {"add": "bias", "sub": "bias", "mul": "weight", "div": "weight"}


def constants_to_scale_shift(work: Rewriter, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn add, sub, mul and div with a constant that varies along dimension 1 only into ``scale_shift``.

    ``x·c`` and ``x + c`` refer to the constant itself, which may be a parameter in training. ``x − c`` and ``x / c``
    need −c and 1/c: those are new constants, made only where c is not trained.

    Returns:
        The new constants by name.
    """
    made: dict[str, Tensor] = {}
    for node in list(work.graph):
        operand = _operand(work.graph, node)
        if operand is None:
            continue
        x, constant = operand
        param, role = constant.params["value"], _ROLE[node.op]
        if node.op in ("sub", "div"):
            if tensors[param].requires_grad:
                continue
            value = tensors[param].detach()
            param = f"constants.{node.name}.{role}"
            made[param] = (-value if node.op == "sub" else value.reciprocal()).reshape(-1)
        work.put(replace(node, op="scale_shift", inputs=[x.name], attrs={}, params={role: param}))
        work.note(node.name, f"scale_shift: {node.op} with one constant per channel")
    _merge_pairs(work, tensors, made)
    return made


def _operand(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return (x, constant) where ``node`` combines a tensor with a per-channel constant."""
    if node.op not in _ROLE or node.dtype != "float32" or len(node.shape) < 2:
        return None
    x, c = (graph.nodes[i] for i in node.inputs)
    if x.op == "constant" and node.op in ("add", "mul"):
        x, c = c, x
    constant = c.op == "constant" and x.op != "constant" and c.dtype == x.dtype == "float32"
    rank = len(node.shape)
    if not constant or x.shape != node.shape or len(c.shape) > rank:
        return None
    aligned = (1,) * (rank - len(c.shape)) + tuple(c.shape)
    flat = all(size == 1 for axis, size in enumerate(aligned) if axis != 1)
    return (x, c) if flat and aligned[1] in (1, node.shape[1]) and isinstance(node.shape[1], int) else None


def _merge_pairs(work: Rewriter, tensors: Mapping[str, Tensor], made: dict[str, Tensor]) -> None:
    """Turn (x + b)·w into x·w + b·w, where both are constants that are not trained: one rounding instead of two."""
    known = {**tensors, **made}
    for node in list(work.graph):
        if node.op != "scale_shift" or node.name not in work.graph.nodes:
            continue
        first = work.producer(node)
        if first.op != "scale_shift" or not work.only_user(first.name):
            continue
        if any(known[p].requires_grad for p in (*first.params.values(), *node.params.values())):
            continue
        w1, b1, w2, b2 = (
            known[n.params[r]].detach().reshape(-1) if r in n.params else None
            for n in (first, node)
            for r in ("weight", "bias")
        )
        values = {
            "weight": w1 * w2 if w1 is not None and w2 is not None else (w2 if w1 is None else w1),
            "bias": (b1 * w2 if w2 is not None else b1) if b1 is not None else None,
        }
        if b2 is not None:
            values["bias"] = b2 if values["bias"] is None else values["bias"] + b2
        params = {}
        for role, value in values.items():
            if value is not None:
                params[role] = f"constants.{first.name}.{role}.merged"
                made[params[role]] = known[params[role]] = value.clone()
        work.merge(first, node, params=params)
        work.note(node.name, f"fused into {first.name}")
