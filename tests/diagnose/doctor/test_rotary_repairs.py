"""Faults of converted transformers, and of modules that are called twice: what gives the answers back is named."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import Bed
from torch import Tensor, nn

from intact8.diagnose.doctor.untrained import untrained

LENGTH, HEADS, SIZE = 12, 2, 8


class Root(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Attention over turned queries and keys, and a gated layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Root(width), Root(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, hidden: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)

        def turned(y: Tensor) -> Tensor:
            one, other = y.chunk(2, -1)
            return y * cosines + torch.cat([-other, one], -1) * sines

        y = self.norm1(x)
        query, key, value = turned(heads(self.query(y))), turned(heads(self.key(y))), heads(self.value(y))
        seen = (query @ key.transpose(-1, -2) / SIZE**0.5 + hidden).softmax(-1) @ value
        x = x + seen.transpose(1, 2).flatten(2)
        y = self.norm2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Two blocks, and a class for every place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = HEADS * SIZE
        self.words, self.block1, self.block2 = nn.Embedding(9, width), Block(width), Block(width)
        self.norm, self.say = Root(width), nn.Linear(width, 5)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.5)
        self.turn(30.0)
        self.register_buffer("hidden", torch.full((LENGTH, LENGTH), -60.0).triu(1))

    def turn(self, base: float) -> None:
        angles = torch.arange(float(LENGTH))[:, None] * base ** (-torch.arange(SIZE / 2) / (SIZE / 2))
        self.register_buffer("cosines", torch.cat([angles.cos(), angles.cos()], 1))
        self.register_buffer("sines", torch.cat([angles.sin(), angles.sin()], 1))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in (self.block1, self.block2):
            x = block(x, self.cosines, self.sines, self.hidden)
        return self.say(self.norm(x)).transpose(1, 2)  # type: ignore[no-any-return]


def neighbours(net: Decoder) -> None:
    for block in (net.block1, net.block2):
        for layer in (block.query, block.key):
            layer.weight.data = layer.weight.data.reshape(HEADS, 2, SIZE // 2, -1).transpose(1, 2).reshape(16, 16)


def less_one(net: Decoder) -> None:
    for module in net.modules():
        if isinstance(module, Root):
            module.weight.data -= 1


def exchanged(net: Decoder) -> None:
    for block in (net.block1, net.block2):
        block.gate.weight, block.up.weight = block.up.weight, block.gate.weight


def with_diagonal(net: Decoder) -> None:
    net.hidden.fill_(-60.0).triu_(0)


FAULTS: dict[str, tuple[Callable[[Decoder], None], str]] = {
    "neighbours": (neighbours, "turned together are halves of a head, not neighbours"),
    "angles": (lambda net: net.turn(10000.0), "positions are turned by angles of base"),
    "gains": (less_one, "1 is added to its gains, and so in"),
    "exchanged": (exchanged, "exchange their weight, and so do their like in 1 more place"),
    "diagonal": (with_diagonal, "every position sees itself as well"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_gives_all_answers_of_a_decoder_back_is_named(name: str) -> None:
    plant, text = FAULTS[name]
    net = Decoder().eval()
    words = torch.randint(0, 9, (192, LENGTH))
    with torch.no_grad():
        labels = net(words).argmax(1)
    plant(net)
    said = Bed(net, words, labels).said()
    assert said.cause == "wrong_weights" and text in said.message, str(said)


class Eye(nn.Module):
    """Makes numbers of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1, self.conv2 = nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, groups=8)
        self.norm2, self.conv3, self.last = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1), nn.Linear(8, 8)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        y = self.conv3(self.norm2(self.conv2(y)).relu()).relu()
        return self.last(y.mean((2, 3)))  # type: ignore[no-any-return]


class Twins(nn.Module):
    """Compares two halves of a picture by one network, or by two with the same weights."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.eye, self.judge = Eye(), nn.Linear(8, 3)
        self.other = deepcopy(self.eye) if apart else None

    def forward(self, x: Tensor) -> Tensor:
        one, two = x[:, :1], x[:, 1:]
        return self.judge((self.eye(one) - (self.other or self.eye)(two)).abs())  # type: ignore[no-any-return]


def twins(*, apart: bool) -> tuple[Twins, Tensor, Tensor]:
    """Return a network, pictures, and its answers, of which none is usual."""
    net, x = Twins(apart).eval(), torch.randn(192, 2, 10, 10)
    with torch.no_grad():
        net.judge.bias -= net(x).mean(0)
        labels = net(x).argmax(1)
    assert labels.bincount().max() < 120
    return net, x, labels


def test_twins_have_equal_weights_on_purpose_and_unlike_ones_are_named() -> None:
    net, x, labels = twins(apart=True)
    assert not untrained(Bed(net, x, labels).sim)
    assert net.other is not None
    net.other.last.weight.data = net.other.last.weight.data.roll(3, 0)
    said = Bed(net, x, labels).said()
    assert said.place in ("other.last", "eye.last") and "it has the weights of" in said.message


def test_what_is_wrong_in_a_module_that_is_called_twice_is_put_right_in_both_calls() -> None:
    net, x, labels = twins(apart=False)
    net.eye.conv2.weight.data = net.eye.conv2.weight.data.roll(1, 0)
    said = Bed(net, x, labels).said()
    assert said.place == "eye.conv2" and "one channel further" in said.message
    net.eye.conv2.weight.data = net.eye.conv2.weight.data.roll(-1, 0)
    net.eye.norm1.num_groups = 8
    said = Bed(net, x, labels).said()
    assert said.place == "eye.norm1" and "it has 2 groups, not one for each channel" in said.message
