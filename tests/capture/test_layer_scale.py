"""Factors of channels become part of the linear layer before them, and follow their parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8 import recipes


class Scaled(nn.Module):
    """Two linear layers, factors, and a convolution."""

    def __init__(self, function: Callable[[Scaled, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.one, self.other, self.conv = nn.Linear(8, 8), nn.Linear(8, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.factors = nn.Parameter(0.5 + torch.rand(shape))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def block(m: Scaled, x: Tensor) -> Tensor:
    return m.other(F.gelu(m.one(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


FOLDED: dict[str, tuple[Callable[[Scaled, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "layer scale": (lambda m, x: m.other(m.one(x) * m.factors + x), (8,), (64, 5, 8)),
    "from the left": (lambda m, x: m.other(m.factors * m.one(x) + x), (8,), (64, 8)),
    "without a bias": (lambda m, x: m.other(F.linear(x, m.one.weight) * m.factors + x), (1, 8), (64, 5, 8)),
    "temperature": (lambda m, x: m.other(m.one(x)) * m.factors.exp().clamp(max=100), (), (64, 8)),
    "weights of a sum": (lambda m, x: m.factors.softmax(0)[0] * m.one(x) + m.other(x), (8,), (64, 5, 8)),
    "behind a permutation": (lambda m, x: m.conv(x + block(m, x) * m.factors), (8, 1, 1), (64, 8, 6, 6)),
}

KEPT: dict[str, tuple[Callable[[Scaled, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "read twice": (lambda m, x: (lambda y: m.other(y * m.factors + y))(m.one(x)), (8,), (64, 5, 8)),
    "another axis": (lambda m, x: m.other(m.one(x) * m.factors), (8, 1), (64, 8, 8)),
    "in place": (lambda m, x: m.other(m.one(x).mul_(m.factors) + x), (8,), (64, 5, 8)),
}


@pytest.mark.parametrize("case", [*FOLDED, *KEPT])
def test_the_program_and_the_gradients_are_those_of_the_product(case: str) -> None:
    torch.manual_seed(0)
    function, shape, given = (FOLDED | KEPT)[case]
    model, data = Scaled(function, *shape).eval(), torch.randn(8, *given)
    sim = intact8.prepare(model, data[0], recipes.qat())
    assert bool({"mul", "scale_shift"} & {node.op for node in sim.graph}) is (case in KEPT)
    intact8.calibrate(sim, list(data))
    sim.train()(data[0]).square().mean().backward()
    for name in ("one.weight", "factors"):
        assert dict(sim.named_parameters())[name].grad.norm() > 0
    with torch.no_grad():
        wanted, simulated = model(data[0]), sim.eval()(data[0])
    assert (simulated - wanted).norm() < 0.05 * wanted.norm()
    assert torch.equal(intact8.convert(sim).run(data[0]), simulated)
