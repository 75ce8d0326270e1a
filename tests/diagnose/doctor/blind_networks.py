"""Networks of many kinds and what they are trained on, by somebody who did not know the doctor."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


class CNN(nn.Module):
    """Three convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1, stride=2)
        self.bn3 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


class MLP(nn.Module):
    """Four linear layers, dropout before the last."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 96)
        self.fc2 = nn.Linear(96, 96)
        self.fc3 = nn.Linear(96, 96)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        return self.head(self.drop(x))


class LSTMNet(nn.Module):
    """An LSTM over rows, layer norm on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 48, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.fc = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.lstm(x)
        return self.fc(self.norm(y[:, -1]))


class GRUNet(nn.Module):
    """A bidirectional GRU over signals, the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(2, 16)
        self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.gru(torch.tanh(self.proj(x)))
        return self.fc(y.mean(1))


class Attention(nn.Module):
    """Attention with separate queries, keys and values."""

    twice = False

    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.dk = d // h
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.proj = nn.Linear(d, d)
        self.scale = self.dk**-0.5

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        b, n, d = x.shape
        q, k, v = (f(x).reshape(b, n, self.h, self.dk).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = q @ k.transpose(-1, -2) * self.scale
        if mask is not None:
            a = a + mask
        a = a.softmax(-1)
        if self.twice:
            a = a.softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    """A layer of a transformer, norms first."""

    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.norm2 = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 2 * d)
        self.fc2 = nn.Linear(2 * d, d)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TextTransformer(nn.Module):
    """Words, token 0 of which pads, and a class token that is token 2."""

    def __init__(self, vocab: int = 64, d: int = 32, n: int = 20) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(n, d)
        self.blocks = nn.ModuleList([Block(d, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 4)

    def forward(self, ids: Tensor) -> Any:
        mask = (ids == 0).float()[:, None, None, :] * -1e4
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x)[:, 0])


class ViT(nn.Module):
    """A class token before sixteen patches."""

    def __init__(self, d: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, d, 2, 2)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 17, d) * 0.3)
        self.blocks = nn.ModuleList([Block(d, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x)[:, 0])


def cbr(i: int, o: int, k: int = 3, **kw: Any) -> nn.Sequential:
    """A convolution with batch norm and ReLU."""
    return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2, bias=False, **kw), nn.BatchNorm2d(o), nn.ReLU())


class UNet(nn.Module):
    """Two scales, joined by skips."""

    skip_first = True

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = cbr(1, 12)
        self.enc2 = cbr(12, 24)
        self.mid = cbr(24, 24)
        self.up2 = nn.Conv2d(24, 24, 1)
        self.dec2 = cbr(48, 24)
        self.up1 = nn.Conv2d(24, 12, 1)
        self.dec1 = cbr(24, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        u = self.up2(F.interpolate(c, scale_factor=2.0, mode="nearest"))
        d = self.dec2(torch.cat([b, u], 1))
        u = self.up1(F.interpolate(d, scale_factor=2.0, mode="nearest"))
        return self.out(self.dec1(torch.cat([a, u] if self.skip_first else [u, a], 1)))


class DW(nn.Module):
    """Depthwise separable convolutions with ReLU6."""

    def __init__(self) -> None:
        super().__init__()

        def dw(i: int, o: int, st: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(i, i, 3, st, 1, groups=i, bias=False),
                nn.BatchNorm2d(i),
                nn.ReLU6(),
                nn.Conv2d(i, o, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU6(),
            )

        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.features = nn.Sequential(dw(16, 32, 1), dw(32, 48, 2), dw(48, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(self.stem(x)).mean((2, 3)))


class ResBlock(nn.Module):
    """Two convolutions, scaled, added to what came in."""

    def __init__(self, i: int, o: int, st: int = 1, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.conv1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.down = (
            nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o)) if st != 1 or i != o else nn.Identity()
        )

    def forward(self, x: Tensor) -> Any:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) * self.scale + self.down(x))


class ResNet(nn.Module):
    """Five such blocks at three scales."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.stem = cbr(3, 16)
        self.layer1 = nn.Sequential(ResBlock(16, 16, 1, scale))
        self.layer2 = nn.Sequential(ResBlock(16, 24, 2, scale), ResBlock(24, 24, 1, scale))
        self.layer3 = nn.Sequential(ResBlock(24, 32, 2, scale), ResBlock(32, 32, 1, scale))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


class GNNet(nn.Module):
    """Group norm and SiLU, then convolutions without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.gn1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.gn2 = nn.GroupNorm(16, 32)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=1, stride=2)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.silu(self.gn1(self.conv1(x)))
        x = F.max_pool2d(F.silu(self.gn2(self.conv2(x))), 2)
        x = F.relu(self.conv3(x))
        x = F.relu(self.conv4(x))
        return self.fc(x.flatten(1))


class AE(nn.Module):
    """An autoencoder of tanh layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Linear(64, 48)
        self.enc2 = nn.Linear(48, 12)
        self.dec1 = nn.Linear(12, 48)
        self.dec2 = nn.Linear(48, 64)

    def forward(self, x: Tensor) -> Any:
        return self.dec2(torch.tanh(self.dec1(torch.tanh(self.enc2(torch.tanh(self.enc1(x)))))))


class Conv1d(nn.Module):
    """Dilated convolutions over beats."""

    def __init__(self) -> None:
        super().__init__()

        def b(i: int, o: int, d: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv1d(i, o, 5, padding=2 * d, dilation=d), nn.BatchNorm1d(o), nn.LeakyReLU(0.1))

        self.b1 = b(1, 16, 1)
        self.b2 = b(16, 24, 2)
        self.b3 = b(24, 32, 4)
        self.fc = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.b3(self.b2(self.b1(x)))
        return self.fc(torch.cat([x.mean(2), x.amax(2)], 1))


class EmbBag(nn.Module):
    """The mean of embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.Embedding(200, 24)
        self.fc1 = nn.Linear(24, 32)
        self.fc2 = nn.Linear(32, 6)

    def forward(self, ids: Tensor) -> Any:
        return self.fc2(F.relu(self.fc1(self.bag(ids).mean(1))))


def digit_features() -> nn.Sequential:
    """24 features of a digit."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 24),
        nn.ReLU(),
    )


class Two(nn.Module):
    """A digit and a row of a table; which half of the digits, and whether a gauge is high."""

    def __init__(self) -> None:
        super().__init__()
        self.image = digit_features()
        self.meta = nn.Linear(3, 8)
        self.join = nn.Linear(32, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, image: Tensor, meta: Tensor) -> Any:
        return self.head(F.relu(self.join(torch.cat([self.image(image), F.relu(self.meta(meta))], 1))))


class TwoRaw(nn.Module):
    """The same, but the table's raw numbers are joined to the image's features."""

    def __init__(self) -> None:
        super().__init__()
        self.image = digit_features()
        self.join = nn.Linear(27, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, image: Tensor, meta: Tensor) -> Any:
        return self.head(F.relu(self.join(torch.cat([self.image(image), meta], 1))))


class Det(nn.Module):
    """Classes, objectness and offsets per cell of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(cbr(1, 16), cbr(16, 24, stride=2), cbr(24, 32, stride=2), cbr(32, 32))
        self.head_cls = nn.Conv2d(32, 10, 1)
        self.head_obj = nn.Conv2d(32, 1, 1)
        self.head_box = nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Any:
        f = self.backbone(x)
        return self.head_cls(f), self.head_obj(f), self.head_box(f)


class Rec(nn.Module):
    """Ratings by tables of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(200, 16)
        self.item = nn.Embedding(150, 16)
        self.fc1 = nn.Linear(32, 48)
        self.fc2 = nn.Linear(48, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, u: Tensor, i: Tensor) -> Any:
        return self.out(F.relu(self.fc2(F.relu(self.fc1(torch.cat([self.user(u), self.item(i)], 1))))))[:, 0]


class TiedLM(nn.Module):
    """A language model whose last weight is its table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(40, 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.proj = nn.Linear(48, 32)
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Any:
        y, _ = self.gru(self.emb(ids))
        return self.head(self.proj(y))


class Tab(nn.Module):
    """Batch norm and linear layers over a table."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.fc1 = nn.Linear(8, 64)
        self.fc2 = nn.Linear(64, 64)
        self.out = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.out(F.relu(self.fc2(F.relu(self.fc1(self.norm(x))))))


class SE(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c: int, r: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(c, r, 1)
        self.fc2 = nn.Conv2d(r, c, 1)

    def forward(self, x: Tensor) -> Any:
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


class SEBlock(nn.Module):
    """A convolution with batch norm and hard swish, then squeeze and excitation."""

    def __init__(self, i: int, o: int, st: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, st, 1, bias=False)
        self.bn = nn.BatchNorm2d(o)
        self.se = SE(o, 8)

    def forward(self, x: Tensor) -> Any:
        return self.se(F.hardswish(self.bn(self.conv(x))))


class SENet(nn.Module):
    """Three such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(SEBlock(1, 16, 1), SEBlock(16, 32, 2), SEBlock(32, 32, 1))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.blocks(x).mean((2, 3)))


class Siam(nn.Module):
    """Whether two images show one digit."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(cbr(1, 16), cbr(16, 24, stride=2), cbr(24, 32))
        self.fc = nn.Linear(32 * 16, 32)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def embed(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(x).flatten(1))

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.head((self.embed(a) - self.embed(b)).abs())


Xs = tuple[Tensor, ...]
Data = tuple[Xs, Tensor]
"""Inputs and right answers; the first ones are trained on."""

MEAN, STD = (torch.tensor(v)[None, :, None, None] for v in ([0.45, 0.40, 0.35], [0.25, 0.22, 0.30]))


class Drawn:
    """Random numbers from one seed, for one set of data."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) of 0 to 1, and labels, shuffled."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(images.reshape(-1, 8, 8)[order] / 16.0, dtype=torch.float32)[:, None]
    return x, torch.tensor(labels[order])


def pictures() -> Data:
    """Digits."""
    x, y = digits()
    return (x,), y


def standard() -> Data:
    """Digits with about mean 0 and standard deviation 1."""
    x, y = digits()
    return ((x - 0.3) / 0.35,), y


def flat() -> Data:
    """Digits as 64 numbers."""
    x, y = digits()
    return (x.flatten(1),), y


def rows() -> Data:
    """Digits row by row."""
    x, y = digits()
    return (x[:, 0],), y


def given_back() -> Data:
    """Digits as 64 numbers, to be given back."""
    x, _ = digits()
    return (x.flatten(1),), x.flatten(1)


def enlarged() -> Tensor:
    """Digits of 16 pixels."""
    return F.interpolate(digits()[0], size=16, mode="bilinear", align_corners=False)


@functools.cache
def raw_colours() -> Data:
    """Coloured digits of 0 to 1: the digit modulo 5, and 5 more where the ink is blue rather than red."""
    draw, (_, y) = Drawn(), digits()
    blue = draw.integers(0, 2, len(y))
    inks = (torch.tensor(ink)[None, :, None, None] for ink in ([1.0, 0.35, 0.1], [0.1, 0.35, 1.0]))
    ink = torch.where(blue[:, None, None, None] == 0, *inks)
    return ((enlarged() * ink + 0.08 * draw.uniform(len(y), 3, 16, 16)).clamp(0, 1),), y % 5 + 5 * blue


def colours() -> Data:
    """The same, standardised."""
    (x,), y = raw_colours()
    return ((x - MEAN) / STD,), y


@functools.cache
def masks() -> Data:
    """Noisy digits, and where there is ink."""
    images = enlarged()
    return (images + 0.35 * Drawn().normal(*images.shape),), (images > 0.45).float()


@functools.cache
def signals() -> Data:
    """Two quantities over 32 steps, of four frequencies and phases, louder and quieter."""
    draw, count = Drawn(), 1800
    y = draw.integers(0, 4, count)
    t = torch.arange(32.0) / 32
    frequency, phase = (torch.tensor(v)[y][:, None] for v in ([2.0, 3.0, 2.0, 3.0], [0.0, 0.0, 1.5, 1.5]))
    begin = 6.28 * draw.uniform(count, 1)
    loud = torch.exp(0.5 * draw.normal(count, 1))
    angle = 6.28 * frequency * t + begin
    both = torch.stack([loud * torch.sin(angle), loud * torch.sin(angle + phase)], 2)
    return (both + 0.15 * draw.normal(count, 32, 2),), y


@functools.cache
def beats() -> Data:
    """Beats over 64 steps; those of class 0 are quiet, others are loud and differ in interval and width."""
    draw, count = Drawn(), 1800
    y = draw.integers(0, 4, count)
    noise, t = 0.1 * draw.normal(count, 64), torch.arange(64.0)[None]
    features = ([16.0, 16.0, 11.0, 16.0], [1.0, 1.0, 1.0, 2.2], [0.3, 2.0, 2.0, 2.0])
    period, width, size = (torch.tensor(v)[y][:, None] for v in features)
    u = (t + period * draw.uniform(count, 1)) % period - period / 2
    pulse = torch.exp(-((u / width) ** 2)) - 0.4 * torch.exp(-(((u - 3) / width) ** 2))
    return ((noise + size * pulse)[:, None],), y


@functools.cache
def topics() -> Data:
    """Sentences of words 4 to 63 behind token 2, filled up by 0; most words are of the topic."""
    draw, count = Drawn(), 2400
    y, length = draw.integers(0, 4, count), draw.integers(8, 20, count)
    own = draw.uniform(count, 19) < 0.5
    words = torch.where(own, 4 + 15 * y[:, None] + draw.integers(0, 15, count, 19), draw.integers(4, 64, count, 19))
    ids = torch.cat([torch.full((count, 1), 2), words], 1)
    ids[torch.arange(20)[None] > length[:, None]] = 0
    return (ids,), y


@functools.cache
def bags() -> Data:
    """Sixteen words of 200, some of which belong to a topic."""
    draw, count = Drawn(), 2400
    topic = torch.randperm(200, generator=draw.generator) % 6
    y, own = draw.integers(0, 6, count), draw.uniform(count, 16) < 0.4
    words = torch.stack([torch.where(topic == k)[0][:33] for k in range(6)])
    told = words[y[:, None].expand(-1, 16), draw.integers(0, 33, count, 16)]
    return (torch.where(own, told, draw.integers(0, 200, count, 16)),), y


@functools.cache
def gauges() -> Data:
    """Digits and three standardised numbers."""
    x, y = digits()
    z = Drawn().normal(len(y), 3)
    return (x, z), 2 * (y >= 5).long() + (z[:, 0] + 0.5 * z[:, 1] > 0).long()


def in_units() -> Data:
    """The same with numbers in three units, as they are measured."""
    (x, z), y = gauges()
    return (x, z * torch.tensor([180.0, 12.0, 900.0]) + torch.tensor([1013.0, 20.0, 3000.0])), y


def centred() -> Data:
    """The same with numbers in three units, but their means taken away."""
    (x, z), y = gauges()
    return (x, z * torch.tensor([180.0, 60.0, 900.0])), y


@functools.cache
def scenes() -> Data:
    """Digits somewhere in images of 24 pixels; digit and centre."""
    draw, (x, y) = Drawn(), digits()
    images = 0.1 * draw.uniform(len(y), 1, 24, 24)
    left, top = draw.integers(0, 17, len(y)), draw.integers(0, 17, len(y))
    for k in range(len(y)):
        images[k, 0, top[k] : top[k] + 8, left[k] : left[k] + 8] += x[k, 0]
    return (images,), torch.stack([y, left + 4, top + 4], 1).float()


@functools.cache
def ratings() -> Data:
    """Users, items, and what the ones think of the others."""
    draw, count = Drawn(), 16000
    users, items = draw.normal(200, 2), draw.normal(150, 2)
    u, i = draw.integers(0, 200, count), draw.integers(0, 150, count)
    liked = torch.tanh((users[u] * items[i]).sum(1) / 1.5)
    return (u, i), 3 + 1.2 * liked + 0.1 * draw.normal(count)


@functools.cache
def second_order() -> Data:
    """A chain of tokens, each of which follows from the two before it, mostly."""
    draw, count = Drawn(), 1500
    following = torch.stack([torch.randperm(40, generator=draw.generator) for _ in range(4)])
    ids = draw.integers(0, 40, count, 17)
    for k in range(2, 17):
        told = following[ids[:, k - 2] % 4, ids[:, k - 1]]
        ids[:, k] = torch.where(draw.uniform(count) < 0.9, told, ids[:, k])
    return (ids[:, :-1],), ids[:, 1:]


@functools.cache
def numbers() -> tuple[Tensor, Tensor, Tensor]:
    """Eight numbers, and two that depend on them."""
    z = Drawn().normal(2400, 8)
    one = torch.sin(1.5 * z[:, 0]) + z[:, 1] * z[:, 2] * 0.6 + 0.5 * z[:, 3].abs() + 0.3 * z[:, 4]
    return z, one, torch.tanh(z[:, 5] - z[:, 0])


def table() -> Data:
    """Eight numbers, and one that depends on them."""
    z, one, _ = numbers()
    return (z,), one[:, None]


def watts() -> Data:
    """Eight numbers, and two in units that are far apart."""
    z, one, other = numbers()
    return (z,), torch.stack([3000 + 900 * one, 0.5 + 0.4 * other], 1)


@functools.cache
def twins() -> Data:
    """Pairs of digits, and whether they are the same."""
    draw, count, (x, y) = Drawn(), 3000, digits()
    a, b = draw.integers(0, len(y), count), draw.integers(0, len(y), count)
    same = draw.uniform(count) < 0.5
    of = [torch.where(y == k)[0] for k in range(10)]
    for k in same.nonzero().reshape(-1).tolist():
        alike = of[int(y[a[k]])]
        b[k] = alike[int(draw.integers(0, len(alike), 1))]
    return (x[a], x[b]), (y[a] == y[b]).long()


def squares(result: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(result.reshape(y.shape), y)


def both_squares(result: Tensor, y: Tensor) -> Tensor:
    """Mean squared error, each number in its own unit."""
    mean, deviation = torch.tensor([3000, 0.5]), torch.tensor([900, 0.3])
    return F.mse_loss((result - mean) / deviation, (y - mean) / deviation)


def next_token(scores: Tensor, y: Tensor) -> Tensor:
    """Cross entropy from the third token on."""
    return F.cross_entropy(scores[:, 2:].flatten(0, 1), y[:, 2:].flatten())


def detection(found: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    """Cross entropy of the class and of the cell of the centre, squared error of the place within it."""
    scores, there, offset = found
    centre = y[:, 1:] / 4
    cell = centre.long().clamp(0, 5)
    k, (u, v) = torch.arange(len(y)), cell.unbind(1)
    where = F.cross_entropy(there.flatten(1), v * 6 + u)
    return (
        F.cross_entropy(scores[k, :, v, u], y[:, 0].long()) + where + 4 * F.mse_loss(offset[k, :, v, u], centre - cell)
    )


@dataclass(frozen=True)
class Task:
    """A network, its data and how it is trained on the first ``count`` of them."""

    make: Callable[[], Any]
    data: Callable[[], Data]
    loss: Callable[..., Tensor]
    epochs: int
    rate: float
    count: int = 1300


CE = F.cross_entropy
TASKS = {
    "cnn": Task(CNN, pictures, CE, 14, 3e-3),
    "mlp": Task(MLP, flat, CE, 15, 3e-3),
    "lstm": Task(LSTMNet, rows, CE, 14, 6e-3),
    "gru": Task(GRUNet, signals, CE, 12, 6e-3),
    "text": Task(TextTransformer, topics, CE, 8, 2e-3, 1800),
    "vit": Task(ViT, standard, CE, 12, 2e-3),
    "unet": Task(UNet, masks, F.binary_cross_entropy_with_logits, 5, 4e-3),
    "dw": Task(DW, colours, CE, 8, 4e-3),
    "resnet": Task(ResNet, colours, CE, 5, 3e-3),
    "resscale": Task(lambda: ResNet(0.2), colours, CE, 6, 3e-3),
    "gn": Task(GNNet, pictures, CE, 10, 3e-3),
    "ae": Task(AE, given_back, squares, 40, 5e-3),
    "conv1d": Task(Conv1d, beats, CE, 8, 3e-3),
    "bag": Task(EmbBag, bags, CE, 25, 1e-2, 1800),
    "two": Task(Two, gauges, CE, 15, 3e-3),
    "tworaw": Task(TwoRaw, centred, CE, 25, 3e-3),
    "det": Task(Det, scenes, detection, 14, 4e-3),
    "rec": Task(Rec, ratings, squares, 14, 1e-2, 15000),
    "lm": Task(TiedLM, second_order, next_token, 25, 6e-3, 1200),
    "tab": Task(Tab, table, squares, 30, 4e-3, 2000),
    "tab2": Task(lambda: Tab(2), watts, both_squares, 30, 4e-3, 2000),
    "se": Task(SENet, pictures, CE, 12, 4e-3),
    "siam": Task(Siam, twins, CE, 10, 3e-3, 2400),
}


@functools.cache
def _fitted(name: str) -> nn.Module:
    task, units = TASKS[name], torch.ones(27)
    torch.manual_seed(sum(map(ord, name)))
    net = task.make()
    parameters = dict(net.named_parameters())
    if name == "tworaw":  # what reads raw numbers begins small, and learns in steps as small
        units[24:] = 1 / torch.tensor([180.0, 60.0, 900.0])
        net.join.weight.data *= units
    if name == "tab2":  # what gives numbers in their units stays as it begins
        net.out.bias.data.copy_(torch.tensor([3000, 0.5]))
        net.out.weight.data *= torch.tensor([900, 0.3])[:, None]
        parameters = {n: p for n, p in parameters.items() if not n.startswith("out")}
    train(net.train(), task, torch.optim.Adam(parameters.values(), lr=task.rate), task.epochs, units)
    return net.eval()


def train(
    net: Any, task: Task, optimizer: torch.optim.Optimizer, epochs: int, units: Tensor | None = None, once: bool = True
) -> None:
    """Train, in one cycle of rates or at one rate."""
    xs, y = task.data()
    generator = torch.Generator().manual_seed(1)
    steps = epochs * -(-task.count // 64)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, total_steps=steps) if once else None
    for _ in range(epochs):
        for index in torch.randperm(task.count, generator=generator).split(64):
            optimizer.zero_grad()
            task.loss(net(*[x[index] for x in xs]), y[index]).backward()
            before = net.join.weight.detach().clone() if isinstance(net, TwoRaw) else None
            optimizer.step()
            if before is not None:
                net.join.weight.data = before + (net.join.weight.data - before) * units
            if rates is not None:
                rates.step()


def trained(name: str) -> Any:
    """A network, trained, in evaluation mode, that may be changed."""
    return copy.deepcopy(_fitted(name))
