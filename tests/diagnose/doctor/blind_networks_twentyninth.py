"""Seven ordinary small networks, trained on the spot: waste, commands, a bakery, surnames, a harbour and more."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import (
    DEVIATIONS,
    MEANS,
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

# --- waste: what lies on a belt for sorting (a MobileViT) -----------------------------------------------------------

SIDE = torch.arange(32.0)


def placed(u: Tensor, first: int, reach: float) -> tuple[Tensor, Tensor]:
    """Return coordinates about a place near the middle, turned by an angle of chance; three numbers are used."""
    y, x = SIDE[:, None] - 15.5 - reach * (u[:, first] - 0.5), SIDE[None] - 15.5 - reach * (u[:, first + 1] - 0.5)
    angle = 2 * math.pi * u[:, first + 2]
    return y * angle.cos() - x * angle.sin(), y * angle.sin() + x * angle.cos()


def belts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Bottles (long, with a neck, pale blue), cans (short, with a bright line along them), paper (white, crumpled),
    cardboard (brown, with ribs), glass (green or brown, round), and peel (a yellow or brown crescent).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 32, 1, 1, generator=chance)
    y, x = placed(u, 0, 7)
    kind = F.one_hot(labels, 6).float()[:, :, None, None]
    size = 0.8 + 0.4 * u[:, 3]
    long = torch.tensor([11.5, 8.5, 9.0, 9.5, 8.0, 10.0])[labels][:, None, None] * size
    wide = torch.tensor([4.2, 5.2, 7.5, 7.0, 6.5, 6.0])[labels][:, None, None] * (0.85 + 0.3 * u[:, 4]) * size
    neck = 1 - 0.6 * torch.sigmoid(3 * (x - 0.45 * long))
    edge = wide * (1 - kind[:, 0] + kind[:, 0] * neck)
    box = torch.sigmoid(2 * (edge - y.abs())) * torch.sigmoid(2 * (long - x.abs()))
    crumple = 2.2 * rough(count, 8, 32, chance)[:, 0]
    round_ = torch.sigmoid(2 * (wide - (y.square() + x.square() * 0.7).sqrt() + kind[:, 2] * crumple))
    ring = (y.square() + x.square()).sqrt()
    crescent = torch.sigmoid(2 * (3.2 - (ring - 7.5 * size).abs())) * torch.sigmoid(1.2 * (y + 1))
    straight = kind[:, 0] + kind[:, 1] + kind[:, 3]
    inside = straight * box + (kind[:, 2] + kind[:, 4]) * round_ + kind[:, 5] * crescent
    colours = [paint(0.62, 0.72, 0.8), paint(0.66, 0.66, 0.68), paint(0.84, 0.84, 0.8)]
    colours += [paint(0.62, 0.47, 0.32), paint(0.34, 0.52, 0.3), paint(0.74, 0.64, 0.22)]
    colour = torch.cat(colours)[labels] + 0.3 * (u[:, 5:8] - 0.5)
    shine = 0.35 * torch.exp(-(y - 1.5).square() / 2)
    ribs = 0.16 * torch.cos(x * (1.8 + 0.5 * u[:, 8]))
    mark = (kind[:, 1] + 0.5 * kind[:, 0]) * shine + kind[:, 3] * ribs + kind[:, 2] * 0.16 * crumple
    mark = mark + 0.4 * kind[:, 4] * torch.exp(-((y - 2).square() + (x - 2).square()) / 3)
    ground = 0.3 + 0.3 * u[:, 9:10] + 0.1 * (u[:, 10:13] - 0.5) + 0.07 * rough(count, 10, 32, chance)
    images = inside[:, None] * (colour + mark[:, None]) + (1 - inside)[:, None] * ground
    images = images * (0.7 + 0.5 * u[:, 13:14]) + 0.07 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


class ConvNorm(nn.Module):
    """A convolution, its norm, and SiLU where wanted."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(after)
        self.act: nn.Module = nn.SiLU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Inverted(nn.Module):
    """Wider, filtered channel by channel, narrower; added to what came in where both are alike."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.expand = ConvNorm(before, 2 * before, 1)
        self.depthwise = ConvNorm(2 * before, 2 * before, 3, stride, 2 * before)
        self.project = ConvNorm(2 * before, after, 1, act=False)
        self.alike = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.alike else out


class Encoder(nn.Module):
    """Attention and two maps, with layer norms before them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act: nn.Module = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale, -1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class MobileVitBlock(nn.Module):
    """Local filters, two encoders over the pixels that lie alike in patches of 2 × 2, and both joined."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.local, self.into = ConvNorm(channels, channels, 3), nn.Conv2d(channels, width, 1, bias=False)
        self.layers = nn.Sequential(Encoder(width, 4), Encoder(width, 4))
        self.norm, self.out = nn.LayerNorm(width), ConvNorm(width, channels, 1)
        self.fuse = ConvNorm(2 * channels, channels, 3)
        self.own_first = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(self.local(x))
        batch, width, rows, columns = y.shape
        y = y.view(batch, width, rows // 2, 2, columns // 2, 2).permute(0, 3, 5, 2, 4, 1)
        y = self.norm(self.layers(y.reshape(batch * 4, rows * columns // 4, width)))
        y = y.view(batch, 2, 2, rows // 2, columns // 2, width).permute(0, 5, 3, 1, 4, 2)
        y = self.out(y.reshape(batch, width, rows, columns))
        return self.fuse(torch.cat([x, y] if self.own_first else [y, x], 1))


class Waste(nn.Module):
    """A stem, inverted residuals, a block with attention, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 12, 3, 2)
        self.stage1 = nn.Sequential(Inverted(12, 16, 2), Inverted(16, 16, 1))
        self.stage2 = nn.Sequential(Inverted(16, 24, 1), MobileVitBlock(24, 32))
        self.last = ConvNorm(24, 48, 1)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(48, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.last(self.stage2(self.stage1(self.stem(image))))
        return self.head(self.dropout(x.mean((2, 3))))


def waste() -> Subject:
    """Return a MobileViT for waste, whose pictures have ImageNet's mean and deviation."""
    images, labels = belts(1800, 2901)
    return trained(Waste, [(images - MEANS) / DEVIATIONS, labels], 400, 8, 8e-3, F.cross_entropy, classes_right, 41)


# --- remote: what is said to a television (an att-RNN) --------------------------------------------------------------

FRAMES, MELS, COMMANDS = 48, 20, 8


def commands(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return logarithms of energies in mel bands, one row a frame, and one of eight commands.

    A command has two or three sounds: each is a pair of formants that move, or a hiss, and starts at a time of chance.
    """
    world, chance = generator(29020), generator(seed)
    low = 2 + 6 * torch.rand(COMMANDS, 3, 2, generator=world)
    high = low + 3 + 7 * torch.rand(COMMANDS, 3, 2, generator=world)
    hiss = (torch.rand(COMMANDS, 3, generator=world) < 0.25).float()
    labels = torch.randint(COMMANDS, (count,), generator=chance)
    u = torch.rand(count, 12, 1, generator=chance)
    frame, band = torch.arange(float(FRAMES))[None], torch.arange(float(MELS))[None, None]
    start, length = 3 + 14 * u[:, 0], 7 + 3 * u[:, 1]
    person, found = 2.5 * (u[:, 2] - 0.5), torch.zeros(count, FRAMES, MELS)
    for k in range(3):
        part = (frame - start - k * length) / length
        there = torch.sigmoid(14 * part) * torch.sigmoid(14 * (0.8 - part)) * (0.8 + 0.4 * u[:, 3 + k])
        way = part.clamp(0, 1)
        for ends, loud in ((low, 3.4), (high, 2.6)):
            first, last = ends[labels, k, 0][:, None], ends[labels, k, 1][:, None]
            centre = first + (last - first) * way + person
            bump = torch.exp(-(band - centre[:, :, None]).square() / 2.4)
            found = found + loud * (there * (1 - 0.8 * hiss[labels, k][:, None]))[:, :, None] * bump
        noise = torch.sigmoid(band - 12) * 2.6
        found = found + (there * hiss[labels, k][:, None])[:, :, None] * noise
    found = found - 0.06 * band - 4 + 2.2 * (u[:, 7:8] - 0.5)
    found = found + 0.4 * rough(count, 6, FRAMES, chance)[:, 0, :, :MELS]
    return found + 1.05 * torch.randn(found.shape, generator=chance), labels


SAID = commands(2000, 2902)
MEL_MEANS, MEL_DEVIATIONS = SAID[0].mean((0, 1)), SAID[0].std((0, 1))


class Remote(nn.Module):
    """Two convolutions over time, two LSTM layers in both directions, attention asked by the middle, two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 10, (5, 1), 1, (2, 0)), nn.BatchNorm2d(10)
        self.conv2, self.bn2 = nn.Conv2d(10, 1, (5, 1), 1, (2, 0)), nn.BatchNorm2d(1)
        self.relu: nn.Module = nn.ReLU()
        self.rnn = nn.LSTM(MELS, 24, 2, batch_first=True, bidirectional=True)
        self.query = nn.Linear(48, 48)
        self.axis, self.asked, self.scale = 1, FRAMES // 2, 48**-0.5
        self.fc1, self.drop, self.fc2 = nn.Linear(48, 32), nn.Dropout(0.1), nn.Linear(32, COMMANDS)

    def forward(self, mels: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(mels[:, None])))
        x = self.relu(self.bn2(self.conv2(x)))[:, 0]
        x, _ = self.rnn(x)
        query = self.query(x[:, self.asked])
        weights = torch.softmax((x @ query[:, :, None])[:, :, 0] * self.scale, self.axis)
        seen = (weights[:, :, None] * x).sum(1)
        return self.fc2(self.drop(self.relu(self.fc1(seen))))


def remote() -> Subject:
    """Return an att-RNN for commands; bands have mean 0 and deviation 1."""
    data = [(SAID[0] - MEL_MEANS) / MEL_DEVIATIONS, SAID[1]]
    return trained(Remote, data, 500, 8, 1e-2, F.cross_entropy, classes_right, 42)


# --- bakery: how many rolls are sold on the next day (an N-HiTS) ----------------------------------------------------

PAST, AHEAD = 96, 24


def sales(count: int, seed: int) -> Arrays:
    """Return rolls sold in 96 half hours, facts of the next day, and what is sold in its 24 half hours.

    Facts are the day of the week in seven columns, whether it is a holiday, °C at noon, and mm of rain.
    """
    chance = generator(seed)
    day = torch.randint(7, (count,), generator=chance)
    u = torch.rand(count, 12, 1, generator=chance)
    t = torch.arange(float(AHEAD))[None]
    total = []
    by_day = torch.tensor([0.85, 0.8, 0.85, 0.9, 1.05, 1.5, 1.25])
    size, late, noon = 18 + 30 * u[:, 0], 1.5 * (u[:, 1] - 0.5), 0.35 + 0.4 * u[:, 2]
    warm = 14 + 9 * torch.randn(count, 1, generator=chance)
    wet = (6 * torch.randn(count, 1, generator=chance)).clamp_min(0)
    holiday = (u[:, 3] < 0.12).float()
    for k in range(5):
        which = (day - 4 + k) % 7
        weekend = (which >= 5).float()[:, None]
        if k == 4:
            weekend = torch.maximum(weekend, holiday)
        morning = torch.exp(-((t - 4 - late - 3.5 * weekend) / (2.2 + weekend)).square())
        lunch = noon * (1 - 0.5 * weekend) * torch.exp(-((t - 12.5 - late) / 1.8).square())
        evening = 0.3 * (1 - 0.7 * weekend) * torch.exp(-((t - 21) / 2.5).square())
        level = size * by_day[which][:, None] * (1 + 0.03 * (k - 4) * (u[:, 4] - 0.3))
        if k == 4:
            level = level * (1 + 0.25 * holiday) * (1 - 0.02 * wet) * (1 - 0.008 * (warm - 14))
        now = level * (0.08 + morning + lunch + evening)
        total.append(now + now.clamp_min(1).sqrt() * 0.7 * torch.randn(count, AHEAD, generator=chance))
    series = torch.cat(total, 1).clamp_min(0).round()
    facts = torch.cat([F.one_hot(day, 7).float(), holiday, warm, wet], 1)
    return [series[:, :PAST].contiguous(), facts, series[:, PAST:].contiguous()]


SALES = sales(4600, 2903)
SALES_MEAN, SALES_DEVIATION = SALES[0].mean(), SALES[0].std()
FACT_MEANS = torch.cat([torch.zeros(8), SALES[1][:, 8:].mean(0)])
FACT_DEVIATIONS = torch.cat([torch.ones(8), SALES[1][:, 8:].std(0)])


class Stack(nn.Module):
    """Maxima of the past, three maps, and few numbers that are drawn out to the past and to what is ahead."""

    def __init__(self, pool: int, back: int, fore: int) -> None:
        super().__init__()
        self.pool, self.sizes = nn.MaxPool1d(pool, pool), (back, fore)
        self.fc1, self.fc2 = nn.Linear(PAST // pool + 10, 48), nn.Linear(48, 48)
        self.theta = nn.Linear(48, back + fore)
        self.act: nn.Module = nn.ReLU()
        self.mode, self.sampled_first = "linear", True

    def forward(self, past: Tensor, facts: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([self.pool(past[:, None])[:, 0], facts], 1)
        theta = self.theta(self.act(self.fc2(self.act(self.fc1(seen)))))
        back, _ = self.sizes
        behind = F.interpolate(theta[:, None, :back], size=PAST, mode=self.mode)[:, 0]
        ahead = F.interpolate(theta[:, None, back:], size=AHEAD, mode=self.mode)[:, 0]
        return behind, ahead


class Bakery(nn.Module):
    """Three stacks from coarse to fine; each takes what it explains from the past, and answers are added."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList([Stack(8, 12, 6), Stack(4, 24, 12), Stack(1, 96, 24)])
        self.takes_away = True

    def forward(self, past: Tensor, facts: Tensor) -> Tensor:
        behind, found = self.stacks[0](past, facts)
        for stack in list(self.stacks)[1:]:
            past = past - behind if self.takes_away else past
            behind, ahead = stack(past, facts)
            found = found + ahead
        return found


def bakery() -> Subject:
    """Return an N-HiTS for a bakery; sales have mean 0 and deviation 1, and so have warmth and rain."""
    facts = (SALES[1] - FACT_MEANS) / FACT_DEVIATIONS
    data = [(SALES[0] - SALES_MEAN) / SALES_DEVIATION, facts, (SALES[2] - SALES_MEAN) / SALES_DEVIATION]
    subject = trained(Bakery, data, 600, 16, 5e-3, F.mse_loss, explained, 43)
    subject.options["metric"] = explained
    return subject


# --- surname: where a surname comes from (convolutions over characters, and highways) -------------------------------

LETTERS, LONGEST = "abcdefghijklmnopqrstuvwxyz", 16
STEMS = (
    ("ivan", "petr", "smirn", "kuzn", "mor", "vol", "sokol", "leb", "koz", "nov", "fed", "mikh"),
    ("ross", "bian", "ferr", "ric", "mar", "grec", "cont", "gall", "cost", "man", "lomb", "bar"),
    ("ta", "na", "ka", "ya", "mo", "shi", "su", "ki", "ha", "wa", "fu", "sa", "to", "mi"),
    ("hart", "lind", "gold", "stein", "rosen", "wein", "bach", "kauf", "berg", "neu", "schul", "korn"),
    ("nowak", "wis", "kowal", "lew", "zaj", "krol", "wojc", "maz", "szym", "wrob", "dab", "jas"),
    ("papad", "georg", "nikol", "dimitr", "konst", "ioan", "alex", "mich", "theod", "vas", "kar", "ant"),
    ("gonz", "rodr", "fern", "mart", "sanch", "alv", "gom", "rom", "jim", "herr", "dom", "vazqu"),
    ("boer", "hoek", "dijk", "velt", "post", "zand", "haan", "kamp", "terp", "veen", "hof", "buur"),
)
ENDS = (
    ("ov", "ev", "in", "sky", "enko", "off", "yn"),
    ("ini", "elli", "etti", "i", "one", "ucci", "o"),
    ("moto", "mura", "da", "to", "ki", "wa", "shita", "no"),
    ("mann", "berg", "stein", "bauer", "er", "ner", "haus"),
    ("owski", "czyk", "wicz", "ek", "ski", "niak", "a"),
    ("opoulos", "idis", "akis", "ou", "as", "atos", "oglou"),
    ("ez", "era", "ado", "es", "ina", "o", "os"),
    ("stra", "sma", "kamp", "sen", "huis", "ma", "er"),
)


def written(names: list[str]) -> Tensor:
    """Return numbers of characters: 0 fills up, 1 is an unknown one, and "a" is 2."""
    found = torch.zeros(len(names), LONGEST, dtype=torch.long)
    for row, name in enumerate(names):
        for column, letter in enumerate(name[:LONGEST]):
            found[row, column] = 2 + LETTERS.index(letter) if letter in LETTERS else 1
    return found


def surnames(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return numbers of characters, and one of eight languages; some letters are mistaken, some ends are foreign."""
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    numbers = torch.randint(1 << 30, (count, 6), generator=chance).tolist()
    names = []
    for label, (a, b, c, d, e, f) in zip(labels.tolist(), numbers, strict=True):
        stems, ends = STEMS[label], ENDS[d % 8 if c % 14 == 0 else label]
        name = stems[a % len(stems)] + (stems[d % len(stems)] if label == 2 and d % 2 else "") + ends[b % len(ends)]
        if e % 2 == 0:
            at = f % len(name)
            name = name[:at] + LETTERS[(f // 32) % 26] + name[at + (e % 4 == 0) :]
        names.append(name)
    return written(names), labels


class Highway(nn.Module):
    """A part of what a map makes, and of what came in the rest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.relu, self.sigmoid = nn.ReLU(), nn.Sigmoid()
        self.carries = True
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        gate, made = self.sigmoid(self.gate(x)), self.relu(self.transform(x))
        return gate * made + (1 - gate) * x if self.carries else (1 - gate) * made + gate * x


class Surname(nn.Module):
    """Rows of characters, filters of two, three and four characters, maxima, two highways and a language."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(28, 12, padding_idx=0)
        self.conv2, self.conv3, self.conv4 = nn.Conv1d(12, 20, 2), nn.Conv1d(12, 28, 3), nn.Conv1d(12, 32, 4)
        self.tanh: nn.Module = nn.Tanh()
        self.highway1, self.highway2 = Highway(80), Highway(80)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(80, 8)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.embed(letters).transpose(1, 2)
        parts = [self.tanh(conv(x)).amax(2) for conv in (self.conv2, self.conv3, self.conv4)]
        return self.out(self.drop(self.highway2(self.highway1(torch.cat(parts, 1)))))


def surname() -> Subject:
    """Return a network over characters for surnames."""
    return trained(Surname, list(surnames(6600, 2904)), 600, 9, 6e-3, F.cross_entropy, classes_right, 44)


# --- harbour: water, quays, ships and containers from above (a PSPNet) ----------------------------------------------

HARBOUR_MEANS = torch.tensor([0.36, 0.42, 0.45])[:, None, None]
HARBOUR_DEVIATIONS = torch.tensor([0.20, 0.17, 0.18])[:, None, None]


def harbours(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and a class for each pixel: water, quay, ship, or container."""
    chance = generator(seed)
    u = torch.rand(count, 40, 1, 1, generator=chance)
    y, x = SIDE[:, None].expand(32, 32)[None], SIDE[None].expand(32, 32)[None]
    angle = 2 * math.pi * u[:, 0]
    far = (y - 15.5) * angle.sin() + (x - 15.5) * angle.cos() - 10 * (u[:, 1] - 0.3)
    along = (y - 15.5) * angle.cos() - (x - 15.5) * angle.sin()
    labels = (far > 0).long()
    water = paint(0.14, 0.28, 0.38) + 0.12 * (u[:, 2:3] - 0.5) + 0.05 * rough(count, 12, 32, chance)
    stone = paint(0.5, 0.49, 0.46) + 0.16 * (u[:, 3:4] - 0.5) + 0.05 * rough(count, 16, 32, chance)
    images = torch.where((far > 0)[:, None], stone, water)
    for k in range(4, 16, 6):
        at, off = 26 * (u[:, k] - 0.5), 3.5 + 6 * u[:, k + 1]
        half, broad = 4 + 4 * u[:, k + 2], 1.6 + 1.2 * u[:, k + 3]
        there = ((along - at).abs() < half) & ((far + off).abs() < broad * (1 - ((along - at) / half).square() * 0.5))
        there = there & (far < -0.5)
        hull = paint(0.55, 0.5, 0.48) + 0.3 * (u[:, k + 4] - 0.5)[:, None] + 0.15 * (u[:, k + 5] - 0.5)[:, None]
        images, labels = torch.where(there[:, None], hull, images), torch.where(there, 2, labels)
    for k in range(16, 34, 6):
        at, off = 28 * (u[:, k] - 0.5), 2.5 + 9 * u[:, k + 1]
        there = ((along - at).abs() < 2 + 2.5 * u[:, k + 2]) & ((far - off).abs() < 1.6) & (far > 0.5)
        shade = torch.tensor([0.6, 0.25, 0.3]).view(1, 3, 1, 1) * u[:, k + 3 : k + 6]
        steel = paint(0.25, 0.3, 0.2) + shade
        images, labels = torch.where(there[:, None], steel, images), torch.where(there, 3, labels)
    images = images * (0.8 + 0.35 * u[:, 34:35]) + 0.06 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


def overlap(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean over four classes of intersection over union."""
    said, shares = outputs.argmax(1), []
    for k in range(4):
        both, either = ((said == k) & (labels == k)).sum(), ((said == k) | (labels == k)).sum()
        shares.append(both / either.clamp_min(1))
    return float(torch.stack(shares).mean())


class Unit(nn.Module):
    """A convolution, its norm and ReLU."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        pad = dilation * (size // 2)
        self.conv = nn.Conv2d(before, after, size, stride, pad, dilation, bias=False)
        self.bn, self.relu = nn.BatchNorm2d(after), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


class Residual(nn.Module):
    """Two convolutions with gaps, added to what came in."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, 1, dilation, dilation, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, dilation, dilation, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class Harbour(nn.Module):
    """A stem, residual blocks with gaps, means over parts of 1, 2 and 4 a side, all joined, and a class for pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Unit(3, 12, 3, 2), Unit(12, 24))
        self.layer1, self.layer2 = Residual(24, 1), Residual(24, 2)
        self.bins = (1, 2, 4)
        self.pyramid = nn.ModuleList([Unit(24, 8, 1) for _ in self.bins])
        self.bottleneck = Unit(48, 24)
        self.dropout, self.classifier = nn.Dropout(0.1), nn.Conv2d(24, 4, 1)
        self.corners = False

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(image)))
        parts = [x]
        for size, unit in zip(self.bins, self.pyramid, strict=True):
            part = unit(F.adaptive_avg_pool2d(x, size))
            parts.append(F.interpolate(part, size=(16, 16), mode="bilinear", align_corners=self.corners))
        x = self.classifier(self.dropout(self.bottleneck(torch.cat(parts, 1))))
        return F.interpolate(x, size=(32, 32), mode="bilinear", align_corners=self.corners)


def harbour() -> Subject:
    """Return a PSPNet for harbours, whose pictures have mean 0 and deviation 1."""
    images, labels = harbours(1300, 2905)
    data = [(images - HARBOUR_MEANS) / HARBOUR_DEVIATIONS, labels]
    subject = trained(Harbour, data, 300, 7, 8e-3, F.cross_entropy, overlap, 45)
    subject.options["metric"] = overlap
    return subject


# --- claim: whether an accident is reported within a year (an xDeepFM) ----------------------------------------------

SIZES, NUMBERS = (24, 16, 12, 8, 5, 4), 4


def contracts(count: int, seed: int) -> Arrays:
    """Return six categories (make, region, work, age of the car, use, payment), four numbers, and yes or no.

    Numbers are the driver's years, thousands of km a year, kW, and years without accidents.
    """
    world, chance = generator(29060), generator(seed)
    parts = [(size * torch.rand(count, generator=chance).pow(1.4)).long().clamp(max=size - 1) for size in SIZES]
    own = [0.8 * torch.randn(size, generator=world) for size in SIZES]
    pairs = [(0, 1), (2, 4), (0, 4), (1, 3), (2, 5)]
    kinds = (
        [torch.randn(SIZES[a], 2, generator=world) for a, _ in pairs],
        [torch.randn(SIZES[b], 2, generator=world) for _, b in pairs],
    )
    years = 18 + 60 * torch.rand(count, generator=chance).pow(1.2)
    km = torch.exp(2.5 + 0.5 * torch.randn(count, generator=chance))
    kw = 60 + 18 * own[0][parts[0]] + 25 * torch.rand(count, generator=chance) + 20
    free = (years - 18) * torch.rand(count, generator=chance) * 0.6
    risk = sum(table[part] for table, part in zip(own, parts, strict=True))
    for k, (a, b) in enumerate(pairs):
        risk = risk + 1.1 * (kinds[0][k][parts[a]] * kinds[1][k][parts[b]]).sum(1)
    risk = risk + 1.6 * ((years - 45) / 18).square() + 1.1 * (km / 13 - 1) + 0.025 * (kw - 90) - 0.11 * free
    risk = risk + 1.0 * (km / 13 - 1) * own[1][parts[1]] + 0.5 * torch.randn(count, generator=chance)
    numbers = torch.stack([years, km, kw, free], 1)
    return [torch.stack(parts, 1), numbers, (risk > risk.median()).float()[:, None]]


CONTRACTS = contracts(11600, 2906)
NUMBER_MEANS, NUMBER_DEVIATIONS = CONTRACTS[1].mean(0), CONTRACTS[1].std(0)


class Claim(nn.Module):
    """One table for all categories; a linear part, products of fields that are mixed twice, and a deep part; added."""

    def __init__(self) -> None:
        super().__init__()
        starts = torch.tensor([0, *SIZES[:-1]]).cumsum(0)
        self.register_buffer("starts", starts)
        self.width, fields = 8, len(SIZES) + NUMBERS
        self.embed, self.linear = nn.Embedding(sum(SIZES), 8), nn.Embedding(sum(SIZES), 1)
        self.numbers = nn.Parameter(0.3 * torch.randn(NUMBERS, 8))
        self.linear_numbers = nn.Linear(NUMBERS, 1)
        self.cin1, self.cin2 = nn.Conv1d(fields * fields, 12, 1), nn.Conv1d(fields * 12, 12, 1)
        self.cin_out, self.relu = nn.Linear(24, 1), nn.ReLU()
        self.fc1, self.bn1 = nn.Linear(fields * 8, 48), nn.BatchNorm1d(48)
        self.fc2, self.bn2 = nn.Linear(48, 24), nn.BatchNorm1d(24)
        self.drop, self.deep_out = nn.Dropout(0.1), nn.Linear(24, 1)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        rows = kinds + self.starts
        x = torch.cat([self.embed(rows), numbers[:, :, None] * self.numbers], 1)
        pairs = (x[:, :, None] * x[:, None]).flatten(1, 2)
        first = self.relu(self.cin1(pairs))
        second = self.relu(self.cin2((x[:, :, None] * first[:, None]).flatten(1, 2)))
        crossed = self.cin_out(torch.cat([first.sum(2), second.sum(2)], 1))
        deep = self.relu(self.bn1(self.fc1(x.flatten(1))))
        deep = self.deep_out(self.drop(self.relu(self.bn2(self.fc2(deep)))))
        return crossed + deep + self.linear(rows).sum(1) + self.linear_numbers(numbers)


def claim() -> Subject:
    """Return an xDeepFM for contracts; numbers have mean 0 and deviation 1."""
    data = [CONTRACTS[0], (CONTRACTS[1] - NUMBER_MEANS) / NUMBER_DEVIATIONS, CONTRACTS[2]]
    subject = trained(Claim, data, 600, 7, 6e-3, yes_or_no, signs_right, 46)
    subject.options["metric"] = signs_right
    return subject


# --- face: who stands before a door (a MobileFaceNet, whose answers are cosines) ------------------------------------

PEOPLE, GREY = 10, 127.5 / 255


def faces(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of ten people: they differ in shape, hair and colours."""
    world, chance = generator(29070), generator(seed)
    traits = torch.rand(PEOPLE, 16, generator=world)
    labels = torch.randint(PEOPLE, (count,), generator=chance)
    p, u = traits[labels][:, :, None, None], torch.rand(count, 20, 1, 1, generator=chance)
    y, x = SIDE[:, None] - 16 - 4 * (u[:, 0] - 0.5), SIDE[None] - 15.5 - 4 * (u[:, 1] - 0.5)
    tilt, size = 0.35 * (u[:, 2] - 0.5), 0.9 + 0.2 * u[:, 3]
    y, x = (y * tilt.cos() - x * tilt.sin()) / size, (y * tilt.sin() + x * tilt.cos()) / size
    x = x + 1.5 * (u[:, 4] - 0.5)
    head = torch.sigmoid(2 * (1 - ((y / (10 + 2 * p[:, 0])).square() + (x / (7 + 3 * p[:, 1])).square()).sqrt()) * 6)
    hair = head * torch.sigmoid(1.5 * (-5 - 3 * p[:, 2] - y + 0.25 * x.abs() * (p[:, 3] - 0.3)))
    apart, eye = 2.6 + 1.6 * p[:, 4], 0.8 + 0.9 * p[:, 5]
    eyes = torch.exp(-((x.abs() - apart).square() / (1.6 * eye) + (y + 2).square() / eye))
    slant = (p[:, 6] - 0.5) * 0.8
    brows = torch.exp(-(y + 4.4 + slant * (x.abs() - apart)).square()) * torch.exp(-((x.abs() - apart) / 2).pow(4))
    nose = torch.exp(-(x / (0.6 + 0.8 * p[:, 7])).square()) * torch.sigmoid(3 * (y + 1)) * torch.sigmoid(2 * (3 - y))
    opened = 0.6 + 0.8 * u[:, 5]
    mouth = torch.exp(-((y - 5.6 - 0.05 * (p[:, 8] - 0.5 + u[:, 6] - 0.5) * x.square()) / opened).square())
    mouth = mouth * torch.sigmoid(3 * (2 + 2.4 * p[:, 9] - x.abs()))
    skin = paint(0.72, 0.55, 0.45) + 0.22 * (p[:, 10:11] - 0.6) + 0.06 * (p[:, 11:12] - 0.5)
    locks = paint(0.3, 0.22, 0.16) + 0.4 * (p[:, 12:13] - 0.3) * paint(1.0, 0.8, 0.5)
    lips = paint(0.62, 0.3, 0.3) + 0.15 * (p[:, 13:14] - 0.5)
    ground = 0.3 + 0.4 * u[:, 7:8] + 0.3 * (u[:, 8:11] - 0.5) + 0.06 * rough(count, 6, 32, chance)
    images = ground + head[:, None] * (skin - ground)
    images = images + hair[:, None] * (locks - images)
    images = images - 0.5 * (eyes[:, None] + 0.6 * p[:, 14:15] * brows[:, None]) * images - 0.12 * nose[:, None]
    images = images + 0.8 * (head * mouth)[:, None] * (lips - images)
    light = 1 + 0.4 * (u[:, 11:12] - 0.5) * (x / 10)[:, None] + 0.3 * (u[:, 12:13] - 0.5)
    return in_bytes(images * light + 0.045 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class Prelu(nn.Module):
    """A convolution, its norm, and PReLU with a slope for each channel where wanted."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(after)
        self.prelu: nn.Module = nn.PReLU(after) if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.prelu(self.bn(self.conv(x)))


class Depthwise(nn.Module):
    """Wider, filtered channel by channel, narrower; added to what came in where both are alike."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv = Prelu(before, 2 * before, 1)
        self.conv_dw = Prelu(2 * before, 2 * before, 3, stride, 2 * before)
        self.project = Prelu(2 * before, after, 1, act=False)
        self.alike = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.conv_dw(self.conv(x)))
        return x + out if self.alike else out


class Face(nn.Module):
    """A stem, narrow blocks, a filter over all places of each channel, a vector of length one, and cosines times 16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2_dw = Prelu(3, 16, 3, 2), Prelu(16, 16, 3, 1, 16)
        self.conv_23, self.conv_3 = Depthwise(16, 24, 2), nn.Sequential(Depthwise(24, 24, 1), Depthwise(24, 24, 1))
        self.conv_34, self.conv_4 = Depthwise(24, 32, 2), Depthwise(32, 32, 1)
        self.conv_6_sep = Prelu(32, 64, 1)
        self.conv_6_dw, self.bn_dw = nn.Conv2d(64, 64, 4, groups=64, bias=False), nn.BatchNorm2d(64)
        self.linear, self.bn = nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32)
        self.people = nn.Linear(32, PEOPLE, bias=False)
        self.s, self.normalized = 16.0, True

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv_23(self.conv2_dw(self.conv1(image)))
        x = self.conv_6_sep(self.conv_4(self.conv_34(self.conv_3(x))))
        x = self.bn(self.linear(self.bn_dw(self.conv_6_dw(x)).flatten(1)))
        if self.normalized:
            x = x / x.square().sum(1, keepdim=True).sqrt()
        return self.s * self.people(x)


def face() -> Subject:
    """Return a MobileFaceNet for a door, whose pictures lie between -1 and 1; rows of people have length one."""
    images, labels = faces(1750, 2907)
    data = [(images - GREY) / GREY, labels]
    subject = trained(Face, data, 400, 8, 8e-3, F.cross_entropy, classes_right, 47)
    people = subject.model.get_submodule("people")
    assert isinstance(people, nn.Linear)
    people.weight.data = F.normalize(people.weight.data, dim=1)
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "waste": waste,
    "remote": remote,
    "bakery": bakery,
    "surname": surname,
    "harbour": harbour,
    "claim": claim,
    "face": face,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
