"""Eight ordinary small networks, trained on the spot: tablets, leaves, floods, addresses, sugar, EEG …"""

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

# --- vgg: tablets by shape and colour (a VGG with batch norms as in torchvision) ------------------------------------


def tablets(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of eight classes: four colours, round or oblong.

    Colours are white, yellow, blue and pink; some tablets have a notch, which says nothing.
    """
    chance = generator(seed)
    labels = torch.randint(8, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    y, x = side[:, None] - (12 + 7 * u[:, 0]), side[None] - (12 + 7 * u[:, 1])
    turn, size = math.pi * u[:, 2], 6.5 + 3 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    oblong = (labels % 2)[:, None, None].float()
    reach = 0.55 * oblong
    far = ((x.abs() - reach).clamp_min(0).square() + (y * (1 + 0.75 * oblong)).square()).sqrt()
    inside = torch.sigmoid(9 * (0.95 - far))[:, None]
    tones = torch.tensor([[0.86, 0.85, 0.82], [0.86, 0.72, 0.22], [0.3, 0.45, 0.8], [0.84, 0.42, 0.5]])
    colour = tones[labels // 2][:, :, None, None] + 0.1 * (u[:, 4:7] - 0.5)
    shade = 1 - 0.25 * far[:, None].clamp(0, 1).pow(3) + 0.12 * (u[:, 7:8] - 0.5) * x[:, None]
    notch = torch.exp(-(x / 0.12).square()) * (u[:, 8] > 0.5)
    tablet = colour * shade * (1 - 0.35 * notch[:, None])
    ground = 0.18 + 0.35 * u[:, 9:10] + 0.1 * (u[:, 10:13] - 0.5)
    ground = ground + 0.06 * torch.sin(side * (0.4 + u[:, 13:14]) + 6.3 * u[:, 14:15] + side[:, None] * u[:, 15:16])
    images = (ground + inside * (tablet - ground)) * (0.8 + 0.4 * u[:, 16:17])
    images = images + 0.04 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


class Vgg(nn.Module):
    """Pairs of convolutions with norms, pooling behind each pair, and three maps."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in (12, 12, 0, 24, 24, 0, 32, 32, 0):
            if width == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(before, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 48),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(48, 8),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(image)), 1))


def vgg() -> Subject:
    """Return a VGG for tablets, whose pictures are normalized as for ImageNet."""
    images, labels = tablets(2400, 2201)
    return trained(Vgg, [(images - MEANS) / DEVIATIONS, labels], 500, 9, 5e-3, F.cross_entropy, classes_right, 11)


# --- shufflenet: what leaves suffer from (units whose halves are shuffled, as in torchvision) -----------------------


def leaves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Sound leaves, rust (small orange spots), mildew (white patches), blight (a brown edge), mosaic (yellow mottles), and
    holes, through which the ground is seen.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    side = torch.arange(32.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    y, x = side[:, None] - (14 + 4 * u[:, 0]), side[None] - (14 + 4 * u[:, 1])
    turn, size = math.pi * u[:, 2], 11.5 + 3 * u[:, 3]
    y, x = (y * turn.cos() - x * turn.sin()) / size, (y * turn.sin() + x * turn.cos()) / size
    far = (x.square() + (1.6 * y).square()).sqrt() + 0.05 * torch.sin(9 * x)
    leaf = torch.sigmoid(12 * (1 - far))[:, None]

    def rough(cells: int) -> Tensor:
        """Return smooth chance of so many cells a side."""
        grid = torch.randn(count, 1, cells, cells, generator=chance)
        return F.interpolate(grid, size=(32, 32), mode="bilinear", align_corners=False)

    kind = F.one_hot(labels, 6).float()[:, :, None, None, None]
    green = torch.stack([0.2 + 0.12 * u[:, 4], 0.5 + 0.15 * u[:, 5], 0.18 + 0.1 * u[:, 6]], 1).expand(-1, -1, 32, 32)
    vein = torch.exp(-(y / 0.05).square())[:, None] + 0.5 * (torch.sin(14 * x + 10 * y.abs()) > 0.85).float()[:, None]
    green = green * (1 + 0.12 * rough(6)) + 0.12 * vein

    def colour(red: float, greens: float, blue: float) -> Tensor:
        """Return one colour."""
        return torch.tensor([red, greens, blue])[None, :, None, None]

    spots = torch.sigmoid(7 * (rough(16) - 0.75)) * kind[:, 1]
    patches = 0.8 * torch.sigmoid(5 * (rough(6) - 0.2)) * kind[:, 2]
    edge = torch.sigmoid(10 * (far[:, None] - 0.62 + 0.08 * rough(6))) * kind[:, 3]
    mottles = 0.85 * torch.sigmoid(5 * (rough(9) - 0.1)) * kind[:, 4]
    ground = 0.3 + 0.3 * u[:, 7:8] + 0.12 * (u[:, 8:11] - 0.5) + 0.05 * rough(12)
    holes = torch.sigmoid(8 * (rough(8) - 0.8)) * kind[:, 5]
    paint = green + spots * (colour(0.72, 0.38, 0.1) - green)
    paint = paint + patches * (colour(0.8, 0.84, 0.8) - paint) + edge * (colour(0.36, 0.24, 0.12) - paint)
    paint = paint + mottles * (colour(0.72, 0.74, 0.2) - paint)
    images = ground + leaf * (1 - holes) * (paint - ground)
    images = images * (0.8 + 0.4 * u[:, 11:12]) + 0.03 * torch.randn(count, 3, 32, 32, generator=chance)
    return (images.clamp(0, 1) * 255).round() / 255, labels


def shuffled(x: Tensor, groups: int) -> Tensor:
    """Return channels of groups in turns."""
    batch, width, height, breadth = x.shape
    return x.view(batch, groups, width // groups, height, breadth).transpose(1, 2).reshape(x.shape)


class ShuffleUnit(nn.Module):
    """Half the channels pass and half are worked on, or, with a stride, all are worked on twice; then shuffled."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        half = after // 2
        self.stride, self.groups = stride, 2
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
                nn.BatchNorm2d(before),
                nn.Conv2d(before, half, 1, bias=False),
                nn.BatchNorm2d(half),
                nn.ReLU(),
            )
        self.branch2 = nn.Sequential(
            nn.Conv2d(before if stride > 1 else half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            kept, worked = x.chunk(2, 1)
            out = torch.cat([kept, self.branch2(worked)], 1)
        else:
            out = torch.cat([self.branch1(x), self.branch2(x)], 1)
        return shuffled(out, self.groups) if self.groups > 1 else out


class ShuffleNet(nn.Module):
    """A stem, two stages, a last convolution, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.stage2 = nn.Sequential(ShuffleUnit(16, 40, 2), ShuffleUnit(40, 40, 1), ShuffleUnit(40, 40, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(40, 64, 2), ShuffleUnit(64, 64, 1), ShuffleUnit(64, 64, 1))
        self.conv5 = nn.Sequential(nn.Conv2d(64, 96, 1, bias=False), nn.BatchNorm2d(96), nn.ReLU())
        self.fc = nn.Linear(96, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv5(self.stage3(self.stage2(self.conv1(image))))
        return self.fc(x.mean([2, 3]))


def shufflenet() -> Subject:
    """Return a ShuffleNet for leaves, whose pictures are normalized as for ImageNet."""
    images, labels = leaves(2500, 2202)
    return trained(
        ShuffleNet, [(images - MEANS) / DEVIATIONS, labels], 500, 5, 1.2e-2, F.cross_entropy, classes_right, 12
    )


# --- unet: water and clouds from four bands of a satellite (a U-Net with transposed convolutions) -------------------

BAND_MEANS = torch.tensor([0.115, 0.125, 0.13, 0.22])[:, None, None]
BAND_DEVIATIONS = torch.tensor([0.1, 0.1, 0.1, 0.12])[:, None, None]


def floods(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return reflectances of blue, green, red and near infrared, 32 × 32, and a class for each pixel.

    Land, water and cloud; bare soil, plants and shadows of clouds are land.
    """
    chance = generator(seed)
    u = torch.rand(count, 12, 1, 1, generator=chance)

    def rough(cells: int) -> Tensor:
        """Return smooth chance of so many cells a side."""
        grid = torch.randn(count, 1, cells, cells, generator=chance)
        return F.interpolate(grid, size=(32, 32), mode="bicubic", align_corners=False)[:, 0]

    def paint(*bands: float) -> Tensor:
        """Return a material."""
        return torch.tensor(bands)[None, :, None, None]

    plants = torch.sigmoid(4 * rough(6))[:, None]
    land = plants * paint(0.04, 0.08, 0.05, 0.36) + (1 - plants) * paint(0.09, 0.13, 0.17, 0.24)
    land = land * (1 + 0.1 * rough(16))[:, None]
    wet = rough(4) + 0.4 * rough(8) > 0.55 - 0.5 * u[:, 0]
    mud = u[:, 1:2]
    water = mud * paint(0.1, 0.13, 0.12, 0.07) + (1 - mud) * paint(0.06, 0.06, 0.04, 0.02)
    water = water * (1 + 0.08 * rough(10))[:, None]
    haze = rough(5) + 0.3 * rough(10)
    cloudy = haze > 1.0 - 0.5 * u[:, 2]
    shadow = torch.roll(cloudy, (3, -3), (1, 2)) & ~cloudy
    images = torch.where(wet[:, None], water, land) * (1 - 0.45 * shadow[:, None].float())
    cloud = (0.42 + 0.1 * (haze - 0.8).clamp_min(0))[:, None] * paint(1.05, 1.0, 0.98, 1.0)
    images = torch.where(cloudy[:, None], cloud, images) * (0.85 + 0.3 * u[:, 3:4])
    labels = torch.where(cloudy, 2, torch.where(wet, 1, 0))
    return (images + 0.012 * torch.randn(count, 4, 32, 32, generator=chance)).clamp(0, 1), labels


class DoubleConv(nn.Module):
    """Convolution, norm and ReLU, twice."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(before, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Up(nn.Module):
    """A transposed convolution, what was there at this size before it, and two convolutions."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(before, after, 2, 2), DoubleConv(2 * after, after)
        self.skip_first = True

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        return self.conv(torch.cat([skip, x] if self.skip_first else [x, skip], 1))


class UNet(nn.Module):
    """Down twice, up twice, and a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(4, 10), DoubleConv(10, 20), DoubleConv(20, 32)
        self.pool = nn.MaxPool2d(2)
        self.up1, self.up2 = Up(32, 20), Up(20, 10)
        self.outc = nn.Conv2d(10, 3, 1)

    def forward(self, bands: Tensor) -> Tensor:
        near = self.inc(bands)
        middle = self.down1(self.pool(near))
        far = self.down2(self.pool(middle))
        return self.outc(self.up2(self.up1(far, middle), near))


def unet() -> Subject:
    """Return a U-Net for floods, whose bands have about mean 0 and deviation 1."""
    bands, labels = floods(1100, 2203)
    data = [(bands - BAND_MEANS) / BAND_DEVIATIONS, labels]
    return trained(UNet, data, 300, 4, 1e-2, F.cross_entropy, classes_right, 13)


# --- roberta: parts of addresses (an encoder with places from 2, packed projections, and a tag for each piece) ------

BOS, PAD, EOS, UNK, MASK = range(5)
PIECES, LONGEST = 96, 18
OUTSIDE, NAME, STREET, NUMBER, CODE, CITY, IGNORED = 0, 1, 2, 3, 4, 5, -100


def addresses(count: int, seed: int) -> Arrays:
    """Return pieces of addresses with padding behind, the mask, and a tag for each piece (-100 at padding).

    Pieces from 5 to 39 are names of people, streets and cities alike, and what stands beside them decides: 40 to 44
    (street, road …) follow a street, 45 to 49 (Mr, Ms …) precede a person, digits (50 to 59) are a house's number
    behind a street and a code before a city; 60 to 95 are other words.
    """
    chance = generator(seed)
    dice = torch.rand(count, 40, generator=chance).tolist()
    ids, tags = torch.full((count, LONGEST), PAD), torch.full((count, LONGEST), IGNORED)
    for row, u in enumerate(dice):
        at = iter(u)

        def draw(least: int, beyond: int, at: object = at) -> int:
            return least + int((beyond - least) * next(at))  # type: ignore[call-overload]

        parts: list[list[tuple[int, int]]] = []
        if draw(0, 10) < 7:
            parts.append([(draw(45, 50), NAME), *((draw(5, 40), NAME) for _ in range(draw(1, 3)))])
        street = [(draw(5, 40), STREET) for _ in range(draw(1, 3))] + [(draw(40, 45), STREET)]
        if draw(0, 10) < 8:
            street += [(draw(50, 60), NUMBER) for _ in range(draw(1, 3))]
        parts.append(street)
        parts.append([(draw(50, 60), CODE) for _ in range(draw(2, 4))] + [(draw(5, 40), CITY)])
        if draw(0, 10) < 6:
            parts.append([(draw(60, PIECES), OUTSIDE) for _ in range(draw(1, 3))])
        if draw(0, 10) < 5:
            parts.reverse()
        words = [(BOS, OUTSIDE), *(word for part in parts for word in part)][: LONGEST - 1]
        words.append((EOS, OUTSIDE))
        ids[row, : len(words)] = torch.tensor([piece for piece, _ in words])
        tags[row, : len(words)] = torch.tensor([tag for _, tag in words])
    return [ids, (ids != PAD).long(), tags]


class RobertaEmbeddings(nn.Module):
    """Rows for pieces and places, and a norm; the first place is 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(PIECES, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(LONGEST + 2, width)
        nn.init.normal_(self.word_embeddings.weight, 0, 0.3)
        nn.init.normal_(self.position_embeddings.weight, 0, 0.3)
        self.LayerNorm, self.dropout = nn.LayerNorm(width, eps=1e-5), nn.Dropout(0.05)
        self.register_buffer("position_ids", torch.arange(2, LONGEST + 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.LayerNorm(self.word_embeddings(ids) + self.position_embeddings(self.position_ids)))


class PackedAttention(nn.Module):
    """Attention whose queries, keys and values are one map, and which does not look at padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (part.view(batch, count, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale + shade, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, count, width))


class RobertaLayer(nn.Module):
    """Attention and two maps, norms behind the sums."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1 = PackedAttention(width, 4), nn.LayerNorm(width, eps=1e-5)
        self.intermediate, self.output = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act: nn.Module = nn.GELU()
        self.norm2 = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, shade))
        return self.norm2(x + self.output(self.act(self.intermediate(x))))


class Roberta(nn.Module):
    """Embeddings, two layers, and a tag for each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = RobertaEmbeddings(32)
        self.layer = nn.ModuleList([RobertaLayer(32), RobertaLayer(32)])
        self.dropout, self.classifier = nn.Dropout(0.05), nn.Linear(32, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        shade = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        x = self.embeddings(input_ids)
        for layer in self.layer:
            x = layer(x, shade)
        return self.classifier(self.dropout(x))


def tags_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of pieces, padding apart, whose tag is right."""
    there = labels != IGNORED
    return (outputs.argmax(-1) == labels)[there].float().mean().item()


def by_piece(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of tags, padding apart."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def roberta() -> Subject:
    """Return an encoder for addresses."""
    subject = trained(Roberta, addresses(3500, 2204), 500, 7, 5e-3, by_piece, tags_right, 14)
    subject.options["metric"] = tags_right
    return subject


# --- glucose: blood sugar in the next half hour (two layers of an LSTM) ---------------------------------------------

PAST, NEXT = 30, 6
GLUCOSE_MEANS = torch.tensor([150.0, 4.5, 0.9])
GLUCOSE_DEVIATIONS = torch.tensor([45.0, 15.0, 1.6])
SUGAR_MEAN, SUGAR_DEVIATION = 150.0, 45.0


def sugar(count: int, seed: int) -> Arrays:
    """Return sugar (mg/dl), carbohydrates (g) and insulin (units) of 30 steps of five minutes, and six steps of sugar.

    What is eaten raises sugar over about an hour, and insulin lowers it over two.
    """
    chance = generator(seed)
    long = PAST + NEXT
    w = torch.rand(4, count, long, generator=chance)
    meals = (w[0] < 0.08).float() * (15 + 60 * w[1])
    meals[:, PAST:] = 0
    doses = (w[2] < 0.07).float() * (1 + 7 * w[3])
    doses = doses + (meals > 0) * meals / 14 * torch.rand(count, long, generator=chance)
    doses[:, PAST:] = 0
    u = torch.rand(count, 4, generator=chance)
    level, gut, active = 80 + 150 * u[:, 0], torch.zeros(count), torch.zeros(count)
    drift = 1.5 * (u[:, 1] - 0.5)
    found = []
    for k in range(long):
        gut, active = 0.82 * gut + meals[:, k], 0.9 * active + doses[:, k]
        level = level + 0.42 * gut * 0.3 - 0.85 * active + drift + 0.04 * (130 - level)
        level = level.clamp(45, 400)
        found.append(level)
    level = torch.stack(found, 1) + 2.5 * torch.randn(count, long, generator=chance)
    history = torch.stack([level, meals, doses], 2)[:, :PAST]
    return [history, level[:, PAST:].contiguous()]


class Glucose(nn.Module):
    """Two layers of an LSTM, and two maps from the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 28, 2, batch_first=True)
        self.dense, self.act, self.out = nn.Linear(28, 32), nn.ReLU(), nn.Linear(32, NEXT)

    def forward(self, history: Tensor) -> Tensor:
        states, _ = self.lstm(history)
        return self.out(self.act(self.dense(states[:, -1])))


def glucose() -> Subject:
    """Return an LSTM for sugar; all numbers have about mean 0 and deviation 1."""
    history, ahead = sugar(3500, 2205)
    data = [(history - GLUCOSE_MEANS) / GLUCOSE_DEVIATIONS, (ahead - SUGAR_MEAN) / SUGAR_DEVIATION]
    subject = trained(Glucose, data, 500, 8, 1e-2, F.mse_loss, explained, 15)
    subject.options["metric"] = explained
    return subject


# --- diamonds: what stones cost (a residual network for tables) -----------------------------------------------------

CUTS, COLOURS, CLARITIES = 5, 7, 8


def stones(count: int, seed: int) -> Arrays:
    """Return carat, depth (%), table (%), x, y and z (mm), cut, colour and clarity, and the logarithm of the price."""
    chance = generator(seed)
    u = torch.rand(count, 8, generator=chance)
    kinds = torch.stack([torch.randint(n, (count,), generator=chance) for n in (CUTS, COLOURS, CLARITIES)], 1)
    carat = 0.2 + 2.3 * u[:, 0].pow(1.6)
    depth, table = 58 + 8 * u[:, 1], 53 + 10 * u[:, 2]
    x = 6.45 * carat.pow(1 / 3) * (1 + 0.03 * (u[:, 3] - 0.5))
    y = x * (1 + 0.02 * (u[:, 4] - 0.5))
    z = (x + y) / 2 * depth / 100
    quality = torch.tensor([0.0, 0.35, 0.1, 0.45, 0.25])[kinds[:, 0]]
    quality = quality + torch.tensor([0.3, -0.5, 0.1, 0.6, -0.2, 0.45, -0.75])[kinds[:, 1]]
    quality = quality + torch.tensor([-0.9, 0.5, -0.2, 0.9, 0.1, -0.5, 0.7, 0.3])[kinds[:, 2]] * (0.6 + 0.5 * carat)
    price = 8.3 + 1.7 * carat.log() + 0.75 * quality - 0.004 * (depth - 61.8).square() - 0.02 * (table - 57).abs()
    price = price + 0.05 * torch.randn(count, generator=chance)
    return [torch.stack([carat, depth, table, x, y, z], 1), kinds, price[:, None]]


STONES = stones(6500, 2206)
STONE_MEANS, STONE_DEVIATIONS = STONES[0].mean(0), STONES[0].std(0)
STONE_PRICE, STONE_SPREAD = STONES[2].mean(), STONES[2].std()


class TableBlock(nn.Module):
    """Norm, a map, ReLU and a map, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.normalization = nn.BatchNorm1d(width)
        self.linear_first, self.activation, self.dropout = nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.02)
        self.linear_second = nn.Linear(2 * width, width)
        self.skip_connection = True

    def forward(self, x: Tensor) -> Tensor:
        inner = self.linear_second(self.dropout(self.activation(self.linear_first(self.normalization(x)))))
        return x + inner if self.skip_connection else inner


class Diamonds(nn.Module):
    """Rows of three tables beside numbers, a map, three blocks, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.colour = nn.Embedding(CUTS, 4), nn.Embedding(COLOURS, 4)
        self.clarity = nn.Embedding(CLARITIES, 4)
        self.first_layer = nn.Linear(18, 32)
        self.blocks = nn.Sequential(TableBlock(32), TableBlock(32), TableBlock(32))
        self.last_norm, self.last_activation, self.head = nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        rows = [self.cut(kinds[:, 0]), self.colour(kinds[:, 1]), self.clarity(kinds[:, 2])]
        x = self.blocks(self.first_layer(torch.cat([numbers, *rows], 1)))
        return self.head(self.last_activation(self.last_norm(x)))


def diamonds() -> Subject:
    """Return a network for stones; numbers have mean 0 and deviation 1."""
    data = [(STONES[0] - STONE_MEANS) / STONE_DEVIATIONS, STONES[1], (STONES[2] - STONE_PRICE) / STONE_SPREAD]
    subject = trained(Diamonds, data, 500, 12, 6e-3, F.mse_loss, explained, 16)
    subject.options["metric"] = explained
    return subject


# --- parcels: the label on a parcel, its kind and its box (a ResNet with two heads) ---------------------------------

KINDS, OVERLAP = 4, 0.5


def parcels(count: int, seed: int) -> Arrays:
    """Return pictures of 40 × 40 in colour between 0 and 1, and kind and box (middle and size, as shares of the sides).

    Labels say fragile (red with a white cross), up (white with arrows), cold (blue with stripes) or heavy (yellow with
    a dark frame), and lie on brown parcels with tape.
    """
    chance = generator(seed)
    kinds = torch.randint(KINDS, (count,), generator=chance)
    side = torch.arange(40.0)
    u = torch.rand(count, 20, 1, 1, generator=chance)
    high, wide = 9 + 10 * u[:, 0], 9 + 10 * u[:, 1]
    y0, x0 = high / 2 + 2 + (36 - high) * u[:, 2], wide / 2 + 2 + (36 - wide) * u[:, 3]
    y, x = (side[:, None] - y0) / (high / 2), (side[None] - x0) / (wide / 2)
    inside = ((y.abs() < 1) & (x.abs() < 1)).float()[:, None]

    def paint(red: float, green: float, blue: float) -> Tensor:
        """Return a colour."""
        return torch.tensor([red, green, blue])[None, :, None, None]

    cross = ((x - y).abs() < 0.3) | ((x + y).abs() < 0.3)
    arrow = ((x.abs() - 0.5).abs() < 0.13) & (y.abs() < 0.7) | ((y + 0.6).abs() < 0.18)
    stripes = torch.sin(7 * y + 0 * x) > 0.3
    frame = (y.abs() > 0.68) | (x.abs() > 0.68)
    marks = torch.stack([cross, arrow, stripes, frame])[kinds, torch.arange(count)].float()[:, None]
    ground = torch.cat(
        [paint(0.75, 0.16, 0.14), paint(0.85, 0.84, 0.82), paint(0.2, 0.38, 0.72), paint(0.86, 0.74, 0.16)]
    )
    signs = torch.cat([paint(0.9, 0.88, 0.86), paint(0.2, 0.2, 0.22), paint(0.86, 0.88, 0.9), paint(0.14, 0.13, 0.12)])
    label = ground[kinds] + marks * (signs[kinds] - ground[kinds])
    brown = paint(0.52, 0.38, 0.25) * (0.75 + 0.4 * u[:, 4:5]) + 0.04 * torch.sin(side * (0.5 + u[:, 5:6]))
    tape = ((side[None] - 40 * u[:, 6]).abs() < 2.5).float()[:, None]
    brown = brown + tape * (paint(0.66, 0.58, 0.45) - brown)
    images = (brown + inside * (label - brown)) * (0.75 + 0.5 * u[:, 7:8])
    images = images + 0.09 * torch.randn(count, 3, 40, 40, generator=chance)
    box = torch.cat([part[:, 0] for part in (x0 / 40, y0 / 40, wide / 40, high / 40)], 1)
    answers = torch.cat([kinds[:, None].float(), box], 1)
    return [(images.clamp(0, 1) * 255).round() / 255, answers]


class BasicBlock(nn.Module):
    """Two convolutions with norms, added to what came in."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.relu: nn.Module = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.added = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.added:
            out = out + (x if self.downsample is None else self.downsample(x))
        return self.relu(out)


class Parcels(nn.Module):
    """A stem, four blocks, and from a small map of features a kind and a box, side by side, both as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU()
        self.layer1 = nn.Sequential(BasicBlock(12, 12, 1))
        self.layer2 = nn.Sequential(BasicBlock(12, 24, 2), BasicBlock(24, 24, 1))
        self.layer3 = nn.Sequential(BasicBlock(24, 32, 2))
        self.neck = nn.Linear(32 * 25, 64)
        self.cls_head, self.box_head = nn.Linear(64, KINDS), nn.Linear(64, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.bn1(self.conv1(image))))
        x = self.relu(self.neck(torch.flatten(self.layer3(self.layer2(x)), 1)))
        return torch.cat([self.cls_head(x), self.box_head(x)], 1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return what boxes have in common, as a share of what both cover."""
    low = torch.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = torch.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    both = (high - low).clamp_min(0).prod(1)
    return both / (one[:, 2:].prod(1) + other[:, 2:].prod(1) - both).clamp_min(1e-9)


def labels_found(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of labels whose kind is right and whose box mostly covers the right one."""
    right = outputs[:, :KINDS].argmax(1) == labels[:, 0].long()
    return (right & (overlap(outputs[:, KINDS:].sigmoid(), labels[:, 1:]) > OVERLAP)).float().mean().item()


def kind_and_box(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of kinds and boxes."""
    kinds = F.cross_entropy(outputs[:, :KINDS], labels[:, 0].long())
    return kinds + 8 * F.smooth_l1_loss(outputs[:, KINDS:].sigmoid(), labels[:, 1:], beta=0.05)


def parcels_network() -> Subject:
    """Return a ResNet for parcels, whose pictures lie between 0 and 1."""
    subject = trained(Parcels, parcels(2600, 2207), 500, 5, 8e-3, kind_and_box, labels_found, 17)
    subject.options["metric"] = labels_found
    return subject


# --- eegnet: which movement is imagined (EEGNet on eight electrodes) ------------------------------------------------

ELECTRODES, TICKS = 8, 128
MICROVOLTS = 20.0


def eeg(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return potentials in µV of eight electrodes, one second, and one of four classes: left, right, feet, tongue.

    Rhythms of 10 and 22 Hz get weaker over the side opposite to the hand; feet and tongue have rhythms of their own.
    """
    chance, world = generator(seed), generator(2208)
    labels = torch.randint(4, (count,), generator=chance)
    time = torch.arange(float(TICKS)) / TICKS
    u = torch.rand(count, 10, 1, generator=chance)
    places = torch.randn(6, ELECTRODES, generator=world)
    kind = F.one_hot(labels, 4).float()[:, :, None]

    def rhythm(least: float, wide: float, k: int) -> Tensor:
        """Return a wave of about that frequency."""
        return torch.sin(2 * math.pi * ((least + wide * u[:, k]) * time + u[:, k + 1]))

    left = rhythm(9, 2, 0) * (12 - 9 * kind[:, 1] + 3 * kind[:, 0])
    right = rhythm(9, 2, 2) * (12 - 9 * kind[:, 0] + 3 * kind[:, 1])
    feet = rhythm(20, 4, 4) * (3 + 9 * kind[:, 2])
    tongue = rhythm(15, 3, 6) * (3 + 9 * kind[:, 3])
    eyes = torch.exp(-((time - u[:, 8]) / 0.1).square()) * 45 * (u[:, 9] > 0.6)
    sources = torch.stack([left, right, feet, tongue, eyes], 1)
    mixed = (places[:5].t()[None] @ sources) * 0.6
    noise = torch.randn(count, ELECTRODES, TICKS, generator=chance)
    drift = F.avg_pool1d(torch.randn(count, ELECTRODES, TICKS + 30, generator=chance), 31, 1) * 40
    return mixed + 24 * noise + drift, labels


class EegNet(nn.Module):
    """Filters over time, a mixture of electrodes for each, separable filters, and a class; ELU and mean pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_temporal = nn.Conv2d(1, 8, (1, 31), padding=(0, 15), bias=False)
        self.bnorm_temporal = nn.BatchNorm2d(8)
        self.conv_spatial = nn.Conv2d(8, 24, (ELECTRODES, 1), groups=8, bias=False)
        self.bnorm_1, self.elu_1, self.pool_1 = nn.BatchNorm2d(24), nn.ELU(), nn.AvgPool2d((1, 4))
        self.drop_1 = nn.Dropout(0.1)
        self.conv_separable_depth = nn.Conv2d(24, 24, (1, 9), padding=(0, 4), groups=24, bias=False)
        self.conv_separable_point = nn.Conv2d(24, 24, 1, bias=False)
        self.bnorm_2, self.elu_2, self.pool_2 = nn.BatchNorm2d(24), nn.ELU(), nn.AvgPool2d((1, 8))
        self.final_layer = nn.Linear(24 * 4, 4)

    def forward(self, signal: Tensor) -> Tensor:
        x = self.bnorm_temporal(self.conv_temporal(signal))
        x = self.drop_1(self.pool_1(self.elu_1(self.bnorm_1(self.conv_spatial(x)))))
        x = self.conv_separable_point(self.conv_separable_depth(x))
        x = self.pool_2(self.elu_2(self.bnorm_2(x)))
        return self.final_layer(torch.flatten(x, 1))


def eegnet() -> Subject:
    """Return an EEGNet, whose potentials are divided by one number."""
    signal, labels = eeg(2200, 2209)
    return trained(EegNet, [signal[:, None] / MICROVOLTS, labels], 500, 5, 1e-2, F.cross_entropy, classes_right, 18)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "vgg": vgg,
    "shufflenet": shufflenet,
    "unet": unet,
    "roberta": roberta,
    "glucose": glucose,
    "diamonds": diamonds,
    "parcels": parcels_network,
    "eegnet": eegnet,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
