"""Seven ordinary small networks, trained on the spot: corals, meals, rain, hotels, cows, mails and a road."""

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
from torch import Tensor, nn

SIDE = torch.arange(32.0)


def rough(count: int, coarse: int, side: int, chance: torch.Generator) -> Tensor:
    """Return smooth maps of chance of one channel, between about -2 and 2."""
    small = torch.randn(count, 1, coarse, coarse, generator=chance)
    return F.interpolate(small, size=side, mode="bicubic", align_corners=True)


def paint(red: float, green: float, blue: float) -> Tensor:
    """Return a colour for pictures."""
    return torch.tensor([red, green, blue]).view(1, 3, 1, 1)


def in_bytes(images: Tensor) -> Tensor:
    """Return pictures between 0 and 1 as a camera keeps them, in steps of 1/255."""
    return (images.clamp(0, 1) * 255).round() / 255


# --- coral: what grows on a reef (an Xception) ----------------------------------------------------------------------


def reefs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Brain (winding ridges), staghorn (branches), table (rings about a middle), bubble (bright round knobs), fan (rays
    from a foot), and dead coral under algae (rough and greenish); all in the blue light of water.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = SIDE[:, None] - (11 + 10 * u[:, 0]), SIDE[None] - (11 + 10 * u[:, 1])
    bent = 3.0 * rough(count, 5, 32, chance)[:, 0]
    angle = 2 * math.pi * u[:, 2]
    along, aside = y * angle.cos() - x * angle.sin(), y * angle.sin() + x * angle.cos()
    far = (y.square() + x.square()).sqrt()
    ridges = torch.sin((along + bent) * (1.0 + 0.4 * u[:, 3]) + 1.2 * torch.sin(aside * 0.5))
    left, right = (along + 0.7 * aside + bent * 0.5) * 0.75, (along - 0.7 * aside + bent * 0.5) * 0.75
    branches = torch.maximum(torch.cos(left).clamp_min(0) ** 6, torch.cos(right).clamp_min(0) ** 6)
    rings = torch.cos(far * (1.0 + 0.4 * u[:, 4]) + 6 * u[:, 5])
    pitch = 0.9 + 0.3 * u[:, 6]
    knobs = (torch.cos(along * pitch + 0.4 * bent) * torch.cos(aside * pitch)).clamp_min(0) ** 2
    rays = torch.cos(torch.atan2(aside, along) * (9 + 5 * u[:, 7]).round()) * (far / 10).clamp(max=1)
    algae = 0.6 * rough(count, 14, 32, chance)[:, 0]
    relief = torch.stack([ridges, 2 * branches - 0.6, rings, 2 * knobs - 0.5, rays, algae])[labels, torch.arange(count)]
    brown, tan, straw = paint(0.5, 0.42, 0.34), paint(0.52, 0.44, 0.3), paint(0.5, 0.4, 0.36)
    pale, violet, green = paint(0.56, 0.48, 0.4), paint(0.5, 0.36, 0.46), paint(0.4, 0.46, 0.32)
    colour = torch.cat([brown, tan, straw, pale, violet, green])[labels] + 0.24 * (u[:, 8:11] - 0.5)
    images = colour + (0.1 + 0.06 * u[:, 11:12]) * relief[:, None] * paint(1.0, 0.95, 0.8)
    depth = 0.25 + 0.5 * u[:, 12:13]
    images = images * (1 - depth * paint(0.5, 0.1, 0.0)) + depth * paint(0.0, 0.06, 0.14)
    images = images * (0.8 + 0.3 * u[:, 13:14])
    return in_bytes(images + 0.1 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class SeparableConv2d(nn.Module):
    """A convolution for each channel and one of 1 × 1, without an activation between them, and a norm."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, before, 3, 1, 1, groups=before, bias=False)
        self.between: nn.Module = nn.Identity()
        self.pointwise, self.bn = nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.pointwise(self.between(self.conv1(x))))


class XceptionBlock(nn.Module):
    """Two separable convolutions behind activations, a maximum, and a convolution of 1 × 1 around all of it."""

    def __init__(self, before: int, after: int, first: bool = True) -> None:
        super().__init__()
        self.relu1: nn.Module = nn.ReLU() if first else nn.Identity()
        self.relu2: nn.Module = nn.ReLU()
        self.sep1, self.sep2 = SeparableConv2d(before, after), SeparableConv2d(after, after)
        self.pool: nn.Module = nn.MaxPool2d(3, 2, 1)
        self.skip, self.skipbn = nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.pool(self.sep2(self.relu2(self.sep1(self.relu1(x)))))
        return out + self.skipbn(self.skip(x))


class MiddleBlock(nn.Module):
    """Two separable convolutions behind activations, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relu1: nn.Module = nn.ReLU()
        self.relu2: nn.Module = nn.ReLU()
        self.sep1, self.sep2 = SeparableConv2d(width, width), SeparableConv2d(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sep2(self.relu2(self.sep1(self.relu1(x))))


class Coral(nn.Module):
    """Two convolutions, an entry of two blocks, a middle, a last separable convolution, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12, eps=1e-3)
        self.conv2, self.bn2 = nn.Conv2d(12, 20, 3, 1, 1, bias=False), nn.BatchNorm2d(20, eps=1e-3)
        self.relu: nn.Module = nn.ReLU()
        self.block1, self.block2 = XceptionBlock(20, 32, False), XceptionBlock(32, 48)
        self.block3, self.conv3 = MiddleBlock(48), SeparableConv2d(48, 64)
        self.drop, self.fc = nn.Dropout(0.1), nn.Linear(64, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(image))))))
        x = self.relu(self.conv3(self.block3(self.block2(self.block1(x)))))
        return self.fc(self.drop(x.mean((2, 3))))


def coral() -> Subject:
    """Return an Xception for corals, whose pictures lie between -1 and 1."""
    images, labels = reefs(2400, 2601)
    return trained(Coral, [images * 2 - 1, labels], 500, 7, 8e-3, F.cross_entropy, classes_right, 61)


# --- meal: what lies on a tray (a SegFormer) ------------------------------------------------------------------------

MEAL_MEANS = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
MEAL_DEVIATIONS = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def trays(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and for each pixel one of five classes.

    The tray, rice (pale grains), meat (brown stripes of a grill), greens (mottled), and sauce (red and smooth).
    """
    chance = generator(seed)
    u = torch.rand(count, 48, 1, 1, generator=chance)
    labels = torch.zeros(count, 32, 32, dtype=torch.long)
    bent = 1.3 * rough(count, 6, 32, chance)[:, 0]
    for k in torch.arange(5):
        y, x = SIDE[:, None] - (5 + 22 * u[:, 6 * k]), SIDE[None] - (5 + 22 * u[:, 6 * k + 1])
        inside = (y.square() + x.square()).sqrt() + bent < 4.5 + 4.5 * u[:, 6 * k + 2]
        kind = 1 + (4 * u[:, 6 * k + 3]).long().clamp(max=3)
        labels = torch.where(inside, kind, labels)
    y, x = SIDE[:, None].expand(32, 32), SIDE[None].expand(32, 32)
    angle = math.pi * u[:, 30]
    grill = torch.sin((y * angle.cos() + x * angle.sin()) * (1.6 + 0.4 * u[:, 31]))
    grains = torch.randn(count, 32, 32, generator=chance)
    mottled = rough(count, 16, 32, chance)[:, 0]
    relief = torch.stack([0.02 * bent, 0.09 * grains, 0.12 * grill, 0.11 * mottled, 0.02 * bent])
    tray = paint(0.62, 0.6, 0.56) + 0.4 * (u[:, 32:33] - 0.5) + 0.1 * (u[:, 33:36] - 0.5)
    rice, meat, greens, sauce = (
        paint(*colour) + 0.2 * (u[:, 36 + 2 * k : 37 + 2 * k] - 0.5)
        for k, colour in enumerate([(0.76, 0.73, 0.64), (0.48, 0.34, 0.24), (0.38, 0.5, 0.26), (0.62, 0.28, 0.2)])
    )
    pick = F.one_hot(labels, 5).permute(3, 0, 1, 2).float()[:, :, None]
    images = sum(pick[k] * (c + relief[k][:, None]) for k, c in enumerate([tray, rice, meat, greens, sauce]))
    light = 0.75 + 0.4 * u[:, 44:45] + 0.008 * (SIDE[None] - 16) * (2 * u[:, 45:46] - 1)
    return in_bytes(images * light + 0.05 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class EfficientAttention(nn.Module):
    """Attention of all places to a map made smaller by a convolution."""

    def __init__(self, width: int, heads: int, side: int, less: int) -> None:
        super().__init__()
        self.heads, self.scale, self.side = heads, (width // heads) ** -0.5, side
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.sr, self.norm = nn.Conv2d(width, width, less, less), nn.LayerNorm(width)
        self.axis = -1

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q = self.q(x).reshape(batch, count, self.heads, -1).transpose(1, 2)
        small = self.sr(x.transpose(1, 2).reshape(batch, width, self.side, self.side)).flatten(2).transpose(1, 2)
        k, v = self.kv(self.norm(small)).reshape(batch, -1, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.scale, self.axis)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))


class MixBlock(nn.Module):
    """Attention, and two maps with a convolution for each channel between them, each behind a norm and added."""

    def __init__(self, width: int, heads: int, side: int, less: int) -> None:
        super().__init__()
        self.side = side
        self.norm1, self.attn = nn.LayerNorm(width), EfficientAttention(width, heads, side, less)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dwconv = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width)
        self.act: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        inner = self.fc1(self.norm2(x))
        batch, _, width = inner.shape
        inner = self.dwconv(inner.transpose(1, 2).reshape(batch, width, self.side, self.side))
        return x + self.fc2(self.act(inner.flatten(2).transpose(1, 2)))


class Stage(nn.Module):
    """Patches that overlap, a norm, blocks, and a norm; answers with a map."""

    def __init__(self, before: int, width: int, heads: int, side: int, less: int, deep: int) -> None:
        super().__init__()
        self.side = side
        self.proj, self.norm = nn.Conv2d(before, width, 3, 2, 1), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*[MixBlock(width, heads, side, less) for _ in range(deep)])
        self.last = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        batch, width, _, _ = x.shape
        x = self.last(self.blocks(self.norm(x.flatten(2).transpose(1, 2))))
        return x.transpose(1, 2).reshape(batch, width, self.side, self.side)


class Meal(nn.Module):
    """Two stages, whose maps become as wide and as large, are joined, and give a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2 = Stage(3, 16, 2, 16, 4, 1), Stage(16, 32, 4, 8, 2, 2)
        self.linear1, self.linear2 = nn.Conv2d(16, 24, 1), nn.Conv2d(32, 24, 1)
        self.fuse, self.bn, self.relu = nn.Conv2d(48, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        self.pred = nn.Conv2d(24, 5, 1)
        self.mode, self.deep_first = "bilinear", True

    def forward(self, image: Tensor) -> Tensor:
        x1 = self.stage1(image)
        x2 = self.linear2(self.stage2(x1))
        x2 = F.interpolate(x2, scale_factor=2.0, mode=self.mode)
        x1 = self.linear1(x1)
        x = torch.cat([x2, x1] if self.deep_first else [x1, x2], 1)
        return F.interpolate(self.pred(self.relu(self.bn(self.fuse(x)))), scale_factor=2.0, mode=self.mode)


def meal() -> Subject:
    """Return a SegFormer for meals, whose pictures are normalized as those of ImageNet."""
    images, labels = trays(1150, 2602)
    data = [(images - MEAL_MEANS) / MEAL_DEVIATIONS, labels]
    return trained(Meal, data, 250, 11, 6e-3, F.cross_entropy, classes_right, 62)


# --- radar: rain in ten minutes (a network of ConvLSTM) -------------------------------------------------------------

FRAMES, DBZ_MEAN, DBZ_DEVIATION = 5, 14.0, 12.0


def skies(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return dBZ of five frames of a radar, 16 × 16, and the frame that comes after the next.

    Showers drift with one wind, and each grows or fades.
    """
    chance = generator(seed)
    u = torch.rand(count, 32, 1, 1, 1, generator=chance)
    t = torch.arange(float(FRAMES + 2)).view(1, -1, 1, 1)
    side = torch.arange(16.0)
    wind_y, wind_x = 2.2 * (u[:, 0] - 0.5), 2.2 * (u[:, 1] - 0.5)
    rain = torch.zeros(count, FRAMES + 2, 16, 16)
    for k in range(2, 27, 5):
        y = side[:, None] - (22 * u[:, k] - 3 + wind_y * (t - 4))
        x = side[None] - (22 * u[:, k + 1] - 3 + wind_x * (t - 4))
        size = 1.6 + 2.2 * u[:, k + 2]
        growth = torch.exp(0.22 * (u[:, k + 3] - 0.5) * (t - 4))
        rain = rain + 10 ** (1.2 + 2.3 * u[:, k + 4]) * growth * torch.exp(-(y.square() + x.square()) / size.square())
    dbz = 10 * torch.log10(rain + 1.0) + 0.8 * torch.randn(rain.shape, generator=chance)
    return dbz[:, :FRAMES, None].contiguous(), dbz[:, FRAMES + 1 :].contiguous()


class ConvLSTMCell(nn.Module):
    """A step of an LSTM whose maps are convolutions; gates are input, forget, output and candidates."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before + width, 4 * width, 3, 1, 1)
        self.state_first = False
        self.act: nn.Module = nn.Tanh()

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.conv(torch.cat([h, x] if self.state_first else [x, h], 1))
        i, f, o, g = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * self.act(g)
        return torch.sigmoid(o) * self.act(c), c


class Radar(nn.Module):
    """A convolution for each frame, two cells one above the other, and two convolutions to a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.act = nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2)
        self.cell1, self.cell2 = ConvLSTMCell(8, 16), ConvLSTMCell(16, 16)
        self.decode, self.head = nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.Conv2d(13, 1, 3, 1, 1)
        self.newest_first = False

    def forward(self, frames: Tensor) -> Tensor:
        h1 = torch.zeros(frames.shape[0], 16, 8, 8, device=frames.device)
        c1, h2, c2 = h1, h1, h1
        for k in reversed(range(FRAMES)) if self.newest_first else range(FRAMES):
            x = self.act(self.encode(frames[:, k]))
            h1, c1 = self.cell1(x, h1, c1)
            h2, c2 = self.cell2(h1, h2, c2)
        x = self.act(self.decode(h2))
        return self.head(torch.cat([x, frames[:, FRAMES - 1]], 1))


def radar() -> Subject:
    """Return a network of ConvLSTM for rain; dBZ have about mean 0 and deviation 1, also in answers."""
    seen, ahead = skies(1400, 2603)
    data = [(seen - DBZ_MEAN) / DBZ_DEVIATION, (ahead - DBZ_MEAN) / DBZ_DEVIATION]
    subject = trained(Radar, data, 300, 9, 8e-3, F.mse_loss, explained, 63)
    subject.options["metric"] = explained
    return subject


# --- hotel: whether a room is booked (a DLRM) -----------------------------------------------------------------------

PLACES, HOTELS, DEVICES, LANDS = 40, 120, 6, 30


def bookings(count: int, seed: int) -> Arrays:
    """Return place, hotel, device and country, five numbers as they are in the log, and yes or no.

    Numbers are the price in euro, days until the stay, nights, guests, and how often the page was seen.
    """
    world, chance = generator(26040), generator(seed)
    place_of = torch.randint(PLACES, (HOTELS,), generator=world)
    stars, charm = torch.rand(HOTELS, generator=world), torch.randn(HOTELS, 2, generator=world)
    warmth, device_likes = torch.randn(PLACES, generator=world), torch.randn(DEVICES, generator=world)
    land_likes, land_rich = torch.randn(LANDS, 2, generator=world), torch.randn(LANDS, generator=world)
    hotel = (HOTELS * torch.rand(count, generator=chance) ** 1.3).long()
    place = place_of[hotel]
    device = torch.randint(DEVICES, (count,), generator=chance)
    land = (LANDS * torch.rand(count, generator=chance) ** 1.5).long()
    noise = torch.randn(count, 5, generator=chance)
    price = torch.exp(4.4 + 0.8 * stars[hotel] + 0.45 * noise[:, 0])
    days = torch.exp(3.0 + 1.1 * noise[:, 1]).round()
    nights = 1 + torch.exp(0.7 + 0.6 * noise[:, 2]).floor()
    guests = 1 + (2.2 * torch.rand(count, generator=chance) ** 2 + 0.8).floor()
    seen = torch.exp(0.9 + 0.9 * noise[:, 3]).round()
    wish = 1.4 * (charm[hotel] * land_likes[land]).sum(1) + 0.8 * warmth[place] * torch.tanh(noise[:, 1])
    wish = wish - 1.5 * noise[:, 0] + 0.7 * land_rich[land] * noise[:, 0] + 0.7 * torch.log1p(seen)
    wish = wish + 0.7 * device_likes[device] - 0.5 * noise[:, 2] * (guests - 2)
    wish = wish + 0.3 * torch.randn(count, generator=chance)
    numbers = torch.stack([price, days, nights, guests, seen], 1)
    return [place, hotel, device, land, numbers, (wish > wish.median()).float()[:, None]]


BOOKINGS = bookings(20600, 2604)
LOGARITHMS = torch.log1p(BOOKINGS[4])
NUMBER_MEANS, NUMBER_DEVIATIONS = LOGARITHMS.mean(0), LOGARITHMS.std(0)


class Hotel(nn.Module):
    """Rows of four tables and a map of the numbers, all products of two of them, and three maps to a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.hotels = nn.Embedding(PLACES, 12), nn.Embedding(HOTELS, 12)
        self.devices, self.lands = nn.Embedding(DEVICES, 12), nn.Embedding(LANDS, 12)
        self.bottom = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 12), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(12 + 10, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Dropout(0.05), nn.Linear(24, 1)
        )
        first, second = torch.tril_indices(5, 5, -1)
        self.register_buffer("pairs", first * 5 + second)
        for table in (self.places, self.hotels, self.devices, self.lands):
            nn.init.normal_(table.weight, 0, 0.3)

    def forward(self, place: Tensor, hotel: Tensor, device: Tensor, land: Tensor, numbers: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = [dense, self.places(place), self.hotels(hotel), self.devices(device), self.lands(land)]
        vectors = torch.stack(rows, 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([dense, products], 1))


def hotel() -> Subject:
    """Return a DLRM for bookings, whose numbers are logarithms of mean 0 and deviation 1."""
    data = [*BOOKINGS[:4], (LOGARITHMS - NUMBER_MEANS) / NUMBER_DEVIATIONS, BOOKINGS[5]]
    return trained(Hotel, data, 600, 12, 8e-3, yes_or_no, signs_right, 64)


# --- cow: what a cow does (an LSTM-FCN on a collar's accelerometer) -------------------------------------------------

SAMPLES, GRAVITY = 80, 9.81


def collars(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return m/s² of three axes in 80 samples of a collar, and one of six classes.

    Grazing (head down, short tugs), ruminating (regular chewing with pauses), walking (steps in two axes), lying
    (almost still), drinking (head down and up once), licking (bursts).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    t = torch.arange(float(SAMPLES)) / 10
    u = torch.rand(count, 16, 1, generator=chance)

    def tone(least: float, most: float, k: int) -> Tensor:
        """Return a wave of a frequency between two."""
        return torch.sin(2 * math.pi * (t * (least + (most - least) * u[:, k]) + u[:, k + 1]))

    still = torch.zeros(count, SAMPLES)
    chew = tone(0.9, 1.3, 0) * (torch.sin(2 * math.pi * (t / (4 + 2 * u[:, 2]) + u[:, 3])) > -0.6).float()
    tug = tone(1.3, 1.9, 4).clamp_min(0) ** 4
    step, double = tone(0.8, 1.2, 6), tone(1.6, 2.4, 6)
    down = torch.exp(-((t - 2 - 4 * u[:, 8]) / 1.5).square())
    lick = tone(2.2, 3.0, 9) * torch.exp(-((t - 1 - 6 * u[:, 11]) / 1.2).square())
    tilt = torch.tensor([0.9, 0.1, 0.2, -0.1, 0.3, 0.35])[labels][:, None] + 0.35 * (u[:, 12] - 0.5)
    tilt = tilt + 0.7 * down * (labels == 4).float()[:, None]
    x = torch.stack([1.8 * tug, 0.5 * chew, 0.9 * step, still, 0.4 * tug * down, 1.6 * lick])
    y = torch.stack([0.6 * tug, 0.9 * chew, 0.5 * double, still, 0.2 * still, 2.0 * lick])
    z = torch.stack([0.9 * tug, 0.4 * chew, 1.5 * double, still, 0.3 * down, 0.7 * lick])
    own = torch.stack([x, y, z], 3)[labels, torch.arange(count)] * (0.7 + 0.6 * u[:, 13:14])
    side = 0.3 * (u[:, 14] - 0.5).expand(-1, SAMPLES)
    rest = torch.stack([torch.sin(tilt), side, torch.cos(tilt)], 2)
    signals = GRAVITY * rest + 1.3 * own + 1.25 * torch.randn(count, SAMPLES, 3, generator=chance)
    return signals.transpose(1, 2).contiguous(), labels


COLLARS = collars(2400, 2605)
AXIS_MEANS, AXIS_DEVIATIONS = COLLARS[0].mean((0, 2))[:, None], COLLARS[0].std((0, 2))[:, None]


class Cow(nn.Module):
    """Three convolutions with norms and their mean, beside an LSTM over means of four samples; joined to a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(3, 24, 7, 1, 3, bias=False), nn.BatchNorm1d(24)
        self.conv2, self.bn2 = nn.Conv1d(24, 32, 5, 1, 2, bias=False), nn.BatchNorm1d(32)
        self.conv3, self.bn3 = nn.Conv1d(32, 24, 3, 1, 1, bias=False), nn.BatchNorm1d(24)
        self.relu: nn.Module = nn.ReLU()
        self.window: nn.Module = nn.AvgPool1d(4)
        self.lstm, self.drop = nn.LSTM(3, 20, batch_first=True), nn.Dropout(0.2)
        self.fc = nn.Linear(24 + 20, 6)
        self.lstm_first, self.step = True, -1

    def forward(self, signals: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(signals)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.relu(self.bn3(self.conv3(x))).mean(2)
        states, _ = self.lstm(self.window(signals).transpose(1, 2))
        last = self.drop(states[:, self.step])
        return self.fc(torch.cat([last, x] if self.lstm_first else [x, last], 1))


def cow() -> Subject:
    """Return an LSTM-FCN for cows, whose signals have mean 0 and deviation 1 in each axis."""
    data = [(COLLARS[0] - AXIS_MEANS) / AXIS_DEVIATIONS, COLLARS[1]]
    return trained(Cow, data, 500, 9, 8e-3, F.cross_entropy, classes_right, 65)


# --- mail: what a customer wants (an encoder as in T5) --------------------------------------------------------------

WORDS, LONG, WISHES, OWN = 128, 24, 5, 14
NOT, DENIED, FIRST_OWN = 2, 3, 10


def mails(count: int, seed: int) -> Arrays:
    """Return numbers of 24 pieces, 0 behind the last, and one of five classes.

    Each class has fourteen words, the others are common. A mail has about as many words of what is not wanted, each
    of them behind "not", or before a mark of denial.
    """
    chance = generator(seed)
    labels = torch.randint(WISHES, (count,), generator=chance)
    decoy = (labels + torch.randint(1, WISHES, (count,), generator=chance)) % WISHES
    lengths = torch.randint(14, LONG + 1, (count, 1), generator=chance)
    own = torch.rand(count, LONG, generator=chance) < 0.5
    denied = (torch.rand(count, LONG, generator=chance) < 0.45) & own
    denied[:, 0], denied[:, -1] = False, False
    behind = torch.rand(count, LONG, generator=chance) < 0.5
    meant = torch.where(denied, decoy[:, None], labels[:, None])
    words = FIRST_OWN + OWN * meant + torch.randint(OWN, (count, LONG), generator=chance)
    common = torch.randint(FIRST_OWN + OWN * WISHES, WORDS, (count, LONG), generator=chance)
    text = torch.where(own, words, common)
    none = torch.zeros(count, 1, dtype=torch.bool)
    text = torch.where(torch.cat([(denied & ~behind)[:, 1:], none], 1), NOT, text)
    text = torch.where(torch.cat([none, (denied & behind)[:, :-1]], 1), DENIED, text)
    return [torch.where(torch.arange(LONG) < lengths, text, 0), labels]


class T5LayerNorm(nn.Module):
    """Division by the root of the mean of squares."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def buckets(both_ways: bool = True, many: int = 16, farthest: int = 32) -> Tensor:
    """Return the row of the table of distances for each two places, as in T5."""
    apart = torch.arange(LONG)[None] - torch.arange(LONG)[:, None]
    if both_ways:
        many = many // 2
        base, size = (apart > 0).long() * many, apart.abs()
    else:
        base, size = torch.zeros_like(apart), (-apart).clamp_min(0)
    exact = many // 2
    far = exact + (torch.log(size.clamp_min(1).float() / exact) / math.log(farthest / exact) * (many - exact)).long()
    return base + torch.where(size < exact, size, far.clamp(max=many - 1))


class T5Layer(nn.Module):
    """Attention without a division by the root of the width, and a gated map, each behind a norm and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.divisor = heads, 1.0
        self.norm1, self.norm2 = T5LayerNorm(width), T5LayerNorm(width)
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wi_0, self.wi_1 = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.wo, self.act = nn.Linear(2 * width, width, bias=False), nn.GELU("tanh")
        nn.init.normal_(self.q.weight, 0, width**-0.5 * (width // heads) ** -0.5)
        nn.init.normal_(self.k.weight, 0, width**-0.5)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, count, width = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(batch, count, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) / self.divisor + bias, -1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(batch, count, width))
        y = self.norm2(x)
        return x + self.wo(self.act(self.wi_0(y)) * self.wi_1(y))


class Mail(nn.Module):
    """Rows of words, distances for all layers, two layers, a norm, the mean of what is there, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.relative_attention_bias = nn.Embedding(WORDS, 32), nn.Embedding(16, 4)
        self.register_buffer("buckets", buckets())
        self.layers = nn.ModuleList([T5Layer(32, 4), T5Layer(32, 4)])
        self.final_layer_norm, self.drop, self.head = T5LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, WISHES)
        self.masked = True
        nn.init.normal_(self.relative_attention_bias.weight, 0, 0.5)

    def forward(self, text: Tensor) -> Tensor:
        there = (text > 0).float()
        bias = self.relative_attention_bias(self.buckets).permute(2, 0, 1)[None]
        if self.masked:
            bias = bias + (1 - there)[:, None, None] * -100.0
        x = self.shared(text)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.final_layer_norm(x) * there[:, :, None]
        return self.head(self.drop(x.sum(1) / there.sum(1, keepdim=True)))


def mail() -> Subject:
    """Return an encoder as in T5 for mails."""
    return trained(Mail, mails(8600, 2606), 600, 12, 6e-3, F.cross_entropy, classes_right, 66)


# --- pilot: how a car is steered (a PilotNet) -----------------------------------------------------------------------

TO_YUV = torch.tensor([[0.299, 0.587, 0.114], [-0.147, -0.289, 0.436], [0.615, -0.515, -0.1]])


def streets(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 24 × 48 between 0 and 1 in red, green and blue, and an angle of the wheel of about ±1.

    A road with lines at its sides that bends and lies off the middle of the picture, meadows, and shadows.
    """
    chance = generator(seed)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = torch.arange(24.0)[:, None], torch.arange(48.0)[None]
    near = ((y + 1) / 24).expand(24, 48)
    bend, off = 2 * u[:, 0] - 1, 2 * u[:, 1] - 1
    middle = 23.5 + 9 * off * near + 17 * bend * (1 - near).square()
    half = 2.5 + 15 * near
    away = (x - middle).abs() / half
    road = torch.sigmoid(8 * (1 - away) * half / 4)
    line = torch.exp(-((away - 0.88) * half / 1.1).square())
    dashes = torch.exp(-(away * half / 0.8).square()) * (torch.sin(16 / near.sqrt() + 6 * u[:, 2]) > 0).float()
    grey = paint(0.36, 0.36, 0.38) + 0.14 * (u[:, 3:4] - 0.5)
    green = paint(0.3, 0.42, 0.2) + 0.2 * (u[:, 4:7] - 0.5) + 0.06 * rough(count, 12, 48, chance)[:, :, :24]
    images = green + road[:, None] * (grey - green)
    paint_of_lines = paint(0.85, 0.82, 0.6) * (0.8 + 0.3 * u[:, 7:8])
    images = images + 0.8 * (line + (u[:, 8] > 0.4) * dashes)[:, None].clamp(max=1) * (paint_of_lines - images)
    shadow = torch.sigmoid(x - 48 * u[:, 9]) * torch.sigmoid(48 * u[:, 9] + 14 - x) * (u[:, 10] > 0.5)
    images = images * (1 - 0.5 * shadow[:, None]) * (0.6 + 0.6 * u[:, 11:12])
    angle = 0.75 * bend + 0.45 * off + 0.25 * bend * off
    images = images + 0.05 * torch.randn(count, 3, 24, 48, generator=chance)
    return in_bytes(images), angle[:, 0] + 0.03 * torch.randn(count, 1, generator=chance)


def in_yuv(images: Tensor) -> Tensor:
    """Return pictures of bytes in brightness and two differences of colour from those in red, green and blue."""
    mixed = torch.einsum("kc,nchw->nkhw", TO_YUV, images) + torch.tensor([0.0, 0.5, 0.5])[:, None, None]
    return (mixed * 255).round()


class Pilot(nn.Module):
    """Bytes to numbers between -1 and 1, four convolutions with ELU and no norms, and three maps to an angle."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = 127.5
        self.conv1, self.conv2 = nn.Conv2d(3, 12, 5, 2), nn.Conv2d(12, 16, 5, 2)
        self.conv3, self.conv4 = nn.Conv2d(16, 24, 3, 1, (0, 1)), nn.Conv2d(24, 24, (1, 3))
        self.act: nn.Module = nn.ELU()
        self.fc1, self.fc2, self.fc3 = nn.Linear(24 * 7, 48), nn.Linear(48, 12), nn.Linear(12, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = image / self.middle - 1.0
        x = self.act(self.conv2(self.act(self.conv1(x))))
        x = self.act(self.conv4(self.act(self.conv3(x))))
        x = self.act(self.fc1(torch.flatten(x, 1)))
        return self.fc3(self.act(self.fc2(x)))


def pilot() -> Subject:
    """Return a PilotNet for roads, whose pictures are bytes in YUV."""
    images, angles = streets(3000, 2607)
    subject = trained(Pilot, [in_yuv(images), angles], 400, 12, 3e-3, F.mse_loss, explained, 67)
    subject.options["metric"] = explained
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "coral": coral,
    "meal": meal,
    "radar": radar,
    "hotel": hotel,
    "cow": cow,
    "mail": mail,
    "pilot": pilot,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
