"""What is looked at: the base that every kind of subject shares, and programs. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.opset import KINDS
from intact8.opset.affine import by_output
from intact8.program.provenance import well_formed

from .rule import PROGRAM, NeedsError
from .views import GraphView, NodeView, PointView, WeightView

if TYPE_CHECKING:
    from intact8.diagnose.lint.data_statistics import Seen
    from intact8.program.program import Program

HEAVY = frozenset({"conv", "linear", "matmul", "scaled_dot_product_attention"})
WANTED = "the recipe keeps it float"
SAME = 1.05
"""Making multipliers tie-free moves the scales of channels that shared one apart, by less than this."""


class Subject:
    """What rules take: views of one network, and what the user gave along with it.

    Attributes:
        kind: one of ``intact8.diagnose.lint.rule.KINDS``.
        name: of the file or the class, for people.
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
        """The graph with its integer and float parts. Raises NeedsError where it cannot be had."""
        raise NeedsError("a graph")

    @property
    def seen(self) -> Seen:
        """What the given data showed. Raises NeedsError where none was given."""
        raise NeedsError("data")

    @property
    def reach(self) -> int:
        """The largest integer of an activation. Raises NeedsError where it cannot be known."""
        return 255

    @property
    def calibration(self) -> Mapping[str, Any]:
        """What calibration recorded; empty where it did not run, or records nothing."""
        return {}

    def require_optimizer(self) -> Any:
        """The optimizer. Raises NeedsError where none was given."""
        if self.optimizer is None:
            raise NeedsError("optimizer")
        return self.optimizer

    def require_schedule(self) -> Any:
        """The schedule. Raises NeedsError where none was given."""
        if self.schedule is None:
            raise NeedsError("schedule")
        return self.schedule


class SavedSubject(Subject):
    """A program.

    Attributes:
        program: the program.
    """

    kind = PROGRAM

    def __init__(self, program: Program, name: str) -> None:
        super().__init__(name)
        self.program = replace(program, provenance=well_formed(program.provenance))

    @staticmethod
    def load(path: str | Path) -> SavedSubject:
        """From a file. Raises ProgramError where it is none."""
        from intact8.program.program import Program

        return SavedSubject(Program.load(path), Path(path).as_posix())

    @property
    def calibration(self) -> Mapping[str, Any]:
        """As the file records it."""
        found = self.program.provenance.get("calibration")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def points(self) -> list[PointView]:
        """One per distinct scale: the first tensor that has it."""
        out = []
        recorded = self.calibration.get("points", {})
        for name, t in self.program.tensors.items():
            if t.scale is None:
                continue
            known = recorded.get(name.removesuffix(".quantize"), {})
            low, high = known.get("minimum"), known.get("maximum")
            out.append(
                PointView(
                    name,
                    np.array([t.scale], np.float64),
                    np.array([t.zero_point or 0]),
                    0,
                    255,
                    seen=None if low is None else True,
                    minimum=np.nan if low is None else float(low),
                    maximum=np.nan if high is None else float(high),
                )
            )
        return out

    @cached_property
    def weights(self) -> list[WeightView]:
        """Every conv and linear, dequantized: row c is wanted on the grid of channel c."""
        out = []
        for op in self.program.ops:
            if op.kind in ("conv", "linear"):
                integers = by_output(op)
                a, b = op.multipliers()
                s_x = float(self.program.tensors[op.inputs[0]].scale or 1.0)
                s_y = float(self.program.tensors[op.name].scale or 1.0)
                scale = a / b * s_y / s_x
                per_channel = bool(scale.max() > SAME * scale.min())
                out.append(WeightView(op.name, integers * scale[:, None], per_channel, integers))
        return out

    @cached_property
    def graph(self) -> GraphView:
        """Its operations."""
        program, nodes = self.program, [NodeView(n, "input", "", (), "source") for n in self.program.inputs]
        for op in program.ops:
            kind = op.kind.removeprefix("float.")
            if op.kind in ("quantize", "dequantize"):
                domain = "transition"
            elif kind == "constant":
                domain = "source"
            else:
                domain = "integer" if program.tensors[op.name].quantized else "float"
                if KINDS[op.kind].domain == "dynamic" or op.kind == "float.decoded_linear":
                    domain = "coded"
            moves = KINDS[op.kind].moves and bool(op.inputs) and not op.is_float
            clamps = kind in ("relu", "clamp") if op.is_float else op.kind == "table" and _clamps(str(op.attrs["fn"]))
            nodes.append(
                NodeView(
                    op.name,
                    kind,
                    op.module,
                    op.inputs,
                    domain,
                    moves,
                    kind in HEAVY,
                    op.note,
                    WANTED in op.note,
                    activation=clamps,
                )
            )
        return GraphView(nodes, frozenset(program.outputs))


def _clamps(fn: str) -> bool:
    return fn in ("relu", "clamp")
