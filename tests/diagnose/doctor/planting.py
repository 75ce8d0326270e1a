"""The form of sets of planted faults: what the doctor is given, and the answers that count as right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8 import Recipe, recipes

Arrays = list[Tensor]

WRONG = "float_network_wrong"
LOADED_OTHERWISE = "float_network_wrong stale_batch_norm wrong_scale"
UNEQUAL = "channel_imbalance outlier_channel input_imbalance outlier_weight"
"""Causes that say the same: of inputs prepared otherwise, also before batch norms; of channels that differ."""

MINMAX = replace(recipes.default().activation, observer="minmax")
"""Ranges that are extremes."""


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

    def module(self, path: str) -> Any:
        """Return a layer."""
        return self.model.get_submodule(path)

    def use(self, recipe: Recipe | None = None, **changes: Any) -> None:
        """Quantize with a recipe that differs from the default, or another one, in what is given."""
        self.options["recipe"] = replace(recipe or recipes.default(), **changes)

    def simulate(self, recipe: Recipe | None = None) -> Any:
        """Give the doctor a calibrated simulation of the network as it is now, and return it."""
        sim = intact8.prepare(self.model, example_inputs=self.data[0][:4], recipe=recipe)
        intact8.calibrate(sim, [self.data[0][:128]])
        self.options["sim"] = sim
        return sim


class CaseOfSeveral(Case):
    """What the doctor is given, where the network may have several inputs."""

    def simulate(self, recipe: Recipe | None = None) -> Any:
        """Give the doctor a calibrated simulation of the network as it is now, and return it."""
        sim = intact8.prepare(self.model, example_inputs=tuple(part[:4] for part in self.data[:-1]), recipe=recipe)
        intact8.calibrate(sim, batches([part[:128] for part in self.data]))
        self.options["sim"] = sim
        return sim


def apart(case: Case, count: int = 128) -> None:
    """Calibrate on the first samples, and keep the others as data."""
    case.calibration = [part[:count].clone() for part in case.data]
    case.data = [part[count:].clone() for part in case.data]


def calibration(case: Case) -> list[Tensor]:
    """Return calibration data apart from the data."""
    apart(case)
    assert case.calibration is not None
    return case.calibration


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


@dataclass
class FaultWithAnswers(Fault):
    """A fault that has several right answers, each of which has places and causes of its own."""

    others: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = ()

    def is_named_by(self, finding: Any) -> bool:
        """Return whether a finding has one of the places of an answer, and one of the causes of the same."""
        return super().is_named_by(finding) or any(
            finding.cause in causes and finding.place.startswith(places) for places, causes in self.others
        )


def registering(faults: dict[str, FaultWithAnswers]) -> Callable[..., Callable[[Callable[[Any], None]], None]]:
    """Return a decorator that registers functions as faults of a set."""

    def fault(subject: str, *answers: tuple[str, str]) -> Callable[[Callable[[Any], None]], None]:
        """Register a function as a fault; an answer has places, divided by commas (none is any), and causes."""
        parts = [(tuple(places.split(",")), frozenset(causes.split())) for places, causes in answers]

        def register(plant: Callable[[Any], None]) -> None:
            words = (plant.__doc__ or "").strip()
            faults[plant.__name__] = FaultWithAnswers(
                subject, plant, parts[0][0], set(parts[0][1]), words, tuple(parts[1:])
            )

        return register

    return fault


def case_of(kind: type[Case], subject: Any) -> Any:
    """Return the case of a kind for a subject as it is, with its further arguments of the doctor."""
    case = kind.of(subject)
    case.options = dict(subject.options)
    return case


def planted_in(kind: type[Case], subject: Any, fault: Fault) -> Any:
    """Return the case of a fault, on a copy of a subject's network."""
    case = case_of(kind, subject)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fault.plant(case)
    return case


def right_first(fault: Fault, report: Any) -> bool:
    """Return whether the first finding is one of the right answers."""
    return bool(report.findings) and fault.is_named_by(report.findings[0])


def asking(
    kind: type[Case], faults: Mapping[str, Fault], build: Callable[[str], Any]
) -> tuple[Callable[[str], Any], Callable[[str, Any], bool]]:
    """Return what plants a fault of that name on a copy of its network, and what judges a report on it.

    Args:
        kind: of case.
        faults: the set's faults by name.
        build: returns a subject of the set by name.
    """
    return (
        lambda name: planted_in(kind, build(faults[name].subject), faults[name]),
        lambda name, report: right_first(faults[name], report),
    )


def calibrating(kind: type[Case], build: Callable[[str], Any]) -> Callable[..., Any]:
    """Return what makes the case of a network as it is, by its name, calibrated on so many samples of its own."""

    def calibrated(name: str, count: int = 128) -> Any:
        case = case_of(kind, build(name))
        apart(case, count)
        return case

    return calibrated


def anew(*layers: nn.Module) -> None:
    """Initialize layers again."""
    torch.manual_seed(8)
    for layer in layers:
        for module in layer.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()


def collect(model: nn.Module, inputs: Tensor, norms: list[Any]) -> None:
    """Give batch norms the statistics of inputs."""
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in inputs.split(64):
            model(batch)
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


def norms_of(model: nn.Module) -> list[Any]:
    """Return the batch norms."""
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


def exchange(one: Tensor, other: Tensor) -> None:
    """Exchange the values of two tensors."""
    kept = one.detach().clone()
    one.data.copy_(other.data)
    other.data.copy_(kept)


def train_on(case: Case, rate: float, steps: int, momentum: float = 0.9) -> None:
    """Train the network on its data in small batches with SGD, and return to evaluation mode."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(case.model.parameters(), rate, momentum)
    case.model.train()
    for _ in range(steps):
        rows = torch.randint(len(case.data[0]), (32,))
        optimizer.zero_grad()
        F.cross_entropy(case.model(case.data[0][rows]), case.data[1][rows]).backward()
        optimizer.step()
    case.model.eval()


def train_again(case: Case, rate: float, steps: int, loss: Callable[[Any, Tensor], Tensor], decay: float = 0.0) -> None:
    """Train the network on its own data with SGD, and return to evaluation mode."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(case.model.parameters(), rate, 0.9, weight_decay=decay)
    case.model.train()
    for _ in range(steps):
        rows = torch.randint(len(case.data[0]), (32,))
        optimizer.zero_grad()
        loss(case.model(*(part[rows] for part in case.data[:-1])), case.data[-1][rows]).backward()
        optimizer.step()
    case.model.eval()


def fixed(case: Case, place: str, scale: float, zero_point: int) -> None:
    """Give the results of an operation a range by hand."""
    case.use(overrides={place: {"activation": {"fixed": (scale, zero_point)}}})


def ask(case: Case, budget: float = 60.0) -> Any:
    """Return the doctor's report."""
    torch.manual_seed(0)
    return intact8.doctor(**case.arguments(), remedies=False, seconds=0, budget=budget)


def ask_about(make: Callable[[], Case], budget: float = 60.0) -> Any:
    """Return the doctor's report on a case that is made here, whatever there is to warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ask(make(), budget)


def accusations(report: Any) -> list[str]:
    """Return the findings of a report that are more than notes."""
    return [str(finding) for finding in report.findings if finding.severity != "note"]
