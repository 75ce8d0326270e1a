"""The subjects of lint: the base that every kind of subject shares, and programs. This module does not need torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.diagnose.channel_weights import channel_scales, has_channel_scales
from intact8.opset import KINDS, dequantized
from intact8.opset.affine import by_output
from intact8.opset.op import Op
from intact8.program.provenance import well_formed

from .rule import PROGRAM, NeedsError
from .views import GraphView, NodeView, PointView, WeightView, numbers

if TYPE_CHECKING:
    from intact8.program.program import Program

    from .data_statistics import DataStatistics

CLAMPS = frozenset({"relu", "clamp"})
"""Functions that the layer before them could compute by its own clamp."""
WANTED = "the recipe keeps it float"
SAME = 1.05
"""Making multipliers tie-free moves the scales of channels that shared one apart, by less than this factor."""


class Subject:
    """What rules take: views of one network, and what the user gave along with it.

    Attributes:
        kind: one of ``intact8.diagnose.lint.rule.KINDS``.
        name: name of the file or the class, for people.
        optimizer, schedule: as given, or None.
    """

    kind: str

    def __init__(self, name: str, optimizer: Any = None, schedule: Any = None) -> None:
        self.name, self.optimizer, self.schedule = name, optimizer, schedule

    @property
    def points(self) -> list[PointView]:
        """Quantization points of activations and weights."""
        return []

    @property
    def weights(self) -> list[WeightView]:
        """Weights that are, or will be, quantized."""
        return []

    @property
    def graph(self) -> GraphView:
        """The graph with its integer and float parts. Raises NeedsError where there is none."""
        raise NeedsError("a graph")

    @property
    def data_statistics(self) -> DataStatistics:
        """Statistics of the given data. Raises NeedsError where none were given."""
        raise NeedsError("data")

    @property
    def reach(self) -> int:
        """The largest integer of an activation. Raises NeedsError where it cannot be known."""
        return 255

    @property
    def calibration(self) -> Mapping[str, Any]:
        """What calibration recorded; empty where it did not run, or records nothing."""
        return {}

    def required(self, name: str) -> Any:
        """Return the attribute "data", "optimizer" or "schedule". Raises NeedsError where it was not given."""
        if getattr(self, name) is None:
            raise NeedsError(name)
        return getattr(self, name)


class ProgramSubject(Subject):
    """A program.

    Attributes:
        program: the program.
    """

    kind = PROGRAM

    def __init__(self, program: Program, name: str) -> None:
        super().__init__(name)
        self.program = replace(program, provenance=well_formed(program.provenance))

    @staticmethod
    def load(path: str | Path) -> ProgramSubject:
        """Load a program file. Raises ProgramError where it is not one."""
        from intact8.program.program import Program

        return ProgramSubject(Program.load(path), Path(path).as_posix())

    @property
    def calibration(self) -> Mapping[str, Any]:
        """What the file records of calibration."""
        found = self.program.provenance.get("calibration")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def points(self) -> list[PointView]:
        """One point per quantized tensor."""
        out = []
        recorded = self.calibration.get("points", {})
        for name, t in self.program.tensors.items():
            if t.scale is not None:
                known = recorded.get(name.removesuffix(".quantize"), {})
                low, high = (np.nan if known.get(end) is None else float(known[end]) for end in ("minimum", "maximum"))
                seen = None if known.get("minimum") is None else True
                grid = numbers(t.scale), np.array([t.zero_point or 0])
                out.append(PointView(name, *grid, 0, 255, seen=seen, minimum=low, maximum=high))
        return out

    @cached_property
    def weights(self) -> list[WeightView]:
        """The weights of every conv and linear, as real numbers and as integers."""
        out = []
        for op in self.program.ops:
            if has_channel_scales(op):
                integers, scales = by_output(op), channel_scales(self.program, op)
                per_channel = bool(scales.max() > SAME * scales.min())
                out.append(WeightView(op.name, integers * scales[:, None], per_channel, integers))
        return out

    @cached_property
    def graph(self) -> GraphView:
        """The operations of the program."""
        inputs = [NodeView(name, "input", "", (), "source") for name in self.program.inputs]
        return GraphView([*inputs, *map(self._node, self.program.ops)], frozenset(self.program.outputs))

    def _node(self, op: Op) -> NodeView:
        kind, name = KINDS[op.kind], op.kind.removeprefix("float.")
        domain = "integer" if self.program.tensors[op.name].quantized else "float"
        if not op.inputs:
            domain = "source"
        elif kind.domain in ("quantize", "dequantize"):
            domain = kind.domain
        elif kind in dequantized.KINDS:
            domain = "integer"
        elif kind.domain == "dynamic" or "bits" in kind.attrs:
            domain = "dynamic"
        moves = kind.moves and bool(op.inputs) and not op.is_float
        activation = op.attrs.get("fn", name) in CLAMPS
        place = op.name, name, op.module, op.inputs, domain
        return NodeView(*place, moves, is_heavy(name), op.note, WANTED in op.note, activation=activation)


def is_heavy(name: str) -> bool:
    """Return whether operations of this name multiply by a weight, or two activations with each other (matrix
    products)."""
    kind = KINDS.get(name)
    return kind is not None and (kind.multiplies_weights or kind.multiplies_activations)
