"""Attention: products of two activations as integers or in the softmax's float island, on every engine, trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.engines import available_engines
from intact8.program.certify import ENGINES

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

WIDTH, HEADS, LENGTH = 32, 4, 9


class Attention(nn.Module):
    """One block with everything around: masks, residuals, layer norm, GELU."""

    def __init__(self, mask: str = "none", packed: bool = False) -> None:
        super().__init__()
        self.mask, self.packed = mask, packed
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
        self.register_buffer("hidden", hidden)
        self.register_buffer("added", torch.zeros(LENGTH, LENGTH).masked_fill(hidden, -1e4))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        if self.packed:
            q, k, v = self.qkv(x).view(n, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (f(x).view(n, t, HEADS, d // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.mask == "sdpa":
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~self.hidden)
        else:
            scores = q @ k.transpose(-1, -2) / (d // HEADS) ** 0.5
            if self.mask == "filled":
                scores = scores.masked_fill(self.hidden, -1e4)
            if self.mask == "added":
                scores = scores + self.added
            y = scores.softmax(-1) @ v
        x = self.norm(x + self.out(y.transpose(1, 2).reshape(n, t, d)))
        z: Tensor = self.last(x + self.down(nn.functional.gelu(self.up(x))))
        return z


def inputs(count: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(count, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("attention", ["integer", "float"])
@pytest.mark.parametrize(
    ("mask", "packed"), [("none", True), ("filled", False), ("added", False), ("sdpa", True)], ids=str
)
def test_every_engine_agrees(mask: str, packed: bool, attention: str) -> None:
    torch.manual_seed(0)
    model = Attention(mask, packed).eval()
    sim = intact8.prepare(model, inputs(2), recipe=replace(recipes.default(), attention=attention, engines=ENGINES))
    intact8.calibrate(sim, inputs().split(16))
    program = intact8.convert(sim)
    assert sum(op.kind == "matmul" for op in program.ops) == (2 if attention == "integer" else 0)
    # The factor 1/√d is part of the multiplier, and what hides positions stays out of the scores' range.
    assert [op.attrs["fn"] for op in program.ops if op.kind == "table"] == ["gelu"]
    assert attention == "float" or not any(op.kind == "float.affine_scalar" for op in program.ops)
    report = intact8.verify(program, inputs(5, seed=1), engines=tuple(available_engines()), sim=sim)
    assert report.exact, (report.first, report.by_engine)
    assert not report.uncertified
    x = inputs(32, seed=2)
    similar = torch.cosine_similarity(torch.as_tensor(program.run(x)).flatten(1), model(x).flatten(1))
    assert similar.mean() > 0.999


@pytest.mark.parametrize("scales", ["learned", "fixed"])
def test_training(scales: str) -> None:
    torch.manual_seed(0)
    model, target = Attention("filled"), inputs(64, seed=3)
    sim = intact8.prepare(model, inputs(2), recipe=recipes.qat(scales))
    intact8.calibrate(sim, inputs().split(16))
    sim.train()
    optimizer = torch.optim.Adam(sim.parameters(), 1e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(sim(inputs()), target)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    assert losses[-1] < 0.98 * losses[0]
    wanted = (sim.q, sim.k, sim.v, sim.out)
    assert all(layer.weight.grad is not None and layer.weight.grad.abs().sum() > 0 for layer in wanted)
    if scales == "learned":
        learners = [p.learner for p in sim.points.values() if p.learner is not None]
        assert sum(m.value.grad is not None and bool((m.value.grad != 0).any()) for m in learners) >= 0.8 * len(
            learners
        )
    sim.eval()
    report = intact8.verify(intact8.convert(sim), inputs(4, seed=1), engines=("reference", "onednn"), sim=sim)
    assert report.exact, report.first
