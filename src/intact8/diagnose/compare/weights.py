"""The error of one layer's integer weight."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.diagnose.channel_weights import channel_scales
from intact8.diagnose.compare.report import WeightError
from intact8.opset.op import Op
from intact8.program.program import Program
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import output_first


def weight_error(
    node: Node, op: Op, program: Program, tensors: Mapping[str, Tensor], point: WeightPoint
) -> WeightError:
    """Compare a layer's integers with its float weight.

    Args:
        node: a conv, linear or scale_shift.
        op: the operation to which the node was lowered.
        program: the program of that operation.
        tensors: tensors of the float network by name.
        point: the weight's quantization point.
    """
    rows = _rows(folded(node, tensors)[0].detach().cpu(), node)
    integers = torch.from_numpy(np.array(op.arrays["weight"])).float()
    if node.op == "scale_shift" and op.kind == "linear":
        integers = torch.diagonal(integers)
    integers = _rows(integers, node)
    scale = torch.from_numpy(channel_scales(program, op))
    error = (integers * scale.float()[:, None]).sub_(rows)
    signal, noise = (float((x * x).sum(dtype=torch.float64)) for x in (rows, error))
    return WeightError(
        sqnr=10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None,
        per_channel=point.scheme.granularity == "per_channel",
        minimum=tuple(rows.amin(1).tolist()),
        maximum=tuple(rows.amax(1).tolist()),
        scale=tuple(scale.tolist()),
        used=tuple((integers.abs().amax(1) / point.hi).tolist()),
    )


def _rows(weight: Tensor, node: Node) -> Tensor:
    """Reshape a weight to one row per output channel."""
    rows = output_first(weight, node)
    return rows.reshape(len(rows), -1)
