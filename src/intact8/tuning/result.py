"""What :func:`intact8.tune` found: the trials, those that no other beats, and the best of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intact8.diagnose.evaluate import EvaluationReport
from intact8.display import Column, Grid, Shown, columns, number
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.tuning.objective import PERCENT
from intact8.tuning.picture import picture

SAME_TIME = 0.02
"""Relative times that differ by less are the same: measurements repeat no better."""

ENOUGH = 5
"""Samples that an allowed drop should stand for, at least: with fewer of them, single samples decide the search."""


@dataclass(frozen=True)
class Trial:
    """A recipe and what was measured of its program.

    Attributes:
        change: what the recipe changes, in words.
        recipe_toml: the recipe, as TOML.
        score: the metric of the program.
        drop: by how much that is worse than the float network's.
        sqnr: 10·log10(Σ y² / Σ error²) of the outputs on calibration samples, dB.
        time: time of a run over that of the first trial's program.
        floats: number of float operations.
    """

    change: str
    recipe_toml: str
    score: float
    drop: float
    sqnr: float
    time: float
    floats: int

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return Recipe.from_toml(self.recipe_toml)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values: what is not finite, as a score that could not be computed, as null."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def pareto_front(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials to which no other is better in one of drop and time and as good in both, fastest first.

    Example:
        >>> found = [("a", 2, 1), ("b", 1, 2), ("c", 2, 3)]
        >>> trials = [Trial(name, "", 0.0, drop, 0.0, time, 0) for name, drop, time in found]
        >>> [trial.change for trial in pareto_front(trials)]
        ['a', 'b']
    """
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.time, t.drop, -t.sqnr)):
        if not found or trial.drop < found[-1].drop:
            found.append(trial)
    return tuple(found)


def best_of(trials: Sequence[Trial], max_drop: float) -> Trial:
    """Return the fastest trial whose drop is allowed: of those that take the same time the one with the largest SQNR.

    Where none is allowed, it is the one with the smallest drop.
    """
    allowed = [trial for trial in trials if trial.drop <= max_drop]
    if not allowed:
        return min(trials, key=lambda t: (t.drop, -t.sqnr))
    fastest = min(trial.time for trial in allowed)
    return max((t for t in allowed if t.time <= fastest * (1 + SAME_TIME)), key=lambda t: t.sqnr)


@dataclass(frozen=True)
class TuneResult(Shown):
    """The result of :func:`intact8.tune`. Prints as a table; in notebooks with a picture of the front.

    Attributes:
        metric: name of the metric.
        higher_is_better: whether a larger number is better.
        float_score: the metric of the float network.
        max_drop: how much worse the program was allowed to be.
        trials: what was tried, in order; the first is the recipe that the search began with.
        best: the trial that was chosen.
        program: its program, as :func:`intact8.quantize` makes it with :attr:`recipe`.
        ended: why the search ended: "done", "budget" or "interrupted".
        seconds: seconds that the search took.
        engine: the engine that times were measured on; "" where they are estimates.
        evaluation: the float network and the program side by side, with labels; None without.
        held_out: the metric of the float network and of the program on samples that nothing was chosen by.
        held_out_evaluation: both networks side by side on these samples, with labels; None without.
    """

    metric: str
    higher_is_better: bool
    float_score: float
    max_drop: float
    trials: tuple[Trial, ...]
    best: Trial
    program: Program
    ended: str
    seconds: float
    engine: str = ""
    evaluation: EvaluationReport | None = None
    held_out: tuple[float, float] | None = None
    held_out_evaluation: EvaluationReport | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe that was chosen; ``result.recipe.save("tuned.toml")`` writes it."""
        return self.best.recipe

    @property
    def reached(self) -> bool:
        """Whether the drop of the chosen program is allowed."""
        return self.best.drop <= self.max_drop

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials to which no other is better in one of drop and time and as good in both, fastest first."""
        return pareto_front(self.trials)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the program, as JSON values."""
        names = ("metric", "higher_is_better", "float_score", "max_drop", "reached", "ended", "seconds", "engine")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values |= {"best": self.best.to_dict(), "trials": [t.to_dict() for t in self.trials]}
        values |= {"front": [self.trials.index(t) for t in self.front]}
        values["held_out"] = self.held_out
        for name in ("evaluation", "held_out_evaluation"):
            report = getattr(self, name)
            values[name] = None if report is None else report.to_dict()
        return values

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def svg(self) -> str:
        """Return a picture of all trials, drop over time, with the front as a line."""
        return picture(self)

    def grid(self) -> Grid:
        """Return the front as a table, fastest first."""
        headings = (
            *columns("<", "<change"),
            Column(self.metric, "right"),
            *columns("drop", "SQNR dB", "time", "float operations"),
        )
        shown = dict.fromkeys([self.trials[0], *self.front, self.best])
        rows = [
            (
                "→" if t == self.best else "",
                t.change,
                number(t.score, 5),
                number(t.drop),
                f"{t.sqnr:.1f}",
                f"×{t.time:.2f}",
                str(t.floats),
            )
            for t in sorted(shown, key=lambda t: t.time)
        ]
        return Grid(headings, tuple(rows), self.summary())

    def summary(self) -> str:
        """Return the outcome in a sentence or two."""
        verdict = "" if self.reached else f"; none of them is within {number(self.max_drop)}, this is the nearest"
        times = f"times on {self.engine}" if self.engine else "times are estimates"
        judged = ""
        if self.held_out is not None:
            exact, score = self.held_out
            judged = f" On held-out samples: float {number(exact, 5)}, chosen {number(score, 5)}"
            judged += f"{self._interval(self.held_out_evaluation)}."
        interval = self._interval(self.evaluation)
        return (
            f"{self.metric}: float {number(self.float_score, 5)}, chosen {number(self.best.score, 5)} "
            f"(drop {number(self.best.drop)}, time ×{self.best.time:.2f}){interval}{verdict}.{judged}{self._coarse()} "
            f"{len(self.trials)} trial{'s' * (len(self.trials) != 1)} in {self.seconds:.0f} s, {self.ended}; {times}"
        )

    def _coarse(self) -> str:
        """Return a warning where the allowed drop stands for so few samples that chance decides the search."""
        if self.evaluation is None or self.metric not in ("top1", "top5") or self.max_drop <= 0:
            return ""
        samples = self.evaluation.samples
        allowed = self.max_drop * samples / 100
        if allowed >= ENOUGH:
            return ""
        return (
            f" The limit of {number(self.max_drop)} is {number(allowed, 2)} of {samples:,} samples: single ones decide "
            f"what stays float; give at least {math.ceil(100 * ENOUGH / self.max_drop):,}, or allow more."
        )

    def _interval(self, report: EvaluationReport | None) -> str:
        """Return the 95 % interval of the difference in words, in units of the metric."""
        found = None if report is None else report.score("int8")
        if found is None or found.low is None or found.high is None:
            return ""
        factor = 100 if self.metric in PERCENT else 1
        return f" (difference, 95 %: {number(factor * found.low)} to {number(factor * found.high)})"

    def __rich__(self) -> Any:
        return self.grid().__rich__()

    def _repr_html_(self) -> str:
        return self.svg() + self.grid().to_html()


__all__ = ["Trial", "TuneResult", "best_of", "pareto_front"]
