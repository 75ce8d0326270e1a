"""Rounding of weights by second moments of their inputs (GPTQ, Frantar et al. 2023).

Rounding each weight to the nearest integer makes the error of the weights least, not that of the layer's results. The
latter is Σ (ŵ − w)ᵀ C (ŵ − w) over output channels, C being the covariance of the inputs: columns are rounded one after
the other, and what a column's rounding did to the results is taken back by the columns that are still to come.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.capture.graph import Node
from intact8.simulation.quantized_tensor import Quantized, Value
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import groups_of, per_output
from intact8.simulation.weights.quantize import LARGEST_PAIR

from .inputs import Moments, rows_of

BLOCK = 64
"""Columns whose updates of the columns behind them are applied at once."""

DAMPING = 0.01
"""Share of the mean variance that is added to every variance, so that the covariance has an inverse."""


def round_by_covariance(weight: Tensor, covariance: Tensor, scale: Tensor, limit: Tensor) -> Tensor:
    """Return integer weights with little error of the layer's results.

    Args:
        weight: float32 (G, O, K), the wanted weight of every group.
        covariance: float32 (G, K, K), of the inputs of every group.
        scale: float32 (G, O), the steps of the grid.
        limit: float32 (G, O, K), the largest magnitude of every integer.

    Returns:
        float32 (G, O, K).

    Example:
        >>> together = torch.tensor([[[1.0, 0.99], [0.99, 1.0]]])
        >>> w = torch.tensor([[[0.4, 0.4]]])
        >>> round_by_covariance(w, together, torch.ones(1, 1), torch.full((1, 1, 2), 127.0)).tolist()
        [[[0.0, 1.0]]]
    """
    variance = covariance.diagonal(dim1=1, dim2=2)
    order = variance.argsort(dim=1, descending=True, stable=True)
    rows = covariance.gather(1, order[:, :, None].expand_as(covariance))
    factor = inverse_factor(rows.gather(2, order[:, None, :].expand_as(covariance)))
    # Columns lie in memory as rows: all that is done to one at a time is then done to neighbors.
    columns = order[:, :, None].expand(-1, -1, weight.shape[1])
    w, limits = (t.transpose(1, 2).gather(1, columns) for t in (weight / scale[..., None], limit))
    q = torch.empty_like(w)
    count = w.shape[1]
    for start in range(0, count, BLOCK):
        end = min(start + BLOCK, count)
        errors = torch.empty_like(w[:, start:end])
        for k in range(start, end):
            q[:, k] = torch.clamp(w[:, k].round(), -limits[:, k], limits[:, k])
            error = errors[:, k - start] = (w[:, k] - q[:, k]) / factor[:, k, k, None]
            w[:, k + 1 : end].baddbmm_(factor[:, k, k + 1 : end, None], error[:, None], alpha=-1)
        w[:, end:] -= factor[:, start:end, end:].transpose(1, 2) @ errors
    return torch.empty_like(q).scatter_(1, columns, q).transpose(1, 2)


def inverse_factor(covariance: Tensor) -> Tensor:
    """Return the upper triangular U with UᵀU = (C + damping)⁻¹, float32 (G, K, K).

    With rows and columns in the opposite order, C = LLᵀ; so C = VVᵀ with V, L in the first order, upper triangular. The
    inverse of V is U.
    """
    damped = covariance.double()
    mean = damped.diagonal(dim1=1, dim2=2).mean(1)
    eye = torch.eye(damped.shape[1], dtype=damped.dtype, device=damped.device)
    damped = damped + (DAMPING * mean.clamp(min=1e-30))[:, None, None] * eye
    upper = torch.linalg.cholesky(damped.flip(1, 2)).flip(1, 2)
    factor: Tensor = torch.linalg.solve_triangular(upper, eye.expand_as(upper), upper=True)
    return factor.float()


def round_layers(sim: Simulation, batches: list[list[Tensor]]) -> None:
    """Choose the rounding of all weights by the inputs their layers have in the quantized network.

    Args:
        sim: calibrated, in evaluation mode.
        batches: flat inputs.
    """
    moments: dict[str, Moments] = {}
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1

        def visit(node: Node, inputs: list[Value], output: Value, last: bool = last) -> None:
            if "correct.rounding" not in node.params or not isinstance(inputs[0], Quantized):
                return
            weight = folded(node, sim.tensors)[0]
            x = inputs[0].real()
            seen = moments.setdefault(node.name, Moments())
            seen.add(rows_of(node, x, weight), len(x))
            if last:
                round_layer(sim, node, weight, moments.pop(node.name).covariance())

        sim.run(batch, visit=visit)


def round_layer(sim: Simulation, node: Node, weight: Tensor, covariance: Tensor) -> None:
    """Choose the rounding of a layer's folded weight, for inputs of that covariance, (G, K, K)."""
    point, groups = sim.weight_points[node.name], groups_of(node)
    rows = weight.reshape(groups, len(weight) // groups, -1)
    scale = point.scale.reshape(groups, -1)
    integers = round_by_covariance(rows, covariance, scale, largest_integers(rows, scale, point))
    steps = integers.reshape(weight.shape) - weight / per_output(point.scale, weight, node)
    sim.tensors[node.params["correct.rounding"]].copy_(steps.clamp(-point.hi, point.hi))


def largest_integers(rows: Tensor, scale: Tensor, point: WeightPoint) -> Tensor:
    """Return the largest magnitudes that integers of weights (G, O, K) may have with scales (G, O).

    For CPUs without VNNI any two of a channel add up to LARGEST_PAIR at most: the largest weight goes first.
    """
    limit = torch.full_like(rows, float(point.hi))
    if not point.can_saturate or rows.shape[2] < 2:
        return limit
    largest, at = (rows.abs() / scale[..., None]).max(2, keepdim=True)
    first = largest.round().clamp(min=LARGEST_PAIR / 2, max=point.hi)
    return torch.minimum(limit, LARGEST_PAIR - first).scatter(2, at, first)
