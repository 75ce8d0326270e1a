"""Layers on integers with float32 results: the simulation's floats are the program's, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.gradients import descend
from torch import nn

import intact8
from intact8 import recipes
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.simulation.simulation import Simulation

FLOAT = Recipe(between_layers="float")
KINDS = {"dequantized_conv", "dequantized_linear"}


class Block(nn.Module):
    """A layer, with an activation behind it that is no clamp, between two others."""

    def __init__(self, layer: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Conv2d(3, inputs, 1), layer, nn.Conv2d(outputs, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.silu(self.layer(self.first(x))))


class Residual(nn.Module):
    """Linear layers on rows of any number, residual sums, and layer norms that stay float."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(x)
        x = x + torch.relu(self.b(x))
        return self.head(self.norm(x).transpose(0, 1)).transpose(0, 1)


LAYERS: dict[str, Any] = {
    "padding, stride, dilation": lambda: nn.Conv2d(6, 8, 3, stride=2, padding=2, dilation=2),
    "groups": lambda: nn.Conv2d(6, 8, 3, padding=1, groups=2),
    "depthwise, no bias": lambda: nn.Conv2d(6, 8, 3, padding=1, groups=2, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1, groups=2),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8)),
    "clamp": lambda: nn.Sequential(nn.Conv2d(6, 8, 1), nn.Hardtanh(-0.2, 0.3)),
}


def calibrated(model: nn.Module, x: torch.Tensor, recipe: Recipe, **options: Any) -> Simulation:
    """Prepare and calibrate."""
    sim = intact8.prepare(model, x[:2], recipe, **options)
    intact8.calibrate(sim, x)
    return sim


def float_results(program: Program) -> list[str]:
    """Return the operations whose sums become float32."""
    return [op.name for op in program.ops if op.kind in KINDS]


def assert_exact(sim: Simulation, x: torch.Tensor, least: int = 1) -> Program:
    """Convert, and compare simulation and the native engine with the reference, every bit."""
    program = intact8.convert(sim)
    names = float_results(program)
    assert len(names) >= least and set(names) <= set(program.exact_floats())
    report = intact8.verify(program, x, ["native"], sim=sim)
    assert report.exact and set(names) <= set(report.by_tensor)
    return program


def shaken(model: nn.Module) -> nn.Module:
    """Give batch norms statistics and affine numbers that are not those of a fresh one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.running_var, module.weight):
                values.data.uniform_(0.3, 1.5)
    return model.eval()


@pytest.mark.parametrize(("layer", "base"), [*((name, "default") for name in LAYERS), ("groups", "accurate")])
def test_convolutions_give_the_same_bits(layer: str, base: str) -> None:
    torch.manual_seed(0)
    recipe = replace(recipes.presets()[base](), between_layers="float")
    model, x = shaken(Block(LAYERS[layer](), 6, 8)), torch.randn(6, 3, 9, 9)
    program = assert_exact(calibrated(model, x, recipe), x, 2)
    wanted = model(x).detach()
    assert float((wanted - program.run(x)).norm() / wanted.norm()) < 0.02


@pytest.mark.parametrize("between", ["float_residual", "float"])
def test_rows_of_any_number_give_the_same_bits(between: str) -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(6, 7, 12)
    sim = calibrated(model, x, Recipe(between_layers=between), dynamic_shapes={"x": {1: "rows"}})
    program = assert_exact(sim, torch.randn(3, 9, 12), 3)
    assert not any(op.kind == "add" for op in program.ops)


def test_a_fused_residual_is_added_in_float() -> None:
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(6, 7, 12)
    program = assert_exact(calibrated(model, x, replace(FLOAT, residual="fused")), x)
    assert sum(op.kind == "float.add" for op in program.ops) == 2


def test_long_sums_and_many_bits_give_the_same_bits() -> None:
    """Sums beyond 2^24 are rounded once, to float32, before they are multiplied."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3000, 8), nn.SiLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight.uniform_(0.5, 1)
    x = torch.rand(5, 3000)
    program = assert_exact(calibrated(model.eval(), x, replace(FLOAT, portable=False)), x)
    sums = program.ops[1].arrays["weight"].astype(np.int64).sum(1)
    assert (sums * 255 > 2**24).any()


def test_an_override_that_names_a_scheme_keeps_the_grid_of_a_result() -> None:
    x = torch.randn(8, 3, 9, 9)
    model = Block(nn.Conv2d(6, 8, 1), 6, 8).eval()
    sim = calibrated(model, x, replace(FLOAT, overrides={"layer": {"activation": {"observer": "minmax"}}}))
    assert "layer" in sim.points and "layer" not in sim.placed.dequantized and "last" in sim.placed.dequantized


@pytest.mark.parametrize("scales", ["calibrated", "observed", "learned", "fixed"])
def test_training_moves_what_it_should_and_ships_the_bits_of_evaluation(scales: str) -> None:
    torch.manual_seed(0)
    model, x = Block(LAYERS["batch norm"](), 6, 8), torch.randn(8, 3, 9, 9)
    sim = calibrated(shaken(model), x, replace(FLOAT, scales=scales, bias_correction=False))
    target = torch.randn_like(model(x).detach())
    optimizer = torch.optim.Adam(sim.parameters(), lr=0.01)
    sim.train()
    losses = descend(sim, x, target, optimizer)
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for name, p in sim.named_parameters() if name.endswith(("weight", "bias")))
    sim.eval()
    assert_exact(sim, x, 2)
    assert_exact(copy.deepcopy(sim), x, 2)


def test_gradients_of_exact_sums_are_those_of_the_float_layer_on_the_grid() -> None:
    """With scales that stay, the exact sum has the gradients of a product of what the integers stand for."""
    torch.manual_seed(0)
    model, x = Block(nn.Conv2d(6, 8, 3, padding=1), 6, 8), torch.randn(4, 3, 9, 9)
    sim = calibrated(model.eval(), x, replace(FLOAT, scales="fixed", bias_correction=False)).train()
    layer, values = sim.layer_ops["layer"], {}
    sim.run([x], visit=lambda node, inputs, output: values.update({node.name: (inputs, output)}))
    (source,), y = values["layer"]
    q = source.q.detach().requires_grad_()
    y = layer.sum_of(replace(source, q=q), True)
    g = torch.randn_like(y)
    to_q, to_bias = torch.autograd.grad(y, [q, sim.tensors["layer.bias"]], g)
    integers, scale, bias = layer.deployed(source.point)
    weight = (integers.weight * scale[:, None, None, None]).detach()
    plain = q.detach().requires_grad_()
    want = torch.nn.functional.conv2d(plain, weight, bias, padding=1)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(to_q, torch.autograd.grad(want, plain, g)[0])
    torch.testing.assert_close(to_bias, g.sum((0, 2, 3)))


def test_diagnosis_takes_layers_with_float_results() -> None:
    torch.manual_seed(0)
    model, x = Block(nn.Conv2d(6, 8, 1), 6, 8).eval(), torch.randn(8, 3, 9, 9)
    sim = calibrated(model, x, FLOAT)
    rows = {row.name: row for row in intact8.compare(model, sim, x)}
    assert rows["layer"].weight is not None and not rows["layer"].quantized
    scores = intact8.sensitivity(sim, x, parts=("both", "weight", "activation"))
    assert scores["layer"].has_weight and scores["layer"].score("alone", "weight") is not None
    assert scores["layer"].score("alone", "activation") is None
