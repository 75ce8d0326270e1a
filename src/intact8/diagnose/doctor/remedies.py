"""Remedies for findings: recipes that differ in one thing from the present one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

from .report import CALIBRATION, Finding

RANGES = frozenset(
    {"clipped_range", "wide_range", "zero_point", "heavy_tail", "shared_range", "stale_range", "moving_average"}
)
"""Causes that another observer may cure."""

ANEW = "calibrate on representative data"


@dataclass(frozen=True)
class Candidate:
    """A way to quantize the network: a recipe, and whether it is calibrated on the representative data."""

    recipe: Recipe
    recalibrate: bool = False


@dataclass(frozen=True)
class Remedy:
    """One change of a candidate.

    Attributes:
        text: description for the report.
        candidate: the candidate with the change.
        structural: whether it makes more, not fewer, integers; such a remedy is taken unless accuracy falls.
        costly: whether it leaves a layer float.
    """

    text: str
    candidate: Candidate
    structural: bool = False
    costly: bool = False


def remedies_for(finding: Finding, now: Candidate, sim: Simulation) -> list[Remedy]:
    """Return what may help against a finding, cheapest first, and is not in force already.

    Args:
        finding: what was found.
        now: the present candidate.
        sim: the simulation of that candidate, for names and schemes.
    """
    if finding.place == CALIBRATION:
        return [] if now.recalibrate else [Remedy(ANEW, replace(now, recalibrate=True))]
    if finding.cause == "left_float":
        return _quantize(finding.place, now, sim)
    found = [Remedy(text, replace(now, recipe=recipe)) for text, recipe in _recipes(finding, now.recipe, sim)]
    return [remedy for remedy in found if remedy.candidate != now]


def _recipes(finding: Finding, recipe: Recipe, sim: Simulation) -> Iterator[tuple[str, Recipe]]:
    cause = finding.cause
    activations = [name for part, name in finding.sites if part == "activation" and name in sim.points]
    weights = [name for part, name in finding.sites if part == "weight" and name in sim.all_weight_points]
    if cause in RANGES:
        for observer in ("mse", "histogram", "minmax"):
            yield f"observer {observer}", _observe(recipe, activations, observer, sim)
    if cause in ("outlier_channel", "heavy_tail"):
        yield "observer mse", _observe(recipe, activations, "mse", sim)
    if cause == "few_bits":
        if activations and recipe.activation.bits < 8:
            yield "8 bits for all activations", replace(recipe, activation=recipe.activation.changed({"bits": 8}))
        if weights and recipe.weight.bits < 8:
            yield "8 bits for all weights", replace(recipe, weight=recipe.weight.changed({"bits": 8}))
        yield "8 bits", _weights(_activations(recipe, activations, sim, bits=8), weights, sim, bits=8)
    if cause == "symmetric_range":
        yield "asymmetric", _activations(recipe, activations, sim, symmetric=False, dtype="uint8")
    if cause == "per_tensor_weight":
        if recipe.weight.granularity == "per_tensor":
            weight = recipe.weight.changed({"granularity": "per_channel"})
            yield "one scale per channel everywhere", replace(recipe, weight=weight)
        yield "one scale per channel", _weights(recipe, weights, sim, granularity="per_channel")
    if cause in ("outlier_channel", "channel_imbalance", "input_imbalance"):
        yield "equalize", replace(recipe, equalize=True)
    large = cause in ("outlier_channel", "outlier_weight", "channel_imbalance", "input_imbalance")
    if large or "right" in finding.evidence:
        yield "smooth", replace(recipe, smooth=recipe.smooth or "auto")
    if cause == "bias_shift":
        yield "bias correction", replace(recipe, bias_correction=True)
    if cause in ("outlier_weight", "input_imbalance"):
        yield "weight observer mse", _weights(recipe, weights, sim, observer="mse")
    if cause == "cancellation":
        yield "fused residual", replace(recipe, residual="fused")
        yield "residual sums in float32", replace(recipe, between_layers="float_residual")


def _quantize(layer: str, now: Candidate, sim: Simulation) -> list[Remedy]:
    """Remove the rules that keep a layer float, where they name nothing else."""
    rules = tuple(r for r in now.recipe.rules if r.match != layer or r.quantize is not False)
    if any(r.quantize is False and (r.names_role or r.matches(sim.graph.nodes[layer])) for r in rules):
        return []
    recipe = replace(now.recipe, overrides=rules)
    return [Remedy(f"quantize {layer}", replace(now, recipe=recipe), structural=True)]


def general(now: Candidate) -> list[Remedy]:
    """Return the settings worth trying on every network that still makes noise."""
    recipe = now.recipe
    finer = recipe.activation.changed({"observer": "mse"}) if recipe.scales != "observed" else recipe.activation
    changes = {
        "observer mse everywhere": replace(recipe, activation=finer),
        "weight observer mse everywhere": replace(recipe, weight=recipe.weight.changed({"observer": "mse"})),
        "bias correction": replace(recipe, bias_correction=True),
        "equalize": replace(recipe, equalize=True),
        "fused leaky ReLU": replace(recipe, leaky="fused"),
        "weights rounded by the covariance of inputs": replace(recipe, reconstruction=_rounding(recipe)),
    }
    return [Remedy(text, replace(now, recipe=changed)) for text, changed in changes.items() if changed != recipe]


def _rounding(recipe: Recipe) -> str:
    """Return the rounding that costs seconds where none is chosen; scales that training moves keep what they have."""
    return "gptq" if recipe.reconstruction == "none" and recipe.scales == "calibrated" else recipe.reconstruction


def leave_float(groups: list[list[str]], now: Candidate) -> list[Remedy]:
    """Leave groups of layers float, one group per remedy; a tensor is float where all that make and read it are."""
    out = []
    for names in groups:
        recipe = _with(now.recipe, *(Override(name, quantize=False) for name in names))
        out.append(Remedy(f"leave {' and '.join(names)} float", replace(now, recipe=recipe), costly=True))
    return out


def layers_of(finding: Finding, sim: Simulation) -> list[str]:
    """Return the layers that make and read a finding's tensors; left float, those tensors are not quantized."""
    names: list[str] = []
    users = sim.graph.users()
    for part, name in finding.sites:
        if part == "weight":
            names.append(name)
        elif name in sim.points:
            tensors = sim.points[name].tensors
            names += [u for n in tensors for u in users[n] if u in sim.weight_points]
            names += [n for n in tensors if n in sim.weight_points][:1]
    return list(dict.fromkeys(names))


def _observe(recipe: Recipe, points: list[str], observer: str, sim: Simulation) -> Recipe:
    """Change the observer of points: in the default where they follow it, else by an override or as an input."""
    default = recipe.activation
    alike = [p for p in points if sim.points[p].scheme == default]
    if alike and len(alike) == len(points) and 2 * len(alike) >= len(sim.points):
        return replace(recipe, activation=default.changed({"observer": observer}))
    changes = {"observer": observer, "fixed": "none"}
    schemes = {p: sim.points[p].scheme.changed(changes) for p in points if p in sim.graph.inputs}
    if schemes:
        recipe = replace(recipe, inputs={k: v for k, v in recipe.inputs.items() if v.fixed is None} | schemes)
    return _activations(recipe, [p for p in points if p not in schemes], sim, **changes)


def _activations(recipe: Recipe, names: list[str], sim: Simulation, **changes: Any) -> Recipe:
    """Add overrides for those points whose scheme they change."""
    changed = [name for name in names if sim.points[name].scheme.changed(changes) != sim.points[name].scheme]
    return _with(recipe, *(Override(name, activation=changes) for name in changed))


def _weights(recipe: Recipe, names: list[str], sim: Simulation, **changes: Any) -> Recipe:
    """Add overrides for those weights whose scheme they change."""
    schemes = {name: sim.all_weight_points[name].scheme for name in names}
    changed = [name for name, scheme in schemes.items() if scheme.changed(changes) != scheme]
    return _with(recipe, *(Override(name, weight=changes) for name in changed))


def _with(recipe: Recipe, *rules: Override) -> Recipe:
    return replace(recipe, overrides=(*recipe.rules, *rules)) if rules else recipe
