"""Remedies for findings: recipes that differ in one thing from the present one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe, Scheme
from intact8.simulation.simulation import Simulation

from .report import CALIBRATION, Finding

RANGES = frozenset(
    {"clipped_range", "wide_range", "zero_point", "heavy_tail", "shared_range", "stale_range", "moving_average"}
)
"""Causes that another observer may cure."""

SMOOTH = 0.5
"""The customary α of scale migration (Xiao et al. 2023)."""

ANEW = "calibrate on representative data"


@dataclass(frozen=True)
class Treatment:
    """How the network is quantized: the recipe, and whether it is calibrated on the representative data."""

    recipe: Recipe
    recalibrate: bool = False


@dataclass(frozen=True)
class Remedy:
    """One change of a treatment.

    Attributes:
        text: for the report.
        treatment: with the change.
        structural: whether it makes more, not fewer, integers: taken unless accuracy falls.
        costly: whether it leaves a layer float.
    """

    text: str
    treatment: Treatment
    structural: bool = False
    costly: bool = False


def remedies_for(finding: Finding, now: Treatment, sim: Simulation) -> list[Remedy]:
    """What may help against a finding, cheapest first; nothing that is in force already.

    Args:
        finding: what was found.
        now: the present treatment.
        sim: the simulation under it, for names and schemes.
    """
    if finding.place == CALIBRATION:
        return [] if now.recalibrate else [Remedy(ANEW, replace(now, recalibrate=True))]
    if finding.cause == "left_float":
        return _quantize(finding.place, now, sim)
    found = [Remedy(text, replace(now, recipe=recipe)) for text, recipe in _recipes(finding, now.recipe, sim)]
    return [remedy for remedy in found if remedy.treatment != now]


def _recipes(finding: Finding, recipe: Recipe, sim: Simulation) -> Iterator[tuple[str, Recipe]]:
    cause = finding.cause
    activations = [name for part, name in finding.sites if part == "activation" and name in sim.points]
    weights = [name for part, name in finding.sites if part == "weight" and name in sim.weight_points]
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
        yield "smooth", replace(recipe, smooth=recipe.smooth or SMOOTH)
    if cause == "bias_shift":
        yield "bias correction", replace(recipe, bias_correction=True)
    if cause in ("outlier_weight", "input_imbalance"):
        yield "weight observer mse", _weights(recipe, weights, sim, observer="mse")
    if cause == "cancellation":
        yield "fused residual", replace(recipe, residual="fused")


def _quantize(layer: str, now: Treatment, sim: Simulation) -> list[Remedy]:
    """Without the rules that keep a layer float, where they name nothing else."""
    rules = tuple(r for r in now.recipe.rules if r.match != layer or r.quantize is not False)
    if any(r.quantize is False and r.matches(sim.graph.nodes[layer]) for r in rules):
        return []
    recipe = replace(now.recipe, overrides=rules)
    return [Remedy(f"quantize {layer}", replace(now, recipe=recipe), structural=True)]


def general(now: Treatment) -> list[Remedy]:
    """Settings worth trying on every network that still makes noise."""
    recipe = now.recipe
    finer = recipe.activation.changed({"observer": "mse"}) if recipe.scales != "observed" else recipe.activation
    changes = {
        "observer mse everywhere": replace(recipe, activation=finer),
        "weight observer mse everywhere": replace(recipe, weight=recipe.weight.changed({"observer": "mse"})),
        "bias correction": replace(recipe, bias_correction=True),
        "equalize": replace(recipe, equalize=True),
        "fused leaky ReLU": replace(recipe, leaky="fused"),
    }
    return [Remedy(text, replace(now, recipe=changed)) for text, changed in changes.items() if changed != recipe]


def leave_float(groups: list[list[str]], now: Treatment) -> list[Remedy]:
    """Each of some groups of layers left float; a tensor is float only where all that make and read it are."""
    out = []
    for names in groups:
        recipe = now.recipe
        for name in names:
            recipe = _with(recipe, Override(name, quantize=False))
        out.append(Remedy(f"leave {' and '.join(names)} float", replace(now, recipe=recipe), costly=True))
    return out


def layers_of(finding: Finding, sim: Simulation) -> list[str]:
    """The layers to leave float so that a finding's tensors are not quantized: those that make and read them."""
    names: list[str] = []
    users = sim.graph.users()
    for part, name in finding.sites:
        if part == "activation" and name not in sim.points:
            continue
        node = name if part == "weight" else next((n for n in sim.points[name].tensors if n in sim.weight_points), "")
        if part == "activation":
            pending = list(sim.points[name].tensors)
            names += [u for n in pending for u in users[n] if u in sim.weight_points]
        if node:
            names.append(node)
    return list(dict.fromkeys(names))


def _observe(recipe: Recipe, points: list[str], observer: str, sim: Simulation) -> Recipe:
    """Points observed anew: by the default where they follow it, else by an override or as an input."""
    default = recipe.activation
    alike = [p for p in points if sim.points[p].scheme == default]
    if alike and len(alike) == len(points) and 2 * len(alike) >= len(sim.points):
        return replace(recipe, activation=default.changed({"observer": observer}))
    inputs = {sim.graph.nodes[n].name for n in sim.graph.inputs}
    keep: dict[str, Scheme] = dict(recipe.inputs)
    for point in points:
        if point in inputs:
            scheme = sim.points[point].scheme.changed({"observer": observer, "fixed": "none"})
            keep = {k: v for k, v in keep.items() if v.fixed is None}
            keep[point] = scheme
    others = [p for p in points if p not in inputs]
    return _activations(replace(recipe, inputs=keep), others, sim, observer=observer, fixed="none")


def _activations(recipe: Recipe, names: list[str], sim: Simulation, **changes: Any) -> Recipe:
    """Overrides for those points whose scheme they change."""
    for name in names:
        if sim.points[name].scheme.changed(changes) != sim.points[name].scheme:
            recipe = _with(recipe, Override(name, activation=changes))
    return recipe


def _weights(recipe: Recipe, names: list[str], sim: Simulation, **changes: Any) -> Recipe:
    """Overrides for those weights whose scheme they change."""
    for name in names:
        if sim.weight_points[name].scheme.changed(changes) != sim.weight_points[name].scheme:
            recipe = _with(recipe, Override(name, weight=changes))
    return recipe


def _with(recipe: Recipe, rule: Override) -> Recipe:
    return replace(recipe, overrides=(*recipe.rules, rule))
