"""Eight small networks of further trades, trained on the spot: gestures, shapes, roads, numerals, organs and more."""

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
    generator,
    trained,
    variance_explained,
    words_right,
)
from torch import Tensor, nn

# --- scores ---------------------------------------------------------------------------------------------------------


def overlap(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean over both organs of their Dice coefficient."""
    said = outputs.argmax(1)
    parts = []
    for kind in (1, 2):
        one, other = said == kind, labels == kind
        parts.append(2 * (one & other).sum().item() / max(1, one.sum().item() + other.sum().item()))
    return sum(parts) / len(parts)


def joints_near(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of joints that are told to within a pixel and a half."""
    off = (outputs - labels).unflatten(1, (JOINTS, 2)).square().sum(2).sqrt()
    return (off < 1.5 * 2 / SIDE).float().mean().item()


def both_tasks(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean of R² of the demand and of the share of right states."""
    demand = (1 - (outputs[:, 0] - labels[:, 0]).square().mean() / labels[:, 0].var()).clamp(0, 1)
    return (0.5 * demand + 0.5 * (outputs[:, 1:].argmax(1) == labels[:, 1].long()).float().mean()).item()


# --- gesture: gestures of a wrist (a causal convolutional network with gaps) -----------------------------------------

STEPS, GESTURES = 48, 8
MOTION_MEANS = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])[:, None]
MOTION_DEVIATIONS = torch.tensor([0.55, 0.55, 0.6, 80.0, 80.0, 95.0])[:, None]


def gestures(count: int, seed: int) -> Arrays:
    """Return accelerations in g and turns in degrees a second, normalized, and one of eight gestures."""
    chance = generator(seed)
    kinds = torch.randint(GESTURES, (count,), generator=chance)
    u = torch.rand(count, 12, 1, generator=chance)
    time = torch.arange(float(STEPS))
    at = (time - 24 - 10 * (u[:, 0] - 0.5)) / (4.5 + 3.5 * u[:, 1])
    hill = torch.exp(-at.square())
    push = 2 * at * hill
    size = 0.7 + 0.7 * u[:, 2]
    wave, other = (
        torch.sin(1.9 * at) * torch.exp(-(at.square().square()) / 8),
        torch.cos(1.9 * at) * torch.exp(-(at.square().square()) / 8),
    )
    shake = torch.sin(4.5 * at) * hill.sqrt()
    none = torch.zeros_like(hill)
    forms = torch.stack(
        [
            torch.stack([push, none, none, none, none, 0.8 * hill], 1),
            torch.stack([-push, none, none, none, none, -0.8 * hill], 1),
            torch.stack([none, none, push, none, 0.8 * hill, none], 1),
            torch.stack([none, none, -push, none, -0.8 * hill, none], 1),
            torch.stack([wave, other, none, none, none, 0.3 * hill], 1),
            torch.stack([wave, -other, none, none, none, -0.3 * hill], 1),
            torch.stack([shake, none, 0.4 * shake, none, none, 0.5 * shake], 1),
            torch.stack([none, 0.3 * push, none, 1.2 * hill, none, none], 1),
        ],
        1,
    )
    moved = forms[torch.arange(count), kinds] * size[:, None] * 1.6
    tilt = 0.5 * (u[:, 3:9] - 0.5) * torch.tensor([1.0, 1.0, 0.4, 0.3, 0.3, 0.3])[:, None]
    wander = 0.5 * torch.sin(2 * math.pi * (time / (30 + 40 * u[:, 9:10]) + u[:, 10:11])) * (u[:, 3:9] - 0.5)
    noise = 0.75 * torch.randn(count, 6, STEPS, generator=chance)
    raw = (moved + tilt + wander + noise) * MOTION_DEVIATIONS + MOTION_MEANS
    return [(raw - MOTION_MEANS) / MOTION_DEVIATIONS, kinds]


class Causal(nn.Module):
    """Two convolutions with gaps that see the past alone, with norms, added to what came in."""

    def __init__(self, before: int, after: int, gap: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(before, after, 3, dilation=gap, bias=False), nn.BatchNorm1d(after)
        self.conv2, self.norm2 = nn.Conv1d(after, after, 3, dilation=gap, bias=False), nn.BatchNorm1d(after)
        self.match: nn.Module = nn.Identity() if before == after else nn.Conv1d(before, after, 1)
        self.act: nn.Module = nn.ReLU()
        self.past = 2 * gap

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(F.pad(x, (self.past, 0)))))
        y = self.norm2(self.conv2(F.pad(y, (self.past, 0))))
        return self.act(y + self.match(x))


class Gesture(nn.Module):
    """Four causal blocks, the last step, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.block1, self.block2 = Causal(6, 20, 1), Causal(20, 20, 2)
        self.block3, self.block4 = Causal(20, 28, 4), Causal(28, 28, 8)
        self.hidden, self.drop, self.kind = nn.Linear(28, 24), nn.Dropout(0.1), nn.Linear(24, GESTURES)

    def forward(self, motion: Tensor) -> Tensor:
        x = self.block4(self.block3(self.block2(self.block1(motion))))
        return self.kind(self.drop(F.relu(self.hidden(x[:, :, -1]))))


def gesture() -> Subject:
    """Return a network that tells gestures."""
    return trained(Gesture, gestures(2400, 181), 600, 8, 6e-3, F.cross_entropy, classes_right, 1)


# --- cloud: shapes of clouds of points (a network of sets, maxima and means over them) --------------------------------

POINTS, SHAPES = 64, 6


def clouds(count: int, seed: int) -> Arrays:
    """Return points on surfaces in metres, turned round the vertical, and one of six shapes."""
    chance = generator(seed)
    shapes = torch.randint(SHAPES, (count,), generator=chance)
    u = torch.rand(count, 4, POINTS, generator=chance)
    v = torch.rand(count, 8, 1, generator=chance)
    turn = 2 * math.pi * u[:, 0]
    height = 2 * u[:, 1] - 1
    ring = (1 - height.square()).clamp_min(0).sqrt()
    ball = torch.stack([ring * turn.cos(), ring * turn.sin(), height], 1)
    side = torch.where(u[:, 2] < 0.5, 1.0, -1.0)
    face = (3 * u[:, 3]).long().clamp_max(2)
    free = 2 * u[:, :2] - 1
    box = torch.stack([side, free[:, 0], free[:, 1]], 1) * 0.75
    box = torch.where(
        (face == 1)[:, None], box[:, [1, 0, 2]], torch.where((face == 2)[:, None], box[:, [1, 2, 0]], box)
    )
    cap = u[:, 2] < 0.35
    away = torch.where(cap, u[:, 3].sqrt(), 1.0) * 0.8
    level = torch.where(cap, height.sign(), height) * 0.8
    tin = torch.stack([away * turn.cos(), away * turn.sin(), level], 1)
    narrow = torch.where(cap, u[:, 3].sqrt(), (1 - height) / 2) * 0.9
    cone = torch.stack([narrow * turn.cos(), narrow * turn.sin(), torch.where(cap, -0.8, 0.8 * height)], 1)
    around = 2 * math.pi * u[:, 1]
    wide = 0.7 + 0.28 * around.cos()
    tyre = torch.stack([wide * turn.cos(), wide * turn.sin(), 0.28 * around.sin()], 1)
    sheet = torch.stack([free[:, 0], free[:, 1], 0.35 * (3 * free[:, 0]).sin()], 1) * 0.9
    forms = torch.stack([ball, box, tin, cone, tyre, sheet], 1)[torch.arange(count), shapes]
    forms = forms * (0.65 + 0.7 * v[:, :3])
    angle = 2 * math.pi * v[:, 3]
    x, y, z = forms.unbind(1)
    forms = torch.stack([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos(), z], 1)
    forms = forms + 0.3 * (v[:, 4:7] - 0.5) + 0.08 * torch.randn(forms.shape, generator=chance)
    return [forms, shapes]


class Cloud(nn.Module):
    """Each point alone, beside what all have in common, and again; maxima and means; a class."""

    def __init__(self) -> None:
        super().__init__()
        self.point1, self.norm1 = nn.Conv1d(3, 32, 1, bias=False), nn.BatchNorm1d(32)
        self.point2, self.norm2 = nn.Conv1d(32, 40, 1, bias=False), nn.BatchNorm1d(40)
        self.point3, self.norm3 = nn.Conv1d(80, 64, 1, bias=False), nn.BatchNorm1d(64)
        self.point4, self.norm4 = nn.Conv1d(64, 80, 1, bias=False), nn.BatchNorm1d(80)
        self.hidden, self.norm5 = nn.Linear(160, 48), nn.BatchNorm1d(48)
        self.drop, self.shape = nn.Dropout(0.1), nn.Linear(48, SHAPES)
        self.act: nn.Module = nn.LeakyReLU(0.2)

    def forward(self, points: Tensor) -> Tensor:
        x = self.act(self.norm1(self.point1(points)))
        x = self.act(self.norm2(self.point2(x)))
        x = torch.cat([x, x.amax(2, keepdim=True).expand(-1, -1, POINTS)], 1)
        x = self.act(self.norm3(self.point3(x)))
        x = self.act(self.norm4(self.point4(x)))
        x = torch.cat([x.amax(2), x.mean(2)], 1)
        return self.shape(self.drop(self.act(self.norm5(self.hidden(x)))))


def cloud() -> Subject:
    """Return a network that tells shapes."""
    return trained(Cloud, clouds(2600, 182), 600, 9, 6e-3, F.cross_entropy, classes_right, 2)


# --- traffic: speeds on roads in a quarter of an hour (a network of a graph) -----------------------------------------

PLACES, PAST, AHEAD = 20, 12, 2
SPEED_MEAN, SPEED_DEVIATION = 71.0, 20.0


def network_of_roads() -> Tensor:
    """Return which place follows which, as shares: a ring with two roads across."""
    follows = torch.zeros(PLACES, PLACES)
    for k in range(PLACES):
        follows[k, (k + 1) % PLACES] = 1.0
    for k, m in ((3, 11), (14, 6), (9, 18)):
        follows[k, m] = 1.0
    return follows / follows.sum(1, keepdim=True)


def jams(count: int, seed: int) -> Arrays:
    """Return speeds in km/h, normalized, the time of day as sine and cosine, and the speeds a quarter later."""
    chance = generator(seed)
    follows = network_of_roads()
    hour = 24 * torch.rand(count, 1, generator=chance)
    weak = torch.rand(PLACES, generator=generator(seed + 1000))
    jam = torch.zeros(count, PLACES)
    series = []
    for _ in range(10 + PAST + AHEAD):
        rush = torch.exp(-((hour - 8) / 2).square()) + torch.exp(-((hour - 17.5) / 2.5).square())
        start = (torch.rand(count, PLACES, generator=chance) < 0.004 + 0.05 * rush * weak).float()
        ahead, behind = jam @ follows.T, jam @ follows
        jam = 0.45 * jam + 0.62 * ahead * (1 - 0.5 * behind) + 0.65 * start
        jam = (jam + 0.03 * torch.randn(jam.shape, generator=chance)).clamp(0, 1)
        series.append(96 - 76 * torch.tanh(1.3 * jam) + 2.0 * torch.randn(jam.shape, generator=chance))
        hour = (hour + 1 / 12) % 24
    speeds = torch.stack(series, 2)
    turn = 2 * math.pi * (hour - AHEAD / 12) / 24
    seen = (speeds[:, :, 10 : 10 + PAST] - SPEED_MEAN) / SPEED_DEVIATION
    later = (speeds[:, :, -1] - SPEED_MEAN) / SPEED_DEVIATION
    return [seen.contiguous(), torch.cat([turn.sin(), turn.cos()], 1), later.contiguous()]


class Spread(nn.Module):
    """Maps of a place, of what lies ahead and of what lies behind; a norm, an activation, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.ahead, self.behind = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm, self.act = nn.LayerNorm(width), nn.SiLU()

    def forward(self, x: Tensor, follows: Tensor, leads: Tensor) -> Tensor:
        y = self.own(x) + self.ahead(follows @ x) + self.behind(leads @ x)
        return x + self.act(self.norm(y))


class Traffic(nn.Module):
    """A map of the past, three spreads along the roads, and the change of each speed."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.clock = nn.Linear(PAST, 32), nn.Linear(2, 32)
        self.spot = nn.Parameter(0.1 * torch.randn(PLACES, 32))
        self.spread1, self.spread2, self.spread3 = Spread(32), Spread(32), Spread(32)
        self.change1, self.change2 = nn.Linear(32, 24), nn.Linear(24, 1)
        follows = network_of_roads()
        self.register_buffer("follows", follows)
        self.register_buffer("leads", follows.T / follows.T.sum(1, keepdim=True).clamp_min(1e-6))

    def forward(self, speeds: Tensor, time: Tensor) -> Tensor:
        x = self.inlet(speeds) + self.clock(time)[:, None] + self.spot
        x = self.spread1(x, self.follows, self.leads)
        x = self.spread2(x, self.follows, self.leads)
        x = self.spread3(x, self.follows, self.leads)
        change = self.change2(F.silu(self.change1(x))).squeeze(2)
        return speeds[:, :, -1] + change


def traffic() -> Subject:
    """Return a forecaster of speeds on roads."""
    subject = trained(Traffic, jams(3000, 183), 500, 14, 5e-3, F.mse_loss, variance_explained, 3)
    subject.options["metric"] = variance_explained
    return subject


# --- roman: numbers to Roman numerals (two recurrent networks with gates, and attention) ------------------------------

FIGURES, LETTERS = 4, 16
STOP, START = 0, 8
ROMAN = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
HIGHER = ("IVX", "XLC", "CDM", "M")


def numerals(seed: int) -> Arrays:
    """Return figures of all numbers below 4000 in an order of chance, the letters before each letter, the letters."""
    numbers = 1 + torch.randperm(3999, generator=generator(seed))
    figures = torch.stack([numbers // 10**k % 10 for k in (3, 2, 1, 0)], 1)
    letters = torch.full((len(numbers), LETTERS), STOP)
    for row, parts in enumerate(figures.tolist()):
        text = ""
        for figure, high in zip(parts, HIGHER[::-1], strict=True):
            text += ROMAN[figure].translate(str.maketrans("IVX"[: len(high)], high))
        letters[row, : len(text)] = torch.tensor([1 + "IVXLCDM".index(letter) for letter in text])
    before = torch.cat([torch.full((len(numbers), 1), START), letters[:, :-1]], 1)
    return [figures, before, letters]


class Roman(nn.Module):
    """A reader in both directions, a writer that begins where it ended, attention, and letters."""

    def __init__(self) -> None:
        super().__init__()
        self.figures, self.letters = nn.Embedding(10, 16), nn.Embedding(9, 20)
        self.reader = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(48, 48)
        self.writer = nn.GRU(20, 48, batch_first=True)
        self.query = nn.Linear(48, 48, bias=False)
        self.mix, self.say = nn.Linear(96, 48), nn.Linear(48, 9)
        self.axis = -1
        self.begin: nn.Module = nn.Tanh()
        self.act: nn.Module = nn.Tanh()

    def forward(self, number: Tensor, before: Tensor) -> Tensor:
        read, _ = self.reader(self.figures(number))
        first = self.begin(self.bridge(read.mean(1)))
        written, _ = self.writer(self.letters(before), first[None])
        share = torch.softmax(self.query(written) @ read.transpose(1, 2) * 0.15, self.axis)
        return self.say(self.act(self.mix(torch.cat([written, share @ read], 2))))


def roman() -> Subject:
    """Return a writer of Roman numerals."""

    def loss(out: Tensor, letters: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), letters.flatten())

    subject = trained(Roman, numerals(184), 500, 8, 1.2e-2, loss, words_right, 4)
    subject.options["metric"] = words_right
    return subject


# --- organ: two organs in ultrasound (a U-Net) ------------------------------------------------------------------------

ECHO_MEAN, ECHO_DEVIATION = 88.0, 43.0
PICTURE = 32


def echoes(count: int, seed: int) -> Arrays:
    """Return ultrasound pictures, normalized from 8 bits, and for each pixel which organ it shows, if any."""
    chance = generator(seed)
    grid = torch.arange(float(PICTURE))
    y, x = grid[:, None], grid[None]
    u = torch.rand(count, 16, 1, 1, generator=chance)

    def disc(cy: Tensor, cx: Tensor, a: Tensor, b: Tensor, angle: Tensor) -> Tensor:
        along, across = (x - cx) * angle.cos() + (y - cy) * angle.sin(), (y - cy) * angle.cos() - (x - cx) * angle.sin()
        return (along / a).square() + (across / b).square() < 1

    cy, cx = 10 + 12 * u[:, 0], 10 + 12 * u[:, 1]
    large = disc(cy, cx, 6 + 4 * u[:, 2], 4.5 + 3 * u[:, 3], math.pi * u[:, 4])
    turn = 2 * math.pi * u[:, 5]
    small = disc(cy + 9 * turn.sin(), cx + 9 * turn.cos(), 3 + 1.5 * u[:, 6], 2.5 + 1.2 * u[:, 7], math.pi * u[:, 8])
    false = disc(32 * u[:, 9], 32 * u[:, 10], 2.5 + u[:, 11], 2.0 + u[:, 12], math.pi * u[:, 13])
    light = torch.full((count, PICTURE, PICTURE), 0.45)
    light = torch.where(false, 0.7, light)
    light = torch.where(large, 0.2, light)
    light = torch.where(small, 0.72, light)
    light = light * (1.15 - 0.4 * y / PICTURE) * (0.85 + 0.3 * u[:, 14])
    speckle = (torch.randn(2, count, 1, PICTURE, PICTURE, generator=chance).square().sum(0) / 2).sqrt()[:, 0]
    bytes_ = (255 * light * (0.35 + 0.73 * speckle)).clamp(0, 255).round()
    kinds = torch.where(small, 2, torch.where(large, 1, 0))
    return [((bytes_ - ECHO_MEAN) / ECHO_DEVIATION)[:, None], kinds]


class Twice(nn.Module):
    """Two convolutions with norms."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))


class Organ(nn.Module):
    """Down twice and up twice, what was before beside what comes back, and a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.deep = Twice(1, 8), Twice(8, 16), Twice(16, 24)
        self.pool: nn.Module = nn.MaxPool2d(2)
        self.rise1 = nn.ConvTranspose2d(24, 16, 2, 2)
        self.up1 = Twice(32, 16)
        self.rise2 = nn.ConvTranspose2d(16, 8, 2, 2)
        self.up2 = Twice(16, 8)
        self.kinds = nn.Conv2d(8, 3, 1)

    def forward(self, echo: Tensor) -> Tensor:
        one = self.down1(echo)
        two = self.down2(self.pool(one))
        x = self.deep(self.pool(two))
        x = self.up1(torch.cat([two, self.rise1(x)], 1))
        x = self.up2(torch.cat([one, self.rise2(x)], 1))
        return self.kinds(x)


def organ() -> Subject:
    """Return a network that finds two organs."""
    subject = trained(Organ, echoes(1050, 185), 250, 8, 1e-2, F.cross_entropy, overlap, 5)
    subject.options["metric"] = overlap
    return subject


# --- joints: joints of an arm of a robot (inverted residual blocks with factors, and means of heat) -------------------

SIDE, JOINTS, HEAT = 28, 4, 14


def arms(count: int, seed: int) -> Arrays:
    """Return pictures of an arm between -1 and 1, and its four joints, from -1 to 1 across the picture."""
    chance = generator(seed)
    grid = torch.arange(float(SIDE))
    y, x = grid[:, None], grid[None]
    u = torch.rand(count, 16, 1, 1, generator=chance)
    places = [torch.stack([8 + 12 * u[:, 0, 0, 0], 8 + 12 * u[:, 1, 0, 0]], 1)]
    angle = 2 * math.pi * u[:, 2, 0, 0]
    for k, length in enumerate((8.0, 7.0, 5.0)):
        angle = angle + 2.4 * (u[:, 3 + k, 0, 0] - 0.5) if k else angle
        step = length * (0.85 + 0.3 * u[:, 6 + k, 0, 0])
        places.append(places[-1] + step[:, None] * torch.stack([angle.cos(), angle.sin()], 1))
    joints = torch.stack(places, 1)
    joints = (
        joints
        - (joints.amax(1, keepdim=True) - (SIDE - 2)).clamp_min(0)
        - (joints.amin(1, keepdim=True) - 1).clamp_max(0)
    )
    picture = 0.25 + 0.3 * u[:, 9] + 0.2 * (u[:, 10] - 0.5) * x / SIDE + torch.zeros(count, SIDE, SIDE)
    for k, wide in enumerate((1.7, 1.2, 0.7)):
        (ax, ay), (bx, by) = (joints[:, m].unbind(1) for m in (k, k + 1))
        ax, ay, bx, by = (part[:, None, None] for part in (ax, ay, bx, by))
        dx, dy = bx - ax, by - ay
        t = (((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)).clamp(0, 1)
        near = ((x - ax - t * dx).square() + (y - ay - t * dy).square()).sqrt()
        cover = torch.sigmoid(3 * (wide - near))
        picture = picture * (1 - cover) + cover * (0.62 + 0.14 * k)
    picture = (picture + 0.05 * torch.randn(picture.shape, generator=chance)).clamp(0, 1)
    picture = (picture * 255).round() / 127.5 - 1
    return [picture[:, None], (2 * (joints + 0.5) / SIDE - 1).flatten(1)]


class Inverted(nn.Module):
    """Widen, a depthwise convolution, factors of channels, narrow; added to what came in, where it fits."""

    def __init__(self, before: int, inner: int, after: int, stride: int) -> None:
        super().__init__()
        self.widen, self.norm1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.depth = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.less, self.more = nn.Conv2d(inner, 8, 1), nn.Conv2d(8, inner, 1)
        self.narrow, self.norm3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.act: nn.Module = nn.Hardswish()
        self.gate: nn.Module = nn.Hardsigmoid()
        self.adds = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.widen(x)))
        y = self.act(self.norm2(self.depth(y)))
        y = y * self.gate(self.more(F.relu(self.less(y.mean((2, 3), keepdim=True)))))
        y = self.norm3(self.narrow(y))
        return x + y if self.adds else y


class Joints(nn.Module):
    """Half the size, four inverted blocks, heat of each joint, and the mean place of its softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.act: nn.Module = nn.Hardswish()
        self.block1, self.block2 = Inverted(12, 24, 16, 1), Inverted(16, 24, 16, 1)
        self.block3, self.block4 = Inverted(16, 28, 20, 1), Inverted(20, 32, 20, 1)
        self.heat = nn.Conv2d(20, JOINTS, 3, padding=1)
        self.axis = 2
        steps = (2 * torch.arange(float(HEAT)) + 1) / HEAT - 1
        self.register_buffer("grid", torch.stack([steps.repeat(HEAT), steps.repeat_interleave(HEAT)], 1))

    def forward(self, picture: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(picture)))
        x = self.block4(self.block3(self.block2(self.block1(x))))
        share = torch.softmax(self.heat(x).flatten(2), self.axis)
        return (share @ self.grid).flatten(1)


def joints() -> Subject:
    """Return a network that finds joints."""

    def loss(out: Tensor, places: Tensor) -> Tensor:
        return 10 * F.smooth_l1_loss(out, places, beta=0.05)

    subject = trained(Joints, arms(1500, 186), 400, 8, 1.2e-2, loss, joints_near, 6)
    subject.options["metric"] = joints_near
    return subject


# --- rides: how many bicycles are taken, and whether a station runs empty or full (products, and two heads) -----------

STATIONS, WEEKDAYS, SKIES = 24, 7, 4
RIDE_MEANS = torch.tensor([13.0, 62.0, 14.0, 0.0, 0.0])
RIDE_DEVIATIONS = torch.tensor([8.0, 17.0, 7.0, 0.71, 0.71])


def hires(count: int, seed: int) -> Arrays:
    """Return numbers (warmth, damp, wind, hour as sine and cosine), normalized, station, weekday, sky, and answers.

    The answers are the hires of an hour in units of 20, and whether the station runs empty (0), fine (1) or full (2).
    """
    chance = generator(seed)
    fixed = generator(seed + 1000)
    plain = torch.randn(count, 3, generator=chance)
    hour = 24 * torch.rand(count, 1, generator=chance)
    turn = 2 * math.pi * hour / 24
    station = torch.randint(STATIONS, (count,), generator=chance)
    day = torch.randint(WEEKDAYS, (count,), generator=chance)
    sky = torch.randint(SKIES, (count,), generator=chance)
    size = 0.6 + torch.rand(STATIONS, generator=fixed)
    home = torch.randn(STATIONS, generator=fixed)
    wet = torch.tensor([1.15, 1.0, 0.75, 0.35])
    week = torch.tensor([1.0, 1.0, 1.05, 1.0, 1.1, 0.65, 0.5])
    warmth = 13 + 8 * plain[:, 0]
    morning = torch.exp(-((hour[:, 0] - 8) / 2.2).square())
    evening = torch.exp(-((hour[:, 0] - 17.5) / 2.6).square())
    pull = torch.sigmoid((warmth - 9) / 5) * (1 - 0.13 * plain[:, 1]) * (1 - 0.1 * plain[:, 2])
    demand = 2.2 * size[station] * week[day] * wet[sky] * pull * (0.25 + morning + evening)
    demand = demand + 0.12 * torch.randn(count, generator=chance)
    flow = 1.9 * home[station] * (morning - evening) * week[day] * wet[sky] + 0.25 * torch.randn(
        count, generator=chance
    )
    state = 1 + (flow > 0.45).float() - (flow < -0.45).float()
    raw = torch.cat([torch.stack([warmth, 62 + 17 * plain[:, 1], 14 + 7 * plain[:, 2]], 1), turn.sin(), turn.cos()], 1)
    return [(raw - RIDE_MEANS) / RIDE_DEVIATIONS, station, day, sky, torch.stack([demand, state], 1)]


class Rides(nn.Module):
    """Numbers and tables side by side, products with them, a deep part, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stations, self.days, self.skies = (
            nn.Embedding(STATIONS, 8),
            nn.Embedding(WEEKDAYS, 4),
            nn.Embedding(SKIES, 3),
        )
        self.cross1, self.cross2 = nn.Linear(20, 20), nn.Linear(20, 20)
        self.deep1, self.norm1 = nn.Linear(20, 64), nn.BatchNorm1d(64)
        self.deep2, self.norm2 = nn.Linear(64, 48), nn.BatchNorm1d(48)
        self.trunk = nn.Linear(68, 32)
        self.act: nn.Module = nn.SELU()
        self.demand1, self.demand2 = nn.Linear(32, 16), nn.Linear(16, 1)
        self.state1, self.state2 = nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, numbers: Tensor, station: Tensor, day: Tensor, sky: Tensor) -> Tensor:
        x = torch.cat([numbers, self.stations(station), self.days(day), self.skies(sky)], 1)
        y = x * self.cross1(x) + x
        y = x * self.cross2(y) + y
        deep = self.act(self.norm1(self.deep1(x)))
        deep = self.act(self.norm2(self.deep2(deep)))
        z = self.act(self.trunk(torch.cat([y, deep], 1)))
        return torch.cat([self.demand2(self.act(self.demand1(z))), self.state2(self.act(self.state1(z)))], 1)


def rides() -> Subject:
    """Return a network that tells how many bicycles are hired, and what becomes of the station."""

    def loss(out: Tensor, answers: Tensor) -> Tensor:
        return F.mse_loss(out[:, 0], answers[:, 0]) + 0.5 * F.cross_entropy(out[:, 1:], answers[:, 1].long())

    subject = trained(Rides, hires(6600, 187), 600, 12, 8e-3, loss, both_tasks, 7)
    subject.options["metric"] = both_tasks
    return subject


# --- wafer: patterns of defects on wafers (attention in windows that shift) -------------------------------------------

ACROSS, DEFECTS, WINDOW = 16, 6, 4


def wafers(count: int, seed: int) -> Arrays:
    """Return maps of dies (-1 no die, 0 good, 1 bad) and one of six patterns."""
    chance = generator(seed)
    kinds = torch.randint(DEFECTS, (count,), generator=chance)
    grid = torch.arange(float(ACROSS)) - (ACROSS - 1) / 2
    y, x = grid[:, None], grid[None]
    u = torch.rand(count, 10, 1, 1, generator=chance)
    away = (x.square() + y.square()).sqrt()
    inside = away < ACROSS / 2
    angle = torch.atan2(y, x)
    cy, cx = 3 * (u[:, 0] - 0.5), 3 * (u[:, 1] - 0.5)
    middle = ((x - cx).square() + (y - cy).square()).sqrt()
    centre = 0.85 * (middle < 2.2 + 1.3 * u[:, 2])
    donut = 0.8 * ((middle - 4.2 - u[:, 2]).abs() < 1.1 + 0.4 * u[:, 3])
    edge = 0.8 * (away > 6.6 - 0.5 * u[:, 2]).expand(count, ACROSS, ACROSS)
    turn = 2 * math.pi * u[:, 4]
    off = (angle - turn + math.pi).remainder(2 * math.pi) - math.pi
    local = 0.85 * ((away > 5.2) & (off.abs() < 0.55 + 0.3 * u[:, 5]))
    along, across = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
    scratch = 0.8 * (
        ((across - 5 * (u[:, 6] - 0.5) - 0.03 * along.square() * (u[:, 7] - 0.5)).abs() < 0.75) & (along.abs() < 6)
    )
    none = torch.zeros(count, ACROSS, ACROSS)
    odds = torch.stack([none, centre, donut, edge, local, scratch], 1)[torch.arange(count), kinds]
    odds = 1 - (1 - odds) * (1 - 0.12 - 0.12 * u[:, 8])
    bad = (torch.rand(odds.shape, generator=chance) < odds).float()
    return [torch.where(inside, bad, -1.0)[:, None].contiguous(), kinds]


class Windows(nn.Module):
    """Attention in windows with a bias for each way between two places, and two maps; norms in front."""

    def __init__(self, width: int, side: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        self.side, self.shift, self.width, self.count = side, shift, width, side // WINDOW
        self.bias = nn.Parameter(0.02 * torch.randn(4, (2 * WINDOW - 1) ** 2))
        place = torch.arange(WINDOW * WINDOW)
        rows = place[:, None] // WINDOW - place[None] // WINDOW + WINDOW - 1
        columns = place[:, None] % WINDOW - place[None] % WINDOW + WINDOW - 1
        self.register_buffer("ways", (rows * (2 * WINDOW - 1) + columns).flatten())
        self.register_buffer("shade", self.shades())
        self.scale = (width // 4) ** -0.5

    def shades(self) -> Tensor:
        """Return what keeps places apart that the shift brought together."""
        region = torch.zeros(self.side, self.side)
        if self.shift:
            ends = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
            for k, (one, other) in enumerate((a, b) for a in ends for b in ends):
                region[one, other] = k
        region = region.view(self.count, WINDOW, self.count, WINDOW).transpose(1, 2).reshape(-1, WINDOW * WINDOW)
        return -100.0 * (region[:, :, None] != region[:, None]).float()[None, :, None]

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        n = self.count
        y = (
            y.reshape(-1, n, WINDOW, n, WINDOW, self.width)
            .transpose(2, 3)
            .reshape(-1, n * n, WINDOW * WINDOW, self.width)
        )
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(2, 3) for part in self.qkv(y).chunk(3, -1))
        bias = self.bias[:, self.ways].view(4, WINDOW * WINDOW, WINDOW * WINDOW)
        share = torch.softmax(q @ k.transpose(-2, -1) * self.scale + bias + self.shade, -1)
        y = self.out((share @ v).transpose(2, 3).flatten(3))
        y = (
            y.reshape(-1, n, n, WINDOW, WINDOW, self.width)
            .transpose(2, 3)
            .reshape(-1, self.side, self.side, self.width)
        )
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.down(self.act(self.up(self.norm2(x))))


class Wafer(nn.Module):
    """Patches of 2 × 2, windows, shifted windows, four places merged into one, a window, the mean, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(1, 24, 2, 2), nn.LayerNorm(24)
        self.window1, self.window2 = Windows(24, 8, 0), Windows(24, 8, 2)
        self.norm_merge, self.merge = nn.LayerNorm(96), nn.Linear(96, 40, bias=False)
        self.window3 = Windows(40, 4, 0)
        self.last, self.kind = nn.LayerNorm(40), nn.Linear(40, DEFECTS)

    def forward(self, dies: Tensor) -> Tensor:
        x = self.norm(self.patches(dies).permute(0, 2, 3, 1))
        x = self.window2(self.window1(x))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], 3)
        x = self.window3(self.merge(self.norm_merge(x)))
        return self.kind(self.last(x).mean((1, 2)))


def wafer() -> Subject:
    """Return a network that tells patterns of defects."""
    return trained(Wafer, wafers(2400, 188), 600, 9, 6e-3, F.cross_entropy, classes_right, 8)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "gesture": gesture,
    "cloud": cloud,
    "traffic": traffic,
    "roman": roman,
    "organ": organ,
    "joints": joints,
    "rides": rides,
    "wafer": wafer,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
