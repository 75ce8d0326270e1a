"""What integer operations share: multipliers with gradients, and one rounding of the result to its grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import FLOAT_OPS, apply_act
from intact8.calibration.moving_average import MovingAverageObserver
from intact8.capture.graph import Node
from intact8.simulation.quantized_tensor import Quantized, Value
from intact8.simulation.scales.quant_points import QuantPoint, Requantization
from intact8.train.straight_through import End, Watch, forward_as, quantize_ste


@dataclass(frozen=True)
class IntegerOp:
    """A node whose output is on a grid, with what its integers are computed from.

    Attributes:
        node: the placed node.
        params: its parameters by role.
        point: quantization point of its output.
        requantization: its multipliers; None for softmax and norms, which have none.
        resolved: whether the multipliers are valid; else plain ratios of scales take their place.
    """

    node: Node
    params: Mapping[str, Tensor]
    point: QuantPoint
    requantization: Requantization | None
    resolved: bool

    def ratio(self, nominal: Tensor, index: int | Tensor = 0) -> Tensor:
        """Return the multiplier of that index, with the gradient of ``nominal``, the ratio of scales it stands for."""
        if not self.resolved:
            return nominal
        assert self.requantization is not None
        ratios = self.requantization.ratio()
        # An index that is a tensor of one number would be read from its device.
        return forward_as(torch.take(ratios, index) if isinstance(index, Tensor) else ratios[index], nominal)

    def finish(self, steps: Tensor) -> Quantized:
        """Return :func:`finish` of the exact result in output steps."""
        return finish(self.node, steps, self.point)


def integer_limits(act: dict[str, Any] | None, scale: float, zero_point: int, lo: int, hi: int) -> tuple[int, int]:
    """Return the clamp of an operation: the range of its output, cut by a fused clamp (ReLU, ReLU6, hardtanh).

    ``act`` is the attribute of a node; ``scale``, ``zero_point``, ``lo`` and ``hi`` are those of its output.

    Example:
        >>> integer_limits({"kind": "clamp", "min": 0.0, "max": 6.0}, 0.05, 10, 0, 255)
        (10, 130)
    """
    if act is None or act["kind"] != "clamp":
        return lo, hi
    low, high = lo, hi
    if act.get("min") is not None:
        low = int(np.clip(np.rint(act["min"] / np.float64(scale)) + zero_point, lo, hi))
    if act.get("max") is not None:
        high = int(np.clip(np.rint(act["max"] / np.float64(scale)) + zero_point, low, hi))
    return low, high


def output_limits(node: Node, point: QuantPoint) -> tuple[End, End]:
    """Return :func:`integer_limits` of a node whose output is quantized at ``point``.

    Where they depend on a scale that is learned on another device than the CPU, they are tensors there: reading a
    number would wait for the device.
    """
    act = node.attrs.get("act")
    # Limits at zero are the same for every scale, which is then not read.
    scaled = act is not None and act["kind"] == "clamp" and any(act.get(end) for end in ("min", "max"))
    if act is not None and scaled and point.learning and point.scale.device.type != "cpu":
        return _limits_there(act, point)
    return integer_limits(act, point.live_scale_value if scaled else 1.0, point.zero_point_value, point.lo, point.hi)


def _limits_there(act: dict[str, Any], point: QuantPoint) -> tuple[Tensor, Tensor]:
    """Return :func:`integer_limits` as float32 tensors on the device of a learned scale."""
    scale, zero_point = point.live_scale.detach().double(), point.zero_point_value
    low, high = (torch.full_like(scale, end) for end in (point.lo, point.hi))
    if act.get("min") is not None:
        low = torch.clamp(torch.round(torch.full_like(scale, act["min"]) / scale) + zero_point, low, high)
    if act.get("max") is not None:
        high = torch.clamp(torch.round(torch.full_like(scale, act["max"]) / scale) + zero_point, low, high)
    return low.float(), high.float()


def _real(node: Node, point: QuantPoint, steps: Tensor) -> Tensor:
    """Return output steps as real numbers behind a fused clamp, float32."""
    x, act = (steps * point.live_scale.detach()).float(), node.attrs.get("act")
    return apply_act(x, act, {}) if act is not None and act["kind"] == "clamp" else x


def observe_activated(node: Node, point: QuantPoint, steps: Tensor) -> None:
    """Show the observer real values as they are after a fused clamp, before rounding; ``steps`` are output steps."""
    steps = steps.detach()
    averages = isinstance(point.observer, MovingAverageObserver) and steps.numel() > 0
    if averages and observe_ends(node, point, torch.stack(torch.aminmax(steps)), steps.numel()):
        return
    point.observer.observe(_real(node, point, steps))


def observe_ends(node: Node, point: QuantPoint, ends: Tensor, count: int) -> bool:
    """Show a moving average the smallest and the largest of so many output steps, (2,), if they are finite.

    Scaling and clamping keep the order of values, so that they need no passes over all of them.
    """
    lo, hi = _real(node, point, ends).tolist()
    finite = math.isfinite(lo) and math.isfinite(hi)
    if finite:
        assert isinstance(point.observer, MovingAverageObserver)
        point.observer.observe_extremes(lo, hi, count)
    return finite


def watcher(node: Node, point: QuantPoint) -> Watch | None:
    """Return what shows results to the observer before they are rounded; None where the point does not observe."""
    return partial(observe_activated, node, point) if point.watching else None


def watcher_of_ends(node: Node, point: QuantPoint) -> Callable[[Tensor, int], bool] | None:
    """Return what shows it their ends; None where the point does not observe, or more than the ends."""
    suffice = point.watching and isinstance(point.observer, MovingAverageObserver)
    return partial(observe_ends, node, point) if suffice else None


def finish(node: Node, steps: Tensor, point: QuantPoint) -> Quantized:
    """Observe an exact result in output steps, round it once and clamp it. ``steps`` may be overwritten."""
    if point.watching:
        observe_activated(node, point, steps)
    return Quantized(point.rounded(steps, *output_limits(node, point)), point)


def quantize_to(point: QuantPoint | None, y: Tensor) -> Value:
    """Observe ``y`` where the point observes, and put it on the point's grid where the point is active."""
    if point is None:
        return y
    if point.watching:
        point.observer.observe(y.detach())
    if not point.active:
        return y
    if point.learns_range:
        q = point.rounded(y / point.live_scale, point.lo, point.hi)
    else:
        q = quantize_ste(y, point.live_scale, point.zero_point_value, point.lo, point.hi)
    if not point.training:  # engines do so; in training the loss should show a NaN
        q = torch.nan_to_num(q, nan=float(point.lo - point.zero_point_value))
    return Quantized(q, point)


def drops(node: Node, training: bool) -> bool:
    """Return whether a node is a dropout that scales what it keeps; one of rate 0 does not."""
    return node.op == "dropout" and training and bool(node.attrs["p"])


def float_result(node: Node, inputs: list[Tensor], params: Mapping[str, Tensor], training: bool = False) -> Tensor:
    """Compute a node in float; ``training`` is for dropout."""
    if drops(node, training):
        dropout = torch.feature_dropout if node.attrs.get("feature") else torch.dropout
        return dropout(inputs[0], node.attrs["p"], True)
    if node.op in ("requantize", "dropout"):
        return inputs[0]
    y: Tensor = FLOAT_OPS[node.op](node.attrs, inputs, dict(params))
    return y
