"""The report of :func:`intact8.doctor`: findings, remedies and outcomes, as values, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.diagnose.json_report import JsonReport
from intact8.display import Shown
from intact8.recipe.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Group

SEVERITIES = ("error", "warning", "note")
"""An error harms the answers visibly, a warning costs accuracy or speed, and a note is worth knowing."""

CALIBRATION, NETWORK = "calibration data", "network"
"""Places of findings that belong to no single layer."""


@dataclass(frozen=True)
class Finding:
    """One fault: where it is, how it was measured, and what helps.

    Attributes:
        cause: stable name of the fault; docs/diagnosis.md has all of them.
        place: a layer, "calibration data" or "network".
        severity: error, warning or note.
        message: what was measured, in words.
        remedy: what helps against it.
        noise: output noise over signal that would go away with this fault, measured by quantizing the places named in
            ``sites`` alone; 0 for faults that make no noise.
        sites: (part, name) of the tensors concerned; the part is "activation" or "weight".
        evidence: the numbers behind the message.
    """

    cause: str
    place: str
    severity: str
    message: str
    remedy: str
    noise: float = 0.0
    sites: tuple[tuple[str, str], ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.cause}: {self.message}. Remedy: {self.remedy}"


@dataclass(frozen=True)
class Site:
    """One tensor that is quantized.

    Attributes:
        name: name of the quantization point, or of the layer whose weight it is.
        part: "activation" or "weight".
        noise: output noise over signal when nothing else is quantized.
        reason: reason of the largest gain.
        gains: reason → decibels by which the error of the tensor would fall without it.
        origin: where an activation's scale comes from: observer, fixed, set, foreign or stale; "" for weights.
    """

    name: str
    part: str
    noise: float
    reason: str
    gains: Mapping[str, float] = field(default_factory=dict, hash=False)
    origin: str = ""


@dataclass(frozen=True)
class Confidence:
    """The check that the simulation with rounding off is the float network.

    Attributes:
        error: largest difference of any output, over the largest output.
        passed: whether that is float32 noise.
        samples: number of samples compared.
    """

    error: float
    passed: bool
    samples: int


@dataclass(frozen=True)
class CalibrationQuality:
    """The quality of the calibration data, whether or not it does harm.

    Attributes:
        samples, distinct: number of samples, and how many of them differ.
        classes: effective number of classes that the network sees in it, the exponential of the entropy of its
            answers; None where outputs are not classes.
        data_classes: effective number of classes in as many samples of the representative data.
        input_quantiles, data_quantiles: 1 % and 99 % quantile of its inputs, and of the representative data's.
        input_shift: by how many standard deviations of a feature of the inputs (means of parts, spread, differences of
            neighbours) the means of calibration and representative data differ; 0 where no difference is sure.
        strange: share of the samples that are further from every representative one, by those features, than nearly
            all of these are from each other.
        extreme_sample: the sample that reaches furthest beyond the others.
        extreme_ratio: how many times as far it reaches, median over all tensors.
        extreme_tensor: the tensor in which it reaches furthest.
        convergence: samples seen → median over all ranges of their width, over their width in the end.
        unconverged: quantization points whose range grew by more than 5 % in the second half of the data.
        batch_dependence: largest relative difference of a scale between calibrating one by one and in batches of
            eight; None where the network insists on a batch size.
        reach: how many times as far as in the representative data its inputs reach.
        furthest: the input, and the column of rows of features, that reaches furthest, and the sample.
        part: whether its inputs lack the largest or the smallest of the representative ones, and are like the others.
    """

    samples: int
    distinct: int
    classes: float | None
    data_classes: float | None
    input_quantiles: tuple[float, float]
    data_quantiles: tuple[float, float]
    input_shift: float
    strange: float
    extreme_sample: int
    extreme_ratio: float
    extreme_tensor: str
    convergence: tuple[tuple[int, float], ...]
    unconverged: tuple[str, ...]
    batch_dependence: float | None
    reach: float = 1.0
    furthest: str = ""
    part: bool = False


@dataclass(frozen=True)
class Outcome:
    """One network on samples that nothing was calibrated on or chosen by.

    Attributes:
        name: float, before or after.
        metric: the metric, of which more is better.
        noise: noise over signal of its outputs.
    """

    name: str
    metric: float
    noise: float


@dataclass(frozen=True)
class Trial:
    """One remedy tried on samples apart from those of the outcomes.

    Attributes:
        remedy: what was changed.
        cause, place: cause and place of the finding for which it was tried; "" for what is tried on every network.
        metric, noise: metric and noise of the network with it.
        accepted: whether it is part of the recipe.
    """

    remedy: str
    cause: str
    place: str
    metric: float
    noise: float
    accepted: bool


@dataclass(frozen=True)
class Verdict:
    """The decision whether int8 pays for this network on this machine.

    Attributes:
        pays: whether it pays.
        reason: why, in a sentence with the numbers.
        drop: metric of the float network less that of the quantized one after remedies.
        speedup: float32 time over int8 time, medians of one interleaved run; None where it was not measured.
        float_ms, int8_ms: these times for one batch.
        batch: number of samples in the batch.
        engine: the engine that ran the program.
    """

    pays: bool
    reason: str
    drop: float
    speedup: float | None = None
    float_ms: float | None = None
    int8_ms: float | None = None
    batch: int = 0
    engine: str = ""


@dataclass(frozen=True)
class DoctorReport(Shown, JsonReport):
    """What :func:`intact8.doctor` found and tried. Prints with rich and in Jupyter.

    Attributes:
        metric: name of the metric.
        confidence, calibration: results of the first two checks.
        findings: the findings, the worst first.
        sites: every quantized tensor, the noisiest first.
        trials: remedies tried, in order.
        outcomes: outcomes named float, before and after, on held-out samples.
        recipe_toml: the recipe that applies the remedies.
        recalibrate: whether the recipe counts on better calibration data than was given.
        verdict: whether to quantize this at all.
        samples: number of samples to calibrate on, to examine and choose by, and held out.
        measured: how many sites the noise was measured of, and how many there are.

    Example:
        >>> from intact8.diagnose.doctor.report import Verdict
        >>> Verdict(False, "too slow", 0.0).pays
        False
    """

    metric: str
    confidence: Confidence
    calibration: CalibrationQuality
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    trials: tuple[Trial, ...]
    outcomes: tuple[Outcome, ...]
    recipe_toml: str
    recalibrate: bool
    verdict: Verdict
    samples: Mapping[str, int] = field(default_factory=dict, hash=False)
    measured: tuple[int, int] = (0, 0)

    @property
    def recipe(self) -> Recipe:
        """The recipe that applies the remedies."""
        return Recipe.from_toml(self.recipe_toml)

    def save_recipe(self, path: str | Path) -> Path:
        """Write that recipe as TOML; see :meth:`intact8.Recipe.save`."""
        return self.recipe.save(path)

    def outcome(self, name: str) -> Outcome:
        """Return the outcome of that name."""
        return next(o for o in self.outcomes if o.name == name)

    @property
    def recovered(self) -> float | None:
        """The share of the metric lost by quantizing that the remedies won back; None where nothing was lost."""
        exact, before, after = (self.outcome(name).metric for name in ("float", "before", "after"))
        return (after - before) / (exact - before) if exact > before else None

    def __rich__(self) -> Group:
        from intact8.diagnose.doctor.render import as_rich

        return as_rich(self)

    def _repr_html_(self) -> str:
        from intact8.diagnose.doctor.render import as_html

        return as_html(self)
