"""The verbs: prepare, calibrate, convert, quantize, verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from intact8.calibration.data import first_batch
from intact8.calibration.dynamic_dimensions import changing
from intact8.calibration.run import Progress, calibrate
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.torch_export import require_module
from intact8.diagnose.between_layers import choose_between_layers
from intact8.diagnose.fidelity import Measured, check_outputs
from intact8.errors import CalibrationError, StateError, no_simulation
from intact8.lower import lower
from intact8.machine import trim
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.recipes import as_recipe
from intact8.simulation.prepare import capture_for_simulation, prepare, simulate_captured, warn_of_training_mode
from intact8.simulation.simulation import Simulation
from intact8.verification import verify


def convert(sim: Simulation) -> Program:
    """Return the integer program a calibrated simulation computes: same scales, same integers, no torch inside.

    Observers are not consulted: what the simulation computes now is what ships.

    A few of the calibration samples go through it and through the float network with the weights it has now.

    Raises:
        StateError: not calibrated, in training mode, or fake quantization switched off somewhere.

    Warns:
        AccuracyWarning: an output is far from the float network's (names the operation where it is first lost), or most
            multiplications stay float and the recipe does not ask for it. The program's provenance has the numbers.
    """
    if not isinstance(sim, Simulation):
        raise no_simulation(sim, "convert")
    return _lowered(sim, None)


def _lowered(sim: Simulation, measured: Measured | None) -> Program:
    trim()  # what calibration freed, while the simulation's weights stay
    program = lower(sim)
    trim()  # what the golden vectors were computed in
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

    Where an output is further from float's than plain W8A8 (8-bit weights and layer inputs alone) leaves it, by 0.01 of
    cosine or 6 dB, and the recipe leaves that open (``between_layers="auto"``), calibration is repeated with residual
    sums, then with everything between layers in float32, until it is not; the program's recipe says which. Where the
    samples are few, the outputs compared are those of a quarter of them, with ranges calibrated on the others; ranges
    leave room beyond what was seen where that brings outputs nearer (``room`` of the observer ``histogram``). Where
    that is not enough and ``portable="auto"``, weights that take all of 8 bits are tried, at last plain W8A8 itself
    (ranges from the least value to the largest, channels and biases as they are), and a warning tells of it. Data
    that can be read only once, an iterator, are not read again.

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
    calibrate(sim, data, progress=progress)
    if chosen.between_layers != "auto" or isinstance(data, Iterator):
        return convert(sim)
    return _lowered(*choose_between_layers(sim, data, partial(simulate_captured, model, captured)))


__all__ = ["CalibrationError", "calibrate", "convert", "prepare", "quantize", "verify"]
