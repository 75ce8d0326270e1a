"""From a model to its simulation: capture, fusion, placement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from intact8.arithmetic.dimensions import show
from intact8.calibration.data import device_of
from intact8.capture import Captured, capture
from intact8.capture.constants import IN_FLOAT32
from intact8.capture.dynamic_shapes import LIMITED, Dynamic
from intact8.capture.other_sizes import FEWER, SEVERAL
from intact8.capture.results import AS_INT64
from intact8.capture.torch_export import ALONE, FIXED_BATCH
from intact8.errors import AccuracyWarning, CaptureWarning, RecipeError, StateError, warn
from intact8.fusion.fuse import Fused, fuse
from intact8.placement.error_amplification import weighted_sums
from intact8.placement.place import Placed, place
from intact8.program.certify import known_engines
from intact8.recipe.recipe import FLOAT_BETWEEN_LAYERS, Recipe
from intact8.recipes import as_recipe
from intact8.simulation.gradients import warn_of_other_gradients, warn_of_what_is_left_out
from intact8.simulation.simulation import OWN_MODULES, Simulation


def prepare(
    model: nn.Module,
    example_inputs: Any,
    recipe: Recipe | str | Path | None = None,
    *,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None = None,
) -> Simulation:
    """Turn an unmodified model into its simulation. The model itself is not changed.

    Args:
        model: any module torch.export can capture, in training or evaluation mode, on any one device.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments; dimension 0 is the batch.
        recipe: schemes, observers, per-module overrides; the name of a preset in ``recipes``, or the path of a TOML
            file; ``recipes.default()`` when None.
        dynamic_shapes: dimensions beside the batch that may change from call to call, by input and dimension:
            ``{"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}``, or ``torch.export.Dim("sequence",
            max=512)`` in place of a name. Dimensions of one name have one size.

    Returns:
        An nn.Module in evaluation mode with the original parameter names, signature and output structure. It computes
        the float model until it is calibrated; ``sim.train()`` before it is trained.

    Raises:
        CaptureError: the model cannot be captured; names the module and the reason.
        InputError: not a module, or example inputs it does not take.
        RecipeError: not a recipe, or a pattern of it matches nothing.
        StateError: ``model`` already is a simulation.

    Warns:
        CaptureWarning: the batch size is fixed; or the recipe is one for training, and training the simulation is not
            the same as training the model (gradients of some parameters, dropout inside of attention).

    Example:
        >>> import torch, intact8
        >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(1, 4))
        >>> type(sim).__name__
        'Simulation'
    """
    chosen = as_recipe(recipe)
    sim = simulate_captured(model, capture_for_simulation(model, example_inputs, dynamic_shapes), chosen)
    if chosen.scales != "calibrated":
        warn_of_other_gradients(model, sim, example_inputs)
        warn_of_what_is_left_out(model)
    return sim


def capture_for_simulation(
    model: nn.Module, example_inputs: Any, dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None
) -> Captured:
    """Return the captured model, of which simulations under several recipes can be made.

    Raises:
        CaptureError, InputError, StateError: as :func:`prepare`.
    """
    if isinstance(model, nn.Module) and any(isinstance(module, Simulation) for module in model.modules()):
        what, why = "this model is a simulation already", "preparing twice would throw its learned scales away"
        remedy = "call intact8.calibrate or intact8.convert on it, or prepare the original float model"
        raise StateError(what, why=why, remedy=remedy)
    # Simulations will be trained, so none of their tensors may be made in inference mode.
    with torch.inference_mode(False):
        captured = capture(model, example_inputs, dynamic_shapes=dynamic_shapes)
    from intact8.simulation.torch_compile import register_backend  # imports slowly, but capture has done that

    register_backend()
    _warn_of_a_fixed_batch(captured)
    _warn_of_other_numbers(captured)
    _warn_of_limits(captured)
    return captured


def simulate_captured(model: nn.Module, captured: Captured, recipe: Recipe) -> Simulation:
    """Return the simulation, not yet calibrated, of a captured model under a recipe.

    Raises:
        RecipeError: as :func:`prepare`.
    """
    _require_known_engines(recipe)
    with ALONE, torch.inference_mode(False):  # what the model holds is exchanged while another thread captures it
        return Simulation(model, captured, *_placed(captured, recipe), recipe).eval()


def simulate_again(sim: Simulation, recipe: Recipe) -> Simulation:
    """Return a simulation, not yet calibrated, of the same model under another recipe, with copies of its weights."""
    return simulate_captured(sim, sim.captured_again(), recipe)


def rebuild(sim: Simulation, recipe: Recipe) -> None:
    """Make a simulation one of the same model under another recipe, not yet calibrated; it keeps its parameters."""
    captured, mode = sim.captured_again(), sim.training
    with torch.inference_mode(False):
        sim.build(captured, *_placed(captured, recipe), recipe)
    sim.to(device_of(sim))
    for name in OWN_MODULES:
        sim.get_submodule(name).train(mode)


def _require_known_engines(recipe: Recipe) -> None:
    """Raise RecipeError where a recipe asks for certificates of an engine that is not there."""
    unknown = [name for name in recipe.engines if name not in known_engines()]
    if unknown:
        remedy = f"choose from {', '.join(known_engines())}, or register the engine first"
        raise RecipeError(f"there is no engine {unknown[0]!r}", where="Recipe.engines", remedy=remedy)


def _placed(captured: Captured, recipe: Recipe) -> tuple[Fused, Placed]:
    """Return what a recipe makes of a captured model."""
    residual = recipe.residual == "fused" and recipe.rounds_between_layers not in FLOAT_BETWEEN_LAYERS
    leaky, masks = recipe.leaky == "fused", recipe.nonlinear == "integer"
    tensors = captured.tensors()
    fused = fuse(captured.graph, tensors, residual=residual, leaky=leaky, masks=masks)
    sizes = {name: tensor.numel() for name, tensor in tensors.items()}
    return fused, place(fused.graph, recipe, sizes, weighted_sums(fused.graph, tensors))


def _warn_of_a_fixed_batch(captured: Captured) -> None:
    for note in captured.notes:
        if note.startswith(FIXED_BATCH):
            shapes = ", ".join(
                f"{key} {show(captured.graph.nodes[name].shape)}"
                for key, name in zip(captured.input_keys, captured.graph.inputs, strict=True)
            )
            text = f"the program will take {shapes} and no other batch size: {note.removeprefix(FIXED_BATCH)[2:]}"
            warn(CaptureWarning(text))


def _warn_of_other_numbers(captured: Captured) -> None:
    for note in captured.notes:
        if note.startswith(SEVERAL):
            remedy = "write it so that one sample is no special case, such as squeeze(-1) in place of squeeze()"
            warn(CaptureWarning(f"{note}. The program computes what it does for several. Remedy: {remedy}"))
        if note.startswith(IN_FLOAT32):
            warn(CaptureWarning(f"{note}. Outputs are float32, too. Remedy: none needed where that is precise enough"))
        if note.startswith(AS_INT64):
            warn(CaptureWarning(f"{note}. Remedy: none needed where its reader takes int64; else convert what it gets"))
        if note.startswith(FEWER):
            warn(CaptureWarning(f"{note}. The program computes what it does for as many as in the example."))


def _warn_of_limits(captured: Captured) -> None:
    for note in captured.notes:
        if note.startswith(LIMITED):
            text = f"the program will take {note.removeprefix(LIMITED)[2:]}, as the model has constants of that length"
            warn(CaptureWarning(f"{text}: say another limit by torch.export.Dim(…, max=…) in dynamic_shapes"))


def in_training_mode(model: nn.Module) -> list[str]:
    """Return the names of the batch norms, dropouts and layers with dropout that are in training mode."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    inside = (nn.RNNBase, nn.MultiheadAttention)

    def concerned(module: nn.Module) -> bool:
        return isinstance(module, kinds) or (isinstance(module, inside) and bool(module.dropout))

    return [name for name, m in model.named_modules() if m.training and concerned(m)]


def warn_of_training_mode(model: nn.Module) -> None:
    """Warn where a float model has a batch norm or dropout in training mode."""
    found = in_training_mode(model)
    if found:
        warn(
            AccuracyWarning(
                f"{found[0] or 'the model'} is in training mode; what is quantized is what the model computes after "
                "model.eval(). Every call of it as it is computes something else, and moves batch norm's statistics. "
                "Remedy: call model.eval() first"
            )
        )
