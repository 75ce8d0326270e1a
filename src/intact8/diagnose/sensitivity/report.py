"""What :func:`intact8.sensitivity` found: a score per layer and way of quantizing, as values, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from intact8.diagnose.layer_report import Rows
from intact8.display import Column, Grid, number

Mode = Literal["alone", "without", "cumulative"]
"""Which layers are quantized: this one; all but this one; this one and all before it."""

Part = Literal["both", "weight", "activation"]
"""What of the layer: its weight and its output; only the weight; only the output."""

MODES: tuple[Mode, ...] = ("alone", "without", "cumulative")
PARTS: tuple[Part, ...] = ("both", "weight", "activation")


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
        name: of the operation, as in the program and the simulation's graph.
        kind: conv, linear, add, table, quantize …
        module: path of the original module.
        source: what was fused into it.
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
        """What was measured in that mode with that part; None where it was not."""
        return next((s.value for s in self.scores if s.mode == mode and s.part == part), None)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SensitivityRow:
        """What :func:`dataclasses.asdict` gave, or JSON made of it."""
        scores = tuple(Score(**score) for score in values["scores"])
        return SensitivityRow(**{**values, "source": tuple(values["source"]), "scores": scores})


@dataclass(frozen=True)
class GreedyStep:
    """One step of the greedy search: the layer put back to float, and the metric then."""

    layer: str
    value: float


@dataclass(frozen=True)
class SensitivityReport(Rows[SensitivityRow]):
    """What :func:`intact8.sensitivity` found. Prints as a table with rich and in Jupyter; iterates over its rows.

    Attributes:
        metric: its name.
        higher_is_better: how to read it.
        float_score: the metric of the float network.
        quantized_score: the metric with everything quantized: of what would ship.
        rows: layers in execution order.
        greedy: layers put back to float one after the other, each time the one that gained most; empty unless asked.
        samples: how many were run.

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

    found: ClassVar[str] = "measured"

    def ranking(self, mode: Mode = "alone", part: Part = "both") -> list[SensitivityRow]:
        """Layers, most sensitive first: quantized alone they cost most (without: left float they gain most)."""
        scored = [(value, row) for row in self.rows if (value := row.score(mode, part)) is not None]
        best_first = self.higher_is_better if mode == "without" else not self.higher_is_better
        return [row for _, row in sorted(scored, key=lambda pair: -pair[0] if best_first else pair[0])]

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SensitivityReport:
        """The report that :meth:`to_dict` wrote (or ``json.loads`` of :meth:`to_json`)."""
        rows = tuple(SensitivityRow.from_dict(row) for row in values["rows"])
        greedy = tuple(GreedyStep(**step) for step in values["greedy"])
        return SensitivityReport(**{**values, "rows": rows, "greedy": greedy})

    def grid(self) -> Grid:
        """The table that is shown: a column per mode and part that was measured."""
        measured = [(m, p) for m in MODES for p in PARTS if any(r.score(m, p) is not None for r in self.rows)]
        titles = {"alone": "alone", "without": "all but this", "cumulative": "up to this"}
        columns = [Column("layer", "left"), Column("kind", "left")]
        columns += [Column(titles[m] + ("" if p == "both" else f", {p}")) for m, p in measured]
        steps = {step.layer: (i + 1, step.value) for i, step in enumerate(self.greedy)}
        if steps:
            columns.append(Column("back to float", "left"))
        rows = []
        for row in self.rows:
            cells = [row.name, row.kind, *(number(row.score(m, p), 5) for m, p in measured)]
            if steps:
                step = steps.get(row.name)
                cells.append("" if step is None else f"{step[0]}: {number(step[1], 5)}")
            rows.append(tuple(cells))
        better = "higher" if self.higher_is_better else "lower"
        caption = (
            f"{self.metric}, {better} is better; float {number(self.float_score, 5)}, everything quantized "
            f"{number(self.quantized_score, 5)}; {self.samples:,} samples"
        )
        return Grid(tuple(columns), tuple(rows), caption)
