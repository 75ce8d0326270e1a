"""The search: settings that cost nothing, float32 between layers, then operations kept float, as few as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace

from intact8.calibration.distributed import Ranks
from intact8.diagnose.sensitivity import sensitivity
from intact8.errors import CalibrationError, EngineError, RecipeError
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation
from intact8.tuning.journal import Journal
from intact8.tuning.measure import Measurement
from intact8.tuning.noise import NoiseModel
from intact8.tuning.result import Trial, best_of
from intact8.tuning.settings import Setting, between_layers, keep_float, make_dynamic, settings

Progress = Callable[[Trial, Trial], object]
"""Called with every trial and the best one so far, whose ``recipe`` can be used at once."""

FREE = 1.05
"""Time, over that of the start, up to which a setting is taken for free."""

RANKED = 16
"""Calibration samples, at most, on which the noise of single tensors is measured."""

INSIDE = 3
"""Trials at a time between the largest set of operations that was too small and the smallest one that will do."""

PARTS = 8
"""Parts of a set of operations that are tried without, at a time."""


class BudgetSpentError(Exception):
    """The time or the number of trials is spent."""


class Search:
    """A search for the fastest recipe whose drop is allowed.

    Args:
        measurement: makes and measures programs.
        journal: trials of an interrupted search, and where new ones are written.
        max_drop: allowed drop of the metric.
        budget: seconds; None for no limit.
        most: trials, at most; None for no limit.
        ranks: processes that share the trials.
        progress: see Progress; called on rank 0.
    """

    def __init__(
        self,
        measurement: Measurement,
        journal: Journal,
        max_drop: float,
        budget: float | None,
        most: int | None,
        ranks: Ranks,
        progress: Progress | None,
    ) -> None:
        self.measurement, self.journal, self.max_drop = measurement, journal, max_drop
        self.budget, self.most, self.ranks, self.progress = budget, most, ranks, progress
        self.begun = time.monotonic()
        self._asked: dict[str, str] = {}
        self._told: set[str] = set()

    @property
    def trials(self) -> list[Trial]:
        """What was tried, in order."""
        measured = self.journal.trials
        return [replace(measured[text], change=name) for text, name in self._asked.items() if text in measured]

    def run(self, recipe: Recipe) -> str:
        """Search from a recipe on. Returns why it ended: "done", "budget" or "interrupted"."""
        self.journal.add(self.ranks.gather(self.journal.trials)[0])  # rank 0 alone reads and writes the file
        sim, program = self.measurement.start(recipe)
        try:
            self._asked[recipe.to_toml()] = "start"
            if recipe.to_toml() not in self.journal.trials:
                start = self.measurement.trial("start", recipe, program)
                self.journal.add({recipe.to_toml(): self.ranks.gather(start)[0]})
            self._tell(recipe.to_toml())
            self._search(recipe, sim)
        except BudgetSpentError:
            return "budget"
        except KeyboardInterrupt:
            if self.ranks.size > 1 or not self.trials:
                raise
            return "interrupted"
        return "done"

    def _search(self, recipe: Recipe, sim: Simulation) -> None:
        if self._allowed(self.trials[0]):
            return
        operations = {node.op for node in sim.graph}
        base = self._settings(recipe, operations)
        if self._allowed(base):
            return
        between = between_layers(base.recipe, operations)
        self._attempt({f"{name}, {base.change}": change(base.recipe) for name, change in between.items()})
        if base.recipe != recipe:
            sim = self.measurement.simulate(base.recipe)
        noise = self._noise(sim)
        chosen = self._grow(base.recipe, noise)
        if chosen is not None:
            self._shrink(base.recipe, chosen, noise, sim)

    def _allowed(self, trial: Trial) -> bool:
        return trial.drop <= self.max_drop

    def _settings(self, recipe: Recipe, operations: Set[str]) -> Trial:
        """Try settings alone, then the ones that help together. Returns the best trial that takes no more time."""
        known, start = settings(recipe, operations), self.trials[0]
        alone = self._attempt({name: change(recipe) for name, change in known.items()})
        helpful = [n for n, t in alone.items() if t.sqnr > start.sqnr and t.time <= FREE]
        chosen: list[str] = []
        together: dict[str, Recipe] = {}
        for name in sorted(helpful, key=lambda name: -alone[name].sqnr):
            before = _apply(recipe, [known[n] for n in chosen])
            if known[name](before) == _apply(known[name](recipe), [known[n] for n in chosen]):  # none undoes another
                chosen.append(name)
                together["; ".join(chosen)] = known[name](before)
        found = [start, *alone.values(), *self._attempt(together).values()]
        free = [trial for trial in found if trial.time <= FREE]
        return best_of(free, self.max_drop) if any(map(self._allowed, free)) else max(free, key=lambda t: t.sqnr)

    def _noise(self, sim: Simulation) -> NoiseModel:
        data = self.measurement.calibration.data
        report = sensitivity(sim, data, metric="sqnr", parts=("weight", "activation"), samples=RANKED)
        return NoiseModel(sim, report)

    def _grow(self, recipe: Recipe, noise: NoiseModel) -> frozenset[str] | None:
        """Keep more and more operations float until the drop is allowed; then look between the last two numbers."""
        sets = noise.growth()
        sizes = sorted({*(1 << i for i in range(len(sets).bit_length())), len(sets)})
        below, enough = 0, 0
        for size in (size for size in sizes if size <= len(sets)):
            if self._allowed_floats(recipe, [sets[size - 1]]):
                enough = size
                break
            below = size
        while enough - below > 1:
            step = max(1, (enough - below) // (INSIDE + 1))
            between = list(range(below + step, enough, step))[:INSIDE]
            allowed = self._allowed_floats(recipe, [sets[size - 1] for size in between])
            within = [size for size in between if sets[size - 1] in allowed]
            below = max([below, *(size for size in between if size < min([enough, *within]))])
            enough = min([enough, *within])
        return sets[enough - 1] if enough else None

    def _allowed_floats(self, recipe: Recipe, sets: Sequence[frozenset[str]]) -> dict[frozenset[str], Trial]:
        """Try to keep each of these sets of operations float; return those whose drop is allowed."""
        names = {_described(floats): floats for floats in sets}
        tried = self._attempt({text: keep_float(recipe, sorted(floats)) for text, floats in names.items()})
        return {names[text]: trial for text, trial in tried.items() if self._allowed(trial)}

    def _shrink(self, recipe: Recipe, floats: frozenset[str], noise: NoiseModel, sim: Simulation) -> None:
        """Quantize again what need not be float: parts of the set, then smaller parts, down to single operations."""
        size = max(1, len(floats) // PARTS)
        while True:
            order = sorted(floats, key=lambda name: noise.value(name, floats))
            parts = [frozenset(order[i : i + size]) for i in range(0, len(order), size)]
            without = self._allowed_floats(recipe, [floats - part for part in parts if part != floats])
            removable = sorted(without, key=lambda rest: without[rest].time)
            together = [frozenset.intersection(*removable[:n]) for n in range(2, len(removable) + 1)]
            without |= self._allowed_floats(recipe, [rest for rest in together if rest])
            if without:
                floats = min(without, key=lambda rest: (without[rest].time, len(rest)))
            elif size == 1:
                break
            else:
                size = max(1, size // 2)
        layers = sorted(name for name in floats if sim.graph.nodes[name].op == "linear")
        if layers:
            changed = make_dynamic(keep_float(recipe, sorted(floats - set(layers))), layers)
            self._attempt({f"{_described(floats)}, linear layers dynamic": changed})

    def _attempt(self, candidates: Mapping[str, Recipe]) -> dict[str, Trial]:
        """Measure candidates, this rank its share. Returns the trials by name; recipes a network cannot have fail.

        Raises:
            BudgetSpentError: time or trials are spent.
        """
        texts = {name: recipe.to_toml() for name, recipe in candidates.items()}
        for name, text in texts.items():
            self._asked.setdefault(text, name)
        fresh = [name for name, text in texts.items() if text not in self.journal.trials]
        room = len(fresh) if self.most is None else max(0, self.most - len(self.trials))
        mine = fresh[:room][self.ranks.rank :: self.ranks.size]
        begun = 0
        with self.ranks.together():
            for name, text in texts.items():
                if name in mine and not self._spent():
                    begun += 1
                    self._measure(name, candidates[name], text)
                if text in self.journal.trials:
                    self._tell(text)
        shares = self.ranks.gather((self.journal.trials, begun))
        for trials, _ in shares:
            self.journal.add(trials)
        for text in texts.values():
            self._tell(text)
        if sum(count for _, count in shares) < len(fresh):
            raise BudgetSpentError
        known = {trial.recipe_toml: trial for trial in self.trials}
        return {name: replace(known[text], change=name) for name, text in texts.items() if text in known}

    def _spent(self) -> bool:
        return self.budget is not None and time.monotonic() - self.begun >= self.budget

    def _measure(self, name: str, recipe: Recipe, text: str) -> None:
        """Measure a candidate, unless the network cannot have its schemes, or the engine cannot run its program."""
        with suppress(RecipeError, CalibrationError, EngineError):
            self.journal.add({text: self.measurement.trial(name, recipe)})

    def _tell(self, text: str) -> None:
        """Tell the user's function of a trial, once."""
        if text in self.journal.trials and text not in self._told:
            self._told.add(text)
            if self.progress is not None and self.ranks.rank == 0:
                self.progress(self.journal.trials[text], best_of(self.trials, self.max_drop))


def _apply(recipe: Recipe, changes: Iterable[Setting]) -> Recipe:
    for change in changes:
        recipe = change(recipe)
    return recipe


def _described(floats: frozenset[str]) -> str:
    """Return what is kept float, in words; a long list is cut."""
    names = sorted(floats)
    text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{len(names)} in float: {text}"


__all__ = ["Progress", "Search"]
