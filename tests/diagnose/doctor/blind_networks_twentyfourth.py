"""Eight ordinary small networks, trained on the spot: seeds, blood, wood, sleep, speakers, rivers and more."""

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
    signs_right,
    trained,
    yes_or_no,
)
from tests.diagnose.doctor.blind_networks_twentythird import in_bytes, paint, rough
from torch import Tensor, nn

# --- seed: kinds of grain (a GoogLeNet as in torchvision) -----------------------------------------------------------

SIDE = torch.arange(32.0)
MIDDLE = 0.5


def turned(u: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return coordinates about a place near the middle, turned by an angle of chance; three numbers are used."""
    y, x = SIDE[:, None] - (12.5 + 6 * u[:, first]), SIDE[None] - (12.5 + 6 * u[:, first + 1])
    angle = 2 * math.pi * u[:, first + 2]
    return y * angle.cos() - x * angle.sin(), y * angle.sin() + x * angle.cos()


def seeds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Wheat (a crease along it), barley (creases across), rice (long and pale), lentils (round and brown), sunflower
    (stripes of black and white), and maize (a wedge, yellow, with a pale tip).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = turned(u, 0)
    long = torch.tensor([9.5, 9.5, 10.0, 7.0, 10.0, 9.0])[labels][:, None, None] * (0.8 + 0.35 * u[:, 3])
    wide = torch.tensor([5.2, 4.8, 3.6, 6.2, 5.0, 6.0])[labels][:, None, None] * (0.8 + 0.35 * u[:, 4])
    kind = F.one_hot(labels, 6).float()[:, :, None, None]
    slim = 1 - 0.35 * kind[:, 5] * (x / long) - 0.3 * kind[:, 4] * (x / long)
    inside = torch.sigmoid(6 * (1 - ((y / (wide * slim)).square() + (x / long).square()).sqrt()))
    crease = torch.exp(-(y / 1.0).square())
    across = 0.5 + 0.5 * torch.cos(x * (1.3 + 0.4 * u[:, 5]))
    stripes = 0.5 + 0.5 * torch.cos(y * (1.7 + 0.4 * u[:, 6]) + 6 * u[:, 7])
    tip = torch.sigmoid(1.5 * (x / long * 9 - 4))
    tan, straw, pale = paint(0.62, 0.44, 0.24), paint(0.66, 0.5, 0.28), paint(0.78, 0.72, 0.6)
    brown, black, gold = paint(0.5, 0.34, 0.2), paint(0.34, 0.32, 0.3), paint(0.82, 0.62, 0.2)
    colour = torch.cat([tan, straw, pale, brown, black, gold])[labels] + 0.25 * (u[:, 8:11] - 0.5)
    mark = -0.3 * kind[:, 0] * crease - 0.22 * kind[:, 1] * across + 0.45 * kind[:, 4] * stripes
    mark = mark + 0.15 * kind[:, 5] * tip
    surface = colour + mark[:, None] + 0.1 * (1 - (y / wide).square().clamp(max=1))[:, None]
    ground = 0.25 + 0.5 * u[:, 11:12] + 0.12 * (u[:, 12:15] - 0.5) + 0.05 * rough(count, 9, 32, chance)
    images = inside[:, None] * surface + (1 - inside)[:, None] * ground
    images = images * (0.75 + 0.4 * u[:, 15:16]) + 0.115 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


class BasicConv2d(nn.Module):
    """A convolution, its norm and ReLU."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(after, eps=1e-3)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Inception(nn.Module):
    """Branches of 1 × 1, of 3 × 3, of 3 × 3 twice, and of a maximum, joined."""

    def __init__(self, before: int, one: int, less: int, three: int, twice: int, pooled: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(before, one, 1)
        self.branch2 = nn.Sequential(BasicConv2d(before, less, 1), BasicConv2d(less, three, 3))
        self.branch3 = nn.Sequential(
            BasicConv2d(before, less, 1), BasicConv2d(less, twice, 3), BasicConv2d(twice, twice, 3)
        )
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), BasicConv2d(before, pooled, 1))
        self.order = (0, 1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]
        return torch.cat([parts[k] for k in self.order], 1)


class Seed(nn.Module):
    """A stem, three joined modules, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = BasicConv2d(3, 12, 3, 2), BasicConv2d(12, 24, 3)
        self.inception3a, self.inception3b = Inception(24, 12, 8, 16, 8, 8), Inception(44, 16, 12, 20, 12, 8)
        self.maxpool, self.inception4a = nn.MaxPool2d(2), Inception(56, 20, 12, 24, 12, 8)
        self.dropout, self.fc = nn.Dropout(0.1), nn.Linear(64, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.inception3b(self.inception3a(self.conv2(self.conv1(image))))
        x = self.inception4a(self.maxpool(x))
        return self.fc(self.dropout(x.mean((2, 3))))


def seed() -> Subject:
    """Return a GoogLeNet for seeds, whose pictures lie between -1 and 1."""
    images, labels = seeds(2500, 2401)
    return trained(Seed, [(images - MIDDLE) / MIDDLE, labels], 500, 7, 8e-3, F.cross_entropy, classes_right, 31)


# --- blood: kinds of white blood cells (a VGG without norms) --------------------------------------------------------


def smears(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of five classes.

    Neutrophils (three or four lobes), eosinophils (two lobes, red grains), basophils (blue grains over everything),
    lymphocytes (a large round nucleus), monocytes (a nucleus like a kidney in much pale cytoplasm).
    """
    chance = generator(seed)
    labels = torch.randint(5, (count,), generator=chance)
    u = torch.rand(count, 40, 1, 1, generator=chance)
    y, x = turned(u, 0)
    size = torch.tensor([9.0, 9.0, 8.5, 7.0, 10.5])[labels][:, None, None] * (0.85 + 0.3 * u[:, 3])
    r = (y.square() + x.square()).sqrt()
    cell = torch.sigmoid(1.5 * (size - r))

    def lobe(at_y: Tensor, at_x: Tensor, radius: Tensor) -> Tensor:
        """Return a round part of a nucleus."""
        return torch.sigmoid(2 * (radius - ((y - at_y).square() + (x - at_x).square()).sqrt()))

    many = torch.zeros(count, 32, 32)
    for k in range(4):
        there = (u[:, 4] > 0.5).float() if k == 3 else 1.0
        angle = k * 1.45 + 0.6 * u[:, 5 + k]
        many = torch.maximum(many, there * lobe(0.45 * size * angle.sin(), 0.45 * size * angle.cos(), 0.26 * size))
    two = torch.maximum(
        lobe(0.4 * size, 0 * size, 0.36 * size),
        lobe(-0.4 * size, 0.1 * size * (u[:, 9] - 0.5), 0.36 * size),
    )
    whole = lobe(0.1 * size * (u[:, 10] - 0.5), 0 * size, 0.82 * size)
    kidney = lobe(0 * size, -0.12 * size, 0.62 * size) * (1 - lobe(0 * size, 0.5 * size, 0.42 * size))
    nucleus = torch.stack([many, two, 0.75 * two, whole, kidney])[labels, torch.arange(count)] * cell
    grain = (torch.rand(count, 32, 32, generator=chance) < 0.3).float() * cell
    kind = F.one_hot(labels, 5).float()[:, :, None, None]
    plasma = 0.76 + 0.08 * (u[:, 11:12] - 0.5)
    pink, blue, grey = paint(1.0, 0.88, 0.92), paint(0.78, 0.86, 1.0), paint(0.88, 0.88, 0.98)
    cytoplasm = plasma * torch.cat([pink, pink, pink, blue, grey])[labels]
    red_cell = torch.zeros(count, 32, 32)
    for k in range(12, 24, 3):
        far = ((SIDE[:, None] - 32 * u[:, k]).square() + (SIDE[None] - 32 * u[:, k + 1]).square()).sqrt()
        red_cell = torch.maximum(red_cell, torch.sigmoid(2 * (4.5 - far)) * (0.6 + 0.4 * torch.sigmoid(far - 2)))
    images = 0.88 + 0.08 * u[:, 24:25] - red_cell[:, None] * paint(0.08, 0.34, 0.3)
    images = images * (1 - cell[:, None]) + cell[:, None] * cytoplasm
    images = images + 0.45 * (kind[:, 1] * grain)[:, None] * (paint(0.85, 0.35, 0.3) - images)
    stain = paint(0.36, 0.22, 0.55) + 0.12 * (u[:, 25:28] - 0.5)
    images = images + 0.85 * nucleus[:, None] * (stain - images)
    images = images + 0.45 * (kind[:, 2] * grain)[:, None] * (paint(0.2, 0.12, 0.4) - images)
    images = images * (0.8 + 0.3 * u[:, 28:29]) * (1 + 0.1 * (u[:, 29:32] - 0.5))
    return in_bytes(images + 0.07 * torch.randn(count, 3, 32, 32, generator=chance)), labels


SMEARS = smears(2500, 2402)
SMEAR_MEANS, SMEAR_DEVIATIONS = SMEARS[0].mean((0, 2, 3))[:, None, None], SMEARS[0].std((0, 2, 3))[:, None, None]


class Blood(nn.Module):
    """Six convolutions with ReLU, maxima between them, and three maps from all that is left."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in (12, 12, 0, 24, 24, 0, 32, 32, 0):
            if width:
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
                before = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(image), 1))


def blood() -> Subject:
    """Return a VGG for blood cells, whose pictures have mean 0 and deviation 1 in each channel."""
    data = [(SMEARS[0] - SMEAR_MEANS) / SMEAR_DEVIATIONS, SMEARS[1]]
    return trained(Blood, data, 500, 9, 2e-3, F.cross_entropy, classes_right, 32)


# --- wood: species by their grain (a Swin transformer) --------------------------------------------------------------

WOOD_MEAN, WOOD_DEVIATION = 0.5, 0.16


def boards(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Oak (rings and dark pores), pine (wide rings and a knot), beech (short flecks), walnut (dark, with waves), maple
    (pale, with ripples across the grain), cherry (reddish and smooth, with fine lines).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 30, 1, 1, generator=chance)
    y, x = turned(u, 0)
    x = x + 1.5 * rough(count, 4, 32, chance)[:, 0]
    rings = torch.sin(x * (1.1 + 0.6 * u[:, 3]) + 6 * u[:, 4])
    wide = torch.sin(x * (0.5 + 0.3 * u[:, 5]) + 6 * u[:, 6])
    waves = torch.sin(x * (0.6 + 0.4 * u[:, 7]) + 2.2 * torch.sin(y * (0.25 + 0.15 * u[:, 8])) + 6 * u[:, 9])
    ripples = torch.sin(y * (1.0 + 0.5 * u[:, 10]) + 6 * u[:, 11])
    fine = torch.sin(x * (2.1 + 0.5 * u[:, 12]) + 6 * u[:, 13])
    dots = (torch.rand(count, 32, 32, generator=chance) < 0.1).float()
    starts = (torch.rand(count, 1, 32, 32, generator=chance) < 0.025).float()
    flecks = F.max_pool2d(starts, (1, 4), 1, (0, 2))[:, 0, :, :32]
    knot = torch.exp(-((SIDE[:, None] - 32 * u[:, 14]).square() + (SIDE[None] - 32 * u[:, 15]).square()) / 14)
    relief = torch.stack(
        [
            0.08 * rings - 0.22 * dots,
            0.1 * wide - 0.35 * knot,
            -0.2 * flecks + 0.02 * rings,
            0.09 * waves - 0.06,
            0.07 * ripples + 0.05,
            0.08 * fine,
        ]
    )[labels, torch.arange(count)]
    oak, pine, beech = paint(0.6, 0.48, 0.34), paint(0.7, 0.56, 0.38), paint(0.66, 0.5, 0.38)
    walnut, maple, cherry = paint(0.54, 0.42, 0.32), paint(0.7, 0.58, 0.44), paint(0.62, 0.43, 0.3)
    colour = torch.cat([oak, pine, beech, walnut, maple, cherry])[labels] + 0.2 * (u[:, 16:17] - 0.5)
    colour = colour + 0.16 * (u[:, 17:20] - 0.5)
    images = colour + relief[:, None] * paint(1.0, 0.9, 0.75)
    return in_bytes(images + 0.11 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class WindowAttention(nn.Module):
    """Attention within windows of 4 × 4, with a row of a table for each distance."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(0.02 * torch.randn(49, heads))
        place = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None] + 3
        self.register_buffer("relative_position_index", (apart[0] * 7 + apart[1]).flatten())
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.used_bias = True

    def forward(self, x: Tensor, shade: Tensor | None) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = q * self.scale @ k.transpose(-2, -1)
        if self.used_bias:
            bias = self.relative_position_bias_table[self.relative_position_index]
            weights = weights + bias.view(count, count, self.heads).permute(2, 0, 1)
        if shade is not None:
            windows = shade.shape[0]
            weights = weights.view(-1, windows, self.heads, count, count) + shade[:, None]
            weights = weights.view(-1, self.heads, count, count)
        return self.proj((torch.softmax(weights, -1) @ v).transpose(1, 2).reshape(batch, count, width))


class SwinBlock(nn.Module):
    """Attention within windows, which may be shifted, and two maps, each behind a norm and added."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.side, self.shift = side, shift
        self.norm1, self.attn = nn.LayerNorm(width), WindowAttention(width, heads)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.act: nn.Module = nn.GELU()
        self.shade: Tensor | None
        self.register_buffer("shade", self.shading() if shift else None)

    def shading(self) -> Tensor:
        """Return what keeps parts of windows apart that were not side by side."""
        part = torch.zeros(self.side)
        part[self.side - 4 :] = 1
        part[self.side - self.shift :] = 2
        parts = 3 * part[:, None] + part[None]
        windows = parts.view(self.side // 4, 4, self.side // 4, 4).transpose(1, 2).reshape(-1, 16)
        return torch.where(windows[:, None] == windows[:, :, None], 0.0, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        many = self.side // 4
        y = self.norm1(x).view(batch, self.side, self.side, width)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, many, 4, many, 4, width).transpose(2, 3).reshape(-1, 16, width)
        y = self.attn(y, self.shade)
        y = y.view(batch, many, many, 4, 4, width).transpose(2, 3).reshape(batch, self.side, self.side, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y.reshape(batch, self.side * self.side, width)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class PatchMerging(nn.Module):
    """Four neighbours become one, behind a norm."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side, self.norm = side, nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        half = self.side // 2
        x = x.view(batch, half, 2, half, 2, width).permute(0, 1, 3, 4, 2, 5).reshape(batch, half * half, 4 * width)
        return self.reduction(self.norm(x))


class Wood(nn.Module):
    """Patches of 4 × 4, two blocks, a merging, two blocks, a norm, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed, self.patch_norm = nn.Conv2d(3, 24, 4, 4), nn.LayerNorm(24)
        self.blocks1 = nn.Sequential(SwinBlock(24, 3, 8, 0), SwinBlock(24, 3, 8, 2))
        self.merge = PatchMerging(24, 8)
        self.blocks2 = nn.Sequential(SwinBlock(48, 4, 4, 0), SwinBlock(48, 4, 4, 0))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_norm(self.patch_embed(image).flatten(2).transpose(1, 2))
        x = self.blocks2(self.merge(self.blocks1(x)))
        return self.head(self.norm(x).mean(1))


def wood() -> Subject:
    """Return a Swin transformer for woods, whose pictures have about mean 0 and deviation 1."""
    images, labels = boards(2900, 2403)
    data = [(images - WOOD_MEAN) / WOOD_DEVIATION, labels]
    return trained(Wood, data, 500, 12, 4e-3, F.cross_entropy, classes_right, 33, decay=0.05)


# --- sleep: stages of sleep (TinySleepNet: convolutions for each epoch, an LSTM over epochs) ------------------------

EPOCHS, SAMPLES = 8, 96
MICROVOLTS = 25.0
RATE = 32.0


def nights(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return µV of eight epochs of two channels (EEG, EOG), and for each epoch one of five stages.

    Awake (alpha, blinks), N1 (theta, slow rolling of eyes), N2 (spindles, K-complexes), N3 (large slow waves), REM
    (theta as in N1, quick movements of eyes in some epochs).
    """
    chance = generator(seed)
    moves = torch.tensor(
        [
            [0.70, 0.28, 0.02, 0.0, 0.0],
            [0.12, 0.38, 0.50, 0.0, 0.0],
            [0.03, 0.02, 0.70, 0.15, 0.10],
            [0.02, 0.0, 0.20, 0.78, 0.0],
            [0.08, 0.0, 0.07, 0.0, 0.85],
        ]
    )
    stage = torch.randint(5, (count,), generator=chance)
    stages = []
    for _ in range(EPOCHS):
        stages.append(stage)
        stage = torch.multinomial(moves[stage], 1, generator=chance)[:, 0]
    labels = torch.stack(stages, 1)
    t = torch.arange(float(SAMPLES)) / RATE
    u = torch.rand(count, EPOCHS, 24, 1, generator=chance)
    person = torch.rand(count, 1, 3, 1, generator=chance)

    def tone(least: float, most: float, k: int) -> Tensor:
        """Return a wave of a frequency between two."""
        return torch.sin(2 * math.pi * (t * (least + (most - least) * u[:, :, k]) + u[:, :, k + 1]))

    def burst(k: int, last: float) -> Tensor:
        """Return where something happens that lasts so many seconds."""
        return torch.exp(-((t - 0.3 - 2.4 * u[:, :, k]) / last).square())

    noise = torch.randn(count, EPOCHS, 2, SAMPLES, generator=chance)
    alpha, theta, slow = tone(8, 11.5, 0), tone(4, 7, 2), tone(0.8, 1.8, 4)
    spindle = tone(12, 14, 6) * burst(8, 0.35)
    complex_ = -burst(9, 0.12) + 0.6 * torch.exp(-((t - 0.65 - 2.4 * u[:, :, 9]) / 0.2).square())
    quick = torch.tanh(8 * tone(0.7, 1.6, 10)) * burst(12, 0.8) * (u[:, :, 13] > 0.4)
    rolling, blink = tone(0.3, 0.5, 14), burst(16, 0.12)
    eeg = torch.stack(
        [
            18 * alpha * (0.5 + u[:, :, 17]) + 3 * theta,
            11 * theta + 5 * alpha * u[:, :, 18],
            9 * theta + 20 * spindle * (u[:, :, 19] > 0.25) + 40 * complex_ * (u[:, :, 20] > 0.35) + 6 * slow,
            (34 + 26 * u[:, :, 21]) * slow + 6 * theta,
            11 * theta + 4 * alpha * u[:, :, 18],
        ]
    )
    eog = torch.stack([50 * blink * (u[:, :, 22] > 0.4), 22 * rolling, 5 * rolling, 0.5 * eeg[3], 30 * quick])
    pick = F.one_hot(labels, 5).float().permute(2, 0, 1)[..., None]
    both = torch.stack([(eeg * pick).sum(0), (eog * pick).sum(0)], 2)
    return (0.7 + 0.6 * person[:, :, :1]) * both + torch.tensor([17.0, 20.0])[:, None] * noise, labels


class Sleep(nn.Module):
    """Convolutions for each epoch, the mean and the maximum of each, an LSTM over epochs, and a stage for each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.pool1 = nn.Conv1d(2, 16, 9, 2, 4, bias=False), nn.BatchNorm1d(16), nn.MaxPool1d(2)
        self.conv2, self.bn2 = nn.Conv1d(16, 24, 5, 1, 2, bias=False), nn.BatchNorm1d(24)
        self.conv3, self.bn3, self.pool2 = nn.Conv1d(24, 32, 5, 1, 2, bias=False), nn.BatchNorm1d(32), nn.MaxPool1d(4)
        self.relu, self.drop = nn.ReLU(), nn.Dropout(0.1)
        self.lstm, self.fc = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 5)

    def forward(self, signals: Tensor) -> Tensor:
        batch = signals.shape[0]
        x = signals.reshape(batch * EPOCHS, 2, SAMPLES)
        x = self.pool1(self.relu(self.bn1(self.conv1(x))))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.pool2(self.relu(self.bn3(self.conv3(x)))).mean(2)
        states, _ = self.lstm(self.drop(x).view(batch, EPOCHS, 32))
        return self.fc(states).transpose(1, 2)


def sleep() -> Subject:
    """Return a network for nights, whose signals are divided by one number."""
    signals, labels = nights(1500, 2404)
    return trained(Sleep, [signals / MICROVOLTS, labels], 300, 10, 8e-3, F.cross_entropy, classes_right, 34)


# --- speaker: who speaks (an ECAPA-TDNN with attentive statistics) --------------------------------------------------

BANDS, FRAMES, SPEAKERS = 24, 40, 8


def utterances(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return logarithms of energies of 24 bands in 40 frames, and which of eight people speaks.

    Each has a pitch, a length of the throat that moves formants, a tilt of the spectrum, and a speed.
    """
    world, chance = generator(24050), generator(seed)
    throat, pitch = 0.9 + 0.2 * torch.rand(SPEAKERS, generator=world), 2.2 + 2.6 * torch.rand(SPEAKERS, generator=world)
    tilt, speed = 0.05 + 0.1 * torch.rand(SPEAKERS, generator=world), 0.5 + 0.8 * torch.rand(SPEAKERS, generator=world)
    labels = torch.randint(SPEAKERS, (count,), generator=chance)
    u = torch.rand(count, 12, 1, generator=chance)
    vowels = torch.tensor([[5.0, 10.0], [4.0, 15.0], [6.5, 12.0], [3.5, 8.0], [4.5, 17.0], [5.5, 9.0]])
    frames = torch.arange(float(FRAMES))
    step = (frames * speed[labels][:, None] / 4 + 6 * u[:, 0]).long() % 6
    said = torch.randint(6, (count, 6), generator=chance).gather(1, step)
    formants = vowels[said] * throat[labels][:, None, None] + 0.3 * torch.randn(count, FRAMES, 2, generator=chance)
    band = torch.arange(float(BANDS))
    found = torch.zeros(count, FRAMES, BANDS)
    for k, (wide, loud) in enumerate(((1.6, 3.0), (2.0, 2.2))):
        found = found + loud * torch.exp(-((band - formants[:, :, k, None]) / wide).square())
    tone = pitch[labels][:, None] * (1 + 0.05 * torch.sin(frames / 5 + 6 * u[:, 1]))
    voiced = (torch.rand(count, FRAMES, generator=chance) > 0.2).float()
    harmonics = 0.5 + 0.5 * torch.cos(2 * math.pi * band / tone[:, :, None])
    found = found + 1.1 * voiced[:, :, None] * harmonics * torch.exp(-band / 12)
    found = found - tilt[labels][:, None, None] * band * (0.8 + 0.4 * u[:, 2:3])
    loudness = 1.2 * torch.sin(frames / (5 + 4 * u[:, 3]) + 6 * u[:, 4])
    found = found + loudness[:, :, None] + 3 * (u[:, 5:6] - 0.5) + 0.6 * torch.randn(found.shape, generator=chance)
    return (found - 6.0).transpose(1, 2).contiguous(), labels


UTTERANCES = utterances(2800, 2405)
BAND_MEANS, BAND_DEVIATIONS = UTTERANCES[0].mean((0, 2))[:, None], UTTERANCES[0].std((0, 2))[:, None]


class Tdnn(nn.Module):
    """A convolution over time, ReLU, and a norm behind it."""

    def __init__(self, before: int, after: int, size: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(before, after, size, 1, dilation * (size // 2), dilation)
        self.relu: nn.Module = nn.ReLU()
        self.bn = nn.BatchNorm1d(after)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.relu(self.conv(x)))


class SeRes2(nn.Module):
    """1 × 1, three of four parts filtered one after the other, 1 × 1, factors for channels; added to what came in."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1, self.tdnn2 = Tdnn(width, width, 1), Tdnn(width, width, 1)
        self.res2 = nn.ModuleList([Tdnn(width // 4, width // 4, 3, dilation) for _ in range(3)])
        self.se1, self.se2 = nn.Conv1d(width, 8, 1), nn.Conv1d(8, width, 1)
        self.act, self.gate = nn.ReLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.tdnn1(x).chunk(4, 1)
        second = self.res2[0](second)
        third = self.res2[1](third + second)
        fourth = self.res2[2](fourth + third)
        out = self.tdnn2(torch.cat([first, second, third, fourth], 1))
        factors = self.gate(self.se2(self.act(self.se1(out.mean(2, keepdim=True)))))
        return x + out * factors


class Speaker(nn.Module):
    """A first layer, three blocks whose results are joined, attentive means and deviations, a norm and a map."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = Tdnn(BANDS, 32, 5)
        self.layer2, self.layer3, self.layer4 = SeRes2(32, 1), SeRes2(32, 2), SeRes2(32, 3)
        self.mfa = Tdnn(96, 48, 1)
        self.attention1, self.tanh, self.attention2 = nn.Conv1d(48, 16, 1), nn.Tanh(), nn.Conv1d(16, 48, 1)
        self.axis, self.in_squares = 2, False
        self.asp_bn, self.fc = nn.BatchNorm1d(96), nn.Linear(96, SPEAKERS)

    def forward(self, bands: Tensor) -> Tensor:
        x1 = self.layer1(bands)
        x2 = self.layer2(x1)
        x3 = self.layer3(x2)
        x4 = self.layer4(x3)
        x = self.mfa(torch.cat([x2, x3, x4], 1))
        weights = torch.softmax(self.attention2(self.tanh(self.attention1(x))), self.axis)
        mean = (weights * x).sum(2)
        if self.in_squares:
            variance = (weights * x * x).sum(2) - mean * mean
        else:
            away = x - mean[:, :, None]
            variance = (weights * away * away).sum(2)
        deviation = (variance.clamp_min(0) + 1e-4).sqrt()
        return self.fc(self.asp_bn(torch.cat([mean, deviation], 1)))


def speaker() -> Subject:
    """Return an ECAPA-TDNN for speakers; bands have mean 0 and deviation 1."""
    data = [(UTTERANCES[0] - BAND_MEANS) / BAND_DEVIATIONS, UTTERANCES[1]]
    return trained(Speaker, data, 500, 8, 6e-3, F.cross_entropy, classes_right, 35)


# --- river: how high a river will be (a PatchTST) -------------------------------------------------------------------

PAST, AHEAD, PATCH = 96, 12, 8


def gauges(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return cm of water, mm of rain and °C of 96 hours, and cm of the next twelve hours.

    Rain reaches the gauge after some hours and runs off slowly, warm days melt snow, and a mill holds water back.
    """
    chance = generator(seed)
    total = PAST + AHEAD
    warm_up = 60
    t = torch.arange(float(total + warm_up))[None]
    u = torch.rand(count, 8, 1, generator=chance)
    storms = (torch.rand(count, total + warm_up, generator=chance) < 0.035).float()
    amount = storms * (4 + 14 * torch.rand(count, total + warm_up, generator=chance))
    shower = torch.tensor([0.2, 0.35, 0.25, 0.12, 0.08])
    rain = F.conv1d(F.pad(amount, (4, 0))[:, None], shower.flip(0)[None, None])[:, 0]
    hour = (t + 24 * u[:, 0]) % 24
    warmth = 6 + 10 * (u[:, 1] - 0.5) + 6 * torch.sin(2 * math.pi * (hour - 9) / 24)
    warmth = warmth + 1.5 * torch.sin(t / (20 + 20 * u[:, 2]) + 6 * u[:, 3])
    melt = 0.16 * (warmth - 8).clamp_min(0)
    lag = torch.arange(48.0)
    unit = (lag / 9) * torch.exp(1 - lag / 9)
    inflow = 1.15 * (0.3 + 0.7 * (warmth > 2)) * rain + melt
    water = F.conv1d(F.pad(inflow, (47, 0))[:, None], unit.flip(0)[None, None])[:, 0]
    mill = 7 * (((hour + 2) % 12) < 5).float()
    level = 110 + 60 * u[:, 4] + water * (0.8 + 0.4 * u[:, 5]) - mill + 1.5 * torch.randn(water.shape, generator=chance)
    seen = torch.stack([level, rain, warmth + 0.3 * torch.randn(level.shape, generator=chance)], 1)
    return seen[:, :, warm_up : warm_up + PAST].contiguous(), level[:, warm_up + PAST :].contiguous()


GAUGES = gauges(4300, 2406)
GAUGE_MEANS, GAUGE_DEVIATIONS = GAUGES[0].mean((0, 2))[:, None], GAUGES[0].std((0, 2))[:, None]


class TimeLayer(nn.Module):
    """Attention and two maps; behind each sum a batch norm over the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1 = nn.BatchNorm1d(width)
        self.linear1, self.linear2, self.norm2 = nn.Linear(width, 64), nn.Linear(64, width), nn.BatchNorm1d(width)
        self.act: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            part(x).view(batch, count, self.heads, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale, -1)
        seen = self.out_proj((weights @ v).transpose(1, 2).reshape(batch, count, width))
        x = self.norm1((x + seen).transpose(1, 2)).transpose(1, 2)
        x = x + self.linear2(self.act(self.linear1(x)))
        return self.norm2(x.transpose(1, 2)).transpose(1, 2)


class River(nn.Module):
    """Patches of eight hours, rows for their places, two layers, and a map to what is added to the last level."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(3 * PATCH, 32), nn.Parameter(0.02 * torch.randn(PAST // PATCH, 32))
        self.layers = nn.ModuleList([TimeLayer(32, 4), TimeLayer(32, 4)])
        self.drop, self.head = nn.Dropout(0.05), nn.Linear(32 * PAST // PATCH, AHEAD)
        self.from_last = True

    def forward(self, past: Tensor) -> Tensor:
        batch = past.shape[0]
        x = past.reshape(batch, 3, PAST // PATCH, PATCH).transpose(1, 2).reshape(batch, PAST // PATCH, 3 * PATCH)
        x = self.embed(x) + self.position
        for layer in self.layers:
            x = layer(x)
        ahead = self.head(self.drop(x.flatten(1)))
        return ahead + past[:, 0, -1:] if self.from_last else ahead


def river() -> Subject:
    """Return a PatchTST for rivers; what is seen and what is answered have mean 0 and deviation 1."""
    ahead = (GAUGES[1] - GAUGE_MEANS[0]) / GAUGE_DEVIATIONS[0]
    data = [(GAUGES[0] - GAUGE_MEANS) / GAUGE_DEVIATIONS, ahead]
    subject = trained(River, data, 500, 12, 4e-3, F.mse_loss, explained, 36)
    subject.options["metric"] = explained
    return subject


# --- basket: what is put into a basket (a deep interest network) ----------------------------------------------------

GOODS, SHELVES, KEPT, KINDS_OF_PEOPLE = 96, 8, 10, 5


def baskets(count: int, seed: int) -> Arrays:
    """Return an article, ten articles bought before (0 is none), the kind of customer, facts, and yes or no.

    Facts are the price against its usual one, the hour and how many articles lie in the basket.
    """
    world, chance = generator(24060), generator(seed)
    shelf = torch.randint(SHELVES, (GOODS,), generator=world)
    taste = torch.randn(GOODS, 3, generator=world)
    goes_with = torch.randn(SHELVES, SHELVES, generator=world)
    person_likes = torch.randn(KINDS_OF_PEOPLE, SHELVES, generator=world)
    item = torch.randint(1, GOODS, (count,), generator=chance)
    person = torch.randint(KINDS_OF_PEOPLE, (count,), generator=chance)
    before = torch.randint(1, GOODS, (count, KEPT), generator=chance)
    alike = torch.rand(count, KEPT, generator=chance) < 0.2
    before = torch.where(alike, item[:, None], before)
    kept = torch.randint(2, KEPT + 1, (count, 1), generator=chance)
    before = torch.where(torch.arange(KEPT) < kept, before, 0)
    facts = torch.randn(count, 3, generator=chance)
    there = (before > 0).float()
    near = (taste[before] * taste[item][:, None]).sum(2) / 3 + goes_with[shelf[before], shelf[item][:, None]]
    wish = 1.3 * (near * there).sum(1) / there.sum(1).sqrt() + 0.9 * person_likes[person, shelf[item]]
    wish = wish - 0.9 * facts[:, 0] + 0.5 * facts[:, 1] * facts[:, 2]
    wish = wish + 0.25 * torch.randn(count, generator=chance)
    return [item, before, person, facts, (wish > wish.median()).float()[:, None]]


class Basket(nn.Module):
    """Rows of articles, a weight for each of the past from two maps, their sum, and three maps to a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.goods, self.people = nn.Embedding(GOODS, 16, padding_idx=0), nn.Embedding(KINDS_OF_PEOPLE, 6)
        self.att1, self.att_act, self.att2 = nn.Linear(64, 24), nn.PReLU(), nn.Linear(24, 1)
        self.fc1, self.bn1, self.act1 = nn.Linear(16 * 3 + 6 + 3, 48), nn.BatchNorm1d(48), nn.PReLU(48)
        self.fc2, self.bn2, self.act2 = nn.Linear(48, 24), nn.BatchNorm1d(24), nn.PReLU(24)
        self.out = nn.Linear(24, 1)
        self.asked_first = True

    def forward(self, item: Tensor, before: Tensor, person: Tensor, facts: Tensor) -> Tensor:
        one, past = self.goods(item), self.goods(before)
        asked = one[:, None].expand(-1, KEPT, -1)
        apart = asked - past if self.asked_first else past - asked
        both = torch.cat([asked, past, apart, asked * past], 2)
        weights = self.att2(self.att_act(self.att1(both))) * (before > 0).float()[:, :, None]
        interest = (weights * past).sum(1)
        x = torch.cat([one, interest, one * interest, self.people(person), facts], 1)
        x = self.act1(self.bn1(self.fc1(x)))
        return self.out(self.act2(self.bn2(self.fc2(x))))


def basket() -> Subject:
    """Return a deep interest network for baskets."""
    return trained(Basket, baskets(20600, 2407), 600, 12, 6e-3, yes_or_no, signs_right, 37)


# --- scan: small scans made large (an EDSR with a shuffle of pixels) ------------------------------------------------

SCAN_MEANS = (0.78, 0.76, 0.70)


def pages(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 12 × 12 between 0 and 1, and the same of 24 × 24: strokes of ink on paper, stamps, shades."""
    chance = generator(seed)
    side = torch.arange(48.0) / 2
    y, x = side[:, None].expand(48, 48)[None], side[None].expand(48, 48)[None]
    u = torch.rand(count, 60, 1, 1, generator=chance)
    ink = torch.zeros(count, 48, 48)
    for k in range(0, 25, 5):
        y0, x0, angle, half = 24 * u[:, k], 24 * u[:, k + 1], math.pi * u[:, k + 2], 2 + 7 * u[:, k + 3]
        along = (y - y0) * angle.sin() + (x - x0) * angle.cos()
        aside = (x - x0) * angle.sin() - (y - y0) * angle.cos()
        ink = torch.maximum(ink, ((along.abs() < half) & (aside.abs() < 0.5 + 0.5 * u[:, k + 4])).float())
    for k in range(25, 35, 5):
        far = ((y - 24 * u[:, k]).square() + (x - 24 * u[:, k + 1]).square()).sqrt()
        ink = torch.maximum(ink, ((far - 2.5 - 3 * u[:, k + 2]).abs() < 0.5 + 0.4 * u[:, k + 3]).float())
    far = ((y - 24 * u[:, 36]).square() + (x - 24 * u[:, 37]).square()).sqrt()
    stamp = (far < 3 + 3 * u[:, 38]).float()[:, None] * (u[:, 39:40] > 0.4)
    paper = paint(0.95, 0.92, 0.85) * (0.85 + 0.15 * u[:, 40:41]) - 0.1 * u[:, 41:42] * (x / 24)[:, None]
    pages_ = paper + 0.8 * stamp * (torch.cat([u[:, 42:43], u[:, 43:44], u[:, 44:45]], 1) * 0.8 - paper)
    pages_ = pages_ + 0.9 * ink[:, None] * (0.25 * u[:, 45:48] - pages_)
    large = F.avg_pool2d(pages_, 2)
    small = F.avg_pool2d(large, 2) + 0.01 * torch.randn(count, 3, 12, 12, generator=chance)
    return in_bytes(small), in_bytes(large)


class ResBlock(nn.Module):
    """Two convolutions without norms, a part of which is added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.relu = nn.ReLU()
        self.res_scale = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.res_scale * self.conv2(self.relu(self.conv1(x)))


class Scan(nn.Module):
    """The mean taken away, a first convolution, three blocks, a long sum, a shuffle of pixels, the mean again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(SCAN_MEANS).view(1, 3, 1, 1))
        self.head = nn.Conv2d(3, 24, 3, 1, 1)
        self.body = nn.Sequential(*[ResBlock(24) for _ in range(3)], nn.Conv2d(24, 24, 3, 1, 1))
        self.up, self.shuffle = nn.Conv2d(24, 48, 3, 1, 1), nn.PixelShuffle(2)
        self.tail = nn.Conv2d(12, 3, 3, 1, 1)
        self.long_sum = True

    def forward(self, small: Tensor) -> Tensor:
        x = self.head(small - self.mean)
        deep = self.body(x)
        x = self.shuffle(self.up(x + deep if self.long_sum else deep))
        return self.tail(x) + self.mean


def scan() -> Subject:
    """Return an EDSR for scans, whose pictures lie between 0 and 1."""
    subject = trained(Scan, list(pages(1700, 2408)), 300, 18, 5e-3, F.mse_loss, explained, 38)
    subject.options["metric"] = explained
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "seed": seed,
    "blood": blood,
    "wood": wood,
    "sleep": sleep,
    "speaker": speaker,
    "river": river,
    "basket": basket,
    "scan": scan,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
