"""The error of one layer's integer weight."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from intact8.capture.graph import Node
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
    weight, _ = folded(node, tensors)
    rows = _rows(output_first(weight.detach().cpu(), node))
    integers = _integer_rows(node, op)
    x, y = program.tensors[op.inputs[0]].scale, program.tensors[op.name].scale
    assert x is not None and y is not None
    a, b = op.multipliers()
    scale = torch.from_numpy(a / b * y / x)  # M = s_x·s_w/s_y
    error = (integers * scale.float()[:, None]).sub_(rows)
    signal, noise = _power(rows), _power(error)
    return WeightError(
        sqnr=10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None,
        per_channel=point.scheme.granularity == "per_channel",
        minimum=tuple(rows.amin(1).tolist()),
        maximum=tuple(rows.amax(1).tolist()),
        scale=tuple(scale.tolist()),
        used=tuple((integers.abs().amax(1) / point.hi).tolist()),
    )


def _integer_rows(node: Node, op: Op) -> Tensor:
    weight = torch.from_numpy(np.array(op.arrays["weight"])).float()
    if node.op == "scale_shift" and op.kind == "linear":
        return _rows(torch.diagonal(weight))
    return _rows(output_first(weight, node))


def _rows(weight: Tensor) -> Tensor:
    return weight.reshape(len(weight), -1)


def _power(x: Tensor) -> float:
    return float((x * x).sum(dtype=torch.float64))
