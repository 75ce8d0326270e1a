"""The order of channels in a layer's weight, and numbers per channel that broadcast against it."""

from __future__ import annotations

from torch import Tensor

from intact8.capture.graph import Node


def groups_of(node: Node) -> int:
    """Return the groups of a convolution; 1 for every other layer."""
    return int(node.attrs.get("groups", 1))


def transposed(node: Node) -> bool:
    """Return whether the node is a transposed convolution."""
    return bool(node.attrs.get("transposed", False))


def output_channels(node: Node, weight: Tensor) -> int:
    """Return the number O of output channels of a weight in the module's layout."""
    return int(weight.shape[1]) * groups_of(node) if transposed(node) else int(weight.shape[0])


def output_first(weight: Tensor, node: Node) -> Tensor:
    """Return the weight as (O, …); a transposed convolution has (I, O/groups, …), which is regrouped."""
    if not transposed(node):
        return weight
    groups, (i, per_group) = groups_of(node), weight.shape[:2]
    w = weight.reshape(groups, i // groups, per_group, -1).permute(0, 2, 1, 3)
    return w.reshape(groups * per_group, -1)


def per_output(values: Tensor, weight: Tensor, node: Node) -> Tensor:
    """Return one value per output channel in a shape that broadcasts against ``weight``."""
    if not transposed(node):
        return values.reshape(-1, *[1] * (weight.dim() - 1))
    groups, (i, per_group) = groups_of(node), weight.shape[:2]
    v = values.reshape(groups, 1, per_group).expand(groups, i // groups, per_group)
    return v.reshape(i, per_group, *[1] * (weight.dim() - 2))


def per_input(values: Tensor, weight: Tensor, node: Node) -> Tensor:
    """Return one value per input channel in a shape that broadcasts against a weight that is not transposed."""
    rest, groups = [1] * (weight.dim() - 2), groups_of(node)
    if groups == 1:
        return values.reshape(1, -1, *rest)
    per_group = values.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
    return per_group.reshape(weight.shape[0], -1, *rest)
