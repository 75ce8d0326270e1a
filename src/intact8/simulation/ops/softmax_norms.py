"""Softmax and norms on integers: the numbers that the program stores for them, and their integers."""

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
from intact8.simulation.ops.integer_op import IntegerOp
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.scales.quant_points import QuantPoint

Form = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]
"""Attributes, but for the clamp, and arrays of the program's operation. They follow from scales and parameters."""


def program_form(node: Node, params: Mapping[str, Tensor], x: QuantPoint, y: QuantPoint) -> Form:
    """Return what the program stores for a softmax or a norm between points ``x`` and ``y``."""
    if node.op == "softmax":
        attrs = {"axis": node.attrs["axis"] % len(node.shape), "levels": float(np.float32(1.0 / y.scale_value))}
        return attrs, {"table": softmax_table(x.scale_value)}
    if node.op == "group_norm":
        key, shape = "groups", known(node.shape[1:2])
        count = math.prod(known(node.shape[1:])) // node.attrs["groups"]
    else:
        key, shape = "shape", node.attrs["shape"]
        count = math.prod(shape)
    weight, bias = (
        params[role].detach().double().cpu().numpy() if role in params else None for role in ("weight", "bias")
    )
    gain, offset = gain_offset(weight, bias, math.prod(shape), y.scale_value, y.zero_point_value)
    eps = epsilon_steps(node.attrs["eps"], x.scale_value, count)
    return {key: node.attrs[key], "eps": eps}, {"gain": gain.reshape(shape), "offset": offset.reshape(shape)}


def softmax_integers(op: IntegerOp, x: Quantized, *masked: Tensor) -> Tensor:
    """Return the integers of the program's softmax, minus zero point; ``masked``: its mask, where it has one."""
    y, q = op.point, x.integers()
    attrs, arrays = program_form(op.node, op.params, x.point, y)
    table = torch.from_numpy(arrays["table"]).to(q.device, torch.float32)
    levels, z = torch.tensor(attrs["levels"], device=q.device), y.zero_point_value
    return torch_nonlinear.softmax(q, table, attrs["axis"], levels, z, y.lo, y.hi, *masked).to(torch.float32) - z


def norm_integers(op: IntegerOp, x: Quantized) -> Tensor:
    """Return the integers of the program's norm, minus zero point."""
    y, q = op.point, x.integers()
    attrs, arrays = program_form(op.node, op.params, x.point, y)
    gain, offset = (torch.from_numpy(arrays[role]).to(q.device) for role in ("gain", "offset"))
    if "groups" in attrs:
        result = torch_nonlinear.group_norm(q, attrs["groups"], gain, offset, attrs["eps"], y.lo, y.hi)
    else:
        shift, centered = (MIDDLE, True) if op.node.op == "layer_norm" else (x.zero_point, False)
        result = torch_nonlinear.normalize(q, shift, centered, gain, offset, attrs["eps"], y.lo, y.hi)
    return result.to(torch.float32) - y.zero_point_value
