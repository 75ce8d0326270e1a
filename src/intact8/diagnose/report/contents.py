"""The contents of a report, as frozen dataclasses."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.arithmetic.dimensions import Dim
from intact8.diagnose.lint.finding import Finding
from intact8.display import Shown
from intact8.errors import EngineError
from intact8.export.files import write_file
from intact8.regular_file import path_of

if TYPE_CHECKING:
    from rich.console import Group

    from intact8.diagnose.compare.report import LayerRow


@dataclass(frozen=True)
class Integers:
    """Histogram of one integer tensor on the samples of the report.

    Attributes:
        counts: how often each of the 256 integers occurred.
        used: share of the integers between the clamp's ends that occurred at all, 0 to 1.
        at_low, at_high: share of the elements at the clamp's lower and upper end, 0 to 1.
    """

    counts: tuple[int, ...]
    used: float
    at_low: float
    at_high: float


@dataclass(frozen=True)
class Channels:
    """Weights per output channel, as the real numbers the integers stand for.

    Attributes:
        scale: scale of every channel.
        low, high: smallest and largest weight of every channel.
        used: largest \\|integer\\| of every channel, at most 127.
    """

    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    used: tuple[int, ...]


@dataclass(frozen=True)
class Milliseconds:
    """Quartiles over some runs, in milliseconds."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Layer:
    """One operation of the program.

    Attributes:
        name, kind, module: as in the program.
        runs_as: "int8" (arithmetic on integers), "move" (integers change places only) or "float32" (an island).
        inputs: names of the tensors it reads.
        source: names of what was fused into it.
        fused: description of what was fused, with clamp and residual.
        activation_function: the function fused into it or looked up, "" for none.
        shape: shape of its output; None is the batch.
        dtype: dtype of its output.
        scale, zero_point: scale and zero point of its output; None for floats.
        real_low, real_high: ends of its clamp as real numbers; None for floats.
        weight_shape: shape of its weight, () without one.
        macs: multiplications with weights for one sample.
        bytes: size of its arrays.
        certificate: what was proved, see ``intact8.program.certify``; None where there is nothing to prove.
        note: why it stayed float.
        channels: channels of its weight; None without int8 weights.
        integers: histogram of its output; None for floats and without data.
        error: how far it is from the float32 network, see :func:`intact8.compare`; None for moves, and without model.
        sensitivity: the report's metric with only this layer quantized, see :func:`intact8.sensitivity`.
        time: time of its calls on the report's engine.
        findings: positions in the report's list of findings.
    """

    name: str
    kind: str
    module: str
    runs_as: str
    inputs: tuple[str, ...]
    source: tuple[str, ...]
    fused: str
    activation_function: str
    shape: tuple[Dim, ...]
    dtype: str
    scale: float | None
    zero_point: int | None
    real_low: float | None
    real_high: float | None
    weight_shape: tuple[int, ...]
    macs: int
    bytes: int
    certificate: dict[str, Any] | None
    note: str
    channels: Channels | None = None
    integers: Integers | None = None
    error: LayerRow | None = None
    sensitivity: float | None = None
    time: Milliseconds | None = None
    findings: tuple[int, ...] = ()

    @property
    def own_sqnr(self) -> float | None:
        """SQNR in dB with the layer's own float input; None where nothing was compared, or there is no error."""
        return None if self.error is None or self.error.own is None else self.error.own.sqnr

    @property
    def cascade_sqnr(self) -> float | None:
        """SQNR in dB with the layer's input in the quantized network; None as for ``own_sqnr``."""
        return None if self.error is None else self.error.cascade.sqnr


@dataclass(frozen=True)
class Speed:
    """Time of a run of the whole program, and how it was measured.

    Attributes:
        engine: name of the engine.
        batch: samples per run.
        threads: the framework's threads, None where unknown.
        runs: number of runs that the quartiles rest on.
        whole: time of a run as it is deployed.
        data: "given" or "random".
        float32: time of the float32 network on the same batch, in turns with the others; None without one.
    """

    engine: str
    batch: int
    threads: int | None
    runs: int
    whole: Milliseconds
    data: str
    float32: Milliseconds | None = None


@dataclass(frozen=True)
class Accuracy:
    """Share of samples whose largest output is that of their label, 0 to 1.

    Attributes:
        int8: share of the program.
        float32: share of the float32 network; None without one.
        samples: number of samples.
    """

    int8: float
    float32: float | None
    samples: int


@dataclass(frozen=True)
class Counts:
    """The program in numbers.

    Attributes:
        ops, int8, moves, floats: number of operations in all and by ``Layer.runs_as``.
        tensors: number of integer tensors.
        certifiable, certified: operations that need a certificate, and those proved exact.
        bytes: size of all arrays.
        macs: multiplications of all layers, for one sample.
    """

    ops: int
    int8: int
    moves: int
    floats: int
    tensors: int
    certifiable: int
    certified: int
    bytes: int
    macs: int


@dataclass(frozen=True)
class Metric:
    """The metric of sensitivity.

    Attributes:
        name: name of the metric.
        higher_is_better: whether a higher score is better.
        float_score, quantized_score: score with nothing and with everything quantized; None where infinite.
        samples: number of samples.
    """

    name: str
    higher_is_better: bool
    float_score: float | None
    quantized_score: float | None
    samples: int


@dataclass(frozen=True)
class Tuning:
    """The search that chose the program's recipe, see :func:`intact8.tune`.

    Attributes:
        summary: its outcome in words.
        picture: drop over time of every trial, an SVG element.
        headings, rows: the trials that no other beats, fastest first, as a table.
    """

    summary: str
    picture: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report(Shown):
    """Everything one page says about a program. Prints as tables with rich; see ``save`` for the page.

    Attributes:
        title: title of the page.
        digest: SHA-256 of what the program computes.
        needs: features a CPU must have for every engine to be exact.
        counts: the program in numbers.
        layers: one per operation, in execution order.
        findings: findings of lint.
        skipped: rule of lint → what it would have needed.
        samples: number of samples the integers were counted on; 0 without data.
        compared: number of samples the float32 network was compared on; 0 without one.
        metric: metric of sensitivity; None where it was not measured.
        speed: time of the whole program; None when nothing was timed.
        provenance: provenance of the program.
        recipe: recipe of the program, TOML.
        machine: the machine that made the report: cpu, isa, versions of packages.
        created: when it was made, ISO 8601, UTC.
        accuracy: accuracy with labels; None without them.
        next_steps: what to do next, sentences, the most urgent first.
        tuning: the search that chose its recipe; None without one.
        other: the report of a second program on the same data, which the first is compared with; None without one.
    """

    title: str
    digest: str
    needs: tuple[str, ...]
    counts: Counts
    layers: tuple[Layer, ...]
    findings: tuple[Finding, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    samples: int = 0
    compared: int = 0
    metric: Metric | None = None
    speed: Speed | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    accuracy: Accuracy | None = None
    next_steps: tuple[str, ...] = ()
    tuning: Tuning | None = None
    other: Report | None = None

    @property
    def end_sqnr(self) -> float | None:
        """SQNR of the last compared operation in the quantized network, in dB; None where nothing was compared."""
        compared = [layer for layer in self.layers if layer.error is not None]
        return compared[-1].cascade_sqnr if compared else None

    def to_json(self) -> dict[str, Any]:
        """Return everything in the report as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return values

    def worst(self, count: int = 5) -> list[Layer]:
        """Return the layers with the smallest SQNR of their own, worst first."""
        rated = [(sqnr, i) for i, layer in enumerate(self.layers) if (sqnr := layer.own_sqnr) is not None]
        return [self.layers[i] for _, i in sorted(rated)[:count]]

    def slowest(self, count: int = 5) -> list[Layer]:
        """Return the layers that take most of the time, slowest first."""
        timed = [layer for layer in self.layers if layer.time is not None]
        return sorted(timed, key=lambda layer: -layer.time.median if layer.time else 0.0)[:count]

    def most_sensitive(self, count: int = 5) -> list[Layer]:
        """Return the layers whose quantization alone costs most, worst first."""
        scored = [layer for layer in self.layers if layer.sensitivity is not None]
        sign = 1.0 if self.metric is not None and self.metric.higher_is_better else -1.0
        return sorted(scored, key=lambda layer: sign * (layer.sensitivity or 0.0))[:count]

    def share_of_time(self, layer: Layer) -> float | None:
        """Return the layer's share of the sum of all layers' medians, 0 to 1; None where nothing was timed."""
        total = sum(other.time.median for other in self.layers if other.time is not None)
        return layer.time.median / total if layer.time is not None and total > 0 else None

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that needs nothing else: no network, no other file.

        Raises:
            InputError: the extra ``report`` is not installed.
            EngineError: the file cannot be written.
        """
        from intact8.diagnose.report.html import render

        path = path_of(path, "the page", EngineError)
        write_file(path, render(self).encode())
        return path

    def __rich__(self) -> Group:
        from intact8.diagnose.report.terminal import show

        return show(self)
