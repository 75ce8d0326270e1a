"""Slices of concatenations read the parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.fusion.fuse import fuse


class Token(nn.Module):
    """A class token that travels with the patches (CoaT, XCiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.fc(x)], 1)
        return torch.cat([x[:, :1], 2 * x[:, 1:]], 1)


class Of(nn.Module):
    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x.relu(), x.sigmoid())


MODELS: dict[str, tuple[nn.Module, int]] = {
    "class-token": (Token(), 1),
    "whole-part": (Of(lambda a, b: torch.cat([a, b], 2)[..., 4:]), 0),
    "within-a-part": (Of(lambda a, b: torch.cat([a, b], 2)[..., 5:7]), 0),
    "across-parts": (Of(lambda a, b: torch.cat([a, b], 2)[..., 3:7]), 1),
    "with-steps": (Of(lambda a, b: torch.cat([a, b], 2)[..., 4::2]), 1),
    "another-axis": (Of(lambda a, b: torch.cat([a, b], 2)[:, 1:]), 1),
    "read-as-a-whole-too": (
        Of(lambda a, b: torch.cat([a, b], 2).sum(2, keepdim=True) + torch.cat([a, b], 2)[..., :4]),
        1,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_same_values_and_no_needless_concatenation(name: str) -> None:
    model, cats = MODELS[name]
    x = torch.randn(2, 3, 4)
    captured = capture(model.eval(), x)
    fused = fuse(captured.graph, captured.tensors(), residual=False, leaky=True)
    assert [n.op for n in fused.graph].count("cat") == cats
    sources = [s for n in fused.graph for s in n.source]
    assert len(sources) == len(set(sources))
    with torch.no_grad():
        torch.testing.assert_close(intact8.prepare(model, x).eval()(x), model(x))
