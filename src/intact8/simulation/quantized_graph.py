"""A placed graph with what quantizes it: what solver, statistics and operations read of a simulation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import Dim
from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph
from intact8.capture.operations import HEAVY
from intact8.placement.place import Placed
from intact8.recipe.recipe import Recipe
from intact8.train.scale_phase import INITIAL, ScalePhase
from intact8.train.snapshot import Verified

from .ops.dispatch import EXACT
from .ops.table import TABLES
from .parameters import Namespace
from .scales.quant_points import QuantPoint, Requantization, Values, WeightPoint
from .scales.table_range import attach_tables
from .tensors import Tensors

AFFINE = HEAVY | {"scale_shift"}
"""Kinds of layers: convolutions, linear maps, and products and sums per channel."""


class QuantizedGraph:
    """The placed graph of a simulation, its quantization points and multipliers, and its tensors.

    Args:
        placed: the graph with integer and float parts decided.
        recipe: what was asked for.

    Attributes:
        module: holds points, multipliers and values per channel; the state dict has them under ``quantizers``.
        points: quantization points of activations, by the name of the module or operation they belong to.
        weight_points: scales per channel of the weights of static layers, by node name.
        coded_points: scales of weights of linear layers and embeddings of the modes dynamic and weight_only.
        recurrent_points: scales of all rows of all weights of LSTM, GRU and RNN layers.
        requantizations: multipliers and tables, by node name.
        tensors: parameters, buffers and constants by name; the simulation sets it when it holds all of them.
        verified: what a forward pass in evaluation found unchanged, while it runs.
    """

    tensors: Tensors

    def __init__(self, placed: Placed, recipe: Recipe) -> None:
        self.placed, self.recipe, self.module = placed, recipe, Namespace()
        self.module._modules["motion"] = ScalePhase(INITIAL[recipe.scales])  # saved state dicts have this name
        self.points: dict[str, QuantPoint] = {}
        self.weight_points: dict[str, WeightPoint] = {}
        self.coded_points: dict[str, WeightPoint] = {}
        self.recurrent_points: dict[str, WeightPoint] = {}
        self.requantizations: dict[str, Requantization] = {}
        self.verified = Verified()
        for name, group in placed.points.items():
            self.points[name] = QuantPoint(name, group.scheme, group.tensors)
            self._attach(name, "activation_point", self.points[name])
        attach_tables(self.graph, self.points, placed.point_of)
        for name, scheme in placed.weights.items():
            op, mode = self.graph.nodes[name].op, placed.coded.get(name)
            table = self.coded_points if mode else self.weight_points
            if op in GATES:  # their formulas are stated for weights in −127 … 127 (docs/arithmetic.md)
                table, scheme = self.recurrent_points, replace(scheme, qmin=max(scheme.qmin_effective, -127))
            portable = bool(recipe.portable) and mode != "weight_only" and op != "embedding"
            free = table is not self.weight_points or name in placed.dequantized
            table[name] = WeightPoint(name, scheme, portable, free=free)
            self._attach(name, "weight_point", table[name])
        for node in self.graph:
            if node.name in placed.point_of and node.op in AFFINE | EXACT.keys() | TABLES:
                self.requantizations[node.name] = Requantization()
                self._attach(node.name, "requantization", self.requantizations[node.name])

    @property
    def graph(self) -> Graph:
        """The placed graph."""
        return self.placed.graph

    @property
    def batched(self) -> bool:
        """Whether dimension 0 of every input is the batch, of which no sample depends on another."""
        first = all(self.graph.nodes[n].shape[:1] == (None,) for n in self.graph.inputs)
        return self.graph.dynamic_batch and first and not self.graph.mixes_samples

    @property
    def all_weight_points(self) -> dict[str, WeightPoint]:
        """Weight points of layers of every mode, by node name."""
        return {**self.weight_points, **self.coded_points, **self.recurrent_points}

    def point(self, node: str) -> QuantPoint | None:
        """Return the quantization point of a node's output; None inside a float island."""
        name = self.placed.point_of.get(node)
        return None if name is None else self.points[name]

    def channel_values(self, node: str, leaf: str, channels: Dim, fill: float) -> str:
        """Attach one number per channel to a node, and return the name of the buffer."""
        assert isinstance(channels, int)
        return self.values(node, leaf, torch.full((channels,), fill))

    def values(self, node: str, leaf: str, values: Tensor) -> str:
        """Attach a tensor to a node, and return the name of the buffer."""
        self._attach(node, leaf, Values(values))
        return f"quantizers.{node}.{leaf}.value"

    def _attach(self, path: str, leaf: str, module: nn.Module) -> None:
        parent: nn.Module = self.module
        for part in path.split("."):
            child = parent._modules.get(part)
            if child is None:
                child = parent._modules[part] = Namespace()
            parent = child
        parent._modules[leaf] = module
