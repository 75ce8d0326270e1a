"""Lookup tables: any function of one 8-bit tensor as 256 integers, computed once in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intact8.arithmetic.unary_functions import unary64
from intact8.capture.graph import Node
from intact8.simulation.ops.integer_op import IntegerOp
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.scales.quant_points import QuantPoint

Array = npt.NDArray[Any]

TABLES = frozenset({"table", "requantize"})
"""Kinds that are computed by a table."""


def look_up(op: IntegerOp, x: Quantized) -> Tensor:
    """Compute ``table`` or ``requantize``: integers minus zero point."""
    assert op.requantization is not None
    index = (x.q.detach() + x.point.zero_point).long()
    return (op.requantization.table[index].to(torch.int32) - op.point.zero_point).to(x.q.dtype)


def table_entries(node: Node, x: QuantPoint, y: QuantPoint, tensors: Mapping[str, Tensor]) -> Array:
    """Return ``clamp(R(f((i − z_x)·s_x) / s_y) + z_y)`` for every input integer i, uint8 (256,), from float64.

    ``node`` is ``table`` (with its ``chain``) or ``requantize``; where f gives NaN the entry is the least integer.
    """
    value = (np.arange(256, dtype=np.float64) - x.zero_point_value) * x.scale_value
    zero_point = y.zero_point_value
    steps = np.rint(table_steps(node, value, y.scale_value, (y.lo - zero_point, y.hi - zero_point), tensors))
    return (steps + zero_point).astype(np.uint8)


def table_steps(node: Node, value: Array, scale: float, ends: tuple[int, int], tensors: Mapping[str, Tensor]) -> Array:
    """Return the function's results in steps of ``scale`` from zero, float64, within ``ends`` and not yet rounded."""
    for i, step in enumerate(node.attrs.get("chain", [])):
        value = _apply(step, value, node.params.get(f"chain.{i}.weight"), tensors)
    return np.clip(np.nan_to_num(value / scale, nan=-1e9, posinf=1e9, neginf=-1e9), *ends)


def _apply(step: dict[str, Any], v: Array, weight: str | None, tensors: Mapping[str, Tensor]) -> Array:
    op, attrs = step["op"], step.get("attrs", {})
    if op == "relu":
        return np.maximum(v, 0.0)
    if op == "clamp":
        return np.clip(v, attrs.get("min"), attrs.get("max"))
    if op == "leaky_relu":
        return np.where(v >= 0, v, v * attrs["slope"])
    if op == "prelu":
        assert weight is not None
        return np.where(v >= 0, v, v * float(tensors[weight]))
    if op == "affine_scalar":
        return np.asarray(v * attrs["mul"] + attrs["add"])
    with np.errstate(all="ignore"):
        y: Array = unary64(attrs["fn"], attrs, v)
    return y
