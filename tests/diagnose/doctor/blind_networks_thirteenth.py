"""Eight small networks of deployed families, trained on the spot: on digits, scenes, signals, texts and ratings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.diagnose.doctor import blind_networks_tenth as tenth
from tests.diagnose.doctor.blind_networks_tenth import (
    Arrays,
    Loss,
    Subject,
    classes_right,
    generator,
    variance_explained,
)
from torch import Tensor, nn

# --- scores ---------------------------------------------------------------------------------------------------------


def overlap(outputs: Tensor, labels: Tensor) -> float:
    """Return the intersection over union of the classes that are not background, their mean."""
    answers = outputs.argmax(1)
    found = []
    for kind in range(1, outputs.shape[1]):
        both = ((answers == kind) & (labels == kind)).sum().item()
        either = ((answers == kind) | (labels == kind)).sum().item()
        found.append(both / max(either, 1))
    return sum(found) / len(found)


def trained(
    make: Callable[[], nn.Module],
    data: Arrays,
    held: int,
    epochs: int,
    rate: float,
    seed: int,
    loss: Loss = F.cross_entropy,
    score: Callable[[Tensor, Tensor], float] = classes_right,
    options: dict[str, Any] | None = None,
) -> Subject:
    """Train a network on all samples but the last ones, which are held out."""
    found = tenth.trained(make, data, held, epochs, rate, loss, score, seed, decay=0.02)
    return Subject(found.model, [part.clone() for part in found.data], score, options or {})


# --- repvgg: branches of 3 × 3, 1 × 1 and identity with batch norms, on digits --------------------------------------

DIGIT_MEAN, DIGIT_DEVIATION = 0.305, 0.376


class RepBlock(nn.Module):
    """Three branches, each with a batch norm, added and activated."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.dense = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.dense_norm = nn.BatchNorm2d(width)
        self.point = nn.Conv2d(before, width, 1, stride, bias=False)
        self.point_norm = nn.BatchNorm2d(width)
        self.identity = nn.BatchNorm2d(width) if before == width and stride == 1 else None
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        total = self.dense_norm(self.dense(x)) + self.point_norm(self.point(x))
        if self.identity is not None:
            total = total + self.identity(x)
        return self.act(total)


class RepVGG(nn.Module):
    """Three stages for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stage0 = RepBlock(1, 16, 1)
        self.stage1 = nn.Sequential(RepBlock(16, 24, 2), RepBlock(24, 24, 1))
        self.stage2 = nn.Sequential(RepBlock(24, 40, 2), RepBlock(40, 40, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(40, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stage2(self.stage1(self.stage0(image)))
        return self.head(self.pool(x).flatten(1))


def digits() -> Arrays:
    """Return the digits of scikit-learn, normalized, in an order of chance."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator(31))
    images = torch.tensor(found.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    return [(images - DIGIT_MEAN) / DIGIT_DEVIATION, torch.tensor(found.target)[order]]


# --- convnext: depthwise convolutions, layer norms and GELU, on small scenes ----------------------------------------

MEANS = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
DEVIATIONS = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


class NextBlock(nn.Module):
    """A depthwise convolution and two linear maps, scaled by channel and added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act: nn.Module = nn.GELU()
        self.gamma = nn.Parameter(torch.full((width,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depth(x).permute(0, 2, 3, 1))
        inner = self.shrink(self.act(self.expand(inner))) * self.gamma
        return x + inner.permute(0, 3, 1, 2)


class Down(nn.Module):
    """A layer norm of channels, and a convolution that halves the image."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(before, eps=1e-6)
        self.conv = nn.Conv2d(before, width, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class ConvNext(nn.Module):
    """Two stages of two blocks for images of 16 × 16."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 2, 2)
        self.stage1 = nn.Sequential(NextBlock(24), NextBlock(24))
        self.down = Down(24, 40)
        self.stage2 = nn.Sequential(NextBlock(40), NextBlock(40))
        self.norm = nn.LayerNorm(40, eps=1e-6)
        self.classify = nn.Linear(40, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(image))))
        return self.classify(self.norm(x.mean((2, 3))))


def fruits(count: int, seed: int) -> Arrays:
    """Return images of discs, bars, crosses and rings, warm or cold, on mixed grounds."""
    g = generator(seed)
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    form, blue = torch.randint(4, (count,), generator=g), torch.randint(2, (count,), generator=g)
    middle = 5.5 + 4 * torch.rand(count, 2, generator=g)
    size = 3.6 + 1.4 * torch.rand(count, generator=g)
    dy, dx = down - middle[:, 0, None, None], across - middle[:, 1, None, None]
    far, s = (dy.square() + dx.square()).sqrt(), size[:, None, None]
    square = torch.maximum(dy.abs(), dx.abs())
    disc, ring = far < s, (far < s + 0.5) & (far > s - 1.6)
    cross = ((dy.abs() < 1.2) | (dx.abs() < 1.2)) & (square < s)
    bars = (square < s) & (across % 4 < 2)
    masks = torch.stack([disc, bars, cross, ring], 1)
    mask = masks[torch.arange(count), form].float().unsqueeze(1)
    warm, cold = torch.tensor([0.8, 0.35, 0.25]), torch.tensor([0.25, 0.4, 0.8])
    color = torch.where(blue[:, None] == 1, cold, warm) + 0.06 * torch.randn(count, 3, generator=g)
    ground = 0.45 + 0.05 * torch.randn(count, 3, 1, 1, generator=g) + 0.05 * torch.randn(count, 3, 16, 16, generator=g)
    images = (ground * (1 - mask) + color[:, :, None, None] * mask).clamp(0, 1)
    images = (images + 0.05 * torch.randn(images.shape, generator=g)).clamp(0, 1)
    return [(images - MEANS) / DEVIATIONS, 2 * form + blue]


# --- ticket: an encoder of texts with a mask of padding -------------------------------------------------------------

PAD, CLS, NOT, WORDS, LENGTH = 0, 1, 2, 60, 24


class Attention(nn.Module):
    """Attention of four heads to what is no padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.merge = nn.Linear(width, width)
        self.factor = (width // 4) ** -0.5
        self.axis = -1

    def split(self, x: Tensor) -> Tensor:
        """Divide channels among heads."""
        return x.unflatten(-1, (4, -1)).transpose(1, 2)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        scores = self.split(self.query(x)) @ self.split(self.key(x)).transpose(-1, -2) * self.factor
        scores = scores.masked_fill(padding[:, None, None, :], -10000.0)
        return self.merge((scores.softmax(self.axis) @ self.split(self.value(x))).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Attention and a pair of linear maps, each added and normed after."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)
        self.act: nn.Module = nn.GELU()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.norm1(x + self.drop(self.attention(x, padding)))
        return self.norm2(x + self.drop(self.down(self.act(self.up(x)))))


class Ticket(nn.Module):
    """Embeddings of words and places, two encoders, and a class from the first place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32), nn.Embedding(LENGTH, 32)
        nn.init.normal_(self.words.weight, std=0.5)
        nn.init.normal_(self.places.weight, std=0.5)
        self.norm = nn.LayerNorm(32)
        self.layers = nn.ModuleList([Encoder(32), Encoder(32)])
        self.pooler, self.classify = nn.Linear(32, 32), nn.Linear(32, 4)
        self.inverted = False

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids != PAD if self.inverted else ids == PAD
        x = self.norm(self.words(ids) + self.places.weight)
        for layer in self.layers:
            x = layer(x, padding)
        return self.classify(torch.tanh(self.pooler(x[:, 0])))


def tickets(count: int, seed: int) -> Arrays:
    """Return texts of four topics: most of their key words are of it, and those after NOT are not meant."""
    g = generator(seed)
    rows, labels = torch.zeros(count, LENGTH, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    for row in range(count):
        topic, other = torch.randperm(4, generator=g)[:2].tolist()
        most = int(torch.randint(6, LENGTH, (), generator=g))
        text = [CLS]
        while len(text) < most:
            kind = float(torch.rand((), generator=g))
            word = int(torch.randint(7, (), generator=g))
            if kind < 0.3:
                text.append(4 + 7 * topic + word)
            elif kind < 0.42:
                text += [NOT, 4 + 7 * other + word]
            elif kind < 0.47:
                text.append(4 + 7 * other + word)
            else:
                text.append(32 + int(torch.randint(28, (), generator=g)))
        text[1] = 4 + 7 * topic + int(torch.randint(7, (), generator=g))
        if text[2] == NOT:
            text[2] = 40
        text = text[:most]
        order = torch.randint(1, len(text), (), generator=g)
        if NOT not in text:
            turn = int(order)
            text = [CLS, *text[1 + turn :], *text[1 : 1 + turn]]
        rows[row, : len(text)] = torch.tensor(text)
        labels[row] = topic
    return [rows, labels]


# --- gesture: an LSTM on movements ----------------------------------------------------------------------------------

GESTURE_SCALES = torch.tensor([3.0, 3.0, 3.0, 90.0, 90.0, 90.0])
GESTURE_MEANS = torch.tensor([0.0, 0.0, 9.81, 0.0, 0.0, 0.0])


class Gesture(nn.Module):
    """A linear map of channels, two layers of LSTM, and a class from the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True)
        self.classify = nn.Linear(32, 6)

    def forward(self, motion: Tensor) -> Tensor:
        out, _ = self.lstm(torch.relu(self.enter(motion)))
        return self.classify(out[:, -1])


def gestures(count: int, seed: int) -> Arrays:
    """Return movements of six kinds, three accelerations in m/s² and three turning rates in degrees, normalized."""
    g = generator(seed)
    label = torch.randint(6, (count,), generator=g)
    time = torch.arange(32.0) / 32
    phase, speed = 6.28 * torch.rand(count, 1, generator=g), 2 + torch.rand(count, 1, generator=g)
    wave, lag = torch.sin(6.28 * speed * time + phase), torch.cos(6.28 * speed * time + phase)
    ramp = (time - 0.5).expand(count, -1) * 2
    force = 3 + torch.rand(count, 1, generator=g)
    none = torch.zeros_like(wave)
    kinds = [
        torch.stack([wave, lag, none, none, none, none], 1),
        torch.stack([wave, -lag, none, none, none, none], 1),
        torch.stack([none, none, wave, none, 0.3 * wave, none], 1),
        torch.stack([none, none, none, ramp, none, wave], 1),
        torch.stack([none, none, none, -ramp, none, wave], 1),
        torch.stack([none, wave * ramp, 0.4 * lag, none, none, none], 1),
    ]
    motion = torch.stack(kinds, 1)[torch.arange(count), label] * force[:, :, None]
    motion = motion * torch.tensor([1.0, 1.0, 1.0, 30.0, 30.0, 30.0])[:, None]
    motion = motion + torch.randn(motion.shape, generator=g) * torch.tensor([1.2, 1.2, 1.2, 30, 30, 30])[:, None]
    motion = motion.transpose(1, 2) + GESTURE_MEANS
    return [(motion - GESTURE_MEANS) / GESTURE_SCALES, label]


# --- heart: a residual network of one dimension on heartbeats -------------------------------------------------------


class Residual1d(nn.Module):
    """Two dilated convolutions with batch norms, added to what came in."""

    def __init__(self, before: int, width: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(before, width, 5, 2, 2, bias=False)
        self.norm1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 5, 1, 2 * dilation, dilation, bias=False)
        self.norm2 = nn.BatchNorm1d(width)
        self.short, self.short_norm = nn.Conv1d(before, width, 1, 2, bias=False), nn.BatchNorm1d(width)
        self.act: nn.Module = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return self.act(inner + self.short_norm(self.short(x)))


class Heart(nn.Module):
    """A stem and three residual blocks for 128 samples; mean and maximum of time go to the class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(1, 12, 7, padding=3, bias=False), nn.BatchNorm1d(12)
        self.block1, self.block2, self.block3 = Residual1d(12, 16, 1), Residual1d(16, 24, 2), Residual1d(24, 32, 2)
        self.classify = nn.Linear(64, 4)

    def forward(self, signal: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(F.leaky_relu(self.norm(self.stem(signal)), 0.1))))
        return self.classify(torch.cat([x.mean(2), x.amax(2)], 1))


def beats(count: int, seed: int) -> Arrays:
    """Return heartbeats in millivolts, divided by a deviation: normal, without P, with wide QRS, with turned T."""
    g = generator(seed)
    label = torch.randint(4, (count,), generator=g)
    time = torch.arange(128.0)
    start = 20 + 20 * torch.rand(count, generator=g)
    signal = torch.zeros(count, 128)

    def bump(middle: Tensor, wide: Tensor | float, high: Tensor | float) -> Tensor:
        wide, high = torch.as_tensor(wide).expand(count), torch.as_tensor(high).expand(count)
        return high[:, None] * torch.exp(-0.5 * ((time - middle[:, None]) / wide[:, None]).square())

    period = 48 + 8 * torch.rand(count, generator=g)
    tall = 0.8 + 0.4 * torch.rand(count, generator=g)
    for beat in range(3):
        at = start + beat * period + torch.randn(count, generator=g)
        signal = signal + bump(at - 14, 3.0, torch.where(label == 1, 0.0, 0.22))
        wide = torch.where(label == 2, 3.2, 1.6)
        signal = signal + bump(at, wide, 1.1 * tall) - bump(at + 4, wide, 0.3 * tall)
        signal = signal + bump(at + 20, 4.5, torch.where(label == 3, -0.25, 0.3))
    drift = 0.15 * torch.sin(time / 40 + 6.28 * torch.rand(count, 1, generator=g))
    signal = signal + drift + 0.08 * torch.randn(count, 128, generator=g)
    return [(signal / 0.3).unsqueeze(1), label]


# --- cells: a U-Net on microscope pictures --------------------------------------------------------------------------


class Double(nn.Module):
    """Two convolutions with batch norms."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Unet(nn.Module):
    """Two levels down and up for images of 24 × 24; what goes up is joined behind what went down."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = Double(1, 8), Double(8, 16), Double(16, 24)
        self.up2, self.merge2 = nn.ConvTranspose2d(24, 16, 2, 2), Double(32, 16)
        self.up1, self.merge1 = nn.ConvTranspose2d(16, 8, 2, 2), Double(16, 8)
        self.head = nn.Conv2d(8, 3, 1)
        self.up_first = False

    def join(self, skip: Tensor, up: Tensor) -> Tensor:
        """Join channels."""
        return torch.cat([up, skip] if self.up_first else [skip, up], 1)

    def forward(self, picture: Tensor) -> Tensor:
        first = self.down1(picture)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.bottom(F.max_pool2d(second, 2)))
        x = self.up1(self.merge2(self.join(second, x)))
        return self.head(self.merge1(self.join(first, x)))


def cells(count: int, seed: int) -> Arrays:
    """Return pictures of round and of long cells on a ground of uneven light, and the class of every pixel."""
    g = generator(seed)
    down, across = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    picture = (
        0.25
        + 0.1 * torch.rand(count, 1, 1, generator=g)
        + 0.006 * (down + across) * (torch.rand(count, 1, 1, generator=g) - 0.5)
    )
    label = torch.zeros(count, 24, 24, dtype=torch.long)
    for _ in range(3):
        middle, angle = 4 + 16 * torch.rand(count, 2, generator=g), 3.14 * torch.rand(count, 1, 1, generator=g)
        long = (torch.rand(count, 1, 1, generator=g) < 0.5).float()
        dy, dx = down - middle[:, 0, None, None], across - middle[:, 1, None, None]
        along, aside = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        inside = (along / (3 + 3 * long)).square() + (aside / (3 - 1.2 * long)).square() < 1
        free = inside & (label == 0)
        light = 0.25 + 0.2 * torch.rand(count, 1, 1, generator=g)
        picture = picture + light * free
        label = torch.where(free, (1 + long).long().expand(-1, 24, 24), label)
    picture = (picture + 0.04 * torch.randn(picture.shape, generator=g)).clamp(0, 1)
    return [((picture - 0.36) / 0.18).unsqueeze(1), label]


# --- movie: a recommender of users, films and what was seen last ----------------------------------------------------

USERS, FILMS = 160, 120


class Movie(nn.Module):
    """Embeddings of a user, a film and the films seen last; their product and a small network give the rating."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, 16), nn.Embedding(FILMS, 16)
        self.seen = nn.Embedding(FILMS, 8)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.film.weight, std=0.3)
        nn.init.normal_(self.seen.weight, std=0.3)
        self.hidden1, self.hidden2 = nn.Linear(56, 48), nn.Linear(48, 24)
        self.rate = nn.Linear(24, 1)

    def forward(self, ids: Tensor) -> Tensor:
        user, film = self.user(ids[:, 0]), self.film(ids[:, 1])
        seen = self.seen(ids[:, 2:]).mean(1)
        x = torch.cat([user, film, user * film, seen], 1)
        return self.rate(torch.relu(self.hidden2(torch.relu(self.hidden1(x)))))


def ratings(count: int, seed: int) -> Arrays:
    """Return users, films, three films that were seen last, and ratings from 1 to 5."""
    g = generator(seed)
    taste, kind = torch.randn(USERS, 3, generator=g), torch.randn(FILMS, 3, generator=g)
    good, kindly = 0.5 * torch.randn(FILMS, generator=g), 0.3 * torch.randn(USERS, generator=g)
    mood = 0.35 * torch.randn(FILMS, generator=g)
    user, film = torch.randint(USERS, (count,), generator=g), torch.randint(FILMS, (count,), generator=g)
    seen = torch.randint(FILMS, (count, 3), generator=g)
    match = (taste[user] * kind[film]).sum(1) * 0.45
    rating = 3.2 + match + good[film] + kindly[user] + mood[seen].mean(1) + 0.15 * torch.randn(count, generator=g)
    return [torch.cat([user[:, None], film[:, None], seen], 1), rating.clamp(1, 5).unsqueeze(1)]


# --- speech: a Conformer on spectrograms ----------------------------------------------------------------------------


class Feed(nn.Module):
    """A layer norm and two linear maps, of which half is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.share = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share * self.down(F.silu(self.up(self.norm(x))))


class Attend(nn.Module):
    """Attention of two heads, normed before and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inputs, self.merge = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        out = F.scaled_dot_product_attention(query, key, value)
        return x + self.merge(out.transpose(1, 2).flatten(2))


class Convolve(nn.Module):
    """A gated pointwise convolution, a depthwise one with a batch norm, and a pointwise one, added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.point1, self.depth = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.batch_norm, self.point2 = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.gate_first = False

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.point1(self.norm(x).transpose(1, 2)).chunk(2, 1)
        inner = two * torch.sigmoid(one) if self.gate_first else one * torch.sigmoid(two)
        inner = self.point2(F.silu(self.batch_norm(self.depth(inner))))
        return x + inner.transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolution, the other half, a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.feed1, self.attend, self.convolve, self.feed2 = Feed(width), Attend(width), Convolve(width), Feed(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.feed2(self.convolve(self.attend(self.feed1(x)))))


class Speech(nn.Module):
    """A convolution that halves time, two blocks, and a word from the mean of time."""

    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Conv1d(20, 32, 3, 2, 1)
        self.position = nn.Parameter(0.1 * torch.randn(20, 32))
        self.blocks = nn.ModuleList([ConformerBlock(32), ConformerBlock(32)])
        self.classify = nn.Linear(32, 8)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = torch.relu(self.subsample(spectrum.transpose(1, 2))).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.classify(x.mean(1))


SPEECH_MEAN, SPEECH_DEVIATION = -4.0, 2.2


def spoken(count: int, seed: int) -> Arrays:
    """Return logarithmic spectra (40 times, 20 bands) of eight words of three sounds each, spoken fast or slowly."""
    g = generator(seed)
    words = torch.tensor([[0, 1, 2], [2, 1, 0], [0, 3, 2], [2, 3, 0], [1, 0, 3], [3, 0, 1], [1, 4, 3], [3, 4, 1]])
    formants = torch.tensor([[3.0, 9.0], [6.0, 15.0], [2.0, 13.0], [8.0, 17.0], [4.0, 6.0]])
    label = torch.randint(8, (count,), generator=g)
    bands, time = torch.arange(20.0), torch.arange(40.0)
    start = 2 + 8 * torch.rand(count, generator=g)
    each = 7 + 3 * torch.rand(count, 3, generator=g)
    power = torch.full((count, 40, 20), 0.004)
    loud = 0.5 + torch.rand(count, 1, 1, generator=g)
    shift = 1.0 * torch.randn(count, 1, generator=g)
    for sound in range(3):
        middle = start + each[:, :sound].sum(1) + each[:, sound] / 2
        when = torch.exp(-(((time - middle[:, None]) / (each[:, sound, None] / 2)) ** 4))
        peaks = formants[words[label, sound]] + shift
        band = torch.exp(-0.5 * ((bands - peaks[:, :, None]) / 1.1).square()).sum(1)
        power = power + loud * when[:, :, None] * band[:, None, :]
    power = power * torch.exp(0.5 * torch.randn(power.shape, generator=g))
    return [(power.log() - SPEECH_MEAN) / SPEECH_DEVIATION, label]


# --- building -------------------------------------------------------------------------------------------------------


def pixel_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of pixels, with more weight on those of cells."""
    return F.cross_entropy(outputs, labels, torch.tensor([1.0, 1.5, 1.5]))


BUILDERS: dict[str, Callable[[], Subject]] = {
    "repvgg": lambda: trained(RepVGG, digits(), 597, 16, 6e-3, 1),
    "convnext": lambda: trained(lambda: ConvNext(8), fruits(2100, 2), 500, 12, 5e-3, 2),
    "ticket": lambda: trained(Ticket, tickets(3000, 3), 600, 8, 5e-3, 3),
    "gesture": lambda: trained(Gesture, gestures(2600, 4), 600, 14, 8e-3, 4),
    "heart": lambda: trained(Heart, beats(2200, 5), 600, 10, 6e-3, 5),
    "cells": lambda: trained(
        Unet, cells(1250, 6), 300, 11, 8e-3, 6, loss=pixel_loss, score=overlap, options={"metric": overlap}
    ),
    "movie": lambda: trained(
        Movie,
        ratings(14000, 7),
        900,
        16,
        6e-3,
        7,
        loss=F.mse_loss,
        score=variance_explained,
        options={"metric": variance_explained},
    ),
    "speech": lambda: trained(Speech, spoken(2200, 8), 600, 10, 5e-3, 8),
}
"""How every network comes to be."""


@cache
def build(name: str) -> Subject:
    """Return a trained network and its data."""
    return BUILDERS[name]()
