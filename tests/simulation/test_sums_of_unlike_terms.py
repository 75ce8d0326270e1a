"""Sums of terms of unlike sizes: nothing but zeros beside small values, large terms that cancel, far smaller terms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


class Sum(nn.Module):
    """A function of the results of two linear layers, and another layer behind it."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.function = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.function(self.a(x), self.b(x)))


CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zeros": lambda u, v: u * 0.0 + v * 1e-6,
    "zeros_and_tiny_layer": lambda u, v: v + torch.relu(u - 1000),
    "zeros_and_tiny": lambda u, v: v * 1e-20 - u * 0.0,
    "never_positive": lambda u, v: torch.relu(u - 1000) + v * 1e-5,
    "cancelling": lambda u, v: (u * 1e6 + v * 1e-3) - u * 1e6,
    "vanishing": lambda u, v: u + v * 1e-20,
    "vanishing_and_used_before": lambda u, v: torch.cat([v * 1e-9, u + v * 1e-9]),
    "below_the_smallest_scale": lambda u, v: u + v * 1e-35,
}


@pytest.mark.parametrize("residual", ["separate", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_unlike_terms_give_an_exact_program(case: str, residual: str) -> None:
    torch.manual_seed(0)
    model, x = Sum(CASES[case]).eval(), torch.randn(16, 8)
    with torch.no_grad():
        model.b.weight *= 1e-6 if case == "zeros_and_tiny_layer" else 1
        model.b.bias *= 1e-6 if case == "zeros_and_tiny_layer" else 1
    sim = intact8.prepare(model, x, intact8.Recipe(residual=residual))
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    assert intact8.verify(program, x, sim=sim).exact
    with torch.no_grad():
        wanted = model(x)
    assert float((program.run(x) - wanted).norm() / wanted.norm()) < 0.05


def test_terms_that_cancel_have_ratios_that_are_proved(tmp_path):
    """The ratios of x − x were once beyond what the bound of a sum is proved for."""

    class Cancels(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x) - torch.sigmoid(x)

    x = torch.randn(32, 8)
    for recipe in (intact8.recipes.default(), intact8.recipes.qat("observed")):
        program = intact8.quantize(Cancels().eval(), x, recipe=recipe)
        assert all(op.certificate is None or op.certificate["exact"] for op in program.ops)
        program.save(tmp_path / "p.safetensors")
        assert intact8.verify(program, x.numpy()).mismatches == 0
