"""A whole encoder as one integer program: the simulation's integers are everybody's, and it trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.engines import engine_status
from intact8.simulation.simulation import Simulation

ENGINES = [name for name in ("onednn", "onnxruntime") if engine_status()[name] is None]
TOKENS, WIDTH = 10, 32


class Encoder(nn.Module):
    """Token and position embeddings, a post-norm and a pre-norm block, RMS norm, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, WIDTH), nn.Embedding(TOKENS, WIDTH)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 4, 48, 0.0, "gelu", batch_first=True, norm_first=n) for n in (False, True)
        ]
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, TOKENS) int64, 0 for padding → (N, 3)."""
        x = self.tokens(ids) + self.positions(torch.arange(TOKENS))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=ids == 0)
        y: Tensor = self.head(F.silu(self.norm(x)).mean(1))
        return y


def tokens(samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 40, (samples, TOKENS), generator=generator)
    ids[1::3, 6:] = 0
    return ids


def prepared(recipe: intact8.Recipe) -> tuple[nn.Module, Simulation]:
    torch.manual_seed(0)
    model = Encoder().eval()
    sim = intact8.prepare(model, tokens(2), recipe).eval()
    intact8.calibrate(sim, [tokens(32)])
    return model, sim


def test_an_encoder_is_one_integer_program() -> None:
    model, sim = prepared(recipes.integer())
    program = intact8.convert(sim)
    assert {op.kind for op in program.islands()} == {"float.compare"}  # of indices with 0: the mask
    assert {"embedding", "softmax", "layer_norm", "rms_norm", "matmul"} <= {op.kind for op in program.ops}
    assert sum(op.kind in ("quantize", "dequantize") for op in program.ops) == 1
    ids = tokens(7, seed=1)
    report = intact8.verify(program, ids, sim=sim, engines=["reference", *ENGINES])
    assert report.mismatches == 0 and not report.uncertified
    with torch.no_grad():
        want, got = model(ids), sim(ids)
    assert float((got - want).norm() / want.norm()) < 0.1


def test_the_default_keeps_them_float() -> None:
    _, sim = prepared(recipes.default())
    kinds = {op.kind for op in intact8.convert(sim).islands()}
    assert {"float.embedding", "float.softmax", "float.layer_norm"} <= kinds


def test_a_masked_softmax_that_is_kept_float_says_so_and_runs() -> None:
    recipe = replace(recipes.integer(), overrides={"*softmax*": None})
    model, sim = prepared(recipe)
    program = intact8.convert(sim)
    assert {"float.softmax", "float.masked_fill"} <= {op.kind for op in program.islands()}
    ids = tokens(5, seed=2)
    assert intact8.verify(program, ids, sim=sim, engines=["reference", *ENGINES]).mismatches == 0
    with torch.no_grad():
        want = model(ids)
    assert float((torch.as_tensor(program.run(ids)) - want).norm() / want.norm()) < 0.1


def test_a_whole_row_may_be_masked() -> None:
    _, sim = prepared(recipes.integer())
    ids = tokens(3, seed=3)
    ids[1] = 0
    program = intact8.convert(sim)
    assert intact8.verify(program, ids, sim=sim, engines=["reference", *ENGINES]).mismatches == 0


@pytest.mark.parametrize("scales", ["learned", "fixed"])
def test_it_trains(scales: str) -> None:
    recipe = replace(recipes.qat(scales), nonlinear="integer")
    _, sim = prepared(recipe)
    sim.train()
    optimizer = torch.optim.Adam(sim.parameters(), 1e-3)
    ids, labels = tokens(32), torch.arange(32) % 3
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(sim(ids), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name in ("tokens.weight", "layers.0.norm1.weight", "layers.1.norm2.bias", "norm.weight"):
        grad = sim.get_parameter(name).grad
        assert grad is not None and bool(grad.abs().sum() > 0), name
    sim.eval()
    report = intact8.verify(intact8.convert(sim), tokens(4, seed=4), sim=sim, engines=["reference", *ENGINES])
    assert report.mismatches == 0


def test_the_gradient_is_that_of_the_float_function() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.norm(self.fc(x)), -1)

    torch.manual_seed(0)
    model, x = Norm(), torch.randn(64, 8)
    sim = intact8.prepare(model, x, replace(recipes.qat("fixed"), nonlinear="integer"))
    intact8.calibrate(sim, [x])
    weights = torch.randn(64, 16)
    for network in (model, sim):
        (network.train()(x) * weights).sum().backward()
    a, b = model.fc.weight.grad, sim.get_parameter("fc.weight").grad
    assert a is not None and b is not None
    assert float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) > 0.98


def test_new_weights_of_a_norm_ship() -> None:
    _, sim = prepared(recipes.integer())
    with torch.no_grad():
        sim.get_parameter("layers.0.norm1.weight").mul_(0.5)
        sim.get_parameter("tokens.weight").mul_(0.5)
    program = intact8.convert(sim)
    ids = tokens(3)
    assert intact8.verify(program, ids, sim=sim).mismatches == 0
    gains = [op.arrays["gain"] for op in program.ops if op.kind == "layer_norm"]
    assert np.allclose(gains[0], gains[0][0]) and gains[0][0] > 0


@pytest.mark.parametrize("engine", [name for name, reason in engine_status().items() if reason is None])
def test_an_rms_norm_that_stays_float_is_the_same_function_everywhere(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.RMSNorm(16, eps=1e-3), nn.Linear(16, 4)).eval()
    x = torch.randn(64, 6)
    nn.init.uniform_(model[1].weight, 0.5, 1.5)
    program = intact8.quantize(model, [x])
    assert "float.rms_norm" in {op.kind for op in program.islands()}
    with torch.no_grad():
        want = model(x)
    got = torch.as_tensor(program.run(x, engine=engine))
    assert float((got - want).norm() / want.norm()) < 0.03
