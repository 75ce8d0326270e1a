"""A doctor is judged by the patients: planted faults on trained networks, a part of them here.

``python benchmarks/doctor.py`` runs them all.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.diagnose.doctor.planted import PLANTS, Planted, World

import intact8
from intact8.diagnose.doctor import DoctorReport

QUICK = ("outlier_channel_cnn", "bias_overflow", "clipped_range")

MISSED = "weak_zero_point"
"""Its noise is below 40 dB, where the doctor says nothing."""

_read = functools.lru_cache(maxsize=1)(World)  # 70,000 images


@pytest.fixture
def world(assets: Path) -> Iterator[World]:
    threads = torch.get_num_threads()
    yield _read(assets)
    torch.set_num_threads(threads)


def examined(case: Planted, remedies: bool = False, samples: int = 400) -> DoctorReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return intact8.doctor(
            case.model, list(zip(case.x[:samples].split(100), case.y[:samples].split(100), strict=True)),
            calibration=case.calibration, recipe=case.recipe, sim=case.sim, remedies=remedies, seconds=0,
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize("name", QUICK)
def test_right_layer_and_cause_first(world: World, name: str) -> None:
    case = PLANTS[name](world)
    first = examined(case).findings[0]
    assert (first.place, first.cause) == (case.place, case.causes[0]), str(first)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize("name", sorted(set(PLANTS) - set(QUICK) - {MISSED}))
def test_right_layer_and_cause_first_all(world: World, name: str) -> None:
    case = PLANTS[name](world)
    first = examined(case, samples=80 if name.endswith("mobilenet") else 400).findings[0]
    assert (first.place, first.cause) == (case.place, case.causes[0]), str(first)


@pytest.mark.parametrize("kind", ["cnn"])
def test_sound_network_has_no_fault(world: World, kind: str) -> None:
    """Nothing is wrong with a trained network, a good recipe and good data, and so nothing is said."""
    report = examined(world.fashion(world.net(kind), "", recipe=intact8.recipes.default()))
    assert [f for f in report.findings if f.severity != "note"] == []
    assert report.confidence.passed


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_remedy_heals(world: World) -> None:
    """A clipped range is observed anew, and the recipe alone brings the accuracy back on images it never saw."""
    case = PLANTS["clipped_range"](world)
    report = examined(case, remedies=True, samples=1000)
    exact, before, after = (report.outcome(name) for name in ("float", "before", "after"))
    assert before.metric < exact.metric - 0.1
    assert after.metric > exact.metric - 0.01
    assert any(t.accepted and t.cause == "clipped_range" for t in report.trials)
    program = intact8.quantize(case.model, case.calibration, report.recipe)
    unseen, labels = world.test[1000:2000], world.test_labels[1000:2000]
    right = (program.run(unseen).argmax(1) == labels).double().mean()
    with torch.no_grad():
        exact_right = (case.model(unseen).argmax(1) == labels).double().mean()
    assert right > exact_right - 0.01


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_outlier_channel_is_left_float(world: World) -> None:
    """No range suits a channel 100 times as wide as the others, so what makes and reads the tensor stays float."""
    report = examined(PLANTS["outlier_channel_cnn"](world), remedies=True)
    assert report.outcome("after").noise < report.outcome("before").noise / 10
    assert {rule.match for rule in report.recipe.rules if rule.quantize is False} == {"3", "7"}
