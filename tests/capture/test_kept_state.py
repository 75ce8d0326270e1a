"""State that a model keeps in attributes, and numbers of chance: refused; what a capture changes is put back."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.errors import CaptureError, CaptureWarning


class Keeping(nn.Module):
    """A layer and something that calls leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.memory: Any = 0.0
        self.calls, self.history = 0, list[Tensor]()
        self.cache: dict[str, Tensor] = {}


class Memory(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.memory
        self.memory = y.mean(0).detach()
        return y


class Counting(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.layer(x) * self.calls
        return y


class History(Keeping):
    def forward(self, x: Tensor) -> Tensor:
        self.history.append(self.layer(x))
        return torch.stack(self.history).sum(0)


@pytest.mark.parametrize(("kind", "name"), [(Memory, "memory"), (Counting, "calls"), (History, "history")])
def test_state_that_results_depend_on_is_refused_by_name(kind: type[Keeping], name: str) -> None:
    model = kind().eval()
    with pytest.raises(CaptureError, match=f"{name} is changed by every call.*return it"):
        intact8.quantize(model, torch.randn(64, 6))
    assert model.memory == 0.0 and model.calls == 0 and not model.history


class Remembering(Keeping):
    """Keeps its last results, which nothing reads, and a table that it makes once."""

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in self.cache:
            self.cache["table"] = torch.ones(4)
        y: Tensor = self.layer(x) * self.cache["table"]
        self.memory = y
        self.calls += 1
        self.history.append(y.detach())
        return y


def test_what_nothing_reads_is_no_state_and_is_put_back() -> None:
    model = Remembering().eval()
    captured = capture(model, torch.randn(5, 6))
    assert captured.graph.dynamic_batch
    assert model.memory == 0.0 and model.calls == 0 and not model.history and not model.cache


def test_attributes_of_classes_of_their_own_are_left_alone() -> None:
    model = Remembering().eval()
    model.cache = OrderedDict(other=torch.ones(1))
    captured = capture(model, torch.randn(5, 6))
    assert captured.graph.dynamic_batch and type(model.cache) is OrderedDict


class Chance(nn.Module):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(6, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) * self.draw()
        return y


@pytest.mark.parametrize("draw", [np.random.default_rng(3).random, random.Random(3).random], ids=["numpy", "random"])
def test_numbers_of_chance_are_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(CaptureError, match="another result for the same input every time"):
        intact8.quantize(Chance(draw).eval(), torch.randn(64, 6))


def test_an_encoder_that_drops_what_a_mask_hides_is_captured_as_it_is_trained() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.table, self.layers = nn.Embedding(30, 16), nn.TransformerEncoder(layer, 2)

        def forward(self, words: Tensor) -> Tensor:
            y: Tensor = self.layers(self.table(words), src_key_padding_mask=words == 0)
            return y

    torch.manual_seed(0)
    model, words = Encoder().eval(), torch.randint(1, 30, (64, 8))
    words[::2, 5:] = 0
    program = intact8.quantize(model, words)
    expected = model(words).detach()  # with gradients, the layers do not take the fast way
    found = program.run(words)
    assert torch.backends.mha.get_fastpath_enabled()
    assert float((found - expected).norm() / expected.norm()) < 0.05


class Cached(nn.Module):
    """Adds a table that is computed once for every size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    @functools.cache  # noqa: B019 - as people write it
    def table(self, size: int) -> Tensor:
        return torch.arange(size).float()[:, None]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.table(len(x))
        return y


def test_tables_that_a_decorator_keeps_are_neither_constants_nor_lost() -> None:
    model = Cached().eval()
    for size in (3, 16, 17):
        model(torch.randn(size, 6))
    with pytest.warns(CaptureWarning, match="the program will take x .16, 6. and no other batch size"):
        program = intact8.quantize(model, torch.randn(64, 6).split(16))
    x = torch.randn(16, 6)
    assert torch.allclose(program.run(x), model(x), atol=0.3)
    assert type(model.table(16)) is Tensor
