"""The reconstruction that a recipe asks for, at the end of calibration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from intact8.calibration.data import merged
from intact8.errors import InputError, StateError, no_simulation
from intact8.recipe.recipe import LEARNED_ROUNDINGS
from intact8.reconstruction.distill import distill
from intact8.reconstruction.gptq import round_layers
from intact8.reconstruction.learn import Progress, Settings, learn_blocks
from intact8.reconstruction.ranges import choose_ranges
from intact8.regular_file import path_of, unwritable
from intact8.simulation.simulation import KEPT_FOR_RANGES, Simulation
from intact8.train.scale_phase import learn


def reconstruct(
    sim: Simulation, *, progress: Progress | None = None, checkpoint: str | Path | None = None
) -> Simulation:
    """Round the weights of a calibrated simulation as its recipe says: ``recipes.reconstruct``, or ``reconstruction``.

    Calibration ends with this, unless ``reconstruction_args`` has ``deferred=True``: then call it yourself, for its
    progress or its checkpoints.

    Roundings are found on the samples that calibration kept, block by block, each for the integers that the blocks
    before it give. A seed decides all that is random; what was found before is found anew. When it is interrupted, the
    blocks done stay reconstructed and the others are rounded to nearest.

    Args:
        sim: calibrated in this process.
        progress: called with (blocks done, blocks in all).
        checkpoint: a file written after every block, from which an interrupted run goes on.

    Returns:
        The simulation. ``convert`` gives the integers that it computes.

    Raises:
        StateError: the recipe wants no reconstruction, or no samples were kept.
        InputError: samples have different shapes, or the checkpoint is of another run.

    Example:
        >>> import intact8, torch
        >>> recipe = intact8.recipes.reconstruct(4, method="adaround", iterations=20)
        >>> sim = intact8.prepare(torch.nn.Linear(8, 4), torch.randn(2, 8), recipe)
        >>> _ = intact8.calibrate(sim, torch.randn(64, 8))
        >>> intact8.convert(sim).ops[1].arrays["weight"].max() <= 7
        np.True_
    """
    if not isinstance(sim, Simulation):
        raise no_simulation(sim, "reconstruct")
    method, settings = sim.recipe.reconstruction, Settings.of(sim.recipe.reconstruction_args)
    if not sim.reconstructs or not sim.kept:
        what = "no samples to reconstruct from" if sim.reconstructs else "nothing to reconstruct"
        remedy = "prepare with recipes.reconstruct(…) and calibrate in this process"
        raise StateError(what, why=f"reconstruction = {method!r}, {len(sim.kept)} batches kept", remedy=remedy)
    with torch.inference_mode(False), torch.no_grad(), quantizing(sim):
        for node in sim.graph:
            for role in node.params.keys() & {"correct.rounding", "correct.bias"}:
                sim.tensors[node.params[role]].zero_()
        batched = sim.quantized_graph.batched
        chosen = choose_ranges(sim, merged(sim.kept, batched, KEPT_FOR_RANGES))
        if chosen or method in LEARNED_ROUNDINGS:
            sim._solve(from_observers=True, freezing=sim.recipe.scales == "fixed")
            if sim.recipe.learns:
                learn(sim)
        if method in ("gptq", "distill"):
            round_layers(sim, merged(sim.kept, batched, settings.samples))
            sim.resolve(from_observers=False)
        if method in LEARNED_ROUNDINGS:
            samples = merged(sim.kept, batched, settings.samples)
            if len(samples) != 1:
                remedy = "calibrate with samples of one shape along all dimensions but the batch"
                raise InputError("samples of different shapes cannot be reconstructed together", remedy=remedy)
            path = None if checkpoint is None else path_of(checkpoint, "the checkpoint")
            if path is not None and not os.access(path.parent, os.W_OK):
                raise unwritable(path, "the checkpoint", InputError, PermissionError(f"{path.parent} is not writable"))
            if method == "distill":
                distill(sim, samples[0], settings, progress=progress, checkpoint=path)
            else:
                learn_blocks(sim, samples[0], method, settings, progress=progress, checkpoint=path)
    sim.calibration["reconstructed"] = True
    return sim


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
