"""Ranges of tensors that only tables read end where the results of the tables do.

A table's input is rounded before its result is. Hard swish of everything below −3 is 0: integers for −8 to −3 would
stand for one result, and make all others coarser. The tails of SiLU, GELU and sigmoid and values beyond the range of
the result are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from intact8.capture.graph import Graph, Node
from intact8.simulation.ops.table import Array, table_steps

if TYPE_CHECKING:
    from intact8.simulation.scales.quant_points import QuantPoint

Grid = tuple[Node, float, tuple[int, int]]
"""A table's node, the scale of its result, and the limits of that in steps from its zero point."""

DENSITY = 8
"""A table's function is evaluated at this many values per integer of its input."""

REFINEMENTS = 3
"""How often the interval in which an entry changes is cut in 64 parts."""

BEYOND = 16
"""A function counts as flat beyond an end of a grid where it is for this many times the grid's width."""


@dataclass(frozen=True)
class Tables:
    """The tables that alone read a tensor.

    Attributes:
        readers: their nodes, and the points of their results.
    """

    readers: tuple[tuple[Node, QuantPoint], ...]

    def grids(self, qparams: Callable[[QuantPoint], tuple[float, int]]) -> list[Grid]:
        """Return the nodes of the tables, each with the scale of its result and the limits of that in steps."""
        found = []
        for node, point in self.readers:
            scale, zero_point = qparams(point)
            found.append((node, scale, (point.lo - zero_point, point.hi - zero_point)))
        return found

    def changes(self, x: Array, grids: Sequence[Grid]) -> npt.NDArray[np.bool_]:
        """Return whether any table gives different integers for neighbors in ``x``, one entry less than ``x``."""
        found = np.zeros(len(x) - 1, bool)
        for node, scale, limits in grids:
            entries = np.rint(table_steps(node, x, scale, limits, {}))
            found |= entries[1:] != entries[:-1]
        return found

    def useful_range(self, lo: float, hi: float, levels: int) -> tuple[float, float]:
        """Return the smallest range within [lo, hi], 0 included, outside which no entry of the tables changes.

        Args:
            lo, hi: finite, lo ≤ 0 ≤ hi.
            levels: how many integers stand for the range.
        """
        if not all(point.observer.count or point.calibrated for _, point in self.readers):
            return lo, hi
        grids = self.grids(lambda point: point.nominal_qparams())
        x = np.linspace(lo, hi, DENSITY * levels + 1)
        changes = self.changes(x, grids)
        if not changes.any():
            return lo, hi
        first, last = int(changes.argmax()), len(changes) - int(changes[::-1].argmax())
        # The zero point is rounded, which moves both ends by up to half an integer.
        half = (hi - lo) / levels / 2
        least = self._crossing(grids, x[first], x[first + 1], first=True) - half
        most = self._crossing(grids, x[last - 1], x[last], first=False) + half
        return min(max(least, lo), 0.0), max(min(most, hi), 0.0)

    def _crossing(self, grids: Sequence[Grid], a: float, b: float, *, first: bool) -> float:
        """Return where between a and b a table's entry changes first or last, so exactly that the last bit of a scale
        moves it by no more."""
        for _ in range(REFINEMENTS):
            x = np.linspace(a, b, 65)
            changes = self.changes(x, grids)
            if not changes.any():
                break
            at = int(changes.argmax()) if first else len(changes) - 1 - int(changes[::-1].argmax())
            a, b = float(x[at]), float(x[at + 1])
        return a if first else b


def attach_tables(graph: Graph, points: Mapping[str, QuantPoint], point_of: Mapping[str, str]) -> None:
    """Store in every point that only tables read which tables these are, and the points of their results.

    Tables with trained slopes do not count: they are flat nowhere.
    """
    users = graph.users()
    for point in points.values():
        names = set(point.tensors)
        readers = [graph.nodes[user] for name in point.tensors for user in users[name] if user not in names]
        if names.isdisjoint(graph.outputs) and all(n.op == "table" and not n.params for n in readers):
            point.tables = Tables(tuple((node, points[point_of[node.name]]) for node in readers))


def flat_ends(points: Mapping[str, QuantPoint]) -> dict[str, tuple[float, float]]:
    """Return the ends of grids beyond which results stay the same, by the names of tensors that only tables read.

    Values beyond are clipped and nothing is lost; whoever measures errors of such a tensor clips them first. An end
    is infinite where the tables' functions go on.
    """
    found: dict[str, tuple[float, float]] = {}
    for point in points.values():
        if point.tables is not None and point.calibrated:
            scale, zero_point = point.scale_value, point.zero_point_value
            low, high = (point.lo - zero_point) * scale, (point.hi - zero_point) * scale
            grids = point.tables.grids(lambda p: (p.scale_value, p.zero_point_value))
            beyond = np.linspace(0, BEYOND * (high - low), DENSITY * 256)
            flat = [not point.tables.changes(x, grids).any() for x in (low - beyond, high + beyond)]
            found |= dict.fromkeys(point.tensors, (low if flat[0] else -math.inf, high if flat[1] else math.inf))
    return found
