"""What lies between layers, chosen by how near the outputs are to the float network's.

A choice has to hold for samples that nobody has seen. The range of a tensor in n samples is left by a further sample
with a probability of at most 2/(n + 1), where they are drawn alike: where n is large, what calibration saw is what will
come; where it is small, outputs that look good on the samples that gave the ranges can be clipped in any other. Few
samples are therefore divided, and the outputs of every part are those of ranges calibrated on the others. By these
it is also chosen whether ranges leave room for what few samples do not show (the observer's ``room``).

Parts differ from each other, those of one sample most of all, so a recipe holds where the average of the parts, and
three times its standard error (of four parts, a confidence of 97 %), is at most half as far behind plain W8A8 as is
told of an output. Where none does, plain W8A8 itself is taken: as little rounded as a program can be, with the ranges
that the samples had, and with weights as they are. So it is where only layers are rounded and plain W8A8 is far from
float: such a network amplifies rounding, its outputs differ by chance between any two roundings, and nothing but plain
W8A8 is sure not to be behind it. More careful ranges and weights stay where they are nearer by more than chance.

A recurrent layer rounds its inputs row by row as it runs, and no range helps where a row holds values that are far
apart. Where an output is behind, and first lost there, it stays float: see :meth:`_Choice.keep_recurrent_layers`.

With "nearest" this begins at the recipe from which rounding less brings the worst output no nearer. Else it begins with
channels rescaled (the recipe's ``smooth``) where an output is far from float and that brings it much nearer: so it is
where a few weights are far larger than all others, as in convolutions into which a shortcut was merged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.data import batches, device_of, merged
from intact8.calibration.run import compute_scales
from intact8.diagnose.fidelity import (
    APART,
    BEHIND,
    CLEAN,
    SUSPICIOUS,
    Measured,
    first_loss,
    measure_outputs,
    measure_unseen,
)
from intact8.errors import AccuracyWarning, RecipeError, warn
from intact8.recipe.override import as_overrides
from intact8.recipe.recipe import CHOSEN_BETWEEN_LAYERS, FLOAT_BETWEEN_LAYERS, Recipe
from intact8.simulation.prepare import rebuild, simulate_again
from intact8.simulation.simulation import OWN_MODULES, Simulation

FEW = 31
"""Samples, at most, of which some are held out."""

PARTS = 4
"""Parts of the samples, each of which is held out once."""

NEAR_ENOUGH, GAIN = 32.0, 0.2
"""Decibels: less is rounded for "nearest" where an output is below the first, and gains the second. Of many samples the
ratio is that of samples for which ranges were chosen, up to 2 dB more than that of others."""

MUCH = 3.0
"""Decibels by which the worst output, far from float (SUSPICIOUS), comes nearer where channels are rescaled."""

AMPLIFIED = 15.0
"""Decibels: where plain W8A8 is no nearer than this, a cosine of 0.984, chance decides by more than APART."""

log = logging.getLogger(__name__)

Batches = list[list[Tensor]]
"""Flat inputs, batch by batch."""

_Made = tuple[Simulation, Measured]
"""A calibrated simulation, and how near its outputs are."""


def choose_between_layers(
    sim: Simulation, data: Any, max_batches: int | None = None, *, shard: str = "auto", quiet: bool = False
) -> Measured | None:
    """Make it the cheapest simulation whose outputs are no worse than plain W8A8's, or the nearest to that.

    Args:
        sim: calibrated; its recipe says afterwards what was chosen.
        data: what it was calibrated on, to be read again.
        max_batches: how many of these batches; None for all.
        shard: how ranks share calibration, as for :func:`intact8.calibrate`.
        quiet: whether not to warn of weights that take all of 8 bits.

    Returns:
        How near its outputs are to float's; None where nothing was to choose: the recipe says what is rounded, or the
        data can be read only once.
    """
    if sim.recipe.between_layers not in CHOSEN_BETWEEN_LAYERS or isinstance(data, Iterator):
        return None
    mode, modes = sim.training, {module: module.training for module in sim.modules()}
    try:
        return _choose(sim.eval(), data, max_batches, shard, quiet)
    finally:
        for name in OWN_MODULES:  # they may be others now
            sim.get_submodule(name).train(mode)
        for module, flag in modes.items():
            module.training = flag


class _Choice:
    """What :func:`choose_between_layers` tries, for a recipe that leaves it open.

    Args:
        sim, data, max_batches, shard: as for :func:`choose_between_layers`.
    """

    def __init__(self, sim: Simulation, data: Any, max_batches: int | None, shard: str) -> None:
        self.sim, self.data, self.max_batches, self.shard = sim, data, max_batches, shard
        self.recipe = sim.recipe
        self.parts = _parts(sim, data, max_batches)
        self.measured: dict[str, list[Measured]] = {}

    def whole(self, recipe: Recipe) -> _Made:
        """Return the simulation of a recipe, calibrated on all the data, and how near its outputs are."""
        made = self.sim
        if recipe != self.sim.recipe:
            made = self._calibrated(simulate_again(self.sim, recipe), self.data, self.max_batches)
        return made, measure_outputs(made)

    def held_out(self, recipe: Recipe) -> Iterator[Measured]:
        """Measure every part once with ranges calibrated on the others.

        Weights are rounded to the nearest integers: what lies between layers does not depend on reconstruction.
        """
        done = self.measured.setdefault(recipe.to_toml(), [])
        yield from done
        if len(done) == len(self.parts):
            return
        partly = simulate_again(self.sim, replace(recipe, reconstruction="none", scales="calibrated"))
        batched = self.sim.quantized_graph.batched
        for part in self.parts[len(done) :]:
            seen, unseen = (merged(samples, batched, len(samples)) for samples in part)
            done.append(measure_unseen(self._calibrated(partly, [tuple(inputs) for inputs in seen]), unseen, seen))
            yield done[-1]

    def first_behind(self, recipe: Recipe) -> tuple[int, list[dict[str, Any]]]:
        """Return for how many parts no output is behind, and the outputs that are in the next, or may be in others."""
        done: list[Measured] = []
        for part in self.held_out(recipe):
            if part.behind:
                return len(done), part.behind
            done.append(part)
        return len(done), [row for rows in zip(*(p.outputs for p in done), strict=True) for row in _may_be_behind(rows)]

    def keep_recurrent_layers(self) -> list[str]:
        """Leave recurrent layers float at which an output that is behind is first lost, and return their names."""
        kept: list[str] = []
        made, measured = self.sim, measure_outputs(self.sim) if self.sim.recurrent_points else Measured([], 0, [], {})
        while measured.behind and measured.inputs:
            with torch.no_grad():
                name = first_loss(made, measured.inputs, [row["name"] for row in measured.behind])["node"]
            node = made.graph.nodes[name]
            if name not in made.recurrent_points or any(rule.matches(node) for rule in self.recipe.rules):
                break
            recipe = replace(self.recipe, overrides=(*self.recipe.rules, *as_overrides({name: None})))
            other, found = self.whole(recipe)
            if _worst([found])[0] < _worst([measured])[0] + BEHIND:
                break
            self.recipe, made, measured = recipe, other, found
            kept.append(name)
        return kept

    def start(self) -> tuple[Recipe, _Made | None]:
        """Return the recipe to begin with, and what was made of it where all the data were."""
        if self.recipe.between_layers == "nearest":
            return self._nearest()
        return self._smoothed(self._with_room() if self.parts else self.recipe)

    def plain_instead(self, recipe: Recipe) -> Recipe | None:
        """Return plain W8A8 where it decides by chance alone whether this recipe, which rounds as little, is behind."""
        plain = self.plain()
        if plain is None or recipe.between_layers != "float" or not _amplified(self.held_out(recipe)):
            return None
        return None if _clearly_above(_worst(self.held_out(recipe)), _worst(self.held_out(plain))) else plain

    def plain(self) -> Recipe | None:
        """Return plain W8A8, with the layers that stay float; None where the recipe asks for something of its own."""
        plain = _plain(self.sim.recipe)
        return plain if plain is None else replace(plain, overrides=self.recipe.rules)

    def _calibrated(self, other: Simulation, data: Any, max_batches: int | None = None) -> Simulation:
        # What there is to warn of was told the first time.
        compute_scales(other, data, reset=True, max_batches=max_batches, shard=self.shard, quiet=True)
        return other

    def _with_room(self) -> Recipe:
        """Return the recipe, with room in its ranges where that brings outputs nearer on average; running it takes no
        longer, and ranges of few samples are too small sooner than too large."""
        recipe = self.recipe
        if recipe.activation.observer != "histogram":
            return recipe
        roomy = replace(recipe, activation=replace(recipe.activation, observer_args={"room": True}))
        tight = _worst(self.held_out(recipe))
        helps = min(tight) < SUSPICIOUS and mean(_worst(self.held_out(roomy))) > mean(tight)
        return roomy if helps else recipe

    def _smoothed(self, recipe: Recipe) -> tuple[Recipe, _Made | None]:
        """Return the recipe, or one that rescales channels where outputs are far from float, and much nearer so;
        running it takes no longer but where float operations read the channels."""
        if recipe.smooth or not self.sim.weight_points:
            return recipe, None
        nearness, made = self._nearness(recipe)
        if nearness >= SUSPICIOUS:
            return recipe, made
        for smoothed in _possible(self.sim, [replace(recipe, smooth="auto")]):
            nearer, other = self._nearness(smoothed)
            if nearer >= nearness + MUCH:
                return smoothed, other
        return recipe, made

    def _nearest(self) -> tuple[Recipe, _Made | None]:
        """Return the recipe, or one that rounds less, as long as that brings the worst output nearer."""
        best, (nearness, made) = self.recipe, self._nearness(self.recipe)
        for recipe in _possible(self.sim, _nearer_and_nearer(best) if self.sim.weight_points else ()):
            if nearness >= NEAR_ENOUGH:
                break
            found, other = self._nearness(recipe)
            if found < nearness + GAIN:
                break
            best, nearness, made = recipe, found, other
        return best, made

    def _nearness(self, recipe: Recipe) -> tuple[float, _Made | None]:
        """Return the signal-to-noise ratio (dB) of the worst output, and what was made of all the data where it was."""
        if self.parts:
            return mean(_worst(self.held_out(recipe))), None
        made = self.whole(recipe)
        # A few samples hold most of the noise of some networks, so what was kept for reconstruction is looked at, too.
        kept = made[0].kept
        return _worst([measure_unseen(made[0], kept, kept) if kept else made[1]])[0], made


def _choose(sim: Simulation, data: Any, max_batches: int | None, shard: str, quiet: bool) -> Measured:
    """Do what :func:`choose_between_layers` says, for a recipe that leaves it open."""
    choice = _Choice(sim, data, max_batches, shard)
    kept = choice.keep_recurrent_layers()
    best, least, found, lost = choice.recipe, (-1, 0.0), None, ""
    start, made = choice.start()
    for recipe in _possible(sim, _less_and_less_rounded(sim, start)):
        tried = None if choice.parts else made if made and recipe == start else choice.whole(recipe)
        passed, rows = choice.first_behind(recipe) if tried is None else (0, tried[1].behind)
        standing = passed, -max((row["apart"] for row in rows), default=-math.inf)
        if standing > least:
            best, least, found = recipe, standing, tried
        if not rows:
            if choice.parts and (plain := choice.plain_instead(recipe)) is not None:
                best, found = plain, None
            break
        lost = lost or rows[0]["name"]
    else:
        if sim.weight_points and (plain := choice.plain()) is not None:
            best, found = plain, None
    found = found or choice.whole(best)
    if kept and not quiet:
        stay = "stays" if len(kept) == 1 else "stay"
        what = f"{', '.join(kept)} {stay} float, as in 8 bits an output is far from float's"
        why = "it rounds its inputs row by row, and a row that holds large numbers leaves nothing of small ones"
        remedy = f'scale its inputs (logarithms, say), or Recipe(overrides={{"{kept[0]}": {{"quantize": True}}}})'
        warn(AccuracyWarning(f"{what}. Reason: {why}. Remedy: {remedy}"))
    if lost and best.between_layers != sim.recipe.between_layers:
        message = "%s is further from float than plain W8A8: between_layers = %r instead of 'integer'"
        log.info(message, lost, best.between_layers)
    if best.portable != sim.recipe.portable and not quiet:
        why = f"{lost} is further from float than plain W8A8 where weights leave room for sums of pairs in int16"
        what = "every engine but the native one needs a CPU with VNNI for this program (portable = False)"
        warn(AccuracyWarning(f"{what}: {why}. Remedy: Recipe(portable=True) leaves that room"))
    taken, outputs = found
    if taken is not sim:
        rebuild(sim, taken.recipe)
        sim.take(taken)
        sim.scale_phase.chosen = taken.recipe.to_toml()
    return outputs


def _nearer_and_nearer(recipe: Recipe) -> Iterator[Recipe]:
    """Yield recipes that round less and less than one does between layers, and may take longer."""
    yield replace(recipe, between_layers="float_residual", attention="float")
    yield replace(recipe, between_layers="float")


def _worst(parts: Iterable[Measured]) -> list[float]:
    """Return the least signal-to-noise ratio (dB) of every part."""
    return [min((row["sqnr"] for row in part.outputs if row["sqnr"] is not None), default=CLEAN) for part in parts]


def _amplified(parts: Iterator[Measured]) -> bool:
    """Return whether plain W8A8 leaves some output far from float's, on average over the parts."""
    rows = zip(*(part.outputs for part in parts), strict=True)
    return any(mean(row.get("plain") or CLEAN for row in output) < AMPLIFIED for output in rows)


def _clearly_above(a: list[float], b: list[float]) -> bool:
    """Return whether the pairs differ in favour of ``a``, on average by twice the standard error of that or more."""
    gains = [u - v for u, v in zip(a, b, strict=True)]
    return len(gains) > 1 and mean(gains) > 2 * stdev(gains) / math.sqrt(len(gains))


def _may_be_behind(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an output of several parts where its average cosine may be less than plain W8A8's by half of APART.

    Of a part that is not suspicious it is known that 1 - cosine is at most half the noise.
    """
    found = [
        row["apart"] if "apart" in row else 10 ** (-row["sqnr"] / 10) / 2 for row in parts if row["sqnr"] is not None
    ]
    if len(found) < 2 or (apart := mean(found) + 3 * stdev(found) / math.sqrt(len(found))) <= APART / 2:
        return []
    return [{"name": parts[0]["name"], "apart": apart}]


def _plain(recipe: Recipe) -> Recipe | None:
    """Return plain W8A8; None where the recipe asks for ranges, weights or layers of its own."""
    own = recipe.inputs or recipe.rules or recipe.smooth or recipe.portable is True
    if own or recipe.activation.observer != "histogram":
        return None
    activation = replace(recipe.activation, observer="minmax")
    return replace(
        recipe, activation=activation, between_layers="float", portable=False, equalize=False, bias_correction=False
    )


def _less_and_less_rounded(sim: Simulation, recipe: Recipe) -> Iterator[Recipe]:
    """Yield a recipe of a simulation, and others that round less, the cheapest first."""
    yield recipe
    if sim.weight_points:
        order = ("integer", *FLOAT_BETWEEN_LAYERS)
        further = order[order.index(recipe.rounds_between_layers) + 1 :]
        yield from (replace(recipe, between_layers=between) for between in further)
    if any(point.can_saturate for point in sim.weight_points.values()) and recipe.portable == "auto":
        wide = replace(recipe, portable=False)
        yield from (wide, replace(wide, between_layers="float"))


def _possible(sim: Simulation, recipes: Iterable[Recipe]) -> Iterator[Recipe]:
    """Yield the recipes under which every override has an effect: the range of what would stay float is asked for."""
    for recipe in recipes:
        if recipe.rules and recipe != sim.recipe:
            try:
                simulate_again(sim, recipe)
            except RecipeError:
                continue
        yield recipe


def _parts(sim: Simulation, data: Any, max_batches: int | None = None) -> list[tuple[Batches, Batches]]:
    """Return (samples for calibration, samples to look at) for every part, as views; none where samples are many."""
    if not sim.weight_points or not 1 < sim.calibration.get("samples", 0) <= FEW:
        return []
    calls = [sim.flatten(*call) for call in islice(batches(data, sim.input_specs, device_of(sim)), max_batches or FEW)]
    if sim.quantized_graph.batched:
        calls = [[t[k : k + 1] for t in inputs] for inputs in calls for k in range(len(inputs[0]))]
    count = min(PARTS, len(calls))
    if count < 2:
        return []
    return [([c for i, c in enumerate(calls) if i % count != k], calls[k::count]) for k in range(count)]
