"""IQ7xx: the scales of torch.ao's fake quantizers, and who overwrites them. Only found there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import TORCH_AO, Hit, rule

RELATIVE = 1e-5
OFF_GRID = 1e-3


@rule(
    "IQ702", "two-formulas", "error", TORCH_AO,
    remedy="use one scale for both: a FakeQuantize without the fused kernel, a weight range of ±127, or FixedQParams",
    covers=("RP7", "OS22", "OS23"),
)  # fmt: skip
def two_formulas(subject: Any) -> Iterator[Hit]:
    """The fake-quantized model rounds with one scale, and conversion will use another.

    Forward uses the fake quantizer's ``scale``; ``convert`` asks its observer again. The fused kernel computes max/127
    (and turns symmetric into affine where the smallest value is 0), the observer max/127.5; and whoever wrote a scale
    into the fake quantizer finds the observer's in the converted model. That is why integers differ between the two.
    Both numbers are asked of the objects at hand, so the rule finds whatever this version of torch does. One finding
    per model, about the place where they differ most.
    """
    found: list[tuple[float, str, str, dict[str, float]]] = []
    for name, m in subject.fake_quantizers:
        observer = getattr(m, "activation_post_process", None)
        if observer is None or not _seen(observer) or hasattr(m, "learning_enabled"):
            continue
        scale, zero_point = (np.atleast_1d(t.detach().double().cpu().numpy()) for t in observer.calculate_qparams())
        own = np.atleast_1d(m.scale.detach().double().cpu().numpy())
        own_zero = np.atleast_1d(m.zero_point.detach().cpu().numpy())
        if own.shape != scale.shape:
            continue
        relative = np.abs(own / scale - 1)
        worst = int(np.argmax(relative))
        if relative[worst] > RELATIVE or (own_zero != zero_point).any():
            text = (
                f"{name} rounds with scale {own[worst]:.8g} and zero point {int(own_zero[worst])}, conversion will "
                f"with {scale[worst]:.8g} and {int(zero_point[worst])}"
            )
            data = {"forward": float(own[worst]), "conversion": float(scale[worst])}
            found.append((float(relative[worst]), name, text, data))
    if found:
        _, name, text, data = max(found, key=lambda entry: entry[0])
        total = len(subject.fake_quantizers)
        message = f"{len(found)} of {total} fake quantizers have another scale than conversion will use; {text}"
        yield Hit(message, module=name, data={**data, "modules": [entry[1] for entry in found]})


@rule(
    "IQ703", "largest-weight-off-grid", "warning", TORCH_AO,
    remedy="use quant_min=-127 for weights, so that the scale is max/127 and the largest weight lies on the grid",
    covers=("RP7", "EX8"),
)  # fmt: skip
def largest_weight_off_grid(subject: Any) -> Iterator[Hit]:
    """The largest weight of a channel is beyond the largest integer: 127 stands for less than it.

    With -128…127 and a symmetric scheme torch.ao takes max/127.5 as the scale. A largest weight that is positive is
    then cut to 127·max/127.5 = 0.996 of itself. An identity of weight 1.0 becomes 0.996 and loses one of 256 levels.
    One finding per model: torch.ao's default settings do this to every layer.
    """
    hits: list[tuple[float, str, float, float]] = []
    for path, m in subject.layers:
        observer = subject.weight_observer(path, m) if hasattr(m, "weight") and not callable(m.weight) else None
        if observer is None or not _seen(observer):
            continue
        scale = np.atleast_1d(observer.calculate_qparams()[0].detach().double().cpu().numpy())
        largest = m.weight.detach().flatten(1).amax(1).double().cpu().numpy()
        if scale.size == 1:
            scale, largest = scale, np.array([largest.max()])
        if scale.shape != largest.shape:
            continue
        top = 127 * scale
        error = np.where(largest > 0, (largest - top) / np.maximum(largest, 1e-30), 0.0)
        worst = int(np.argmax(error))
        if error[worst] > OFF_GRID:
            hits.append((float(error[worst]), path, float(largest[worst]), float(top[worst])))
    if hits:
        error_, path, wanted, got = max(hits, key=lambda hit: hit[0])
        yield Hit(
            f"in {len(hits)} layers the largest weight is beyond the grid; in {path} {wanted:.6g} becomes {got:.6g} "
            f"(127 steps), {error_:.2%} less",
            module=path, tensor=f"{path}.weight", data={"layers": [hit[1] for hit in hits], "error": error_},
        )  # fmt: skip


@rule(
    "IQ704", "scale-overwritten", "warning", TORCH_AO,
    remedy="use FakeQuantize (or FixedQParamsFakeQuantize for a scale of your own) instead of the fused module",
    covers=("RP7", "OS23"),
)  # fmt: skip
def scale_overwritten(subject: Any) -> Iterator[Hit]:
    """A fake quantizer with its observer off recomputes its scale on every forward.

    ``FusedMovingAvgObsFakeQuantize`` writes scale and zero point from its observer's extremes whenever it runs,
    observer on or off; a scale set by hand or loaded is lost at the next batch. The rule tries it on a copy: it
    switches the observer off, writes another scale and runs one tensor of zeros. One finding per model.
    """
    import torch

    found = []
    for name, m in subject.fake_quantizers:
        observer = getattr(m, "activation_post_process", None)
        if observer is None or not _seen(observer) or hasattr(m, "learning_enabled"):
            continue
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
    if found:
        message = f"{len(found)} fake quantizers overwrite their scale with the observer off: {', '.join(found[:4])}"
        yield Hit(message + (" …" if len(found) > 4 else ""), module=found[0], data={"modules": found})


@rule(
    "IQ710", "toggle-without-effect", "error", TORCH_AO,
    remedy="use enable_static_estimate and enable_param_learning on learnable fake quantizers, not observer_enabled",
    covers=("OS18", "OS23"),
)  # fmt: skip
def toggle_without_effect(subject: Any) -> Iterator[Hit]:
    """A learnable fake quantizer was toggled by the switch of the other class.

    ``_LearnableFakeQuantize`` observes while ``static_enabled`` is set; ``observer_enabled``, the switch of
    ``FakeQuantize``, is a buffer it has and does not read. Whoever sets that one changes nothing. Reported where the
    two disagree, and where it observes and learns at the same time.
    """
    for name, m in subject.fake_quantizers:
        if not hasattr(m, "static_enabled"):
            continue
        static, observer, learning = (
            bool(getattr(m, a)[0]) for a in ("static_enabled", "observer_enabled", "learning_enabled")
        )
        if static and not observer:
            yield Hit("observer_enabled is 0 and it observes all the same: static_enabled is 1", module=name)
        elif static and learning:
            yield Hit("it observes and learns at once: what is learned is overwritten by every batch", module=name)


def _seen(observer: Any) -> bool:
    low = getattr(observer, "min_val", None)
    return low is not None and low.numel() > 0 and bool(low.isfinite().all())
