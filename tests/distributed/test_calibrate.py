"""Calibration on two ranks gives, on both, the bits of one process."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from typing import Any

import pytest
import torch
from tests.distributed.conftest import Run
from tests.train.networks import Net, batch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import intact8
from intact8 import CalibrationError, recipes
from intact8.calibration.distributed import checksum
from intact8.calibration.summary import CalibrationWarning

OBSERVERS = [
    *("histogram", "moving_average", "output"),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("minmax", "percentile", "mse", "entropy")),
]
DATA = torch.cat([batch(-20 - i, 8)[0] * (1 + 0.1 * i) for i in range(7)])


def simulation(observer: str, reconstruction: str = "none") -> Any:
    return copy.deepcopy(_simulation(observer, reconstruction))


@functools.cache
def _simulation(observer: str, reconstruction: str) -> Any:
    """Equalized and bias-corrected: statistics of first samples matter, too."""
    torch.manual_seed(0)
    net = Net()
    for i in range(4):
        net(batch(-1 - i)[0])
    base = recipes.default()
    activation = dataclasses.replace(base.activation, observer=observer)
    recipe = dataclasses.replace(base, activation=activation, reconstruction=reconstruction)
    return intact8.prepare(net.eval(), DATA[:2], recipe).eval()


def outcome(sim: Any, summary: Any) -> tuple[int, Any, int]:
    return checksum(sim.state_dict()), summary.to_json(), sum(p.observer.count for p in sim.points.values())


def calibrated(observer: str, how: str, reconstruction: str = "none") -> Any:
    """Two calls, so that the second continues."""
    warnings.simplefilter("ignore", CalibrationWarning)
    torch.set_num_threads(1)
    sim = simulation(observer, reconstruction)
    for part in (DATA[:24], DATA[24:]):
        data: Any = list(part.split(8))
        options: dict[str, Any] = {}
        if how == "sampler":
            dataset = TensorDataset(part[: len(part) // 16 * 16])
            order = torch.arange(len(dataset)).reshape(-1, 2, 8).transpose(1, 2).flatten().tolist()
            rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else None
            data = DataLoader(dataset, batch_size=8)
            if rank is not None:
                dataset = torch.utils.data.Subset(dataset, order)  # so that the sampler deals whole batches
                data = DataLoader(dataset, 8, sampler=DistributedSampler(dataset, shuffle=False))
        if how == "given" and torch.distributed.is_initialized():
            data, options = data[torch.distributed.get_rank() :: 2], {"shard": "given"}
        if how == "max_batches":
            options = {"max_batches": 2}
        summary = intact8.calibrate(sim, data, **options)
    return outcome(sim, summary)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_every_observer_gives_the_bits_of_one_process(ranks: Run, observer: str) -> None:
    single = calibrated(observer, "split")
    assert ranks(calibrated, observer, "split") == [single, single]


def test_reconstruction_gives_the_bits_of_one_process(ranks: Run) -> None:
    single = calibrated("output", "split", reconstruction="gptq")
    assert ranks(calibrated, "output", "split", "gptq") == [single, single]


@pytest.mark.parametrize("how", ["given", "sampler", "max_batches"])
@pytest.mark.parametrize("observer", ["histogram", "moving_average"])
def test_every_way_to_share_data_out(ranks: Run, observer: str, how: str) -> None:
    single = calibrated(observer, how)
    assert ranks(calibrated, observer, how) == [single, single]


def caught(scenario: str) -> Any:
    warnings.simplefilter("ignore", CalibrationWarning)
    rank = torch.distributed.get_rank()
    sim = simulation("minmax")
    before = checksum(sim.state_dict())
    data, shard = list(DATA.clone().split(8)), "auto"
    if scenario == "other data" and rank:
        data = data[::-1]
    if scenario == "other weights" and rank:
        with torch.no_grad():
            sim.get_parameter("fc.weight")[0, 0] += 1
        before = checksum(sim.state_dict())
    if scenario == "nan":
        data[3][2] = float("nan")
    if scenario == "empty":
        data, shard = ([] if rank else data), "given"
    if scenario == "no such word":
        shard = "yes"
    try:
        intact8.calibrate(sim, data, shard=shard)
    except CalibrationError as error:
        assert checksum(sim.state_dict()) == before
        return str(error)
    return None


@pytest.mark.parametrize(
    ("scenario", "messages"),
    [
        ("other data", ["rank 1 has other first batches", "rank 1 has other first batches"]),
        ("other weights", ["rank 1 has other weights", "rank 1 has other weights"]),
        ("nan", ["rank 1 of 2 failed", "batch 3, layer x"]),
        ("empty", ["rank 1 of 2 failed", "holds no batch"]),
        ("no such word", ["shard = 'yes'", "shard = 'yes'"]),
    ],
)
def test_a_failure_anywhere_is_an_error_everywhere(ranks: Run, scenario: str, messages: list[str]) -> None:
    for told, expected in zip(ranks(caught, scenario), messages, strict=True):
        assert expected in told


def alone() -> Any:
    rank = torch.distributed.get_rank()
    sim = simulation("minmax")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if rank == 0:
            intact8.calibrate(sim, DATA, shard="off")
        told: list[Any] = []
        intact8.calibrate(sim, DATA, progress=lambda done, total: told.append((done, total)), reset=True)
    return float(sim.points["x"].scale), told, len([w for w in seen if w.category is CalibrationWarning])


def test_one_rank_alone_and_progress_of_all(ranks: Run) -> None:
    (scale, told, warned), (other, told_other, warned_other) = ranks(alone)
    assert scale == other and warned >= warned_other == 0
    assert (told, told_other) == ([(1, 2)], [(2, 2)])
