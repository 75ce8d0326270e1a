"""Masks of scores as boolean inputs of the softmax: which are recognized, and that none is that is no mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.capture.graph import Graph
from intact8.fusion.fuse import fuse


def fused(model: nn.Module, *inputs: Tensor) -> tuple[Graph, dict[str, Tensor]]:
    captured = capture(model.eval(), inputs)
    found = fuse(captured.graph, captured.tensors(), residual=False, leaky=True, masks=True)
    return found.graph, {**captured.tensors(), **found.constants}


class Masked(nn.Module):
    """softmax of products under a mask."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.fc = way, nn.Linear(6, 6)
        causal = torch.full((6, 6), -math.inf).triu(1)
        self.register_buffer("causal", causal)
        self.register_buffer("bias", torch.randn(6, 6))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        s, hidden = self.fc(x), (ids == 0)[:, None, :]
        if self.way == "filled":
            s = s.masked_fill(hidden, -1e4)
        elif self.way == "constant":
            s = s + self.causal
        elif self.way == "added":
            s = s + torch.zeros_like(s).masked_fill(hidden.expand(-1, 6, -1), -math.inf)
        elif self.way == "arithmetic":
            s = s + (1.0 - (ids > 0).float()[:, None, :]) * -10000.0
        elif self.way == "mild":
            s = s.masked_fill(hidden, -5.0)
        elif self.way == "bias":
            s = s + self.bias
        elif self.way == "any numbers":
            s = s + ids.float()[:, None, :] * -10000.0
        return torch.softmax(s, -1)


X, IDS = torch.randn(2, 6, 6), torch.tensor([[1, 2, 0, 4, 0, 0], [1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize("way", ["filled", "constant", "added", "arithmetic"])
def test_a_mask_becomes_a_boolean(way: str) -> None:
    graph, tensors = fused(Masked(way), X, IDS)
    softmax = next(n for n in graph if n.op == "softmax")
    assert len(softmax.inputs) == 2
    assert graph.nodes[softmax.inputs[1]].dtype == "bool"
    assert not {n.op for n in graph} & {"masked_fill", "add", "scale_shift", "cast", "affine_scalar"}
    if way == "constant":
        value = tensors[graph.nodes[softmax.inputs[1]].params["value"]]
        assert value.dtype == torch.bool and value.sum() == 15
    for position, node in enumerate(graph):
        assert all(list(graph.nodes).index(name) < position for name in node.inputs)


@pytest.mark.parametrize("way", ["mild", "bias", "any numbers", "none"])
def test_what_is_no_mask_stays(way: str) -> None:
    graph, _ = fused(Masked(way), X, IDS)
    assert all(len(n.inputs) == 1 for n in graph if n.op == "softmax")


@pytest.mark.parametrize(("nonlinear", "inputs"), [("integer", 2), ("float", 1)])
def test_only_an_integer_softmax_reads_a_mask(nonlinear: str, inputs: int) -> None:
    sim = intact8.prepare(Masked("filled").eval(), (X, IDS), intact8.Recipe(nonlinear=nonlinear))
    assert [len(n.inputs) for n in sim.graph if n.op == "softmax"] == [inputs]


def test_a_masked_sum_somebody_else_reads_stays() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            s = x.masked_fill((ids == 0)[:, None, :], -1e4)
            return torch.softmax(s, -1) + s

    graph, _ = fused(Twice(), X, IDS)
    assert all(len(n.inputs) == 1 for n in graph if n.op == "softmax")


class Ragged(nn.Module):
    """Attention in which some queries see no key at all: torch gives zeros there."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        y = self.fc(x)
        return self.out(nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=seen))


@pytest.mark.parametrize("recipe", ["default", "integer", "one left float"])
def test_queries_that_see_nothing_get_zeros(recipe: str) -> None:
    torch.manual_seed(0)
    model = Ragged().eval()
    x, seen = torch.randn(32, 6, 8), torch.rand(32, 6, 6) > 0.3
    seen[..., 0] = True
    chosen = intact8.Recipe(
        nonlinear="float" if recipe == "default" else "integer",
        overrides={"softmax": None} if recipe == "one left float" else {},
    )
    program = intact8.quantize(model, [(x, seen)], chosen)
    assert [op.kind for op in program.ops].count("float.masked_fill") == 2 * (recipe != "integer")
    seen[::2, 3:] = False
    with torch.no_grad():
        expected = model(x, seen)
    assert (program.run(x, seen) - expected).norm() < 0.05 * expected.norm()
    intact8.quantize(model, [(x, seen)], chosen)  # capture compares on such rows, too
    assert intact8.verify(program, (x[:4], seen[:4])).mismatches == 0


@pytest.mark.parametrize("far", [-math.inf, -1e9])
def test_a_constant_of_biases_and_hidden_places_is_parted(far: float) -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            places = torch.arange(6)
            bias = -0.2 * (places[None] - places[:, None]).abs().float()
            self.register_buffer("bias", bias.masked_fill(torch.ones(6, 6).triu(1).bool(), far))

        def forward(self, x: Tensor) -> Tensor:
            y = x
            for _ in range(2):  # both read one constant
                y = torch.softmax(self.layer(y) + self.bias[None].expand(len(x), 6, 6), -1)
            return y

    torch.manual_seed(0)
    model, x = Distances().eval(), torch.randn(64, 6, 6)
    graph, _ = fused(model, x[:4])
    assert [len(node.inputs) for node in graph if node.op == "softmax"] == [2, 2]
    program = intact8.quantize(model, x, "integer")
    expected = model(x).detach()
    assert float((program.run(x) - expected).norm() / expected.norm()) < 0.05
