"""Twelve networks for a sixth set of planted faults: ten trained on the spot, and two with real weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

Arrays = list[Tensor]
Metric = Callable[[Any, Any], Tensor]


@dataclass
class Subject:
    """A trained network, samples it was not trained on, and the metric that the doctor is given, if any."""

    model: nn.Module
    data: Arrays
    metric: Metric | None = None


# --- data -------------------------------------------------------------------------------------------------------------


def digits() -> Arrays:
    """Return scanned digits, 1×8×8 in 0 … 1, and their classes, in an order of chance."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(5))
    return [torch.tensor(found.images).float()[:, None].div(16)[order], torch.tensor(found.target).long()[order]]


def standardized(images: Tensor) -> Tensor:
    """Return scanned digits as the networks read them."""
    return (images - 0.305) / 0.376


MEAN = torch.tensor([0.55, 0.40, 0.25])[:, None, None]
STD = torch.tensor([0.25, 0.20, 0.12])[:, None, None]
"""What images in colour are prepared with, channel by channel."""


def painted() -> Arrays:
    """Return digits in warm or cold ink as bytes 0 … 255, 3×8×8; the class is the ink and the digit modulo five."""
    images, labels = digits()
    chance = torch.Generator().manual_seed(8)
    cold = torch.rand(len(images), generator=chance) < 0.5
    warm_ink, cold_ink = torch.tensor([0.95, 0.55, 0.15]), torch.tensor([0.55, 0.55, 0.45])
    ink = torch.where(cold[:, None], cold_ink, warm_ink) + 0.04 * torch.randn(len(images), 3, generator=chance)
    paper = torch.tensor([0.30, 0.20, 0.12]) + 0.04 * torch.randn(len(images), 3, generator=chance)
    mixed = images * ink[..., None, None] + (1 - images) * paper[..., None, None]
    mixed = mixed + 0.03 * torch.randn(mixed.shape, generator=chance)
    return [mixed.clamp(0, 1).mul(255).round(), labels % 5 + 5 * cold.long()]


def prepared(bytes_: Tensor) -> Tensor:
    """Return images in colour as their network reads them."""
    return (bytes_ / 255 - MEAN) / STD


def texts(count: int, seed: int) -> Arrays:
    """Return sentences of 6 … 16 words, padded with 0, and whether they praise what their first word is about."""
    chance = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 60, (count, 16), generator=chance)
    words[:, 0] = torch.randint(1, 4, (count,), generator=chance)
    lengths = torch.randint(6, 17, (count, 1), generator=chance)
    words[torch.arange(16) >= lengths] = 0
    counts = (words > 3) & (words % 3 == words[:, :1] - 1)
    early = torch.where(torch.arange(16) < 6, 3.0, 1.0)
    total = (counts * early * ((words // 3) % 2 * 2 - 1)).sum(1)
    return [part[total != 0] for part in (words, (total > 0).long())]


def gestures(count: int, seed: int) -> Arrays:
    """Return the accelerations of six movements of a hand, 24 steps of three axes, and which one it was."""
    chance = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 6, (count,), generator=chance)
    steps = torch.linspace(0, 1, 24)[None] * (0.8 + 0.4 * torch.rand(count, 1, generator=chance))
    turn = 2 * math.pi * steps + torch.rand(count, 1, generator=chance)
    flat = torch.zeros_like(turn)
    shapes = torch.stack(
        [
            torch.stack([turn.cos(), turn.sin(), flat], -1),
            torch.stack([turn.cos(), -turn.sin(), flat], -1),
            torch.stack([2 * steps - 1, flat, flat + 0.3], -1),
            torch.stack([1 - 2 * steps, flat, flat + 0.3], -1),
            torch.stack([flat, (3 * turn).sin(), 2 * steps - 1], -1),
            torch.stack([flat, (3 * turn).sin(), 1 - 2 * steps], -1),
        ]
    )
    moved = shapes[kinds, torch.arange(count)]
    return [moved + 0.8 * torch.randn(moved.shape, generator=chance), kinds]


def rhythms(count: int, seed: int) -> Arrays:
    """Return two channels of 128 samples, with a click now and then, and which of five rhythms they have."""
    chance = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 5, (count,), generator=chance)
    time = torch.arange(128) / 128
    rate = torch.tensor([5.0, 7.0, 10.0, 14.0, 20.0])[kinds][:, None] * (
        0.92 + 0.16 * torch.rand(count, 1, generator=chance)
    )
    phase = 2 * math.pi * (rate * time + torch.rand(count, 1, generator=chance))
    beat = phase.sin().clamp(min=0) ** 4
    found = torch.stack([beat, 0.5 * phase.cos() + 0.3 * (2 * math.pi * time).sin()], 1)
    found = found + 0.5 * torch.randn(found.shape, generator=chance)
    clicks = torch.rand(found.shape, generator=chance) < 0.0005
    return [torch.where(clicks, 6 * found.sign(), found), kinds]


def scenes(count: int, seed: int) -> Arrays:
    """Return noisy images of a disc and a square, 1×16×16, and for every pixel 0, 1 (disc) or 2 (square)."""
    chance = torch.Generator().manual_seed(seed)
    rows, columns = torch.arange(16)[None, :, None], torch.arange(16)[None, None]
    labels = torch.zeros(count, 16, 16, dtype=torch.long)
    for kind in (1, 2):
        y, x = (torch.randint(3, 13, (count, 1, 1), generator=chance) for _ in range(2))
        size = torch.randint(2, 5, (count, 1, 1), generator=chance)
        down, across = rows - y, columns - x
        inside = down**2 + across**2 <= size**2 if kind == 1 else (down.abs() < size) & (across.abs() < size)
        labels[inside] = kind
    images = torch.tensor([0.0, 0.8, 1.0])[labels][:, None]
    return [images + 0.25 * torch.randn(images.shape, generator=chance), labels]


def engines(count: int, seed: int) -> Arrays:
    """Return eight standardized readings of an engine, and its standardized consumption."""
    chance = torch.Generator().manual_seed(seed)
    read = torch.randn(count, 8, generator=chance)
    used = read[:, 0] * read[:, 1] + (2 * read[:, 2]).sin() + read[:, 3].clamp(min=0) + 0.5 * read[:, 4] ** 2
    used = used + 0.4 * read[:, 5] - 0.3 * read[:, 6] + 0.1 * torch.randn(count, generator=chance)
    return [read, (used[:, None] - 0.9) / 1.7]


# --- networks ---------------------------------------------------------------------------------------------------------


def block(i: int, o: int, stride: int = 1, groups: int = 1, kernel: int = 3, act: Any = nn.ReLU) -> nn.Sequential:
    """Return a convolution, its batch norm and an activation."""
    return nn.Sequential(
        nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(o), act()
    )


class Colour(nn.Module):
    """A CNN with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = block(3, 16), block(16, 32, 2)
        self.conv3, self.conv4 = block(32, 32), block(32, 48, 2)
        self.fc = nn.Linear(48, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(self.conv4(self.conv3(self.conv2(self.conv1(image)))).mean((2, 3)))


class Separable(nn.Module):
    """A depthwise-separable CNN with ReLU6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(1, 16, act=nn.ReLU6)
        pairs = [(16, 32, 2), (32, 32, 1), (32, 64, 2)]
        self.depth = nn.ModuleList(block(i, i, s, i, act=nn.ReLU6) for i, _, s in pairs)
        self.point = nn.ModuleList(block(i, o, kernel=1, act=nn.ReLU6) for i, o, _ in pairs)
        self.fc = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for depth, point in zip(self.depth, self.point, strict=True):
            x = point(depth(x))
        return self.fc(x.mean((2, 3)))


class Excite(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)
        self.gate: nn.Module = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Residual(nn.Module):
    """Two convolutions, squeeze and excitation, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = block(width, width, act=nn.SiLU), block(width, width, act=nn.Identity)
        self.excite, self.act = Excite(width), nn.SiLU()
        self.shortcut = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.excite(self.second(self.first(x)))
        return self.act(x + y if self.shortcut else y)


class Excited(nn.Module):
    """A residual network with squeeze and excitation, and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(1, 24, 2, act=nn.SiLU)
        self.blocks = nn.Sequential(*(Residual(24) for _ in range(3)))
        self.fc = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(image)).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention with separate projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.factor, self.axis = heads, (width // heads) ** -0.5, -1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        scores = split(self.query(x)) @ split(self.key(x)).transpose(-1, -2) * self.factor
        if mask is not None:
            scores = scores.masked_fill(mask, -1e4)
        return self.out((scores.softmax(self.axis) @ split(self.value(x))).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """A layer of a transformer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 2, 2)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.layers = nn.Sequential(Encoder(32, 4), Encoder(32, 4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


class Text(nn.Module):
    """A transformer that classifies sentences and masks their padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 32, padding_idx=0)
        self.position = nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.layers = nn.ModuleList([Encoder(32, 4), Encoder(32, 4)])
        self.norm, self.dropout, self.head = nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 2)
        self.masked = True

    def forward(self, words: Tensor) -> Tensor:
        mask = (words == 0)[:, None, None] if self.masked else None
        keep = (words > 0).unsqueeze(-1).float()
        x = self.embed(words) + self.position
        for layer in self.layers:
            x = layer(x, mask)
        x = (self.norm(x) * keep).sum(1) / keep.sum(1)
        return self.head(self.dropout(x))


class Gesture(nn.Module):
    """An LSTM of which the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 32, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(32, 24), nn.Linear(24, 6)
        self.step = -1

    def forward(self, steps: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(self.rnn(steps)[0][:, self.step])))


class Rhythm(nn.Module):
    """A one-dimensional CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(2, 24, 7, 2, padding=3, bias=False), nn.BatchNorm1d(24)
        self.conv2, self.norm2 = nn.Conv1d(24, 24, 5, 2, padding=2, bias=False), nn.BatchNorm1d(24)
        self.conv3, self.norm3 = nn.Conv1d(24, 24, 5, 2, padding=2, bias=False), nn.BatchNorm1d(24)
        self.fc = nn.Linear(24 * 4, 5)
        self.act1, self.act2, self.act3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.pool: nn.Module = nn.AvgPool1d(4)

    def forward(self, signal: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.conv1(signal)))
        x = self.act2(self.norm2(self.conv2(x)))
        x = self.act3(self.norm3(self.conv3(x)))
        return self.fc(self.pool(x).flatten(1))


class UNet(nn.Module):
    """A segmenter whose decoder reads what the encoder saw."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.mid = block(1, 8), block(8, 16), block(16, 32)
        self.dec2, self.dec1, self.head = block(48, 16), block(24, 8), nn.Conv2d(8, 3, 1)
        self.skip_first = False

    def join(self, up: Tensor, skip: Tensor) -> Tensor:
        up = F.interpolate(up, scale_factor=2.0, mode="nearest")
        return torch.cat([skip, up] if self.skip_first else [up, skip], 1)

    def forward(self, image: Tensor) -> Tensor:
        a = self.enc1(image)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        return self.head(self.dec1(self.join(self.dec2(self.join(c, b)), a)))


class Engine(nn.Module):
    """A perceptron that gives a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 32)
        self.out = nn.Linear(32, 1)
        self.drop = nn.Dropout(0.02)

    def forward(self, readings: Tensor) -> Tensor:
        x = self.drop(F.relu(self.fc2(F.relu(self.fc1(readings)))))
        return self.out(F.relu(self.fc3(x)))


class Auto(nn.Module):
    """An autoencoder of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.code, self.grow = nn.Linear(64, 16), nn.Linear(16, 64)
        self.dec1, self.dec2 = nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ConvTranspose2d(16, 1, 4, 2, 1)
        self.last: nn.Module = nn.Sigmoid()

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.enc2(F.relu(self.enc1(image)))).flatten(1)
        x = F.relu(self.grow(self.code(x))).unflatten(1, (16, 2, 2))
        return self.last(self.dec2(F.relu(self.dec1(x))))


# --- training ---------------------------------------------------------------------------------------------------------


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels)


def fit(model: nn.Module, data: Arrays, loss: Any, epochs: int, rate: float = 5e-3) -> nn.Module:
    """Train with Adam and one cycle of the learning rate, and return the network in evaluation mode."""
    batches = -(-len(data[0]) // 64)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(data[0])).split(64):
            optimizer.zero_grad()
            loss(model(data[0][rows]), data[1][rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def explained(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how much of a standardized target's variance is explained, sample by sample."""
    return 1 - (outputs - targets).square().flatten(1).mean(1)


def likeness(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return how much of the variance of a digit's pixels is explained, sample by sample."""
    return 1 - (outputs - targets).square().flatten(1).mean(1) / 0.376**2


def halves(data: Arrays, train: int) -> tuple[Arrays, Arrays]:
    """Return the first samples, for training, and the others."""
    return [part[:train] for part in data], [part[train:] for part in data]


def digit_halves() -> tuple[Arrays, Arrays]:
    """Return standardized digits for training, and others."""
    images, labels = digits()
    return halves([standardized(images), labels], 1100)


def mobile() -> Subject:
    """Return MobileNetV1 ×0.25 and 500 small ImageNet images."""
    import common
    import mobilenetv1_025

    return Subject(mobilenetv1_025.load(), list(common.imagenet_500(resize=182, crop=160)))


def sentiment() -> Subject:
    """Return a transformer for the polarity of sentences, and 700 of them."""
    import sst2
    from safetensors.torch import load_file

    _, _, vocabulary = sst2.read("train")
    model = sst2.Transformer(len(vocabulary) + 2)
    model.load_state_dict(load_file(f"{sst2.ROOT}/sst2/transformer.safetensors"))
    words, labels, _ = sst2.read("test", vocabulary)
    return Subject(model.eval(), [words[:700], labels[:700]])


def make(name: str) -> Subject:
    """Return a network by its name, trained from the same seed every time."""
    torch.manual_seed(0)
    if name in REAL:
        return {"mobile": mobile, "sentiment": sentiment}[name]()
    if name == "colour":
        bytes_, labels = painted()
        train, held = halves([prepared(bytes_), labels], 1100)
        return Subject(fit(Colour(), train, cross_entropy, 15), held)
    if name in ("separable", "excited", "patches"):
        train, held = digit_halves()
        model, epochs = {"separable": (Separable, 25), "excited": (Excited, 12), "patches": (Patches, 40)}[name]
        return Subject(fit(model(), train, cross_entropy, epochs), held)
    if name == "text":
        return Subject(fit(Text(), texts(8000, 0), cross_entropy, 12, 4e-3), texts(800, 1))
    if name == "gesture":
        return Subject(fit(Gesture(), gestures(2000, 0), cross_entropy, 15), gestures(700, 1))
    if name == "rhythm":
        return Subject(fit(Rhythm(), rhythms(1500, 0), cross_entropy, 12), rhythms(700, 1))
    if name == "unet":
        return Subject(fit(UNet(), scenes(800, 0), cross_entropy, 20, 1e-2), scenes(400, 1))
    if name == "engine":
        return Subject(fit(Engine(), engines(4000, 0), F.mse_loss, 40), engines(800, 1), explained)
    images, _ = digits()
    train, held = halves([images, images], 1100)
    return Subject(fit(Auto(), train, F.mse_loss, 60, 1e-2), held, likeness)


REAL = ("mobile", "sentiment")
"""Networks whose weights are real, and not published with the tests."""

NAMES = ("colour", "separable", "excited", "patches", "text", "gesture", "rhythm", "unet", "engine", "auto", *REAL)
"""All networks."""


@functools.cache
def build(name: str) -> Subject:
    """Return a network and its data; whoever changes them copies them first."""
    return make(name)
