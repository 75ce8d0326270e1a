"""Float weights and biases with batch norm and equalization folded in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import apply_act
from intact8.capture.graph import Node
from intact8.placement.rescale_groups import bounded

from .layout import per_input, per_output

EQUALIZE = {"equalize.in", "equalize.out"}
"""Roles of equalization factors."""


def own_params(node: Node, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of a node without a layer's weight, by role, with its equalization factor folded in.

    A constant, and the weight and bias of a norm, are divided by the factor of their channels. Weight and bias of a
    norm get its shape.
    """
    params = {role: tensors[name] for role, name in node.params.items()}
    if node.op in ("layer_norm", "rms_norm"):
        params |= {role: params[role].reshape(node.attrs["shape"]) for role in ("weight", "bias") if role in params}
    factor = params.pop("equalize.out", None)
    if factor is None:
        return params
    if node.op == "constant":
        behind = [1] * (len(node.shape) - 1 - node.attrs["channel_axis"])
        return {"value": params["value"] / factor.reshape(-1, *behind)}
    weight = params.get("weight", torch.ones_like(factor)) / factor
    return {"weight": weight, **({"bias": params["bias"] / factor} if "bias" in params else {})}


def batch_norm_factor(node: Node, tensors: Mapping[str, Tensor], role: str = "bn") -> Tensor:
    """Return γ / √(running_var + ε), (C,), of the batch norm behind (``bn``) or before (``pre``) the layer."""
    p = node.params
    inverse = 1 / torch.sqrt(tensors[p[f"{role}.running_var"]] + node.attrs[role]["eps"])
    return tensors[p[f"{role}.weight"]] * inverse if f"{role}.weight" in p else inverse


def folded(node: Node, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias with batch norm folded in: W·γ/√(σ²+ε), (b − µ)·γ/√(σ²+ε) + β.

    The weight has the module's own layout, (C,) for scale_shift; the bias is (O,) or None.
    """
    weight, factor, bias = factored(node, tensors)
    return weight if factor is None else weight * factor, bias


def factored(node: Node, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return weight, the factor of a batch norm that broadcasts against it or None, and bias, as in :func:`folded`."""
    p = node.params
    weight = tensors[p["weight"]] if "weight" in p else None
    bias = tensors[p["bias"]] if "bias" in p else None
    factor: Tensor | None = None
    if "pre" in node.attrs:
        assert weight is not None
        weight, bias = fold_before(node, tensors, weight, bias)
    if "bn" in node.attrs:
        after = batch_norm_factor(node, tensors)
        shift = -tensors[p["bn.running_mean"]] if bias is None else bias - tensors[p["bn.running_mean"]]
        bias = shift * after
        if "bn.bias" in p:
            bias = bias + tensors[p["bn.bias"]]
        if weight is None:
            weight = after
        else:
            factor = per_output(after, weight, node)
    if factor is not None:
        assert weight is not None
        if node.op != "scale_shift" and not p.keys() & EQUALIZE:
            return weight, factor, bias
        weight = weight * factor
    if node.op == "scale_shift":
        channels = node.shape[1]
        assert isinstance(channels, int)
        if weight is None:
            # The node is a shift, or a PReLU with one slope per channel.
            weight = torch.ones(channels, device=next(tensors[name] for name in p.values()).device)
        weight = weight.reshape(-1).expand(channels)
        bias = None if bias is None else bias.reshape(-1).expand(channels)
    assert weight is not None
    if "equalize.in" in p:
        weight = weight * per_input(tensors[p["equalize.in"]], weight, node)
    if "equalize.out" in p:
        after = 1 / tensors[p["equalize.out"]]
        weight = weight * per_output(after, weight, node)
        bias = None if bias is None else bias * after
    return weight, None, bias


def fold_before(
    node: Node, tensors: Mapping[str, Tensor], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return weight and bias with the batch norm before the layer folded in: W·γ', b + W·β' (without padding)."""
    p = node.params
    factor = batch_norm_factor(node, tensors, "pre")
    shift = -tensors[p["pre.running_mean"]] * factor
    if "pre.bias" in p:
        shift = shift + tensors[p["pre.bias"]]
    moved = (weight * per_input(shift, weight, node)).flatten(1).sum(1)
    return weight * per_input(factor, weight, node), moved if bias is None else bias + moved


def activate(node: Node, tensors: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Apply the activation fused into a layer in float, also where channels are divided by equalization factors."""
    act = node.attrs.get("act")
    params = {role: tensors[name] for role, name in node.params.items() if role.startswith("act.")}
    if "equalize.out" not in node.params or not bounded(act):
        return apply_act(y, act, params)
    factor = tensors[node.params["equalize.out"]]
    factor = factor if node.op == "linear" else factor.reshape(-1, *[1] * (y.dim() - 2))
    return apply_act(y * factor, act, params) / factor


def apply_batch_norm(node: Node, tensors: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Apply the batch norm behind the layer with its running statistics."""
    p, bn = node.params, node.attrs["bn"]
    weight, bias = (tensors[p[r]] if r in p else None for r in ("bn.weight", "bn.bias"))
    mean, var = tensors[p["bn.running_mean"]], tensors[p["bn.running_var"]]
    return torch.nn.functional.batch_norm(y, mean, var, weight, bias, False, 0.0, bn["eps"])


def is_leaky(node: Node) -> bool:
    """Return whether the node has a multiplier of its own for negative sums."""
    return node.attrs.get("act", {}).get("kind") in ("leaky_relu", "prelu")
