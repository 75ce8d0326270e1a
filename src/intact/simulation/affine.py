"""conv, linear and per-channel products: one exact sum, one rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intact.arithmetic.torch_ops import apply_act
from intact.capture.graph import Node

from .activation import integer_limits
from .exact import EXACT, accumulate, chunk_edges, convolve, per_channel
from .gradient import quantize_ste, round_ste
from .points import QuantPoint, Requantization, WeightPoint
from .values import Quantized, Value, real
from .versions import Snapshot
from .weights import (
    batch_norm_factor,
    corrected_bias,
    folded,
    groups_of,
    integer_bias,
    integer_weight,
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
    edges: list[int] | None
    wide: bool


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
        self, inputs: list[Value], tensors: Mapping[str, Tensor], batch_norm: torch.nn.Module | None, resolved: bool
    ) -> Value:
        """One forward. ``batch_norm`` is the module whose statistics are live (training), else None."""
        live = batch_norm is not None
        exact = (
            self.point is not None
            and self.weight_point is not None
            and self.weight_point.quantizing
            and self.weight_point.scale.numel() > 0
            and all(isinstance(v, Quantized) for v in inputs)
        )
        if exact and self.point is not None and not live and self.point.active:
            return self._exact(inputs, tensors, resolved)  # type: ignore[arg-type]
        y = self._live(inputs, tensors, batch_norm) if batch_norm is not None else self._float(inputs, tensors)
        return quantize_to(self.point, y)

    # -- float ------------------------------------------------------------------------------------------------

    def _weights(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None]
        found = self._cached("folded", self._sources(tensors), lambda: folded(self.node, tensors))
        return found

    def _fake(self, weight: Tensor, scale_by: Tensor | None = None) -> Tensor:
        """The weight on its grid, in real numbers, when weight quantization is on."""
        wp = self.weight_point
        if wp is None or not wp.quantizing or wp.scale.numel() == 0:
            return weight
        s = per_output(wp.scale, weight, groups_of(self.node), transposed(self.node))
        return integer_weight(self.node, weight, wp.scale, wp.lo, wp.hi) * s

    def _float(self, inputs: list[Value], tensors: Mapping[str, Tensor]) -> Tensor:
        weight, bias = self._weights(tensors)
        y = convolve(self.node, real(inputs[0]), self._fake(weight), bias)
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)

    def _live(self, inputs: list[Value], tensors: Mapping[str, Tensor], batch_norm: torch.nn.Module) -> Tensor:
        """Training with live batch statistics: weights are rounded on the grid of the folded weight, the factor is
        divided out again, and batch norm normalizes by the batch (Krishnamoorthi 2018, section 3.2.1)."""
        node, p = self.node, self.node.params
        factor = batch_norm_factor(node, tensors)
        if "weight" in p:
            raw = tensors[p["weight"]]
            if "equalize.in" in p:
                raw = raw * per_input(tensors[p["equalize.in"]], raw, groups_of(node))
            f = per_output(
                torch.where(factor == 0, torch.ones_like(factor), factor), raw, groups_of(node), transposed(node)
            )
            weight = self._fake(raw * f) / f
            y = convolve(node, real(inputs[0]), weight, tensors[p["bias"]] if "bias" in p else None)
        else:
            y = real(inputs[0])
        y = batch_norm(y)
        if "equalize.out" in p:
            y = y / per_channel(tensors[p["equalize.out"]], node, y.dim())
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)

    def _activate(self, y: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        p = self.node.params
        return apply_act(y, self.node.attrs.get("act"), {k: tensors[v] for k, v in p.items() if k.startswith("act.")})

    # -- exact ------------------------------------------------------------------------------------------------

    def integers(self, x_point: QuantPoint, tensors: Mapping[str, Tensor]) -> Integers:
        """Integer weight and bias for inputs of ``x_point``; the one place where they are made."""
        wp = self.weight_point
        assert wp is not None

        def make() -> Integers:
            weight, bias = self._weights(tensors)
            w = integer_weight(self.node, weight, wp.scale, wp.lo, wp.hi)
            bias = corrected_bias(self.node, tensors, weight, bias, wp.scale, wp.lo, wp.hi)
            b = integer_bias(bias, x_point.scale.double() * wp.scale.double())
            bound = partial_sum_bound(self.node, w, int(x_point.zero_point), x_point.lo, x_point.hi)
            wide = bool((bound + b.detach().abs()).max() >= EXACT)
            return Integers(w, b, chunk_edges(self.node, w, float(bound.max())), wide)

        keys = [*self._sources(tensors), wp.scale, x_point.scale, x_point.zero_point]
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
        scale = point.scale
        leaky = node.attrs.get("act", {}).get("kind") in ("leaky_relu", "prelu")
        if resolved:
            m = self.requantization.ratio()
            v = total * per_channel(m, node, rank).to(total.dtype)
            if leaky:
                m_neg = per_channel(self.requantization.ratio("a_neg", "b_neg"), node, rank)
                v = torch.where(total < 0, total * m_neg.to(total.dtype), v)
        else:
            m = x.point.scale * self.weight_point.scale / scale
            v = total * per_channel(m, node, rank).to(total.dtype)
            if leaky:
                v = self._activate(v, tensors)
        if len(inputs) > 1:
            r = inputs[1]
            ratio = self.requantization.ratio("residual_a", "b")[0] if resolved else r.point.scale / scale
            v = v + r.q * ratio
        if point.observing:
            observe_activated(node, point, v)
        z = int(point.zero_point)
        lo, hi = integer_limits(node.attrs.get("act"), float(scale), z, point.lo, point.hi)
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
    values = (v.detach() * point.scale).float()
    act = node.attrs.get("act")
    point.observer.observe(apply_act(values, act, {}) if act is not None and act["kind"] == "clamp" else values)


def quantize_to(point: QuantPoint | None, y: Tensor) -> Value:
    """Observe ``y`` where the point observes, and put it on the point's grid where it is active."""
    if point is None:
        return y
    if point.observing:
        point.observer.observe(y.detach())
    if not point.active:
        return y
    return Quantized(quantize_ste(y, point.scale, int(point.zero_point), point.lo, point.hi), point)


__all__ = ["Affine", "Integers", "observe_activated", "quantize_to"]
