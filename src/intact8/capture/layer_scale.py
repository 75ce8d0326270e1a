"""Factors of channels behind a linear layer, as layer scales and temperatures are, become part of its weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from intact8.capture.aten_call import Call, Value


def into_weight(c: Call) -> Value | None:
    """Return a product with one factor for each output of a linear layer as that layer's own, if nothing else reads it.

    W and the bias times the factors: what the layer gave is not rounded twice. They are computed again whenever the
    parameters change, and gradients reach them. None where it is no such product.
    """
    x, factors = c["self"], c["other"]
    left, right, *_ = *c.fx.args, *c.fx.kwargs.values(), None
    fx_x: Any = left
    if isinstance(x, Tensor):
        x, factors, fx_x = factors, x, right
    if c.op.endswith("_") or not (isinstance(x, Value) and isinstance(factors, Tensor)):
        return None
    nodes, name, axes = c.builder.nodes, x.name, list(range(len(c.shape(x))))
    while nodes[name].op == "permute" and _alone(fx_x):
        axes = [nodes[name].attrs["dims"][axis] for axis in axes]
        name, fx_x = nodes[name].inputs[0], fx_x.args[0]
    node = nodes[name]
    if node.op != "linear" or not _alone(fx_x) or factors.dtype != torch.float32 or factors.dim() > len(axes):
        return None
    held = c.builder.tensors()
    weight, bias = (held.get(node.params.get(role, "")) for role in ("weight", "bias"))
    if not isinstance(weight, nn.Parameter) or not (bias is None or isinstance(bias, nn.Parameter)):
        return None
    aligned = (1,) * (len(axes) - factors.dim()) + tuple(factors.shape)
    if any(size != 1 for axis, size in zip(axes, aligned, strict=True) if axis != len(axes) - 1):
        return None
    if max(aligned) not in (1, len(weight)):
        return None
    flat = factors.reshape(-1)
    c.builder.record([factors], torch.ops.aten.reshape.default, [factors, [-1]], {}, [flat])
    column = flat.reshape(-1, 1)
    c.builder.record([flat], torch.ops.aten.reshape.default, [flat, [-1, 1]], {}, [column])
    made: dict[str, Tensor] = {}
    for role, own, by in (("weight", weight, column), ("bias", bias, flat)):
        if own is not None:
            made[role] = own.detach() * by.detach()
            c.builder.record([own, by], torch.ops.aten.mul.Tensor, [own, by], {}, [made[role]])
    if any(c.builder.derivation(tensor, fx_x) is None for tensor in made.values()):
        return None
    params = {role: c.builder.tensor_name(tensor, fx_x, role) for role, tensor in made.items()}
    nodes[name] = replace(node, params=params)
    return c.value(x)


def _alone(node: Any) -> bool:
    """Return whether one operation reads what another gives; what a formula is given may be read outside of it."""
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and len(node.users) == 1
