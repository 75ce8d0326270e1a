"""What a calibration run reports: numbers per quantization point, and warnings with numbers in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from intact8.display import Grid, Shown, columns, number

FEW_SAMPLES = 32
"""Fewer samples than this are warned about."""

STILL_MOVING = 0.05
"""A range that widened by more than this in the last quarter of the batches is warned about."""


class CalibrationWarning(UserWarning):
    """Calibration went through, but something about its data should be looked at."""


@dataclass(frozen=True)
class PointSummary:
    """What one quantization point saw and became.

    Attributes:
        count: values seen.
        minimum, maximum: extremes seen; None when nothing was.
        scale, zero_point: the result; None when unknown.
    """

    count: int
    minimum: float | None
    maximum: float | None
    scale: float | None
    zero_point: int | None


@dataclass(frozen=True)
class CalibrationSummary(Shown):
    """The result of a calibration run.

    Attributes:
        batches, samples: in all, earlier runs that this one continued included.
        points: by name.
        warnings: sentences with numbers.

    Example:
        >>> CalibrationSummary(4, 128, {}, ()).to_json()
        {'batches': 4, 'samples': 128, 'points': {}, 'warnings': []}
    """

    batches: int
    samples: int
    points: Mapping[str, PointSummary]
    warnings: tuple[str, ...]

    def __rich__(self) -> Any:
        rows = tuple(
            (name, *(number(value, 4) for value in (p.minimum, p.maximum, p.scale, p.zero_point)))
            for name, p in self.points.items()
        )
        caption = "; ".join([f"{self.samples:,} samples in {self.batches:,} batches", *self.warnings])
        return Grid(columns("<tensor", "lowest", "highest", "scale", "zero point"), rows, caption).__rich__()

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "points": {name: asdict(point) for name, point in self.points.items()},
            "warnings": list(self.warnings),
        }


class Growth:
    """How the extremes of every point grew from batch to batch; only changes are kept."""

    def __init__(self) -> None:
        self._changes: dict[str, list[tuple[int, float, float]]] = {}

    def note(self, name: str, batch: int, lo: float, hi: float) -> None:
        """Note extremes of a point after ``batch`` (-1: before the run); NaN where it has seen nothing yet."""
        if math.isnan(lo):
            return
        changes = self._changes.setdefault(name, [])
        if not changes or changes[-1][1:] != (lo, hi):
            changes.append((batch, lo, hi))

    @staticmethod
    def merged(shares: Sequence[Growth]) -> Growth:
        """Return what one process would have noted that saw the batches of all shares."""
        whole = Growth()
        for name in dict.fromkeys(name for share in shares for name in share._changes):
            extremes = (math.nan, math.nan)
            for batch, lo, hi in sorted(change for share in shares for change in share._changes.get(name, [])):
                extremes = float(np.fmin(extremes[0], lo)), float(np.fmax(extremes[1], hi))
                whole.note(name, batch, *extremes)
        return whole

    def widened(
        self, batches: int, ranges: Mapping[str, tuple[float, float]]
    ) -> dict[str, tuple[float, tuple[float, float], tuple[float, float]]]:
        """Return points whose range grew by more than STILL_MOVING in the last quarter: share, range before and after.

        Ranges include zero. Fewer than 4 batches have no last quarter: nothing is reported.

        Args:
            batches: of the run.
            ranges: what was chosen in the end, by point. Extremes that grew beyond it are cut off all the same, so
                they widened nothing. Points that are missing have no range yet: their extremes count.
        """
        found = {}
        start = batches - batches // 4
        for name, changes in self._changes.items():
            before = [c[1:] for c in changes if c[0] < start]
            if batches < 4 or not before:
                continue
            old, new = (_within(extremes, ranges.get(name)) for extremes in (before[-1], changes[-1][1:]))
            old_width, new_width = _width(old), _width(new)
            if new_width > old_width * (1 + STILL_MOVING):
                found[name] = (new_width / old_width - 1 if old_width else math.inf, old, new)
        return found


def _within(extremes: tuple[float, float], chosen: tuple[float, float] | None) -> tuple[float, float]:
    """Return the extremes, cut to the chosen range."""
    if chosen is None:
        return extremes
    lo, hi = chosen
    return min(max(extremes[0], lo), hi), max(min(extremes[1], hi), lo)


def _width(extremes: tuple[float, float]) -> float:
    return max(extremes[1], 0.0) - min(extremes[0], 0.0)


def warnings_of(
    samples: int,
    batches: int,
    points: Mapping[str, PointSummary],
    growth: Growth,
    ranges: Mapping[str, tuple[float, float]],
    constant_channels: Mapping[str, tuple[int, int]],
    held: Set[str] = frozenset(),
) -> tuple[str, ...]:
    """Return what should be looked at, one sentence each.

    Args:
        samples: seen in all.
        batches: of this run, for ``growth``.
        points: the summary of every point.
        growth: of this run.
        ranges: what every point's grid spans, where that is known.
        constant_channels: layer → (channels that never changed, channels).
        held: what depends on no input, and never changes.
    """
    found = []
    if points and samples < FEW_SAMPLES:
        found.append(f"calibrated on {samples} samples; ranges from fewer than {FEW_SAMPLES} are a matter of luck")
    moving = growth.widened(batches, ranges)
    if moving:
        name, (share, old, new) = max(moving.items(), key=lambda item: item[1][0])
        found.append(
            f"{len(moving)} of {len(points)} ranges still widened by more than {STILL_MOVING:.0%} in the last quarter "
            f"of {batches} batches, most of all {name}: by {share:.1%}, from [{old[0]:.4g}, {old[1]:.4g}] to "
            f"[{new[0]:.4g}, {new[1]:.4g}]; use more data"
        )
    constant = {n: p.minimum for n, p in points.items() if p.count > 1 and p.minimum == p.maximum and n not in held}
    if constant:
        shown = ", ".join(f"{n} = {v:.4g}" for n, v in list(constant.items())[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        found.append(
            f"{len(constant)} of {len(points)} tensors never changed (dead layers or unvaried data): {shown}{more}"
        )
    dead = {n: c for n, c in constant_channels.items() if n not in constant and n not in held}
    if dead:
        worst = sorted(dead, key=lambda n: -dead[n][0] / dead[n][1])[:5]
        shown = ", ".join(f"{n}: {dead[n][0]} of {dead[n][1]}" for n in worst)
        more = f" and {len(dead) - 5} more layers" if len(dead) > 5 else ""
        found.append(f"channels that never changed in the first samples (dead, or unvaried data): {shown}{more}")
    unseen = [n for n, p in points.items() if not p.count and p.scale is None]
    if unseen:
        found.append(f"{len(unseen)} of {len(points)} points saw no value: {', '.join(unseen[:5])}")
    return tuple(found)
