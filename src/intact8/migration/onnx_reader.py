"""The reader of graphs of ONNX operators: what they quantize becomes marks and weights, the rest steps of a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.affine import choose_qparams
from intact8.errors import InputError, in_short
from intact8.migration.description import Description
from intact8.migration.grids import RANGES, ActivationGrid, WeightGrid
from intact8.migration.layers import Weights

from .onnx_graph import Array, ForeignGraph, Node
from .onnx_module import Network, Step
from .onnx_operators import OPERATORS, SETTINGS, Function, Operator

SAMPLES = 2
"""Samples of the example where the batch may change."""

MISFITS = (ValueError, TypeError, IndexError, KeyError, RuntimeError, ArithmeticError)
"""What numpy, torch and Python raise where a file's operands, attributes and shapes do not fit each other."""

SAME = 1e-5
"""Relative difference of scales that are one."""


@dataclass(frozen=True)
class Grid:
    """The grid a tensor of integers lies on: its scale (one, or one per channel), zero point and dtype."""

    scale: Array
    zero_point: Array
    dtype: str
    axis: int = 0

    def activation(self, name: str) -> ActivationGrid:
        """Return it as the grid of an activation.

        Raises:
            InputError: there is one scale per channel, or the integers have other than 8 bits.
        """
        if self.scale.size != 1 or self.dtype not in RANGES:
            what = f"an activation of {self.dtype} with {self.scale.size} scales"
            why = "programs hold activations in 8 bits with one scale"
            raise InputError(what, where=name, why=why, remedy="name it in requantize=[…] to have one scale for all")
        ends = RANGES[self.dtype]
        return ActivationGrid(name, float(self.scale.item()), int(self.zero_point.item()), *ends, self.dtype)

    def joined(self) -> Grid:
        """Return the grid of one scale that reaches as far as those of all channels."""
        low, high = RANGES[self.dtype]
        ends = [((end - self.zero_point) * self.scale) for end in (low, high)]
        scale, zero_point = choose_qparams(float(ends[0].min()), float(ends[1].max()), low, high, False)
        return Grid(np.array([scale], np.float64), np.array([zero_point]), self.dtype)

    def same(self, other: Grid) -> bool:
        """Return whether integers of both stand for the same numbers."""
        if self.scale.size != other.scale.size or not np.array_equal(self.zero_point, other.zero_point):
            return False
        return bool(np.allclose(self.scale, other.scale, rtol=SAME, atol=0.0))


class Reader:
    """Translates the nodes of a graph.

    Args:
        graph: what is read.
        requantize: names or globs of layers whose weights may be quantized anew.
        special: operator → what translates it, where that is more than a step of numbers.

    Attributes:
        known: name → constant.
        grids: name → grid of a tensor that holds integers there, and the numbers they stand for here.
        integers: names of tensors that hold integers there; ``grids`` has what they stand for.
        stored: name → constant weight that was dequantized: its integers.
        dynamic: name of what is made of a tensor that is quantized while it runs → what it is ("integers", "scale",
            "zero", "scales", "sums"), the tensor, and what else is known of it.
        joined: names of tensors with one scale here in place of one per channel there.
        loose: names of weights whose integers have scales along several dimensions.
        alias: name of a tensor → the one that it is here.
    """

    def __init__(
        self, graph: ForeignGraph, requantize: Collection[str], special: Mapping[str, Callable[[Reader, Node], None]]
    ) -> None:
        self.special = special
        self.graph = graph
        self.known: dict[str, Array] = dict(graph.constants)
        self.grids: dict[str, Grid] = {}
        self.integers: set[str] = set()
        self.stored: dict[str, WeightGrid] = {}
        self.loose: set[str] = set()
        self.joined: set[str] = set()
        self.dynamic: dict[str, tuple[str, str, Any]] = {}
        self.alias: dict[str, str] = {}
        self.network = Network(list(graph.inputs), ())
        self.described = Description(graph.tool, self.network)
        self.weights = Weights(self.described, requantize)
        self.readers: dict[str, list[Node]] = {}
        self.done: set[str] = set()
        for node in graph.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def read(self) -> Description:
        for name, (dtype, _) in self.graph.inputs.items():
            if dtype in RANGES:
                self._input_of_integers(name)
        for node in self.graph.nodes:
            if node.name in self.done:
                continue
            try:
                self._node(node)
            except MISFITS as error:
                what = f"{node.kind} does not fit its operands"
                raise InputError(what, where=node.name, why=in_short(error), remedy="repair the file") from error
        self.network.outputs = tuple(self.alias.get(name, name) for name in self.graph.outputs)
        constant = [name for name in self.network.outputs if name in self.known]
        if constant:
            raise InputError("an output that is a constant", where=constant[0], remedy="leave it out")
        for name in self.graph.outputs:
            if name in self.grids:
                self.described.notes.append(f"{name}: integers there; here, the numbers they stand for")
        self.described.example = self._example()
        return self.described

    def _example(self) -> tuple[Tensor, ...]:
        made = torch.Generator().manual_seed(0)
        found = []
        for name, (dtype, shape) in self.graph.inputs.items():
            sizes = [n if n is not None else SAMPLES if i == 0 else 8 for i, n in enumerate(shape)]
            if dtype in ("int64", "int32", "bool"):
                found.append(torch.zeros(sizes, dtype=getattr(torch, dtype)))
                continue
            low, high = self._range(name)
            found.append(torch.rand(sizes, generator=made) * (high - low) + low)
        return tuple(found)

    def _range(self, name: str) -> tuple[float, float]:
        """Return the range of the grid an input is quantized to, −1..1 where it has none."""
        grid = next((self.grids[n.outputs[0]] for n in self.readers.get(name, []) if n.kind == "QuantizeLinear"), None)
        grid = self.grids.get(self.alias.get(name, name), grid)
        if grid is None or grid.scale.size != 1:
            return -1.0, 1.0
        low, high = RANGES[grid.dtype]
        z, s = grid.zero_point.item(), grid.scale.item()
        return (low - z) * s, (high - z) * s

    def _input_of_integers(self, name: str) -> None:
        """Let an input of integers be one of the numbers they stand for, by the grid of who reads it first."""
        reader = next((n for n in self.readers.get(name, []) if n.kind in ("DequantizeLinear", "QLinearConv")), None)
        if reader is None:
            raise InputError("an input of integers whose scale is not known", where=name, remedy="give the float one")
        grid = self.grid(reader, 1, 2, self.graph.inputs[name][0])
        self.mark(name, f"{name}.marked", grid, name)
        self.integers.add(name)
        self.alias[name] = f"{name}.marked"
        self.described.notes.append(f"{name}: integers there; here, floats or the integers")

    def mark(self, source: str, result: str, grid: Grid, label: str) -> None:
        """Put a mark behind ``source``; the marked tensor is called ``result``, and has the grid."""
        if grid.scale.size > 1 and grid.dtype in RANGES and self.weights.may_change(label):
            grid = grid.joined()
            self.described.requantized.append(label)
            self.joined.add(result)
        self.grids[result] = grid
        self.integers.add(result)
        mark = self.described.marks.make(grid.activation(label))
        self.network.add(f"{label}_mark", mark, [source], [result])

    def grid(self, node: Node, scale: int, zero: int, dtype: str) -> Grid:
        """Return the grid that two inputs of a node describe."""
        s = self.constant(node, scale)
        if s is None:
            raise InputError(f"{node.kind} without a scale", where=node.name, remedy="repair the file")
        z = self.constant(node, zero)
        z = np.zeros(s.shape, dtype) if z is None else z
        return Grid(
            s.astype(np.float64).reshape(-1), z.astype(np.int64).reshape(-1), str(z.dtype), node.attrs.get("axis", 1)
        )

    def constant(self, node: Node, i: int) -> Array | None:
        if i >= len(node.inputs) or not node.inputs[i]:
            return None
        name = node.inputs[i]
        if name not in self.known:
            raise InputError(f"a computed scale of {node.kind}", where=node.name, why="it changes from call to call")
        return self.known[name]

    def name(self, name: str) -> str:
        return self.alias.get(name, name)

    def _node(self, node: Node) -> None:
        special = self.special.get(node.kind)
        if special is not None:
            special(self, node)
        elif node.kind in OPERATORS:
            self.plain(node, OPERATORS[node.kind])
        else:
            what = f"the operator {node.kind} is not known"
            raise InputError(what, where=node.name, remedy="export the network without it, or migrate its parts")

    def plain(self, node: Node, make: Callable[[Operator], Function]) -> None:
        """Add an operator of numbers, or compute it now where all it reads is known."""
        self.refuse_integers(node)
        known = {i: self.known[name] for i, name in enumerate(node.inputs) if name in self.known}
        settings = set(SETTINGS.get(node.kind, ()))
        if node.kind == "Gather" and 1 in known and 0 not in known:
            settings = {1}
        if node.kind == "Pad" and node.inputs[0] in self.integers:
            # What is put around integers is an integer, 0 where none is given; the numbers are padded with its number.
            grid = self.grids[self.name(node.inputs[0])]
            known[2] = (known.get(2, np.zeros(())).astype(np.float64) - grid.zero_point.item()) * grid.scale.item()
        function = make(Operator(node, known))
        operands = [(i, name) for i, name in enumerate(node.inputs) if name and i not in settings]
        names = {name for _, name in operands}
        if names and names <= self.known.keys() and names.isdisjoint(self.stored):
            self._fold(node, function, [self.known[name] for _, name in operands])
            return
        reads = [self.name(name) for _, name in operands if name not in self.known]
        places = [name for _, name in operands]
        stored = {i: tensor_of(self.known[name]) for i, name in enumerate(places) if name in self.known}
        module = self.network.add(node.name, Step(function, stored), reads, node.outputs)
        for i, name in enumerate(places):
            if name in self.stored and i in stored:
                self._constant_operand(node, module, i, self.stored[name])
        if node.kind in MOVES and reads and reads[0] in self.grids:
            for name in node.outputs:
                self.grids[name] = self.grids[reads[0]]
            if node.inputs[0] in self.integers:
                self.integers.update(node.outputs)

    def refuse_integers(self, node: Node) -> None:
        """Refuse an operator that does more with integers than to move those of one grid."""
        grids = [self.grids[self.name(name)] for name in node.inputs if name in self.integers]
        if grids and node.kind not in {*MOVES, "Shape"}:
            remedy = "dequantize what it reads, as in QDQ form"
            raise InputError(f"{node.kind} of integers", where=node.name, why="it reads them as numbers", remedy=remedy)
        if any(not grid.same(grids[0]) for grid in grids):
            raise InputError(
                f"{node.kind} of integers of several grids", where=node.name, remedy="export it in QDQ form"
            )

    def _fold(self, node: Node, function: Function, values: list[Array]) -> None:
        try:
            made = function(*(tensor_of(v) for v in values))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"{node.kind} of constants fails", where=node.name, why=in_short(error)) from error
        results = made if isinstance(made, tuple) else (made,)
        self.known |= {name: y.numpy() for name, y in zip(node.outputs, results, strict=True)}

    def _constant_operand(self, node: Node, module: str, i: int, grid: WeightGrid) -> None:
        """Tell of a quantized constant that is no layer's weight."""
        self.described.notes.append(f"{node.name}: its constant {grid.name} is quantized anew, in 8 bits, or float")


Translate = Callable[[Reader, Node], None]


def tensor_of(value: Array) -> Tensor:
    """Return a copy of an array."""
    return torch.from_numpy(np.array(value, order="C"))


def _quantize(r: Reader, node: Node) -> None:
    source, dtype = node.inputs[0], "uint8"
    grid = r.grid(node, 1, 2, dtype)
    if source in r.known:  # a stored weight that is quantized where it runs
        _store_quantized(r, node, r.known[source], grid)
        return
    before = r.grids.get(r.name(source))
    if before is not None and before.same(grid):
        r.alias[node.outputs[0]] = r.name(source)
        r.integers.add(node.outputs[0])
        return
    r.mark(r.name(source), node.outputs[0], grid, source)


def _store_quantized(r: Reader, node: Node, value: Array, grid: Grid) -> None:
    shape = _along(value, grid)
    low, high = RANGES.get(grid.dtype, (0, 0))
    q = np.clip(np.rint(value / grid.scale.reshape(shape)) + grid.zero_point.reshape(shape), low, high)
    r.known[node.outputs[0]] = q.astype(grid.dtype)


def _along(value: Array, grid: Grid) -> list[int]:
    return [-1 if i == grid.axis % max(value.ndim, 1) and grid.scale.size > 1 else 1 for i in range(value.ndim)]


def dequantize(r: Reader, node: Node) -> None:
    """Let the numbers that integers stand for be those that were quantized, or those of a stored weight."""
    source, result = node.inputs[0], node.outputs[0]
    if source in r.known:
        scale = r.constant(node, 1)
        if scale is not None and scale.ndim > 1:  # along several dimensions
            zero = r.constant(node, 2)
            r.known[result] = ((r.known[source] - np.float32(0 if zero is None else zero)) * scale).astype(np.float32)
            r.loose.add(result)
            return
        store(r, result, source, r.grid(node, 1, 2, str(r.known[source].dtype)))
        return
    name = r.name(source)
    grid, before = r.grid(node, 1, 2, "uint8"), r.grids.get(name)
    if before is None:
        raise InputError("integers without a scale are dequantized", where=node.name, remedy="repair the graph")
    if before.same(grid) or name in r.joined:
        r.alias[result] = name
        return
    if grid.scale.size != 1 or not np.array_equal(before.zero_point, grid.zero_point):
        what = "a tensor is dequantized with another zero point than it was quantized with"
        raise InputError(what, where=node.name, remedy="repair the graph")
    factor = float(grid.scale.item() / before.scale.item())
    r.network.add(node.name, Step(lambda x: x * factor, {}), [name], [result])


def store(r: Reader, result: str, source: str, grid: Grid) -> None:
    """Store what integers stand for; those of 8 bits are remembered as a weight's."""
    q = r.known[source]
    if q.dtype == np.int32 or grid.scale.size not in (1, q.shape[grid.axis % q.ndim] if q.ndim else 1):
        shape = _along(q, grid)
        r.known[result] = ((q - grid.zero_point.reshape(shape)) * grid.scale.reshape(shape)).astype(np.float32)
        return
    axis = grid.axis % q.ndim if q.ndim and grid.scale.size > 1 else 0
    weight = WeightGrid(source, q, grid.scale, grid.zero_point, axis)
    r.known[result], r.stored[result] = weight.values(), weight


def _limit(kind: str, r: Reader, node: Node) -> None:
    """Build a maximum or minimum; with a number, it is a clamp."""
    numbers = [name for name in node.inputs if name in r.known and r.known[name].size == 1]
    if len(node.inputs) != 2 or len(numbers) != 1:
        r.plain(node, OPERATORS[node.kind])
        return
    r.refuse_integers(node)
    (source,) = (name for name in node.inputs if name not in numbers)
    limit = float(r.known[numbers[0]].item())

    def clamp(x: Tensor) -> Tensor:
        return torch.clamp(x, min=limit) if kind == "min" else torch.clamp(x, max=limit)

    r.network.add(node.name, Step(clamp, {}), [r.name(source)], node.outputs)


def _constant_node(r: Reader, node: Node) -> None:
    value = next(
        (node.attrs[k] for k in ("value", "value_float", "value_int", "value_floats", "value_ints") if k in node.attrs),
        None,
    )
    if value is None:
        raise InputError("a constant of another kind than numbers", where=node.name)
    dtype = {float: np.float32, int: np.int64}.get(type(value))
    r.known[node.outputs[0]] = np.asarray(value, dtype)


MOVES = frozenset({
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "MaxPool", "Concat", "Pad",
    "Identity", "Dropout", "Resize", "Expand",
})  # fmt: skip
"""Operators whose results have the integers of what they read, where they read integers."""

QDQ: dict[str, Translate] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": dequantize,
    "Max": partial(_limit, "min"),
    "Min": partial(_limit, "max"),
    "Constant": _constant_node,
}
"""Operator → what translates it."""
