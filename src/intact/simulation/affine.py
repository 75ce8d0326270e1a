"""conv, linear and per-channel products: one exact sum, one rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intact.arithmetic.torch_ops import apply_act
from intact.capture.graph import Node

from .activation import integer_limits
from .exact import EXACT, accumulate, chunk_edges, convolve, per_channel
from .gradient import forward_as, quantize_ste, round_ste
from .points import QuantPoint, Requantization, WeightPoint
from .values import Quantized, Value, real
from .versions import Snapshot
from .weights import (
    apply_batch_norm,
    batch_norm_factor,
    clip_pairs,
    corrected_bias,
    fold_before,
    folded,
    groups_of,
    integer_bias,
    integer_weight,
    output_first,
    partial_sum_bound,
    per_input,
    per_output,
    transposed,
)


@dataclass
class Integers:
    """A layer's integers for one input point: what is computed once in evaluation, every step in training."""

    weight: Tensor
    bias: Tensor
    scale: Tensor
    edges: list[int] | None
    wide: bool


class LiveBatchNorms(NamedTuple):
    """Batch norm modules in training mode, before (``pre``) and after (``bn``) a layer."""

    before: torch.nn.Module | None
    after: torch.nn.Module | None


class Affine:
    """How one conv, linear or scale_shift node is computed, float or exact.

    Args:
        node: the placed node.
        point: quantization point of the output, None inside a float island.
        weight_point: None where the node stays float.
        requantization: its multipliers.
    """

    def __init__(
        self,
        node: Node,
        point: QuantPoint | None,
        weight_point: WeightPoint | None,
        requantization: Requantization | None,
    ) -> None:
        self.node, self.point, self.weight_point, self.requantization = node, point, weight_point, requantization
        self._cache: dict[str, tuple[Snapshot, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}

    def __call__(
        self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms | None, resolved: bool
    ) -> Value:
        """One forward. ``live``: the batch norms that take their statistics from this batch (training), else None."""
        exact = (
            self.point is not None
            and self.weight_point is not None
            and self.weight_point.quantizing
            and self.weight_point.known
            and all(isinstance(v, Quantized) for v in inputs)
        )
        if exact and self.point is not None and live is None and self.point.active:
            return self._exact(inputs, tensors, resolved)  # type: ignore[arg-type]
        if live is not None:
            self._cache.clear()  # batch norm writes its running statistics without counting a version
        y = self._float(inputs, tensors) if live is None else self._live(inputs, tensors, live)
        return quantize_to(self.point, y)

    # -- float ------------------------------------------------------------------------------------------------

    def _weights(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None]
        found = self._cached("folded", self._sources(tensors), lambda: folded(self.node, tensors))
        return found

    def _fake(self, weight: Tensor) -> Tensor:
        """The weight on its grid, in real numbers, when weight quantization is on."""
        wp = self.weight_point
        if wp is None or not wp.quantizing or not wp.known:
            return weight
        scale = self._scale(wp, weight)
        s = per_output(scale, weight, groups_of(self.node), transposed(self.node))
        return self._rounded(wp, weight, scale) * s

    def _rounded(self, wp: WeightPoint, weight: Tensor, scale: Tensor) -> Tensor:
        q = integer_weight(self.node, weight, scale, wp.lo, wp.hi)
        return clip_pairs(self.node, q) if wp.clips_pairs else q

    def _scale(self, wp: WeightPoint, weight: Tensor) -> Tensor:
        """The weight scales forward uses now."""
        if not wp.moving:
            return wp.scale
        if self.node.op == "scale_shift":
            return wp.live_scale(weight.reshape(-1, 1))
        return wp.live_scale(output_first(weight, groups_of(self.node), transposed(self.node)))

    def _float(self, inputs: list[Value], tensors: Mapping[str, Tensor]) -> Tensor:
        weight, bias = self._weights(tensors)
        y = convolve(self.node, real(inputs[0]), self._fake(weight), bias)
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)

    def _live(self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms) -> Tensor:
        """Training with live batch statistics: weights are rounded on the grid of the folded weight, the factors are
        divided out again, and batch norm normalizes by the batch (Krishnamoorthi 2018, section 3.2.1)."""
        node, p = self.node, self.node.params
        x, bias = real(inputs[0]), tensors[p["bias"]] if "bias" in p else None
        if live.before is not None:
            x = live.before(x)
        if "weight" in p:
            raw = tensors[p["weight"]]
            if "equalize.in" in p:
                raw = raw * per_input(tensors[p["equalize.in"]], raw, groups_of(node))
            factor = self._folded_factor(raw, tensors)
            weight = self._fake(raw * factor) / factor
            if "pre" in node.attrs and live.before is None:
                weight, bias = fold_before(node, tensors, weight, bias)
            x = convolve(node, x, weight, bias)
        if live.after is not None:
            x = live.after(x)
        elif "bn" in node.attrs:
            x = apply_batch_norm(node, tensors, x)
        if "equalize.out" in p:
            x = x / per_channel(tensors[p["equalize.out"]], node, x.dim())
        if len(inputs) > 1:
            x = x + real(inputs[1])
        return self._activate(x, tensors)

    def _folded_factor(self, weight: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """What folding multiplies the weight by, zeros replaced by one; broadcasts against ``weight``."""
        node, p = self.node, self.node.params
        factor = torch.ones_like(weight[:1].detach())
        if "pre" in node.attrs:
            factor = factor * per_input(batch_norm_factor(node, tensors, "pre"), weight, groups_of(node))
        if "bn" in node.attrs:
            after = batch_norm_factor(node, tensors)
            if "equalize.out" in p:
                after = after / tensors[p["equalize.out"]]
            factor = factor * per_output(after, weight, groups_of(node), transposed(node))
        return torch.where(factor == 0, torch.ones_like(factor), factor)

    def _activate(self, y: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        p = self.node.params
        return apply_act(y, self.node.attrs.get("act"), {k: tensors[v] for k, v in p.items() if k.startswith("act.")})

    def _slope(self, tensors: Mapping[str, Tensor]) -> Tensor | float:
        act = self.node.attrs["act"]
        return float(act["slope"]) if act["kind"] == "leaky_relu" else tensors[self.node.params["act.weight"]]

    # -- exact ------------------------------------------------------------------------------------------------

    def integers(self, x_point: QuantPoint, tensors: Mapping[str, Tensor]) -> Integers:
        """Integer weight and bias for inputs of ``x_point``; the one place where they are made."""
        wp = self.weight_point
        assert wp is not None

        def make() -> Integers:
            weight, bias = self._weights(tensors)
            scale = self._scale(wp, weight)
            w = self._rounded(wp, weight, scale)
            bias = corrected_bias(self.node, tensors, weight, bias, scale, wp.lo, wp.hi)
            b = integer_bias(bias, x_point.live_scale.double() * scale.double())
            bound = partial_sum_bound(self.node, w, int(x_point.zero_point), x_point.lo, x_point.hi)
            wide = bool((bound + b.detach().abs()).max() >= EXACT)
            return Integers(w, b, scale, chunk_edges(self.node, w, float(bound.max())), wide)

        if wp.moving:
            return make()
        keys = [*self._sources(tensors), wp.scale, x_point.live_scale, x_point.zero_point]
        found: Integers = self._cached("integers", keys, make)
        return found

    def _exact(self, inputs: list[Quantized], tensors: Mapping[str, Tensor], resolved: bool) -> Quantized:
        node, x, point = self.node, inputs[0], self.point
        assert point is not None and self.weight_point is not None and self.requantization is not None
        n = self.integers(x.point, tensors)
        total = accumulate(node, x.q, n.weight, n.edges)
        rank = total.dim()
        if n.wide:
            total = total.double()
        total = total + per_channel(n.bias, node, rank).to(total.dtype)
        scale = point.live_scale
        leaky = node.attrs.get("act", {}).get("kind") in ("leaky_relu", "prelu")
        # Multipliers that are rationals have the gradients of the scales they stand for.
        nominal = x.point.live_scale * n.scale / scale
        m = forward_as(self.requantization.ratio(), nominal) if resolved else nominal
        v = total * per_channel(m, node, rank).to(total.dtype)
        if leaky and resolved:
            m_neg = forward_as(self.requantization.ratio("a_neg", "b_neg"), nominal * self._slope(tensors))
            v = torch.where(total < 0, total * per_channel(m_neg, node, rank).to(total.dtype), v)
        elif leaky:
            v = self._activate(v, tensors)
        if len(inputs) > 1:
            r = inputs[1]
            ratio = r.point.live_scale / scale
            if resolved:
                ratio = forward_as(self.requantization.ratio("residual_a", "b")[0], ratio)
            v = v + r.q * ratio
        if point.watching:
            observe_activated(node, point, v)
        z = int(point.zero_point)
        lo, hi = integer_limits(node.attrs.get("act"), float(scale.detach()), z, point.lo, point.hi)
        return Quantized(torch.clamp(round_ste(v), lo - z, hi - z).float(), point)

    # -- cache ------------------------------------------------------------------------------------------------

    def _sources(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        return [tensors[name] for role, name in self.node.params.items() if not role.startswith("act.")]

    def _cached(self, what: str, sources: list[Tensor], make: Any) -> Any:
        """``make()``, remembered while gradients are off and no source has been written to."""
        if torch.is_grad_enabled():
            return make()
        hit = self._cache.get(what)
        if hit is None or not hit[0].current(sources):
            self._cache[what] = hit = (Snapshot(sources), make())
        return hit[1]


def observe_activated(node: Node, point: QuantPoint, v: Tensor) -> None:
    """Show an observer the real values of ``v`` (in output steps) as they are after a fused clamp, before rounding."""
    values = (v.detach() * point.live_scale).float()
    act = node.attrs.get("act")
    point.observer.observe(apply_act(values, act, {}) if act is not None and act["kind"] == "clamp" else values)


def quantize_to(point: QuantPoint | None, y: Tensor) -> Value:
    """Observe ``y`` where the point observes, and put it on the point's grid where it is active."""
    if point is None:
        return y
    if point.watching:
        point.observer.observe(y.detach())
    if not point.active:
        return y
    return Quantized(quantize_ste(y, point.live_scale, int(point.zero_point), point.lo, point.hi), point)


__all__ = ["Affine", "Integers", "observe_activated", "quantize_to"]
