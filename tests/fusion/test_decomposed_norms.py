"""Norms written by hand: which formulas are a norm, which are not, and that the result is the formula's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture.trace import capture
from intact8.fusion.fuse import Fused, fuse

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

Formula = Callable[[Tensor], Tensor]


def centred(x: Tensor, dim: int = 1) -> Tensor:
    return x - x.mean(dim, keepdim=True)


def variance(x: Tensor, dim: int = 1) -> Tensor:
    return x.var(dim, keepdim=True, unbiased=False)


class LayerNorm2d(nn.Module):
    """As ConvNeXt and SAM have it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class RMSNorm(nn.Module):
    """As Llama has it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


LAYER_NORMS: dict[str, Formula] = {
    "sqrt": lambda x: centred(x) / torch.sqrt(variance(x) + 1e-5),
    "rsqrt": lambda x: torch.rsqrt(variance(x) + 1e-5) * centred(x),
    "square-by-product": lambda x: centred(x) / ((centred(x) * centred(x)).mean(1, keepdim=True) + 1e-5) ** 0.5,
    "power": lambda x: centred(x) * (variance(x) + 1e-5).pow(-0.5),
    "reciprocal": lambda x: centred(x) * (1 / torch.sqrt(variance(x) + 1e-5)),
    "last": lambda x: centred(x, -1) / torch.sqrt(variance(x, -1) + 1e-5),
    "all-but-batch": lambda x: (
        (x - x.mean((1, 2, 3), keepdim=True)) / (x.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    ),
}
RMS_NORMS: dict[str, Formula] = {
    "rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
    "sqrt": lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6),
}
OTHERS: dict[str, Formula] = {
    "unbiased": lambda x: centred(x) / torch.sqrt(x.var(1, keepdim=True) + 1e-5),
    "epsilon-outside": lambda x: centred(x) / (variance(x).sqrt() + 1e-5),
    "no-epsilon": lambda x: centred(x) / (variance(x) + 0.0).sqrt(),
    "other-dimension": lambda x: centred(x, 2) / torch.sqrt(variance(x, 1) + 1e-5),
    "not-centred": lambda x: x / torch.sqrt(variance(x) + 1e-5),
    "other-tensor": lambda x: centred(x) / torch.sqrt(variance(x.abs()) + 1e-5),
    "two-of-three": lambda x: (
        (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True, unbiased=False) + 1e-5).sqrt()
    ),
    "l2": lambda x: x / x.norm(dim=1, keepdim=True).clamp_min(1e-6),
    "upside-down": lambda x: torch.sqrt(variance(x) + 1e-5) / (centred(x).abs() + 1),
}


class Network(nn.Module):
    """A formula behind a convolution."""

    def __init__(self, formula: Formula | nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.formula = nn.Conv2d(3, 8, 3), formula

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.formula(self.conv(x))
        return y


def fused(model: nn.Module) -> Fused:
    captured = capture(model.eval(), torch.randn(2, 3, 8, 8))
    found = fuse(captured.graph, captured.tensors(), residual=False, leaky=False)
    groups = [part for node in found.graph for part in (node.source or [node.name])]
    assert len(groups) == len(set(groups)), "every captured node is in one group"
    lost = set(captured.graph.nodes) - set(groups)
    assert all(captured.graph.nodes[name].op == "constant" for name in lost)
    return found


def check(model: nn.Module, op: str) -> None:
    """One norm, nothing of the formula left, and in float the numbers of torch."""
    graph = fused(model).graph
    assert [n.op for n in graph if n.op not in ("input", "conv", "permute")] == [op], [n.op for n in graph]
    x = torch.randn(4, 3, 8, 8)
    sim = intact8.prepare(model, x).eval()
    sim.fake_quantize(False)
    with torch.no_grad():
        torch.testing.assert_close(sim(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norms(name: str) -> None:
    check(Network(LAYER_NORMS[name]), "layer_norm")


@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norms(name: str) -> None:
    check(Network(RMS_NORMS[name]), "rms_norm")


MODULES = {"layer_norm": LayerNorm2d(8), "rms_norm": RMSNorm(6)}


@pytest.mark.parametrize("op", MODULES)
@pytest.mark.parametrize("nonlinear", ["float", "integer"])
def test_weight_and_bias_are_part_of_the_norm(op: str, nonlinear: str) -> None:
    model, x = Network(MODULES[op]), torch.randn(32, 3, 8, 8)
    check(model, op)
    recipe = intact8.recipes.default() if nonlinear == "float" else intact8.recipes.integer()
    program = intact8.quantize(model, x, recipe)
    assert ("float." if nonlinear == "float" else "") + op in [each.kind for each in program.ops]
    with torch.no_grad():
        assert float((program.run(x) - model(x)).norm() / model(x).norm()) < 0.02
    assert intact8.verify(program, x[:2]).exact


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_stay_what_they_are(name: str) -> None:
    ops = {node.op for node in fused(Network(OTHERS[name])).graph}
    assert not ops & {"layer_norm", "rms_norm"}


def test_what_somebody_else_reads_stays() -> None:
    def formula(x: Tensor) -> Tensor:
        spread = variance(x)
        return centred(x) / torch.sqrt(spread + 1e-5) + spread

    graph = fused(Network(formula)).graph
    ops = [node.op for node in graph]
    assert "layer_norm" in ops and ops.count("mean") == 2
