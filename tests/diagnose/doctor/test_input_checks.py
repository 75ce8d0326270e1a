"""Inputs that look damaged are named where the network is wrong and little else explains it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import answered
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.report import Finding


def slower(x: Tensor) -> Tensor:
    return x[:, :, ::2].repeat_interleave(2, 2)


def shorter(x: Tensor) -> Tensor:
    return torch.cat([nn.functional.interpolate(x, size=16), torch.zeros(len(x), x.shape[1], 8)], 2)


def silent(x: Tensor) -> Tensor:
    return torch.cat([x[:, :2], torch.full_like(x[:, 2:3], -1.0), x[:, 3:]], 1)


WAYS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "slower": (slower, "every value comes 2 times in a row along dimension 2"),
    "shorter": (shorter, "the last 8 of 24 steps along dimension 2 never change"),
    "silent": (silent, "number 2 of dimension 1 is -1 everywhere"),
}


def findings(net: nn.Module, given: Tensor, right: Tensor) -> tuple[Finding, ...]:
    data = list(zip(given.split(64), right.split(64), strict=True))
    return intact8.doctor(net, data, remedies=False, seconds=0, budget=20).findings


@pytest.mark.parametrize("name", WAYS)
def test_what_looks_damaged_is_named_where_answers_are_wrong(name: str) -> None:
    way, text = WAYS[name]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(6, 16, 5), nn.Tanh(), nn.Flatten(), nn.Linear(16 * 20, 5)).eval()
    x = torch.randn(512, 6, 24)
    with torch.no_grad():
        net[0].weight.mul_(2)
        net[3].weight.mul_(4)
    damaged = way(x)
    wrong = findings(net, damaged, answered(net, x))[0]
    assert (wrong.place, wrong.cause) == ("network", "float_network_wrong") and text in wrong.message, str(wrong)
    right = findings(net, damaged, answered(net, damaged))  # of a network that learned such inputs
    assert all(finding.severity != "error" for finding in right), str(right[0])


def test_numbers_that_stand_for_missing_ones_are_named_and_flags_are_not() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    x = torch.randn(512, 6)
    x[:, 4:] = (torch.rand(512, 2) < 0.02).float()  # flags, which are seldom set
    with torch.no_grad():
        net[2].weight.mul_(4)
    labels = answered(net, x)

    def looks(given: Tensor, right: Tensor) -> list[str]:
        return [f.message for f in findings(net, given, right) if "far from all others" in f.message]

    missing = x.clone()
    missing[torch.rand(512) < 0.4, 1] = -48.0
    (message,) = looks(missing, labels)
    assert "number 1 of dimension 1 is -48 in" in message
    assert not looks(x, labels.roll(1))  # of a network that is wrong for another reason


class Bag(nn.Module):
    """The mean of the words of a text, of which padding is none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.words(x).sum(1))
        return y


def test_texts_that_are_cut_are_named_and_short_ones_are_not() -> None:
    torch.manual_seed(0)
    net, lengths = Bag().eval(), torch.randint(4, 17, (512, 1))
    x = torch.randint(1, 40, (512, 16)).masked_fill(torch.arange(16) >= lengths, 0)

    def found(given: Tensor, right: Tensor) -> list[str]:
        return [f.message for f in findings(net, given, right) if "where they are cut" in f.message]

    cut = x.masked_fill(torch.arange(16) >= 8, 0)
    (message,) = found(cut, answered(net, x))
    assert "of the texts end at place 8 of 16" in message
    short = torch.cat([x[:, :8].masked_fill(torch.arange(8) >= lengths // 2, 0), torch.zeros_like(x[:, 8:])], 1)
    assert not found(short, answered(net, short).roll(1))  # wrong for another reason, and no text fills all places
    assert not found(cut, answered(net, cut))  # of a network that learned such texts


def test_columns_that_nothing_is_known_of_at_the_end_are_named() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24 * 4, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    x = torch.randn(512, 24, 4)
    with torch.no_grad():
        net[3].weight.mul_(4)
    unknown = x.clone()
    unknown[:, 16:, 1:3] = 0.0

    def found(given: Tensor, right: Tensor) -> list[str]:
        return [f.message for f in findings(net, given, right) if "never changes" in f.message]

    (message,) = found(unknown, answered(net, x))
    assert "number 1, 2 of dimension 2 never changes in the last 8 of 24 steps along dimension 1" in message
    assert not found(unknown, answered(net, unknown))  # of a network that learned such inputs
    assert not found(x, answered(net, x).roll(1))
