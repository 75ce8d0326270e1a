"""A second, naive reading of the graph table, fused or not, in float64: what fusion must not change."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.capture.graph import Graph, Node


def evaluate(graph: Graph, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[Tensor]:
    values: dict[str, Tensor] = {}
    for node in graph:
        x = [values[i] for i in node.inputs]
        values[node.name] = inputs[node.name] if node.op == "input" else _node(node, x, tensors)
    return [values[name] for name in graph.outputs]


def _node(node: Node, x: list[Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
    p = {role: tensors[name].double() for role, name in node.params.items()}
    if node.op == "table":
        y = x[0]
        for i, step in enumerate(node.attrs["chain"]):
            y = _plain(step["op"], step["attrs"], [y], {"weight": p.get(f"chain.{i}.weight")})
        return y
    if "pre" in node.attrs:
        role = {k.removeprefix("pre."): v for k, v in p.items() if k.startswith("pre.")}
        x = [_plain("batch_norm", node.attrs["pre"], [x[0]], role), *x[1:]]
    y = _plain(node.op, node.attrs, x[:1] if node.op in ("conv", "linear") else x, p)
    if "bn" in node.attrs:
        role = {k.removeprefix("bn."): v for k, v in p.items() if k.startswith("bn.")}
        y = _plain("batch_norm", node.attrs["bn"], [y], role)
    if node.op in ("conv", "linear") and len(x) > 1:
        y = y + x[1]
    act = node.attrs.get("act")
    return y if act is None else _plain(act["kind"], act, [y], {"weight": p.get("act.weight")})


def _plain(op: str, a: Mapping, x: list[Tensor], p: Mapping) -> Tensor:
    if op in ("add", "sub", "mul", "div"):
        return getattr(torch, op)(x[0], x[1])
    if op == "batch_norm":
        return F.batch_norm(x[0], p["running_mean"], p["running_var"], p["weight"], p["bias"], eps=a["eps"])
    if op == "scale_shift":
        shape = (1, -1, *[1] * (x[0].dim() - 2))
        y = x[0] * p["weight"].reshape(shape) if "weight" in p else x[0]
        return y + p["bias"].reshape(shape) if "bias" in p else y
    unary = {
        "constant": lambda: p["value"],
        "conv": lambda: F.conv2d(x[0], p["weight"], p.get("bias")),
        "linear": lambda: F.linear(x[0], p["weight"], p.get("bias")),
        "relu": lambda: F.relu(x[0]),
        "clamp": lambda: torch.clamp(x[0], a["min"], a["max"]) if (a["min"], a["max"]) != (None, None) else x[0],
        "leaky_relu": lambda: F.leaky_relu(x[0], a["slope"]),
        "prelu": lambda: F.prelu(x[0], p["weight"]),
        "affine_scalar": lambda: x[0] * a["mul"] + a["add"],
        "unary": lambda: getattr(torch, a["fn"])(x[0]),
        "matmul": lambda: torch.matmul(x[0], x[1]) * a.get("mul", 1.0),
        "softmax": lambda: x[0].softmax(a["axis"]),
        "dropout": lambda: x[0],
        "max_pool": lambda: x[0],
        "cat": lambda: torch.cat(x, a["axis"]),
        "mean": lambda: x[0].mean(a["dims"], keepdim=a["keepdim"]),
    }
    return unary[op]()
