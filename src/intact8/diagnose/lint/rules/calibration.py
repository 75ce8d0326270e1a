"""IQ3xx: calibration: whether ranges were observed, from how much data, of which kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import MODEL, PROGRAM, SIMULATION, TORCH_AO, Hit, first_of, joint_hit, rule

FEW_SAMPLES = 32
OUTSIDE = 0.01
REPEATS = 0.1


@rule("IQ301", "error", SIMULATION, TORCH_AO)
def uncalibrated(subject: Any) -> Iterator[Hit]:
    """Quantization points have no range, because their observers saw nothing.

    Nothing was calibrated, or a part of the network never ran on the calibration data (a branch, an auxiliary head).
    intact8 refuses to convert such a simulation; torch.ao converts it, with a scale of 1 or of the smallest float, and
    the layer gives zeros.

    Remedy: show it calibration data: intact8.calibrate(sim, data); in torch.ao run data through the prepared model
    """
    points = [p for p in subject.points if not p.weight]
    names = [p.name for p in points if not p.known and p.seen is not True]
    message = "no quantization point has a range yet"
    if len(names) < len(points):
        message = f"{len(names)} of {len(points)} have no range yet: {first_of(names)}"
    yield from joint_hit(names, message)


@rule("IQ302", "error", TORCH_AO)
def converted_without_calibration(subject: Any) -> Iterator[Hit]:
    """A converted torch.ao model has the scale 1 and the zero point 0 of an observer that saw nothing.

    ``convert`` does not check that anything was calibrated. A single such place may be a part that never ran.

    Remedy: prepare again, run calibration data through the prepared model, then convert
    """
    points = [p for p in subject.points if not p.weight] if subject.stage == "converted" else []
    names = [p.name for p in points if p.scale.size and (p.scale == 1.0).all() and (p.zero_point == 0).all()]
    yield from joint_hit(names, f"{len(names)} of {len(points)} scales are 1 with zero point 0", place="module")


@rule("IQ303", "warning", SIMULATION, PROGRAM)
def few_samples(subject: Any) -> Iterator[Hit]:
    """Calibration saw fewer than 32 samples, so ranges are a matter of luck.

    What is rare in the data is missing in the range and gets clipped. Networks whose scales are all fixed need no data.

    Remedy: calibrate with at least a hundred samples like those the network will meet
    """
    seen = subject.calibration.get("samples")
    needs = [p for p in subject.points if not p.weight and not p.fixed]
    if seen is not None and seen < FEW_SAMPLES and needs:
        yield Hit(f"calibrated on {seen} sample{'' if seen == 1 else 's'}", data={"samples": seen})


@rule("IQ304", "warning", SIMULATION, PROGRAM)
def range_still_moving(subject: Any) -> Iterator[Hit]:
    """Ranges still grew in the last quarter of the calibration data, so more data would have grown them further.

    Values beyond the ranges are clipped. A range that goes on growing for ever belongs to a tensor with rare, large
    values: a percentile or histogram observer says deliberately where to cut, and values beyond its cut widen nothing.
    The rule reports what calibration recorded.

    Remedy: calibrate with more data: intact8.calibrate(sim, more) continues where the last call ended
    """
    for text in subject.calibration.get("warnings", ()):
        if "still widened" in text:
            yield Hit(text.partition(";")[0])


@rule("IQ305", "warning", SIMULATION)
def unrepresentative_calibration(subject: Any) -> Iterator[Hit]:
    """More than 1 % of the values that the given data produce lie outside a calibrated range.

    They are clipped to its ends. Either calibration saw other data than these, or the range was cut or frozen too
    early. Points behind a ReLU clip nothing but what the ReLU would.

    Needs data: best some that calibration did not see.

    Remedy: calibrate with data like these, or choose a wider range for these points
    """
    for name, (outside, values) in subject.data_statistics.outside.items():
        share = outside / max(values, 1)
        if outside - 3 * math.sqrt(outside) > OUTSIDE * values:  # not by chance in a few hundred values
            message = f"{share:.1%} of the values of the given data are outside the range and clipped"
            yield Hit(message, node=name, data={"outside": share, "values": values})


@rule("IQ306", "warning", MODEL, SIMULATION)
def one_sided_data(subject: Any) -> Iterator[Hit]:
    """The data hit far fewer classes than data drawn at random would ("only pictures of cats").

    The float network's own predictions are counted, so no labels are needed. The rule reports data that hit fewer than
    half of the classes that as many samples, drawn evenly from all classes, would be expected to hit. It says nothing
    about networks whose output is not one matrix of scores, and about fewer than 32 samples.

    Needs data: the calibration data.

    Remedy: draw calibration data at random from all that the network will meet
    """
    seen = subject.data_statistics
    if not seen.classes:
        return
    expected = seen.classes * (1 - (1 - 1 / seen.classes) ** seen.samples)
    if seen.samples >= FEW_SAMPLES and len(seen.predicted) < expected / 2:
        hit = f"{seen.samples} samples fall into {len(seen.predicted)} of {seen.classes} classes"
        data = {"samples": seen.samples, "hit": len(seen.predicted), "classes": seen.classes}
        yield Hit(f"{hit}; about {expected:.0f} would be hit by chance", data=data)


@rule("IQ307", "warning", MODEL, SIMULATION)
def repeated_samples(subject: Any) -> Iterator[Hit]:
    """More than a tenth of the samples are bit for bit equal to an earlier one.

    Repetitions add to the count of samples and nothing to the ranges.

    Needs data: the calibration data.

    Remedy: take every sample once: look at the sampler, and at caching in the data set
    """
    seen = subject.data_statistics
    if seen.repeats > REPEATS * seen.samples:
        message = f"{seen.repeats} of {seen.samples} samples are repetitions"
        yield Hit(message, data={"samples": seen.samples, "repeats": seen.repeats})


@rule("IQ308", "warning", SIMULATION, TORCH_AO)
def moving_average_for_ptq(subject: Any) -> Iterator[Hit]:
    """A moving average decides ranges in post-training quantization.

    It weighs the last batches and forgets the rest, and where batches are few, the first one weighs more than all that
    follow: with the customary constant of 0.01, 100 batches leave the first with 37 %. It belongs into training, where
    ranges drift and the end counts.

    Remedy: calibrate with a histogram, min-max, percentile or MSE observer; keep moving averages for training
    """
    points = [p for p in subject.points if p.observer == "moving_average" and not p.trained and not p.fixed]
    message = f"{len(points)} point{'s' * (len(points) > 1)} observed by a moving average without training"
    yield from joint_hit([p.name for p in points], message)


@rule("IQ309", "error", TORCH_AO)
def observer_saw_nothing(subject: Any) -> Iterator[Hit]:
    """A fake quantizer rounds with a scale that no data ever set: observers were switched off before the first batch.

    In torch.ao that is scale 1 and zero point 0, so that everything between -0.5 and 0.5 becomes 0. Training goes on
    without a message and does not converge.

    Remedy: switch observers on, run a few batches, and freeze after that
    """
    for p in subject.points:
        rounds = p.quantizing and p.scale.size > 0 and not math.isnan(p.scale[0])
        if p.trained and p.seen is False and not p.observing and not p.fixed and rounds:
            yield Hit(f"rounds with scale {p.scale[0]:.6g}, which no data set", node=p.name)


@rule("IQ310", "note", SIMULATION)
def dead_or_constant(subject: Any) -> Iterator[Hit]:
    """A tensor never changed in calibration, or a quarter of a layer's channels did not.

    Usual causes are dead ReLUs, a broken preprocessing step, or calibration data that never exercise this part.

    Remedy: check the data and the layer; if both are right, prune the channels
    """
    held = subject.sim.graph.held()
    for p in subject.points:
        if p.seen and p.minimum == p.maximum and p.name not in held:
            yield Hit(f"all values seen are {p.minimum:.6g}", node=p.name)
    for layer, (dead, channels) in subject.sim.constant_channels.items():
        if dead * 4 >= channels and layer not in held:
            message = f"{dead} of {channels} channels never changed in the first samples"
            yield Hit(message, node=layer, data={"constant": dead, "channels": channels})


@rule("IQ311", "warning", MODEL, SIMULATION)
def fully_masked_samples(subject: Any) -> Iterator[Hit]:
    """The attention mask of a sample is 0 everywhere, so it is nothing but padding.

    Its attention is a mean over padding, or NaN, and its ranges are those of no sentence. Usual causes are an empty
    text, a mask that was inverted (1 for padding), or a batch filled up with empty samples.

    Needs data: the calibration data, with the mask an input of its own whose name contains "mask".

    Remedy: leave samples without a single token out of the data; look at how the attention mask is made
    """
    seen = subject.data_statistics
    if seen.masked:
        verb = "has" if seen.masked == 1 else "have"
        message = f"{seen.masked} of {seen.samples} samples {verb} an attention mask without a one"
        yield Hit(message, data={"masked": seen.masked})
