"""Eight ordinary small networks, trained on the spot: pictures, texts, series, signals, points, and two towers."""

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
)
from torch import Tensor, nn

# --- efficientnet: butterflies by pattern and colour (inverted residuals with squeeze-and-excitation as in timm) ------


def butterflies(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of eight classes: orange or blue wings of four patterns.

    Wings are plain, striped across, spotted, or have a dark border.
    """
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = side[:, None] - (13 + 6 * u[:, 0]), side[None] - (13 + 6 * u[:, 1])
    turn, size = 1.4 * (u[:, 2] - 0.5), 9.0 + 3.5 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    upper = ((x.abs() - 0.55) / 0.55).square() + ((y + 0.3) / 0.55).square()
    lower = ((x.abs() - 0.45) / 0.42).square() + ((y - 0.5) / 0.42).square()
    far = torch.minimum(upper, lower)
    wings, body = far < 1, (x.abs() < 0.1) & (y.abs() < 0.75)
    stripes = torch.sin(9 * y + 6.3 * u[:, 4]) > 0.25
    spots = (torch.sin(10 * y + 6.3 * u[:, 5]) * torch.sin(10 * x.abs() + 6.3 * u[:, 6])) > 0.45
    dark = torch.stack([torch.zeros_like(wings), stripes, spots, far > 0.55])[labels % 4, torch.arange(count)]
    blue = (labels // 4)[:, None, None].float()
    strong, weak, green = 0.75 + 0.2 * u[:, 7], 0.12 + 0.2 * u[:, 8], 0.4 + 0.2 * u[:, 9]
    colour = torch.stack([blue * weak + (1 - blue) * strong, green + 0 * blue, blue * strong + (1 - blue) * weak], 1)
    ground = torch.stack([0.3 + 0.3 * u[:, 10], 0.45 + 0.3 * u[:, 11], 0.25 + 0.3 * u[:, 12]], 1)
    ground = ground + 0.1 * torch.sin(side * (0.3 + 0.5 * u[:, 13:14]) + side[:, None] * u[:, 14:15])
    images = torch.where(wings[:, None], colour * (1 - 0.75 * dark[:, None].float()), ground)
    images = torch.where(body[:, None], torch.full_like(images, 0.12), images) * (0.8 + 0.35 * u[:, 15:16])
    images = images + 0.05 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class SqueezeExcite(nn.Module):
    """Factors for channels from their means, by two convolutions of 1 × 1."""

    def __init__(self, width: int, least: int) -> None:
        super().__init__()
        self.conv_reduce, self.act1 = nn.Conv2d(width, least, 1), nn.SiLU()
        self.conv_expand = nn.Conv2d(least, width, 1)
        self.gate: nn.Module = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.conv_expand(self.act1(self.conv_reduce(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """Widen, a depthwise convolution, squeeze and excite, narrow; added where sizes are the same."""

    def __init__(self, before: int, after: int, stride: int, widen: int = 3) -> None:
        super().__init__()
        inner = before * widen
        self.conv_pw, self.bn1, self.act1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU()
        self.conv_dw = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.bn2, self.act2 = nn.BatchNorm2d(inner), nn.SiLU()
        self.se = SqueezeExcite(inner, before // 2)
        self.conv_pwl, self.bn3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.has_skip = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.conv_pw(x)))
        out = self.se(self.act2(self.bn2(self.conv_dw(out))))
        out = self.bn3(self.conv_pwl(out))
        return out + x if self.has_skip else out


class EfficientNet(nn.Module):
    """A stem, three stages, a last convolution, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.act1: nn.Module = nn.SiLU()
        self.blocks = nn.Sequential(
            nn.Sequential(MBConv(16, 16, 1, 1)),
            nn.Sequential(MBConv(16, 24, 2), MBConv(24, 24, 1)),
            nn.Sequential(MBConv(24, 32, 2), MBConv(32, 32, 1), MBConv(32, 32, 1)),
        )
        self.conv_head, self.bn2, self.act2 = nn.Conv2d(32, 96, 1, bias=False), nn.BatchNorm2d(96), nn.SiLU()
        self.classifier = nn.Linear(96, 8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.act1(self.bn1(self.conv_stem(image))))
        return self.classifier(self.act2(self.bn2(self.conv_head(x))).mean((2, 3)))


def efficientnet() -> Subject:
    """Return an EfficientNet for butterflies, whose pictures are normalized as for ImageNet."""
    images, labels = butterflies(2000, 2101)
    return trained(
        EfficientNet, [(images - MEANS) / DEVIATIONS, labels], 500, 3, 1.2e-2, F.cross_entropy, classes_right, 1
    )


# --- densenet: land from above (a DenseNet as in torchvision) --------------------------------------------------------


def tiles(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return tiles of 32 × 32 between 0 and 1, and one of seven classes of land.

    Sea, forest, fields in strips, a town of blocks, a river in green, a road in ochre, and dunes.
    """
    chance = generator(seed)
    labels = torch.randint(7, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    turn = math.pi * u[:, 0]
    along = side[:, None] * turn.cos() + side[None] * turn.sin()
    across = side[None] * turn.cos() - side[:, None] * turn.sin()
    rough = torch.randn(count, 8, 8, generator=chance)[:, None]
    rough = F.interpolate(rough, size=(32, 32), mode="bilinear", align_corners=False)[:, 0]
    fine = F.interpolate(torch.randn(count, 1, 16, 16, generator=chance), size=(32, 32))[:, 0]

    def paint(red: float, green: float, blue: float, light: Tensor) -> Tensor:
        """Return a colour of that light."""
        return torch.stack([red * light, green * light, blue * light], 1)

    one = torch.ones(count, 32, 32)
    sea = paint(0.1, 0.25, 0.42, one + 0.08 * rough)
    forest = paint(0.13, 0.3, 0.14, one + 0.22 * fine)
    strips = (torch.sin(along * (0.7 + 0.4 * u[:, 1]) + 6.3 * u[:, 2]) > 0).float()[:, None]
    fields = strips * paint(0.3, 0.42, 0.18, one) + (1 - strips) * paint(0.55, 0.45, 0.28, one + 0.05 * rough)
    blocks = ((torch.sin(along * 1.1) > -0.2) & (torch.sin(across * 1.1 + 6.3 * u[:, 3]) > -0.2)).float()[:, None]
    town = blocks * paint(0.62, 0.56, 0.54, one + 0.2 * fine) + (1 - blocks) * paint(0.33, 0.34, 0.36, one)
    middle = 16 * (turn.cos() - turn.sin()) + 12 * (u[:, 4] - 0.5)
    near = torch.sigmoid(2.2 * (3.2 + u[:, 5] - (across - middle + 2.5 * torch.sin(along / 5)).abs()))[:, None]
    river = near * paint(0.13, 0.26, 0.4, one) + (1 - near) * paint(0.22, 0.38, 0.17, one + 0.12 * rough)
    lane = torch.sigmoid(2.2 * (2.4 + u[:, 6] - (across - middle).abs()))[:, None]
    road = lane * paint(0.36, 0.36, 0.38, one) + (1 - lane) * paint(0.56, 0.46, 0.3, one + 0.1 * rough)
    dunes = paint(0.74, 0.6, 0.4, one + 0.16 * torch.sin(along * 0.5 + 1.2 * rough))
    images = torch.stack([sea, forest, fields, town, river, road, dunes])[labels, torch.arange(count)]
    haze = 0.16 * u[:, 7:8]
    images = (1 - haze) * images * (0.7 + 0.6 * u[:, 8:9]) + haze * 0.75
    images = images + 0.035 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class DenseLayer(nn.Module):
    """Norm, ReLU and convolution, twice, on all that was there before."""

    def __init__(self, before: int, growth: int, widen: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(before), nn.ReLU()
        self.conv1 = nn.Conv2d(before, widen * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(widen * growth), nn.ReLU()
        self.conv2 = nn.Conv2d(widen * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))


class DenseBlock(nn.Module):
    """Layers that each read all features before them."""

    def __init__(self, layers: int, before: int, growth: int) -> None:
        super().__init__()
        for k in range(layers):
            self.add_module(f"denselayer{k + 1}", DenseLayer(before + k * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat([x, layer(x)], 1)
        return x


class Transition(nn.Module):
    """Norm, ReLU, a convolution that narrows, and pooling."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(before), nn.ReLU()
        self.conv = nn.Conv2d(before, after, 1, bias=False)
        self.pool: nn.Module = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(self.relu(self.norm(x))))


class DenseFeatures(nn.Module):
    """A stem, three dense blocks with transitions between them, and a last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.norm0, self.relu0 = nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.denseblock1, self.transition1 = DenseBlock(3, 16, 12), Transition(52, 26)
        self.denseblock2, self.transition2 = DenseBlock(3, 26, 12), Transition(62, 32)
        self.denseblock3, self.norm5 = DenseBlock(2, 32, 12), nn.BatchNorm2d(56)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu0(self.norm0(self.conv0(x)))
        x = self.transition2(self.denseblock2(self.transition1(self.denseblock1(x))))
        return self.norm5(self.denseblock3(x))


class DenseNet(nn.Module):
    """Features, ReLU, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.features = DenseFeatures()
        self.relu: nn.Module = nn.ReLU()
        self.classifier = nn.Linear(56, 7)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.relu(self.features(image)).mean((2, 3)))


def densenet() -> Subject:
    """Return a DenseNet for tiles, normalized as for ImageNet."""
    images, labels = tiles(1600, 2102)
    return trained(DenseNet, [(images - MEANS) / DEVIATIONS, labels], 500, 3, 1e-2, F.cross_entropy, classes_right, 2)


# --- distilbert: what customers of a bank want (a transformer encoder as in transformers) -----------------------------

PAD, UNKNOWN, CLS, SEP, MASK, NO, INSTEAD = range(7)
SUBJECTS, ANGRY, CALM, FILLER, WORDS, LENGTH = 7, 25, 31, 37, 72, 16


def tickets(count: int, seed: int) -> Arrays:
    """Return words, where there are any, and one of six classes: card, account or loan, complaint or question.

    Words from 7 to 24 name what it is about, six for each; who writes "instead of" before such a word does not mean
    it. Words from 25 to 30 are angry and from 31 to 36 calm; "no" before one of them turns it round.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    dice = torch.rand(count, LENGTH, generator=chance).tolist()
    ids = torch.zeros(count, LENGTH, dtype=torch.long)
    for row, label in enumerate(labels.tolist()):
        u, subject, calm = dice[row], label // 2, label % 2
        shown = calm ^ (u[0] < 0.15)
        mood = (CALM if shown else ANGRY) + int(6 * u[1])
        parts = [[SUBJECTS + 6 * subject + int(6 * u[2])], [NO, mood] if shown != calm else [mood]]
        if u[3] < 0.2:
            other = (subject + 1 + int(2 * u[4])) % 3
            parts.append([INSTEAD, SUBJECTS + 6 * other + int(6 * u[5])])
        parts += [[FILLER + int((WORDS - FILLER) * part)] for part in u[6 : 8 + int(7 * u[15])]]
        order = torch.rand(len(parts), generator=chance).argsort().tolist()
        words = [CLS, *(word for place in order for word in parts[place]), SEP]
        ids[row, : len(words)] = torch.tensor(words)
    return [ids, (ids != PAD).long(), labels]


class Embeddings(nn.Module):
    """Rows for words and places, and a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(LENGTH + 4, width)
        nn.init.normal_(self.word_embeddings.weight, 0, 0.3)
        nn.init.normal_(self.position_embeddings.weight, 0, 0.3)
        self.LayerNorm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.05)
        self.register_buffer("position_ids", torch.arange(LENGTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.position_embeddings(self.position_ids)
        return self.dropout(self.LayerNorm(x))


class SelfAttention(nn.Module):
    """Attention of several heads, which does not look at padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q_lin, self.k_lin = nn.Linear(width, width), nn.Linear(width, width)
        self.v_lin, self.out_lin = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            layer(x).view(batch, count, self.heads, -1).transpose(1, 2)
            for layer in (self.q_lin, self.k_lin, self.v_lin)
        )
        weights = torch.softmax(q * self.scale @ k.transpose(2, 3) + shade, -1)
        return self.out_lin((weights @ v).transpose(1, 2).reshape(batch, count, width))


class FeedForward(nn.Module):
    """Two maps with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(self.activation(self.lin1(x)))


class TransformerBlock(nn.Module):
    """Attention and two maps, norms behind the sums."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.sa_layer_norm = SelfAttention(width, 4), nn.LayerNorm(width, eps=1e-12)
        self.ffn, self.output_layer_norm = FeedForward(width, 2 * width), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        x = self.sa_layer_norm(self.attention(x, shade) + x)
        return self.output_layer_norm(self.ffn(x) + x)


class Transformer(nn.Module):
    """Two blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList([TransformerBlock(width), TransformerBlock(width)])

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        for block in self.layer:
            x = block(x, shade)
        return x


class DistilBert(nn.Module):
    """Embeddings, an encoder, and a class from the first word."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.transformer = Embeddings(32), Transformer(32)
        self.pre_classifier, self.relu = nn.Linear(32, 32), nn.ReLU()
        self.dropout, self.classifier = nn.Dropout(0.1), nn.Linear(32, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        shade = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        x = self.transformer(self.embeddings(input_ids), shade)[:, 0]
        return self.classifier(self.dropout(self.relu(self.pre_classifier(x))))


def distilbert() -> Subject:
    """Return an encoder for tickets."""
    return trained(DistilBert, tickets(4000, 2103), 500, 9, 5e-3, F.cross_entropy, classes_right, 3)


# --- forecaster: the load of a grid (a GRU, tables for the calendar, and the forecast of the weather) ----------------

HISTORY, AHEAD = 36, 8
LOAD_MEAN, LOAD_DEVIATION = 520.0, 110.0
WARMTH_MEAN, WARMTH_DEVIATION = 12.0, 9.0


def grids(count: int, seed: int) -> Arrays:
    """Return load (MW) and warmth (°C) of 36 hours, hour and weekday, warmth of the next 8 hours, and their load."""
    chance = generator(seed)
    u = torch.rand(count, 8, 1, generator=chance)
    steps = torch.arange(float(HISTORY + AHEAD))
    hour = torch.randint(24, (count, 1), generator=chance)
    weekday = torch.randint(7, (count, 1), generator=chance)
    clock = hour + steps - HISTORY
    day = (weekday + torch.div(clock, 24, rounding_mode="floor")).long() % 7
    clock = clock % 24
    slow = F.interpolate(torch.randn(count, 1, 8, generator=chance), size=HISTORY + AHEAD, mode="linear")[:, 0]
    warmth = 28 * (u[:, 0] - 0.5) + 12 + 4.5 * torch.sin((clock - 9) * math.pi / 12) + 5 * slow
    level = 60 * (u[:, 1] - 0.5)
    work = (day < 5).float()
    daily = 75 * torch.exp(-((clock - 8.5) / 2.5).square()) + 110 * torch.exp(-((clock - 18.5) / 3).square())
    night = -70 * torch.exp(-((clock - 3) / 3).square())
    load = 430 + level + daily * (0.45 + 0.55 * work) + night + 50 * work
    load = load + 6.5 * (15 - warmth).clamp_min(0) + 7.5 * (warmth - 22).clamp_min(0)
    load = load + 8 * torch.randn(load.shape, generator=chance)
    history = torch.stack([load, warmth], 2)[:, :HISTORY]
    calendar = torch.cat([hour, weekday], 1)
    return [history, calendar, warmth[:, HISTORY:].contiguous(), load[:, HISTORY:].contiguous()]


class Forecaster(nn.Module):
    """A GRU over what was, rows for hour and weekday, the weather ahead, and two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 40, batch_first=True)
        self.hour_embedding, self.day_embedding = nn.Embedding(24, 8), nn.Embedding(7, 4)
        self.fc1, self.relu = nn.Linear(40 + 12 + AHEAD, 64), nn.ReLU()
        self.fc2 = nn.Linear(64, AHEAD)

    def forward(self, history: Tensor, calendar: Tensor, weather: Tensor) -> Tensor:
        states, _ = self.gru(history)
        hour, day = self.hour_embedding(calendar[:, 0]), self.day_embedding(calendar[:, 1])
        return self.fc2(self.relu(self.fc1(torch.cat([states[:, -1], hour, day, weather], 1))))


def forecaster() -> Subject:
    """Return a GRU for loads; all numbers have mean 0 and deviation 1."""
    history, calendar, weather, load = grids(4000, 2104)
    means, deviations = torch.tensor([LOAD_MEAN, WARMTH_MEAN]), torch.tensor([LOAD_DEVIATION, WARMTH_DEVIATION])
    weather = (weather - WARMTH_MEAN) / WARMTH_DEVIATION
    data = [(history - means) / deviations, calendar, weather, (load - LOAD_MEAN) / LOAD_DEVIATION]
    subject = trained(Forecaster, data, 500, 7, 1e-2, F.mse_loss, explained, 4)
    subject.options["metric"] = explained
    return subject


# --- bearing: what is wrong with a machine (InceptionTime on two axes of vibration) -----------------------------------

SAMPLES, VIBRATION = 192, 0.9


def vibrations(count: int, seed: int) -> Arrays:
    """Return accelerations of two axes in g, and one of six states.

    Sound, imbalance (radial, strong), misalignment (twice the speed, axial), looseness (clipped), and damage of the
    outer ring (even impulses) or the inner ring (impulses that swell with each turn).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    time = torch.arange(float(SAMPLES))
    u = torch.rand(count, 12, 1, generator=chance)
    speed, phase = 2 * math.pi / (32 + 12 * u[:, 0]), 2 * math.pi * u[:, 1]
    angle = speed * time + phase
    kind = torch.nn.functional.one_hot(labels, 6).float()[:, :, None]
    strength = 0.25 + 0.15 * u[:, 2]
    radial = strength * torch.sin(angle) * (1 + 4.0 * kind[:, 1])
    axial = 0.6 * strength * torch.sin(angle + 1.1 + u[:, 3])
    axial = axial + kind[:, 2] * (0.8 + 0.4 * u[:, 4]) * torch.sin(2 * angle + 2 * u[:, 5])
    loose = ((2.2 + u[:, 6]) * torch.sin(angle)).clamp(-0.5, 1.4)
    radial = radial * (1 - kind[:, 3]) + kind[:, 3] * loose
    turns = (angle / (2 * math.pi) * (3.6 + 0.4 * u[:, 7])) % 1
    period = 1 / (speed / (2 * math.pi) * (3.6 + 0.4 * u[:, 7]))
    ring = torch.exp(-turns * period / 2.2) * torch.sin(2.3 * turns * period)
    swell = (0.5 + 0.5 * torch.sin(angle)).square()
    blow = (1.6 + 1.2 * u[:, 8]) * ring * (kind[:, 4] + kind[:, 5] * 1.6 * swell)
    radial, axial = radial + blow, axial + 0.35 * blow
    signal = torch.stack([radial, axial], 1)
    signal = signal + 0.12 * torch.randn(signal.shape, generator=chance)
    return [signal, labels]


class InceptionModule(nn.Module):
    """Convolutions over time of three sizes side by side, pooling, a norm and ReLU."""

    def __init__(self, before: int, width: int, bottleneck: bool = True) -> None:
        super().__init__()
        inner = width if bottleneck else before
        self.bottleneck: nn.Module = nn.Conv1d(before, width, 1, bias=False) if bottleneck else nn.Identity()
        self.convs = nn.ModuleList([nn.Conv1d(inner, width, k, padding=k // 2, bias=False) for k in (19, 9, 5)])
        self.maxconvpool = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(before, width, 1, bias=False))
        self.bn, self.act = nn.BatchNorm1d(4 * width), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bottleneck(x)
        parts = [conv(inner) for conv in self.convs]
        return self.act(self.bn(torch.cat([*parts, self.maxconvpool(x)], 1)))


class InceptionBlock(nn.Module):
    """Three modules, and what came in."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.inception = nn.ModuleList(
            [
                InceptionModule(before, width, bottleneck=False),
                InceptionModule(4 * width, width),
                InceptionModule(4 * width, width),
            ]
        )
        self.shortcut = nn.Sequential(nn.Conv1d(before, 4 * width, 1, bias=False), nn.BatchNorm1d(4 * width))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        for module in self.inception:
            inner = module(inner)
        return self.act(inner + self.shortcut(x))


class InceptionTime(nn.Module):
    """Pooling by two, a block, the mean and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.inceptionblock = InceptionBlock(2, 10)
        self.gap, self.fc = nn.AdaptiveAvgPool1d(1), nn.Linear(40, 6)

    def forward(self, signal: Tensor) -> Tensor:
        return self.fc(self.gap(self.inceptionblock(signal)).flatten(1))


def bearing() -> Subject:
    """Return InceptionTime for vibrations, which are divided by one number."""
    signal, labels = vibrations(1700, 2105)
    return trained(InceptionTime, [signal / VIBRATION, labels], 500, 4, 1e-2, F.cross_entropy, classes_right, 5)


# --- keypoints: eyes, nose and mouth (convolutions with PReLU that answer with places) -------------------------------

CLOSE = 0.055


def faces(count: int, seed: int) -> Arrays:
    """Return faces of 32 × 32 in grey between 0 and 1, and x and y of eyes, nose and mouth, as shares of the sides.

    The first eye is brighter than the second one, and the mouth is wide.
    """
    chance = generator(seed)
    side = torch.arange(32.0)
    u = torch.rand(count, 16, 1, 1, generator=chance)
    turn, size = 0.9 * (u[:, 0] - 0.5), 9.0 + 4.0 * u[:, 1]
    y0, x0 = 12 + 8 * u[:, 2], 12 + 8 * u[:, 3]
    y, x = side[:, None] - y0, side[None] - x0
    down, right = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    yaw = 0.3 * (u[:, 4] - 0.5)
    places = [(-0.42 + yaw, -0.25), (0.42 + yaw, -0.25), (1.6 * yaw, 0.12), (yaw, 0.5)]
    skin = 0.55 + 0.2 * u[:, 5]
    head = torch.sigmoid(8 * (1 - (down.square() + (1.2 * right).square()).sqrt()))
    ground = 0.15 + 0.3 * u[:, 6] + 0.15 * torch.sin(side / 4 + 6 * u[:, 7]) * u[:, 8]
    images = ground + head * (skin - ground) * (1 + 0.3 * (u[:, 9] - 0.5) * right)
    for (px, py), tone, wide, tall in zip(
        places, (0.95, 0.1, 0.35, 0.2), (0.17, 0.17, 0.1, 0.32), (0.13, 0.13, 0.2, 0.1), strict=True
    ):
        part = torch.exp(-((right - px) / wide).square() - ((down - py) / tall).square())
        images = images + part * (tone - images)
    found = []
    for px, py in places:
        dx, dy = size * px, size * py
        found += [(x0 + dx * turn.cos() - dy * -turn.sin()) / 32, (y0 - dx * turn.sin() + dy * turn.cos()) / 32]
    points = torch.cat([part[:, 0] + torch.zeros(count, 1) for part in found], 1)
    images = images + 0.04 * torch.randn(images.shape, generator=chance)
    return [(images.clamp(0, 1) * 255).round()[:, None] / 255, points]


class Keypoints(nn.Module):
    """Four convolutions with norms and PReLU, two maps, and places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.prelu1 = nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.PReLU(8)
        self.conv2, self.bn2, self.prelu2 = nn.Conv2d(8, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.PReLU(24)
        self.conv3, self.bn3, self.prelu3 = nn.Conv2d(24, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.PReLU(32)
        self.conv4, self.bn4, self.prelu4 = nn.Conv2d(32, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.PReLU(32)
        self.fc1, self.prelu5 = nn.Linear(32 * 16, 64), nn.PReLU(64)
        self.fc2 = nn.Linear(64, 8)

    def forward(self, picture: Tensor) -> Tensor:
        x = self.prelu1(self.bn1(self.conv1(picture)))
        x = self.prelu2(self.bn2(self.conv2(x)))
        x = self.prelu3(self.bn3(self.conv3(x)))
        x = self.prelu4(self.bn4(self.conv4(x)))
        return self.fc2(self.prelu5(self.fc1(torch.flatten(x, 1))))


def points_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of points that lie close to where they should."""
    far = (outputs - labels).view(-1, 4, 2).square().sum(2).sqrt()
    return (far < CLOSE).float().mean().item()


def nearly(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of places."""
    return F.smooth_l1_loss(outputs, labels, beta=0.02)


def keypoints() -> Subject:
    """Return a network for faces, whose pictures lie between -1 and 1."""
    pictures, points = faces(3000, 2106)
    subject = trained(Keypoints, [(pictures - 0.5) / 0.5, points], 500, 4, 1e-2, nearly, points_right, 6)
    subject.options["metric"] = points_right
    return subject


# --- towers: who clicks on what (two towers with tables, norms, and a product of vectors) ----------------------------

CITIES, DEVICES, GENRES, BRANDS = 12, 4, 10, 16
USER_NUMBERS, ITEM_NUMBERS = ("age", "income", "visits"), ("price", "rating", "sold")


def clicks(count: int, seed: int) -> Arrays:
    """Return city and device, age, income and visits, genre and brand, price, rating and copies sold, and clicks."""
    world, chance = generator(2070), generator(seed)
    tastes, kinds = torch.randn(CITIES, 3, generator=world), torch.randn(GENRES, 3, generator=world)
    makes, means = torch.randn(BRANDS, 3, generator=world), torch.randn(DEVICES, 3, generator=world)
    user = torch.stack([torch.randint(n, (count,), generator=chance) for n in (CITIES, DEVICES)], 1)
    item = torch.stack([torch.randint(n, (count,), generator=chance) for n in (GENRES, BRANDS)], 1)
    u = torch.rand(count, 6, generator=chance)
    age, income, visits = 18 + 60 * u[:, 0], 15000 + 70000 * u[:, 1].square(), (40 * u[:, 2].pow(2)).round()
    price, rating, sold = 3 + 90 * u[:, 3].square(), 1 + 4 * u[:, 4].sqrt(), (10 ** (1 + 4 * u[:, 5])).round()
    one = tastes[user[:, 0]] + 0.7 * means[user[:, 1]]
    two = kinds[item[:, 0]] + 0.8 * makes[item[:, 1]]
    one = one + torch.stack([(age - 48) / 15, (income - 38000) / 18000, (visits - 13) / 12], 1)
    wish = (one * two).sum(1) + 1.3 * (rating - 3.6) + 1.2 * (sold.log10() - 3)
    wish = wish - 0.06 * (price - 33) * (1.6 - income / 45000)
    return [
        user,
        torch.stack([age, income, visits], 1),
        item,
        torch.stack([price, rating, sold], 1),
        (wish + 0.3 * torch.randn(count, generator=chance) > 0).float()[:, None],
    ]


CLICKS = clicks(6500, 2107)


def item_features(numbers: Tensor) -> Tensor:
    """Return price, rating and the logarithm of copies sold."""
    return torch.cat([numbers[:, :2], numbers[:, 2:].log1p()], 1)


USER_MEANS, USER_DEVIATIONS = CLICKS[1].mean(0), CLICKS[1].std(0)
ITEM_MEANS, ITEM_DEVIATIONS = item_features(CLICKS[3]).mean(0), item_features(CLICKS[3]).std(0)


class Tower(nn.Module):
    """Rows of two tables beside numbers, two maps with norms, and a vector."""

    def __init__(self, first: tuple[str, int], second: tuple[str, int], numbers: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(rows, 8) for name, rows in (first, second)})
        self.names = (first[0], second[0])
        self.fc1, self.bn1 = nn.Linear(16 + numbers, 64), nn.BatchNorm1d(64)
        self.fc2, self.bn2 = nn.Linear(64, 48), nn.BatchNorm1d(48)
        self.relu, self.fc3 = nn.ReLU(), nn.Linear(48, 16)

    def joined(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Return rows and numbers side by side."""
        rows = [self.embeddings[name](ids[:, k]) for k, name in enumerate(self.names)]
        return torch.cat([*rows, numbers], 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.fc1(self.joined(ids, numbers))))
        return self.fc3(self.relu(self.bn2(self.fc2(x))))


class Towers(nn.Module):
    """A tower for users, one for items, and the product of what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.user_tower = Tower(("city", CITIES), ("device", DEVICES), 3)
        self.item_tower = Tower(("genre", GENRES), ("brand", BRANDS), 3)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, user_ids: Tensor, user_numbers: Tensor, item_ids: Tensor, item_numbers: Tensor) -> Tensor:
        user, item = self.user_tower(user_ids, user_numbers), self.item_tower(item_ids, item_numbers)
        return (user * item).sum(1, keepdim=True) + self.bias


def towers() -> Subject:
    """Return two towers for clicks, whose numbers have mean 0 and deviation 1."""
    user, item = (CLICKS[1] - USER_MEANS) / USER_DEVIATIONS, (item_features(CLICKS[3]) - ITEM_MEANS) / ITEM_DEVIATIONS
    data = [CLICKS[0], user, CLICKS[2], item, CLICKS[4]]
    return trained(Towers, data, 512, 14, 6e-3, F.binary_cross_entropy_with_logits, signs_right, 7)


# --- mixer: what hour it is (an MLP-Mixer as in timm) ----------------------------------------------------------------


def clocks(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return clocks of 24 × 24 between 0 and 1, and one of eight places of the short dark hand; a long one is red."""
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    side = torch.arange(24.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    y, x = side[:, None] - (10.5 + 2 * u[:, 0]), side[None] - (10.5 + 2 * u[:, 1])
    size = 8.5 + 2.0 * u[:, 2]

    def hand(angle: Tensor, long: Tensor, wide: float) -> Tensor:
        """Return where a hand lies."""
        along = x * angle.sin() - y * angle.cos()
        across = x * angle.cos() + y * angle.sin()
        return torch.sigmoid(3 * (wide - across.abs())) * torch.sigmoid(3 * along) * torch.sigmoid(3 * (long - along))

    far = (y.square() + x.square()).sqrt()
    dial, ring = torch.sigmoid(3 * (size - far)), torch.exp(-(far - size).square())
    hour = (labels[:, None, None] + 0.7 * (u[:, 3] - 0.5)) * math.pi / 4
    short, long = hand(hour, 0.62 * size, 1.5), hand(2 * math.pi * u[:, 4], 0.92 * size, 0.8)
    images = 0.15 + 0.5 * u[:, 5:8] + 0.1 * (u[:, 8:9] - 0.5) * side / 12
    images = images + dial[:, None] * (0.75 + 0.2 * u[:, 9:10] - images)
    images = images + ring[:, None] * (0.3 - images) * 0.8
    red = torch.tensor([0.8, 0.15, 0.12])[None, :, None, None]
    images = images + long[:, None] * (red - images)
    images = images + short[:, None] * (0.12 - images)
    images = images * (0.85 + 0.3 * u[:, 10:11]) + 0.05 * torch.randn(count, 3, 24, 24, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class Mlp(nn.Module):
    """Two maps with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class MixerBlock(nn.Module):
    """Two maps over tokens, and two over channels."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.mlp_tokens = nn.LayerNorm(width, eps=1e-6), Mlp(tokens, 48)
        self.norm2, self.mlp_channels = nn.LayerNorm(width, eps=1e-6), Mlp(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class PatchEmbed(nn.Module):
    """Patches of 4 × 4 as tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 4, 4)

    def forward(self, image: Tensor) -> Tensor:
        return self.proj(image).flatten(2).transpose(1, 2)


class Mixer(nn.Module):
    """Patches, four blocks, a norm, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = PatchEmbed(40)
        self.blocks = nn.Sequential(*(MixerBlock(40, 36) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(40, eps=1e-6), nn.Linear(40, 8)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(image))).mean(1))


def mixer() -> Subject:
    """Return a mixer for clocks, whose pictures lie between -1 and 1."""
    images, labels = clocks(2700, 2108)
    return trained(Mixer, [(images - 0.5) / 0.5, labels], 500, 5, 6e-3, F.cross_entropy, classes_right, 8)


# --- all -------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "efficientnet": efficientnet,
    "densenet": densenet,
    "distilbert": distilbert,
    "forecaster": forecaster,
    "bearing": bearing,
    "keypoints": keypoints,
    "towers": towers,
    "mixer": mixer,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
