"""Integers are divided as integers, however large they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hash": lambda x, y: (x * 2654435761) % 1024,
    "floor by a number": lambda x, y: x // 7,
    "floor": lambda x, y: x // y,
    "of a number": lambda x, y: 10**12 % y,
    "towards 0": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "remainder by a negative number": lambda x, y: x % -86400,
    "fmod": lambda x, y: torch.fmod(x, y),
    "shifted": lambda x, y: x >> 3,
    "bytes": lambda x, y: (x % 256).to(torch.uint8) // 3,
}


class Called(nn.Module):
    def __init__(self, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call(x, y)


@pytest.mark.parametrize("name", CALLS)
def test_quotients_and_remainders_of_large_integers(name: str) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randint(-(2**62), 2**62, (16, 6)), torch.randint(-99, 99, (16, 6)), torch.full((4, 6), 2**25)])
    y = torch.randint(1, 10**9, x.shape) * torch.randint(0, 2, x.shape).mul(2).sub(1)
    y[::3] = torch.tensor([1, -1, 2, -3, 5, 2**40])
    model = Called(CALLS[name]).eval()
    program = intact8.quantize(model, [(x, y)])
    for engine in ("reference", "native", "onednn", "onnxruntime"):
        found = program.run(x, y, engine=engine)
        assert found.dtype == model(x, y).dtype and torch.equal(found, model(x, y)), engine
