"""The report of :func:`intact8.sensitivity`: a score per layer and way of quantizing, as values, JSON and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from intact8.diagnose.layer_report import LayerReport
from intact8.display import Grid, columns, number

Mode = Literal["alone", "without", "cumulative"]
"""Which layers are quantized: this one, all but this one, or this one and all before it."""

Part = Literal["both", "weight", "activation"]
"""What of the layer is quantized: its weight and its output, only the weight, or only the output."""

MODES: tuple[Mode, ...] = ("alone", "without", "cumulative")
PARTS: tuple[Part, ...] = ("both", "weight", "activation")


def worth(value: float, higher_is_better: bool) -> float:
    """Return a number that is larger for a better value of a metric, and least where it is NaN.

    Example:
        >>> worth(0.5, True), worth(0.5, False), worth(math.nan, False)
        (0.5, -0.5, -inf)
    """
    return -math.inf if math.isnan(value) else value if higher_is_better else -value


@dataclass(frozen=True)
class Score:
    """The metric with certain layers quantized."""

    mode: Mode
    part: Part
    value: float


@dataclass(frozen=True)
class SensitivityRow:
    """One layer.

    Attributes:
        name: name of the operation, as in the program and the simulation's graph.
        kind: kind of the operation: conv, linear, add, table, quantize …
        module: path of the original module.
        source: names of the operations fused into it.
        point: the quantization point of its output. Layers that share one (inputs of a ``cat``) are quantized
            together: they have one scale.
        has_weight: whether there is a weight to quantize.
        scores: what was measured.
    """

    name: str
    kind: str
    module: str
    source: tuple[str, ...]
    point: str
    has_weight: bool
    scores: tuple[Score, ...]

    def score(self, mode: Mode, part: Part = "both") -> float | None:
        """Return the metric in that mode with that part; None where it was not measured."""
        return next((s.value for s in self.scores if s.mode == mode and s.part == part), None)


@dataclass(frozen=True)
class GreedyStep:
    """One step of the greedy search: the layer put back to float, and the metric then."""

    layer: str
    value: float


@dataclass(frozen=True)
class SensitivityReport(LayerReport[SensitivityRow]):
    """What :func:`intact8.sensitivity` found. Prints as a table with rich and in Jupyter; iterates over its rows.

    Attributes:
        metric: name of the metric.
        higher_is_better: whether a larger number is better.
        float_score: the metric of the float network.
        quantized_score: the metric with everything quantized, as it would ship.
        rows: layers in execution order.
        greedy: layers put back to float one after the other, each time the one that gained most; empty unless asked.
        samples: number of samples run.

    Example:
        >>> report = SensitivityReport("top1", True, 1.0, 0.9, (), (), 64)
        >>> SensitivityReport.from_dict(report.to_dict()) == report
        True
    """

    metric: str
    higher_is_better: bool
    float_score: float
    quantized_score: float
    rows: tuple[SensitivityRow, ...]
    greedy: tuple[GreedyStep, ...]
    samples: int

    verb: ClassVar[str] = "measured"

    def ranking(self, mode: Mode = "alone", part: Part = "both") -> list[SensitivityRow]:
        """Sort the layers, most sensitive first: those that cost most alone, or gain most when left in float."""
        scored = [(value, row) for row in self.rows if (value := row.score(mode, part)) is not None]
        sign = -1 if mode == "without" else 1
        return [row for _, row in sorted(scored, key=lambda pair: sign * worth(pair[0], self.higher_is_better))]

    def grid(self) -> Grid:
        """Return the report as a table: a column per mode and part that was measured."""
        measured = [(m, p) for m in MODES for p in PARTS if any(r.score(m, p) is not None for r in self.rows)]
        titles = {"alone": "alone", "without": "all but this", "cumulative": "up to this"}
        headings = [titles[m] + ("" if p == "both" else f", {p}") for m, p in measured]
        steps = {step.layer: f"{i}: {number(step.value, 5)}" for i, step in enumerate(self.greedy, 1)}
        rows = []
        for row in self.rows:
            cells = [row.name, row.kind, *(number(row.score(m, p), 5) for m, p in measured)]
            rows.append((*cells, steps.get(row.name, "")) if steps else tuple(cells))
        better = "higher" if self.higher_is_better else "lower"
        caption = (
            f"{self.metric}, {better} is better; float {number(self.float_score, 5)}, everything quantized "
            f"{number(self.quantized_score, 5)}; {self.samples:,} samples"
        )
        reached = sum(bool(row.scores) for row in self.rows)
        if reached < len(self.rows):
            caption += f"; {reached:,} of {len(self.rows):,} layers were reached in the time given"
        greedy = ["<back to float"] if steps else []
        return Grid(columns("<layer", "<kind", *headings, *greedy), tuple(rows), caption)
