"""The name of a fault: from the reason that was measured, and what is known about where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intact8.simulation.simulation import Simulation

from .report import CALIBRATION, NETWORK, CalibrationQuality

if TYPE_CHECKING:
    from .findings import Measured

FEW = 32
"""Fewer distinct samples than this are few."""

EXTREME = 2.0
"""A sample that reaches so many times as far as the others is extreme; among ordinary images none exceeds 1.0."""


@dataclass(frozen=True)
class Cause:
    """A fault by name, where it is, and what to say about it."""

    name: str
    place: str
    message: str
    remedy: str
    evidence: dict[str, Any] = field(default_factory=dict)


def name_cause(sim: Simulation, site: Measured, sites: list[Measured], quality: CalibrationQuality) -> Cause:
    """The cause behind a site's reason."""
    reason, gain = site.reason
    if reason == "data":
        return _of_data(site, gain, quality)
    if reason == "range":
        return _of_range(sim, site, sites, gain)
    facts = site.evidence.facts
    if reason == "columns":
        producer = _imbalanced_input(sim, site, sites)
        if producer is not None:
            return name_cause(sim, producer, sites, quality)
    if reason == "cancellation":
        return Cause(
            "cancellation", facts["sum"],
            f"its terms are {facts['term_rms'] / max(facts['sum_rms'], 1e-30):.3g} times as large as the sum "
            f"(rms {facts['term_rms']:.3g} and {facts['sum_rms']:.3g}), and so is their rounding",
            "keep the terms float, or train with a penalty on them; residual=\"fused\" saves one rounding", facts,
        )  # fmt: skip
    return _of_layer(site, reason, gain)


def _of_layer(site: Measured, reason: str, gain: float) -> Cause:
    facts, name, what = site.evidence.facts, site.name, site.part
    if reason == "bits":
        bits = facts.get("bits") or _bits(facts["range"])
        text = f"the {what} has {bits:.0f} bits; 8 would make {gain:.0f} dB less noise"
        return Cause("few_bits", name, text, f"{what} bits = 8", facts)
    if reason == "symmetric":
        text = f"a symmetric range wastes integers on the side where no values are: {gain:.0f} dB"
        return Cause("symmetric_range", name, text, "symmetric = false, where the target allows it", facts)
    if reason == "shared":
        text = (
            f"tensors of widths {', '.join(f'{w:.3g}' for w in facts['tensor_widths'])} share one scale; with one each "
            f"there would be {gain:.0f} dB less noise behind the next weights"
        )
        return Cause(
            "shared_range", name, text, "bring them to one range before they are joined, or leave the join float", facts
        )
    if reason == "channels":
        few = facts["outlier_channel_gain_db"] >= 0.7 * facts["channel_gain_db"]
        text = (
            f"channel {facts['widest_channel']} is {facts['widest_channel_over_median']:.3g} times as wide as the "
            f"median one; one scale per channel would make {gain:.0f} dB less noise, "
            f"{facts['outlier_channel_gain_db']:.0f} dB of it by the widest {facts['outlier_channels']} of "
            f"{facts['channels']}"
        )
        return Cause(
            "outlier_channel" if few else "channel_imbalance",
            name,
            text,
            "equalize, smooth (rescale the channels into the next weights), or leave float what reads them",
            facts,
        )
    if reason == "granularity":
        text = (
            f"one scale for all channels, though their weights differ by a factor of "
            f"{facts['channel_imbalance']:.3g}; one per channel would make {gain:.0f} dB less noise"
        )
        return Cause("per_tensor_weight", name, text, 'granularity = "per_channel"', facts)
    if reason == "outlier_weight":
        text = f"the largest weights are {facts['largest_over_median']:.3g} times the median; {gain:.0f} dB are theirs"
        return Cause(
            "outlier_weight", name, text, 'weight observer = "mse", clip the weights, or leave the layer float', facts
        )
    if reason == "columns":
        text = f"weights of different inputs differ so much that small ones round to nothing: {gain:.0f} dB"
        return Cause("input_imbalance", name, text, "rescale the inputs' channels, or leave the layer float", facts)
    if reason == "stale":
        text = f"the weight scales are not those of the present weights, which would make {gain:.0f} dB less noise"
        return Cause("stale_range", name, text, "calibrate again, or freeze scales later in training", facts)
    if reason == "tie_free":
        text = f"biases up to {facts['largest_bias']:.3g} steps leave the weights coarse scales: {gain:.0f} dB"
        return Cause("large_bias", name, text, "look for a channel with a huge bias; leave the layer float", facts)
    share = facts["mean_share_of_error"]
    text = f"rounding the weights shifts the mean of the output: {share:.0%} of their noise"
    return Cause("bias_shift", name, text, "bias_correction = true", facts)


def _of_data(site: Measured, gain: float, q: CalibrationQuality) -> Cause:
    """What is wrong with the calibration data, by its own measurements."""
    name, text = kind_of_data(q)
    facts = site.evidence.facts
    seen, shown = facts["data_range"], facts["calibration_range"]
    message = f"{text}; {site.name} lies in {_range(seen)}, in calibration in {_range(shown)}: {gain:.0f} dB"
    return Cause(
        name, CALIBRATION, message, "calibrate on a few hundred varied samples, loaded as they are in use", facts
    )


def kind_of_data(q: CalibrationQuality) -> tuple[str, str]:
    """The name and the description of what calibration data lacks most."""
    low, high = q.input_quantiles
    data_low, data_high = q.data_quantiles
    width = max(data_high - data_low, 1e-30)
    ratio = (high - low) / width
    shift = max(abs(low - data_low), abs(high - data_high)) / width
    unlike = (
        f"1 % to 99 % of the inputs lie in [{low:.3g}, {high:.3g}], in the data in [{data_low:.3g}, {data_high:.3g}]"
    )
    if 2 * q.distinct <= q.samples:
        return "no_variety", f"{q.samples} samples, of which {q.distinct} are different"
    if not 0.25 <= ratio <= 4 or shift > 2:
        return "unlike_data", unlike
    if q.extreme_ratio >= EXTREME:
        beyond = f"{q.extreme_ratio:.3g} times as far as the others, most at {q.extreme_tensor}"
        return "outlier_sample", f"sample {q.extreme_sample} reaches {beyond}"
    if q.distinct < FEW:
        return "too_few", f"{q.distinct} samples; ranges from fewer than {FEW} are a matter of luck"
    if not 0.5 <= ratio <= 2 or shift > 0.5:
        return "unlike_data", unlike
    if q.classes is not None and q.data_classes is not None and q.classes <= q.data_classes / 2:
        return "one_class", f"the network sees {q.classes:.1f} classes in it, {q.data_classes:.1f} in the data"
    return "unrepresentative", f"{q.samples} samples do not cover the ranges of the data"


def _of_range(sim: Simulation, site: Measured, sites: list[Measured], gain: float) -> Cause:
    facts, origin, point = site.evidence.facts, site.evidence.origin, sim.points[site.name]
    ends, best = facts["represents"], facts["best_represents"]
    where = f"it represents {_range(ends)}, best were {_range(best)}: {gain:.0f} dB"
    if origin == "stale":
        now = _range(facts["calibration_range"])
        text = f"its observer saw another network: calibration data now lies in {now}; {where}"
        return Cause("stale_range", site.name, text, "calibrate again, or freeze scales later in training", facts)
    twin = _twin(sim, site.name)
    if origin != "observer" and twin is not None:
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
    if facts["clip_share_of_error"] > 0.5:
        text = f"{said}; it clips {facts['clipped']:.2%} of the values; {where}"
        return Cause("clipped_range", _place(sim, site, sites), text, 'observer = "mse"', facts)
    name = "wide_range" if origin != "observer" else "heavy_tail"
    remedy = "observe it instead" if origin != "observer" else 'observer = "mse"'
    return Cause(name, _place(sim, site, sites), f"{said}; {where}", remedy, facts)


def _place(sim: Simulation, site: Measured, sites: list[Measured]) -> str:
    """The network where its default observer is to blame at half of all points, else the layer."""
    default = sim.recipe.activation
    scheme = sim.points[site.name].scheme
    if site.evidence.origin != "observer":
        return site.name
    if (scheme.observer, dict(scheme.observer_args)) != (default.observer, dict(default.observer_args)):
        return site.name
    activations = [s for s in sites if s.part == "activation" and s.evidence.origin == "observer"]
    alike = [s for s in activations if s.reason[0] == "range"]
    return NETWORK if len(alike) > 1 and 2 * len(alike) >= len(activations) else site.name


def _twin(sim: Simulation, name: str) -> str | None:
    """Another point with the same scale and zero point."""
    point = sim.points[name]
    for other, q in sim.points.items():
        if other != name and float(q.scale) == float(point.scale) and int(q.zero_point) == int(point.zero_point):
            return other
    return None


def _imbalanced_input(sim: Simulation, site: Measured, sites: list[Measured]) -> Measured | None:
    """The activation a layer reads, where its channels or tensors are as far apart as the layer's weights."""
    point = sim.placed.point_of.get(sim.graph.nodes[site.name].inputs[0])
    for other in sites:
        if other.part == "activation" and other.name == point and other.reason[0] in ("channels", "shared"):
            return other
    return None


def _range(ends: list[float]) -> str:
    return f"[{ends[0]:.3g}, {ends[1]:.3g}]"


def _bits(limits: list[int]) -> int:
    return int(limits[1] - limits[0] + 1).bit_length()
