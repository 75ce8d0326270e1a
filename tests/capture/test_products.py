"""Products with known matrices, however the model writes them, are linear layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture.trace import capture

from .helpers import assert_same, run


class Product(nn.Module):
    """A product with a parameter of its own, written in one of the ways models write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        rows = way in ("x @ W.T", "tied")
        self.way, self.weight = way, nn.Parameter(torch.randn(8, 6) if rows else torch.randn(6, 8))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if self.way == "tied":
            return nn.functional.embedding(x.argmax(-1), w) @ w.T
        if self.way == "addmm":
            return torch.addmm(self.bias, x.view(-1, 6), w).view(*x.shape[:-1], 8)
        if self.way == "linear of W.T":
            return nn.functional.linear(x, w.t())
        if self.way == "einsum":
            return torch.einsum("bsi,io->bso", x, w)
        return x @ w.T if self.way == "x @ W.T" else x @ w


FOLLOWING = ("addmm", "x @ W", "einsum", "linear of W.T")
WAYS = [*FOLLOWING, "x @ W.T", "tied"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_product_with_a_parameter_is_a_linear_layer(way: str) -> None:
    model, x = Product(way), torch.randn(3, 5, 6)
    captured = capture(model, x)
    layers = [node for node in captured.graph if node.op in ("linear", "matmul")]
    assert [node.op for node in layers] == ["linear"]
    assert ("bias" in layers[0].params) == (way == "addmm")
    assert_same(run(captured, x), model(x).detach())
    assert not any("not trained" in note for note in captured.notes)
    assert (layers[0].params["weight"] == "weight") == (way not in FOLLOWING)
    if way in FOLLOWING:
        assert captured.derived[layers[0].params["weight"]].sources == ("weight",)


@pytest.mark.parametrize("way", FOLLOWING)
def test_its_weight_follows_the_parameter_and_trains(way: str) -> None:
    model, data = Product(way), [torch.randn(8, 5, 6) for _ in range(8)]
    sim = intact8.prepare(model, data[0])
    intact8.calibrate(sim, data)
    sim.train()
    sim(data[0]).square().mean().backward()
    weight = sim.get_parameter("weight")
    assert weight.grad is not None and float(weight.grad.abs().min()) > 0
    before = sim.eval()(data[0])
    with torch.no_grad():
        weight.neg_()
        sim.get_parameter("bias").neg_()
    assert_same(sim(data[0]), -before, tolerance=0.1)
    program = intact8.convert(sim)
    assert [op.kind for op in program.ops if op.kind.endswith("linear")] == ["linear"]
    assert intact8.verify(program, data[0], engines=["reference"]).exact


def test_a_symmetric_matrix_is_not_taken_for_its_transpose() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.permute(0, 1)

    captured = capture(Same(), torch.randn(2, 6))
    (name,) = [node.params["weight"] for node in captured.graph if node.op == "linear"]
    new = torch.randn(6, 6)
    assert name in captured.derived
    assert torch.equal(captured.derived[name].compute({"weight": new}), new.T)


def test_a_product_with_several_matrices_stays_one_of_tensors() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 6, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model, x = Heads(), torch.randn(2, 3, 5, 6)
    captured = capture(model, x)
    assert [node.op for node in captured.graph if node.op in ("linear", "matmul")] == ["matmul"]
    assert_same(run(captured, x), model(x).detach())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_linear_layer_whose_weight_is_a_vector(biased: bool, known: bool) -> None:
    """It gives one number for each row, and its bias is a number; with a bias of its own the weights are corrected."""

    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.weight = nn.Linear(6, 33), nn.Parameter(torch.randn(33))
            self.bias = nn.Parameter(torch.tensor(0.7)) if biased else None

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight if known else torch.tanh(self.weight * x.mean())
            return nn.functional.linear(torch.relu(self.hidden(x)), weight, self.bias)

    if biased and torch.__version__.startswith("2.8."):
        pytest.skip("torch 2.8 takes no bias with a vector as weight")
    model, x = Score().eval(), torch.randn(64, 5, 6)
    captured = capture(model, x[:2], dynamic_batch=known)
    y = model(x[:2]).detach()
    assert_same(run(captured, x[:2]), y)
    assert y.shape == (2, 5)
    if not known:  # a mean over all samples keeps the batch fixed
        return
    for recipe in (None, "accurate"):
        program = intact8.quantize(model, x, recipe)
        assert [op.kind.removeprefix("dequantized_") for op in program.ops].count("linear") == 2
        assert intact8.verify(program, x).mismatches == 0
        assert_same(program.run(x), model(x).detach(), tolerance=0.1)
