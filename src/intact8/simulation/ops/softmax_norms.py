"""softmax and norms on integers: what their stored numbers are, and their integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intact8.arithmetic import torch_nonlinear
from intact8.arithmetic.dimensions import known
from intact8.arithmetic.norms import MIDDLE, epsilon_steps, gain_offset
from intact8.arithmetic.softmax import softmax_table
from intact8.capture.graph import Node
from intact8.opset import KINDS
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.scales.quant_points import QuantPoint

NONLINEAR = frozenset(name for name, kind in KINDS.items() if kind.nonlinear and not kind.rows_by_index)
"""Operations of this module. Their numbers follow from scales and parameters, so nothing is solved for or kept."""


def softmax_levels(y: QuantPoint) -> float:
    """1/s_y, rounded to float32."""
    return float(np.float32(1.0 / float(y.scale)))


def _shape(node: Node) -> list[int]:
    """Of gain and offset."""
    shape: list[int] = known(node.shape[1:2]) if node.op == "group_norm" else node.attrs["shape"]
    return shape


def norm_epsilon(node: Node, x: QuantPoint) -> float:
    """ε of a norm in squared steps of its input ``x``."""
    n = math.prod(known(node.shape[1:])) // node.attrs["groups"] if "groups" in node.attrs else math.prod(_shape(node))
    return epsilon_steps(node.attrs["eps"], float(x.scale), n)


def norm_arrays(node: Node, params: Mapping[str, Tensor], y: QuantPoint) -> dict[str, npt.NDArray[Any]]:
    """gain and offset of a norm, float32 of its shape, of a group norm (C,)."""
    shape = _shape(node)
    weight, bias = (
        params[role].detach().double().cpu().numpy() if role in params else None for role in ("weight", "bias")
    )
    gain, offset = gain_offset(weight, bias, math.prod(shape), float(y.scale), int(y.zero_point))
    return {"gain": gain.reshape(shape), "offset": offset.reshape(shape)}


def program_form(
    node: Node, params: Mapping[str, Tensor], x: QuantPoint, y: QuantPoint
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Attributes, but for the clamp, and arrays of the program's operation.

    Args:
        node: of NONLINEAR.
        params: parameters by role.
        x, y: points of its input and output.
    """
    if node.op == "softmax":
        attrs = {"axis": node.attrs["axis"] % len(node.shape), "levels": softmax_levels(y)}
        return attrs, {"table": softmax_table(float(x.scale))}
    key = "groups" if node.op == "group_norm" else "shape"
    return {key: node.attrs[key], "eps": norm_epsilon(node, x)}, norm_arrays(node, params, y)


def nonlinear_integers(
    node: Node, x: Quantized, masked: list[Tensor], params: Mapping[str, Tensor], y: QuantPoint
) -> Tensor:
    """Integers minus zero point, float32: those of the program's op, by the same operations.

    Args:
        node: of NONLINEAR.
        x: its input.
        masked: the mask of a softmax, if it has one.
        params: parameters by role.
        y: the point of its output.
    """
    q, z = x.integers(), int(y.zero_point)
    if node.op == "softmax":
        table = torch.from_numpy(softmax_table(float(x.point.scale))).to(q.device, torch.float32)
        levels = torch.tensor(softmax_levels(y), device=q.device)
        result = torch_nonlinear.softmax(q, table, node.attrs["axis"], levels, z, y.lo, y.hi, *masked)
    else:
        arrays = norm_arrays(node, params, y)
        gain, offset = (torch.from_numpy(arrays[role]).to(q.device) for role in ("gain", "offset"))
        eps, groups = norm_epsilon(node, x.point), node.attrs.get("groups")
        if groups is not None:
            return torch_nonlinear.group_norm(q, groups, gain, offset, eps, y.lo, y.hi).to(torch.float32) - z
        shift, centered = (MIDDLE, True) if node.op == "layer_norm" else (x.zero_point, False)
        result = torch_nonlinear.normalize(q, shift, centered, gain, offset, eps, y.lo, y.hi)
    return result.to(torch.float32) - z
