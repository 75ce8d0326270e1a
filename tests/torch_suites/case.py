"""A network of one of torch's own test collections, and what its trial found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

ENGINES = ("onednn", "onnxruntime", "openvino", "native")
"""Compared with the reference, beside the simulation."""


class Unfit(Exception):
    """This entry of a collection gives no case: says why. It is counted as skipped."""


@dataclass(frozen=True)
class Network:
    """A float network and calls of it.

    Attributes:
        model: in evaluation mode.
        calls: batch size → arguments of one call. Of collections whose inputs have no batch, the size is ignored.
        tensor_in_and_out: whether the network takes one float tensor and gives one.
    """

    model: nn.Module
    calls: Callable[[int], tuple[Any, ...]]
    tensor_in_and_out: bool = True


@dataclass(frozen=True)
class Case:
    """An entry of a collection: its name, and how the network is built (which may raise :class:`Unfit`)."""

    name: str
    build: Callable[[], Network]


@dataclass(frozen=True)
class Fault:
    """A rule that was broken.

    Attributes:
        rule: foreign, useless, mismatch, lost, far, mutated, file, batch or training; see the README beside this.
        where: the step or the engine.
        text: what was seen.
    """

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): {self.text}"


@dataclass
class Finding:
    """What the trial of one case found.

    Attributes:
        outcome: ``skipped`` (not a case, or the float network does not run), ``refused`` (clearly, before there was a
            program), ``converted``, ``died`` or ``timeout``; with faults it is no success all the same.
        faults: rules broken.
        refusals: step or engine → what it refused with.
        kinds: operations of the program.
        errors: relative errors of the simulation, and of plain W8A8, to float.
    """

    name: str
    outcome: str = "skipped"
    faults: list[Fault] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    elements: int = 0
    tensor_in_and_out: bool = False
    seconds: float = 0.0

    def fault(self, rule: str, where: str, text: str) -> None:
        """Note a broken rule."""
        self.faults.append(Fault(rule, where, text))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
