"""Eight ordinary small networks of daily practice, trained on the spot: as tutorials and repositories build them."""

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
    generator,
    signs_right,
    trained,
)
from torch import Tensor, nn

# --- scores ----------------------------------------------------------------------------------------------------------


def mean_overlap(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean over classes of intersection over union."""
    said = outputs.argmax(1)
    shares = []
    for kind in range(outputs.shape[1]):
        both = ((said == kind) & (labels == kind)).sum().item()
        either = ((said == kind) | (labels == kind)).sum().item()
        shares.append(both / max(1, either))
    return sum(shares) / len(shares)


# --- resnet: fruit and how ripe it is (a ResNet as in torchvision) ---------------------------------------------------


def fruits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of nine classes: three fruits, green, ripe or overripe."""
    chance = generator(seed)
    labels = torch.randint(9, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = side[:, None] - (10 + 12 * u[:, 0]), side[None] - (10 + 12 * u[:, 1])
    turn, size = 1.2 * (u[:, 2] - 0.5), 5.5 + 3.0 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    apple = (y.square() + (0.92 * x).square() < 0.8) & ~((x.abs() < 0.16) & (y < -0.7))
    banana = (y.square() + x.square() < 1.2) & ((y + 0.62).square() + (0.85 * x).square() > 0.85)
    pear = ((y - 0.3).square() + x.square() < 0.5) | ((y + 0.55).square() + x.square() < 0.2)
    inside = torch.stack([apple, banana, pear])[labels // 3, torch.arange(count)]
    ripe = (labels % 3)[:, None, None] / 2 + 0.42 * (u[:, 4] - 0.5)
    green, yellow, brown = (
        torch.tensor(colour)[None, :, None, None]
        for colour in ((0.38, 0.6, 0.22), (0.82, 0.68, 0.25), (0.52, 0.3, 0.16))
    )
    early, late = (1 - 2 * ripe).clamp_min(0)[:, None], (2 * ripe - 1).clamp_min(0)[:, None]
    colour = early * green + late * brown + (1 - early - late) * yellow
    shade = 1 - 0.25 * (y + x)[:, None].clamp(-1, 1)
    ground = 0.2 + 0.6 * u[:, 5:8] * (0.5 + 0.5 * u[:, 8:9]) + 0.15 * (u[:, 9:10] - 0.5) * side / 16
    light = 0.82 + 0.3 * u[:, 10:11]
    images = torch.where(inside[:, None], colour * shade, ground) * light
    images = images + 0.06 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class BasicBlock(nn.Module):
    """Two convolutions of 3 × 3, and what came in."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A stem, three stages of two blocks, the mean, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32))
        self.layer3 = nn.Sequential(BasicBlock(32, 48, 2), BasicBlock(48, 48))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(48, 9)

    def forward(self, image: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet() -> Subject:
    """Return a ResNet for fruit, whose pictures are normalized as for ImageNet."""
    images, labels = fruits(2500, 201)
    data = [(images - MEANS) / DEVIATIONS, labels]
    return trained(ResNet, data, 500, 7, 1e-2, F.cross_entropy, classes_right, 1)


# --- mobilenet: flowers by petals and colour (inverted residuals as in torchvision) ----------------------------------


def flowers(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of eight classes: 3 to 6 petals, pink or orange."""
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = side[:, None] - (12 + 8 * u[:, 0]), side[None] - (12 + 8 * u[:, 1])
    far, angle = (y.square() + x.square()).sqrt(), torch.atan2(y, x)
    petals = 3 + (labels // 2)[:, None, None]
    size = 7.5 + 3.0 * u[:, 2]
    edge = size * (0.62 + 0.38 * torch.cos(petals * (angle + 6.3 * u[:, 3])))
    flower, heart = torch.sigmoid(2 * (edge - far)), torch.sigmoid(2 * (0.25 * size - far))
    pink = (labels % 2)[:, None, None].float()
    colour = torch.stack(
        [
            0.85 - 0.1 * u[:, 4] + 0 * pink,
            0.45 - 0.12 * pink + 0.16 * (u[:, 5] - 0.5),
            0.3 + 0.2 * pink + 0.2 * u[:, 6],
        ],
        1,
    )
    leaves = torch.stack([0.2 + 0.3 * u[:, 7], 0.35 + 0.3 * u[:, 8], 0.15 + 0.2 * u[:, 9]], 1)
    leaves = leaves + 0.12 * torch.sin(side * (0.3 + 0.6 * u[:, 10:11]) + side[:, None] * u[:, 11:12] + 6 * u[:, 12:13])
    middle = torch.tensor([0.8, 0.7, 0.2])[None, :, None, None]
    images = leaves + flower[:, None] * (colour - leaves)
    images = images + heart[:, None] * (middle - images)
    images = images * (0.85 + 0.3 * u[:, 13:14]) + 0.05 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


def conv_bn_relu6(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution, its norm and ReLU6."""
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Widen, a depthwise convolution, narrow; added where sizes are the same."""

    def __init__(self, before: int, after: int, stride: int, widen: int) -> None:
        super().__init__()
        inner = before * widen
        self.conv = nn.Sequential(
            conv_bn_relu6(before, inner, 1),
            conv_bn_relu6(inner, inner, 3, stride, inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.use_res_connect = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNet(nn.Module):
    """A stem, five inverted residuals, a last convolution, the mean, dropout and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn_relu6(3, 16, 3, 2),
            InvertedResidual(16, 16, 1, 2),
            InvertedResidual(16, 24, 2, 3),
            InvertedResidual(24, 24, 1, 3),
            InvertedResidual(24, 32, 2, 3),
            InvertedResidual(32, 32, 1, 3),
            conv_bn_relu6(32, 80, 1),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(80, 8))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image).mean([2, 3]))


def mobilenet() -> Subject:
    """Return a MobileNet for flowers, whose pictures lie between -1 and 1."""
    images, labels = flowers(2700, 202)
    data = [(images - 0.5) / 0.5, labels]
    return trained(MobileNet, data, 500, 8, 1.2e-2, F.cross_entropy, classes_right, 2)


# --- vgg: figures (convolutions without norms, and dropout) ----------------------------------------------------------

INK_MEAN, INK_DEVIATION = 0.1307, 0.3081
FONT = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def figures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return written figures of 28 × 28, light on dark between 0 and 1, and which they are."""
    chance = generator(seed)
    labels = torch.randint(10, (count,), generator=chance)
    font = torch.tensor([[[float(dot) for dot in row] for row in sign.split()] for sign in FONT])
    font = F.pad(font, (2, 2, 1, 1))[labels][:, None]
    u = torch.rand(count, 12, generator=chance)
    turn, lean = 0.6 * (u[:, 0] - 0.5), 0.6 * (u[:, 1] - 0.5)
    tall, wide = 1.0 + 0.4 * u[:, 2], 1.05 + 0.5 * u[:, 3]
    one = torch.stack([wide * turn.cos(), wide * (lean - turn.sin()), 0.5 * (u[:, 4] - 0.5)], 1)
    two = torch.stack([tall * turn.sin(), tall * turn.cos(), 0.5 * (u[:, 5] - 0.5)], 1)
    grid = F.affine_grid(torch.stack([one, two], 1), [count, 1, 28, 28], align_corners=False)
    wave = torch.linspace(-3, 3, 28)
    bend = 0.12 * (u[:, 6, None] - 0.5) * 2
    grid[..., 0] += (bend * torch.sin(wave + 6 * u[:, 7, None]))[:, :, None]
    grid[..., 1] += (bend * torch.sin(wave + 6 * u[:, 8, None]))[:, None]
    images = F.grid_sample(font, grid, align_corners=False)
    bold, dark = (u[:, k, None, None, None] for k in (9, 10))
    ink = (images * (1.4 + 0.8 * bold) - 0.25).clamp(0, 1) * (0.7 + 0.3 * dark)
    images = ink + 0.16 * torch.randn(ink.shape, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class Vgg(nn.Module):
    """Four convolutions without norms, two maps, and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(32 * 49, 80), nn.ReLU(), nn.Dropout(0.5), nn.Linear(80, 10))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(image), 1))


def vgg() -> Subject:
    """Return a network without norms for figures, normalized as in every tutorial."""
    images, labels = figures(2900, 203)
    data = [(images - INK_MEAN) / INK_DEVIATION, labels]
    return trained(Vgg, data, 500, 7, 4e-3, F.cross_entropy, classes_right, 3)


# --- unet: cells and their membranes (a U-Net) -----------------------------------------------------------------------


def cells(count: int, seed: int) -> Arrays:
    """Return pictures of 32 × 32 in grey between 0 and 1; each pixel is ground, a cell or its membrane."""
    chance = generator(seed)
    side = torch.arange(32.0)
    u = torch.rand(count, 6, 10, 1, 1, generator=chance)
    rows, columns = side[:, None], side[None]
    images = 0.42 + 0.16 * (u[:, 5, 0] - 0.5) + 0.012 * (u[:, 5, 1] - 0.5) * rows + 0.012 * (u[:, 5, 2] - 0.5) * columns
    labels = torch.zeros(count, 32, 32, dtype=torch.long)
    for k in range(5):
        y, x = rows - (3 + 26 * u[:, k, 0]), columns - (3 + 26 * u[:, k, 1])
        turn = math.pi * u[:, k, 2]
        along, across = y * turn.cos() + x * turn.sin(), x * turn.cos() - y * turn.sin()
        long, short = 4.5 + 3.0 * u[:, k, 3], 3.5 + 2.0 * u[:, k, 4]
        far = ((along / long).square() + (across / short).square()).sqrt()
        if k == 4:
            debris = far < 0.35
            images = torch.where(debris, 0.75 + 0.2 * u[:, k, 5], images)
            labels = torch.where(debris, 0, labels)
            continue
        inner, all_ = far < 1 - 1.6 / short, far < 1
        images = torch.where(all_, 0.2 + 0.12 * u[:, k, 5], images)
        images = torch.where(inner, 0.5 + 0.16 * u[:, k, 6] + 0.06 * torch.sin(1.6 * along) * u[:, k, 7], images)
        labels = torch.where(all_, 2, labels)
        labels = torch.where(inner, 1, labels)
    images = images + 0.05 * torch.randn(images.shape, generator=chance)
    return [(images.clamp(0, 1) * 255).round()[:, None] / 255, labels]


class DoubleConv(nn.Module):
    """Twice a convolution, its norm and ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Up(nn.Module):
    """Twice the size, what was there before beside it, and two convolutions."""

    def __init__(self, before: int, beside: int, after: int) -> None:
        super().__init__()
        self.up: nn.Module = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = DoubleConv(before + beside, after)

    def forward(self, deep: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, self.up(deep)], 1))


class UNet(nn.Module):
    """Down twice and up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(1, 8), DoubleConv(8, 16), DoubleConv(16, 24)
        self.pool = nn.MaxPool2d(2)
        self.up1, self.up2 = Up(24, 16, 16), Up(16, 8, 8)
        self.outc = nn.Conv2d(8, 3, 1)

    def forward(self, picture: Tensor) -> Tensor:
        x1 = self.inc(picture)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        return self.outc(self.up2(self.up1(x3, x2), x1))


def unet() -> Subject:
    """Return a U-Net for cells, whose pictures lie between 0 and 1."""
    subject = trained(UNet, cells(1100, 204), 300, 7, 1e-2, F.cross_entropy, mean_overlap, 4)
    subject.options["metric"] = mean_overlap
    return subject


# --- sentiment: what people thought (a table of words and two LSTM layers) -------------------------------------------

VOCABULARY, REVIEW, PAD, UNKNOWN, NOT, BUT, VERY = 96, 24, 0, 1, 2, 3, 4
GOOD, BAD, OTHER = 5, 20, 35


def reviews(count: int, seed: int) -> Arrays:
    """Return words padded in front, and whether they are against, undecided or in favour.

    Words from 5 to 19 are in favour, from 20 to 34 against. "Not" turns the next one round, "very" counts it twice, and
    after "but" all count twice.
    """
    chance = generator(seed)
    dice = torch.rand(count, REVIEW, 2, generator=chance).tolist()
    lengths = torch.randint(8, REVIEW + 1, (count,), generator=chance).tolist()
    leans = (torch.rand(count, generator=chance)).tolist()
    ids, labels = torch.zeros(count, REVIEW, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    for row in range(count):
        words: list[int] = []
        score, weight, turned, twice, said_but = 0, 1, False, False, False
        for what, which in dice[row][: lengths[row]]:
            if what < 0.3 or turned or twice:
                good = which < 0.2 + 0.6 * leans[row]
                words.append((GOOD if good else BAD) + int(1500 * which) % 15)
                value = (1 if good else -1) * (-1 if turned else 1) * (2 if twice else 1)
                score += weight * value
                turned = twice = False
            elif what < 0.4 and len(words) < lengths[row] - 1:
                words.append(NOT)
                turned = True
            elif what < 0.46 and len(words) < lengths[row] - 1:
                words.append(VERY)
                twice = True
            elif what < 0.52 and not said_but:
                words.append(BUT)
                weight, said_but = 3, True
            else:
                words.append(OTHER + int((VOCABULARY - OTHER) * which))
        ids[row, REVIEW - len(words) :] = torch.tensor(words)
        labels[row] = 2 if score > 1 else 0 if score < -1 else 1
    return [ids, labels]


class Sentiment(nn.Module):
    """Words, two LSTM layers, the last state, dropout and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32, padding_idx=PAD)
        self.lstm = nn.LSTM(32, 40, 2, batch_first=True, dropout=0.1)
        self.dropout, self.fc = nn.Dropout(0.2), nn.Linear(40, 3)

    def forward(self, text: Tensor) -> Tensor:
        output, _ = self.lstm(self.embedding(text))
        return self.fc(self.dropout(output[:, -1]))


def sentiment() -> Subject:
    """Return an LSTM for reviews."""
    return trained(Sentiment, reviews(6600, 205), 600, 10, 1e-2, F.cross_entropy, classes_right, 5)


# --- vit: where one ball lies, seen from another (a vision transformer as in timm) -----------------------------------


def balls(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 24 × 24 between 0 and 1 with a blue and another ball, and one of eight classes.

    The other ball is red or yellow, and lies above, right of, below or left of the blue one.
    """
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    side = torch.arange(24.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    far, turn = 7 + 4 * u[:, 0], (labels // 2)[:, None, None] * math.pi / 2 + 1.3 * (u[:, 1] - 0.5)
    dy, dx = -far * turn.cos() / 2, far * turn.sin() / 2
    y, x = 12 + 7 * (u[:, 2] - 0.5), 12 + 7 * (u[:, 3] - 0.5)
    red = (labels % 2)[:, None, None].float()
    other = torch.stack([0.75 + 0.2 * u[:, 4], 0.62 - 0.42 * red + 0.14 * (u[:, 5] - 0.5), 0.15 + 0.15 * u[:, 6]], 1)
    blue = torch.stack([0.15 + 0.2 * u[:, 7], 0.3 + 0.2 * u[:, 8], 0.75 + 0.2 * u[:, 9]], 1)
    images = 0.3 + 0.35 * u[:, 10:13] + 0.2 * (u[:, 13:14] - 0.5) * side / 12
    for sign, colour, size in ((1, other, 2.2 + 1.3 * u[:, 14]), (-1, blue, 2.2 + 1.3 * u[:, 15])):
        distance = ((side[:, None] - y - sign * dy).square() + (side[None] - x - sign * dx).square()).sqrt()
        inside = torch.sigmoid(3 * (size - distance))[:, None]
        images = images + inside * (colour - images)
    images = images * (0.85 + 0.3 * u[:, 16:17]) + 0.07 * torch.randn(count, 3, 24, 24, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class Attention(nn.Module):
    """Attention of four heads with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        attn = torch.softmax(q @ k.transpose(2, 3) * self.scale, -1)
        return self.proj((attn @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two maps with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and two maps, norms in front."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Patches of 4 × 4, a token for the class, positions, three blocks, a norm and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 40, 4, 4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, 40))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 37, 40))
        self.blocks = nn.Sequential(Block(40), Block(40), Block(40))
        self.norm, self.head = nn.LayerNorm(40, eps=1e-6), nn.Linear(40, 8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> Subject:
    """Return a vision transformer for balls, whose pictures lie between -1 and 1."""
    images, labels = balls(2900, 206)
    return trained(Vit, [(images - 0.5) / 0.5, labels], 500, 7, 4e-3, F.cross_entropy, classes_right, 6)


# --- churn: customers that leave (tables of categories beside numbers, norms and dropout) ----------------------------

CONTRACTS, PAYMENTS, REGIONS = 3, 4, 9
NUMBERS = ("tenure", "monthly", "total", "calls", "age", "gigabytes", "delay")


def customers(count: int, seed: int) -> Arrays:
    """Return contract, payment and region, seven numbers in units of their own, and whether the customer left."""
    fixed, chance = generator(2070), generator(seed)
    contract = torch.randint(CONTRACTS, (count,), generator=chance)
    payment = torch.randint(PAYMENTS, (count,), generator=chance)
    region = torch.randint(REGIONS, (count,), generator=chance)
    u = torch.rand(count, 8, generator=chance)
    tenure = (72 * u[:, 0].pow(1.3)).round()
    monthly = 18 + 90 * u[:, 1]
    total = tenure * monthly * (0.9 + 0.2 * u[:, 2])
    calls = (9 * u[:, 3].square()).round()
    age, gigabytes, delay = 18 + 65 * u[:, 4], 80 * u[:, 5].square(), 25 * u[:, 6].pow(3)
    by_contract, by_payment = torch.tensor([1.5, 0.0, -1.6]), torch.tensor([1.3, -1.0, 0.4, -0.7])
    by_region = 1.1 * torch.randn(REGIONS, generator=fixed)
    wish = by_contract[contract] + by_payment[payment] + by_region[region]
    wish = wish - 0.05 * (tenure - 26) + 0.026 * (monthly - 63) + 0.38 * (calls - 3) * (1 + 0.7 * (contract == 0))
    wish = wish - 0.022 * (age - 50) * (payment != 1) + 0.02 * (gigabytes - 26) + 0.1 * (delay - 6)
    wish = wish - 0.0001 * (total - 1900) + 0.35 * torch.randn(count, generator=chance)
    numbers = torch.stack([tenure, monthly, total, calls, age, gigabytes, delay], 1)
    return [torch.stack([contract, payment, region], 1), numbers, (wish > 0).float()[:, None]]


CUSTOMERS = customers(6800, 207)
NUMBER_MEANS, NUMBER_DEVIATIONS = CUSTOMERS[1].mean(0), CUSTOMERS[1].std(0)


class Churn(nn.Module):
    """Rows of three tables beside numbers, two maps with norms and dropout, and a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.contract, self.payment = nn.Embedding(CONTRACTS, 4), nn.Embedding(PAYMENTS, 4)
        self.region = nn.Embedding(REGIONS, 6)
        self.fc1, self.bn1 = nn.Linear(21, 64), nn.BatchNorm1d(64)
        self.fc2, self.bn2 = nn.Linear(64, 32), nn.BatchNorm1d(32)
        self.relu, self.drop, self.out = nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        rows = [self.contract(categories[:, 0]), self.payment(categories[:, 1]), self.region(categories[:, 2])]
        x = torch.cat([*rows, numbers], 1)
        x = self.drop(self.relu(self.bn1(self.fc1(x))))
        x = self.drop(self.relu(self.bn2(self.fc2(x))))
        return self.out(x)


def churn() -> Subject:
    """Return a network for customers, whose numbers have mean 0 and deviation 1."""
    data = [CUSTOMERS[0], (CUSTOMERS[1] - NUMBER_MEANS) / NUMBER_DEVIATIONS, CUSTOMERS[2]]
    loss = F.binary_cross_entropy_with_logits
    return trained(Churn, data, 800, 10, 8e-3, loss, signs_right, 7)


# --- speech: commands (residual convolutions over time on logarithms of mel bands) -----------------------------------

MELS, TIMES, COMMANDS = 20, 40, 8
MEL_MEAN, MEL_DEVIATION = -38.0, 13.0
SPOKEN = ((0, 1, 2), (0, 3, 2), (4, 1, 5), (4, 3, 5), (2, 1, 0), (2, 3, 0), (5, 1, 4), (5, 3, 4))
PHONES = ((2, 6, 14), (4, 8, 15), (3, 12, 17), (4, 11, 15), (14, 16, 18), (2, 5, 9))


def commands(count: int, seed: int) -> Arrays:
    """Return decibels of 20 mel bands at 40 times, and which of eight words was said."""
    chance = generator(seed)
    labels = torch.randint(COMMANDS, (count,), generator=chance)
    time, band = torch.arange(float(TIMES)), torch.arange(float(MELS))[:, None]
    u = torch.rand(count, 12, 1, 1, generator=chance)
    start, long = 3 + 9 * u[:, 0], 18 + 9 * u[:, 1]
    phones = torch.tensor(SPOKEN)[labels]
    places = torch.tensor(PHONES, dtype=torch.float32)
    voice = 1.8 * (u[:, 2] - 0.5)
    power = torch.zeros(count, MELS, TIMES)
    for k in range(3):
        begins, ends = start + long * k / 3, start + long * (k + 1) / 3
        on = torch.sigmoid(1.2 * (time - begins)) * torch.sigmoid(1.2 * (ends - time))
        for formant in range(3):
            at = places[phones[:, k], formant][:, None, None] + voice
            power = power + (0.6**formant) * torch.exp(-((band - at) / 1.0).square()) * on
    loud = 10 ** (0.45 + 0.9 * u[:, 3])
    hum = (0.35 + 0.9 * u[:, 4]) * torch.exp(-band / (5 + 10 * u[:, 5]))
    noise = -torch.log(torch.rand(count, MELS, TIMES, generator=chance).clamp_min(1e-4))
    power = loud * power * (0.4 + 0.6 * noise.flip(0)) + (0.3 + 2.2 * hum) * noise
    return [10 * torch.log10(power + 1e-3) - 42, labels]


class TimeBlock(nn.Module):
    """Two convolutions over time, and what came in."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(before, after, 9, stride, 4, bias=False), nn.BatchNorm1d(after)
        self.conv2, self.bn2 = nn.Conv1d(after, after, 9, 1, 4, bias=False), nn.BatchNorm1d(after)
        self.relu = nn.ReLU()
        self.shortcut = nn.Sequential(nn.Conv1d(before, after, 1, stride, bias=False), nn.BatchNorm1d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.shortcut(x))


class Speech(nn.Module):
    """A convolution, three residual blocks over time, the mean, dropout and a word."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv1d(MELS, 24, 3, padding=1, bias=False)
        self.block1, self.block2, self.block3 = TimeBlock(24, 32, 2), TimeBlock(32, 40, 2), TimeBlock(40, 48, 2)
        self.pool: nn.Module = nn.AdaptiveAvgPool1d(1)
        self.dropout, self.fc = nn.Dropout(0.3), nn.Linear(48, COMMANDS)

    def forward(self, mels: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv0(mels))))
        return self.fc(self.dropout(self.pool(x).flatten(1)))


def speech() -> Subject:
    """Return a network for commands, whose decibels are normalized."""
    decibels, labels = commands(2600, 208)
    data = [(decibels - MEL_MEAN) / MEL_DEVIATION, labels]
    return trained(Speech, data, 600, 8, 8e-3, F.cross_entropy, classes_right, 8)


# --- all -------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "vgg": vgg,
    "unet": unet,
    "sentiment": sentiment,
    "vit": vit,
    "churn": churn,
    "speech": speech,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
