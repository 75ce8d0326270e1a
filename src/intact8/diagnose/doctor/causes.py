"""The name of a fault, from the reason that was measured and where the numbers come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from intact8.diagnose.doctor.activations import Evidence
from intact8.diagnose.doctor.report import CALIBRATION, NETWORK, CalibrationQuality, Site
from intact8.simulation.simulation import Simulation

FAULT_DECIBELS = {
    "range": 3.0, "data": 3.0, "bits": 3.0, "symmetric": 3.0, "shared": 8.0, "channels": 15.0, "cancellation": 10.0,
    "offset": 10.0,
    "tie_free": 3.0, "stale": 3.0, "granularity": 3.0, "outlier_weight": 6.0, "columns": 10.0, "mean_shift": 4.0,
}  # fmt: skip
"""Decibels from which a reason is a fault. What trained networks show by themselves stays below: channels that differ
by 14 dB, weights whose outliers cost 3 dB, means that shift by as much as their noise."""

STANDS_OUT, SOMETHING = 100.0, 3.0
"""Times the noise of the median tensor from which one stands out, whose output is at less than 20 dB with it alone; and
decibels from which any reason is that of such a tensor, as something must be."""

MISTAKES, MOST, FEW_BITS = ("range", "data", "stale"), 7.0, 1.25
"""Reasons that somebody's choice of ranges gives, and decibels from which four fifths of the noise go with them: ranges
are mended first, and then the rest is what the network is. With few bits narrow ranges are best, so that these come
first where they make so many times as many decibels."""

FEW, A_FEW, ONE = 32, 8, 1.5
"""Distinct samples below which there are too few; those from which one class among them is no accident; and the
effective number of classes that is one."""

MANY = 100
"""Distinct samples from which a single one cannot move the quantiles of 1 % and 99 %."""

RECALIBRATE = "calibrate on a few hundred varied samples, loaded as they are in use"

SHIFTED = 0.3
"""Shift of the quantiles of the inputs, over their distance, from which calibration data are unlike the data."""

APART = 0.6
"""Difference of the means of a feature, in its standard deviations, from which calibration data are unlike the data."""

STRANGE = 0.5
"""Share of samples like none of the data from which calibration data are not some of their classes."""

EXTREME = 2.0
"""A sample that reaches so many times as far as the others is extreme; no ordinary image exceeds 1.0."""

FAR = 10.0
"""How many times as far as in the data inputs reach that are no inputs."""

CHANCE = 0.01
"""Probability that the samples which reach furthest are all among the data, from which it is chance: of the furthest k
of n + m samples all are among the n with a probability of about (n / (n + m)) ** k."""


LAYER_CAUSES = {
    "cancellation": (
        "cancellation",
        "its terms are {ratio:.3g} times as large as the sum (rms {term_rms:.3g} and {sum_rms:.3g}), and so is their "
        "rounding",
        'keep the terms float, or train with a penalty on them; residual="fused" saves one rounding',
    ),
    "bits": ("few_bits", "the {part} has {bits:.0f} bits; 8 would make {gain:.0f} dB less noise", "{part} bits = 8"),
    "symmetric": (
        "symmetric_range",
        "a symmetric range wastes integers on the side where no values are: {gain:.0f} dB",
        "symmetric = false, where the target allows it",
    ),
    "shared": (
        "shared_range",
        "tensors of widths {widths} share one scale; with one each there would be {gain:.0f} dB less noise behind the "
        "next weights",
        "bring them to one range before they are joined, or leave the join float",
    ),
    "channels": (
        "channel_imbalance",
        "channel {widest_channel} is {widest_channel_over_median:.3g} times as wide as the median one; one scale per "
        "channel would make {gain:.0f} dB less noise, {outlier_channel_gain_db:.0f} dB of it by the widest "
        "{outlier_channels} of {channels}",
        "equalize, smooth (rescale the channels into the next weights), or leave float what reads them",
    ),
    "offset": (
        "large_bias",
        "the results of {offset_channels} channels lie in {offset_range}, away from zero: {gain:.0f} dB",
        "take off its bias what all have in common, or leave the layer float",
    ),
    "granularity": (
        "per_tensor_weight",
        "one scale for all channels, though their weights differ by a factor of {channel_imbalance:.3g}; one per "
        "channel would make {gain:.0f} dB less noise",
        'granularity = "per_channel"',
    ),
    "outlier_weight": (
        "outlier_weight",
        "the largest weights are {largest_over_median:.3g} times the median; {gain:.0f} dB are theirs",
        'smooth = "auto" or weight observer = "mse", clip the weights, or leave the layer float',
    ),
    "columns": (
        "input_imbalance",
        "weights of different inputs differ so much that small ones round to nothing: {gain:.0f} dB",
        "rescale the inputs' channels, or leave the layer float",
    ),
    "stale": (
        "stale_range",
        "the weight scales are not those of the present weights, which would make {gain:.0f} dB less noise",
        "calibrate again, or freeze scales later in training",
    ),
    "tie_free": (
        "large_bias",
        "biases up to {largest_bias:.3g} steps leave the weights coarse scales: {gain:.0f} dB",
        "look for a channel with a huge bias; leave the layer float",
    ),
    "mean_shift": (
        "bias_shift",
        "rounding the weights shifts the mean of the output: {mean_share_of_error:.0%} of their noise",
        "bias_correction = true",
    ),
}
"""Reason → name of the cause, its message and its remedy, both formatted with the facts that were measured."""


@dataclass(frozen=True)
class Measured:
    """A site with its noise and evidence; see :class:`Site`.

    Attributes:
        stands_out: whether it is far noisier than others, and too noisy.
    """

    part: str
    name: str
    noise: float
    evidence: Evidence
    stands_out: bool = False

    @property
    def reason(self) -> tuple[str, float]:
        """The reason with the largest gain among those that are faults; ("", 0) where none is.

        One of MISTAKES with which most of the noise goes comes before properties of the network.
        """
        least = SOMETHING if self.stands_out else math.inf
        faults = {r: g for r, g in self.evidence.gains.items() if g >= min(least, FAULT_DECIBELS[r])}
        made = {r: g for r, g in faults.items() if r in MISTAKES and g >= MOST}
        if faults.get("bits", 0.0) > FEW_BITS * max(made.values(), default=0.0):
            made = {}
        return max((made or faults).items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def avoidable(self) -> float:
        """The noise that goes away with the reason."""
        return self.saved_by(self.reason[0])

    def saved_by(self, reason: str) -> float:
        """Return the noise that would go away with one thing, whatever else there is."""
        return self.noise * (1 - 10 ** (-self.evidence.gains.get(reason, 0.0) / 10))

    def site(self) -> Site:
        """Return the entry of the report."""
        gains = {r: round(g, 2) for r, g in self.evidence.gains.items()}
        return Site(self.name, self.part, self.noise, self.evidence.worst()[0], gains, self.evidence.origin)


@dataclass(frozen=True)
class Cause:
    """Name, place, message, remedy and evidence of a fault, as in a finding.

    Attributes:
        chance: whether samples of one kind differ as much by chance, so that it is nobody's fault.
    """

    name: str
    place: str
    message: str
    remedy: str
    evidence: dict[str, Any] = field(default_factory=dict)
    chance: bool = False


def name_cause(sim: Simulation, site: Measured, sites: list[Measured], quality: CalibrationQuality) -> Cause:
    """Return the cause behind a site's reason."""
    reason, gain = site.reason
    facts = site.evidence.facts
    if reason == "data":
        name, text = name_calibration_fault(quality)
        seen, shown = _range(facts["data_range"]), _range(facts["calibration_range"])
        message = f"{text}; {site.name} lies in {seen}, in calibration in {shown}: {gain:.0f} dB"
        chance = name == "unrepresentative" and quality.distinct >= MANY and _by_chance(facts)
        if chance:
            message += (
                f"; {facts['samples_beyond']} of {facts['samples'][0]} samples reach further, as some do by chance"
            )
        return Cause(name, CALIBRATION, message, RECALIBRATE, facts, chance)
    if reason == "columns" or (reason == "range" and site.evidence.origin == "observer"):
        producer = _imbalanced_input(sim, site, sites)
        if producer is not None:
            return name_cause(sim, producer, sites, quality)
    if reason == "range":
        return _range_cause(sim, site, sites, gain, enough=quality.distinct >= MANY)
    words = {"part": site.part, "gain": gain, **facts}
    if reason == "cancellation":
        words["ratio"] = facts["term_rms"] / max(facts["sum_rms"], 1e-30)
    if reason == "bits":
        words["bits"] = facts.get("bits") or _bits(facts["range"])
    if reason == "offset":
        words["offset_range"] = _range(facts["offset_range"])
    if reason == "channels" and "dimension" in facts:
        words["widest_channel"] = f"{facts['widest_channel']} of dimension {facts['dimension']}"
    if reason == "shared":
        words["widths"] = ", ".join(f"{width:.3g}" for width in facts["tensor_widths"])
    few = reason == "channels" and facts["outlier_channel_gain_db"] >= 0.7 * facts["channel_gain_db"]
    name, message, remedy = LAYER_CAUSES[reason]
    place = facts["sum"] if reason == "cancellation" else site.name
    if reason == "shared":
        place = _joined_in(sim, site.name) or facts["widest_tensor"]
    if reason == "channels" and len(facts["tensor_widths"]) > 1:  # of those that share a range, which has them
        place = facts["widest_tensor"]
    if (reason == "bits" and _everywhere(sim, site)) or (reason == "symmetric" and _symmetric_everywhere(sim, site)):
        place, message = NETWORK, f"every {{part}} by the recipe: {message}"
    elif reason in ("bits", "symmetric") and site.part == "activation":
        place = _named_by_the_recipe(sim, site.name) or place
    return Cause("outlier_channel" if few else name, place, message.format(**words), remedy.format(**words), facts)


def name_calibration_fault(q: CalibrationQuality) -> tuple[str, str]:
    """Return the name and the description of what calibration data lacks most."""
    low, high = q.input_quantiles
    data_low, data_high = q.data_quantiles
    width = max(data_high - data_low, 1e-30)
    ratio = (high - low) / width if high > low or data_high > data_low else 1.0
    shift = max(abs(low - data_low), abs(high - data_high)) / width
    unlike = (
        f"1 % to 99 % of the inputs lie in [{low:.3g}, {high:.3g}], in the data in [{data_low:.3g}, {data_high:.3g}]"
    )
    strange = q.distinct >= FEW and q.input_shift > APART and q.strange > STRANGE  # cut, so that few are left
    part = q.part and q.strange <= STRANGE
    if 2 * q.distinct <= q.samples and not strange:
        return "no_variety", f"{q.samples} samples, of which {q.distinct} are different"
    if not 0.25 <= ratio <= 4 or shift > 2:
        return "unlike_data", unlike
    apart = not part and (not 0.5 <= ratio <= 2 or shift > SHIFTED)
    if apart and q.distinct >= MANY:
        return "unlike_data", unlike
    if q.reach >= FAR:
        return (
            "outlier_sample",
            f"inputs reach {q.reach:.3g} times as far as in the data, most at {q.furthest}, "
            "as marks of missing values or broken sensors do",
        )
    if q.extreme_ratio >= EXTREME:
        beyond = f"{q.extreme_ratio:.3g} times as far as the others, most at {q.extreme_tensor}"
        return "outlier_sample", f"sample {q.extreme_sample} reaches {beyond}"
    classes, there = q.classes or math.inf, q.data_classes or 0.0
    seen = f"the network sees {_classes(classes)} in"
    if A_FEW <= q.distinct < FEW and classes < ONE < there / 2:
        return (
            "one_class",
            f"{seen} its {q.distinct} samples, {_classes(there)} in the data",
        )
    if q.distinct < FEW:
        return "too_few", f"{q.distinct} samples; ranges from fewer than {FEW} are a matter of luck"
    if apart:
        return "unlike_data", unlike
    moved = f"features of the inputs differ by up to {q.input_shift:.2g} standard deviations from those of the data"
    if q.input_shift > APART and q.strange > STRANGE:
        return "unlike_data", f"{moved}, and {q.strange:.0%} of them are like none"
    if classes <= there / 2:
        return "one_class", f"{seen} it, {_classes(there)} in the data"
    if q.input_shift > APART and not part:
        return "unlike_data", moved
    return "unrepresentative", f"{q.samples} samples do not cover the ranges of the data"


def _by_chance(facts: dict[str, Any]) -> bool:
    """Return whether as many samples reach beyond those calibrated on where both are drawn from the same."""
    data, calibration = facts["samples"]
    return bool((data / max(data + calibration, 1)) ** facts["samples_beyond"] > CHANCE)


def _range_cause(sim: Simulation, site: Measured, sites: list[Measured], gain: float, *, enough: bool) -> Cause:
    facts, origin, point = site.evidence.facts, site.evidence.origin, sim.points[site.name]
    ends, best = facts["represents"], facts["best_represents"]
    where = f"it represents {_range(ends)}, best were {_range(best)}: {gain:.0f} dB"
    if origin == "stale":
        now = _range(facts["calibration_range"])
        text = f"its observer saw another network: calibration data now lies in {now}; {where}"
        return Cause("stale_range", site.name, text, "calibrate again, or freeze scales later in training", facts)
    source = _written_before(sim, site.name) if origin == "foreign" else None
    if source is not None:
        text = f"its range is fixed, and {site.name}, its values times a number, follows it: there {where}"
        clips = facts["clip_share_of_error"] > 0.5
        return Cause("clipped_range" if clips else "wide_range", source, text, "observe it instead", facts)
    written = origin in ("observer", "fixed")  # for this point alone
    twin = None if written else _twin(sim, site.name, sites)
    if twin is not None:
        text = f"it has scale and zero point of {twin}, whose values are others; {where}"
        return Cause("shared_range", site.name, text, "let it have an observer of its own, and calibrate", facts)
    said = {
        "fixed": "the recipe fixes its range",
        "set": "its range was set by hand",
        "foreign": "its scale is not what its observer saw",
        "observer": f"chosen by {point.scheme.observer}",
    }[origin]
    if origin == "observer" and point.scheme.observer == "moving_average":
        text = f"a moving average forgets earlier batches; {where}"
        return Cause("moving_average", _place(sim, site, sites), text, 'observer = "mse" or "histogram"', facts)
    if facts["zero_point_gain_db"] >= 0.7 * facts["range_gain_db"]:
        text = f"{said}; its zero point is {facts['zero_point']}, {facts['better_zero_point']} were better; {where}"
        return Cause("zero_point", site.name, text, "observe it instead", facts)
    remedy = 'observer = "mse"' if origin == "observer" else "observe it instead"
    if facts["clip_share_of_error"] > 0.5:
        text = f"{said}; it clips {facts['clipped']:.2%} of the values; {where}"
        beyond = facts["samples_beyond"]
        chance = origin == "observer" and enough and beyond > 0 and _by_chance(facts)
        if chance:
            text += (
                f"; {beyond} of {facts['samples'][0]} samples reach further than in calibration, as some do by chance"
            )
        return Cause("clipped_range", _place(sim, site, sites), text, remedy, facts, chance)
    name = "wide_range" if origin != "observer" else "heavy_tail"
    return Cause(name, _place(sim, site, sites), f"{said}; {where}", remedy, facts)


def _place(sim: Simulation, site: Measured, sites: list[Measured]) -> str:
    """Return the network where its default observer is to blame at half of all points, else the layer."""
    default = sim.recipe.activation
    scheme = sim.points[site.name].scheme
    named = _named_by_the_recipe(sim, site.name)
    if named or site.evidence.origin != "observer":
        return named or site.name
    if (scheme.observer, dict(scheme.observer_args)) != (default.observer, dict(default.observer_args)):
        return site.name
    activations = [s for s in sites if s.part == "activation" and s.evidence.origin == "observer"]
    alike = [s for s in activations if s.reason[0] == "range"]
    return NETWORK if len(alike) > 1 and 2 * len(alike) >= len(activations) else site.name


def _named_by_the_recipe(sim: Simulation, point: str) -> str | None:
    """Return the operation among those that share a range whose range the recipe names; None for none or several."""
    nodes = [sim.graph.nodes[tensor] for tensor in sim.placed.points[point].tensors]
    rules = [rule for rule in sim.recipe.rules if rule.activation]
    named = [node.name for node in nodes if any(rule.matches(node) for rule in rules)]
    return named[0] if len(named) == 1 else None


def _everywhere(sim: Simulation, site: Measured) -> bool:
    """Return whether a site has as few bits as the recipe gives to all."""
    default = sim.recipe.weight if site.part == "weight" else sim.recipe.activation
    point = sim.weight_points[site.name] if site.part == "weight" else sim.points[site.name]
    return point.scheme.bits == default.bits < 8


def _symmetric_everywhere(sim: Simulation, site: Measured) -> bool:
    """Return whether the recipe gives symmetric ranges to all activations."""
    return site.part == "activation" and sim.recipe.activation.symmetric and sim.points[site.name].scheme.symmetric


def _joined_in(sim: Simulation, point: str) -> str | None:
    """Return the operation that joins tensors of one range; None for none or several."""
    joins = [n.name for n in sim.graph if n.op == "cat" and sim.placed.point_of.get(n.name) == point]
    return joins[0] if len(joins) == 1 else None


def _written_before(sim: Simulation, name: str) -> str | None:
    """Return the point with a range written by hand whose values times a number are those of a point; else None."""
    node = sim.graph.nodes[sim.placed.points[name].tensors[0]]
    while len(node.inputs) == 1 and (node.op in ("table", "affine_scalar", "dequantize", "quantize") or node.moves):
        node = sim.graph.nodes[node.inputs[0]]
        before = sim.placed.point_of.get(node.name)
        if before is not None and before != name:
            return before if sim.points[before].fixed else None
    return None


def _twin(sim: Simulation, name: str, sites: list[Measured]) -> str | None:
    """Return another point with the same scale and zero point, which suit it."""
    qparams = {other: (float(q.scale), int(q.zero_point)) for other, q in sim.points.items()}
    unsuited = {s.name for s in sites if s.part == "activation" and s.reason[0] == "range"} | {name}
    return next((o for o, found in qparams.items() if o not in unsuited and found == qparams[name]), None)


def _imbalanced_input(sim: Simulation, site: Measured, sites: list[Measured]) -> Measured | None:
    """Return the activation a layer reads, where its channels or tensors are as far apart as the layer's weights.

    What attention makes of values has channels as wide as theirs.
    """
    nodes = sim.graph.nodes
    if site.part == "weight":
        source = nodes[site.name].inputs[0]
    else:
        made = [nodes[tensor] for tensor in sim.placed.points[site.name].tensors]
        source = next((node.inputs[1] for node in made if node.op == "matmul"), "")
        while source and source not in sim.placed.point_of and nodes[source].inputs:
            source = nodes[source].inputs[0]
    point = sim.placed.point_of.get(source)
    found = (other for other in sites if other.part == "activation" and other.name == point)
    return next((other for other in found if other.reason[0] in ("channels", "shared")), None)


def _range(ends: list[float]) -> str:
    return f"[{ends[0]:.3g}, {ends[1]:.3g}]"


def _classes(count: float) -> str:
    """Return an effective number of classes in words."""
    return "one class" if f"{count:.1f}" == "1.0" else f"{count:.1f} classes"


def _bits(limits: list[int]) -> int:
    return int(limits[1] - limits[0] + 1).bit_length()
