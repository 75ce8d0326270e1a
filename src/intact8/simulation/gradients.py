"""What training a simulation does otherwise than training its model is said before it begins.

What is captured is what a model computes, not how it is differentiated: ``detach()``, ``torch.no_grad()``, an
``autograd.Function`` with a backward pass of its own and hooks leave nothing in the graph. Where they change gradients,
training the simulation is another thing than training the model, and nothing else shows it. Nor does it follow what a
model does in training only, but for batch norm and dropout layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from intact8.capture.equivalence import few_samples
from intact8.capture.pytree import call_of, copied
from intact8.errors import CaptureWarning, warn
from intact8.simulation.simulation import Simulation

APART = 0.1
"""Gradients further apart than this, relative to the larger one's norm, are others; rounding leaves them nearer."""

NOTHING = 1e-4
"""Gradients of a parameter smaller than this, relative to the largest of all parameters, are as good as none."""


def warn_of_other_gradients(model: nn.Module, sim: Simulation, example_inputs: Any) -> None:
    """Warn where parameters have other gradients in a simulation than in its model, by a few of the example's samples.

    Args:
        model: what was captured.
        sim: of it, as prepared.
        example_inputs: as for :func:`intact8.prepare`.

    Warns:
        CaptureWarning: names the first parameters.
    """
    told = {*sim.captured.untrained}  # these training warns of
    if all(name in told or not p.requires_grad for name, p in model.named_parameters()):
        return
    args, kwargs = few_samples(sim.captured, *call_of(example_inputs))
    try:  # of a copy, for a model may keep tensors that belong to the graph, and could not be copied afterwards
        model = copy.deepcopy(model).eval()
    except Exception:  # noqa: BLE001 - a model may hold anything, locks and generators too, which nothing copies
        return
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad and name not in told}
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        random = torch.get_rng_state()
        theirs = _gradients(model, weights, args, kwargs)
        torch.set_rng_state(random)
        sim.fake_quantize(False)  # weights of recurrent layers are rounded before they are calibrated
        ours = theirs and _gradients(sim, dict(sim.named_parameters()), args, kwargs)
        sim.fake_quantize()
    if not theirs or not ours:
        return
    largest = max((float(g.norm()) for g in (*theirs.values(), *ours.values())), default=0.0)
    other = [name for name, g in theirs.items() if name in ours and _apart(g, ours[name], largest * NOTHING)]
    if other:
        why = (
            "a simulation follows what the model computes, not what it does to gradients (detach, torch.no_grad, "
            "hooks, an autograd.Function with a backward pass of its own, padding_idx or scale_grad_by_freq of an "
            "embedding, tensors kept in evaluation)"
        )
        remedy = "freeze what shall not move (requires_grad_(False)), or train the float model and quantize it then"
        what = f"gradients of {_first(other)} are not the model's in the simulation"
        warn(CaptureWarning(f"{what}. Reason: {why}. Remedy: {remedy}"))


def warn_of_what_is_left_out(model: nn.Module) -> None:
    """Warn of layers of torch that are random in training, and not in a simulation.

    Warns:
        CaptureWarning: names the first of them.
    """
    found = [
        name or "the model itself"
        for name, module in model.named_modules()
        if isinstance(module, nn.RReLU) or (isinstance(module, nn.MultiheadAttention) and module.dropout > 0)
    ]
    if found:
        left_out = "the dropout inside of attention, and the chance in RReLU"
        what = f"training a simulation leaves out {left_out}: {_first(found)}"
        why = "they are no layers of their own, and the model was captured as it evaluates"
        remedy = "set their dropout to 0 where that is meant, or drop probabilities by an nn.Dropout"
        warn(CaptureWarning(f"{what}. Reason: {why}. Remedy: {remedy}"))


def _first(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _gradients(
    network: nn.Module, weights: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the gradient of a random sum of the outputs, by parameter; nothing where it cannot be differentiated."""
    try:
        outputs = network(*copied(args), **copied(kwargs))
        found = [y for y in pytree.tree_leaves(outputs) if isinstance(y, Tensor) and y.requires_grad]
        if not found:
            return {}
        draws = torch.Generator().manual_seed(0)
        factors = [torch.randn(y.shape, generator=draws).to(y.device, y.dtype) for y in found]
        gradients = torch.autograd.grad(found, list(weights.values()), factors, allow_unused=True)
    except Exception:  # noqa: BLE001 - a backward pass is anybody's code; training will say what is wrong
        return {}
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: torch.zeros_like(w) if g is None else g.to_dense() for (name, w), g in pairs}


def _apart(theirs: Tensor, ours: Tensor, nothing: float) -> bool:
    """Return whether two gradients of one parameter are others."""
    size = max(float(theirs.norm()), float(ours.norm()))
    return size > nothing and float((theirs - ours).norm()) > APART * size
