"""The form of sets of planted faults: what the doctor is given, and the answers that count as right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor, nn

Arrays = list[Tensor]


def batches(data: Arrays) -> list[Any]:
    """Return batches of 64, inputs first; inputs alone where there are no labels."""
    return list(zip(*(part.split(64) for part in data), strict=True)) if len(data) > 1 else list(data[0].split(64))


@dataclass
class Case:
    """What the doctor is given."""

    model: nn.Module
    data: Arrays
    calibration: Arrays | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of intact8.doctor, in batches of 64."""
        found = {"model": self.model, "data": batches(self.data), **self.options}
        return found | ({"calibration": batches(self.calibration)} if self.calibration else {})

    @classmethod
    def of(cls, subject: Any) -> Any:
        """Return the case of a subject's data and a copy of its network."""
        return cls(copy.deepcopy(subject.model), list(subject.data))


@dataclass
class Fault:
    """A fault: the network, how it is planted, and the places (beginnings of names) and causes that count as right."""

    subject: str
    plant: Callable[[Any], None]
    places: Collection[str]
    causes: set[str]
    words: str

    def is_named_by(self, finding: Any) -> bool:
        """Return whether a finding has one of the causes and one of the places."""
        return finding.cause in self.causes and any(finding.place.startswith(place) for place in self.places or {""})


def marked(names: Iterable[str], missed: Mapping[str, str], *, strict: bool) -> list[object]:
    """Return parameters of long tests, of which some are known to fail, and why."""
    marks = {n: [pytest.mark.xfail(reason=why, raises=AssertionError, strict=strict)] for n, why in missed.items()}
    return [pytest.param(name, marks=[pytest.mark.long, *marks.get(name, [])]) for name in sorted(names)]
