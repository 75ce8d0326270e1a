"""Two ranks on one GPU: the same numbers on both. (gloo; NCCL refuses two ranks on one device.)"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.distributed.conftest import Run
from tests.train.networks import batch, exact, optimizer_of, prepared
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import intact8.train
from intact8.calibration.distributed import checksum
from intact8.program.file import digest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(scales: str, device: str, graphs: bool = False) -> Any:
    warnings.simplefilter("ignore")
    sim = prepared(scales).to(device)
    schedule = intact8.train.Schedule(freeze_batchnorm=2, freeze_scales=3)
    schedule.start(sim)
    model = intact8.train.CudaGraphs(sim) if graphs else sim
    optimizer, ddp = optimizer_of(sim), DistributedDataParallel(model)
    half = slice(0, 8) if dist.get_rank() == 0 else slice(8, 16)
    for epoch in range(4):
        for step in range(3):
            x, y = (t.to(device) for t in batch(3 * epoch + step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp.train()(x[half]), y[half]).backward()
            optimizer.step()
        assert not graphs or epoch or model._graphs
        schedule.step(ddp)
    intact8.train.synchronize(ddp)
    return checksum(sim.state_dict()), digest(exact(sim.cpu()))


@pytest.mark.parametrize("scales", ["fixed", "learned", "observed"])
def test_two_ranks_on_one_gpu_hold_the_same_numbers(ranks: Run, scales: str) -> None:
    first, second = ranks(trained, scales, "cuda")
    assert first == second


def test_by_cuda_graphs_they_hold_the_same_numbers_too(ranks: Run) -> None:
    first, second = ranks(trained, "learned", "cuda", True)
    assert first == second
