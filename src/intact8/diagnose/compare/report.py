"""What :func:`intact8.compare` found: numbers per layer, as values, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from intact8.arithmetic.dimensions import Dim
from intact8.diagnose.layer_report import Rows
from intact8.display import Column, Grid, number, percent
from intact8.verification import Difference

Against = Literal["own", "cascade"]


@dataclass(frozen=True)
class Histogram:
    """How many values fall into bins of equal width.

    Attributes:
        low, high: where the first bin begins and the last one ends; equal where all values are the same.
        counts: values per bin.
        below, above: values outside.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0

    @property
    def total(self) -> int:
        """All values, those outside the bins included."""
        return sum(self.counts) + self.below + self.above

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Histogram:
        """What :func:`dataclasses.asdict` gave."""
        return Histogram(**{**values, "counts": tuple(values["counts"])})


@dataclass(frozen=True)
class LayerError:
    """How far integers are from the float tensor: error = integers on their grid − float values.

    Errors are in units of the tensor's scale (steps of its grid); for tensors that stay float, in the tensor's own.

    Attributes:
        sqnr: 10·log10(Σ y² / Σ error²) in dB; None where there is no error, or no signal.
        cosine: of the angle between both tensors as vectors; None where one of them is zero.
        max_error, mean_error: largest and mean magnitude.
        bias: mean of the error, with its sign.
        channel_bias: the same per channel; empty for tensors without channels.
        histogram: of the error with its sign, of every element or of an even sample of them.
    """

    sqnr: float | None
    cosine: float | None
    max_error: float
    mean_error: float
    bias: float
    channel_bias: tuple[float, ...]
    histogram: Histogram

    @property
    def worst_bias(self) -> float:
        """The largest magnitude of a channel's bias; of the whole tensor's where it has no channels."""
        return max(map(abs, self.channel_bias), default=abs(self.bias))

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> LayerError:
        """What :func:`dataclasses.asdict` gave."""
        histogram = Histogram.from_dict(values["histogram"])
        return LayerError(**{**values, "channel_bias": tuple(values["channel_bias"]), "histogram": histogram})


@dataclass(frozen=True)
class WeightError:
    """A layer's weight, batch norm folded in, against its integers.

    Attributes:
        sqnr: 10·log10(Σ w² / Σ (ŵ − w)²) in dB; None where there is no error, or no weight but zeros.
        per_channel: whether channels have scales of their own; tie-free multipliers make them differ by a little
            even where the recipe asks for one per tensor.
        minimum, maximum: float32 range per output channel.
        scale: per output channel.
        used: integers of the largest magnitude in use over the largest there is, per output channel.
    """

    sqnr: float | None
    per_channel: bool
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    scale: tuple[float, ...]
    used: tuple[float, ...]

    @property
    def imbalance(self) -> float:
        """Largest over smallest magnitude of a channel, channels of zeros left out; 1 where nothing is left."""
        sizes = [max(-lo, hi) for lo, hi in zip(self.minimum, self.maximum, strict=True)]
        sizes = [size for size in sizes if size > 0]
        return max(sizes) / min(sizes) if sizes else 1.0

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> WeightError:
        """What :func:`dataclasses.asdict` gave."""
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in values.items()}
        return WeightError(**made)


@dataclass(frozen=True)
class LayerRow:
    """One operation that makes new values, float32 against int8.

    Attributes:
        name: of the operation and its output tensor, as in the program and the simulation's graph.
        kind: of the program's operation: conv, linear, add, table, quantize, float.softmax …
        module: path of the original module, "" for the root.
        source: what was fused into it: names of the captured operations, original modules mostly.
        inputs: names of the operations it reads.
        shape: of the output; None is the batch.
        elements: values compared.
        quantized: whether the output is integers; a float operation has no grid, and no error of its own.
        scale, zero_point: of the output's grid.
        lo, hi: the smallest and the largest integer this operation can give (its clamp).
        float_min, float_max: extremes of the float tensor.
        clipped_low, clipped_high: share of float values that lie more than half a step outside the grid's ends
            ``qmin`` and ``qmax`` of the scheme. A fused ReLU has clipped in float as well, and does not count.
        integers: distinct integers the float tensor meets on the grid.
        grid: how many integers the scheme has.
        span: integers between the smallest and the largest met, both included.
        channels: of the output (dimension 1; the last one behind ``linear``), 0 where there are none.
        dead: channels whose float values never changed.
        saturated: channels of which more than SATURATED of the integers lie on an end of the grid beyond which the
            float values go on.
        own: error with the layer's own float input, quantized as its input is; None for float operations.
        cascade: error with what arrives in the quantized network.
        histogram: of the float tensor.
        weight: of conv and linear (a per-channel product is a conv), else None.
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
    histogram: Histogram
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
        """``own`` or ``cascade`` by name."""
        return self.own if against == "own" else self.cascade

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> LayerRow:
        """What :func:`dataclasses.asdict` gave, or JSON made of it."""
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in values.items()}
        made["own"] = None if values["own"] is None else LayerError.from_dict(values["own"])
        made["cascade"] = LayerError.from_dict(values["cascade"])
        made["histogram"] = Histogram.from_dict(values["histogram"])
        made["weight"] = None if values["weight"] is None else WeightError.from_dict(values["weight"])
        first = values["first_difference"]
        made["first_difference"] = None if first is None else Difference(**{**first, "index": tuple(first["index"])})
        return LayerRow(**made)


@dataclass(frozen=True)
class CompareReport(Rows[LayerRow]):
    """What :func:`intact8.compare` found. Prints as a table with rich and in Jupyter; iterates over its rows.

    Attributes:
        rows: one per operation that makes new values, in execution order. Operations that only move integers (max
            pooling, reshaping, …) have none.
        samples: how many were run.
        engine: what computed the integers.

    Example:
        >>> report = CompareReport((), samples=0, engine="reference")
        >>> CompareReport.from_dict(report.to_dict()) == report
        True
    """

    rows: tuple[LayerRow, ...]
    samples: int
    engine: str

    found: ClassVar[str] = "compared"

    def worst(self, count: int = 5, against: Against = "own") -> list[LayerRow]:
        """Quantized layers with the smallest SQNR, worst first. Those without error are left out."""
        rows = [(error.sqnr, row) for row in self.rows if (error := row.error(against)) and error.sqnr is not None]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])[:count]]

    @property
    def first_difference(self) -> Difference | None:
        """First integer, in execution order, in which simulation and program differ; None where none does."""
        return next((row.first_difference for row in self.rows if row.first_difference), None)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> CompareReport:
        """The report that :meth:`to_dict` wrote (or ``json.loads`` of :meth:`to_json`)."""
        rows = tuple(LayerRow.from_dict(row) for row in values["rows"])
        return CompareReport(rows, values["samples"], values["engine"])

    def grid(self) -> Grid:
        """The table that is shown."""
        columns = (
            Column("layer", "left"), Column("kind", "left"), Column("own SQNR dB"), Column("cascade SQNR dB"),
            Column("cosine"), Column("max error"), Column("mean error"), Column("clipped"), Column("grid used"),
            Column("dead"), Column("saturated"), Column("scale"), Column("zero point"), Column("float range", "left"),
            Column("weight SQNR dB"), Column("first difference", "left"),
        )  # fmt: skip
        return Grid(columns, tuple(_cells(row) for row in self.rows), self._caption())

    def _caption(self) -> str:
        text = f"{len(self.rows)} layers over {self.samples:,} samples on {self.engine}; errors in steps of the scale"
        worst = self.worst(1)
        return text + (f"; smallest own SQNR: {worst[0].name}" if worst else "")


def _cells(row: LayerRow) -> tuple[str, ...]:
    own, cascade, first = row.own, row.cascade, row.first_difference
    sqnr = "" if own is None else "exact" if own.sqnr is None and own.max_error == 0 else number(own.sqnr)
    return (
        row.name, row.kind, sqnr, number(cascade.sqnr), number(cascade.cosine, 6), number(cascade.max_error),
        number(cascade.mean_error), percent(row.clipped) if row.quantized else "",
        percent(row.grid_used) if row.quantized else "", f"{len(row.dead)}/{row.channels}" if row.dead else "",
        f"{len(row.saturated)}/{row.channels}" if row.saturated else "", number(row.scale, 4),
        "" if row.zero_point is None else str(row.zero_point), f"{number(row.float_min)} … {number(row.float_max)}",
        number(row.weight.sqnr) if row.weight else "",
        "" if first is None else f"[{', '.join(map(str, first.index))}] {first.expected} → {first.got}",
    )  # fmt: skip
