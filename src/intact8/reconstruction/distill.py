"""The whole network learned from the outputs of the float one, on calibration data without labels (distillation).

Blocks are reconstructed one after the other, so none knows what those behind it can take back, and what their errors do
to the outputs is not seen. Here integers, biases and scales of all layers move together, by straight-through gradients
of the exact simulation, to make the error of the outputs small (Hinton et al. 2015, with squared errors in place of
labels; scales as Esser et al. 2020 and Bhalgat et al. 2020 have it).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intact8.capture.graph import Node
from intact8.errors import InputError
from intact8.simulation.layers import Layer
from intact8.simulation.ops.affine import Affine
from intact8.simulation.quantized_tensor import real
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded
from intact8.simulation.weights.layout import per_output
from intact8.simulation.weights.quantize import corrected_bias
from intact8.train.scale_phase import learned_scales

from .learn import Progress, Settings, digest, keep, resume

ROUNDS = 5
"""Times that the error is measured on samples that nothing is learned from."""

HELD_OUT = 8
"""One sample of so many decides only whether what was learned is better."""

LEAST = 1e-3
"""Parameters move as if their root mean square were this at least."""


def distill(
    sim: Simulation,
    inputs: list[Tensor],
    settings: Settings,
    *,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Learn the integers and biases of all layers, and all scales, from the outputs of the float network.

    One sample in HELD_OUT is not learned from. What had the least error on these samples, measured before and ROUNDS
    times on the way, is what the simulation computes afterwards. The float network stays what it was: weights move
    while they are learned, and what became of them is kept beside them, as roundings and corrections of biases.

    Args:
        sim: calibrated, quantizing, in evaluation mode, of a recipe that learns scales.
        inputs: flat inputs, all samples in one batch.
        settings: ``rate`` and ``scale_rate`` are relative: the first steps of a parameter are about as large as that
            times its root mean square.
        progress: called after every round.
        checkpoint: a file that is written after every round; where it exists, the rounds in it are not learned again.
    """
    samples = len(inputs[0])
    held_out = torch.arange(samples, device=inputs[0].device) % HELD_OUT == min(HELD_OUT, samples) - 1
    fingerprint: dict[str, Any] = {"method": "distill", **asdict(settings)}
    if checkpoint is not None:
        model = [t for name, t in sim.state_dict().items() if not name.startswith("quantizers.")]
        fingerprint |= {"model": digest(model), "inputs": digest(inputs)}
    judged = _Lessons(sim, [t[held_out] for t in inputs], settings.batch)
    taught = _Lessons(sim, [t[~held_out] for t in inputs], settings.batch) if samples > 1 else judged
    if not judged.outputs:
        what, remedy = "no output has a row for every sample", 'choose another method, "qdrop"'
        raise InputError(what, where="reconstruct", why="distillation learns from outputs", remedy=remedy)
    with _moving_weights(sim) as weights:
        scales = [p for _, p in learned_scales(sim) if p.requires_grad]
        rates = [(p, settings.rate) for p in weights] + [(p, settings.scale_rate) for p in scales]
        optimizer = torch.optim.Adam([{"params": [p], "lr": rate * _size(p)} for p, rate in rates])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
        best: dict[str, Any] = {"error": judged.error(sim), "state": copy.deepcopy(sim.state_dict())}
        saved = None if checkpoint is None else resume(sim, checkpoint, fingerprint)
        if saved is not None:
            best = saved["best"]
            optimizer.load_state_dict(saved["optimizer"])
            schedule.load_state_dict(saved["schedule"])
        for number in range(0 if saved is None else saved["done"], ROUNDS):
            steps = range(settings.iterations * number // ROUNDS, settings.iterations * (number + 1) // ROUNDS)
            for step in steps:
                random = torch.Generator().manual_seed(settings.seed * settings.iterations + step)
                chosen = torch.randint(taught.samples, (min(settings.batch, taught.samples),), generator=random)
                optimizer.zero_grad()
                with torch.enable_grad(), _training(sim):
                    taught.loss(sim, chosen).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            error = judged.error(sim)
            if error < best["error"]:
                best = {"error": error, "state": copy.deepcopy(sim.state_dict())}
            if checkpoint is not None:
                states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
                keep(sim, checkpoint, {"fingerprint": fingerprint, "done": number + 1, "best": best, **states})
            if progress is not None:
                progress(number + 1, ROUNDS)
        sim.load_state_dict(best["state"])
    sim.resolve(from_observers=False)


class _Lessons:
    """Samples, and the float network's outputs for them."""

    def __init__(self, sim: Simulation, inputs: list[Tensor], batch: int) -> None:
        self.inputs, self.samples, self.batch = inputs, len(inputs[0]), batch
        sim.fake_quantize(False)
        parts = [self._outputs(sim, [t[k : k + batch] for t in inputs]) for k in range(0, self.samples, batch)]
        sim.fake_quantize(True)
        self.outputs = [torch.cat(part) for part in zip(*parts, strict=True)]
        self.weights = [1 / y.square().mean().clamp(min=1e-30) for y in self.outputs]

    def loss(self, sim: Simulation, chosen: Tensor) -> Tensor:
        """Return the squared errors of all outputs for some samples, relative to their mean squares, together."""
        found = self._outputs(sim, [t[chosen] for t in self.inputs])
        errors = [
            (y - wanted[chosen]).square().mean() * weight
            for y, wanted, weight in zip(found, self.outputs, self.weights, strict=True)
        ]
        return torch.stack(errors).sum()

    def error(self, sim: Simulation) -> float:
        """Return the loss of all samples."""
        parts = torch.split(torch.arange(self.samples), self.batch)
        return sum(float(self.loss(sim, part)) * len(part) for part in parts)

    def _outputs(self, sim: Simulation, inputs: list[Tensor]) -> list[Tensor]:
        values, rows = sim.run(inputs), len(inputs[0])
        outputs = [real(values[name]) for name in sim.graph.outputs]
        return [y for y in outputs if y.is_floating_point() and y.shape[:1] == (rows,)]


@contextmanager
def _moving_weights(sim: Simulation) -> Iterator[list[nn.Parameter]]:
    """Give the parameters of reconstructed layers gradients, which others do not read.

    Afterwards they are what they were, and roundings and corrections of biases make of them the integers they became.
    """
    nodes = [node for node in sim.graph if "correct.rounding" in node.params]
    layers = {node.name: sim.layer_ops[node.name] for node in nodes}
    held = {
        name
        for node in sim.graph
        for role, name in node.params.items()
        if node.name not in layers or (_is_bias(role) and not _takes_bias(sim, node, layers[node.name]))
    }
    names = {name for node in nodes for name in node.params.values()} - held
    found = {id(t): t for name in names if isinstance(t := sim.tensors[name], nn.Parameter)}
    held_parameters = {id(sim.tensors[name]) for name in held}
    weights = [p for key, p in found.items() if key not in held_parameters]
    before = [(p, p.detach().clone(), p.requires_grad) for p in weights]
    try:
        for parameter in weights:
            parameter.requires_grad_(True)
        yield weights
    finally:
        sim.resolve(from_observers=False)
        wanted = {node.name: _integers(sim, node) for node in nodes}
        for parameter, value, grad in before:
            parameter.copy_(value).requires_grad_(grad)
        sim.zero_grad()
        for node in nodes:
            _keep_integers(sim, node, *wanted[node.name])


def _is_bias(role: str) -> bool:
    """Return whether a parameter moves the bias of a layer."""
    return role == "bias" or role.startswith(("bn.", "pre."))


def _takes_bias(sim: Simulation, node: Node, layer: Layer) -> bool:
    """Return whether a layer computes with its bias as it is corrected: those with integer sums do."""
    integers = sim.point(node.inputs[0]) is not None
    return "correct.bias" in node.params and isinstance(layer, Affine) and integers


def _integers(sim: Simulation, node: Node) -> tuple[Tensor, Tensor | None]:
    """Return the integer weight of a layer and its corrected bias."""
    point, layer = sim.weight_points[node.name], sim.layer_ops[node.name]
    assert isinstance(layer, Affine)
    weight, bias = folded(node, sim.tensors)
    return layer.codes()[0].clone(), corrected_bias(node, sim.tensors, weight, bias, point.scale, point.lo, point.hi)


def _keep_integers(sim: Simulation, node: Node, integers: Tensor, bias: Tensor | None) -> None:
    """Let a layer have that integer weight and bias with the weight it has."""
    point = sim.weight_points[node.name]
    weight, own = folded(node, sim.tensors)
    steps = integers - weight / per_output(point.scale, weight, node)
    sim.tensors[node.params["correct.rounding"]].copy_(steps.reshape(integers.shape))
    if bias is not None and "correct.bias" in node.params:
        correction = sim.tensors[node.params["correct.bias"]]
        found = corrected_bias(node, sim.tensors, weight, own, point.scale, point.lo, point.hi)
        assert found is not None
        correction.add_(bias - found)


def _size(parameter: nn.Parameter) -> float:
    return max(float(parameter.detach().square().mean().sqrt()), LEAST)


@contextmanager
def _training(sim: Simulation) -> Iterator[None]:
    """Put scales into training, while the model's own modules (batch norm, dropout) stay in evaluation."""
    own = sim.get_submodule("quantizers")
    try:
        sim.training = True
        own.train()
        yield
    finally:
        sim.training = False
        own.eval()
