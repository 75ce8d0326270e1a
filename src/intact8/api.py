"""The verbs: prepare, calibrate, convert, quantize, verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from intact8.calibration.data import first_batch
from intact8.calibration.distributed import ranks_for
from intact8.calibration.dynamic_dimensions import changing
from intact8.calibration.run import Progress, compute_scales
from intact8.calibration.summary import CalibrationSummary
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.torch_export import require_module
from intact8.diagnose.between_layers import choose_between_layers
from intact8.diagnose.fidelity import Measured, check_outputs
from intact8.errors import AccuracyWarning, CalibrationError, StateError, no_simulation, warn
from intact8.lower import lower
from intact8.machine import trim_behind
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.recipes import as_recipe
from intact8.simulation.prepare import capture_for_simulation, prepare, simulate_captured, warn_of_training_mode
from intact8.simulation.simulation import Simulation
from intact8.verification import verify


def calibrate(
    sim: Simulation,
    data: Any,
    *,
    progress: Progress | None = None,
    max_batches: int | None = None,
    reset: bool = False,
    shard: str = "auto",
) -> CalibrationSummary:
    """Show calibration data to a simulation, compute its scales, and choose what is rounded between layers.

    The float network runs in evaluation mode without gradients while every point observes; then ``sim.resolve()``
    turns ranges into scales and multipliers. Modes and switches are afterwards what they were before. A second call
    continues where the first ended, to the same bits as one call on all the data that makes the same choice. On any
    error, and on Ctrl-C, the simulation goes back to what it was before the call; while it chooses, to what was
    calibrated, with everything between layers rounded.

    Where the recipe leaves open what is rounded between layers (``between_layers="auto"``) and an output would be
    further from float's than plain W8A8 (8-bit weights and layer inputs alone) leaves it, by 0.01 of cosine or 6 dB,
    the first call goes on: with residual sums in float32, then with everything between layers, until it is not;
    ``sim.recipe`` says which, and the simulation computes it. Where the samples are few, the outputs compared are those
    of a quarter of them, with ranges calibrated on the others; ranges leave room beyond what was seen where that brings
    outputs nearer (``room`` of the observer ``histogram``). Where that is not enough and ``portable="auto"``, weights
    that take all of 8 bits are tried, at last plain W8A8 itself (ranges from the least value to the largest, channels
    and biases as they are), and a warning tells of it. With ``between_layers="nearest"``, as ``recipes.accurate()`` has
    it, less is rounded from the start where that brings outputs below 32 dB nearer. Nothing is chosen for a recipe
    whose scales are trained, on several ranks, where a point is switched off, or from data that can be read only once
    (an iterator); ``between_layers="integer"`` rounds everything.

    Where a torch.distributed process group is initialised, call this on every rank: ranks observe different batches,
    merge what they saw, and end with the same numbers, which are, to the bit, those of one process that sees batch 0
    of rank 0, batch 0 of rank 1, …, batch 1 of rank 0, … (given the same kernels and number of threads). An error on
    one rank raises on all.

    Args:
        sim: what :func:`intact8.prepare` returned.
        data: a tensor, a dict, or an iterable of tensors, tuples or dicts; a DataLoader yielding (x, y) will do.
            Labels are dropped. See :func:`intact8.calibration.data.batches`.
        progress: called after every batch.
        max_batches: stop after so many; None for all.
        reset: forget what earlier calls observed.
        shard: how ranks share the work. "split": every rank was given the same data, and takes every n-th batch of
            them; "given": every rank was given its own share; "off": this rank calibrates alone; "auto": "given" for
            a DataLoader with a DistributedSampler (which repeats samples where they do not divide evenly: they are
            then observed twice), else "split". ``max_batches`` counts the batches of all ranks.

    Returns:
        Numbers per point, and warnings; also kept as JSON in ``sim.calibration``.

    Raises:
        CalibrationError: no data, data that do not fit the model's inputs, NaN or infinity in an activation (names
            batch and layer), or a point that saw nothing; ranks that were given different data or weights, or one
            of which failed.
        StateError: not a simulation.

    Warns:
        CalibrationWarning: once, on rank 0, with all that should be looked at: few samples, ranges still moving,
            constants.

    Example:
        >>> import intact8, torch
        >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4))
        >>> intact8.calibrate(sim, torch.randn(64, 4)).samples
        64
    """
    first = reset or not getattr(sim, "calibration", None)
    summary = compute_scales(sim, data, progress=progress, max_batches=max_batches, reset=reset, shard=shard)
    if first and sim.recipe.scales == "calibrated" and ranks_for(data, "split").size == 1 and _all_on(sim):
        choose_between_layers(sim, data, max_batches)
    return summary


def _all_on(sim: Simulation) -> bool:
    """Return whether every point rounds and none observes: what was chosen has other points, without such switches."""
    points = (*sim.points.values(), *sim.all_weight_points.values())
    return all(point.quantizing for point in points) and not any(point.observing for point in sim.points.values())


def convert(sim: Simulation) -> Program:
    """Return the integer program a calibrated simulation computes: same scales, same integers, no torch inside.

    Observers are not consulted: what the simulation computes now is what ships.

    A few of the calibration samples go through it and through the float network with the weights it has now.

    Raises:
        StateError: not calibrated, in training mode, or fake quantization switched off somewhere.

    Warns:
        AccuracyWarning: an output is far from the float network's (names the operation where it is first lost), or most
            multiplications stay float and the recipe does not ask for it, or its reconstruction was left to the caller
            and forgotten. The program's provenance has the numbers.
    """
    if not isinstance(sim, Simulation):
        raise no_simulation(sim, "convert")
    return _lowered(sim, None)


def _is_reconstructed(sim: Simulation) -> bool:
    """Return whether weights were reconstructed, here or in the simulation that the state is of."""
    roundings = (sim.tensors[name] for node in sim.graph if (name := node.params.get("correct.rounding")) is not None)
    return bool(sim.calibration.get("reconstructed")) or any(bool(rounding.any()) for rounding in roundings)


def _lowered(sim: Simulation, measured: Measured | None) -> Program:
    if sim.recipe.reconstruction_args.get("deferred") and not _is_reconstructed(sim):
        why = "the recipe leaves this to you (deferred = True), and intact8.reconstruct was not called"
        remedy = "call intact8.reconstruct(sim) between calibrate and convert"
        warn(AccuracyWarning(f"the weights are not reconstructed: {why}. Remedy: {remedy}"))
    weights = sum(t.nbytes for t in sim.tensors.values())
    trim_behind(weights)  # what calibration freed, while the simulation's weights stay
    program = lower(sim)
    trim_behind(weights)  # what the golden vectors were computed in
    return replace(program, provenance=program.provenance | check_outputs(sim, measured))


def quantize(
    model: nn.Module,
    data: Iterable[Any] | Any,
    recipe: Recipe | str | Path | None = None,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None = None,
    progress: Progress | None = None,
) -> Program:
    """Quantize a model statically after training, in one call: prepare, calibrate, convert.

    Args:
        model: any module torch.export can capture.
        data: calibration data, no labels needed: a tensor, an iterable of tensors, tuples or dicts, or a DataLoader
            yielding ``(x, y)``.
        recipe: see :class:`intact8.Recipe`; or the name of a preset ("accurate"), or the path of a TOML file.
        example_inputs: as for :func:`prepare`; taken from the first batch when None.
        dynamic_shapes: as for :func:`prepare`. When None, dimensions that differ between the first batches may change,
            where the model allows it: token sequences padded batch by batch give a program for any length.
        progress: called with (batches done, batches in all or None).

    Warns:
        AccuracyWarning: as :func:`convert`, and for a batch norm or dropout that was left in training mode.

    What is rounded between layers is chosen as :func:`calibrate` says, also where the recipe's scales are trained.

    Example:
        >>> import torch, intact8
        >>> _ = torch.manual_seed(0)
        >>> program = intact8.quantize(torch.nn.Linear(4, 2), torch.randn(64, 4))
        >>> program.run(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """
    if isinstance(model, Simulation):
        raise StateError("this model is a simulation already", remedy="call calibrate and convert on it")
    require_module(model)
    warn_of_training_mode(model)
    if example_inputs is None:
        example_inputs, data = first_batch(model, data)
    dynamic: Mapping[str, Mapping[int, Any]] | Dynamic | None = dynamic_shapes
    if dynamic is None:
        dynamic, data = changing(model, example_inputs, data)
    chosen = as_recipe(recipe)
    captured = capture_for_simulation(model, example_inputs, dynamic)
    sim = simulate_captured(model, captured, chosen)
    compute_scales(sim, data, progress=progress)
    return _lowered(sim, choose_between_layers(sim, data))


__all__ = ["CalibrationError", "calibrate", "convert", "prepare", "quantize", "verify"]
