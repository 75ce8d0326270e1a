"""Ranges of tensors that only tables read end where the results of the tables do.

A table's input is rounded before its result is. Hard swish of everything below −3 is 0: integers for −8 to −3 would
stand for one result, and make all others coarser. The tails of SiLU, GELU and sigmoid and values beyond the range of
the result are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intact8.capture.graph import Graph, Node
from intact8.simulation.ops.table import table_steps

if TYPE_CHECKING:
    from intact8.simulation.scales.quant_points import QuantPoint

DENSITY = 8
"""A table's function is evaluated at this many values per integer of its input."""


@dataclass(frozen=True)
class Tables:
    """The tables that alone read a tensor.

    Attributes:
        readers: their nodes, and the points of their results.
    """

    readers: tuple[tuple[Node, QuantPoint], ...]

    def useful_range(self, lo: float, hi: float, levels: int, margin: float = 0.5) -> tuple[float, float]:
        """Return the smallest range within [lo, hi], 0 included, outside which no entry of the tables changes.

        Args:
            lo, hi: finite, lo ≤ 0 ≤ hi.
            levels: how many integers stand for the range.
            margin: how many of them to add at either end; rounding the zero point moves both by up to half of one.
        """
        x = np.linspace(lo, hi, DENSITY * levels + 1)
        changes = np.zeros(len(x) - 1, bool)
        for node, point in self.readers:
            if not (point.observer.count or point.calibrated):
                return lo, hi
            scale, zero_point = point.nominal_qparams()
            entries = np.rint(table_steps(node, x, scale, (point.lo - zero_point, point.hi - zero_point), {}))
            changes |= entries[1:] != entries[:-1]
        if not changes.any():
            return lo, hi
        more = int(margin * DENSITY)
        first = max(int(changes.argmax()) - more, 0)
        last = min(len(changes) - int(changes[::-1].argmax()) + more, len(changes))
        return min(float(x[first]), 0.0), max(float(x[last]), 0.0)


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
    """Return between which values results differ, by the names of tensors that only tables read.

    Values beyond are clipped and nothing is lost; whoever measures errors of such a tensor clips them first. An end
    is infinite where all values that were observed matter.
    """
    found: dict[str, tuple[float, float]] = {}
    for point in points.values():
        if point.tables is not None and point.observer.count:
            lo, hi = min(point.observer.minimum, 0.0), max(point.observer.maximum, 0.0)
            first, last = point.tables.useful_range(lo, hi, point.hi - point.lo + 1, margin=0)
            ends = first if first > lo else -math.inf, last if last < hi else math.inf
            found |= dict.fromkeys(point.tensors, ends)
    return found
