"""Twenty small trained networks with the data of their users, for planted_blind_fourth.py."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arrays = list[Tensor]


@dataclass
class Subject:
    """A trained network, the data its user kept apart (inputs first, labels last) and how its user measures it."""

    model: nn.Module
    data: Arrays
    score: Callable[[Any, Tensor], float]

    def measure(self, model: nn.Module | None = None, data: Arrays | None = None) -> float:
        """Return the score in evaluation mode, unless the network itself was left in training mode."""
        model, data = model or self.model, data or self.data
        with torch.no_grad():
            return self.score(model(*data[:-1]), data[-1])


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of right classes: of samples, of pixels or of words, classes last or first."""
    axis = 1 if outputs.dim() == 4 else -1
    return float((outputs.argmax(axis) == labels).float().mean())


def explained(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of the labels' variance that is explained."""
    return float(1 - (outputs - labels).square().mean() / (labels - labels.mean(0)).square().mean())


def bits_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of right answers of yes and no, given as probabilities."""
    return float(((outputs > 0.5) == (labels > 0.5)).float().mean())


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy, of classes last or, of images, first."""
    if outputs.dim() == 3:
        outputs = outputs.flatten(0, 1)
    return F.cross_entropy(outputs, labels.flatten() if outputs.dim() == 2 else labels)


def fit(
    model: nn.Module,
    data: Arrays,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int,
    rate: float = 3e-3,
    optimizer: Any = None,
    seed: int = 1,
) -> nn.Module:
    """Train with Adam in batches of 64 and return the network in evaluation mode."""
    torch.manual_seed(seed)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), rate, weight_decay=1e-3)
    steps = epochs * math.ceil(len(data[0]) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(data[0])).split(64):
            batch = [part[rows] for part in data]
            optimizer.zero_grad()
            loss(model(*batch[:-1]), batch[-1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def split(data: Arrays, train: int) -> tuple[Arrays, Arrays]:
    """Return the first samples and the rest."""
    return [part[:train] for part in data], [part[train:] for part in data]


# --- data -------------------------------------------------------------------------------------------------------------


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the digits of scikit-learn, in 0 … 1, in a fixed random order."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.tensor(images[order] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return x, torch.tensor(labels[order]).long()


def shape_images(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return colour images of one shape each: disk, square, cross, ring, each reddish or bluish; eight classes."""
    rng = np.random.default_rng(seed)
    grid = np.arange(size)
    images = np.empty((count, 3, size, size), dtype=np.float32)
    labels = rng.integers(0, 8, count)
    for n in range(count):
        kind, blue = labels[n] % 4, labels[n] // 4
        cy, cx = rng.uniform(size * 0.35, size * 0.65, 2)
        r = rng.uniform(size * 0.2, size * 0.32)
        dy, dx = np.abs(grid[:, None] - cy), np.abs(grid[None] - cx)
        far = np.hypot(dy, dx)
        mask = [
            far < r,
            np.maximum(dy, dx) < r * 0.85,
            (np.minimum(dy, dx) < r * 0.35) & (np.maximum(dy, dx) < r),
            (far < r) & (far > r * 0.55),
        ][kind]
        background = rng.uniform(0.1, 0.5, 3)[:, None, None]
        colour = np.array([0.35, 0.55, 0.9] if blue else [0.9, 0.5, 0.3])[:, None, None] * rng.uniform(0.75, 1.0)
        images[n] = np.where(mask, colour, background) + rng.normal(0, 0.12, (3, size, size))
    mean, std = np.array([0.45, 0.4, 0.4]), np.array([0.25, 0.22, 0.27])
    images = (images.clip(0, 1) - mean[:, None, None]) / std[:, None, None]
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels).long()


def pieces(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy grey images of a disk and a bright and a dark bar, and the class of every pixel."""
    rng = np.random.default_rng(seed)
    grid = np.arange(24)
    images, labels = np.empty((count, 1, 24, 24), dtype=np.float32), np.zeros((count, 24, 24), dtype=np.int64)
    for n in range(count):
        cy, cx, r = *rng.uniform(6, 18, 2), rng.uniform(3, 5.5)
        labels[n][np.hypot(grid[:, None] - cy, grid[None] - cx) < r] = 1
        y, x, h, w = rng.integers(1, 14), rng.integers(1, 14), rng.integers(3, 9), rng.integers(3, 9)
        labels[n][y : y + h, x : x + w] = 2
        light = np.choose(labels[n], [0.2, 0.7, 0.75])
        images[n, 0] = light + rng.normal(0, 0.15, (24, 24))
    return torch.tensor((images - 0.35) / 0.3), torch.tensor(labels)


def marked_words(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return padded sentences of words 7 … 39 with three different of the markers 1 … 4; the class is the first one."""
    rng = np.random.default_rng(seed)
    words, labels = np.zeros((count, 20), dtype=np.int64), np.empty(count, dtype=np.int64)
    for n in range(count):
        length = rng.integers(8, 21)
        words[n, :length] = rng.integers(7, 40, length)
        places = np.sort(rng.choice(length, 3, replace=False))
        markers = rng.permutation(4)[:3]
        words[n, places] = markers + 1
        labels[n] = markers[0]
    return torch.tensor(words), torch.tensor(labels)


def waves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two sensors' 32 readings: sine, square, sawtooth, rising and falling chirp."""
    rng = np.random.default_rng(seed)
    t = np.arange(32) / 32
    labels = rng.integers(0, 5, count)
    phase, cycles = rng.uniform(0, 1, (count, 1)), rng.uniform(2, 4, (count, 1))
    turns = cycles * t + phase
    up = cycles * t * (0.4 + 1.2 * t) + phase
    down = cycles * t * (1.6 - 1.2 * t) + phase
    kinds = np.stack(
        [
            np.sin(2 * np.pi * turns),
            np.sign(np.sin(2 * np.pi * turns)),
            2 * (turns % 1) - 1,
            np.sin(2 * np.pi * up),
            np.sin(2 * np.pi * down),
        ]
    )
    first = kinds[labels, np.arange(count)]
    x = np.stack([first, np.cumsum(first, 1) / 4], -1) + rng.normal(0, 0.1, (count, 32, 2))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels).long()


def series(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return 24 hours of a standardized load and the four that follow."""
    rng = np.random.default_rng(seed)
    t = np.arange(28)
    a, b, p, q = (
        rng.uniform(0.5, 1.2, (count, 1)),
        rng.uniform(0.1, 0.6, (count, 1)),
        rng.uniform(0, 6.3, (count, 1)),
        rng.uniform(0, 6.3, (count, 1)),
    )
    x = (
        a * np.sin(2 * np.pi * t / 12 + p)
        + b * np.sin(2 * np.pi * t / 5 + q)
        + rng.normal(0, 1, (count, 1)) * 0.3
        + 0.02 * t
    )
    x = torch.tensor(x + rng.normal(0, 0.03, x.shape), dtype=torch.float32)
    return x[:, :24, None], x[:, 24:]


def table(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return twelve columns in units of their own, one of four classes and a price."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    z = rng.normal(0, 1, (count, 6)) @ fixed.normal(0, 0.6, (6, 12)) + rng.normal(0, 0.7, (count, 12))
    hidden = np.tanh(z @ fixed.normal(0, 0.5, (12, 8)))
    classes = (hidden @ fixed.normal(0, 1.5, (8, 4)) + rng.gumbel(0, 0.25, (count, 4))).argmax(1)
    price = hidden @ fixed.normal(0, 0.5, 8) + 0.3 * z[:, 2] * (z[:, 5] > 0)
    units, offsets = np.exp(fixed.uniform(-2, 6, 12)), fixed.normal(0, 3, 12)
    x = torch.tensor((z + offsets) * units, dtype=torch.float32)
    return (
        x,
        torch.tensor(classes).long(),
        torch.tensor(price + rng.normal(0, 0.05, count), dtype=torch.float32)[:, None],
    )


def spectrograms(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return log mel energies (32 frames × 20 bands) of six words: two formants each that move."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(98)
    paths = fixed.uniform(2, 17, (6, 2, 3))
    labels = rng.integers(0, 6, count)
    bands = np.arange(20)
    x = np.empty((count, 1, 32, 20), dtype=np.float32)
    for n in range(count):
        start, stop = rng.integers(0, 8), rng.integers(24, 33)
        time = np.linspace(0, 2, stop - start)
        energy = np.full((32, 20), 3e-2) * rng.exponential(1, (32, 20))
        for path in paths[labels[n]]:
            middle = np.interp(time, [0, 1, 2], path) + rng.normal(0, 1.5)
            energy[start:stop] += rng.uniform(0.3, 1) * np.exp(-((bands - middle[:, None]) ** 2) / 3)
        x[n, 0] = np.log(energy + 1e-4)
    return torch.tensor((x + 5) / 3), torch.tensor(labels).long()


def boxes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return grey images of one bright rectangle and its box: centre x, centre y, width, height in pixels of 24."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(0, 0.15, (count, 1, 24, 24)).astype(np.float32), np.empty((count, 4), dtype=np.float32)
    for n in range(count):
        w, h = rng.integers(4, 15), rng.integers(3, 10)
        left, top = rng.integers(0, 25 - w), rng.integers(0, 25 - h)
        x[n, 0, top : top + h, left : left + w] += rng.uniform(0.6, 1)
        y[n] = left + w / 2, top + h / 2, w, h
    return torch.tensor(x), torch.tensor(y)


@functools.cache
def text() -> tuple[Tensor, Tensor, int]:
    """Return 24 letters of descriptions of scikit-learn's data, the letters that follow, and how many there are."""
    import sklearn.datasets as sets

    words = " ".join(
        load().DESCR for load in (sets.load_breast_cancer, sets.load_wine, sets.load_iris, sets.load_diabetes)
    ).lower()
    words = " ".join(words.split())
    words = "".join(c for c in words if c.isalnum() or c in " .,:()-")
    alphabet = sorted(set(words))
    codes = torch.tensor([alphabet.index(c) for c in words])
    windows = codes.unfold(0, 25, 5)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), len(alphabet)


def motions(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return 48 readings of three accelerometers in six activities; what happens late decides."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(97)
    labels = rng.integers(0, 6, count)
    t = np.arange(48)
    shape = fixed.normal(0, 1, (3, 3, 12))
    x = rng.normal(0, 0.9, (count, 3, 48))
    for n in range(count):
        start = rng.integers(28, 36)
        first = shape[labels[n] % 3]
        x[n, :, start : start + 12] += first if labels[n] < 3 else first[:, ::-1]
        x[n] += 0.4 * np.sin(t / rng.uniform(2, 5) + rng.uniform(0, 6))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels).long()


def ratings(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, films and stars (about 3.5)."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(96)
    taste, style, liked = fixed.normal(0, 1, (60, 3)), fixed.normal(0, 1, (40, 3)), fixed.normal(0, 0.5, 40)
    users, films = rng.integers(0, 60, count), rng.integers(0, 40, count)
    stars = 3.5 + 0.5 * (taste[users] * style[films]).sum(1) + liked[films] + rng.normal(0, 0.2, count)
    return torch.tensor(users), torch.tensor(films), torch.tensor(stars, dtype=torch.float32)[:, None]


def tagged(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return sentences of 16 of 30 words and tags that depend on the word, the one before and the two behind."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(95)
    words = rng.integers(0, 30, (count, 18))
    group = fixed.integers(0, 2, (3, 30))
    tags = 4 * group[0][words[:, 1:17]] + 2 * group[1][words[:, :16]] + group[2][words[:, 2:18]]
    return torch.tensor(words[:, 1:17]), torch.tensor(tags)


def several_shapes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return grey images with any of four patterns in their quarters, and which of these are there."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (count, 4))
    grid = np.arange(7)
    far = np.hypot(grid[:, None] - 3, grid[None] - 3)
    patterns = [
        far < 3,
        np.eye(7) + np.eye(7)[::-1] > 0,
        (grid[:, None] % 2 == 0) & (grid[None] >= 0),
        (far > 1.8) & (far < 3.3),
    ]
    x = rng.normal(0, 0.6, (count, 1, 20, 20)).astype(np.float32)
    for n in range(count):
        for slot, kind in zip(rng.permutation(4), range(4), strict=True):
            top, left = 10 * (slot // 2) + rng.integers(0, 4), 10 * (slot % 2) + rng.integers(0, 4)
            x[n, 0, top : top + 7, left : left + 7] += labels[n, kind] * patterns[kind]
    return torch.tensor(x), torch.tensor(labels, dtype=torch.float32)


# --- networks ---------------------------------------------------------------------------------------------------------


def conv_block(
    inputs: int, outputs: int, stride: int = 1, kernel: int = 3, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """Return convolution, batch norm and ReLU."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


class DigitsCNN(nn.Module):
    """Three convolutions with batch norm and dropout before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_block(1, 16), conv_block(16, 32, 2), conv_block(32, 48))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.features(x).mean((2, 3))))


class Residual(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride > 1
            else nn.Identity()
        )
        self.add = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x)) if self.add else F.relu(y)


class ResNet(nn.Module):
    """A stem and three residual blocks for coloured shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_block(3, 16)
        self.layer1, self.layer2, self.layer3 = Residual(16, 16), Residual(16, 32, 2), Residual(32, 32)
        self.fc = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


class UNet(nn.Module):
    """Two levels of an encoder and a decoder with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.mid = conv_block(1, 8), conv_block(8, 16), conv_block(16, 32)
        self.up2, self.dec2 = nn.ConvTranspose2d(32, 16, 2, 2), conv_block(32, 16)
        self.up1, self.dec1 = nn.ConvTranspose2d(16, 8, 2, 2), conv_block(16, 8)
        self.head = nn.Conv2d(8, 3, 1)
        self.skip_first = True

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.up2(self.mid(F.max_pool2d(b, 2)))
        d = self.up1(self.dec2(torch.cat([b, c], 1)))
        return self.head(self.dec1(torch.cat([a, d] if self.skip_first else [d, a], 1)))


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scale, self.causal, self.axis = (width // heads) ** -0.5, False, -1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None], -1e4)
        if self.causal:
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e4)
        return self.proj((scores.softmax(self.axis) @ v).transpose(1, 2).reshape(n, t, c))


class Encoder(nn.Module):
    """A pre-norm encoder layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class TextClassifier(nn.Module):
    """Words and positions, two encoder layers, the mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(40, 32), nn.Embedding(20, 32)
        self.layers = nn.ModuleList([Encoder(32, 2), Encoder(32, 2)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)
        self.inverted = False

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != 0 if self.inverted else ids == 0
        x = self.words(ids) + self.positions(torch.arange(20))
        for layer in self.layers:
            x = layer(x, mask)
        real = (ids != 0).unsqueeze(-1).float()
        return self.head((self.norm(x) * real).sum(1) / real.sum(1))


class ViT(nn.Module):
    """Patches of 2 × 2, a class token, two encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32) * 0.1)
        self.blocks = nn.ModuleList([Encoder(32, 4), Encoder(32, 4)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)
        self.token = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, self.token]))


class WaveLSTM(nn.Module):
    """A two-layer LSTM whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 24, 2, batch_first=True)
        self.fc = nn.Linear(24, 5)
        self.step = -1

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, self.step])


class LoadGRU(nn.Module):
    """A GRU that forecasts four hours."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class TableMLP(nn.Module):
    """Standardizes columns, two hidden layers."""

    def __init__(self, x: Tensor, outputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("std", x.std(0))
        self.fc1, self.fc2, self.out = nn.Linear(12, 48), nn.Linear(48, 32), nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Keywords(nn.Module):
    """A depthwise separable network on spectrograms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_block(1, 24, 2)
        self.dw1, self.pw1 = conv_block(24, 24, 1, 3, 24), conv_block(24, 32, 1, 1)
        self.dw2, self.pw2 = conv_block(32, 32, 2, 3, 32), conv_block(32, 32, 1, 1)
        self.dw3, self.pw3 = conv_block(32, 32, 1, 3, 32), conv_block(32, 48, 1, 1)
        self.fc = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pw1(self.dw1(self.stem(x)))
        return self.fc(self.pw3(self.dw3(self.pw2(self.dw2(x)))).mean((2, 3)))


class BoxNet(nn.Module):
    """Finds one box: sigmoids times the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_block(1, 12), conv_block(12, 24, 2), conv_block(24, 24, 2))
        self.hidden, self.box = nn.Linear(24 * 36, 64), nn.Linear(64, 4)
        self.squash, self.size = True, 24.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.box(F.relu(self.hidden(self.body(x).flatten(1))))
        return (x.sigmoid() if self.squash else x) * self.size


class Denoiser(nn.Module):
    """A convolutional autoencoder that takes noise away from digits."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Conv2d(1, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.code, self.decode = nn.Linear(512, 48), nn.Linear(48, 512)
        self.dec2, self.dec1 = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.Conv2d(16, 1, 3, 1, 1)
        self.final: nn.Module = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enc2(F.relu(self.enc1(x))))
        x = F.relu(self.decode(F.relu(self.code(x.flatten(1))))).view(-1, 32, 4, 4)
        return self.final(self.dec1(F.relu(self.dec2(x))))


class Letters(nn.Module):
    """A causal language model of letters with a tied head; positions begin at row 2 of their table."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(letters, 48), nn.Embedding(26, 48)
        nn.init.normal_(self.words.weight, std=0.2)
        nn.init.normal_(self.positions.weight, std=0.2)
        self.layers = nn.ModuleList([Encoder(48, 4), Encoder(48, 4)])
        for layer in self.layers:
            layer.attn.causal = True
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, letters, bias=False)
        self.head.weight = self.words.weight
        self.offset = 2

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(24) + self.offset)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class TCN(nn.Module):
    """Causal convolutions with dilations 1, 2 and 4 and group norm; the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 24, 24, 32]
        self.convs = nn.ModuleList(
            [nn.Conv1d(a, b, 3, dilation=2**i) for i, (a, b) in enumerate(itertools.pairwise(widths))]
        )
        self.norms = nn.ModuleList([nn.GroupNorm(4, width) for width in widths[1:]])
        self.fc = nn.Linear(32, 6)
        self.both_sides = False

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            wide = 2 * conv.dilation[0]
            x = F.relu(norm(conv(F.pad(x, (wide // 2, wide // 2) if self.both_sides else (wide, 0)))))
        return self.fc(x[:, :, -8:].mean(-1))


class Inverted(nn.Module):
    """An inverted residual with squeeze and excitation and hard swish."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand, self.dw = (
            conv_block(width, inner, 1, 1, act=False),
            conv_block(inner, inner, 1, 3, inner, act=False),
        )
        self.reduce, self.excite = nn.Conv2d(inner, inner // 4, 1), nn.Conv2d(inner // 4, inner, 1)
        self.project = conv_block(inner, width, 1, 1, act=False)
        self.act1: nn.Module = nn.Hardswish()
        self.act2: nn.Module = nn.Hardswish()
        self.gate: nn.Module = nn.Sigmoid()
        self.pool: nn.Module = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act2(self.dw(self.act1(self.expand(x))))
        y = y * self.gate(self.excite(F.relu(self.reduce(self.pool(y)))))
        return x + self.project(y)


class Mobile(nn.Module):
    """A stem and two inverted residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_block(3, 16, 2)
        self.block1, self.block2 = Inverted(16, 48), Inverted(16, 48)
        self.last, self.fc = conv_block(16, 48, 2), nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.block2(self.block1(self.stem(x)))).mean((2, 3)))


class Recommender(nn.Module):
    """Embeddings of users and films, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(61, 12), nn.Embedding(41, 12)
        self.fc1, self.fc2, self.out = nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 1)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        x = torch.cat([self.users(user), self.films(film)], 1)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))


class NextBlock(nn.Module):
    """A ConvNeXt block: depthwise, layer norm over channels, two linear layers, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.LayerNorm(width)
        self.pw1, self.act, self.pw2 = nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pw2(self.act(self.pw1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patches of 2 × 2, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block1, self.block2 = nn.Conv2d(3, 24, 2, 2), NextBlock(24), NextBlock(24)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block2(self.block1(self.stem(x))).mean((2, 3))))


class Tagger(nn.Module):
    """A bidirectional LSTM that tags words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = (
            nn.Embedding(30, 16),
            nn.LSTM(16, 24, batch_first=True, bidirectional=True),
            nn.Linear(48, 8),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])


class MixerBlock(nn.Module):
    """Mixes tokens, then channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.token1, self.token2 = nn.LayerNorm(width), nn.Linear(tokens, 32), nn.Linear(32, tokens)
        self.norm2, self.channel1, self.channel2 = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)
        self.reshape = False

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        y = self.norm1(x)
        y = self.token2(F.gelu(self.token1(y.reshape(n, c, t) if self.reshape else y.transpose(1, 2))))
        x = x + y.transpose(1, 2)
        return x + self.channel2(F.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    """An MLP-Mixer on patches of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.block1, self.block2 = MixerBlock(16, 32), MixerBlock(16, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.block1(self.patches(x).flatten(2).transpose(1, 2)))
        return self.head(self.norm(x).mean(1))


class MultiLabel(nn.Module):
    """Which of four patterns are in the image, as probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_block(1, 16), conv_block(16, 24, 2), conv_block(24, 32), conv_block(32, 32, 2))
        self.head = nn.Linear(32, 4)
        self.final: nn.Module = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.head(self.body(x).amax((2, 3))))


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error."""
    return F.mse_loss(outputs, labels)


def build(name: str, rate: float | None = None, optimizer: Any = None) -> Subject:
    """Train a network; the same every time."""
    torch.manual_seed(0)
    score: Callable[[Any, Tensor], float] = accuracy
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    x, y = digits()
    epochs = 12
    model: nn.Module
    data: Sequence[Tensor]
    if name == "digits":
        model, data = DigitsCNN(), [(x - 0.305) / 0.376, y]
    elif name == "vit":
        model, data, epochs = ViT(), [(x - 0.305) / 0.376, y], 25
    elif name == "mixer":
        model, data, epochs = Mixer(), [(x - 0.305) / 0.376, y], 20
    elif name == "denoiser":
        noisy = (x + 0.25 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))).clamp(0, 1)
        model, data, epochs, loss, score = Denoiser(), [noisy, x], 25, mse, explained
    elif name in ("resnet", "mobile", "convnext"):
        model = {"resnet": ResNet, "mobile": Mobile, "convnext": ConvNeXt}[name]()
        data, epochs = shape_images(2200, 16, 0), {"resnet": 20, "mobile": 30, "convnext": 40}[name]
    elif name == "unet":
        model, data, epochs = UNet(), pieces(1600, 0), 12
    elif name == "text":
        model, data, epochs = TextClassifier(), marked_words(3800, 0), 14
    elif name == "lstm":
        model, data, epochs = WaveLSTM(), waves(2600, 0), 35
    elif name == "gru":
        model, data, epochs, loss, score = LoadGRU(), series(2400, 0), 20, mse, explained
    elif name in ("classes", "price"):
        columns, classes, price = table(3000, 0)
        if name == "classes":
            model, data, epochs = TableMLP(columns, 4), [columns, classes], 20
        else:
            model, data, epochs, loss, score = TableMLP(columns, 1), [columns, price], 25, mse, explained
    elif name == "keywords":
        model, data, epochs = Keywords(), spectrograms(1800, 0), 8
    elif name == "boxes":
        model, data, epochs, score = BoxNet(), boxes(2600, 0), 14, explained
        loss = lambda outputs, labels: mse(outputs / 24, labels / 24)  # noqa: E731
    elif name == "letters":
        windows, following, letters = text()
        model, data, epochs = Letters(letters), [windows, following], 14
    elif name == "tcn":
        model, data, epochs = TCN(), motions(2200, 0), 12
    elif name == "films":
        model, data, epochs, loss, score = Recommender(), ratings(5000, 0), 25, mse, explained
    elif name == "tagger":
        model, data, epochs = Tagger(), tagged(1600, 0), 20
    elif name == "labels":
        model, data, epochs, loss, score = MultiLabel(), several_shapes(2200, 0), 10, F.binary_cross_entropy, bits_right
    else:
        raise KeyError(name)
    train, held = split(list(data), len(data[0]) - 800)
    fit(model, train, loss, epochs, rate or 5e-3, optimizer and optimizer(model))
    return Subject(model, held, score)


NAMES = (
    "digits", "resnet", "unet", "text", "vit", "lstm", "gru", "classes", "price", "keywords",
    "boxes", "denoiser", "letters", "tcn", "mobile", "films", "convnext", "tagger", "mixer", "labels",
)  # fmt: skip
