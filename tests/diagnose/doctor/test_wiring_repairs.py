"""What is joined or configured otherwise than in training is put right: the repair gives all answers back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.diagnose.doctor.test_structural_repairs import Bed, answered
from torch import Tensor, nn


class Convolutions(nn.Module):
    """Three layers, two of them residual, a pooling and a classifier; every setting of it can be another one."""

    def __init__(self, pads: tuple[int, int] = (4, 0), dilation: int = 2, mean: bool = True, add: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pads, self.mean, self.add = pads, mean, add
        self.conv0 = nn.Conv1d(6, 6, 3, dilation=dilation)
        self.conv1 = nn.Conv1d(6, 6, 3, padding=1)
        self.conv2 = nn.Conv1d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 5)
        for layer in (self.conv0, self.conv1, self.conv2):
            nn.init.normal_(layer.weight, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.conv2(x)).relu()
        x = self.conv0(F.pad(x, self.pads)).relu()
        y = self.conv1(x)
        x = (x + y if self.add else y).relu() * torch.linspace(0, 1, x.shape[-1])
        z: Tensor = self.fc(x.mean(2) if self.mean else x.amax(2))
        return z


class Attention(nn.Module):
    """Attention whose last word is classified; every setting of it can be another one."""

    def __init__(self, step: int = -1, causal: bool = True, inverted: bool = False, turned: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.causal, self.inverted, self.turned = step, causal, inverted, turned
        self.qkv, self.mix, self.fc = nn.Linear(8, 24), nn.Linear(6, 6), nn.Linear(8, 5)
        nn.init.normal_(self.qkv.weight)
        nn.init.normal_(self.mix.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        if self.causal:
            scores = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -1e4)
        hidden = x[..., :1].transpose(1, 2)[:, None] < -0.5
        scores = scores.masked_fill(~hidden if self.inverted else hidden, -1e4)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
        y = y + self.mix(y.reshape(-1, 8, 6) if self.turned else y.transpose(1, 2)).transpose(1, 2)
        z: Tensor = self.fc(y[:, self.step])
        return z


def interleaved() -> nn.Module:
    net = Attention()
    for value in net.qkv.parameters():
        value.data = value.data.unflatten(0, (3, 2, 4)).transpose(0, 1).flatten(0, 2).contiguous()
    return net


FAULTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "padding": (Convolutions, lambda: Convolutions(pads=(2, 2)), "it pads before only"),
    "dilation": (Convolutions, lambda: Convolutions(pads=(2, 0), dilation=1), "its dilation is 2, not 1"),
    "pooling": (Convolutions, lambda: Convolutions(mean=False), "it takes the mean, not the maximum"),
    "shortcut": (Convolutions, lambda: Convolutions(add=False), "is added to its results, a shortcut"),
    "step": (Attention, lambda: Attention(step=0), "it takes step 5 of 6, not step 0"),
    "causal": (Attention, lambda: Attention(causal=False), "no position sees those behind it"),
    "mask": (Attention, lambda: Attention(inverted=True), "its mask is inverted"),
    "reshape": (Attention, lambda: Attention(turned=True), "it transposes its input and does not reshape it"),
    "layout": (Attention, interleaved, "queries, keys and values lie head by head"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_gives_all_answers_back_is_named(name: str) -> None:
    right, wrong, text = FAULTS[name]
    torch.manual_seed(1)
    x = torch.randn(256, 6, 16 if right is Convolutions else 8)
    good, bad = right(), wrong()
    with torch.no_grad():
        shift = good(x).mean(0)  # so that every class is the answer to some
        good.fc.bias -= shift
        bad.fc.bias -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_columns_in_another_order() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    x = torch.randn(256, 6)
    with torch.no_grad():
        numbers = net(x)
    assert "columns 1 and 4 swapped" in Bed(net, x[:, [0, 4, 2, 3, 1, 5]], numbers.argmax(1)).said().message
    assert "in the order 2, 0, 1" in Bed(net, x, numbers[:, [2, 0, 1]]).said().message
