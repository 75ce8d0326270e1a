"""Training on two ranks: the same numbers on both, in every phase, and a checkpoint that one process goes on with."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.distributed.conftest import Run
from tests.train.networks import batch, exact, optimizer_of, prepared
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import intact8
import intact8.train
from intact8.calibration.distributed import checksum
from intact8.program.file import digest

KINDS = ["learned", "observed", "fixed"]
PLANS: dict[str, dict[str, Any]] = {
    "learned": {"observe": 1, "freeze_batchnorm": 3, "freeze_scales": 4},
    "observed": {"observe": 2, "freeze_batchnorm": 3, "freeze_scales": 4},
    "fixed": {"freeze_batchnorm": 1},
}


def steps(ddp: Any, optimizer: Any, numbers: range) -> None:
    """Both ranks take half of every batch."""
    half = slice(0, 8) if dist.get_rank() == 0 else slice(8, 16)
    for step in numbers:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x[half]), y[half]).backward()
        optimizer.step()


def saved(sim: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(sim.state_dict(), stream)
    return stream.getvalue()


def trained(scales: str, calibrated: bool) -> Any:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sim = prepared(scales, calibrated=calibrated)
    schedule = intact8.train.Schedule(**PLANS[scales])
    if calibrated or scales != "fixed":
        schedule.start(sim)
    optimizer, ddp, seen = optimizer_of(sim), DistributedDataParallel(sim), []
    for epoch in range(5):
        ddp.train()
        steps(ddp, optimizer, range(3 * epoch, 3 * epoch + 3))
        events = schedule.step(ddp)
        if dist.get_rank() == 0:
            sim.eval()(batch(500)[0])  # validation on one rank only
        seen.append((sim.phase, events))
    steps(ddp.train(), optimizer, range(20, 22))
    intact8.train.synchronize(ddp)
    assert not intact8.train.synchronize(ddp)
    x = batch(600)[0]
    with torch.no_grad():
        in_training = sim.train()(x) if sim.phase == "frozen" else None
    state = saved(sim)
    program = exact(sim)
    if in_training is not None and not calibrated:
        assert torch.equal(in_training, sim(x))
    return seen, checksum(sim.state_dict()), digest(program), state


@pytest.mark.parametrize(
    "calibrated", [pytest.param(True, id="calibrated"), pytest.param(False, id="from scratch", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("scales", KINDS)
def test_ranks_hold_the_same_numbers_and_a_checkpoint_ships_them(ranks: Run, scales: str, calibrated: bool) -> None:
    if scales == "fixed" and not calibrated:
        pytest.skip("fixed scales come from calibration")
    first, second = ranks(trained, scales, calibrated)
    assert first[:3] == second[:3]
    assert [phase for phase, _ in first[0]][-1] == "frozen"
    # What rank 0 saved is what one process ships.
    sim = prepared(scales, seed=7, calibrated=False)
    sim.load_state_dict(torch.load(io.BytesIO(first[3]), weights_only=True))
    assert digest(exact(sim)) == first[2]


def ranges_seen(observer: str) -> Any:
    """Scales after two steps of observing; no batch norm, whose statistics are those of each rank's half."""
    import dataclasses

    recipe = intact8.recipes.qat("observed")
    recipe = dataclasses.replace(recipe, activation=dataclasses.replace(recipe.activation, observer=observer))
    sim = prepared("observed", calibrated=False, recipe=recipe).train()
    sim.freeze_batch_norm()
    together = dist.is_available() and dist.is_initialized()
    model = DistributedDataParallel(sim) if together else sim
    with torch.no_grad():
        for step in range(3):
            x, _ = batch(step)
            model(x[8 * dist.get_rank() :][:8] if together else x)
    return {n: (float(p.scale), int(p.zero_point), p.observer.count) for n, p in sim.points.items()}


@pytest.mark.parametrize("observer", ["moving_average", "histogram"])
def test_observed_ranges_are_those_of_the_whole_batch(ranks: Run, observer: str) -> None:
    torch.set_num_threads(1)
    single = ranges_seen(observer)
    first, second = ranks(ranges_seen, observer)
    assert first == second
    # Float kernels may sum a batch of 8 in another order than one of 16.
    for name, (scale, zero_point, count) in single.items():
        assert first[name] == (pytest.approx(scale, rel=1e-6), zero_point, count)
    if observer == "moving_average":  # extremes are exact, but for the mean and what reads it: float kernels sum it up
        assert all(first[n] == seen for n, seen in single.items() if n not in ("mean", "fc"))


def independent() -> Any:
    """Each rank trains a simulation of its own: nothing may communicate."""
    sim = prepared("observed")
    for step in range(dist.get_rank() + 1):
        sim.train()(batch(step)[0])
    schedule = intact8.train.Schedule(observe=1)
    if dist.get_rank():
        schedule.step(sim)
    return sim.phase


def test_what_is_not_wrapped_talks_to_nobody(ranks: Run) -> None:
    assert ranks(independent) == ["observe", "hold"]


def accumulated() -> Any:
    """Gradients of two batches, of which one is not communicated; two forwards before a backward."""
    sim = prepared("learned")
    optimizer, ddp = optimizer_of(sim), DistributedDataParallel(sim)
    ddp.train()
    for step in range(3):
        x, y = batch(10 * step + dist.get_rank())
        optimizer.zero_grad()
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(x), y).backward()
        nn.functional.cross_entropy(ddp(x.flip(0)), y.flip(0)).backward()
        optimizer.step()
    return checksum([*sim.parameters()])


def one_rank() -> Any:
    """A group of one process, as ``torchrun --nproc-per-node 1`` makes it: DistributedDataParallel waits there, too."""
    group = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    sim = prepared("learned")
    sim.observe_in_training()
    ddp = DistributedDataParallel(sim, process_group=group)
    steps(ddp.train(), optimizer_of(sim), range(3))
    return sim.phase


def test_a_group_of_one(ranks: Run) -> None:
    assert ranks(one_rank) == ["observe", "observe"]


def test_gradient_accumulation(ranks: Run) -> None:
    first, second = ranks(accumulated)
    assert first == second
