"""Results that would leave what engines hold: an operand that uses next to nothing of the grid it shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


class FarBelowItsGrid(nn.Module):
    """A layer or a product of what a concatenation has rounded to nothing."""

    def __init__(self, op: str, tiny: float) -> None:
        super().__init__()
        self.loud, self.quiet = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        self.behind, self.head, self.op = nn.Linear(64, 64, bias=False), nn.Linear(128, 4), op
        with torch.no_grad():
            self.quiet.weight *= tiny

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cat([self.loud(x), self.quiet(x)], -1)
        z = y[..., 64:]
        other = self.behind(z) if self.op == "linear" else z @ z.mT if self.op == "matmul" else z * z
        return self.head(y), other


@pytest.mark.parametrize("op", ["linear", "matmul", "mul"])
@pytest.mark.parametrize("tiny", [1e-3, 1e-6, 1e-9, 1e-12])
def test_engines_can_run_it(op: str, tiny: float) -> None:
    torch.manual_seed(0)
    model, x = FarBelowItsGrid(op, tiny).eval(), torch.randn(64, 16, 64)
    sim = intact8.prepare(model, x, recipes.minmax())
    intact8.calibrate(sim, x)
    program = intact8.convert(sim)
    report = intact8.verify(program, x[:2], engines=["native", "onnxruntime"])
    assert report.exact and report.mismatches == 0
    wanted = model(x)[0].detach()
    assert float((program.run(x)[0] - wanted).norm() / wanted.norm()) < 0.03


class AddsNothing(nn.Module):
    """A sum of next to nothing and of a branch whose input is zero throughout."""

    def __init__(self, tiny: float) -> None:
        super().__init__()
        self.quiet, self.silent = (nn.Conv2d(3, 8, 1, bias=False) for _ in range(2))
        self.head = nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            self.quiet.weight *= tiny

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.quiet(x) + self.silent(torch.relu(-x.abs() - 1)))
        return y


@pytest.mark.parametrize("tiny", [1.0, 1e-6, 1e-10, 1e-20])
def test_a_branch_of_zeros_follows_the_sum_and_its_layer_follows_it(tiny: float) -> None:
    torch.manual_seed(0)
    model, x = AddsNothing(tiny).eval(), torch.randn(64, 3, 8, 8)
    program = intact8.quantize(model, x, intact8.Recipe(between_layers="integer"))
    assert intact8.verify(program, x[:2], engines=["native", "onnxruntime"]).mismatches == 0
    wanted = model(x).detach()
    assert float((program.run(x) - wanted).norm() / wanted.norm()) < 0.03
