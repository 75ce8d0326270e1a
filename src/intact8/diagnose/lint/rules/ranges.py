"""IQ4xx: scales and ranges of activations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import PROGRAM, SIMULATION, TORCH_AO, Hit, first_of, joint_hit, rule
from intact8.diagnose.lint.views import PointView, quantiles, share_outside
from intact8.opset import KINDS

WIDEST, NARROWEST = 1e6, 1e-6
BULK, STRETCH = 0.999, 8.0
USED = 0.55
CLIPPED = 0.01
OUTLIER = 8.0
IMBALANCE = 64.0
LAST_DIMENSION_NORMS = [name for name, kind in KINDS.items() if "gain" in kind.arrays and "shape" in kind.attrs]


@rule("IQ401", "error", SIMULATION, PROGRAM, TORCH_AO)
def bad_scale(subject: Any) -> Iterator[Hit]:
    """A scale is zero, negative, NaN or infinite.

    The observer saw nothing, or saw NaN. Every value then becomes the zero point, or NaN. Points that were not
    calibrated yet are the subject of rule IQ301.

    Remedy: calibrate again with finite data that reach this place, or set the scale by hand
    """
    for p in subject.points:
        bad = p.scale[~(np.isfinite(p.scale) & (p.scale > 0))] if p.known or p.seen else np.array([])
        if bad.size:
            where = f" in {bad.size} of {p.scale.size} channels" if p.scale.size > 1 else ""
            yield Hit(f"scale {bad[0]:.6g}{where}", node=p.name, data={"channels": int(bad.size)})


@rule("IQ402", "warning", SIMULATION, PROGRAM, TORCH_AO)
def extreme_range(subject: Any) -> Iterator[Hit]:
    """A range is wider than a million or narrower than a millionth.

    Values of a trained network hardly ever are that large or small: inputs were not scaled, a layer diverged or is
    dead, or the scale sits at the smallest value an observer gives (its epsilon).

    Remedy: look for unscaled inputs or an exploding layer; normalize, or leave this part float
    """
    for p, lo, hi in _ranges(subject):
        if not NARROWEST <= hi - lo <= WIDEST and not p.fixed:
            yield Hit(f"the range is [{lo:.4g}, {hi:.4g}]", node=p.name, data={"lo": lo, "hi": hi})


@rule("IQ403", "warning", SIMULATION, TORCH_AO)
def range_set_by_outliers(subject: Any) -> Iterator[Hit]:
    """A few values stretch a range so that nearly all others share a small part of the grid.

    The rule reports ranges where 99.9 % of the values that are not zero lie within one eighth of the range: three of
    the eight bits are spent on the rest. Only observers that keep a histogram can tell (in intact8 all but
    moving_average and fixed).

    Remedy: use a histogram, percentile or MSE observer here, or find where the outliers come from
    """
    for p, lo, hi in _ranges(subject):
        if p.bins is None:
            continue
        low, high = quantiles(p.bins, BULK)
        least, most = min(low, 0.0), max(high, 0.0)
        if most > least and hi - lo > STRETCH * (most - least):
            times = f"{(hi - lo) / (most - least):.0f} times as wide as [{least:.4g}, {most:.4g}]"
            message = f"the range [{lo:.4g}, {hi:.4g}] is {times}, where {BULK:.1%} of the values lie"
            yield Hit(message, node=p.name, data={"lo": lo, "hi": hi, "bulk_lo": low, "bulk_hi": high})


@rule("IQ404", "warning", SIMULATION, PROGRAM, TORCH_AO)
def wasted_range(subject: Any) -> Iterator[Hit]:
    """About half of the grid, or more, stands for values that never came.

    Usual causes are a symmetric scheme on a tensor without negative values, a range taken before the ReLU instead of
    behind it, or a scale set by hand for larger data. Every unused half costs a bit. One note lists the symmetric
    ranges without negative values, because some targets allow no other.

    Remedy: use an affine scheme where values have one sign, put the ReLU into the layer before, or correct the scale
    """
    halved = []
    for p, lo, hi in _ranges(subject):
        if not p.seen or hi <= lo or p.minimum == p.maximum:
            continue
        used = (min(max(p.maximum, 0.0), hi) - max(min(p.minimum, 0.0), lo)) / (hi - lo)
        if used >= USED:
            continue
        if p.minimum >= 0 and abs(hi + lo) <= 2 * float(p.scale[0]) and p.maximum >= USED * hi:
            halved.append(p.name)
            continue
        values = f"values between {p.minimum:.4g} and {p.maximum:.4g}"
        message = f"{values} use {used:.0%} of the range [{lo:.4g}, {hi:.4g}]"
        yield Hit(message, node=p.name, data={"used": used, "lo": lo, "hi": hi})
    message = f"{len(halved)} symmetric ranges hold no negative value: {first_of(halved)}"
    remedy = "use an affine scheme, unless the target allows symmetric activations only"
    yield from joint_hit(halved, message, severity="note", remedy=remedy)


@rule("IQ405", "warning", SIMULATION, TORCH_AO)
def clipped_values(subject: Any) -> Iterator[Hit]:
    """More than 1 % of the values that calibration saw lie outside the range that came of it.

    Usual causes are a percentile far too low, a scale set by hand for smaller data, or a range frozen before it had
    grown. Values beyond an end of the range become that end.

    Remedy: widen the range: another observer for this point, or a larger fixed scale
    """
    for p, lo, hi in _ranges(subject):
        if p.bins is None:
            continue
        step = float(p.scale[0])
        share = share_outside(p.bins, lo - step / 2, hi + step / 2)
        if share > CLIPPED:
            message = f"{share:.1%} of the values seen are outside [{lo:.4g}, {hi:.4g}]"
            yield Hit(message, node=p.name, data={"outside": share, "lo": lo, "hi": hi})


@rule("IQ406", "error", SIMULATION, TORCH_AO)
def symmetric_zero_point(subject: Any) -> Iterator[Hit]:
    """A scheme says symmetric, and the zero point is not in the middle.

    Kernels for symmetric tensors skip the zero point, so it is silently ignored where the model is deployed. This
    happens when zero points are learned, or loaded from a checkpoint of another scheme; and torch.ao's fused fake
    quantizer turns a symmetric scheme into an affine one where the smallest value is exactly 0.

    Remedy: set a symmetric scheme's zero point to its middle (0 for int8, 128 for uint8), or use an affine scheme
    """
    for p in subject.points:
        off = p.zero_point[p.zero_point != p.middle] if p.symmetric and p.known else np.array([])
        if off.size and not (p.weight and subject.kind == SIMULATION):
            yield Hit(f"zero point {int(off[0])} instead of {p.middle}", node=p.name, data={"zero_point": int(off[0])})


@rule("IQ407", "warning", SIMULATION)
def channel_imbalance(subject: Any) -> Iterator[Hit]:
    """One channel of an activation is so loud that the others have only a few levels.

    Activations have one scale for all channels. The rule reports tensors whose loudest channel is more than 64 times
    the median one, which then has two of eight bits.

    Needs data.

    Remedy: let channels be equalized (Recipe.equalize, smooth), split off the loud channel, or leave the layer float
    """
    for name, largest in subject.data_statistics.channels.items():
        alive = largest[largest > 0]
        if alive.size < 4:
            continue
        ratio = float(alive.max() / np.median(alive))
        if ratio > IMBALANCE:
            channel = int(np.argmax(largest))
            message = f"channel {channel} reaches {alive.max():.4g}, {ratio:.0f} times the median channel"
            yield Hit(message, node=name, data={"channel": channel, "ratio": ratio})


@rule("IQ408", "warning", SIMULATION)
def outlier_channels_not_shared(subject: Any) -> Iterator[Hit]:
    """A layer norm makes a few channels much louder than the others, and scale migration is off.

    Trained transformers have such channels. The output of the layer norm is rounded with one scale, so the loudest
    channel leaves the others few levels. Scale migration (SmoothQuant) divides each channel by a factor, and the
    weights of the next layer multiply by it: exact in float. The rule reports layer norms of which a weight is more
    than 8 times the median one, and whose output linear maps read as integers. It needs no data.

    Remedy: share them with the weights: recipes.transformer(), or smooth=0.5 in your recipe
    """
    sim = subject.sim
    norms = [node for node in sim.graph if node.op in LAST_DIMENSION_NORMS and "weight" in node.params]
    for node in norms if not sim.recipe.smooth else ():
        magnitude = np.abs(sim.tensors[node.params["weight"]].detach().double().cpu().numpy()).reshape(-1)
        median, loudest = float(np.median(magnitude)), float(magnitude.max())
        if median > 0 and loudest > OUTLIER * median and _feeds_linear(sim, node.name):
            message = f"weight {int(magnitude.argmax())} is {loudest / median:.0f} times the median one"
            yield Hit(message, module=node.module, node=node.name, data={"ratio": loudest / median})


def _feeds_linear(sim: Any, name: str) -> bool:
    """Whether a linear map on integers reads ``name``, directly or through a quantize or dropout."""
    users = sim.graph.users()
    todo = list(users[name])
    while todo:
        node = sim.graph.nodes[todo.pop()]
        if node.op == "linear" and node.name in sim.weight_points:
            return True
        if node.op in ("quantize", "dropout"):
            todo += users[node.name]
    return False


def _ranges(subject: Any) -> Iterator[tuple[PointView, float, float]]:
    """Yield the points of activations and the ends of their ranges, where these are known."""
    for p in subject.points:
        lo, hi = p.range
        if not p.weight and (p.known or p.seen) and math.isfinite(hi - lo):
            yield p, lo, hi
