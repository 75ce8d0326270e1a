"""What changed on the way from another tool: per layer and tensor, in integers and decibels."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intact8.display import Shown
from intact8.text import finite, one_line

if TYPE_CHECKING:
    from intact8.program.program import Program
    from intact8.simulation.simulation import Simulation


@dataclass(frozen=True)
class LayerChange:
    """One tensor of the program, with the layer that makes it, against the other tool's.

    Attributes:
        name: of the operation here.
        there: what the other tool calls the tensor.
        scale_there, scale: of the activation, there and here.
        zero_point: of the activation, in uint8.
        weights, weights_changed: integers of the weight in all, and those that differ from the other tool's.
        weight_scale_change: largest relative change of a scale of the weight.
        channels, raised: output channels of the weight, and those whose scale was raised by more than a percent,
            because their multiplier is less than the least that every engine evaluates exactly.
        weights_sqnr: dB, the weight here against the other tool's; infinite where nothing differs.
        values, differ, largest: integers of the activation that were compared on data, those that differ from the
            other tool's simulation, and the largest difference in steps; 0 without data.
        sqnr: dB, the activation here against the other tool's; infinite where nothing differs, None without data.
    """

    name: str
    there: str = ""
    scale_there: float | None = None
    scale: float | None = None
    zero_point: int | None = None
    weights: int = 0
    weights_changed: int = 0
    weight_scale_change: float = 0.0
    channels: int = 0
    raised: int = 0
    weights_sqnr: float | None = None
    values: int = 0
    differ: int = 0
    largest: int = 0
    sqnr: float | None = None


HEAD = ("layer", "weights changed", "weight scales", "weights' SQNR", "scale", "integers differ", "largest", "SQNR")
"""Columns of the table."""

COARSER = "coarser weights in channels whose multipliers are less than every engine evaluates exactly"
"""What changed most integers of weights."""


@dataclass(frozen=True)
class MigrationReport(Shown):
    """What :func:`intact8.migrate` kept and what it changed.

    Attributes:
        tool: where the model came from.
        layers: one entry per tensor and weight, in order of execution.
        floats: operations with weights that are float there, and so here.
        observed: tensors that had no range there and got theirs from data.
        requantized: layers whose weights were quantized anew, as was asked for.
        notes: sentences about what a user should know.
        outputs_sqnr: dB, the outputs here against the other tool's simulation, on data; None without data.
    """

    tool: str
    layers: tuple[LayerChange, ...] = ()
    floats: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    requantized: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    outputs_sqnr: float | None = None

    @property
    def weights_changed(self) -> int:
        """Integers of weights that differ from the other tool's."""
        return sum(layer.weights_changed for layer in self.layers)

    @property
    def weights(self) -> int:
        """Integers of weights in all."""
        return sum(layer.weights for layer in self.layers)

    def to_json(self) -> str:
        """Return all numbers as JSON; infinite decibels are null."""
        values = dataclasses.asdict(self)
        return json.dumps(finite(values), indent=1)

    def __str__(self) -> str:
        """Return a table."""
        head = f"from {self.tool}: {self.weights_changed} of {self.weights} weights have another integer"
        if self.outputs_sqnr is not None:
            head += f"; outputs {_db(self.outputs_sqnr)} against its simulation"
        rows: list[tuple[str, ...]] = [HEAD]
        rows += [_row(layer) for layer in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lists = (("float, as there", self.floats), ("observed on data", self.observed), ("anew", self.requantized))
        tail = [f"{what}: {', '.join(map(one_line, names))}" for what, names in lists if names]
        raised = [
            f"{one_line(layer.name)} ({layer.raised} of {layer.channels})" for layer in self.layers if layer.raised
        ]
        if raised:
            tail.append(f"{COARSER}: {', '.join(raised)}")
        return "\n".join([head, "", *table, "", *tail, *self.notes]).rstrip()


def _row(layer: LayerChange) -> tuple[str, ...]:
    moved = "" if not (layer.scale and layer.scale_there) else f"{layer.scale / layer.scale_there - 1:+.2%}"
    share = f"{layer.differ / layer.values:.3%}" if layer.values else ""
    weights = f"{layer.weights_changed}/{layer.weights}" if layer.weights else ""
    scales = f"{layer.weight_scale_change:.2%}" if layer.weights else ""
    largest = str(layer.largest) if layer.values else ""
    decibels = ["" if value is None else _db(value) for value in (layer.weights_sqnr, layer.sqnr)]
    return (one_line(layer.name), weights, scales, decibels[0], moved, share, largest, decibels[1])


def _db(value: float) -> str:
    return "equal" if math.isinf(value) else f"{value:.1f} dB"


@dataclass(frozen=True)
class Migrated:
    """What :func:`intact8.migrate` returns.

    Attributes:
        program: ready to run and to save.
        report: what changed.
        simulation: the simulation of the same integers, for training on, comparing and reporting; None where a graph
            was read (ONNX, OpenVINO) that has no torch module.
    """

    program: Program
    report: MigrationReport
    simulation: Simulation | None = None
