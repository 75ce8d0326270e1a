"""Products and means whose ratio of scales no multiplier reaches keep their values, at the cost of some steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


class LargeMean(nn.Module):
    """A mean of 16,384 values, far smaller than they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


class SmallFactors(nn.Module):
    """Factors of a thousandth each give products of ordinary size, because hundreds of them are added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).mT @ (self.b(x) / 1000)


class SharedGrid(nn.Module):
    """A small product on the grid of a concatenation with something large."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x) * self.b(x).sigmoid() / 20, 20 * self.c(x)], -1)


class NothingYet(nn.Module):
    """A product with a state that is zero at the start, as state space models have it: its result has no range."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x) / 1e6
        state = torch.relu(self.b(x) - 1e6)
        return a * self.b(x) + (a[:, :, None] @ state[:, None])[:, :, 0]


class Vanishing(nn.Module):
    """A product of two tensors so small that float32 gives zero."""

    def __init__(self, product: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.product = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), product
        with torch.no_grad():
            for parameter in (*self.a.parameters(), *self.b.parameters()):
                parameter *= 1e-25

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        y: Tensor = self.c(a * b if self.product == "mul" else a @ b)
        return y


@pytest.mark.parametrize(
    ("model", "shape", "bound"),
    [
        (LargeMean(), (4, 3, 128, 128), 0.02),
        (SmallFactors(), (4, 1500, 8), 0.02),
        (SharedGrid(), (64, 8), 0.02),
    ],
    ids=["large-mean", "small-factors", "shared-grid"],
)
def test_close_to_float(model: nn.Module, shape: tuple[int, ...], bound: float) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(shape)
    program = intact8.quantize(model.eval(), x, recipes.minmax())
    with torch.no_grad():
        wanted = model(x)
    assert float((program.run(x) - wanted).norm() / wanted.norm()) < bound
    assert intact8.verify(program, x[:2]).exact
    assert max(float((op.certificate or {}).get("gain_error", 0.0)) for op in program.ops) < 0.02


def test_an_output_that_was_zero_does_not_coarsen_what_it_is_made_of() -> None:
    torch.manual_seed(0)
    model, x = NothingYet().eval(), torch.randn(64, 8)
    sim = intact8.prepare(model, x, recipes.minmax())
    intact8.calibrate(sim, x)
    with torch.no_grad():
        wanted = model(x)
        assert float((sim.eval()(x) - wanted).norm() / wanted.norm()) < 0.05


@pytest.mark.parametrize("product", ["mul", "matmul"])
def test_a_product_that_vanishes_has_a_scale_that_programs_hold(product: str) -> None:
    """Both grids are the finest there are: the output's cannot get any finer, so the inputs' get coarser."""
    torch.manual_seed(0)
    model, x = Vanishing(product).eval(), torch.randn(64, 8, 8)
    program = intact8.quantize(model, x, recipes.minmax())
    wanted = model(x).detach()
    assert float((program.run(x) - wanted).norm() / wanted.norm()) < 0.02
    assert intact8.verify(program, x[:2]).exact
