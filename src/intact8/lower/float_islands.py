"""Float islands: float operations with their parameters as arrays."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.capture.masked_rows import ENDS
from intact8.capture.operations import FLOAT_KINDS, FUSED
from intact8.opset.op import Op
from intact8.program.names import part_name
from intact8.simulation.weights.folding import folded, own_params

LOWEST = float(np.finfo(np.float32).min)


def float_ops(
    node: Node, inputs: tuple[str, ...], tensors: Mapping[str, Tensor], nodes: Container[str] = (), **common: Any
) -> list[Op]:
    """Return the ops of one float node: fused parts are ops of their own, the last one has the name of the node.

    Args:
        node: to lower.
        inputs: what its first op reads, and what others do.
        tensors: parameters by name.
        nodes: names of all nodes, which no part may have.
        common: attributes that all ops get.
    """
    return _numbered(node.name, nodes, _parts(node, inputs, tensors, common))


def with_infinities(ops: Sequence[Op], outputs: Iterable[str]) -> list[Op]:
    """Return operations of which those put -inf that a mask puts into these outputs, in place of the least float32
    number, where nothing else reads it.

    Args:
        ops: of a program, in order.
        outputs: names of the outputs.
    """
    made, readers = {op.name: op for op in ops}, dict[str, list[Op]]()
    for op in ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    ends = {FLOAT_KINDS[op].name for op in ENDS}

    def is_returned(name: str) -> bool:
        """Return whether a result is read for outputs only."""
        return all(op.kind in ends and op.inputs[0] == name and is_returned(op.name) for op in readers.get(name, ()))

    for output in outputs:
        at = made.get(output)
        while at is not None and at.kind in ends and is_returned(at.name):
            if at.kind == "float.masked_fill" and at.attrs["value"] == LOWEST:
                made[at.name] = replace(at, attrs={**at.attrs, "value": -math.inf})
            at = made.get(at.inputs[0])
    return [made[op.name] for op in ops]


def _parts(node: Node, inputs: tuple[str, ...], tensors: Mapping[str, Tensor], common: dict[str, Any]) -> list[Op]:
    """Return the ops in order, all with the name of the node; "" stands for what the one before gives."""
    if node.op == "table":
        return _chain(node, inputs, tensors, common)
    attrs = {k: v for k, v in node.attrs.items() if k not in FUSED}
    factor = attrs.pop("mul") if node.op == "matmul" and "mul" in attrs else None
    if node.op in ("conv", "linear", "scale_shift"):
        weight, bias = folded(node, tensors)
        arrays = {"weight": _float32(weight)} | ({} if bias is None else {"bias": _float32(bias)})
    else:
        arrays = {role: _array(t) for role, t in own_params(node, tensors).items() if not role.startswith("act.")}
    if node.op == "requantize":
        return [Op(node.name, "float.affine_scalar", inputs, {"mul": 1.0, "add": 0.0}, **common)]
    kind = FLOAT_KINDS[node.op].name
    if node.op == "softmax" and len(inputs) == 2:
        fill = Op(node.name, "float.masked_fill", inputs, {"value": LOWEST}, **common)
        rows = [Op(node.name, "float.masked_fill", ("", inputs[1]), {"value": 0.0}, **common)]
        zero_rows = attrs.pop("zero_rows", False)
        return [fill, Op(node.name, kind, ("",), attrs, **common), *(rows if zero_rows else [])]
    if factor is not None:  # on the first operand: queries are fewer than scores
        scaled = Op(node.name, "float.affine_scalar", inputs[:1], {"mul": factor, "add": 0.0}, **common)
        return [scaled, Op(node.name, kind, ("", inputs[1]), attrs, **common)]
    residual = node.op in ("conv", "linear", "scale_shift") and len(inputs) > 1
    made = [Op(node.name, kind, inputs[:1] if residual else inputs, attrs, arrays, **common)]
    if residual:
        made.append(Op(node.name, "float.add", ("", inputs[1]), **common))
    if "act" in node.attrs:
        made.append(_activation(node, tensors, common))
    return made


def _numbered(name: str, nodes: Container[str], made: list[Op]) -> list[Op]:
    """Return the name the ops of a chain: every op but the last gets a number, and each feeds the next."""
    out: list[Op] = []
    for i, op in enumerate(made):
        inputs = op.inputs if i == 0 else (out[-1].name, *op.inputs[1:])
        out.append(replace(op, name=name if i == len(made) - 1 else part_name(name, i, nodes), inputs=inputs))
    return out


def _activation(node: Node, tensors: Mapping[str, Tensor], common: dict[str, Any]) -> Op:
    act = node.attrs["act"]
    attrs = {k: v for k, v in act.items() if k != "kind"}
    arrays = {"weight": _float32(tensors[node.params["act.weight"]])} if act["kind"] == "prelu" else {}
    return Op(node.name, f"float.{act['kind']}", ("",), attrs, arrays, **common)


def _chain(node: Node, inputs: tuple[str, ...], tensors: Mapping[str, Tensor], common: dict[str, Any]) -> list[Op]:
    made = []
    for i, step in enumerate(node.attrs["chain"]):
        role = f"chain.{i}.weight"
        arrays = {"weight": _float32(tensors[node.params[role]])} if role in node.params else {}
        made.append(Op(node.name, f"float.{step['op']}", inputs, dict(step.get("attrs", {})), arrays, **common))
    return made


def _float32(t: Tensor) -> Any:
    return t.detach().to(torch.float32).cpu().numpy()


def _array(t: Tensor) -> Any:
    a = t.detach().cpu().numpy()
    return a.astype(np.float32) if a.dtype in (np.float64, np.float16) else a
