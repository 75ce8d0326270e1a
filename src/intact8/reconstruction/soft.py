"""A block with roundings and scales that an optimizer can move."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from intact8.arithmetic.torch_float_ops import apply_act
from intact8.capture.graph import Node
from intact8.simulation.ops.affine import Affine
from intact8.simulation.ops.exact_sums import convolve
from intact8.simulation.ops.integer_op import float_result
from intact8.simulation.quantized_tensor import real
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import folded, own_params
from intact8.simulation.weights.layout import groups_of, per_input, per_output
from intact8.train.straight_through import round_ste

from .gptq import largest_integers

LOW, HIGH = -0.1, 1.1
"""Ends of the stretched sigmoid (Louizos et al. 2018), which is cut to 0…1."""


class SoftRounding:
    """The weight of a layer between the two integers next to every number (AdaRound, Nagel et al. 2020).

    Attributes:
        value: the parameter, in the weight's layout: the logit of how much of a step is added to the lower integer.
    """

    def __init__(self, sim: Simulation, node: Node) -> None:
        point = sim.weight_points[node.name]
        self.node, self.tensors = node, sim.tensors
        weight, bias = folded(node, sim.tensors)
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.scale = per_output(point.scale, self.weight, node)
        numbers = self.weight / self.scale
        rows = self.weight.reshape(groups_of(node), len(self.weight) // groups_of(node), -1)
        limit = largest_integers(rows, point.scale.reshape(len(rows), -1), point)
        self.limit = limit.reshape(self.weight.shape)
        self.floor = numbers.floor()
        rest = (numbers - self.floor).clamp(0.001, 0.999)
        self.value = nn.Parameter(-torch.log((HIGH - LOW) / (rest - LOW) - 1))

    def share(self) -> Tensor:
        """Return how much of a step is added to the lower integer, 0…1."""
        return (torch.sigmoid(self.value) * (HIGH - LOW) + LOW).clamp(0, 1)

    def integers(self, *, hard: bool) -> Tensor:
        """Return the integers, or with ``hard`` false numbers between them."""
        added = (self.value.detach() >= 0).float() if hard else self.share()
        return torch.minimum(torch.maximum(self.floor + added, -self.limit), self.limit)

    def sum(self, x: Tensor, *, hard: bool = False) -> Tensor:
        """Return the layer's sum, its bias corrected for the mean error of the rounded weight where the layer's is."""
        weight, bias = self.integers(hard=hard) * self.scale, self.bias
        if "correct.mean" in self.node.params:
            mean = per_input(self.tensors[self.node.params["correct.mean"]], weight, self.node)
            shift = ((weight - self.weight) * mean).flatten(1).sum(1)
            bias = -shift if bias is None else bias - shift
        return convolve(self.node, x, weight, bias)

    def undecided(self, power: float) -> Tensor:
        """Return the mean of 1 − |2h − 1|^power over all weights (Nagel et al. 2020, equation 24)."""
        return (1 - (2 * self.share() - 1).abs().pow(power)).mean()

    def steps(self) -> Tensor:
        """Return what is added to the weight in steps before it is rounded."""
        return self.integers(hard=True) - self.weight / self.scale


class SoftQuantizer:
    """Rounding of activations with a scale and a zero point that are learned (Esser et al. 2020, Bhalgat et al. 2020).

    Attributes:
        value: the logarithm of the scale.
        zero_point: in the uint8 domain; rounded when it is used.
    """

    def __init__(self, point: QuantPoint, *, learned: bool) -> None:
        self.point = point
        self.value = nn.Parameter(point.scale.log().clone(), requires_grad=learned)
        moves = learned and not point.scheme.symmetric and int(point.zero_point) > point.lo
        self.zero_point = nn.Parameter(point.zero_point.float().clone(), requires_grad=moves)

    def rounded(self, x: Tensor) -> Tensor:
        """Return the rounded values."""
        scale, zero = self.value.exp(), round_ste(self.zero_point)
        q = round_ste(x / scale + zero).clamp(self.point.lo, self.point.hi)
        return (q - zero) * scale

    def store(self) -> None:
        """Write scale and zero point to the point."""
        zero_point = min(max(round(float(self.zero_point)), self.point.lo), self.point.hi)
        self.point.assign(math.exp(float(self.value)), zero_point)


class SoftBlock:
    """The nodes of a block on real numbers, rounded where the simulation rounds.

    Args:
        sim: the simulation.
        nodes: of the block, in the size of a batch.
        learned: names of the points whose scales may move: no node outside of the block has them.
    """

    def __init__(self, sim: Simulation, nodes: list[Node], learned: set[str]) -> None:
        self.sim, self.nodes = sim, [node for node in nodes if node.op != "input"]
        rounds = [n for n in self.nodes if "correct.rounding" in n.params and sim.point(n.name) is not None]
        self.roundings = {node.name: SoftRounding(sim, node) for node in rounds}
        points = {p.name: p for n in self.nodes if (p := sim.point(n.name)) is not None}
        self.quantizers = {name: SoftQuantizer(p, learned=name in learned) for name, p in points.items()}

    def __call__(
        self, values: dict[str, Tensor], drop: float, generator: torch.Generator | None, *, hard: bool = False
    ) -> dict[str, Tensor]:
        """Return all values of the block.

        Args:
            values: inputs of the block.
            drop: share of the activations that are not rounded (QDrop, Wei et al. 2022).
            generator: decides which.
            hard: round weights to integers.
        """
        values = dict(values)
        for node in self.nodes:
            inputs = [values[name] for name in node.inputs]
            y = self._value(node, inputs, self.roundings.get(node.name), hard=hard)
            point = self.sim.point(node.name)
            if point is not None and not node.shares_grid:
                rounded = self.quantizers[point.name].rounded(y)
                if drop:
                    random = torch.rand(y.shape, generator=generator, device=y.device)
                    rounded = torch.where(random < drop, y, rounded)
                y = rounded
            values[node.name] = y
        return values

    def undecided(self, power: float) -> Tensor:
        """Return how far roundings are from integers, the mean over all weights; see :class:`SoftRounding`."""
        sizes = [rounding.value.numel() for rounding in self.roundings.values()]
        parts = [rounding.undecided(power) * rounding.value.numel() for rounding in self.roundings.values()]
        return torch.stack(parts).sum() / sum(sizes)

    def store(self) -> None:
        """Write roundings and learned scales to the simulation."""
        for node, rounding in self.roundings.items():
            name = self.sim.graph.nodes[node].params["correct.rounding"]
            self.sim.tensors[name].copy_(rounding.steps())
        for quantizer in self.quantizers.values():
            if quantizer.value.requires_grad:
                quantizer.store()

    def _value(self, node: Node, inputs: list[Tensor], rounding: SoftRounding | None, *, hard: bool) -> Tensor:
        sim = self.sim
        if rounding is not None:
            y = rounding.sum(inputs[0], hard=hard)
            if len(inputs) > 1:
                y = y + inputs[1]
            params = {k: sim.tensors[v] for k, v in node.params.items() if k.startswith("act.")}
            return apply_act(y, node.attrs.get("act"), params)
        layer = sim.layer_ops.get(node.name)
        if isinstance(layer, Affine):
            y = layer.real_sum(inputs[0]) if node.name in sim.weight_points else real(layer([*inputs], None, False))
            params = {k: sim.tensors[v] for k, v in node.params.items() if k.startswith("act.")}
            return apply_act(y, node.attrs.get("act"), params) if node.name in sim.weight_points else y
        if layer is not None or node.name in sim.recurrent_points:
            return real(sim.compute(node, [*inputs], False))
        if node.op in ("quantize", "dequantize"):
            return inputs[0]
        return float_result(node, inputs, {k: v.detach() for k, v in own_params(node, sim.tensors).items()})
