"""Eight ordinary small networks, trained on the spot: fabrics, galaxies, welds, cards, chats, drivers and more."""

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
    trained,
)
from torch import Tensor, nn


def paint(red: float, green: float, blue: float) -> Tensor:
    """Return a colour for pictures."""
    return torch.tensor([red, green, blue])[None, :, None, None]


def rough(count: int, cells: int, size: int, chance: torch.Generator) -> Tensor:
    """Return smooth chance of so many cells a side."""
    grid = torch.randn(count, 1, cells, cells, generator=chance)
    return F.interpolate(grid, size=(size, size), mode="bilinear", align_corners=False)


def in_bytes(images: Tensor) -> Tensor:
    """Return pictures as they are kept, in steps of 1/255."""
    return (images.clamp(0, 1) * 255).round() / 255


# --- fabric: defects of woven cloth (a ResNet with bottlenecks as in torchvision) -----------------------------------


def fabrics(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes: sound, hole, oil, ink, lost thread, knot."""
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    kind = F.one_hot(labels, 6).float()[:, :, None, None, None]
    y, x = side[:, None] - (8 + 16 * u[:, 0]), side[None] - (8 + 16 * u[:, 1])
    weave = torch.sin(side[:, None] * (1.3 + 0.5 * u[:, 2])) * torch.sin(side[None] * (1.3 + 0.5 * u[:, 3]))
    cloth = (
        0.42 + 0.3 * u[:, 4:5] + 0.16 * (u[:, 5:8] - 0.5) + 0.05 * weave[:, None] + 0.02 * rough(count, 5, 32, chance)
    )
    blob = (y.square() + x.square()).sqrt()[:, None] + 1.2 * rough(count, 8, 32, chance)
    small, large = torch.sigmoid(2 * (2.6 + 1.5 * u[:, 8:9] - blob)), torch.sigmoid(5 + 2 * u[:, 9:10] - blob)
    knot = torch.exp(-(y.square() + x.square()) / 3.5)[:, None]
    thread = torch.exp(-torch.where(u[:, 10] > 0.5, y + 0 * x, x + 0 * y).square() / 0.8)[:, None]
    images = cloth + kind[:, 1] * small * (0.08 - cloth)
    images = images + 0.6 * kind[:, 2] * large * (paint(0.5, 0.36, 0.12) - images)
    images = images + 0.6 * kind[:, 3] * large * (paint(0.14, 0.2, 0.5) - images)
    images = images + kind[:, 4] * thread * (0.16 + 0.1 * u[:, 11:12]) + kind[:, 5] * knot * (0.28 + 0.1 * u[:, 12:13])
    images = images * (0.85 + 0.3 * u[:, 13:14]) + 0.025 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


class Bottleneck(nn.Module):
    """Narrow, 3 × 3, widen fourfold, each with a norm; added to what came in."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride > 1 or before != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )
        self.added = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        if self.added:
            out = out + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class Fabric(nn.Module):
    """A stem, three stages of two bottlenecks, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1 = nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 8, 1))
        self.layer2 = nn.Sequential(Bottleneck(32, 12, 2), Bottleneck(48, 12, 1))
        self.layer3 = nn.Sequential(Bottleneck(48, 16, 2), Bottleneck(64, 16, 1))
        self.fc = nn.Linear(64, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(image)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def fabric() -> Subject:
    """Return a ResNet for fabrics, whose pictures are normalized as for ImageNet."""
    images, labels = fabrics(2600, 2301)
    return trained(Fabric, [(images - MEANS) / DEVIATIONS, labels], 500, 7, 1e-2, F.cross_entropy, classes_right, 21)


# --- galaxy: shapes of galaxies (a MobileNetV3 as in torchvision) ---------------------------------------------------

HALF = 0.5


def galaxies(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Elliptical ones (smooth, reddish), blue compact ones (smooth, bluish), spirals, rings, edges, and pairs that merge.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = side[:, None] - (13.5 + 5 * u[:, 0]), side[None] - (13.5 + 5 * u[:, 1])
    turn, size = math.pi * u[:, 2], 5.5 + 2.5 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    flat = 1.0 + 0.5 * u[:, 4]
    r = ((flat * y).square() + x.square()).sqrt()
    angle = torch.atan2(flat * y, x)
    smooth = torch.exp(-1.6 * r)
    winding = torch.where(u[:, 5] > 0.5, 1.0, -1.0)
    arms = (0.5 + 0.5 * torch.cos(2 * angle + winding * 4.5 * (r + 0.1).log() + 6 * u[:, 6])).square()
    spiral = 0.7 * torch.exp(-4 * r) + 0.75 * arms * torch.exp(-0.9 * r.square())
    ring = 0.6 * torch.exp(-5 * r) + 0.6 * torch.exp(-((r - 1.05) / 0.22).square())
    edge = torch.exp(-(y / 0.16).square() - (x.abs() / 1.3).pow(1.5))
    other = ((y - 0.9 + 0.3 * u[:, 7]).square() + (x - 0.6).square()).sqrt()
    merger = 0.8 * torch.exp(-2.6 * r) + 0.8 * torch.exp(-2.6 * other)
    light = torch.stack([smooth, smooth, spiral, ring, edge, merger])[labels, torch.arange(count)][:, None]
    warm, cold, white = paint(1.0, 0.78, 0.55), paint(0.55, 0.75, 1.0), paint(0.9, 0.88, 0.85)
    colour = torch.cat([warm, cold, white, white, white, white])[labels] + 0.16 * (u[:, 8:11] - 0.5)
    images = 0.08 + 0.06 * u[:, 11:12] + (0.55 + 0.35 * u[:, 12:13]) * light * colour
    star = torch.exp(-((side[:, None] - 32 * u[:, 13]).square() + (side[None] - 32 * u[:, 14]).square()) / 1.5)
    images = images + 0.6 * star[:, None] * (u[:, 15:16] > 0.5)
    return in_bytes(images + 0.035 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class Squeezed(nn.Module):
    """Factors for channels from their means, by convolutions of 1 × 1."""

    def __init__(self, width: int, least: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, least, 1), nn.Conv2d(least, width, 1)
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()
        self.used = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.used:
            return x
        factors = self.fc2(self.activation(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * self.scale_activation(factors)


def unit(before: int, after: int, size: int, stride: int, groups: int, act: nn.Module | None) -> nn.Sequential:
    """Return a convolution, its norm and perhaps an activation."""
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(after, eps=1e-3)]
    return nn.Sequential(*layers, *([act] if act is not None else []))


class InvertedResidual(nn.Module):
    """Widen, filter each channel, weigh channels, narrow; added where sizes are the same."""

    def __init__(self, before: int, inner: int, after: int, size: int, stride: int, hard: bool) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        self.block = nn.Sequential(
            unit(before, inner, 1, 1, 1, act()),
            unit(inner, inner, size, stride, inner, act()),
            Squeezed(inner, 8),
            unit(inner, after, 1, 1, 1, None),
        )
        self.use_res_connect = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        return x + out if self.use_res_connect else out


class Galaxy(nn.Module):
    """A stem, five inverted residuals, a last convolution, the mean, two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            unit(3, 12, 3, 2, 1, nn.Hardswish()),
            InvertedResidual(12, 24, 12, 3, 1, False),
            InvertedResidual(12, 36, 20, 3, 2, False),
            InvertedResidual(20, 48, 20, 5, 1, True),
            InvertedResidual(20, 56, 28, 3, 2, True),
            InvertedResidual(28, 64, 28, 3, 1, True),
            unit(28, 72, 1, 1, 1, nn.Hardswish()),
        )
        self.classifier = nn.Sequential(nn.Linear(72, 64), nn.Hardswish(), nn.Dropout(0.1), nn.Linear(64, 6))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image).mean((2, 3)))


def galaxy() -> Subject:
    """Return a MobileNetV3 for galaxies, whose pictures lie between -1 and 1."""
    images, labels = galaxies(2600, 2302)
    return trained(Galaxy, [(images - HALF) / HALF, labels], 500, 7, 8e-3, F.cross_entropy, classes_right, 22)


# --- weld: flaws of seams under X-rays (a RegNet as in timm) --------------------------------------------------------

GREY_MEAN, GREY_DEVIATION = 0.46, 0.13
COUNTS = 4095


def welds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 in one channel between 0 and 1 (12 bits), and one of six classes.

    Sound seams, pores (dark dots), cracks (a dark zigzag), lack of fusion (a dark straight line at the seam's edge),
    tungsten (bright grains), and burning through (a large dark spot).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 40, 1, 1, generator=chance)
    rows, columns = side[:, None].expand(32, 32)[None], side[None].expand(32, 32)[None]
    middle, half = 13 + 6 * u[:, 0], 6 + 3 * u[:, 1]
    seam = torch.sigmoid(1.2 * (half - (rows - middle).abs() + 0.6 * torch.sin(columns * (0.5 + 0.4 * u[:, 2]))))
    ripples = torch.sin(columns * (1.0 + 0.5 * u[:, 3]) + 0.05 * (rows - middle).square())
    images = (
        0.5 + 0.1 * (u[:, 4] - 0.5) - 0.13 * seam + 0.03 * seam * ripples + 0.03 * rough(count, 5, 32, chance)[:, 0]
    )

    def dots(first: int, size: float) -> Tensor:
        """Return grains in the seam."""
        found = torch.zeros(count, 32, 32)
        for k in range(first, first + 10, 2):
            y, x = middle + 0.8 * half * (2 * u[:, k] - 1), 3 + 26 * u[:, k + 1]
            found = torch.maximum(found, torch.exp(-((rows - y).square() + (columns - x).square()) / size))
        return found

    path = middle + half * (u[:, 25] - 0.5) + 1.6 * torch.sin(columns * 0.55 + 6 * u[:, 26]) + torch.sin(columns * 1.7)
    crack = torch.exp(-(rows - path).square() / 0.8) * ((columns - 16).abs() < 9 + 5 * u[:, 27])
    line = torch.exp(-(rows - middle - half * torch.where(u[:, 28] > 0.5, 0.85, -0.85)).square() / 1.2)
    spot = torch.sigmoid(5 - ((rows - middle).square() + (columns - 8 - 16 * u[:, 29]).square()).sqrt())
    flaws = torch.stack([0 * spot, -dots(5, 1.6), -crack, -line, dots(15, 1.6), -spot])[labels, torch.arange(count)]
    images = images + (0.16 + 0.1 * u[:, 30]) * flaws + 0.03 * torch.randn(count, 32, 32, generator=chance)
    return (images[:, None].clamp(0, 1) * COUNTS).round() / COUNTS, labels


class RegBlock(nn.Module):
    """1 × 1, 3 × 3 in groups, squeeze and excitation, 1 × 1; added to what came in."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, stride, 1, groups=after // 8, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.se_down, self.se_up = nn.Conv2d(after, 8, 1), nn.Conv2d(8, after, 1)
        self.conv3, self.bn3 = nn.Conv2d(after, after, 1, bias=False), nn.BatchNorm2d(after)
        self.act, self.gate = nn.ReLU(), nn.Sigmoid()
        self.downsample: nn.Module | None = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(x)))
        out = self.act(self.bn2(self.conv2(out)))
        out = out * self.gate(self.se_up(self.act(self.se_down(out.mean((2, 3), keepdim=True)))))
        out = self.bn3(self.conv3(out))
        return self.act(out + (x if self.downsample is None else self.downsample(x)))


class Weld(nn.Module):
    """A stem, three stages, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.s1 = nn.Sequential(RegBlock(16, 24, 1))
        self.s2 = nn.Sequential(RegBlock(24, 40, 2), RegBlock(40, 40, 1))
        self.s3 = nn.Sequential(RegBlock(40, 64, 2))
        self.head = nn.Linear(64, 6)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.s3(self.s2(self.s1(self.stem(image)))).mean((2, 3)))


def weld() -> Subject:
    """Return a RegNet for welds, whose pictures have about mean 0 and deviation 1."""
    images, labels = welds(2600, 2303)
    data = [(images - GREY_MEAN) / GREY_DEVIATION, labels]
    return trained(Weld, data, 500, 7, 8e-3, F.cross_entropy, classes_right, 23)


# --- card: suits of cards (a SqueezeNet as in torchvision) ----------------------------------------------------------


def cards(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Red hearts, red diamonds, black clubs, black spades, blue hearts and green diamonds.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    y, x = (12 + 8 * u[:, 0]) - side[:, None], side[None] - (12 + 8 * u[:, 1])
    turn, size = 0.5 * (u[:, 2] - 0.5), 6 + 3 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size

    def heart(y: Tensor) -> Tensor:
        """Return less than 0 inside."""
        return (x.square() + y.square() - 0.8).pow(3) - x.square() * y.pow(3)

    stem = torch.maximum(x.abs() - 0.16, (y + 0.65).abs() - 0.4)
    leaves = [(x - a).square() + (y - b).square() - 0.19 for a, b in ((0.0, 0.45), (-0.45, -0.15), (0.45, -0.15))]
    club = torch.minimum(torch.minimum(torch.minimum(leaves[0], leaves[1]), leaves[2]), stem)
    diamond = x.abs() / 0.7 + y.abs() - 1
    spade = torch.minimum(4 * heart(-y), stem)
    shapes = torch.stack([4 * heart(y), diamond, club, spade, 4 * heart(y), diamond])[labels, torch.arange(count)]
    inside = torch.sigmoid(-9 * shapes)[:, None]
    tones = [paint(0.78, 0.12, 0.14)] * 2 + [paint(0.1, 0.1, 0.12)] * 2 + [paint(0.14, 0.2, 0.7), paint(0.1, 0.55, 0.2)]
    ink = torch.cat(tones)[labels] + 0.12 * (u[:, 4:7] - 0.5)
    ground = 0.86 + 0.1 * (u[:, 7:10] - 0.5) + 0.02 * rough(count, 6, 32, chance)
    images = (ground + inside * (ink - ground)) * (0.65 + 0.4 * u[:, 10:11])
    images = images * (1 - 0.3 * u[:, 11:12] * (side / 32)[None, None, None])
    return in_bytes(images + 0.03 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class Fire(nn.Module):
    """A convolution that squeezes, two that expand, side by side."""

    def __init__(self, before: int, least: int, after: int) -> None:
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(before, least, 1), nn.ReLU()
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(least, after, 1), nn.ReLU()
        self.expand3x3, self.expand3x3_activation = nn.Conv2d(least, after, 3, padding=1), nn.ReLU()
        self.small_first = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        parts = [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))]
        return torch.cat(parts if self.small_first else parts[::-1], 1)


class Card(nn.Module):
    """A stem, four fire modules with pooling between, a convolution for classes, and the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 20, 3, 2, 1),
            nn.ReLU(),
            Fire(20, 12, 20),
            Fire(40, 12, 20),
            nn.MaxPool2d(2),
            Fire(40, 16, 32),
            Fire(64, 16, 32),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.05), nn.Conv2d(64, 6, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image)).mean((2, 3))


def card() -> Subject:
    """Return a SqueezeNet for cards, whose pictures lie between 0 and 1."""
    images, labels = cards(2600, 2304)
    return trained(Card, [images, labels], 500, 12, 3e-3, F.cross_entropy, classes_right, 24)


# --- chat: what a reply in a chat is (an ELECTRA with embeddings of less width, and two kinds of tokens) ------------

TOKENS, LONG = 90, 22
PAD, CLS, SEP, UNK, NOT = range(5)
GREETING, COMPLAINT, PRAISE, SPAM, QUESTION = range(5)
HINTS, OTHERS = 10, 55


def chats(count: int, seed: int) -> Arrays:
    """Return tokens of a message and its reply, the mask, kinds of tokens, and what the reply is.

    Tokens from 5 are hints, ten for each of five classes, and from 55 others; only the reply's hint counts, and "not"
    before it turns complaints and praise round.
    """
    chance = generator(seed)
    dice = torch.rand(count, 40, generator=chance).tolist()
    ids, kinds = torch.full((count, LONG), PAD), torch.zeros(count, LONG, dtype=torch.long)
    labels = torch.zeros(count, dtype=torch.long)
    for row, u in enumerate(dice):
        at = iter(u)

        def draw(least: int, beyond: int, at: object = at) -> int:
            return least + int((beyond - least) * next(at))  # type: ignore[call-overload]

        def text(topic: int, turned: bool, draw: Callable[..., int] = draw) -> list[int]:
            """Return words with a hint among them."""
            words = [draw(OTHERS, TOKENS) for _ in range(draw(2, 7))]
            hint = [NOT] * turned + [5 + HINTS * topic + draw(0, HINTS)]
            place = draw(0, len(words) + 1)
            return words[:place] + hint + words[place:]

        topic, before = draw(0, 5), draw(0, 5)
        turned = topic in (COMPLAINT, PRAISE) and draw(0, 10) < 4
        first, second = text(before, draw(0, 10) < 2), text(topic, turned)
        words = [CLS, *first, SEP, *second, SEP]
        ids[row, : len(words)] = torch.tensor(words)
        kinds[row, len(first) + 2 : len(words)] = 1
        labels[row] = COMPLAINT + PRAISE - topic if turned else topic
    return [ids, (ids != PAD).long(), kinds, labels]


class ElectraEmbeddings(nn.Module):
    """Rows for tokens, places and kinds, their sum, and a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(TOKENS, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(LONG + 2, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        for table in (self.word_embeddings, self.position_embeddings, self.token_type_embeddings):
            nn.init.normal_(table.weight, 0, 0.3)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(LONG))

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.token_type_embeddings(kinds)
        return self.LayerNorm(x + self.position_embeddings(self.position_ids))


class ElectraLayer(nn.Module):
    """Attention and two maps, norms behind the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.attention_output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.output = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.act: nn.Module = nn.GELU()
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            part(x).view(batch, count, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale + shade, -1)
        seen = (weights @ v).transpose(1, 2).reshape(batch, count, width)
        x = self.attention_norm(x + self.attention_output(seen))
        return self.output_norm(x + self.output(self.act(self.intermediate(x))))


class Chat(nn.Module):
    """Embeddings, a map to the width of layers, two layers, and from the first token two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.embeddings_project = ElectraEmbeddings(24), nn.Linear(24, 40)
        self.layer = nn.ModuleList([ElectraLayer(40, 4), ElectraLayer(40, 4)])
        self.dense, self.act, self.drop = nn.Linear(40, 40), nn.GELU(), nn.Dropout(0.05)
        self.out_proj = nn.Linear(40, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        shade = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        x = self.embeddings_project(self.embeddings(input_ids, token_type_ids))
        for layer in self.layer:
            x = layer(x, shade)
        return self.out_proj(self.drop(self.act(self.dense(x[:, 0]))))


def chat() -> Subject:
    """Return an ELECTRA for chats."""
    return trained(Chat, chats(5000, 2305), 500, 8, 4e-3, F.cross_entropy, classes_right, 25)


# --- driver: how somebody drives (a GRU on signals of a car) --------------------------------------------------------

STEPS = 40
DRIVER_MEANS = torch.tensor([80.0, 2200.0, 30.0, 6.0, 0.0])
DRIVER_DEVIATIONS = torch.tensor([28.0, 700.0, 16.0, 10.0, 9.0])


def drives(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return speed (km/h), turns of the engine, throttle (%), brake (bar) and steering (°) of 40 steps, and a class.

    Calm, aggressive, drowsy, distracted, and in a queue.
    """
    chance = generator(seed)
    labels = torch.randint(5, (count,), generator=chance)
    kind = F.one_hot(labels, 5).float()[:, :, None]
    t = torch.arange(float(STEPS))[None]
    u = torch.rand(count, 16, 1, generator=chance)

    def wave(slow: float, fast: float, k: int) -> Tensor:
        """Return a wave of a period between two."""
        period = slow + (fast - slow) * u[:, k]
        return torch.sin(2 * math.pi * (t / period + u[:, k + 1]))

    _, aggressive, drowsy, distracted, queue = kind.unbind(1)
    lively, lazy = wave(6, 11, 0), wave(18, 40, 2)
    push = 26 + 12 * u[:, 4] + 7 * lazy + aggressive * 20 * lively + queue * 14 * wave(11, 17, 5)
    held = torch.where((t + 8 * u[:, 7]) % 9 < 4.5, 1.0, -1.0)
    push = push + distracted * 9 * held + 4 * torch.randn(count, STEPS, generator=chance)
    brake = (aggressive * (-26 * lively - 6) + queue * (-24 * wave(11, 17, 5) - 4)).clamp_min(0) + 14 * (lazy < -0.9)
    brake = (brake + 1.5 * torch.randn(count, STEPS, generator=chance)).clamp_min(0)
    start = 55 + 65 * u[:, 8] - 20 * queue * u[:, 9]
    gain = (push - push.mean(1, keepdim=True)) * 0.09 - (brake - brake.mean(1, keepdim=True)) * 0.25
    speed = (start + gain.cumsum(1)).clamp(0, 160)
    gear = (speed / 30).floor().clamp(0, 4)
    turns = 900 + speed * (62 - 9 * gear) + 9 * push + 60 * torch.randn(count, STEPS, generator=chance)
    jerk = torch.where((t + 13 * u[:, 10]) % 14 < 2, 1.0, 0.0)
    steer = 7 * wave(20, 45, 11) * u[:, 13] + drowsy * (9 * wave(24, 30, 14) - 14 * jerk)
    steer = steer + distracted * 5 * wave(3, 5, 14) + 1.5 * torch.randn(count, STEPS, generator=chance)
    return torch.stack([speed, turns, push.clamp(0, 100), brake, steer], 2), labels


class Driver(nn.Module):
    """Two layers of a GRU, the mean of states, a norm and two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 28, 2, batch_first=True)
        self.norm, self.fc1, self.act, self.fc2 = nn.LayerNorm(28), nn.Linear(28, 32), nn.ReLU(), nn.Linear(32, 5)
        self.by_mean = True

    def forward(self, signals: Tensor) -> Tensor:
        states, _ = self.gru(signals)
        x = states.mean(1) if self.by_mean else states[:, -1]
        return self.fc2(self.act(self.fc1(self.norm(x))))


def driver() -> Subject:
    """Return a GRU for drivers; signals have about mean 0 and deviation 1."""
    signals, labels = drives(3000, 2306)
    data = [(signals - DRIVER_MEANS) / DRIVER_DEVIATIONS, labels]
    return trained(Driver, data, 500, 6, 8e-3, F.cross_entropy, classes_right, 26)


# --- concrete: how strong concrete gets (a wide and deep network for tables) ----------------------------------------

CURINGS = 4


def mixtures(count: int, seed: int) -> Arrays:
    """Return kg/m³ of cement, slag, ash, water, superplasticizer, gravel, sand, and days; curing; and MPa.

    Curing is in air, under film, in water or in steam.
    """
    chance = generator(seed)
    u = torch.rand(count, 8, generator=chance)
    curing = torch.randint(CURINGS, (count,), generator=chance)
    cement, slag = 120 + 400 * u[:, 0], 250 * (u[:, 1] - 0.4).clamp_min(0) / 0.6
    ash, water = 180 * (u[:, 2] - 0.45).clamp_min(0) / 0.55, 135 + 95 * u[:, 3]
    plast = 22 * (u[:, 4] - 0.3).clamp_min(0)
    gravel, sand = 800 + 340 * u[:, 5], 600 + 390 * u[:, 6]
    days = torch.tensor([1.0, 3, 7, 14, 28, 56, 90, 180])[(8 * u[:, 7]).long()]
    binder = cement + 0.75 * slag + 0.45 * ash
    ratio = binder / (water - 2.2 * plast)
    early = torch.tensor([0.62, 0.85, 1.0, 1.15])[curing]
    late = torch.tensor([0.8, 0.92, 1.08, 0.9])[curing]
    age = 0.14 + 0.27 * days.log() * late + 0.12 * early * torch.exp(-days / 10)
    strength = 17 * ratio.pow(1.05) * age * (1 - 0.35 * ((sand / (sand + gravel) - 0.43) / 0.1).square().clamp(max=1.5))
    strength = strength + 1.5 * torch.randn(count, generator=chance)
    return [torch.stack([cement, slag, ash, water, plast, gravel, sand, days], 1), curing, strength[:, None]]


MIXTURES = mixtures(6500, 2307)
MIX_MEANS, MIX_DEVIATIONS = MIXTURES[0].mean(0), MIXTURES[0].std(0)
STRENGTH_MEAN, STRENGTH_DEVIATION = MIXTURES[2].mean(), MIXTURES[2].std()


class Concrete(nn.Module):
    """Numbers and a row for the curing, three maps with norms and SiLU, and a number from them and from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.curing = nn.Embedding(CURINGS, 4)
        self.fc1, self.bn1, self.act1 = nn.Linear(12, 48), nn.BatchNorm1d(48), nn.SiLU()
        self.fc2, self.bn2, self.act2 = nn.Linear(48, 48), nn.BatchNorm1d(48), nn.SiLU()
        self.fc3, self.bn3, self.act3 = nn.Linear(48, 24), nn.BatchNorm1d(24), nn.SiLU()
        self.out = nn.Linear(24 + 12, 1)

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        wide = torch.cat([numbers, self.curing(kind)], 1)
        x = self.act1(self.bn1(self.fc1(wide)))
        x = self.act2(self.bn2(self.fc2(x)))
        return self.out(torch.cat([self.act3(self.bn3(self.fc3(x))), wide], 1))


def concrete() -> Subject:
    """Return a network for mixtures; numbers have mean 0 and deviation 1."""
    strength = (MIXTURES[2] - STRENGTH_MEAN) / STRENGTH_DEVIATION
    data = [(MIXTURES[0] - MIX_MEANS) / MIX_DEVIATIONS, MIXTURES[1], strength]
    subject = trained(Concrete, data, 500, 14, 6e-3, F.mse_loss, explained, 27)
    subject.options["metric"] = explained
    return subject


# --- quake: when waves of an earthquake arrive (a U-Net in one dimension, as PhaseNet) ------------------------------

TICKS = 128
NANOMETRES = 800.0


def quakes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return nm/s of three components (up, north, east), 128 ticks, and for each tick: before, behind P, behind S."""
    chance = generator(seed)
    t = torch.arange(float(TICKS))[None]
    u = torch.rand(count, 16, 1, generator=chance)
    first = 18 + 50 * u[:, 0]
    second = first + 14 + 36 * u[:, 1]
    there = (u[:, 2] > 0.12).float()
    loud = 900 + 1600 * u[:, 3].square()

    def ringing(start: Tensor, k: int, last: float) -> Tensor:
        """Return a wave that begins at once and dies away."""
        since = (t - start).clamp_min(0)
        tone = torch.sin(2 * math.pi * (since * (0.11 + 0.1 * u[:, k]) + 0.002 * u[:, k + 1] * since.square()))
        return (t >= start).float() * torch.exp(-since / last) * tone

    p, s = ringing(first, 4, 22.0), ringing(second, 6, 40.0)
    slow = torch.sin(2 * math.pi * t * (0.03 + 0.015 * u[:, 8]) + 6 * u[:, 9])
    turn = 2 * math.pi * u[:, 10]
    up = there * loud * (p + 0.25 * s)
    north = there * loud * (0.2 * p + 1.5 * s * turn.cos())
    east = there * loud * (0.2 * p + 1.5 * s * turn.sin())
    noise = 110 + 120 * u[:, 11]
    signal = torch.stack([up, north, east], 1) + (noise * slow)[:, None]
    signal = signal + noise[:, None] * torch.randn(count, 3, TICKS, generator=chance)
    labels = ((t >= first).long() + (t >= second).long()) * there.long()
    return signal, labels


def conv1d(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution over time, its norm and ReLU."""
    conv = nn.Conv1d(before, after, 7, stride, 3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm1d(after), nn.ReLU())


class Quake(nn.Module):
    """Down three times by a stride, up three times by transposed convolutions beside what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = conv1d(3, 8)
        self.down1, self.down2, self.down3 = conv1d(8, 12, 2), conv1d(12, 20, 2), conv1d(20, 32, 2)
        self.up1, self.up2, self.up3 = (
            nn.ConvTranspose1d(32, 20, 2, 2),
            nn.ConvTranspose1d(20, 12, 2, 2),
            nn.ConvTranspose1d(12, 8, 2, 2),
        )
        self.mix1, self.mix2, self.mix3 = conv1d(40, 20), conv1d(24, 12), conv1d(16, 12)
        self.out = nn.Conv1d(12, 3, 1)

    def forward(self, waves: Tensor) -> Tensor:
        x0 = self.inc(waves)
        x1 = self.down1(x0)
        x2 = self.down2(x1)
        x = self.up1(self.down3(x2))
        x = self.up2(self.mix1(torch.cat([x2, x], 1)))
        x = self.up3(self.mix2(torch.cat([x1, x], 1)))
        return self.out(self.mix3(torch.cat([x0, x], 1)))


def quake() -> Subject:
    """Return a network for earthquakes, whose signals are divided by one number."""
    signal, labels = quakes(2200, 2308)
    return trained(Quake, [signal / NANOMETRES, labels], 400, 8, 1e-2, F.cross_entropy, classes_right, 28)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "fabric": fabric,
    "galaxy": galaxy,
    "weld": weld,
    "card": card,
    "chat": chat,
    "driver": driver,
    "concrete": concrete,
    "quake": quake,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
