"""Training on a GPU: autocast, learned scales, save and resume, and what ships is what was trained."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from tests.train.networks import batch, exact, optimizer_of, prepared
from torch import nn

import intact8.train
from intact8.train.scale_phase import learned_scales

DEVICE = "cuda"
KINDS = ["fixed", "learned", "lsq+", "pact", "observed"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def train(sim: Any, optimizer: Any, steps: range, dtype: torch.dtype | None = None) -> list[float]:
    losses = []
    for step in steps:
        x, y = (t.to(DEVICE) for t in batch(step, 64))
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(sim.train()(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_no_integer(dtype: torch.dtype) -> None:
    sim = prepared("learned").to(DEVICE).eval()
    x = batch(0)[0].to(DEVICE)
    with torch.autocast(DEVICE, dtype=dtype):
        y = sim(x)
    assert y.dtype == torch.float32 and torch.equal(y, sim(x))


@pytest.mark.parametrize("scales", KINDS)
def test_it_learns_and_ships(scales: str) -> None:
    sim = prepared(scales).to(DEVICE)
    # Adam moves a scale by its rate, whatever its size: rates are relative, as the documentation of the groups says.
    rates: Any = {"relative": True, "scale_lr": 0.01} if scales in ("learned", "lsq+", "pact") else {}
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=2e-3, **rates))
    losses = train(sim, optimizer, range(60), torch.bfloat16)
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    exact(sim.cpu())


def test_every_learned_scale_has_a_gradient_and_moves() -> None:
    sim = prepared("learned").to(DEVICE)
    before = {name: p.detach().clone() for name, p in learned_scales(sim)}
    train(sim, optimizer_of(sim), range(3))
    after = dict(learned_scales(sim))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    reached = [name for name, p in after.items() if p.grad is not None]
    assert len(reached) == len(after) and len(moved) > len(reached) / 2
    assert all(p.is_cuda for p in after.values())


@pytest.mark.parametrize("scales", ["learned", "observed"])
def test_saved_and_resumed_it_trains_on_to_the_same_bits(scales: str) -> None:
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        sim = prepared(scales).to(DEVICE)
        optimizer = optimizer_of(sim)
        train(sim, optimizer, range(4))
        stream = io.BytesIO()
        torch.save({"sim": sim.state_dict(), "optimizer": optimizer.state_dict()}, stream)
        stream.seek(0)
        saved = torch.load(stream, weights_only=True, map_location=DEVICE)
        other = prepared(scales, calibrated=False).to(DEVICE)
        other.load_state_dict(saved["sim"])
        resumed = optimizer_of(other)
        resumed.load_state_dict(saved["optimizer"])
        ours, theirs = train(sim, optimizer, range(4, 8)), train(other, resumed, range(4, 8))
    assert ours == pytest.approx(theirs, rel=1e-4)
    on_cpu = prepared(scales, calibrated=False)
    on_cpu.load_state_dict(saved["sim"])
    x = batch(50)[0]
    assert torch.equal(on_cpu.eval()(x), copy.deepcopy(on_cpu).to(DEVICE)(x.to(DEVICE)).cpu())


def test_gradients_are_those_of_the_cpu() -> None:
    on_cpu = prepared("learned").train()
    on_cpu.freeze_batch_norm()
    on_gpu = copy.deepcopy(on_cpu).to(DEVICE)
    x, y = batch(3, 64)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        nn.functional.cross_entropy(on_cpu(x), y).backward()
        nn.functional.cross_entropy(on_gpu(x.to(DEVICE)), y.to(DEVICE)).backward()
    gpu = dict(on_gpu.named_parameters())
    for name, p in on_cpu.named_parameters():
        assert (p.grad is None) == (gpu[name].grad is None), name
        if p.grad is not None and p.grad.norm() > 1e-6:
            assert (gpu[name].grad.cpu() - p.grad).norm() < 0.05 * p.grad.norm(), name
