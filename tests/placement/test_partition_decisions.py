"""Where results are only compared, or cast to integers, the numbers are those that a function gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "signs": lambda y: y.sign().long(),
    "signs compared": lambda y: y.sign().reshape(-1, 2, 3) == 1,
    "the end of a clamp": lambda y: (3 * y).clamp(-0.7, 0.7) >= 0.7,
    "the end of an activation": lambda y: F.hardtanh(y, -0.3, 0.7) >= 0.7,
    "whole numbers": lambda y: (4 * y).round().long(),
    "outside": lambda y: F.hardtanh(y).abs() == 1,
}


class Decides(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.call = nn.Linear(6, 6), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.linear(x))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_decided_is_what_the_model_decides(name: str) -> None:
    model = Decides(CALLS[name]).eval()
    x = torch.randn(256, 6)
    program = intact8.quantize(model, x)
    wanted = model(x)
    assert (program.run(x) == wanted).double().mean() > 0.95
    assert intact8.verify(program, x).mismatches == 0
