"""The report of :func:`intact8.compare`: numbers per layer, as values, JSON and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from intact8.arithmetic.dimensions import Dim
from intact8.diagnose.layer_report import LayerReport
from intact8.display import Grid, columns, number, percent
from intact8.verification import Difference

Against = Literal["own", "cascade"]


@dataclass(frozen=True)
class Histogram:
    """The number of values in bins of equal width.

    Attributes:
        low, high: where the first bin begins and the last one ends; equal where all values are the same.
        counts: number of values in each bin.
        below, above: number of values outside of the bins.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0

    @property
    def total(self) -> int:
        """The number of all values, those outside of the bins included."""
        return sum(self.counts) + self.below + self.above


@dataclass(frozen=True)
class LayerError:
    """The error of integers: real numbers on their grid less the float values.

    Errors are in units of the tensor's scale (steps of its grid); for tensors that stay float, in the tensor's own.

    Attributes:
        sqnr: 10·log10(Σ y² / Σ error²) in dB; None where there is no error, or no signal.
        cosine: of the angle between both tensors as vectors; None where one of them is zero.
        max_error, mean_error: largest and mean magnitude.
        bias: mean of the error, with its sign.
        channel_bias: mean of the error per channel; empty for tensors without channels.
        histogram: distribution of the error with its sign, of every element or of an even sample of them.
    """

    sqnr: float | None
    cosine: float | None
    max_error: float
    mean_error: float
    bias: float
    channel_bias: tuple[float, ...] = field(repr=False)
    histogram: Histogram = field(repr=False)

    @property
    def worst_bias(self) -> float:
        """The largest magnitude of a channel's bias, or that of the tensor's bias where it has no channels."""
        return max(map(abs, self.channel_bias), default=abs(self.bias))


@dataclass(frozen=True)
class WeightError:
    """A layer's weight, batch norm folded in, against its integers.

    Attributes:
        sqnr: 10·log10(Σ w² / Σ (ŵ − w)²) in dB; None where there is no error, or no weight but zeros.
        per_channel: whether channels have scales of their own; tie-free multipliers make them differ by a little
            even where the recipe asks for one per tensor.
        minimum, maximum: float32 range per output channel.
        scale: scale of every output channel.
        used: largest magnitude among the integers over the largest one that the scheme has, per output channel.
    """

    sqnr: float | None
    per_channel: bool
    minimum: tuple[float, ...] = field(repr=False)
    maximum: tuple[float, ...] = field(repr=False)
    scale: tuple[float, ...] = field(repr=False)
    used: tuple[float, ...] = field(repr=False)

    @property
    def imbalance(self) -> float:
        """Largest over smallest magnitude of a channel, channels of zeros left out; 1 where nothing is left."""
        sizes = [max(-lo, hi) for lo, hi in zip(self.minimum, self.maximum, strict=True)]
        sizes = [size for size in sizes if size > 0]
        return max(sizes) / min(sizes) if sizes else 1.0


@dataclass(frozen=True)
class LayerRow:
    """One operation that makes new values, float32 against int8.

    Attributes:
        name: name of the operation and its output tensor, as in the program and the simulation's graph.
        kind: kind of the program's operation: conv, linear, add, table, quantize, float.softmax …
        module: path of the original module, "" for the root.
        source: what was fused into it: names of the captured operations, original modules mostly.
        inputs: names of the operations it reads.
        shape: shape of the output; None is the batch.
        elements: number of values compared.
        quantized: whether the output is integers; a float operation has no grid, and no error of its own.
        scale, zero_point: scale and zero point of the output.
        lo, hi: the smallest and the largest integer this operation can give (its clamp).
        float_min, float_max: extremes of the float tensor.
        clipped_low, clipped_high: share of float values that lie more than half a step outside the grid's ends
            ``qmin`` and ``qmax`` of the scheme. A fused ReLU has clipped in float as well, and does not count;
            nor do values that the tables behind them do not tell apart, here and in both errors.
        integers: distinct integers the float tensor meets on the grid.
        grid: how many integers the scheme has.
        span: integers between the smallest and the largest met, both included.
        channels: number of channels of the output (dimension 1; the last one behind ``linear``), 0 where it has none.
        dead: channels whose float values never changed.
        saturated: channels of which more than SATURATED of the integers lie on an end of the grid beyond which the
            float values go on.
        own: error with the layer's own float input, quantized as its input is; None for float operations.
        cascade: error with what arrives in the quantized network.
        histogram: distribution of the float tensor.
        weight: error of the weight of conv and linear (a per-channel product is a conv), else None.
        first_difference: first integer that differs between the simulation and the program, where both were given;
            index, and the integers expected (the simulation's) and got (the program's).
        note: why it stayed float, and what else is worth a line.
    """

    name: str
    kind: str
    module: str
    source: tuple[str, ...]
    inputs: tuple[str, ...]
    shape: tuple[Dim, ...]
    elements: int
    quantized: bool
    scale: float | None
    zero_point: int | None
    lo: int | None
    hi: int | None
    float_min: float
    float_max: float
    clipped_low: float
    clipped_high: float
    integers: int
    grid: int
    span: int
    channels: int
    dead: tuple[int, ...]
    saturated: tuple[int, ...]
    own: LayerError | None
    cascade: LayerError
    histogram: Histogram = field(repr=False)
    weight: WeightError | None = None
    first_difference: Difference | None = None
    note: str = ""

    @property
    def clipped(self) -> float:
        """Share of float values outside the grid, both ends together."""
        return self.clipped_low + self.clipped_high

    @property
    def grid_used(self) -> float:
        """Distinct integers met, over those the grid has."""
        return self.integers / self.grid if self.grid else 0.0

    @property
    def range_used(self) -> float:
        """Integers between the smallest and the largest met, over those the grid has."""
        return self.span / self.grid if self.grid else 0.0

    def error(self, against: Against) -> LayerError | None:
        """Return ``own`` or ``cascade`` by name."""
        return self.own if against == "own" else self.cascade


@dataclass(frozen=True)
class CompareReport(LayerReport[LayerRow]):
    """What :func:`intact8.compare` found. Prints as a table with rich and in Jupyter; iterates over its rows.

    Attributes:
        rows: a row for every operation that makes new values, in execution order. Operations that only move integers
            (max pooling, reshaping, …) have none.
        samples: number of samples run.
        engine: what computed the integers.

    Example:
        >>> report = CompareReport((), samples=0, engine="reference")
        >>> CompareReport.from_dict(report.to_dict()) == report
        True
    """

    rows: tuple[LayerRow, ...]
    samples: int
    engine: str

    verb: ClassVar[str] = "compared"

    def worst(self, count: int = 5, against: Against = "own") -> list[LayerRow]:
        """Return the quantized layers with the smallest SQNR, worst first. Those without error are left out."""
        rows = [(error.sqnr, row) for row in self.rows if (error := row.error(against)) and error.sqnr is not None]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])[:count]]

    @property
    def first_difference(self) -> Difference | None:
        """First integer, in execution order, in which simulation and program differ; None where none does."""
        return next((row.first_difference for row in self.rows if row.first_difference), None)

    def grid(self) -> Grid:
        """Return the report as a table."""
        text = f"{len(self.rows)} layers over {self.samples:,} samples on {self.engine}; errors in steps of the scale"
        text += "".join(f"; smallest own SQNR: {row.name}" for row in self.worst(1))
        rows = tuple(tuple(cell(row) for cell in _CELLS.values()) for row in self.rows)
        return Grid(columns(*_CELLS), rows, text)


def _own_sqnr(row: LayerRow) -> str:
    exact = row.own is not None and row.own.sqnr is None and row.own.max_error == 0
    return "exact" if exact else "" if row.own is None else number(row.own.sqnr)


def _difference(row: LayerRow) -> str:
    first = row.first_difference
    return "" if first is None else f"[{', '.join(map(str, first.index))}] {first.expected} → {first.got}"


_CELLS: dict[str, Callable[[LayerRow], str]] = {
    "<layer": lambda row: row.name,
    "<kind": lambda row: row.kind,
    "own SQNR dB": _own_sqnr,
    "cascade SQNR dB": lambda row: number(row.cascade.sqnr),
    "cosine": lambda row: number(row.cascade.cosine, 6),
    "max error": lambda row: number(row.cascade.max_error),
    "mean error": lambda row: number(row.cascade.mean_error),
    "clipped": lambda row: percent(row.clipped) if row.quantized else "",
    "grid used": lambda row: percent(row.grid_used) if row.quantized else "",
    "dead": lambda row: f"{len(row.dead)}/{row.channels}" if row.dead else "",
    "saturated": lambda row: f"{len(row.saturated)}/{row.channels}" if row.saturated else "",
    "scale": lambda row: number(row.scale, 4),
    "zero point": lambda row: "" if row.zero_point is None else str(row.zero_point),
    "<float range": lambda row: f"{number(row.float_min)} … {number(row.float_max)}",
    "weight SQNR dB": lambda row: number(row.weight.sqnr) if row.weight else "",
    "<first difference": _difference,
}
"""Heading of a column, see :func:`intact8.display.columns`, and its cell for a row."""
