"""IQ3xx: calibration: whether ranges were observed, from how much data, of which kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import MODEL, PROGRAM, SIMULATION, TORCH_AO, Hit, rule
from intact8.diagnose.lint.views import PointView

FEW_SAMPLES = 32
OUTSIDE = 0.01
REPEATS = 0.1


@rule(
    "IQ301", "uncalibrated", "error", SIMULATION, TORCH_AO,
    remedy="show it calibration data: intact8.calibrate(sim, data); in torch.ao run data through the prepared model",
    covers=("DK10", "EX19b", "EX20"),
)  # fmt: skip
def uncalibrated(subject: Any) -> Iterator[Hit]:
    """Quantization points have no range, because their observers saw nothing.

    Nothing was calibrated, or a part of the network never ran on the calibration data (a branch, an auxiliary head).
    intact8 refuses to convert such a simulation; torch.ao converts it, with a scale of 1 or of the smallest float, and
    the layer gives zeros.
    """
    points = [p for p in subject.points if not p.weight]
    missing = [p for p in points if not p.known and p.seen is not True]
    if missing:
        names = [p.name for p in missing]
        what = (
            "no quantization point has" if len(missing) == len(points) else f"{len(missing)} of {len(points)} have no"
        )
        rest = " a range yet" if what.startswith("no ") else " range yet"
        shown = "" if what.startswith("no ") else ": " + ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        yield Hit(f"{what}{rest}{shown}", node=names[0], data={"points": names})


@rule(
    "IQ302", "converted-without-calibration", "error", TORCH_AO,
    remedy="prepare again, run calibration data through the prepared model, then convert",
    covers=("DK10", "EX20"),
)  # fmt: skip
def converted_without_calibration(subject: Any) -> Iterator[Hit]:
    """A converted torch.ao model has the scale 1 and the zero point 0 that observers give who saw nothing.

    ``convert`` does not check that anything was calibrated. A single such place may be a part that never ran.
    """
    points = [p for p in subject.points if not p.weight] if subject.stage == "converted" else []
    untouched = [p for p in points if p.scale.size and (p.scale == 1.0).all() and (p.zero_point == 0).all()]
    if untouched:
        message = f"{len(untouched)} of {len(points)} scales are 1 with zero point 0"
        yield Hit(message, module=untouched[0].name, data={"points": [p.name for p in untouched]})


@rule(
    "IQ303", "few-samples", "warning", SIMULATION, PROGRAM,
    remedy="calibrate with at least a hundred samples like those the network will meet",
    covers=("DK7", "EX9", "EX19a"),
)  # fmt: skip
def few_samples(subject: Any) -> Iterator[Hit]:
    """Calibration saw fewer than 32 samples, so ranges are a matter of luck.

    What is rare in the data is missing in the range and gets clipped. Points whose scales are all fixed need no data.
    """
    seen = subject.calibration.get("samples")
    needs = [p for p in subject.points if not p.weight and not p.fixed]
    if seen is not None and seen < FEW_SAMPLES and needs:
        yield Hit(f"calibrated on {seen} sample{'' if seen == 1 else 's'}", data={"samples": seen})


@rule(
    "IQ304", "range-still-moving", "warning", SIMULATION, PROGRAM,
    remedy="calibrate with more data: intact8.calibrate(sim, more) continues where the last call ended",
    covers=("DK7", "EX9"),
)  # fmt: skip
def range_still_moving(subject: Any) -> Iterator[Hit]:
    """Ranges still grew in the last quarter of the calibration data, so more data would have grown them further.

    What the network meets beyond them is clipped. A range that goes on growing for ever belongs to a tensor with rare,
    large values: a percentile or histogram observer says deliberately where to cut, and values beyond its cut widen
    nothing. Reported as calibration recorded it.
    """
    for text in subject.calibration.get("warnings", ()):
        if "still widened" in text:
            yield Hit(text.partition(";")[0])


@rule(
    "IQ305", "unrepresentative-calibration", "warning", SIMULATION,
    remedy="calibrate with data like these, or choose a wider range for these points",
    covers=("DK7", "EX9", "EX19b", "EX19c", "EX20"),
)  # fmt: skip
def unrepresentative_calibration(subject: Any) -> Iterator[Hit]:
    """More than 1 % of the values that the given data produce lie outside a calibrated range.

    They are clipped to its end. Either calibration saw other data than these, or the range was cut or frozen too early.
    Points with a ReLU clip nothing that the ReLU would not.

    Needs data: best some that calibration did not see.
    """
    for name, (outside, values) in subject.seen.outside.items():
        share = outside / max(values, 1)
        if outside - 3 * math.sqrt(outside) > OUTSIDE * values:  # not by chance in a few hundred values
            yield Hit(
                f"{share:.1%} of the values of the given data are outside the range and clipped", node=name,
                data={"outside": share, "values": values},
            )  # fmt: skip


@rule(
    "IQ306", "one-sided-data", "warning", MODEL, SIMULATION,
    remedy="draw calibration data at random from all that the network will meet",
    covers=("DK7", "EX9"),
)  # fmt: skip
def one_sided_data(subject: Any) -> Iterator[Hit]:
    """The data hit far fewer classes than data drawn at random would ("only pictures of cats").

    The float network's own predictions are counted, so no labels are needed. Reported is when fewer than half of the
    classes occur that so many samples drawn evenly from all classes would be expected to hit. For networks whose
    output is no classifier's (not one matrix of scores), and for fewer than 32 samples, nothing is said.

    Needs data: the calibration data.
    """
    seen = subject.seen
    if not seen.classes:
        return
    expected = seen.classes * (1 - (1 - 1 / seen.classes) ** seen.samples)
    if seen.samples >= FEW_SAMPLES and len(seen.predicted) < expected / 2:
        message = (
            f"{seen.samples} samples fall into {len(seen.predicted)} of {seen.classes} classes; "
            f"about {expected:.0f} would be hit by chance"
        )
        yield Hit(message, data={"samples": seen.samples, "hit": len(seen.predicted), "classes": seen.classes})


@rule(
    "IQ307", "repeated-samples", "warning", MODEL, SIMULATION,
    remedy="take every sample once: look at the sampler, and at caching in the data set",
    covers=("DK7", "EX9"),
)  # fmt: skip
def repeated_samples(subject: Any) -> Iterator[Hit]:
    """More than a tenth of the samples are bit for bit equal to an earlier one.

    They add to the count of samples and nothing to the ranges.

    Needs data: the calibration data.
    """
    seen = subject.seen
    if seen.repeats > REPEATS * seen.samples:
        message = f"{seen.repeats} of {seen.samples} samples are repetitions"
        yield Hit(message, data={"samples": seen.samples, "repeats": seen.repeats})


@rule(
    "IQ308", "moving-average-for-ptq", "warning", SIMULATION, TORCH_AO,
    remedy="calibrate with a histogram, min-max, percentile or MSE observer; keep moving averages for training",
    covers=("EX19a", "EX26"),
)  # fmt: skip
def moving_average_for_ptq(subject: Any) -> Iterator[Hit]:
    """A moving average decides ranges in post-training quantization.

    It weighs the last batches and forgets the rest, and the first batch weighs more than all that follow when there are
    few of them: with the customary constant of 0.01, 100 batches leave the first with 37 %. It belongs into training,
    where ranges drift and the end counts.
    """
    found = [p for p in subject.points if p.observer == "moving_average" and not p.trained and not p.fixed]
    if found:
        message = f"{len(found)} point{'s' if len(found) > 1 else ''} observed by a moving average without training"
        yield Hit(message, node=found[0].name, data={"points": [p.name for p in found]})


@rule(
    "IQ309", "observer-saw-nothing", "error", TORCH_AO,
    remedy="switch observers on, run a few batches, and freeze after that",
    covers=("EX19c", "OS23"),
)  # fmt: skip
def observer_saw_nothing(subject: Any) -> Iterator[Hit]:
    """A fake quantizer rounds with a scale that no data ever set: observers were switched off before the first batch.

    In torch.ao that is scale 1 and zero point 0, so that everything between -0.5 and 0.5 becomes 0. Training goes on
    without a message and does not converge.
    """
    for p in subject.points:
        if p.trained and p.seen is False and not p.observing and p.quantizing and not p.fixed and _rounds(p):
            yield Hit(f"rounds with scale {p.scale[0]:.6g}, which no data set", node=p.name)


def _rounds(p: PointView) -> bool:
    return p.scale.size > 0 and bool(p.scale[0] == p.scale[0])


@rule(
    "IQ310", "dead-or-constant", "note", SIMULATION,
    remedy="check the data and the layer; if both are right, prune the channels",
    covers=("EX25", "EX19b"),
)  # fmt: skip
def dead_or_constant(subject: Any) -> Iterator[Hit]:
    """A tensor never changed in calibration, or a quarter of a layer's channels did not.

    Dead ReLUs, a broken preprocessing step, or calibration data that never exercise this part.
    """
    for p in subject.points:
        if p.seen and p.minimum == p.maximum:
            yield Hit(f"all values seen are {p.minimum:.6g}", node=p.name)
    for layer, (dead, channels) in subject.sim.constant_channels.items():
        if dead * 4 >= channels:
            message = f"{dead} of {channels} channels never changed in the first samples"
            yield Hit(message, node=layer, data={"constant": dead, "channels": channels})


@rule(
    "IQ311", "fully-masked-samples", "warning", MODEL, SIMULATION,
    remedy="leave samples without a single token out of the data; look at how the attention mask is made",
    covers=("DK7", "EX9"),
)  # fmt: skip
def fully_masked_samples(subject: Any) -> Iterator[Hit]:
    """The attention mask of a sample is 0 everywhere, so it is nothing but padding.

    Its attention is a mean over padding, or NaN, and its ranges are those of no sentence. Usual causes are an empty
    text, a mask that was inverted (1 for padding), or a batch filled up with empty samples.

    Needs data: the calibration data, with the mask an input of its own whose name contains "mask".
    """
    seen = subject.seen
    if seen.masked:
        verb = "has" if seen.masked == 1 else "have"
        message = f"{seen.masked} of {seen.samples} samples {verb} an attention mask without a one"
        yield Hit(message, data={"masked": seen.masked})
