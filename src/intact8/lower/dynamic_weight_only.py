"""Layers with integer weights and float32 results: their float form, with integers for the weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from intact8.arithmetic.bit_packing import pack
from intact8.capture.graph import Node
from intact8.lower.float_islands import float_ops
from intact8.opset import KINDS
from intact8.opset.op import Op
from intact8.simulation.ops.dequantized import DequantizedLayer
from intact8.simulation.ops.weight_only import DecodedEmbedding, DecodedLinear, DynamicLinear
from intact8.simulation.simulation import Simulation


def float_result_ops(sim: Simulation, node: Node, inputs: tuple[str, ...], **common: Any) -> list[Op]:
    """Return the ops of one layer: the first is the layer itself, then what was fused into it."""
    layer = sim.layer_ops[node.name]
    first, *rest = float_ops(node, inputs, sim.tensors, sim.graph.nodes, **common)
    if isinstance(layer, DequantizedLayer):
        return [_dequantized(sim, first, layer), *rest]
    q, scale = layer.codes()
    arrays = {role: a for role, a in first.arrays.items() if role == "bias"} | {"scale": _numpy(scale, np.float32)}
    if isinstance(layer, DynamicLinear):
        arrays["weight"] = _numpy(q, np.int8)
        attrs: dict[str, Any] = {"granularity": layer.rows}
        return [replace(first, kind="dynamic_linear", attrs=attrs, arrays=arrays), *rest]
    assert isinstance(layer, (DecodedLinear, DecodedEmbedding)) and layer.weight_point is not None
    columns = q.shape[1]
    bits = 4 if layer.weight_point.lo >= -8 and layer.weight_point.hi <= 7 else 8
    # A group of all columns is a whole row.
    group = layer.group if layer.group < columns else 0
    arrays["weight"] = pack(_numpy(q, np.int16), bits)
    attrs = {"bits": bits, "columns": columns, "group": group}
    kind = "decoded_embedding" if node.op == "embedding" else "float.decoded_linear"
    return [replace(first, kind=kind, attrs=attrs, arrays=arrays), *rest]


def _dequantized(sim: Simulation, first: Op, layer: DequantizedLayer) -> Op:
    x = sim.point(layer.node.inputs[0])
    assert x is not None
    integers, scale, bias = layer.deployed(x)
    arrays = {"weight": _numpy(integers.weight, np.int8), "scale": _numpy(scale, np.float32)}
    if bias is not None:
        arrays["bias"] = _numpy(bias, np.float32)
    kind = KINDS[f"dequantized_{layer.node.op}"]
    return replace(first, kind=kind.name, attrs={k: layer.node.attrs[k] for k in kind.attrs}, arrays=arrays)


def _numpy(t: torch.Tensor, dtype: type[np.generic]) -> Any:
    return t.detach().cpu().numpy().astype(dtype)
