"""IQ4xx: scales and ranges of activations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import PROGRAM, SIMULATION, TORCH_AO, Hit, rule
from intact8.diagnose.lint.views import PointView, quantiles, share_outside

WIDEST, NARROWEST = 1e6, 1e-6
BULK, STRETCH = 0.999, 8.0
USED = 0.55
CLIPPED = 0.01
OUTLIER = 8.0
IMBALANCE = 64.0


@rule(
    "IQ401", "bad-scale", "error", SIMULATION, PROGRAM, TORCH_AO,
    remedy="calibrate again with finite data that reach this place, or set the scale by hand",
    covers=("EX19a", "EX20"),
)  # fmt: skip
def bad_scale(subject: Any) -> Iterator[Hit]:
    """A scale is zero, negative, NaN or infinite.

    The observer saw nothing, or saw NaN. Every value then becomes the zero point, or NaN. A point that was simply not
    calibrated yet is rule IQ301.
    """
    for p in subject.points:
        bad = p.scale[~(np.isfinite(p.scale) & (p.scale > 0))] if p.known or p.seen else np.array([])
        if bad.size:
            message = f"scale {bad[0]:.6g}" + (f" in {bad.size} of {p.scale.size} channels" if p.scale.size > 1 else "")
            yield Hit(message, node=p.name, data={"channels": int(bad.size)})


@rule(
    "IQ402", "extreme-range", "warning", SIMULATION, PROGRAM, TORCH_AO,
    remedy="look for unscaled inputs or an exploding layer; normalize, or leave this part float",
    covers=("EX20", "OS17"),
)  # fmt: skip
def extreme_range(subject: Any) -> Iterator[Hit]:
    """A range is wider than a million or narrower than a millionth.

    Values of a trained network hardly ever are that large or small: inputs were not scaled, a layer diverged or is
    dead, or the scale sits at the smallest value an observer gives (its epsilon).
    """
    for p in _activations(subject):
        lo, hi = p.range
        if math.isfinite(hi - lo) and not NARROWEST <= hi - lo <= WIDEST and not p.fixed:
            yield Hit(f"the range is [{lo:.4g}, {hi:.4g}]", node=p.name, data={"lo": lo, "hi": hi})


@rule(
    "IQ403", "range-set-by-outliers", "warning", SIMULATION, TORCH_AO,
    remedy="use a histogram, percentile or MSE observer here, or find where the outliers come from",
    covers=("EX19a", "EX20", "EX25"),
)  # fmt: skip
def range_set_by_outliers(subject: Any) -> Iterator[Hit]:
    """A few values stretch a range so that nearly all others share a small part of the grid.

    Reported where 99.9 % of the values that are not zero lie within one eighth of the range: three of the eight bits
    are spent on the rest. Only observers that keep a histogram can tell (in intact8 all but moving_average and fixed).
    """
    for p in _activations(subject):
        lo, hi = p.range
        if p.bins is None or not math.isfinite(hi - lo):
            continue
        low, high = quantiles(p.bins, BULK)
        bulk = max(high, 0.0) - min(low, 0.0)
        width = hi - lo
        if bulk > 0 and width > STRETCH * bulk:
            yield Hit(
                f"the range [{lo:.4g}, {hi:.4g}] is {width / bulk:.0f} times as wide as [{min(low, 0.0):.4g}, "
                f"{max(high, 0.0):.4g}], where {BULK:.1%} of the values lie",
                node=p.name, data={"lo": lo, "hi": hi, "bulk_lo": low, "bulk_hi": high},
            )  # fmt: skip


@rule(
    "IQ404", "wasted-range", "warning", SIMULATION, PROGRAM, TORCH_AO,
    remedy="use an affine scheme where values have one sign, put the ReLU into the layer before, or correct the scale",
    covers=("EX9", "EX19a", "OS5", "OS15"),
)  # fmt: skip
def wasted_range(subject: Any) -> Iterator[Hit]:
    """About half of the grid, or more, stands for values that never came.

    A symmetric scheme on a tensor without negative values, a range taken before the ReLU instead of behind it, or a
    scale set by hand for larger data. Every half that is unused costs a bit. Symmetric ranges without negative values
    are listed in one note: some targets allow no other.
    """
    halved = []
    for p in _activations(subject):
        lo, hi = p.range
        if not p.seen or not math.isfinite(hi - lo) or hi <= lo or p.minimum == p.maximum:
            continue
        used = (min(max(p.maximum, 0.0), hi) - max(min(p.minimum, 0.0), lo)) / (hi - lo)
        if used >= USED:
            continue
        if p.minimum >= 0 and abs(hi + lo) <= 2 * float(p.scale[0]) and p.maximum >= USED * hi:
            halved.append(p.name)
            continue
        yield Hit(
            f"values between {p.minimum:.4g} and {p.maximum:.4g} use {used:.0%} of the range [{lo:.4g}, {hi:.4g}]",
            node=p.name, data={"used": used, "lo": lo, "hi": hi},
        )  # fmt: skip
    if halved:
        shown = ", ".join(halved[:5]) + (" …" if len(halved) > 5 else "")
        yield Hit(
            f"{len(halved)} symmetric ranges hold no negative value: {shown}", node=halved[0], severity="note",
            remedy="use an affine scheme, unless the target allows symmetric activations only", data={"points": halved},
        )  # fmt: skip


@rule(
    "IQ405", "clipped-values", "warning", SIMULATION, TORCH_AO,
    remedy="widen the range: another observer for this point, or a larger fixed scale",
    covers=("EX19b", "EX19c", "EX20"),
)  # fmt: skip
def clipped_values(subject: Any) -> Iterator[Hit]:
    """More than 1 % of the values that calibration saw lie outside the range that came of it.

    A percentile far too low, a scale set by hand for smaller data, or a range frozen before it had grown. Values beyond
    the ends all become the end.
    """
    for p in _activations(subject):
        lo, hi = p.range
        if p.bins is None or not math.isfinite(hi - lo):
            continue
        step = float(p.scale[0])
        share = share_outside(p.bins, lo - step / 2, hi + step / 2)
        if share > CLIPPED:
            message = f"{share:.1%} of the values seen are outside [{lo:.4g}, {hi:.4g}]"
            yield Hit(message, node=p.name, data={"outside": share, "lo": lo, "hi": hi})


@rule(
    "IQ406", "symmetric-zero-point", "error", SIMULATION, TORCH_AO,
    remedy="set a symmetric scheme's zero point to its middle (0 for int8, 128 for uint8), or use an affine scheme",
    covers=("OS17",),
)  # fmt: skip
def symmetric_zero_point(subject: Any) -> Iterator[Hit]:
    """A scheme says symmetric, and the zero point is not in the middle.

    Kernels for symmetric tensors skip the zero point, so it is silently ignored where the model is deployed. It comes
    about when zero points are learned, or loaded from a checkpoint of another scheme; and torch.ao's fused fake
    quantizer turns a symmetric scheme into an affine one where the smallest value is exactly 0.
    """
    for p in subject.points:
        off = p.zero_point[p.zero_point != p.middle] if p.symmetric and p.known else np.array([])
        if off.size and not (p.weight and subject.kind == SIMULATION):
            yield Hit(f"zero point {int(off[0])} instead of {p.middle}", node=p.name, data={"zero_point": int(off[0])})


@rule(
    "IQ407", "channel-imbalance", "warning", SIMULATION,
    remedy="let channels be equalized (Recipe.equalize, smooth), split off the loud channel, or leave the layer float",
    covers=("EX19a", "EX25"),
)  # fmt: skip
def channel_imbalance(subject: Any) -> Iterator[Hit]:
    """One channel of an activation is so loud that the others have only a few levels.

    Activations have one scale for all channels. Reported where the loudest channel is more than 64 times the median
    one, which leaves that one two of eight bits.

    Needs data.
    """
    for name, largest in subject.seen.channels.items():
        alive = largest[largest > 0]
        if alive.size < 4:
            continue
        ratio = float(alive.max() / np.median(alive))
        if ratio > IMBALANCE:
            channel = int(np.argmax(largest))
            message = f"channel {channel} reaches {alive.max():.4g}, {ratio:.0f} times the median channel"
            yield Hit(message, node=name, data={"channel": channel, "ratio": ratio})


@rule(
    "IQ408", "outlier-channels-not-shared", "warning", SIMULATION,
    remedy="share them with the weights: recipes.transformer(), or smooth=0.5 in your recipe",
    covers=("EX19a", "EX25"),
)  # fmt: skip
def outlier_channels_not_shared(subject: Any) -> Iterator[Hit]:
    """A layer norm makes a few channels much louder than the others, and scale migration is off.

    Trained transformers have such channels. What the layer norm makes is rounded on one scale, so the loudest channel
    leaves the others few levels. Scale migration (SmoothQuant) divides them by a factor per channel, which the weights
    behind take back: exact in float. Reported where a weight of the layer norm is more than 8 times the median one,
    and linear maps read the result as integers. Needs no data.
    """
    sim = subject.sim
    if sim.recipe.smooth:
        return
    for node in sim.graph:
        if node.op not in ("layer_norm", "rms_norm") or "weight" not in node.params:
            continue
        magnitude = np.abs(sim.tensors[node.params["weight"]].detach().double().cpu().numpy()).reshape(-1)
        median = float(np.median(magnitude))
        loudest = float(magnitude.max())
        if median > 0 and loudest > OUTLIER * median and _feeds_linear(sim, node.name):
            message = f"weight {int(magnitude.argmax())} is {loudest / median:.0f} times the median one"
            yield Hit(message, module=node.module, node=node.name, data={"ratio": loudest / median})


def _feeds_linear(sim: Any, name: str) -> bool:
    """Whether a linear map on integers reads ``name``, straight or through a quantize or dropout."""
    users = sim.graph.users()
    todo = list(users[name])
    while todo:
        node = sim.graph.nodes[todo.pop()]
        if node.op == "linear" and node.name in sim.weight_points:
            return True
        if node.op in ("quantize", "dropout"):
            todo += users[node.name]
    return False


def _activations(subject: Any) -> list[PointView]:
    return [p for p in subject.points if not p.weight and (p.known or p.seen)]
