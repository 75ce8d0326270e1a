"""IQ7xx: faults of torch.ao alone: the scales of fake quantizers, and what overwrites them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import TORCH_AO, Hit, first_of, joint_hit, rule
from intact8.diagnose.lint.views import numbers

RELATIVE = 1e-5
OFF_GRID = 1e-3


@rule("IQ702", "error", TORCH_AO)
def two_formulas(subject: Any) -> Iterator[Hit]:
    """The fake-quantized model rounds with one scale, and conversion will use another.

    Forward uses the fake quantizer's ``scale``; ``convert`` asks its observer again. The fused kernel computes max/127
    (and turns symmetric into affine where the smallest value is 0), the observer max/127.5; and a scale that was
    written into the fake quantizer is replaced by the observer's in the converted model. That is why integers differ
    between the two. The rule asks the objects of the model for both numbers, so it holds for every version of torch.
    It reports one finding per model, about the place where they differ most.

    Remedy: use one scale for both: a FakeQuantize without the fused kernel, a weight range of ±127, or FixedQParams
    """
    found: list[tuple[float, str, str, dict[str, float]]] = []
    for name, m, observer in subject.calibrated_fake_quantizers:
        scale, zero_point = map(numbers, observer.calculate_qparams())
        own, own_zero = numbers(m.scale), numbers(m.zero_point)
        if own.shape != scale.shape:
            continue
        relative = np.abs(own / scale - 1)
        worst = int(np.argmax(relative))
        if relative[worst] > RELATIVE or (own_zero != zero_point).any():
            conversion = f"conversion will with {scale[worst]:.8g} and {int(zero_point[worst])}"
            forward = f"{name} rounds with scale {own[worst]:.8g} and zero point {int(own_zero[worst])}"
            data = {"forward": float(own[worst]), "conversion": float(scale[worst])}
            found.append((float(relative[worst]), name, f"{forward}, {conversion}", data))
    if found:
        _, name, text, data = max(found, key=lambda entry: entry[0])
        total = len(subject.fake_quantizers)
        message = f"{len(found)} of {total} fake quantizers have another scale than conversion will use; {text}"
        yield Hit(message, module=name, data={**data, "modules": [entry[1] for entry in found]})


@rule("IQ703", "warning", TORCH_AO)
def largest_weight_off_grid(subject: Any) -> Iterator[Hit]:
    """The largest weight of a channel is beyond the largest integer: 127 stands for less than it.

    With -128…127 and a symmetric scheme torch.ao takes max/127.5 as the scale. A largest weight that is positive is
    then cut to 127·max/127.5 = 0.996 of itself. An identity of weight 1.0 becomes 0.996 and loses one of 256 levels.
    The rule reports one finding per model, because torch.ao's default settings do this to every layer.

    Remedy: use quant_min=-127 for weights, so that the scale is max/127 and the largest weight lies on the grid
    """
    from intact8.diagnose.lint.torch_ao_points import extremes

    hits: list[tuple[float, str, float, float]] = []
    for path, m in subject.layers:
        observer = subject.weight_observer(path, m) if hasattr(m, "weight") and not callable(m.weight) else None
        if observer is None or not extremes(observer)[2]:
            continue
        scale = numbers(observer.calculate_qparams()[0])
        largest = numbers(m.weight.flatten(1).amax(1))
        if scale.size == 1:
            largest = largest.max(keepdims=True)
        if scale.shape != largest.shape:
            continue
        top = 127 * scale
        error = np.where(largest > 0, (largest - top) / np.maximum(largest, 1e-30), 0.0)
        worst = int(np.argmax(error))
        if error[worst] > OFF_GRID:
            hits.append((float(error[worst]), path, float(largest[worst]), float(top[worst])))
    if hits:
        loss, path, wanted, got = max(hits, key=lambda hit: hit[0])
        change = f"in {path} {wanted:.6g} becomes {got:.6g} (127 steps), {loss:.2%} less"
        message = f"in {len(hits)} layers the largest weight is beyond the grid; {change}"
        data = {"layers": [hit[1] for hit in hits], "error": loss}
        yield Hit(message, module=path, tensor=f"{path}.weight", data=data)


@rule("IQ704", "warning", TORCH_AO)
def scale_overwritten(subject: Any) -> Iterator[Hit]:
    """A fake quantizer with its observer off recomputes its scale on every forward.

    ``FusedMovingAvgObsFakeQuantize`` writes scale and zero point from its observer's extremes whenever it runs,
    observer on or off; a scale set by hand or loaded is lost at the next batch. The rule tries it on a copy: it
    switches the observer off, writes another scale and runs one tensor of zeros. It reports one finding per model.

    Remedy: use FakeQuantize (or FixedQParamsFakeQuantize for a scale of your own) instead of the fused module
    """
    import torch

    found = []
    for name, m, _ in subject.calibrated_fake_quantizers:
        trial = copy.deepcopy(m)
        trial.disable_observer()
        trial.enable_fake_quant()
        with torch.no_grad():
            wanted = trial.scale.mul_(2.0).clone()
            shape = [1] * 4
            if trial.scale.numel() > 1:
                shape[int(trial.ch_axis)] = trial.scale.numel()
            trial(torch.zeros(shape, device=wanted.device))
        if trial.scale.shape == wanted.shape and not bool((trial.scale == wanted).all()):
            found.append(name)
    message = f"{len(found)} fake quantizers overwrite their scale with the observer off: {first_of(found, most=4)}"
    yield from joint_hit(found, message, place="module", key="modules")


@rule("IQ710", "error", TORCH_AO)
def toggle_without_effect(subject: Any) -> Iterator[Hit]:
    """A learnable fake quantizer was toggled by the switch of the other class.

    ``_LearnableFakeQuantize`` observes while ``static_enabled`` is set; it has a buffer ``observer_enabled``, the
    switch of ``FakeQuantize``, and does not read it, so that setting it changes nothing. The rule reports where the two
    disagree, and where a fake quantizer observes and learns at the same time.

    Remedy: use enable_static_estimate and enable_param_learning on learnable fake quantizers, not observer_enabled
    """
    for name, m in subject.fake_quantizers:
        if not hasattr(m, "static_enabled"):
            continue
        if m.static_enabled[0] and not m.observer_enabled[0]:
            yield Hit("observer_enabled is 0 and it observes all the same: static_enabled is 1", module=name)
        elif m.static_enabled[0] and m.learning_enabled[0]:
            yield Hit("it observes and learns at once: what is learned is overwritten by every batch", module=name)
