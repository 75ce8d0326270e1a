"""Eight small networks of common families, trained on the spot: on digits, pictures, recordings, texts and tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

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

# --- training ---------------------------------------------------------------------------------------------------------


def trained(
    make: Callable[[], nn.Module],
    data: Arrays,
    held: int,
    epochs: int,
    rate: float,
    seed: int,
    loss: Loss = F.cross_entropy,
    score: Callable[[Tensor, Tensor], float] = classes_right,
) -> Subject:
    """Train a network, of classes if nothing else is said, on all samples but the last ones, which are held out."""
    return tenth.trained(make, data, held, epochs, rate, loss, score, seed, decay=0.02, rise=0.25)


DIGIT_MEAN, DIGIT_DEVIATION = 0.3053, 0.3763


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return handwritten digits of 8 × 8, normalized, in an order of chance, and their classes."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    order = torch.randperm(len(images), generator=generator(41))
    return ((images - DIGIT_MEAN) / DIGIT_DEVIATION)[order], torch.tensor(found.target)[order]


# --- resnet: a residual network on digits ---------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two convolutions with batch norms, and a shortcut."""

    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu: nn.Module = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.residual = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.residual:
            out = out + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class ResNet(nn.Module):
    """Three stages for images of 8 × 8."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32))
        self.layer3 = nn.Sequential(BasicBlock(32, 48, 2), BasicBlock(48, 48))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.avgpool(x).flatten(1))


# --- inverted: a network of inverted residuals on pictures of objects ------------------------------------------------

MEANS = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
DEVIATIONS = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


def objects(count: int, seed: int) -> Arrays:
    """Return pictures of 16 × 16, normalized: discs, squares, crosses and stripes in warm or cold colours."""
    g = generator(seed)
    labels = torch.randint(8, (count,), generator=g)
    shape, cold = labels % 4, labels >= 4
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    middle = 5.5 + 4 * torch.rand(count, 2, 1, 1, generator=g)
    dy, dx = y - middle[:, 0], x - middle[:, 1]
    size = 3 + 2 * torch.rand(count, 1, 1, generator=g)
    disc = (dy.square() + dx.square()) < size.square()
    square = (dy.abs() < size * 0.85) & (dx.abs() < size * 0.85)
    cross = (torch.minimum(dy.abs(), dx.abs()) < 1.2) & (torch.maximum(dy.abs(), dx.abs()) < size * 1.3)
    stripes = (((dy + dx) / 2.2).floor() % 2 < 1) & (dx.abs() < size * 1.2) & (dy.abs() < size * 1.2)
    mask = torch.stack([disc, square, cross, stripes])[shape, torch.arange(count)].float()[:, None]
    warm = torch.tensor([0.85, 0.45, 0.2]).view(1, 3, 1, 1)
    blue = torch.tensor([0.25, 0.5, 0.8]).view(1, 3, 1, 1)
    colour = torch.where(cold.view(-1, 1, 1, 1), blue, warm) + 0.08 * torch.randn(count, 3, 1, 1, generator=g)
    ground = 0.4 + 0.12 * torch.randn(count, 3, 1, 1, generator=g) + 0.01 * (y - 8)
    images = ground * (1 - mask) + colour * mask + 0.06 * torch.randn(count, 3, 16, 16, generator=g)
    return [(images.clamp(0, 1) - MEANS) / DEVIATIONS, labels]


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection."""

    def __init__(self, before: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = before * expand
        self.expand = nn.Sequential(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))
        self.use_res_connect = stride == 1 and before == width

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.use_res_connect else out


class MobileNet(nn.Module):
    """A stem, five blocks, a head."""

    def __init__(self, classes: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6())
        self.features = nn.Sequential(
            InvertedResidual(12, 12, 1, 2),
            InvertedResidual(12, 20, 2, 3),
            InvertedResidual(20, 20, 1, 3),
            InvertedResidual(20, 28, 2, 3),
            InvertedResidual(28, 28, 1, 3),
        )
        self.head = nn.Sequential(nn.Conv2d(28, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(64, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.head(self.features(self.stem(image)))
        return self.classifier(self.dropout(x.mean((2, 3))))


# --- vit: a vision transformer on digits ----------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention of several heads, with a mask of the keys that count."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=-1)
        self.masked = True

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.split(self.query(x)) @ self.split(self.key(x)).transpose(-2, -1) * self.scale
        if mask is not None and self.masked:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e4)
        mixed = self.softmax(scores) @ self.split(self.value(x))
        return self.out(mixed.transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    """Norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """Patches of 2 × 2, a token for the class, three blocks."""

    def __init__(self, width: int = 48, classes: int = 10) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 2, 2)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(ViTBlock(width, 4) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


# --- review: a BERT-like encoder on reviews -------------------------------------------------------------------------

PAD, CLS, SEP, NOT = 0, 1, 2, 3
WORDS = 80


def reviews(count: int, seed: int) -> Arrays:
    """Return reviews as tokens, padded to 20: of films or of phones, in praise or not, with "not" before some words."""
    g = generator(seed)
    ids = torch.full((count, 20), PAD)
    labels = torch.zeros(count, dtype=torch.long)
    for row in range(count):
        topic, praise = int(torch.randint(2, (1,), generator=g)), int(torch.randint(2, (1,), generator=g))
        length = int(torch.randint(7, 16, (1,), generator=g))
        words = (40 + torch.randint(40, (length,), generator=g)).tolist()
        places = torch.randperm(length, generator=g).tolist()
        for place in places[:2]:
            words[place] = 24 + 8 * topic + int(torch.randint(8, (1,), generator=g))
        for place in places[2:5]:
            negated = bool(torch.rand(1, generator=g) < 0.35)
            good = bool(praise) != negated
            word = (4 if good else 14) + int(torch.randint(10, (1,), generator=g))
            words[place] = (NOT, word) if negated else word
        flat = [w for part in words for w in (part if isinstance(part, tuple) else (part,))][:18]
        ids[row, : len(flat) + 2] = torch.tensor([CLS, *flat, SEP])
        labels[row] = 2 * topic + praise
    return [ids, labels]


class EncoderLayer(nn.Module):
    """Norms last."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(width, heads), nn.LayerNorm(width)
        self.intermediate, self.act = nn.Linear(width, 2 * width), nn.GELU()
        self.output, self.output_norm = nn.Linear(2 * width, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.output_norm(x + self.dropout(self.output(self.act(self.intermediate(x)))))


class Embeddings(nn.Module):
    """Words and positions."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("positions", torch.arange(length))

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.word_embeddings(ids) + self.position_embeddings(self.positions))


class Encoder(nn.Module):
    """Embeddings, two layers, a pooler and a classifier."""

    def __init__(self, width: int = 48, classes: int = 4) -> None:
        super().__init__()
        self.embeddings = Embeddings(WORDS, 20, width)
        self.layers = nn.ModuleList(EncoderLayer(width, 4) for _ in range(2))
        self.pooler, self.pooled = nn.Linear(width, width), nn.Tanh()
        self.classifier = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != PAD
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(self.pooled(self.pooler(x[:, 0])))


# --- motion: a bidirectional GRU on recordings of a phone ------------------------------------------------------------

MOTION_MEAN = torch.tensor([0.0, 3.0, 7.0, 0.0, 0.0, 0.0])
MOTION_DEVIATION = torch.tensor([3.0, 4.0, 4.5, 0.8, 0.8, 0.8])


def motions(count: int, seed: int) -> Arrays:
    """Return recordings of 32 steps: acceleration in m/s² and rotation in rad/s of six activities, normalized."""
    g = generator(seed)
    labels = torch.randint(6, (count,), generator=g)
    steps = torch.arange(32.0).view(1, 32, 1)
    rates = torch.tensor([0.0, 0.0, 0.25, 0.30, 0.30, 0.55])[labels].view(-1, 1, 1)
    sway = torch.tensor([0.05, 0.05, 1.5, 2.0, 2.0, 5.0])[labels].view(-1, 1, 1)
    turn = torch.tensor([0.05, 0.05, 0.5, 0.5, -0.5, 1.3])[labels].view(-1, 1, 1)
    tilt = torch.tensor([1.2, 0.1, 0.2, 0.5, 0.5, 0.3])[labels].view(-1, 1, 1)
    tilt = tilt + 0.12 * torch.randn(count, 1, 1, generator=g)
    angle = 2 * math.pi * rates * (1 + 0.08 * torch.randn(count, 1, 1, generator=g)) * steps
    angle = angle + 6.3 * torch.rand(count, 1, 1, generator=g)
    wave = torch.cat([0.5 * torch.sin(angle), torch.cos(angle), torch.sin(2 * angle)], 2) * sway
    gravity = 9.81 * torch.cat([torch.zeros_like(tilt), torch.sin(tilt), torch.cos(tilt)], 2)
    gyro = torch.cat([torch.sin(angle), torch.cos(angle), torch.sin(angle + 0.6)], 2) * turn
    noise = torch.randn(count, 32, 6, generator=g) * torch.tensor([0.8, 0.8, 0.8, 0.2, 0.2, 0.2])
    signal = torch.cat([gravity + wave, gyro], 2) + noise
    return [(signal - MOTION_MEAN) / MOTION_DEVIATION, labels]


class Motion(nn.Module):
    """A linear map, a bidirectional GRU, the average of its steps, two linear layers."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.project, self.relu = nn.Linear(6, 24), nn.ReLU()
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.fc1, self.fc2 = nn.Linear(48, 32), nn.Linear(32, classes)

    def forward(self, signal: Tensor) -> Tensor:
        states, _ = self.gru(self.relu(self.project(signal)))
        return self.fc2(self.relu(self.fc1(self.dropout(states.mean(1)))))


# --- keyword: a VGG with max pooling on spectrograms of words --------------------------------------------------------

LOUDNESS_MEAN, LOUDNESS_DEVIATION = -42.0, 14.0


def spoken(count: int, seed: int) -> Arrays:
    """Return spectrograms of 24 bands and 24 frames in decibels, normalized, of ten words of three sounds each."""
    g = generator(seed)
    labels = torch.randint(10, (count,), generator=g)
    sounds = torch.tensor([(3, 10), (5, 17), (8, 13), (2, 20), (6, 9), (11, 21)]).float()
    words = torch.tensor(
        [(0, 1, 2), (2, 1, 0), (3, 4, 5), (5, 4, 3), (0, 3, 1), (1, 5, 0), (2, 4, 1), (4, 0, 5), (5, 2, 3), (1, 0, 4)]
    )
    bands, frames = torch.arange(24.0).view(1, 24, 1), torch.arange(24.0).view(1, 1, 24)
    speaker = torch.randn(count, 1, 1, generator=g) * 0.7
    start, length = 2 + 4 * torch.rand(count, 1, 1, generator=g), 5 + 1.2 * torch.rand(count, 1, 1, generator=g)
    level = torch.full((count, 24, 24), -60.0)
    for part in range(3):
        formants = sounds[words[labels, part]]
        here = torch.sigmoid(2 * (frames - start - part * length)) * torch.sigmoid(
            2 * (start + (part + 1) * length - frames)
        )
        for which in range(2):
            peak = (-((bands - formants[:, which].view(-1, 1, 1) - speaker) ** 2) / 2.5).exp()
            level = level + (34 - 8 * which) * peak * here
    level = level + 4 * torch.randn(count, 1, 1, generator=g) + 4.5 * torch.randn(count, 24, 24, generator=g)
    return [((level - LOUDNESS_MEAN) / LOUDNESS_DEVIATION)[:, None], labels]


class VGG(nn.Module):
    """Convolutions with biases and without norms, max pooling, and two linear layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        widths = [(1, 12), (12, 16), (16, 24), (24, 32), (32, 32)]
        layers: list[nn.Module] = []
        for index, (before, width) in enumerate(widths):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            if index in (1, 3, 4):
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes)
        )

    def forward(self, spectrogram: Tensor) -> Tensor:
        return self.classifier(self.features(spectrogram))


# --- cells: a U-Net that finds cells of two kinds --------------------------------------------------------------------


def cells(count: int, seed: int) -> Arrays:
    """Return pictures of 24 × 24 with round and ring-like cells, from 0 to 1, and the class of every pixel."""
    g = generator(seed)
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    tone = 0.3 + 0.05 * torch.randn(count, 1, 1, generator=g)
    images = tone.expand(-1, 24, 24).clone()
    labels = torch.zeros(count, 24, 24, dtype=torch.long)
    for number in range(4):
        middle = 4 + 16 * torch.rand(count, 2, 1, 1, generator=g)
        radius = 3.5 + 2 * torch.rand(count, 1, 1, generator=g)
        distance = ((y - middle[:, 0]).square() + (x - middle[:, 1]).square()).sqrt()
        inside, ring = distance < radius, (distance - radius * 0.75).abs() < 1.0
        if number % 2:
            images = torch.where(inside, torch.where(ring, tone + 0.35, tone + 0.02), images)
            labels = torch.where(inside, 2, labels)
        else:
            images = torch.where(inside, tone + 0.3, images)
            labels = torch.where(inside, 1, labels)
    images = images + 0.08 * torch.randn(count, 24, 24, generator=g)
    return [images.clamp(0, 1)[:, None], labels]


def double(before: int, width: int) -> nn.Sequential:
    """Return two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(before, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Two levels down, and up again by transposed convolutions."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.enc1, self.enc2, self.bottleneck = double(1, 10), double(10, 20), double(20, 32)
        self.pool: nn.Module = nn.MaxPool2d(2)
        self.up2, self.dec2 = nn.ConvTranspose2d(32, 20, 2, 2), double(40, 20)
        self.up1, self.dec1 = nn.ConvTranspose2d(20, 10, 2, 2), double(20, 10)
        self.outc = nn.Conv2d(10, classes, 1)
        self.skip_first = True

    def forward(self, image: Tensor) -> Tensor:
        one = self.enc1(image)
        two = self.enc2(self.pool(one))
        deep = self.bottleneck(self.pool(two))
        up = self.up2(deep)
        deep = self.dec2(torch.cat([two, up] if self.skip_first else [up, two], 1))
        up = self.up1(deep)
        return self.outc(self.dec1(torch.cat([one, up] if self.skip_first else [up, one], 1)))


# --- rent: a perceptron on a table of flats --------------------------------------------------------------------------

RENT_MEAN = torch.tensor([75.0, 2.8, 40.0, 4.0, 2.5, 500.0, 0.0, 0.5])
RENT_DEVIATION = torch.tensor([28.0, 1.1, 23.0, 2.8, 1.4, 290.0, 1.0, 0.3])


def flats(count: int, seed: int) -> Arrays:
    """Return flats: area, rooms, age, distance, floor, noise and two indices, normalized, and rents in hundreds."""
    g = generator(seed)
    area = (75 + 28 * torch.randn(count, generator=g)).clamp(20, 180)
    rooms = (area / 27 + 0.5 * torch.randn(count, generator=g)).round().clamp(1, 7)
    age, distance = 80 * torch.rand(count, generator=g), 10 * torch.rand(count, generator=g).square() + 0.3
    floor, traffic = torch.randint(6, (count,), generator=g).float(), 1000 * torch.rand(count, generator=g)
    index, view = torch.randn(count, generator=g), torch.rand(count, generator=g)
    rent = area * (0.09 + 0.09 * (-distance / 3).exp()) + 0.4 * rooms + 1.5 * (age < 15) - 0.025 * age
    rent = rent + 1.2 * torch.tanh(index) * (1 + view) + 0.5 * floor * view - 1.5 * (traffic > 650) * (floor < 2)
    rent = rent + 0.4 * torch.randn(count, generator=g)
    table = torch.stack([area, rooms, age, distance, floor, traffic, index, view], 1)
    return [(table - RENT_MEAN) / RENT_DEVIATION, rent[:, None]]


class Perceptron(nn.Module):
    """Three hidden layers with batch norms and SiLU."""

    def __init__(self, before: int = 8, width: int = 64) -> None:
        super().__init__()
        self.fc1, self.bn1, self.act1 = nn.Linear(before, width), nn.BatchNorm1d(width), nn.SiLU()
        self.fc2, self.bn2, self.act2 = nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU()
        self.fc3, self.bn3, self.act3 = nn.Linear(width, 32), nn.BatchNorm1d(32), nn.SiLU()
        self.out = nn.Linear(32, 1)

    def forward(self, table: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.fc1(table)))
        x = self.act2(self.bn2(self.fc2(x)))
        return self.out(self.act3(self.bn3(self.fc3(x))))


# --- all ------------------------------------------------------------------------------------------------------------


def _segmenter() -> Subject:
    subject = trained(UNet, cells(1100, 15), 320, 10, 6e-3, 6)
    subject.options["metric"] = classes_right
    return subject


def _rents() -> Subject:
    subject = trained(Perceptron, flats(4400, 16), 400, 24, 4e-3, 7, F.mse_loss, variance_explained)
    subject.options["metric"] = variance_explained
    return subject


BUILDERS: dict[str, Callable[[], Subject]] = {
    "resnet": lambda: trained(ResNet, list(digits()), 397, 14, 5e-3, 0),
    "inverted": lambda: trained(MobileNet, objects(2000, 12), 400, 12, 6e-3, 1),
    "vit": lambda: trained(ViT, list(digits()), 397, 24, 2e-3, 2),
    "review": lambda: trained(Encoder, reviews(4400, 13), 400, 14, 2e-3, 3),
    "motion": lambda: trained(Motion, motions(2000, 14), 400, 14, 5e-3, 4),
    "keyword": lambda: trained(VGG, spoken(2400, 17), 400, 14, 3e-3, 5),
    "cells": _segmenter,
    "rent": _rents,
}
"""Networks by name."""


@cache
def build(name: str) -> Subject:
    """Return a trained network; it is trained once in a process, and must not be changed."""
    return BUILDERS[name]()
