"""The reconstruction that a recipe asks for, at the end of calibration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from intact8.reconstruction.gptq import round_layers
from intact8.simulation.simulation import Simulation

FEW = 32
"""Samples that second moments are computed from."""


def reconstruct(sim: Simulation) -> None:
    """Find roundings of weights on the samples that calibration kept, and solve for multipliers once more.

    Args:
        sim: calibrated; everything found before is found anew.
    """
    with quantizing(sim), torch.no_grad():
        for node in sim.graph:
            if "correct.rounding" in node.params:
                sim.tensors[node.params["correct.rounding"]].zero_()
        round_layers(sim, merged(sim.kept, sim.quantized_graph.batched, FEW))
        sim.resolve(from_observers=False)


@contextmanager
def quantizing(sim: Simulation) -> Iterator[None]:
    """Put a simulation in evaluation mode, rounding everywhere and observing nowhere; afterwards as it was."""
    training = [(module, module.training) for module in sim.modules()]
    points = [(point, point.observing, point.quantizing) for point in sim.points.values()]
    weights = [(point, point.quantizing) for point in sim.all_weight_points.values()]
    try:
        sim.eval()
        sim.observe(False)
        sim.fake_quantize(True)
        yield
    finally:
        for module, flag in training:
            module.training = flag
        for point, observes, rounds in points:
            point.observing, point.quantizing = observes, rounds
        for weight_point, rounds in weights:
            weight_point.quantizing = rounds


def merged(calls: list[list[Tensor]], batched: bool, samples: int) -> list[list[Tensor]]:
    """Return flat inputs of so many samples in as few batches as their shapes allow."""
    found: list[list[Tensor]] = []
    for inputs in calls:
        left = samples - sum(len(batch[0]) for batch in found) if batched else samples - len(found)
        if left <= 0:
            break
        chosen = [t[:left] for t in inputs] if batched else inputs
        if batched and found and all(a.shape[1:] == b.shape[1:] for a, b in zip(found[-1], chosen, strict=True)):
            found[-1] = [torch.cat(pair) for pair in zip(found[-1], chosen, strict=True)]
        else:
            found.append(chosen)
    return found
