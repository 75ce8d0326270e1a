"""Eight small networks of further families, trained on the spot: points, lines, series, tables, scenes and sounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.diagnose.doctor.blind_networks_tenth import (
    Subject,
    classes_right,
    generator,
    signs_right,
    trained,
    variance_explained,
)
from torch import Tensor, nn

# --- scores ---------------------------------------------------------------------------------------------------------


def digits_read(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of digits of lines that are read right, blanks between them apart."""
    return (outputs.argmax(-1) == labels)[labels < BLANK].float().mean().item()


def centres_found(outputs: Tensor, labels: Tensor) -> float:
    """Return F1 of the peaks of heat maps that lie above zero, where labels are 1 at the centres."""
    peaks = (outputs > 0) & (outputs == F.max_pool2d(outputs, 3, 1, 1))
    there = labels == 1
    both = (peaks & there).sum().item()
    return 2 * both / max(1, peaks.sum().item() + there.sum().item())


# --- points: a network of clouds of points (PointNet) ---------------------------------------------------------------

POINTS = 64


def cloud(kind: int, chance: torch.Generator) -> Tensor:
    """Return points of a shape's surface: sphere, box, cylinder, cone, ring or plate, turned about its axis."""
    a, b, c = torch.rand(3, POINTS, generator=chance)
    turn = 2 * math.pi * a
    if kind == 0:
        z = 2 * b - 1
        r = (1 - z * z).sqrt()
        points = torch.stack([r * turn.cos(), r * turn.sin(), z])
    elif kind == 1:
        points = torch.stack([2 * a - 1, 2 * b - 1, 2 * c - 1])
        side = torch.randint(3, (POINTS,), generator=chance)
        points[side, torch.arange(POINTS)] = points[side, torch.arange(POINTS)].sign()
    elif kind == 2:
        points = torch.stack([turn.cos() * 0.8, turn.sin() * 0.8, 2 * b - 1])
    elif kind == 3:
        points = torch.stack([turn.cos() * b, turn.sin() * b, 1 - 2 * b])
    elif kind == 4:
        r = 0.75 + 0.25 * (2 * math.pi * b).cos()
        points = torch.stack([turn.cos() * r, turn.sin() * r, 0.25 * (2 * math.pi * b).sin()])
    else:
        points = torch.stack([2 * a - 1, 2 * b - 1, 0.1 * (c - 0.5)])
    points = points * (0.75 + 0.5 * torch.rand(3, 1, generator=chance))
    angle = 2 * math.pi * torch.rand(1, generator=chance).item()
    x, y = points[0].clone(), points[1].clone()
    points[0], points[1] = math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y
    points = points + 0.04 * torch.randn(3, POINTS, generator=chance)
    points = points - points.mean(1, keepdim=True)
    return points / points.norm(dim=0).max()


class PointNet(nn.Module):
    """Layers for each point alone, the maximum over points beside each point's features, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.norm1 = nn.Conv1d(3, 32, 1, bias=False), nn.BatchNorm1d(32)
        self.local, self.norm2 = nn.Conv1d(32, 32, 1, bias=False), nn.BatchNorm1d(32)
        self.mix, self.norm3 = nn.Conv1d(64, 96, 1, bias=False), nn.BatchNorm1d(96)
        self.hidden, self.norm4 = nn.Linear(96, 48, bias=False), nn.BatchNorm1d(48)
        self.drop = nn.Dropout(0.2)
        self.classify = nn.Linear(48, 6)
        self.act: nn.Module = nn.ReLU()

    def forward(self, points: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.lift(points)))
        x = F.relu(self.norm2(self.local(x)))
        whole = x.amax(2, keepdim=True).expand(-1, -1, POINTS)
        x = self.act(self.norm3(self.mix(torch.cat([x, whole], 1)))).amax(2)
        return self.classify(self.drop(F.relu(self.norm4(self.hidden(x)))))


def points() -> Subject:
    """Return a network that tells shapes from clouds of points."""
    chance = generator(151)
    kinds = torch.randint(6, (2200,), generator=chance)
    clouds = torch.stack([cloud(int(kind), chance) for kind in kinds])
    return trained(PointNet, [clouds, kinds], 500, 20, 4e-3, F.cross_entropy, classes_right, 1)


# --- line: a reader of lines of digits (convolutions, a GRU in both directions, classes for each step) --------------

BLANK = 10
LINE_MEAN, LINE_DEVIATION = 0.305, 0.376


class LineReader(nn.Module):
    """Three convolutions that leave ten columns, a GRU over the columns, and a class for each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv3, self.norm3 = nn.Conv2d(32, 48, (2, 3), padding=(0, 1), bias=False), nn.BatchNorm2d(48)
        self.pool: nn.Module = nn.MaxPool2d(2)
        self.read = nn.GRU(48, 32, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.2)
        self.spell = nn.Linear(64, 11)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(F.leaky_relu(self.norm1(self.conv1(image)), 0.1))
        x = self.pool(F.leaky_relu(self.norm2(self.conv2(x)), 0.1))
        x = F.leaky_relu(self.norm3(self.conv3(x)), 0.1)
        steps, _ = self.read(x.squeeze(2).transpose(1, 2))
        return self.spell(self.drop(steps))


def line() -> Subject:
    """Return a reader of lines of five digits, each followed by a blank."""
    chance = generator(152)
    digits = load_digits()
    images, classes = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train = torch.randint(1400, (1500, 5), generator=chance)
    held = torch.randint(1400, len(images), (400, 5), generator=chance)
    rows = torch.cat([train, held])
    lines = images[rows].permute(0, 2, 1, 3).reshape(len(rows), 1, 8, 40)
    lines = (lines * (0.8 + 0.2 * torch.rand(len(rows), 1, 1, 1, generator=chance)) - LINE_MEAN) / LINE_DEVIATION
    labels = torch.stack([classes[rows], torch.full(rows.shape, BLANK)], 2).flatten(1)

    def loss(out: Any, wanted: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), wanted.flatten())

    subject = trained(LineReader, [lines, labels], 400, 12, 5e-3, loss, digits_read, 2)
    subject.options["metric"] = digits_read
    return subject


# --- load: a forecaster of a grid's load (N-BEATS: a trend, a season and a free stack) ------------------------------

PAST, AHEAD = 48, 12


class Stack(nn.Module):
    """Two layers, and what they explain of the past and foresee, by way of a basis."""

    def __init__(self, past: Tensor, ahead: Tensor) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(PAST, 64), nn.Linear(64, 64)
        self.theta = nn.Linear(64, 2 * len(past))
        self.terms = len(past)
        self.register_buffer("past", past)
        self.register_buffer("ahead", ahead)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        theta = self.theta(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return theta[:, : self.terms] @ self.past, theta[:, self.terms :] @ self.ahead


class Generic(nn.Module):
    """Two layers, and two more for the past and for what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(PAST, 64), nn.Linear(64, 64)
        self.back, self.fore = nn.Linear(64, PAST), nn.Linear(64, AHEAD)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        return self.back(x), self.fore(x)


class NBeats(nn.Module):
    """Three stacks, each of which gets what those before left unexplained."""

    def __init__(self) -> None:
        super().__init__()
        hours = torch.arange(PAST + AHEAD, dtype=torch.float32) / PAST
        trend = torch.stack([hours**power for power in range(3)])
        turns = [2 * math.pi * k * hours * PAST / 24 for k in range(1, 5)]
        season = torch.stack([wave for turn in turns for wave in (turn.cos(), turn.sin())])
        self.trend = Stack(trend[:, :PAST], trend[:, PAST:])
        self.season = Stack(season[:, :PAST], season[:, PAST:])
        self.free1, self.free2 = Generic(), Generic()
        self.eps = 1e-5

    def forward(self, series: Tensor) -> Tensor:
        mean = series.mean(1, keepdim=True)
        deviation = ((series - mean).square().mean(1, keepdim=True) + self.eps).sqrt()
        rest = (series - mean) / deviation
        back, total = self.trend(rest)
        rest = rest - back
        back, more = self.season(rest)
        rest, total = rest - back, total + more
        back, more = self.free1(rest)
        rest, total = rest - back, total + more
        _, more = self.free2(rest)
        return (total + more) * deviation + mean


def load_series(count: int, chance: torch.Generator) -> Tensor:
    """Return series of hourly load, in standard units: a level, a slope, a day, a second peak and noise."""
    hours = torch.arange(PAST + AHEAD, dtype=torch.float32)
    phase = 2 * math.pi * torch.rand(count, 1, generator=chance)
    turn = 2 * math.pi * hours / 24 + phase
    day = torch.sin(turn) + (0.3 + 0.4 * torch.rand(count, 1, generator=chance)) * torch.sin(2 * turn + 0.7)
    day = day * (0.5 + torch.rand(count, 1, generator=chance)) + 0.3 * torch.relu(torch.sin(turn - 1.2)) ** 2
    level, slope = torch.randn(2, count, 1, generator=chance)
    noise = 0.12 * torch.randn(count, PAST + AHEAD, generator=chance)
    return 0.8 * level + 0.5 * slope * (hours - PAST) / PAST + day + noise


def load() -> Subject:
    """Return a forecaster of the next twelve hours from two days."""
    series = load_series(3500, generator(153))
    data = [series[:, :PAST].contiguous(), series[:, PAST:].contiguous()]
    subject = trained(NBeats, data, 500, 25, 3e-3, F.mse_loss, variance_explained, 3)
    subject.options["metric"] = variance_explained
    return subject


# --- ads: clicks from numbers and categories (cross layers, a factorization machine and experts) --------------------

VOCABULARIES = (24, 16, 10, 7)
NUMBERS = 6
EMBEDDED = 8


class Cross(nn.Module):
    """A cross layer: the first input times a linear form of the present one, added to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.form = nn.Linear(width, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.form(x) + x


class Experts(nn.Module):
    """Experts whose answers are weighted by a gate."""

    def __init__(self, width: int, out: int, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, out)) for _ in range(count)
        )
        self.gate = nn.Linear(width, count)
        self.axis = 1

    def forward(self, x: Tensor) -> Tensor:
        share = torch.softmax(self.gate(x), self.axis)
        return (torch.stack([expert(x) for expert in self.experts], 2) * share[:, None, :]).sum(2)


class Clicks(nn.Module):
    """Embeddings beside normalized numbers, in two cross layers, a factorization machine and experts."""

    def __init__(self) -> None:
        super().__init__()
        width = NUMBERS + EMBEDDED * len(VOCABULARIES)
        self.tables = nn.ModuleList(nn.Embedding(size, EMBEDDED) for size in VOCABULARIES)
        self.biases = nn.ModuleList(nn.Embedding(size, 1) for size in VOCABULARIES)
        self.norm = nn.BatchNorm1d(NUMBERS)
        self.cross1, self.cross2 = Cross(width), Cross(width)
        self.experts = Experts(width, 16, 4)
        self.decide = nn.Linear(width + 16, 1)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.3)
        for table in self.biases:
            nn.init.zeros_(table.weight)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        fields = torch.stack(rows, 1)
        pairs = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(1, keepdim=True)
        linear = torch.stack([table(ids[:, i]) for i, table in enumerate(self.biases)], 1).sum(1)
        first = torch.cat([self.norm(numbers), *rows], 1)
        crossed = self.cross2(first, self.cross1(first, first))
        return (self.decide(torch.cat([crossed, self.experts(first)], 1)) + linear + pairs).squeeze(1)


def ads() -> Subject:
    """Return a network that foretells clicks."""
    chance = generator(154)
    count = 7000
    ids = torch.stack([torch.randint(size, (count,), generator=chance) for size in VOCABULARIES], 1)
    vectors = [torch.randn(size, 3, generator=chance) for size in VOCABULARIES]
    fields = torch.stack([vector[ids[:, i]] for i, vector in enumerate(vectors)], 1)
    scales = torch.tensor([1.0, 40.0, 0.2, 5.0, 300.0, 2.0])
    offsets = torch.tensor([0.0, 35.0, 0.5, 0.0, 1000.0, -1.0])
    plain = torch.randn(count, NUMBERS, generator=chance)
    logit = (fields[:, 0] * fields[:, 1]).sum(1) + 0.7 * (fields[:, 2] * fields[:, 3]).sum(1)
    logit = logit + 1.8 * plain[:, 0] - 1.5 * plain[:, 1] * plain[:, 2].sign()
    logit = logit + 1.2 * plain[:, 3].abs() - plain[:, 4] - 0.9
    data = [plain * scales + offsets, ids, (logit > 0).float()]
    subject = trained(Clicks, data, 800, 16, 5e-3, F.binary_cross_entropy_with_logits, signs_right, 4)
    subject.options["metric"] = signs_right
    return subject


# --- cells: a detector of centres in heat maps (features at three scales, joined from the top down) ------------------

CELL_MEANS = torch.tensor([0.45, 0.35, 0.30]).view(3, 1, 1)
CELL_DEVIATIONS = torch.tensor([0.21, 0.17, 0.19]).view(3, 1, 1)


def slide(chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return an image of one to four cells, round and purple or ringed and green, and their centres at half size."""
    image = torch.tensor([0.42, 0.33, 0.28]).view(3, 1, 1).expand(3, 24, 24).clone()
    heat = torch.zeros(2, 12, 12)
    grid = torch.arange(24.0)
    taken: list[tuple[int, int]] = []
    for _ in range(int(torch.randint(1, 5, (1,), generator=chance))):
        i, j = (int(k) for k in torch.randint(2, 10, (2,), generator=chance))
        if any(abs(i - a) + abs(j - b) < 5 for a, b in taken):
            continue
        taken.append((i, j))
        kind = int(torch.randint(2, (1,), generator=chance))
        y, x = grid[:, None] - 2 * i - 0.5, grid[None] - 2 * j - 0.5
        far = (x * x + y * y).sqrt()
        radius = 2.2 + 1.0 * torch.rand(1, generator=chance).item()
        form = (far < radius) if kind == 0 else ((far < radius + 0.8) & (far > radius - 0.9))
        colour = torch.tensor([0.75, 0.3, 0.7] if kind == 0 else [0.4, 0.75, 0.35])
        colour = colour + 0.08 * torch.randn(3, generator=chance)
        image = torch.where(form, colour.view(3, 1, 1), image)
        near = torch.exp(-((grid[:12, None] - i) ** 2 + (grid[None, :12] - j) ** 2) / 1.0)
        heat[kind] = torch.maximum(heat[kind], near)
    image = image * (0.85 + 0.3 * torch.rand(1, generator=chance)) + 0.05 * torch.randn(3, 24, 24, generator=chance)
    return (image.clamp(0, 1) - CELL_MEANS) / CELL_DEVIATIONS, heat


class Level(nn.Module):
    """A convolution with stride two, a norm and a SiLU."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.act: nn.Module = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Centres(nn.Module):
    """Three levels, joined from the top down, and heat maps at half size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Level(3, 12, 1)
        self.level1, self.level2, self.level3 = Level(12, 24, 2), Level(24, 32, 2), Level(32, 40, 2)
        self.lateral1, self.lateral2, self.lateral3 = nn.Conv2d(24, 24, 1), nn.Conv2d(32, 24, 1), nn.Conv2d(40, 24, 1)
        self.up: nn.Module = nn.Upsample(scale_factor=2.0, mode="nearest")
        self.smooth = Level(24, 24, 1)
        self.heat = nn.Conv2d(24, 2, 1)
        nn.init.constant_(self.heat.bias, -3.0)

    def forward(self, image: Tensor) -> Tensor:
        one = self.level1(self.stem(image))
        two = self.level2(one)
        three = self.level3(two)
        joined = self.lateral2(two) + self.up(self.lateral3(three))
        joined = self.lateral1(one) + self.up(joined)
        return self.heat(self.smooth(joined))


def heat_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the focal loss of heat maps."""
    centre = labels == 1
    share = torch.sigmoid(outputs)
    found = F.logsigmoid(outputs) * (1 - share).square() * centre
    empty = F.logsigmoid(-outputs) * share.square() * (1 - labels) ** 4 * ~centre
    return -(found + empty).sum() / centre.sum().clamp_min(1)


def cells() -> Subject:
    """Return a detector of the centres of cells of two kinds."""
    chance = generator(155)
    made = [slide(chance) for _ in range(1200)]
    data = [torch.stack([image for image, _ in made]), torch.stack([heat for _, heat in made])]
    subject = trained(Centres, data, 300, 14, 6e-3, heat_loss, centres_found, 5)
    subject.options["metric"] = centres_found
    return subject


# --- voice: speakers from sounds (a spectrum, mel filters, dilated convolutions, means and deviations) ---------------

RATE, SOUND_LENGTH, WINDOW, HOP, BINS, MELS = 4000, 1600, 128, 64, 65, 20


def mel_filters() -> Tensor:
    """Return triangular filters that are narrow for low tones."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, MELS + 2) / 2595) - 1)
    tones = torch.linspace(0, RATE / 2, BINS)
    rise = (tones[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2]).clamp_min(RATE / WINDOW)[:, None]
    fall = (edges[2:, None] - tones[None]) / (edges[2:] - edges[1:-1]).clamp_min(RATE / WINDOW)[:, None]
    filters = torch.minimum(rise, fall).clamp_min(0) + 1e-3
    return filters / filters.sum(1, keepdim=True)


def speak(pitch: float, first: float, second: float, chance: torch.Generator) -> Tensor:
    """Return a sound of a voice: tones of a pitch, loud near two resonances, syllables, and noise."""
    time = torch.arange(SOUND_LENGTH) / RATE
    bend = pitch * (1 + 0.06 * torch.randn(1, generator=chance).item())
    phase = 2 * math.pi * (bend * time + 2 * torch.sin(2 * math.pi * 3 * time) * torch.rand(1, generator=chance))
    moved = 1 + 0.05 * torch.randn(2, generator=chance)
    sound = torch.zeros(SOUND_LENGTH)
    for k in range(1, int(RATE / 2 / bend)):
        tone = k * bend
        loud = math.exp(-(((tone - first * moved[0].item()) / 150) ** 2))
        loud += 0.6 * math.exp(-(((tone - second * moved[1].item()) / 220) ** 2)) + 0.03
        sound = sound + loud * torch.sin(k * phase)
    syllables = 0.6 + 0.4 * torch.sin(2 * math.pi * 6 * time + 6 * torch.rand(1, generator=chance))
    sound = sound * syllables + 0.02 * torch.randn(SOUND_LENGTH, generator=chance)
    return sound / sound.abs().max() * (0.6 + 0.4 * torch.rand(1, generator=chance))


class Voices(nn.Module):
    """A spectrum, mel filters and logarithm, all fixed; dilated convolutions; statistics over time; an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 2 * BINS, WINDOW, HOP, bias=False)
        self.mel = nn.Conv1d(BINS, MELS, 1, bias=False)
        turn = 2 * math.pi * torch.arange(BINS)[:, None] * torch.arange(WINDOW)[None] / WINDOW
        waves = torch.cat([turn.cos(), turn.sin()]) * torch.hann_window(WINDOW) / 16
        self.spectrum.weight.data = waves[:, None].contiguous()
        self.mel.weight.data = mel_filters()[:, :, None].contiguous()
        self.spectrum.weight.requires_grad = self.mel.weight.requires_grad = False
        self.floor, self.middle, self.spread = 0.02, -2.2, 1.0
        self.conv1, self.norm1 = nn.Conv1d(MELS, 40, 5, bias=False), nn.BatchNorm1d(40)
        self.conv2, self.norm2 = nn.Conv1d(40, 40, 3, dilation=2, bias=False), nn.BatchNorm1d(40)
        self.conv3, self.norm3 = nn.Conv1d(40, 48, 1, bias=False), nn.BatchNorm1d(48)
        self.eps = 1e-4
        self.embed, self.norm4 = nn.Linear(96, 32, bias=False), nn.BatchNorm1d(32)
        self.name = nn.Linear(32, 10)

    def forward(self, sound: Tensor) -> Tensor:
        real, imaginary = self.spectrum(sound).chunk(2, 1)
        loud = (real.square() + imaginary.square() + 1e-8).sqrt()
        x = ((self.mel(loud) + self.floor).log() - self.middle) / self.spread
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        mean = x.mean(2)
        deviation = ((x - mean[:, :, None]).square().mean(2) + self.eps).sqrt()
        return self.name(F.relu(self.norm4(self.embed(torch.cat([mean, deviation], 1)))))


def voice() -> Subject:
    """Return a network that tells ten voices."""
    chance = generator(156)
    voices = [(90 + 22 * (k % 5), 350 + 70 * (k % 3), 1000 + 110 * ((7 * k) % 10)) for k in range(10)]
    kinds = torch.randint(10, (1500,), generator=chance)
    sounds = torch.stack([speak(*voices[int(kind)], chance) for kind in kinds])[:, None]
    return trained(Voices, [sounds, kinds], 350, 10, 5e-3, F.cross_entropy, classes_right, 6)


# --- graph: solubility of molecules (layers over neighbours, a mask, a sum over atoms) -------------------------------

ATOMS, KINDS = 12, 5


class Neighbours(nn.Module):
    """Each node and the sum of its neighbours, in two layers, normalized and added to the node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.out(F.gelu(self.own(normed) + self.near(torch.bmm(bonds, normed))))


class Molecule(nn.Module):
    """Three layers over neighbours, a sum over the atoms that are there, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Linear(KINDS, 32)
        self.layer1, self.layer2, self.layer3 = Neighbours(32), Neighbours(32), Neighbours(32)
        self.norm = nn.LayerNorm(32)
        self.hidden, self.answer = nn.Linear(32, 32), nn.Linear(32, 1)
        self.count = float(ATOMS)

    def forward(self, atoms: Tensor, bonds: Tensor, mask: Tensor) -> Tensor:
        x = self.atoms(atoms)
        x = self.layer3(self.layer2(self.layer1(x, bonds), bonds), bonds)
        whole = (self.norm(x) * mask[:, :, None]).sum(1) / self.count
        return self.answer(F.gelu(self.hidden(whole)))


def graph() -> Subject:
    """Return a network that foretells a number from a molecule."""
    chance = generator(157)
    count = 3600
    sizes = torch.randint(5, ATOMS + 1, (count,), generator=chance)
    mask = (torch.arange(ATOMS)[None] < sizes[:, None]).float()
    shares = torch.tensor([0.45, 0.2, 0.15, 0.12, 0.08])
    kinds = torch.multinomial(shares, count * ATOMS, True, generator=chance).view(count, ATOMS)
    atoms = F.one_hot(kinds, KINDS).float() * mask[:, :, None]
    bonds = torch.zeros(count, ATOMS, ATOMS)
    rows = torch.arange(count)
    for i in range(1, ATOMS):
        other = (torch.rand(count, generator=chance) * i).long()
        bonds[rows, i, other] = bonds[rows, other, i] = mask[:, i]
        if i > 2:
            other = (torch.rand(count, generator=chance) * i).long()
            more = mask[:, i] * (torch.rand(count, generator=chance) < 0.25)
            bonds[rows, i, other] = bonds[rows, other, i] = torch.maximum(bonds[rows, i, other], more)
    own = torch.tensor([0.3, -0.8, -1.1, 0.6, 0.1])
    pairs = torch.randn(KINDS, KINDS, generator=chance) * 0.6
    pairs = (pairs + pairs.T) / 2
    value = (atoms @ own).sum(1) + (torch.einsum("bik,kl,bjl->bij", atoms, pairs, atoms) * bonds).sum((1, 2)) / 2
    value = value - 0.15 * torch.relu(bonds.sum(2) - 2).sum(1)
    value = ((value - value.mean()) / value.std() + 0.05 * torch.randn(count, generator=chance))[:, None]
    data = [atoms, bonds, mask, value]
    subject = trained(Molecule, data, 500, 21, 4e-3, F.mse_loss, variance_explained, 7)
    subject.options["metric"] = variance_explained
    return subject


# --- query: digits read by learned queries (a Perceiver) -------------------------------------------------------------

PIXELS, WIDTH, HEADS, QUERIES = 64, 32, 4, 8


class Attend(nn.Module):
    """Attention of some tokens to others, added to them, and a layer in between, added as well."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_to, self.norm_from, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.factor = (width // HEADS) ** -0.5
        self.axis = -1

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        source = self.norm_from(source)
        query = self.query(self.norm_to(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key = self.key(source).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        value = self.value(source).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        share = torch.softmax(query @ key.transpose(-2, -1) * self.factor, self.axis)
        x = x + self.out((share @ value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_out(x))))


class Perceiver(nn.Module):
    """Pixels with places, read by queries twice, which attend to each other in between."""

    def __init__(self) -> None:
        super().__init__()
        grid = torch.linspace(-1, 1, 8)
        y, x = torch.meshgrid(grid, grid, indexing="ij")
        waves = [part for k in (1, 2, 4) for c in (x, y) for part in ((k * math.pi * c).sin(), (k * math.pi * c).cos())]
        self.register_buffer("places", torch.stack([x, y, *waves], -1).flatten(0, 1))
        self.pixel, self.place = nn.Linear(1, WIDTH), nn.Linear(14, WIDTH, bias=False)
        self.queries = nn.Parameter(torch.randn(1, QUERIES, WIDTH) * 0.5)
        self.read1, self.think1 = Attend(WIDTH), Attend(WIDTH)
        self.read2, self.think2 = Attend(WIDTH), Attend(WIDTH)
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = F.gelu(self.pixel(pixels) + self.place(self.places))
        x = self.queries.expand(pixels.shape[0], -1, -1)
        x = self.read1(x, tokens)
        x = self.think1(x, x)
        x = self.read2(x, tokens)
        x = self.think2(x, x)
        return self.classify(self.norm(x).mean(1))


PIXEL_MEAN, PIXEL_DEVIATION = 0.305, 0.376


def query() -> Subject:
    """Return a reader of digits by queries."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=generator(158))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    pixels = ((images - PIXEL_MEAN) / PIXEL_DEVIATION)[:, :, None].contiguous()
    data = [pixels, torch.tensor(digits.target)[order]]
    return trained(Perceiver, data, 400, 16, 4e-3, F.cross_entropy, classes_right, 8)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "points": points,
    "line": line,
    "load": load,
    "ads": ads,
    "cells": cells,
    "voice": voice,
    "graph": graph,
    "query": query,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
