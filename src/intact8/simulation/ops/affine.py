"""conv, linear and per-channel products: one exact sum, one rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import apply_act
from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import EXACT, chunk_edges, convolve, per_channel
from intact8.simulation.ops.integer_conv import Exact, weighted_sum
from intact8.simulation.ops.integer_op import finish, output_limits, quantize_to, watcher
from intact8.simulation.quantized_tensor import Quantized, Value, real
from intact8.simulation.scales.quant_points import QuantPoint, Requantization, WeightPoint
from intact8.simulation.weights.folding import apply_batch_norm, batch_norm_factor, factored, fold_before, folded
from intact8.simulation.weights.grid import Grid, Limits, on_grid, times
from intact8.simulation.weights.layout import output_first, per_input, per_output, transposed
from intact8.simulation.weights.quantize import corrected_bias, integer_bias, pair_limits, partial_sum_bound
from intact8.train.fused_batch_norm import can_fuse, count_batch, normalize_round
from intact8.train.snapshot import Snapshot
from intact8.train.straight_through import forward_as


@dataclass
class Integers:
    """A layer's integers for one input point: what is computed once in evaluation, every step in training."""

    grid: Grid
    bias: Tensor
    scale: Tensor

    @property
    def weight(self) -> Tensor:
        """The integers, float32, in the module's layout."""
        return self.grid.q


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
        if live is not None:
            self._cache.clear()  # batch norm writes its running statistics without counting a version
            return self._live(inputs, tensors, live)
        active = self.point is not None and self.point.active
        if active and self._rounds_weights and all(isinstance(v, Quantized) for v in inputs):
            return self._exact(inputs, tensors, resolved)  # type: ignore[arg-type]
        return quantize_to(self.point, self._float(inputs, tensors))

    # -- weights ----------------------------------------------------------------------------------------------

    def _grid(self, weight: Tensor, factor: Tensor | None) -> tuple[Grid, Tensor]:
        """Integers of ``weight·factor``, and the scales (O,) of their grid."""
        wp, node, numbers = self.weight_point, self.node, times(weight, factor)
        assert wp is not None
        scale = self._scale(wp, numbers)
        limits = None if wp.holds_all else Limits(wp.lo, wp.hi)
        if wp.clips_pairs:
            limits = pair_limits(node, numbers, scale, wp.lo, wp.hi)
        s = per_output(scale, weight, node)
        return on_grid(weight, factor, s, limits, numbers), scale

    def _scale(self, wp: WeightPoint, weight: Tensor) -> Tensor:
        """The weight scales forward uses now."""
        if not wp.moving:
            return wp.scale
        if self.node.op == "scale_shift":
            return wp.live_scale(weight.reshape(-1, 1))
        return wp.live_scale(output_first(weight, self.node))

    @property
    def _rounds_weights(self) -> bool:
        return self.weight_point is not None and self.weight_point.quantizing and self.weight_point.known

    # -- float ------------------------------------------------------------------------------------------------

    def _float(self, inputs: list[Value], tensors: Mapping[str, Tensor]) -> Tensor:
        x = real(inputs[0])
        if self._rounds_weights:
            grid, scale, bias = self._real_grid(tensors)
            y = weighted_sum(self.node, x, grid, scale, bias)
        else:
            weight, bias = self._cached("folded", self._sources(tensors), lambda: folded(self.node, tensors))
            y = convolve(self.node, x, weight, bias)
        if len(inputs) > 1:
            y = y + real(inputs[1])
        return self._activate(y, tensors)

    def _real_grid(self, tensors: Mapping[str, Tensor]) -> tuple[Grid, Tensor, Tensor | None]:
        """Integer weights, their scales and the bias in real numbers."""
        wp = self.weight_point
        assert wp is not None

        def make() -> tuple[Grid, Tensor, Tensor | None]:
            weight, factor, bias = factored(self.node, tensors)
            return *self._grid(weight, factor), bias

        if wp.moving:
            return make()
        found: tuple[Grid, Tensor, Tensor | None]
        found = self._cached("grid", [*self._sources(tensors), wp.scale], make)
        return found

    def codes(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the integer weight and its scales, (O,) or (O, groups)."""
        grid, scale, _ = self._real_grid(tensors)
        return grid.q, scale

    def _activate(self, y: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        p = self.node.params
        return apply_act(y, self.node.attrs.get("act"), {k: tensors[v] for k, v in p.items() if k.startswith("act.")})

    def _slope(self, tensors: Mapping[str, Tensor]) -> Tensor | float:
        act = self.node.attrs["act"]
        return float(act["slope"]) if act["kind"] == "leaky_relu" else tensors[self.node.params["act.weight"]]

    # -- live batch norm --------------------------------------------------------------------------------------

    def _live(self, inputs: list[Value], tensors: Mapping[str, Tensor], live: LiveBatchNorms) -> Value:
        """Training with live batch statistics: weights are rounded on the grid of the folded weight, the factors are
        divided out again, and batch norm normalizes by the batch (Krishnamoorthi 2018, section 3.2.1)."""
        node, p, point = self.node, self.node.params, self.point
        z = self._unfolded(inputs[0], tensors, live)
        if point is not None and live.after is not None and len(inputs) == 1 and self._fuses(point, live.after, z):
            return Quantized(self._normalized(z, tensors, live.after, point), point)
        if live.after is not None:
            z = live.after(z)
        elif "bn" in node.attrs:
            z = apply_batch_norm(node, tensors, z)
        if "equalize.out" in p:
            z = z / per_channel(tensors[p["equalize.out"]], node, z.dim())
        if len(inputs) > 1:
            z = z + real(inputs[1])
        return quantize_to(point, self._activate(z, tensors))

    def _fuses(self, point: QuantPoint, norm: torch.nn.Module, z: Tensor) -> bool:
        """Whether nothing but a fused clamp stands between ``norm`` and the rounding."""
        clamps = self.node.attrs.get("act", {}).get("kind", "clamp") == "clamp"
        return clamps and point.active and not point.learns_ends and can_fuse(norm, z)

    def _normalized(self, z: Tensor, tensors: Mapping[str, Tensor], norm: Any, point: QuantPoint) -> Tensor:
        """Batch norm, fused clamp and rounding in steps of the output, which cost γ and β a division."""
        node, step = self.node, point.live_scale
        if "equalize.out" in node.params:
            step = step * tensors[node.params["equalize.out"]]
        ones = torch.ones(z.shape[1], device=z.device)
        weight = (ones if norm.weight is None else norm.weight) / step
        bias = (0 * ones if norm.bias is None else norm.bias) / step
        z_y, (lo, hi), watch = int(point.zero_point), output_limits(node, point), watcher(node, point)
        return normalize_round(z, weight, bias, count_batch(norm), lo - z_y, hi - z_y, watch, first=point.learns_range)

    def _unfolded(self, value: Value, tensors: Mapping[str, Tensor], live: LiveBatchNorms) -> Tensor:
        """The sum in front of a live batch norm, or behind one (``pre``)."""
        node, p = self.node, self.node.params
        bias = tensors[p["bias"]] if "bias" in p else None
        if "weight" not in p:
            return real(value)
        weight = tensors[p["weight"]]
        if "equalize.in" in p:
            weight = weight * per_input(tensors[p["equalize.in"]], weight, node)
        factor = self._folded_factor(weight, tensors)
        if "pre" in node.attrs:
            x = real(value) if live.before is None else live.before(real(value))
            if self._rounds_weights:
                grid, scale = self._grid(weight, factor)
                weight = grid.tensor() * (per_output(scale, weight, node) / factor)
            if live.before is None:
                weight, bias = fold_before(node, tensors, weight, bias)
            return convolve(node, x, weight, bias)
        if not self._rounds_weights:
            return convolve(node, real(value), weight, bias)
        grid, scale = self._grid(weight, factor)
        if transposed(node):
            factor = output_first(factor.expand_as(weight), node)[:, :1]
        m = scale / factor.reshape(-1)
        if isinstance(value, Quantized):
            return weighted_sum(node, value.q, grid, m * value.point.live_scale, bias)
        return weighted_sum(node, value, grid, m, bias)

    def _folded_factor(self, weight: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """What folding multiplies the weight by, zeros replaced by one; broadcasts against ``weight``."""
        node, p = self.node, self.node.params
        factor = torch.ones([1] * weight.dim(), device=weight.device)
        if "pre" in node.attrs:
            factor = factor * per_input(batch_norm_factor(node, tensors, "pre"), weight, node)
        if "bn" in node.attrs:
            after = batch_norm_factor(node, tensors)
            if "equalize.out" in p:
                after = after / tensors[p["equalize.out"]]
            factor = factor * per_output(after, weight, node)
        return torch.where(factor == 0, torch.ones_like(factor), factor)

    # -- exact ------------------------------------------------------------------------------------------------

    def integers(self, x_point: QuantPoint, tensors: Mapping[str, Tensor]) -> Integers:
        """Integer weight and bias for inputs of ``x_point``; the one place where they are made."""
        wp = self.weight_point
        assert wp is not None

        def make() -> Integers:
            weight, factor, bias = factored(self.node, tensors)
            grid, scale = self._grid(weight, factor)
            if "correct.mean" in self.node.params:
                whole = weight if factor is None else weight * factor
                bias = corrected_bias(self.node, tensors, whole, bias, scale, wp.lo, wp.hi)
            return Integers(grid, integer_bias(bias, x_point.live_scale.double() * scale.double()), scale)

        if wp.moving:
            return make()
        keys = [*self._sources(tensors), wp.scale, x_point.live_scale, x_point.zero_point]
        found: Integers = self._cached("integers", keys, make)
        return found

    def _exact_sum(self, n: Integers, x_point: QuantPoint) -> Exact:
        """How sums with these integers are computed exactly."""

        def decide() -> Exact:
            bias = n.bias.detach()
            bound = partial_sum_bound(self.node, n.weight, int(x_point.zero_point), x_point.lo, x_point.hi)
            wide = bool((bound + bias.abs()).max() >= EXACT)
            return Exact(bias, chunk_edges(self.node, n.weight, float(bound.max())), wide)

        found: Exact = self._cached("exact", [n.weight, n.bias, x_point.zero_point], decide)
        return found

    def _exact(self, inputs: list[Quantized], tensors: Mapping[str, Tensor], resolved: bool) -> Quantized:
        node, x, point, req = self.node, inputs[0], self.point, self.requantization
        assert point is not None and req is not None
        n = self.integers(x.point, tensors)
        scale = point.live_scale
        leaky = node.attrs.get("act", {}).get("kind") in ("leaky_relu", "prelu")
        # Multipliers that are rationals have the gradients of the scales they stand for. Where they are not, neither
        # are sums exact: float32 noise in them is as good as in the multiplier.
        nominal = x.point.live_scale * n.scale / scale
        m = forward_as(req.ratio(), nominal) if resolved else nominal
        exact = self._exact_sum(n, x.point) if resolved else None
        if leaky and resolved:
            total = weighted_sum(node, x.q, n.grid, torch.ones_like(m.detach()), n.bias, exact)
            m_neg = forward_as(req.ratio("a_neg", "b_neg"), nominal * self._slope(tensors))
            positive, negative = (total * per_channel(r, node, total.dim()).to(total.dtype) for r in (m, m_neg))
            v = torch.where(total < 0, negative, positive)
        else:
            v = weighted_sum(node, x.q, n.grid, m, n.bias.to(m.dtype) * m, exact)
            if leaky:
                v = self._activate(v, tensors)
        if len(inputs) > 1:
            r = inputs[1]
            ratio = r.point.live_scale / scale
            if resolved:
                ratio = forward_as(req.ratio("residual_a", "b")[0], ratio)
            v = v + r.q * ratio
        return finish(node, v, point)

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
