"""The verbs: prepare, calibrate, convert, quantize, verify."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from intact.arithmetic.dimensions import show
from intact.calibration.data import first_batch
from intact.calibration.lengths import changing
from intact.calibration.run import Progress, calibrate
from intact.capture import Captured, capture
from intact.capture.dynamic import Dynamic
from intact.capture.fuse import fuse
from intact.capture.torch_export import FIXED_BATCH, require_module
from intact.diagnose.fidelity import check_outputs
from intact.errors import AccuracyWarning, CalibrationError, CaptureWarning, RecipeError, StateError
from intact.lower import lower
from intact.program.program import Program
from intact.recipe.place import place
from intact.recipe.recipe import Recipe
from intact.simulation.module import Simulation
from intact.verification import verify


def prepare(
    model: nn.Module,
    example_inputs: Any,
    recipe: Recipe | None = None,
    *,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None = None,
) -> Simulation:
    """Turn an unmodified model into its simulation. The model itself is not changed.

    Args:
        model: any module torch.export can capture, in training or evaluation mode, on any one device.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments; dimension 0 is the batch.
        recipe: schemes, observers, per-module overrides; ``recipes.default()`` when None.
        dynamic_shapes: dimensions beside the batch that may change from call to call, by input and dimension:
            ``{"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}``, or ``torch.export.Dim("sequence",
            max=512)`` in place of a name. Dimensions of one name have one size.

    Returns:
        An nn.Module with the original parameter names, signature and output structure. It computes the float model
        until it is calibrated.

    Raises:
        CaptureError: the model cannot be captured; names the module and the reason.
        InputError: not a module, or example inputs it does not take.
        RecipeError: not a recipe, or a pattern of it matches nothing.
        StateError: ``model`` already is a simulation.

    Example:
        >>> import torch, intact
        >>> sim = intact.prepare(torch.nn.Linear(4, 2), torch.randn(1, 4))
        >>> type(sim).__name__
        'Simulation'
    """
    if isinstance(model, nn.Module) and any(isinstance(module, Simulation) for module in model.modules()):
        raise StateError(
            "this model is a simulation already", why="preparing twice would throw its learned scales away",
            remedy="call intact.calibrate or intact.convert on it, or prepare the original float model",
        )  # fmt: skip
    if recipe is not None and not isinstance(recipe, Recipe):
        raise RecipeError(
            f"expected an intact.Recipe, got {type(recipe).__name__}", where="recipe",
            remedy="build one with intact.Recipe(…), intact.recipes.default() or intact.Recipe.load(path)",
        )  # fmt: skip
    if recipe is None:
        from intact import recipes

        recipe = recipes.default()
    # What is made here will be trained: no tensor of it may be one of inference mode.
    with torch.inference_mode(False):
        captured = capture(model, example_inputs, dynamic_shapes=dynamic_shapes)
        _warn_of_a_fixed_batch(captured)
        residual, leaky = recipe.residual == "fused", recipe.leaky == "fused"
        masks = recipe.nonlinear == "integer"
        fused = fuse(captured.graph, captured.tensors(), residual=residual, leaky=leaky, masks=masks)
        placed = place(fused.graph, recipe)
        return Simulation(model, captured, fused, placed, recipe).train(model.training)


def _warn_of_a_fixed_batch(captured: Captured) -> None:
    for note in captured.notes:
        if note.startswith(FIXED_BATCH):
            shapes = ", ".join(
                f"{key} {show(captured.graph.nodes[name].shape)}"
                for key, name in zip(captured.input_keys, captured.graph.inputs, strict=True)
            )
            text = f"the program will take {shapes} and no other batch size: {note.removeprefix(FIXED_BATCH)[2:]}"
            warnings.warn(CaptureWarning(text), stacklevel=3)


def convert(sim: Simulation) -> Program:
    """The integer program a calibrated simulation computes: same scales, same integers, no torch inside.

    Observers are not consulted: what the simulation computes now is what ships.

    A few of the calibration samples go through it and through the float network with the weights it has now.

    Raises:
        StateError: not calibrated, in training mode, or fake quantization switched off somewhere.

    Warns:
        AccuracyWarning: an output is far from the float network's (names the operation where it is first lost), or most
            multiplications stay float and the recipe does not ask for it. The program's provenance has the numbers.
    """
    if not isinstance(sim, Simulation):
        raise StateError(
            f"convert takes a simulation, not {type(sim).__name__}",
            remedy="call intact.prepare(model, …) first, and pass what it returned; not DistributedDataParallel or "
            "AveragedModel around it, but their .module",
        )
    program = lower(sim)
    return replace(program, provenance=program.provenance | check_outputs(sim))


def _warn_of_training_mode(model: nn.Module) -> None:
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    found = next((name for name, m in model.named_modules() if m.training and isinstance(m, kinds)), None)
    if found is not None:
        warnings.warn(
            AccuracyWarning(
                f"{found or 'the model'} is in training mode; what is quantized is what the model computes after "
                "model.eval(). Every call of it as it is computes something else, and moves batch norm's statistics. "
                "Remedy: call model.eval() first"
            ),
            stacklevel=3,
        )


def quantize(
    model: nn.Module,
    data: Iterable[Any] | Any,
    recipe: Recipe | None = None,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None = None,
    progress: Progress | None = None,
) -> Program:
    """Static post-training quantization in one call: prepare, calibrate, convert.

    Args:
        model: any module torch.export can capture.
        data: calibration data, no labels needed: a tensor, an iterable of tensors, tuples or dicts, or a DataLoader
            yielding ``(x, y)``.
        recipe: see :class:`intact.Recipe`.
        example_inputs: as for :func:`prepare`; taken from the first batch when None.
        dynamic_shapes: as for :func:`prepare`. When None, dimensions that differ between the first batches may change,
            where the model allows it: token sequences padded batch by batch give a program for any length.
        progress: called with (batches done, batches in all or None).

    Warns:
        AccuracyWarning: as :func:`convert`, and for a batch norm or dropout that was left in training mode.

    Example:
        >>> import torch, intact
        >>> _ = torch.manual_seed(0)
        >>> program = intact.quantize(torch.nn.Linear(4, 2), torch.randn(64, 4))
        >>> program.run(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """
    if isinstance(model, Simulation):
        raise StateError("this model is a simulation already", remedy="call intact.calibrate and intact.convert on it")
    require_module(model)
    _warn_of_training_mode(model)
    if example_inputs is None:
        example_inputs, data = first_batch(model, data)
    dynamic: Mapping[str, Mapping[int, Any]] | Dynamic | None = dynamic_shapes
    if dynamic is None:
        dynamic, data = changing(model, example_inputs, data)
    sim = prepare(model, example_inputs, recipe, dynamic_shapes=dynamic).eval()
    calibrate(sim, data, progress=progress)
    return convert(sim)


__all__ = ["CalibrationError", "calibrate", "convert", "prepare", "quantize", "verify"]
