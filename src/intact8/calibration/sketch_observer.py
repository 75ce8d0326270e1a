"""The base of all observers whose range is read from a sketch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from intact8.calibration.observer import Observer, dense_values, finite_extent
from intact8.calibration.sketch import Array, Bins, Sketch, bins_of, mean_squares

UNKNOWN = -(1 << 10)
"""The level of samples of nothing but zeros, and of values nobody said which samples they belong to."""

LOUD = 1
"""A sample more than so many octaves above the median one counts as much as that."""

APART = 8
"""Tensors that share a range and are kept apart; the others behind them are taken together, as each takes memory."""

SILENT = 8
"""What is so many octaves below the loudest sample is less than a step of 8 bits there: it is no measure for others."""


def loudness_weights(energies: Array, counts: Array, octaves: float) -> Array:
    """Return the weights with which samples much louder than the median one count as if they had its energy.

    Args:
        energies: mean squares, float64 (n,).
        counts: how many samples, or values, have each energy, (n,).
        octaves: root mean squares this far above the median one are loud.

    Returns:
        float64 (n,), 1 for all samples that are not loud.
    """
    order = np.argsort(energies)
    sizes = np.cumsum(counts[order])
    median = energies[order][np.searchsorted(sizes, sizes[-1] / 2)]
    usual = max(median, energies.max() * 4.0**-SILENT)
    loud = energies > usual * 4.0**octaves
    return np.where(loud, usual / np.where(loud, energies, 1.0), 1.0)


class SketchObserver(Observer):
    """Observes into a :class:`~intact8.calibration.sketch.Sketch`; subclasses choose a range from its bins.

    One sample many times as loud as all others would decide a range of least error alone, and leave the others a few
    steps. Observers that minimize errors (``weighs``) therefore count a loud sample's as if it had the energy of the
    median one; what is no louder than usual counts as it is. That goes for the samples of one tensor: of several that
    share a range, as a concatenation makes them, the louder one counts in full. Sketches are kept apart by tensor and
    by the octave of the samples' root mean squares, so that halves merge to the same bits as ever.

    Attributes:
        weighs: whether samples are weighed.
        samples: how many samples the next tensor holds along its dimension 0, one after the other; None: unknown, and
            nothing is weighed.
        turn: which of the tensors of a batch comes next.
        levels: (turn, octave) → sketch of that tensor's samples of that root mean square.
    """

    weighs: ClassVar[bool] = False

    def __init__(self) -> None:
        self.samples: int | None = None
        self.turn = 0
        self.levels: dict[tuple[int, int], Sketch] = {}

    def begin(self, samples: int | None) -> None:
        """Begin a batch whose tensors hold so many samples along their dimension 0; None where that is unknown."""
        self.samples, self.turn = samples, 0

    @property
    def sketch(self) -> Sketch:
        """All that was seen; also good for drawing histograms. A copy where samples of several levels were."""
        if len(self.levels) == 1:
            return next(iter(self.levels.values()))
        whole = Sketch()
        for sketch in self.levels.values():
            whole.merge(sketch)
        return whole

    @property
    def count(self) -> int:
        """Number of values seen."""
        return sum(sketch.count for sketch in self.levels.values())

    @property
    def minimum(self) -> float:
        """Smallest value seen; NaN when nothing was."""
        return float(np.fmin.reduce([np.nan, *(sketch.minimum for sketch in self.levels.values())]))

    @property
    def maximum(self) -> float:
        """Largest value seen; NaN when nothing was."""
        return float(np.fmax.reduce([np.nan, *(sketch.maximum for sketch in self.levels.values())]))

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if x.numel():
            values = dense_values(x)
            lo, hi = finite_extent(values, self)
            by_level = self._by_level(values)
            for level, part in by_level:
                if len(by_level) > 1:
                    lo, hi = (float(end) for end in torch.aminmax(part))
                self.levels.setdefault(level, Sketch()).add(part, lo, hi)
        self.turn = min(self.turn + 1, APART - 1)

    def _by_level(self, values: Tensor) -> list[tuple[tuple[int, int], Tensor]]:
        """Return the rows of ``values`` by their tensor and the octave of their sample's root mean square."""
        samples = self.samples
        if not self.weighs or not samples or values.dim() != 2 or len(values) % samples:
            return [((0, UNKNOWN), values)]
        energies = mean_squares(values.view(samples, -1))
        of_samples = torch.where(energies > 0, (torch.frexp(energies).exponent + 1) >> 1, UNKNOWN)
        found = [int(level) for level in torch.unique(of_samples)]
        if len(found) == 1:
            return [((self.turn, found[0]), values)]
        of_rows = of_samples.repeat_interleave(len(values) // samples)
        return [((self.turn, level), values[of_rows == level]) for level in found]

    def merge(self, other: Observer) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_mergeable(other)
        assert isinstance(other, SketchObserver)
        for level, sketch in other.levels.items():
            self.levels.setdefault(level, Sketch()).merge(sketch)

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if not self.count:
            raise self.nothing_observed()
        # Zero is always representable, so a range without it is not on offer.
        lo, hi = min(self.minimum, 0.0), max(self.maximum, 0.0)
        if lo == hi:
            return lo, hi
        return self.choose(self._weighed(), lo, hi, qmin, qmax, symmetric)

    def _weighed(self) -> Bins:
        """Return the bins of all samples, those of loud ones counted by their share of the median energy."""
        weights = dict.fromkeys(self.levels, 1.0)
        for turn in sorted({turn for turn, _ in self.levels}):
            known = [level for tensor, level in self.levels if tensor == turn and level != UNKNOWN]
            sizes = np.array([self.levels[turn, level].count for level in known])
            found = loudness_weights(4.0 ** np.array(known), sizes, LOUD) if len(known) > 1 else np.ones(len(known))
            weights |= {(turn, level): weight for level, weight in zip(known, found.tolist(), strict=True)}
        if min(weights.values()) == 1:
            return self.sketch.bins()
        counts = np.zeros(1 << 16)
        for place, sketch in self.levels.items():
            keys = sketch.counts.cpu().numpy()
            counts[: len(keys)] += keys * weights[place]
        return bins_of(counts, self.minimum, self.maximum, min(weights.values()))

    def choose(self, bins: Bins, lo: float, hi: float, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """Return a range within [lo, hi], the extremes widened to 0; ``bins`` holds a value that is not 0."""
        raise TypeError(f"{type(self).__name__} must define choose")

    def state(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if set(self.levels) <= {(0, UNKNOWN)}:
            return {"kind": self.kind, **self.sketch.state()}
        order = sorted(self.levels)
        states = [self.levels[place].state() for place in order]
        sizes = torch.tensor([[*n, len(s["keys"]), s["count"]] for n, s in zip(order, states, strict=True)])
        whole = {name: torch.cat([s[name] for s in states]) for name in ("keys", "counts")}
        return {"kind": self.kind, **whole, "levels": sizes, "extremes": torch.stack([s["extremes"] for s in states])}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        if "levels" not in state:
            self.check_state(state, {"keys", "counts", "count", "extremes"})
            sketch = Sketch.from_state({k: v for k, v in state.items() if k != "kind"})
            self.levels = {(0, UNKNOWN): sketch} if sketch.count else {}
            return
        self.check_state(state, {"keys", "counts", "levels", "extremes"})
        self.levels, start = {}, 0
        for row, extremes in zip(state["levels"].tolist(), state["extremes"], strict=True):
            turn, level, entries, count = row if len(row) == 4 else (0, *row)  # of one tensor before
            part = slice(start, start := start + entries)
            values = {"keys": state["keys"][part], "counts": state["counts"][part]}
            sketch = Sketch.from_state(values | {"count": torch.tensor(count), "extremes": extremes})
            self.levels[turn, level] = sketch

    def reset(self) -> None:
        """Forget everything observed."""
        self.levels, self.turn = {}, 0
