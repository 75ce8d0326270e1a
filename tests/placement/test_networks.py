"""Fusion and placement of real networks, straight from capture."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.placement.test_place import check
from torch import Tensor, nn

import intact8
from intact8.capture.trace import Captured, capture
from intact8.fusion.fuse import fuse
from intact8.placement.place import place
from intact8.recipe.recipe import Recipe

INTEGER_THROUGHOUT = [
    "resnet18",
    "mobilenet_v2",
    "mobilenet_v3_small",
    pytest.param("densenet121", marks=pytest.mark.long),
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
]


def tensors_of(captured: Captured) -> dict[str, Tensor]:
    return {**captured.parameters, **captured.buffers, **captured.constants}


@pytest.mark.parametrize("name", INTEGER_THROUGHOUT)
def test_one_transition_at_each_end(torchvision: ModuleType, name: str) -> None:
    captured = capture(getattr(torchvision.models, name)(weights=None), torch.randn(2, 3, 64, 64))
    tensors = tensors_of(captured)
    for residual in (False, True):
        fused = fuse(captured.graph, tensors, residual=residual, leaky=True)
        placed = check(fused.graph, Recipe())
        assert placed.transitions == 2 and not placed.float_nodes
        assert not {"batch_norm", "relu", "clamp", "unary", "requantize"} & {n.op for n in placed.graph}
        parts = [p for n in fused.graph for p in (n.source or [n.name])]
        assert sorted(parts) == sorted(n.name for n in captured.graph if n.op != "constant")
        if name == "resnet18":
            assert len(placed.points) == (23 if residual else 31)
            assert sum(n.op == "add" or len(n.inputs) == 2 for n in fused.graph) == 8
        if name == "densenet121":
            # Batch norm before the second convolution of a layer fuses into the first, that on a concatenation cannot.
            assert sum(n.op == "scale_shift" for n in fused.graph) == 62


def test_islands_of_convnext_are_its_layer_norms(torchvision: ModuleType) -> None:
    captured = capture(torchvision.models.convnext_tiny(weights=None), torch.randn(2, 3, 64, 64))
    fused = fuse(captured.graph, tensors_of(captured), residual=False, leaky=True)
    placed = check(fused.graph, Recipe())
    assert set(placed.float_nodes.values()) == {'layer norm is float in this recipe (nonlinear = "float")'}
    assert placed.transitions == 2 + 2 * len(placed.float_nodes)
    folded = [how for how in captured.derived.values() if any("layer_scale" in name for name in how.sources)]
    assert len(folded) == 2 * 18, "a weight and a bias of every block"


def test_a_float_classifier_costs_one_transition_less_at_the_end(torchvision: ModuleType) -> None:
    captured = capture(torchvision.models.squeezenet1_1(weights=None), torch.randn(2, 3, 64, 64))
    graph = fuse(captured.graph, tensors_of(captured), residual=False, leaky=True).graph
    placed = place(graph, Recipe(overrides={"classifier": None}))
    assert placed.transitions == 3, "the input, and the two results that are joined before the classifier"
    assert set(placed.float_nodes) == {"classifier.0", "classifier.1", "classifier.3"}, placed.float_nodes


class Chain(nn.Module):
    """A layer, the same step many times, and another layer."""

    def __init__(self, step: Callable[[Tensor], Tensor], count: int) -> None:
        super().__init__()
        self.first, self.last, self.step, self.count = nn.Linear(8, 8), nn.Linear(8, 8), step, count

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for _ in range(self.count):
            y = self.step(y)
        return self.last(y)  # type: ignore[no-any-return]


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "moves": lambda y: y.reshape(-1, 2, 4).transpose(1, 2).reshape(-1, 8),
    "numbers": lambda y: y * 1.001 + 0.001,
    "padding": lambda y: F.pad(y, (1, 0))[:, 1:],
    "sigmoid": lambda y: torch.sigmoid(y),
    "concatenations": lambda y: torch.cat([y[:, :4], y[:, 4:]], 1),
}


@pytest.mark.parametrize("title", STEPS)
def test_long_chains(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither recursion nor time that grows with the square of the length: 400 moves took 162 s once."""
    torch.manual_seed(0)
    model, x = Chain(STEPS[title], 350).eval(), torch.randn(64, 8)
    export, exported = torch.export.export, list[float]()

    def measured(*args: Any, **kwargs: Any) -> Any:
        begun = time.process_time()
        made = export(*args, **kwargs)
        exported.append(time.process_time() - begun)
        return made

    monkeypatch.setattr(torch.export, "export", measured)
    begun = time.process_time()
    program = intact8.quantize(model, x, intact8.Recipe(between_layers="integer"))
    assert time.process_time() - begun < 12 * exported[0] + 8
    assert intact8.verify(program, x[:4]).mismatches == 0
