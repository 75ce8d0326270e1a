"""Which scale every quantized tensor gets inside the model, and which results are rounded explicitly.

Scales are free (see ``lowering``), and 1 unless an ``add`` gains by another choice: Σ a_j·(x_j − z_j)/b needs no
multiplications when scale_j / scale_0 = a_j / a_0. Movement ops tie scales together, so this is a weighted union-find
over exact fractions. Scales are integers times a power of two, small enough that 255 of them are a float32: whatever
OpenVINO computes from the ends of a range, (top − low)/255 is the scale itself, and no rounding has to be counted for
it. An add whose ratios would contradict another's, or need larger integers, keeps its multiplication instead.

OpenVINO keeps the clamp but drops the rounding of a FakeQuantize that stands between a convolution and an add. A result
that only adds read is therefore rounded by a Round of its own first, which stays inside the convolution's kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from intact8.opset import KINDS
from intact8.opset.op import Op
from intact8.program.program import Program

MOVES = frozenset(name for name, kind in KINDS.items() if kind.moves and kind.inputs[0])
"""Kinds whose output has the scale of its inputs."""

ROUNDS = frozenset({"conv", "linear", "avg_pool", "adaptive_avg_pool"})
"""Kinds that run as convolutions or products; their result, if only adds read it, is rounded explicitly."""


LARGEST = (1 << 16) - 1
"""255 times this is below 2²⁴."""


@dataclass
class Ratios:
    """Weighted union-find: scale(x) = weight(x)·scale(root of x).

    Attributes:
        values: root → every weight there is below it.
    """

    parent: dict[str, str] = field(default_factory=dict)
    weight: dict[str, Fraction] = field(default_factory=dict)
    values: dict[str, frozenset[Fraction]] = field(default_factory=dict)

    def find(self, name: str) -> tuple[str, Fraction]:
        """Return the root of ``name`` and scale(name)/scale(root)."""
        chain = []
        total = Fraction(1)
        while self.parent.get(name, name) != name:
            chain.append(name)
            name = self.parent[name]
        for link in reversed(chain):
            total *= self.weight[link]
            self.parent[link], self.weight[link] = name, total
        return name, total

    def tie(self, x: str, y: str, ratio: Fraction) -> None:
        """Ask for scale(x) = ratio·scale(y); nothing happens where both are tied to each other already, or where the
        integers that stand for the scales would be too large."""
        (root_x, wx), (root_y, wy) = self.find(x), self.find(y)
        if root_x == root_y:
            return
        step = ratio * wy / wx
        values = self.below(root_y) | {step * v for v in self.below(root_x)}
        if max(values) / _divisor(values) <= LARGEST:
            self.parent[root_x], self.weight[root_x], self.values[root_y] = root_y, step, values

    def below(self, root: str) -> frozenset[Fraction]:
        """Every scale of a root's tensors in scales of the root's."""
        return self.values.get(root, frozenset({Fraction(1)}))

    def scale(self, name: str) -> float:
        """Return an integer times a power of two; the largest of those tied to each other lies in [1, 2)."""
        root, weight = self.find(name)
        values = self.below(root)
        divisor = _divisor(values)
        return math.ldexp(int(weight / divisor), 1 - int(max(values) / divisor).bit_length())


def _divisor(values: Iterable[Fraction]) -> Fraction:
    """Return the largest number of which all ``values`` are integer multiples."""
    values = list(values)
    below = math.lcm(*(v.denominator for v in values))
    return Fraction(math.gcd(*(int(v * below) for v in values)), below)


def rounded(program: Program) -> frozenset[str]:
    """Return the names of the tensors that are rounded before their FakeQuantize."""
    users: dict[str, list[str]] = {}
    for op in program.ops:
        for name in op.inputs:
            users.setdefault(name, []).append(op.kind)
    return frozenset(
        op.name
        for op in program.ops
        if op.kind in ROUNDS
        and op.name not in program.outputs
        and users.get(op.name)
        and set(users[op.name]) <= {"add"}
    )


def reduced(program: Program) -> frozenset[str]:
    """Return the names of the ``dequantize`` ops that read a mean, with or without other operations than products
    between."""
    behind: set[str] = set()
    for op in program.ops:
        if op.kind == "mean" or (op.kind not in ("conv", "linear", "matmul") and not behind.isdisjoint(op.inputs)):
            behind.add(op.name)
    return frozenset(op.name for op in program.ops if op.kind == "dequantize" and op.name in behind)


def choose(program: Program) -> dict[str, float]:
    """Return the scale of every quantized tensor of a checked program."""
    ties = Ratios()
    quantized = [name for name, t in program.tensors.items() if t.quantized]
    for op in program.ops:
        if op.kind in MOVES and program.tensors[op.name].quantized:
            for name in op.inputs:
                ties.tie(name, op.name, Fraction(1))
        if op.kind == "matmul":  # sums of many products stay exact in float32 only where they are of integers
            for name in op.inputs:
                ties.tie(name, "", Fraction(1))
    for op in program.ops:
        if op.kind == "add":
            _tie_terms(ties, op)
    return {name: ties.scale(name) for name in quantized}


def _tie_terms(ties: Ratios, op: Op) -> None:
    a = [abs(int(v)) for v in op.attrs["a"]]
    for name, factor in zip(op.inputs[1:], a[1:], strict=True):
        ties.tie(name, op.inputs[0], Fraction(factor, a[0]))
