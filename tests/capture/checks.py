"""Code that checks values: pytest writes the assertions of test files anew, and leaves those of this file alone."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from intact8.capture.known_values import passes_check


class Checked(nn.Module):
    """What a program leaves out: checks of values, which end in an error or do nothing."""

    def __init__(self, decides: bool = False) -> None:
        super().__init__()
        self.layer, self.decides = nn.Linear(4, 3), decides

    def forward(self, x: Tensor) -> Tensor:
        assert (x == x).all()
        assert not (x != x).any() and (x.shape[1] == 4), f"no numbers: {x.shape}"
        if x.abs().max() > 1e9:
            message = f"{x.shape} has numbers that are too large"
            raise ValueError(message)
        if x.max().item() > 1e9:
            raise ValueError("too large")
        torch._assert((x < 1e9).all(), "too large")
        if self.decides and x.sum() > 0:
            x = -x
        y: Tensor = self.layer(x)
        return y


class Asked:
    """A value whose truth is what passes the check that asks for it, or else unknown."""

    def __init__(self) -> None:
        self.found: list[bool | None] = []

    def __bool__(self) -> bool:
        self.found.append(passes_check(sys._getframe(1)))
        return bool(self.found[-1])


def checks(a: Asked) -> None:
    assert a
    assert not a, "text"
    assert a and len(a.found) == 3, f"{a}"
    if a:
        raise ValueError(f"{a}")
    if not a:
        text = "bad"
        raise ValueError(text)


def decides(a: Asked) -> int:
    if a:
        return 1
    b = 2 if a else 3
    while a:
        b += 1
    return b


def catches(a: Asked) -> int:
    try:
        assert not a
    except AssertionError:
        return 1
    return 2
