"""From float weights to integers: folding, the order of channels, rounding. The same code for training and shipping."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intact8.capture.graph import Node

from .exact import EXACT
from .gradient import round_ste
from .grid import Limits, on_grid, two_largest

EQUALIZE = {"equalize.in", "equalize.out"}
"""Roles of equalization factors."""


def own_params(node: Node, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a node that is no layer, by role, with its equalization factor folded in.

    A constant, and the weight and bias of a layer norm, are divided by the factor of their channels. Weight and bias of
    a norm have its shape, whatever shape they were broadcast from.
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


def output_first(weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """The weight as (O, …): identity unless transposed, where (I, O/groups, …) is regrouped."""
    if not transposed:
        return weight
    i, per_group = weight.shape[:2]
    w = weight.reshape(groups, i // groups, per_group, -1).permute(0, 2, 1, 3)
    return w.reshape(groups * per_group, -1)


def per_output(values: Tensor, weight: Tensor, groups: int, transposed: bool) -> Tensor:
    """One value per output channel, shaped to broadcast against ``weight``."""
    if not transposed:
        return values.reshape(-1, *[1] * (weight.dim() - 1))
    i, per_group = weight.shape[:2]
    v = values.reshape(groups, 1, per_group).expand(groups, i // groups, per_group)
    return v.reshape(i, per_group, *[1] * (weight.dim() - 2))


def batch_norm_factor(node: Node, tensors: Mapping[str, Tensor], role: str = "bn") -> Tensor:
    """γ / √(running_var + ε), shape (C,), of the batch norm behind (``bn``) or before (``pre``) the layer."""
    p = node.params
    inverse = 1 / torch.sqrt(tensors[p[f"{role}.running_var"]] + node.attrs[role]["eps"])
    return tensors[p[f"{role}.weight"]] * inverse if f"{role}.weight" in p else inverse


def folded(node: Node, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with batch norm folded in: W·γ/√(σ²+ε), (b − µ)·γ/√(σ²+ε) + β.

    Args:
        node: conv, linear or scale_shift.
        tensors: parameters and buffers by name.

    Returns:
        weight in the module's own layout ((C,) for scale_shift), bias (O,) or None.
    """
    weight, factor, bias = factored(node, tensors)
    return weight if factor is None else weight * factor, bias


def factored(node: Node, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """:func:`folded` with the last product left undone where it is one by a batch norm's factor.

    Returns:
        weight, what it is to be multiplied by (broadcasts against it) or None, and the bias (O,) or None.
    """
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
            factor = per_output(after, weight, groups_of(node), transposed(node))
    if factor is not None and weight is not None and node.op != "scale_shift" and not p.keys() & EQUALIZE:
        return weight, factor, bias
    if factor is not None and weight is not None:
        weight = weight * factor
    if node.op == "scale_shift":
        channels = node.shape[1]
        assert isinstance(channels, int)
        if weight is None:
            # A shift alone, or a PReLU with one slope per channel.
            weight = torch.ones(channels, device=next(tensors[name] for name in p.values()).device)
        weight = weight.reshape(-1).expand(channels)
        bias = None if bias is None else bias.reshape(-1).expand(channels)
    assert weight is not None
    if "equalize.in" in p:
        weight = weight * per_input(tensors[p["equalize.in"]], weight, groups_of(node))
    if "equalize.out" in p:
        after = 1 / tensors[p["equalize.out"]]
        weight = weight * per_output(after, weight, groups_of(node), transposed(node))
        bias = None if bias is None else bias * after
    return weight, None, bias


def fold_before(
    node: Node, tensors: Mapping[str, Tensor], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weight and bias with the batch norm before the layer folded in: W·γ', b + W·β' (no padding in between)."""
    p = node.params
    factor = batch_norm_factor(node, tensors, "pre")
    shift = -tensors[p["pre.running_mean"]] * factor
    if "pre.bias" in p:
        shift = shift + tensors[p["pre.bias"]]
    moved = (weight * per_input(shift, weight, groups_of(node))).flatten(1).sum(1)
    return weight * per_input(factor, weight, groups_of(node)), moved if bias is None else bias + moved


def apply_batch_norm(node: Node, tensors: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Batch norm behind the layer with its running statistics."""
    p, bn = node.params, node.attrs["bn"]
    weight, bias = (tensors[p[r]] if r in p else None for r in ("bn.weight", "bn.bias"))
    mean, var = tensors[p["bn.running_mean"]], tensors[p["bn.running_var"]]
    return torch.nn.functional.batch_norm(y, mean, var, weight, bias, False, 0.0, bn["eps"])


def per_input(values: Tensor, weight: Tensor, groups: int) -> Tensor:
    """One value per input channel, shaped to broadcast against a weight (O, I/groups, …) that is not transposed."""
    rest = [1] * (weight.dim() - 2)
    if groups == 1:
        return values.reshape(1, -1, *rest)
    per_group = values.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
    return per_group.reshape(weight.shape[0], -1, *rest)


def corrected_bias(
    node: Node, tensors: Mapping[str, Tensor], weight: Tensor, bias: Tensor | None, scale: Tensor, lo: int, hi: int
) -> Tensor | None:
    """The bias without the mean error of the rounded weight: b − E[(ŵ − w)·x] (Nagel et al. 2019, section 4.2).

    Args:
        weight, bias: folded.
        scale: of the weight, (O,).
        lo, hi: its integer range.

    Returns:
        ``bias`` itself where the node has no record of its mean input (``correct.mean``, (I,)).
    """
    if "correct.mean" not in node.params:
        return bias
    mean = tensors[node.params["correct.mean"]]
    rounded = integer_weight(node, weight, scale, lo, hi) * per_output(scale, weight, groups_of(node), transposed(node))
    error = (rounded - weight).detach()
    shift = (error * per_input(mean, weight, groups_of(node))).flatten(1).sum(1)
    return -shift if bias is None else bias - shift


def groups_of(node: Node) -> int:
    """Groups of a convolution; 1 for everything else."""
    return int(node.attrs.get("groups", 1))


def transposed(node: Node) -> bool:
    """Whether the node is a transposed convolution."""
    return bool(node.attrs.get("transposed", False))


def integer_weight(node: Node, weight: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
    """``clamp(round(w / s), lo, hi)`` as float32 integers without gradient, for a folded weight and s (O,)."""
    return on_grid(weight, None, per_output(scale, weight, groups_of(node), transposed(node)), Limits(lo, hi)).q


LARGEST_PAIR = 128.0
"""Two integers of a channel may add up to this on CPUs without VNNI: 128·255 ≤ 32767."""


def held_limits(node: Node, weight: Tensor, scale: Tensor, lo: int, hi: int) -> Limits | None:
    """What clips integers of a grid that stays while weights grow, so that no pair of a channel can saturate.

    The two largest of every channel then add up to LARGEST_PAIR at most. What sticks out is clipped, as it is at the
    ends of the integer range; all weights of a channel share one bound, the largest that will do.

    Args:
        node: conv, linear or scale_shift (which multiplies by one weight only, so that there are no pairs).
        weight: folded, in the module's layout.
        scale: (O,).
        lo, hi: ends of the integer range.

    Returns:
        None where nothing sticks out.
    """
    rows = output_first(weight.detach(), groups_of(node), transposed(node))
    rows = rows.reshape(len(rows), -1)
    if rows.shape[1] < 2:
        return Limits(lo, hi)
    first, second = (two_largest(rows.abs()) / scale.detach()[:, None]).round_().unbind(1)
    bound = torch.clamp(LARGEST_PAIR - second, min=LARGEST_PAIR / 2, max=min(-lo, hi))
    if not (first > bound).any():
        return None
    return Limits(lo, hi, per_output(bound, weight, groups_of(node), transposed(node)))


def integer_bias(bias: Tensor | None, grid: Tensor) -> Tensor:
    """``round(b / (s_x·s_w))`` as float64 integers within int32, straight-through gradient."""
    if bias is None:
        return torch.zeros_like(grid, dtype=torch.float64)
    return torch.clamp(round_ste(bias.double() / grid), -(2.0**31) + 1, 2.0**31 - 1)


def partial_sum_bound(node: Node, weight: Tensor, zero_point: int, lo: int, hi: int) -> Tensor:
    """Largest magnitude any partial sum of Σ (x − z)·w can reach, per output channel, float64.

    For x in lo..hi the terms of one sign add up to at most Σ w⁺·(hi − z) + Σ w⁻·(z − lo), or the mirror of it.
    """
    w = output_first(weight.detach(), groups_of(node), transposed(node))
    w = w.reshape(len(w), -1)
    if w.shape[1] * 128 >= EXACT:
        w = w.double()
    total, magnitude = w.sum(1).double(), w.abs().sum(1).double()
    up, down = (magnitude + total) / 2, (magnitude - total) / 2
    above, below = float(hi - zero_point), float(zero_point - lo)
    return torch.maximum(up * above + down * below, down * above + up * below)
