"""Seven ordinary small networks, trained on the spot: bees, houses, drawings, coughs, accounts, polyps and plankton."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import (
    Arrays,
    Subject,
    classes_right,
    explained,
    generator,
    trained,
)
from torch import Tensor, nn

SIDE = torch.arange(32.0)
IMAGE_MEANS = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
IMAGE_DEVIATIONS = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def as_bytes(images: Tensor) -> Tensor:
    """Return pictures between 0 and 1 in steps of 1/255."""
    return (images.clamp(0, 1) * 255).round() / 255


def clouds(count: int, channels: int, coarse: int, chance: torch.Generator) -> Tensor:
    """Return smooth maps of chance."""
    small = torch.randn(count, channels, coarse, coarse, generator=chance)
    return F.interpolate(small, size=32, mode="bilinear", align_corners=False)


def colour(*rgb: float) -> Tensor:
    """Return a colour for pictures."""
    return torch.tensor(rgb).view(1, 3, 1, 1)


# --- bees: bees, mites and pollen on the board of a hive (an SSD with two scales) ------------------------------------

CELLS, ANCHORS, VARIANCES = (8, 4), (6.0, 12.0), (0.1, 0.2)
DEFAULTS = torch.cat(
    [
        torch.stack(
            [
                ((torch.arange(n * n) % n) + 0.5) * 32 / n,
                (torch.arange(n * n).div(n, rounding_mode="floor") + 0.5) * 32 / n,
                torch.full((n * n,), size),
                torch.full((n * n,), size),
            ],
            1,
        )
        for n, size in zip(CELLS, ANCHORS, strict=True)
    ]
)
"""Middle (x, y), width and height of each default box."""


def boards(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and for each of 80 default boxes a class and a coded box.

    Classes: 0 nothing, 1 a bee (large, with stripes), 2 a mite (small, reddish brown), 3 pollen (small, yellow).
    """
    chance = generator(seed)
    u = torch.rand(count, 60, generator=chance)
    ground = 0.62 + 0.2 * (u[:, 0, None, None, None] - 0.5) + 0.05 * clouds(count, 3, 8, chance)
    images = ground * colour(1.0, 0.93, 0.82)
    labels = torch.zeros(count, 80, 5)
    rows = torch.arange(count)
    y, x = SIDE[None, :, None], SIDE[None, None]
    for k in range(4):
        v = u[:, 5 + 12 * k : 17 + 12 * k]
        kind = torch.where(v[:, 0] < 0.32, 1, torch.where(v[:, 0] < 0.55, 2, torch.where(v[:, 0] < 0.78, 3, 0)))
        large = kind == 1
        width = torch.where(large, 9 + 6 * v[:, 1], 4 + 3 * v[:, 1])
        height = torch.where(large, 8 + 5 * v[:, 2], width * (0.8 + 0.3 * v[:, 2]))
        at_x = 16 * (k % 2) + 8 + 6 * (v[:, 3] - 0.5)
        at_y = 16 * (k // 2) + 8 + 6 * (v[:, 4] - 0.5)
        dy, dx = (y - at_y[:, None, None] + 0.5), (x - at_x[:, None, None] + 0.5)
        far = ((dy / (height[:, None, None] / 2)).square() + (dx / (width[:, None, None] / 2)).square()).sqrt()
        inside = torch.sigmoid(6 * (1 - far)) * (kind > 0)[:, None, None]
        stripes = 0.5 + 0.5 * torch.sin(1.7 * dx + 6 * v[:, 5, None, None])
        shade = 1 + 0.3 * (v[:, 6:7, None, None] - 0.5)
        bee = colour(0.62, 0.42, 0.12) * (0.35 + 0.65 * stripes[:, None])
        paints = torch.stack([bee, bee, colour(0.5, 0.2, 0.12).expand_as(bee), colour(0.92, 0.75, 0.2).expand_as(bee)])[
            kind, rows
        ]
        images = images + inside[:, None] * (paints * shade - images)
        level = large.long()
        many = torch.tensor(CELLS)[level]
        column, row = (at_x * many / 32).floor().long(), (at_y * many / 32).floor().long()
        place = row * many + column + 64 * level
        default = DEFAULTS[place]
        coded = torch.stack(
            [
                (at_x - default[:, 0]) / default[:, 2] / VARIANCES[0],
                (at_y - default[:, 1]) / default[:, 3] / VARIANCES[0],
                (width / default[:, 2]).log() / VARIANCES[1],
                (height / default[:, 3]).log() / VARIANCES[1],
            ],
            1,
        )
        there = kind > 0
        labels[rows[there], place[there], 0] = kind[there].float()
        labels[rows[there], place[there], 1:] = coded[there]
    images = images * (0.8 + 0.3 * u[:, 1, None, None, None]) + 0.04 * torch.randn(images.shape, generator=chance)
    return as_bytes(images), labels


class ConvNorm(nn.Sequential):
    """A convolution, its norm and ReLU6."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU6(),
        )


class Separable(nn.Sequential):
    """A depthwise convolution and one of 1 × 1."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__(ConvNorm(before, before, 3, stride, before), ConvNorm(before, after, 1))


class Bees(nn.Module):
    """Separable convolutions, heads at two scales for classes and boxes, joined over all default boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16, 3, 2)
        self.stage1 = nn.Sequential(Separable(16, 24), Separable(24, 40, 2), Separable(40, 40))
        self.stage2 = nn.Sequential(Separable(40, 56, 2), Separable(56, 56))
        self.rescale = nn.Parameter(torch.full((1, 40, 1, 1), 4.0))
        self.class_heads = nn.ModuleList([nn.Conv2d(40, 4, 3, 1, 1), nn.Conv2d(56, 4, 3, 1, 1)])
        self.box_heads = nn.ModuleList([nn.Conv2d(40, 4, 3, 1, 1), nn.Conv2d(56, 4, 3, 1, 1)])
        self.small_first = True

    def forward(self, image: Tensor) -> Tensor:
        fine = self.stage1(self.stem(image))
        coarse = self.stage2(fine)
        fine = fine / (fine.square().sum(1, keepdim=True) + 1e-6).sqrt() * self.rescale
        found = []
        for x, classes, boxes in zip((fine, coarse), self.class_heads, self.box_heads, strict=True):
            found.append(torch.cat([classes(x), boxes(x)], 1).flatten(2).transpose(1, 2))
        return torch.cat(found if self.small_first else found[::-1], 1)


def multibox(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of classes and boxes, as of an SSD with all negatives."""
    kind = labels[..., 0].long()
    weight = torch.tensor([0.4, 1.0, 1.0, 1.0])
    classes = F.cross_entropy(outputs[..., :4].flatten(0, 1), kind.flatten(), weight)
    there = kind > 0
    return classes + 0.5 * F.smooth_l1_loss(outputs[..., 4:][there], labels[..., 1:][there])


def decoded(coded: Tensor) -> Tensor:
    """Return left, top, right and bottom of coded boxes."""
    middle = DEFAULTS[:, :2] + coded[..., :2] * VARIANCES[0] * DEFAULTS[:, 2:]
    half = DEFAULTS[:, 2:] * (coded[..., 2:] * VARIANCES[1]).clamp(max=4).exp() / 2
    return torch.cat([middle - half, middle + half], -1)


def found_well(outputs: Tensor, labels: Tensor) -> float:
    """Return F1 of objects whose class is right and whose box overlaps by a half."""
    said, kind = outputs[..., :4].argmax(-1), labels[..., 0].long()
    one, other = decoded(outputs[..., 4:]), decoded(labels[..., 1:])
    common = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    both = common.prod(-1)
    total = (one[..., 2:] - one[..., :2]).prod(-1) + (other[..., 2:] - other[..., :2]).prod(-1) - both
    hits = ((said == kind) & (kind > 0) & (both / total > 0.5)).sum()
    return (2 * hits / ((said > 0).sum() + (kind > 0).sum()).clamp(min=1)).item()


def bees() -> Subject:
    """Return an SSD for boards of hives; pictures are normalized as for ImageNet."""
    images, labels = boards(2500, 3001)
    data = [(images - IMAGE_MEANS) / IMAGE_DEVIATIONS, labels]
    subject = trained(Bees, data, 400, 10, 1e-2, multibox, found_well, 41)
    subject.options["metric"] = found_well
    return subject


# --- heating: what a house needs for heating (a perceptron with periodic embeddings of numbers) ----------------------

NUMBERS = 8
SYSTEMS, ROOFS, TOWNS = 5, 4, 12


def houses(count: int, seed: int) -> Arrays:
    """Return eight facts (m², year, storeys, windows, azimuth in °, U value, people, °C inside), three kinds, kWh/m².

    Kinds: heating system, roof, town.
    """
    world, chance = generator(30020), generator(seed)
    climate = 0.8 + 0.5 * torch.rand(TOWNS, generator=world)
    loss_of = torch.tensor([1.25, 1.1, 1.0, 0.4, 0.9])
    roof_of = torch.tensor([1.15, 1.0, 0.92, 1.08])
    u = torch.rand(count, 8, generator=chance)
    area = 60 + 190 * u[:, 0].square()
    year = 1900 + 122 * u[:, 1].sqrt()
    storeys = 1 + (3.99 * u[:, 2] ** 1.5).floor()
    share = 0.08 + 0.4 * u[:, 3]
    azimuth = 360 * u[:, 4]
    code = 1.5 - 0.5 * (year > 1949).float() - 0.3 * (year > 1978).float() - 0.3 * (year > 2002).float()
    glass = 0.8 + 3.5 * u[:, 5] * (0.4 + 0.4 * code)
    people = 1 + (5 * u[:, 6]).floor()
    inside = 18 + 5 * u[:, 7]
    system = torch.randint(SYSTEMS, (count,), generator=chance)
    roof = torch.randint(ROOFS, (count,), generator=chance)
    town = torch.randint(TOWNS, (count,), generator=chance)
    sun = 1 - 0.55 * share * torch.cos((azimuth - 180) * math.pi / 180)
    shape = 1 + 0.5 * (100 / area - 0.6) - 0.07 * (storeys - 1)
    need = (70 * code * roof_of[roof] + 50 * share * glass) * sun * shape * climate[town] * (inside - 6) / 14
    need = (need - 4 * people) * loss_of[system] * (1 + 0.04 * torch.randn(count, generator=chance))
    numbers = torch.stack([area, year, storeys, share, azimuth, glass, people, inside], 1)
    return [numbers, torch.stack([system, roof, town], 1), need[:, None]]


HOUSES = houses(10500, 3002)
FACT_MEANS, FACT_DEVIATIONS = HOUSES[0].mean(0), HOUSES[0].std(0)
NEED_MEAN, NEED_DEVIATION = HOUSES[2].mean(), HOUSES[2].std()


class Heating(nn.Module):
    """Sines and cosines of each number, a map of them, rows for kinds, and three maps to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(0.25 * torch.randn(NUMBERS, 6))
        self.periodic, self.relu = nn.Linear(12, 8), nn.ReLU()
        self.system, self.roof, self.town = nn.Embedding(SYSTEMS, 4), nn.Embedding(ROOFS, 4), nn.Embedding(TOWNS, 6)
        self.fc1, self.act1, self.drop1 = nn.Linear(NUMBERS * 9 + 14, 96), nn.ReLU(), nn.Dropout(0.02)
        self.fc2, self.act2, self.drop2 = nn.Linear(96, 64), nn.ReLU(), nn.Dropout(0.02)
        self.out = nn.Linear(64, 1)
        self.sines_first = True

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        angle = 2 * math.pi * self.frequencies * numbers[:, :, None]
        parts = [angle.sin(), angle.cos()]
        waves = self.relu(self.periodic(torch.cat(parts if self.sines_first else parts[::-1], 2)))
        rows = [self.system(kinds[:, 0]), self.roof(kinds[:, 1]), self.town(kinds[:, 2])]
        x = torch.cat([waves.flatten(1), numbers, *rows], 1)
        x = self.drop1(self.act1(self.fc1(x)))
        return self.out(self.drop2(self.act2(self.fc2(x))))


def heating() -> Subject:
    """Return a perceptron with periodic embeddings for houses; numbers and answers have mean 0 and deviation 1."""
    data = [(HOUSES[0] - FACT_MEANS) / FACT_DEVIATIONS, HOUSES[1], (HOUSES[2] - NEED_MEAN) / NEED_DEVIATION]
    subject = trained(Heating, data, 500, 14, 4e-3, F.mse_loss, explained, 42)
    subject.options["metric"] = explained
    return subject


# --- pen: what is drawn on a tablet (convolutions over strokes and two layers of an LSTM) -----------------------------

POINTS, DRAWINGS = 40, 8
SPEED = 0.22
"""Steps of the pen are divided by this."""


def drawings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return steps of a pen (right, down, whether it was lifted) at 40 points, and one of eight drawings.

    Circle, square, triangle, star, spiral, zigzag, an eight, and a flower.
    """
    chance = generator(seed)
    labels = torch.randint(DRAWINGS, (count,), generator=chance)
    u = torch.rand(count, 10, 1, generator=chance)
    t = torch.linspace(0, 1, POINTS + 1)[None].expand(count, -1)
    warp = t + 0.06 * torch.sin(2 * math.pi * (t + u[:, 0])) - 0.06 * torch.sin(2 * math.pi * u[:, 0])
    turn = 2 * math.pi * warp

    def corners(n: int, skip: int) -> tuple[Tensor, Tensor]:
        """Return a path between corners on a circle."""
        place = warp.clamp(0, 0.9999) * n
        index, part = place.floor(), place - place.floor()
        one, other = 2 * math.pi * skip * index / n, 2 * math.pi * skip * (index + 1) / n
        return (1 - part) * one.cos() + part * other.cos(), (1 - part) * one.sin() + part * other.sin()

    radius = 0.15 + 0.85 * warp
    saw = 2 * ((warp * 4) % 1 - 0.5).abs()
    petals = 0.65 + 0.35 * torch.cos(5 * turn)
    paths = [
        (turn.cos(), turn.sin()),
        corners(4, 1),
        corners(3, 1),
        corners(5, 2),
        (radius * (2.5 * turn).cos(), radius * (2.5 * turn).sin()),
        (2 * warp - 1, 1.4 * saw - 0.7),
        (torch.sin(turn), 0.6 * torch.sin(2 * turn)),
        (petals * turn.cos(), petals * turn.sin()),
    ]
    x = torch.stack([path[0] for path in paths])[labels, torch.arange(count)]
    y = torch.stack([path[1] for path in paths])[labels, torch.arange(count)]
    angle = 2 * math.pi * u[:, 1]
    wide, high = 0.7 + 0.6 * u[:, 2], 0.7 + 0.6 * u[:, 3]
    x, y = wide * x * angle.cos() - high * y * angle.sin(), wide * x * angle.sin() + high * y * angle.cos()
    x = x + 0.035 * torch.randn(x.shape, generator=chance)
    y = y + 0.035 * torch.randn(y.shape, generator=chance)
    lifted = (torch.rand(count, POINTS, generator=chance) < 0.03).float()
    lifted[:, -1] = 1
    return torch.stack([x.diff(dim=1) / SPEED, y.diff(dim=1) / SPEED, lifted], 2), labels


class Pen(nn.Module):
    """Two convolutions with norms, two layers of an LSTM in both directions, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv1d(3, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU()
        self.conv2, self.bn2, self.act2 = nn.Conv1d(24, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU()
        self.lstm = nn.LSTM(32, 28, 2, batch_first=True, bidirectional=True)
        self.drop, self.fc = nn.Dropout(0.1), nn.Linear(56, DRAWINGS)

    def forward(self, strokes: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(strokes.transpose(1, 2))))
        x = self.act2(self.bn2(self.conv2(x))).transpose(1, 2)
        x, _ = self.lstm(x)
        return self.fc(self.drop(x.mean(1)))


def pen() -> Subject:
    """Return a network of drawings."""
    return trained(Pen, list(drawings(3100, 3003)), 500, 9, 8e-3, F.cross_entropy, classes_right, 43)


# --- cough: what is heard in a waiting room (a wav2vec 2.0) -----------------------------------------------------------

HEARD, RATE = 1200, 4000


def sounds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return signals of 0.3 s between -1 and 1, and one of five classes.

    A dry cough (a burst of noise), a wet cough (a burst that crackles), a sneeze (noise that rises and hisses),
    laughter (voiced pieces), and speech (a steady voice with a formant).
    """
    chance = generator(seed)
    labels = torch.randint(5, (count,), generator=chance)
    u = torch.rand(count, 12, 1, generator=chance)
    t = torch.arange(HEARD)[None] / RATE
    noise = torch.randn(count, HEARD, generator=chance)
    low = F.avg_pool1d(noise[:, None], 7, 1, 3)[:, 0] * 2.4
    hiss = (noise - F.avg_pool1d(noise[:, None], 3, 1, 1)[:, 0]) * 1.2
    start = 0.03 + 0.08 * u[:, 0]
    since = (t - start).clamp_min(0)
    burst = (since > 0) * torch.exp(-since / (0.03 + 0.04 * u[:, 1])) * (1 - torch.exp(-since / 0.004))
    crackle = 0.5 + 0.5 * torch.sign(torch.sin(2 * math.pi * (55 + 30 * u[:, 2]) * t + 6 * u[:, 3]))
    swell = torch.exp(-((t - 0.16 - 0.06 * u[:, 4]) / (0.04 + 0.03 * u[:, 5])).square())
    pitch = 120 + 130 * u[:, 6]
    phase = 2 * math.pi * (pitch * t + 6 * u[:, 7])
    voice = sum(torch.sin(k * phase) / k for k in range(1, 7))
    pieces = (torch.sin(2 * math.pi * (9 + 4 * u[:, 8]) * t + 6 * u[:, 9]) > 0).float()
    steady = 0.75 + 0.25 * torch.sin(2 * math.pi * 4 * t + 6 * u[:, 9])
    kinds = [burst * (low + 0.3 * noise), burst * crackle * (low + 0.3 * noise), swell * hiss]
    kinds += [pieces * (voice + 0.2 * noise) * 0.6, steady * voice * 0.6]
    found = torch.stack(kinds)[labels, torch.arange(count)]
    found = found + (0.06 + 0.1 * u[:, 10]) * torch.randn(count, HEARD, generator=chance)
    return found * (0.08 + 0.2 * u[:, 11]) + 0.01, labels


def levelled(signal: Tensor) -> Tensor:
    """Return signals of mean 0 and deviation 1 each, as a feature extractor with do_normalize does."""
    return (signal - signal.mean(1, keepdim=True)) / (signal.var(1, keepdim=True) + 1e-7).sqrt()


class EncoderLayer(nn.Module):
    """Attention and two maps, norms behind the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scaling = heads, (width // heads) ** -0.5
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width)
        self.intermediate, self.act, self.output = nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            part(x).view(batch, count, self.heads, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q * self.scaling @ k.transpose(2, 3), -1)
        seen = self.out_proj((weights @ v).transpose(1, 2).reshape(batch, count, width))
        x = self.layer_norm(x + seen)
        return self.final_layer_norm(x + self.output(self.act(self.intermediate(x))))


class Cough(nn.Module):
    """Convolutions with strides on the signal, a norm and a map, a convolution for places, two layers, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.group_norm = nn.Conv1d(1, 24, 10, 5, bias=False), nn.GroupNorm(24, 24)
        self.conv1, self.conv2 = nn.Conv1d(24, 32, 3, 2, bias=False), nn.Conv1d(32, 40, 3, 2, bias=False)
        self.conv3 = nn.Conv1d(40, 40, 3, 2, bias=False)
        self.gelu0, self.gelu1, self.gelu2, self.gelu3 = nn.GELU(), nn.GELU(), nn.GELU(), nn.GELU()
        self.feature_norm, self.projection = nn.LayerNorm(40), nn.Linear(40, 48)
        self.pos_conv, self.pos_act = nn.Conv1d(48, 48, 9, padding=4, groups=4), nn.GELU()
        self.layer_norm = nn.LayerNorm(48)
        self.layers = nn.ModuleList([EncoderLayer(48, 4), EncoderLayer(48, 4)])
        self.projector, self.classifier = nn.Linear(48, 32), nn.Linear(32, 5)

    def forward(self, signal: Tensor) -> Tensor:
        x = self.gelu0(self.group_norm(self.conv0(signal[:, None])))
        x = self.gelu3(self.conv3(self.gelu2(self.conv2(self.gelu1(self.conv1(x))))))
        x = self.projection(self.feature_norm(x.transpose(1, 2)))
        x = self.layer_norm(x + self.pos_act(self.pos_conv(x.transpose(1, 2))).transpose(1, 2))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.projector(x).mean(1))


def cough() -> Subject:
    """Return a wav2vec 2.0 for a waiting room, whose signals have mean 0 and deviation 1 each."""
    signals, labels = sounds(2300, 3004)
    return trained(Cough, [levelled(signals), labels], 400, 8, 3e-3, F.cross_entropy, classes_right, 44)


# --- fraud: what an account is used for, from those it deals with (a graph attention network) -------------------------

ACCOUNTS, TRAITS = 12, 7


def dealings(count: int, seed: int) -> Arrays:
    """Return traits of twelve accounts (the first is asked about), who dealt with whom, and one of three classes.

    Traits: log of the sum in, log of the sum out, payments a day, age in months, share at night, kinds of shops, and
    whether there is such an account. Classes: usual, mule (neighbours are young and pay in what goes out at night),
    ring (neighbours resemble each other and deal with one another).
    """
    chance = generator(seed)
    labels = torch.randint(3, (count,), generator=chance)
    kind = F.one_hot(labels, 3).float()
    size = torch.randint(6, ACCOUNTS + 1, (count, 1), generator=chance)
    there = (torch.arange(ACCOUNTS) < size).float()
    e = torch.randn(count, ACCOUNTS, 6, generator=chance)
    same = torch.randn(count, 1, 6, generator=chance)
    other = there.clone()
    other[:, 0] = 0
    near = torch.rand(count, ACCOUNTS, generator=chance) < 0.6
    near = near * other.bool()
    near[:, 1] = True
    dealt = torch.zeros(count, ACCOUNTS, ACCOUNTS)
    dealt[:, 0, :] = near.float()
    chance_of = 0.12 + 0.22 * kind[:, 2, None, None]
    among = (torch.rand(count, ACCOUNTS, ACCOUNTS, generator=chance) < chance_of).float().triu(1)
    dealt = dealt + among * other[:, :, None] * other[:, None]
    dealt = ((dealt + dealt.transpose(1, 2)) > 0).float()
    mule, ring = kind[:, 1, None] * near.float(), kind[:, 2, None] * near.float()
    ring_part = 0.6 * ring[..., None]
    like = e * (1 - ring_part) + 1.0 * ring_part * same
    income = 7 + 0.9 * like[..., 0] + 0.4 * mule
    out = income - 0.4 + 0.5 * like[..., 1] + 0.2 * mule
    often = (1.2 + 0.4 * like[..., 2]).exp()
    age = (3.4 + 0.7 * like[..., 3] - 0.95 * mule).exp()
    night = torch.sigmoid(-1.5 + 0.7 * like[..., 4] + 0.9 * mule)
    shops = (2.2 + 0.5 * like[..., 5] - 0.5 * ring).exp()
    traits = torch.stack([income, out, often, age, night, shops, torch.ones_like(age)], 2) * there[..., None]
    edges = torch.maximum(dealt * there[:, :, None] * there[:, None], torch.eye(ACCOUNTS))
    return [traits, edges, labels]


DEALINGS = dealings(5200, 3005)
PRESENT = DEALINGS[0][..., 6] > 0
TRAIT_MEANS, TRAIT_DEVIATIONS = DEALINGS[0][PRESENT].mean(0), DEALINGS[0][PRESENT].std(0)
TRAIT_MEANS[6], TRAIT_DEVIATIONS[6] = 0.0, 1.0


def scaled_traits(traits: Tensor) -> Tensor:
    """Return traits of mean 0 and deviation 1; accounts that are not there have zeros."""
    return (traits - TRAIT_MEANS) / TRAIT_DEVIATIONS * traits[..., 6:7]


class Gat(nn.Module):
    """A map for each head, a weight for each edge from both its ends, the weighted mean."""

    def __init__(self, before: int, heads: int, each: int) -> None:
        super().__init__()
        self.heads, self.each = heads, each
        self.lin = nn.Linear(before, heads * each)
        self.att_src, self.att_dst = nn.Linear(before, heads), nn.Linear(before, heads)
        self.leaky = nn.LeakyReLU(0.2)
        self.towards = True

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        batch, count, _ = x.shape
        values = self.lin(x).view(batch, count, self.heads, self.each).transpose(1, 2)
        source, target = self.att_src(x).transpose(1, 2), self.att_dst(x).transpose(1, 2)
        scores = self.leaky(target[..., None] + source[:, :, None])
        scores = scores.masked_fill(edges[:, None] == 0, -1e4)
        weights = torch.softmax(scores, 3 if self.towards else 2)
        return (weights @ values).transpose(1, 2).reshape(batch, count, self.heads * self.each)


class Fraud(nn.Module):
    """A first map, two layers over neighbours with ELU and sums, and a class for the first account."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.act0 = nn.Linear(TRAITS, 32), nn.ELU()
        self.gat1, self.norm1, self.act1 = Gat(32, 4, 8), nn.LayerNorm(32), nn.ELU()
        self.gat2, self.norm2, self.act2 = Gat(32, 4, 8), nn.LayerNorm(32), nn.ELU()
        self.fc1, self.act3, self.fc2 = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3)

    def forward(self, traits: Tensor, edges: Tensor) -> Tensor:
        x = self.act0(self.enter(traits))
        x = x + self.act1(self.norm1(self.gat1(x, edges)))
        x = x + self.act2(self.norm2(self.gat2(x, edges)))
        share = edges[:, 0] / edges[:, 0].sum(1, keepdim=True)
        around = (share[:, :, None] * x).sum(1)
        return self.fc2(self.act3(self.fc1(torch.cat([x[:, 0], around], 1))))


def fraud() -> Subject:
    """Return a graph attention network for accounts; traits have mean 0 and deviation 1."""
    data = [scaled_traits(DEALINGS[0]), DEALINGS[1], DEALINGS[2]]
    return trained(Fraud, data, 500, 12, 4e-3, F.cross_entropy, classes_right, 45)


# --- polyp: polyps in endoscopy (a U-Net with gates of attention) -----------------------------------------------------


def gut(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and where a polyp is."""
    chance = generator(seed)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = SIDE[:, None], SIDE[None]
    wall = 0.12 * clouds(count, 1, 5, chance) + 0.1 * torch.sin(
        (x * u[:, 0:1] + y * (1 - u[:, 0:1])) * (0.35 + 0.3 * u[:, 1:2]) + 6 * u[:, 2:3]
    )
    images = colour(0.72, 0.42, 0.34) * (1 + wall) + 0.05 * (u[:, 3:6] - 0.5)
    mask = torch.zeros(count, 1, 32, 32)
    for k in range(2):
        v = u[:, 6 + 6 * k : 12 + 6 * k]
        radius = (3.0 + 4.5 * v[:, 2:3]) * (v[:, 5:6] > (0.0 if k == 0 else 0.6))
        dy, dx = y - 5 - 22 * v[:, 0:1], x - 5 - 22 * v[:, 1:2]
        angle = 6.28 * v[:, 3:4]
        along, aside = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        far = (along.square() + (aside * (1 + 0.4 * v[:, 4:5])).square()).sqrt()
        inside = torch.sigmoid(1.8 * (radius - far)) * (radius > 0)
        bulge = 0.2 * (1 - (far / radius.clamp_min(1)).square()).clamp_min(0)
        images = images + inside * (colour(0.1, -0.07, -0.03) + bulge * colour(0.7, 0.6, 0.6))
        mask = torch.maximum(mask, ((radius > 0) & (far < radius)).float())
    for _ in range(3):
        w = torch.rand(count, 3, 1, 1, generator=chance)
        shine = torch.exp(-((y - 32 * w[:, 0:1]).square() + (x - 32 * w[:, 1:2]).square()) / (0.8 + w[:, 2:3]))
        images = images + 0.6 * shine
    images = images * (0.75 + 0.4 * u[:, 18:19]) * (1 - 0.0006 * ((y - 16).square() + (x - 16).square()))
    return as_bytes(images + 0.035 * torch.randn(count, 3, 32, 32, generator=chance)), mask


GUT = gut(1300, 3006)
GUT_MEANS, GUT_DEVIATIONS = GUT[0].mean((0, 2, 3))[:, None, None], GUT[0].std((0, 2, 3))[:, None, None]


class Twice(nn.Sequential):
    """Two convolutions with norms and ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        )


class Gate(nn.Module):
    """How much of what the encoder saw is let through, from it and from what comes from below."""

    def __init__(self, gate: int, skip: int, inner: int) -> None:
        super().__init__()
        self.w_g = nn.Sequential(nn.Conv2d(gate, inner, 1), nn.BatchNorm2d(inner))
        self.w_x = nn.Sequential(nn.Conv2d(skip, inner, 1), nn.BatchNorm2d(inner))
        self.relu, self.psi, self.sigmoid = nn.ReLU(), nn.Conv2d(inner, 1, 1), nn.Sigmoid()

    def forward(self, gate: Tensor, skip: Tensor) -> Tensor:
        return skip * self.sigmoid(self.psi(self.relu(self.w_g(gate) + self.w_x(skip))))


class Polyp(nn.Module):
    """Three scales down, two up, with gates on what is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.enc3 = Twice(3, 12), Twice(12, 24), Twice(24, 40)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2)
        self.conv_up2, self.conv_up1 = nn.Conv2d(40, 24, 3, padding=1), nn.Conv2d(24, 12, 3, padding=1)
        self.gate2, self.gate1 = Gate(24, 24, 12), Gate(12, 12, 8)
        self.dec2, self.dec1 = Twice(48, 24), Twice(24, 12)
        self.out = nn.Conv2d(12, 1, 1)
        self.skip_first = True

    def joined(self, skip: Tensor, below: Tensor) -> Tensor:
        """Return what the gate let through beside what comes from below."""
        return torch.cat([skip, below] if self.skip_first else [below, skip], 1)

    def forward(self, image: Tensor) -> Tensor:
        one = self.enc1(image)
        two = self.enc2(self.pool(one))
        three = self.enc3(self.pool(two))
        below = self.conv_up2(self.up2(three))
        two = self.dec2(self.joined(self.gate2(below, two), below))
        below = self.conv_up1(self.up1(two))
        return self.out(self.dec1(self.joined(self.gate1(below, one), below)))


def overlap_and_pixels(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of pixels and of Dice."""
    share = torch.sigmoid(outputs)
    dice = 1 - (2 * (share * labels).sum() + 1) / (share.sum() + labels.sum() + 1)
    return F.binary_cross_entropy_with_logits(outputs, labels) + dice


def dice_score(outputs: Tensor, labels: Tensor) -> float:
    """Return Dice over all pixels."""
    said = (outputs > 0).float()
    return (2 * (said * labels).sum() / (said.sum() + labels.sum()).clamp(min=1)).item()


def polyp() -> Subject:
    """Return a U-Net with gates; pictures have mean 0 and deviation 1 in each channel."""
    data = [(GUT[0] - GUT_MEANS) / GUT_DEVIATIONS, GUT[1]]
    subject = trained(Polyp, data, 300, 4, 1e-2, overlap_and_pixels, dice_score, 46)
    subject.options["metric"] = dice_score
    return subject


# --- plankton: what swims before a camera (an SKNet) ------------------------------------------------------------------

WATER, WATER_DEVIATION = 0.25, 0.2


def waters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 in grey between 0 and 1 (bright on dark), and one of six classes.

    A chain of discs, a wheel with spokes, a copepod with antennae, a triangle with horns, a fibre, a bubble.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 16, 1, 1, generator=chance)
    y, x = SIDE[:, None] - (13 + 5 * u[:, 0]), SIDE[None] - (13 + 5 * u[:, 1])
    angle = 2 * math.pi * u[:, 2]
    y, x = y * angle.cos() - x * angle.sin(), y * angle.sin() + x * angle.cos()
    size = 6.5 + 4.5 * u[:, 3]
    r, turn = (y.square() + x.square()).sqrt(), torch.atan2(y, x)
    step = 4.5 + 1.5 * u[:, 4]
    beads = (((x / step + 0.5) % 1 - 0.5) * step).square() + y.square()
    chain = torch.sigmoid(2 * (2.0 - beads.sqrt())) * (x.abs() < 1.3 * size)
    rim = torch.exp(-((r - size) / 1.0).square())
    wheel = 0.8 * rim + torch.sigmoid(2 * (size - r)) * (0.3 + 0.5 * torch.cos(4 * turn + 6 * u[:, 5]).clamp_min(0))
    body = torch.sigmoid(3 * (1 - ((x / size).square() + (y / (0.45 * size)).square()).sqrt()))
    horns = torch.exp(-((x - 0.7 * size) / 0.9).square()) * (y.abs() < 1.4 * size)
    copepod = 0.8 * body + 0.6 * horns
    edge = torch.maximum(-0.5 * x + 0.87 * y, torch.maximum(-0.5 * x - 0.87 * y, x))
    triangle = 0.75 * torch.sigmoid(2 * (0.5 * size - edge)) + 0.6 * (
        torch.exp(-(y / 0.9).square()) * (x < 0) * (x > -1.9 * size)
    )
    bend = y - 2.5 * torch.sin(x / (4 + 3 * u[:, 6]) + 6 * u[:, 7])
    fibre = torch.exp(-(bend / 0.9).square()) * (x.abs() < 1.6 * size)
    bubble = 0.9 * torch.exp(-((r - 0.8 * size) / 1.3).square()) + 0.5 * torch.exp(
        -((y + 2).square() + (x + 2).square()) / 3
    )
    shape = torch.stack([chain, wheel, copepod, triangle, fibre, bubble])[labels, torch.arange(count)]
    snow = (torch.rand(count, 32, 32, generator=chance) < 0.015).float()
    images = 0.1 + 0.15 * u[:, 8] + 0.03 * clouds(count, 1, 6, chance)[:, 0]
    images = images + (0.3 + 0.4 * u[:, 9]) * shape + 0.35 * snow
    return as_bytes(images + 0.06 * torch.randn(count, 32, 32, generator=chance))[:, None], labels


class SelectiveKernel(nn.Module):
    """Two branches, of which the second sees farther; weights for both by channel, which sum to one."""

    def __init__(self, width: int, less: int) -> None:
        super().__init__()
        self.near = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.far = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=2, dilation=2, groups=4, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Conv2d(width, less, 1, bias=False), nn.BatchNorm2d(less), nn.ReLU())
        self.fcs = nn.ModuleList([nn.Conv2d(less, width, 1), nn.Conv2d(less, width, 1)])

    def forward(self, x: Tensor) -> Tensor:
        near, far = self.near(x), self.far(x)
        z = self.fc((near + far).mean((2, 3), keepdim=True))
        weights = torch.softmax(torch.stack([self.fcs[0](z), self.fcs[1](z)], 1), 1)
        return near * weights[:, 0] + far * weights[:, 1]


class SkUnit(nn.Module):
    """Narrow, selective kernels, widen; added to what came in."""

    def __init__(self, before: int, inner: int, after: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()
        self.sk = SelectiveKernel(inner, 8)
        self.conv3, self.bn3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn3(self.conv3(self.sk(self.relu1(self.bn1(self.conv1(x))))))
        return self.relu(out + self.shortcut(x))


class Plankton(nn.Module):
    """A stem with maxima, three units, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1, self.layer2, self.layer3 = SkUnit(16, 16, 32), SkUnit(32, 24, 48), SkUnit(48, 24, 48)
        self.maxpool = nn.MaxPool2d(2)
        self.fc = nn.Linear(48, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(image)))))
        x = self.layer3(self.layer2(x))
        return self.fc(x.mean((2, 3)))


def plankton() -> Subject:
    """Return an SKNet for plankton."""
    images, labels = waters(2600, 3007)
    data = [(images - WATER) / WATER_DEVIATION, labels]
    return trained(Plankton, data, 500, 8, 1e-2, F.cross_entropy, classes_right, 47)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "bees": bees,
    "heating": heating,
    "pen": pen,
    "cough": cough,
    "fraud": fraud,
    "polyp": polyp,
    "plankton": plankton,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
