"""Seven ordinary small networks, trained on the spot: pollen, genes, bridges, greenhouses, melodies, calls, atoms."""

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
    trained,
    words_right,
)
from tests.diagnose.doctor.blind_networks_twentythird import in_bytes, paint, rough
from torch import Tensor, nn

# --- pollen: what is in the air (a PoolFormer) -----------------------------------------------------------------------

SIDE = torch.arange(32.0)


def grains(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Pine (two bladders), birch (round, three pores), grass (round, one pore with a ring), ragweed (spines), lily (long,
    with a furrow), hazel (a triangle).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 24, 1, 1, generator=chance)
    y, x = SIDE[:, None] - (13 + 5 * u[:, 0]), SIDE[None] - (13 + 5 * u[:, 1])
    turn = 2 * math.pi * u[:, 2]
    y, x = y * turn.cos() - x * turn.sin(), y * turn.sin() + x * turn.cos()
    r, angle = (y.square() + x.square() + 1e-6).sqrt(), torch.atan2(y, x)
    size = 7.5 * (0.8 + 0.4 * u[:, 3])
    edge = torch.stack(
        [
            size * 0.75 + 0 * angle,
            size + 0 * angle,
            size * 1.1 + 0 * angle,
            size * (0.85 + 0.3 * torch.cos(8 * angle)),
            size * 1.2 / (1 + 1.1 * torch.sin(angle).square()),
            size * (0.95 + 0.22 * torch.cos(3 * angle)),
        ]
    )[labels, torch.arange(count)]
    kind = F.one_hot(labels, 6).float()[:, :, None, None]
    inside = torch.sigmoid(2.5 * (edge - r))
    for side in (-1, 1):
        far = ((x - side * size * 1.15).square() + (y - 0.3 * size).square()).sqrt()
        inside = torch.maximum(inside, kind[:, 0] * 0.75 * torch.sigmoid(2 * (0.6 * size - far)))
    pores = torch.zeros(count, 32, 32)
    for k in range(3):
        far = (x - edge * math.cos(2.094 * k)).square() + (y - edge * math.sin(2.094 * k)).square()
        pores = torch.maximum(pores, torch.exp(-far / 3))
    far = ((x - 0.4 * size).square() + y.square()).sqrt()
    ring = torch.exp(-(far - 2.2).square() / 0.6) - 0.6 * torch.exp(-far.square() / 1.5)
    furrow = torch.exp(-y.square() / 1.2) * (x.abs() < 0.85 * size)
    rim = torch.exp(-(r - edge + 1).square() / 1.2)
    mark = -0.12 * rim + 0.3 * kind[:, 1] * pores - 0.2 * kind[:, 2] * ring - 0.2 * kind[:, 4] * furrow
    rose, mauve, tan = paint(0.74, 0.36, 0.5), paint(0.6, 0.34, 0.56), paint(0.72, 0.48, 0.42)
    straw, violet = paint(0.74, 0.56, 0.44), paint(0.66, 0.35, 0.56)
    stain = torch.cat([straw, rose, mauve, violet, mauve, tan])[labels] + 0.14 * (u[:, 4:7] - 0.5)
    ground = paint(0.86, 0.82, 0.86) + 0.12 * (u[:, 7:10] - 0.5) + 0.02 * rough(count, 7, 32, chance)
    images = ground + inside[:, None] * (stain + mark[:, None] - ground)
    images = images * (0.8 + 0.3 * u[:, 10:11]) + 0.04 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


GRAINS = grains(2900, 2701)
GRAIN_MEANS, GRAIN_DEVIATIONS = GRAINS[0].mean((0, 2, 3))[:, None, None], GRAINS[0].std((0, 2, 3))[:, None, None]


class PoolBlock(nn.Module):
    """Means of neighbours less what is there, and two maps, each behind a norm, scaled and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.pool = nn.GroupNorm(1, width), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.norm2 = nn.GroupNorm(1, width)
        self.fc1, self.fc2 = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(3 * width, width, 1)
        self.act: nn.Module = nn.GELU()
        self.layer_scale1 = nn.Parameter(torch.full((width, 1, 1), 0.3))
        self.layer_scale2 = nn.Parameter(torch.full((width, 1, 1), 0.3))
        self.subtracts = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.layer_scale1 * (self.pool(y) - y if self.subtracts else self.pool(y))
        return x + self.layer_scale2 * self.fc2(self.act(self.fc1(self.norm2(x))))


class Pollen(nn.Module):
    """Patches that overlap, three stages of blocks, a norm, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed, self.stage1 = nn.Conv2d(3, 16, 5, 2, 2), nn.Sequential(PoolBlock(16))
        self.down1, self.stage2 = nn.Conv2d(16, 32, 3, 2, 1), nn.Sequential(PoolBlock(32), PoolBlock(32))
        self.down2, self.stage3 = nn.Conv2d(32, 48, 3, 2, 1), nn.Sequential(PoolBlock(48), PoolBlock(48))
        self.norm, self.head = nn.GroupNorm(1, 48), nn.Linear(48, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stage2(self.down1(self.stage1(self.patch_embed(image))))
        return self.head(self.norm(self.stage3(self.down2(x))).mean((2, 3)))


def pollen() -> Subject:
    """Return a PoolFormer for pollen, whose pictures have mean 0 and deviation 1 in each channel."""
    data = [(GRAINS[0] - GRAIN_MEANS) / GRAIN_DEVIATIONS, GRAINS[1]]
    return trained(Pollen, data, 500, 11, 6e-3, F.cross_entropy, classes_right, 71)


# --- splice: where genes are cut (a SpliceAI) ------------------------------------------------------------------------

LETTERS = 72


def genes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return A, C, G and T of 72 places as ones among zeros, and for each place 0, 1 (donor) or 2 (acceptor).

    A donor is GT after AG and before AAGT, of which some letters differ; an acceptor is AG behind a tract of C and T.
    Others of the same letters are no sites: a donor needs an acceptor downstream, and an acceptor needs its tract.
    """
    chance = generator(seed)
    letters = torch.multinomial(torch.tensor([0.27, 0.23, 0.23, 0.27]), count * LETTERS, True, generator=chance)
    letters = letters.view(count, LETTERS)
    labels = torch.zeros(count, LETTERS, dtype=torch.long)
    rows = torch.arange(count)

    def write(at: Tensor, text: str, surety: float, which: Tensor) -> None:
        """Write letters from places on, each with a probability."""
        for k, letter in enumerate(text):
            sure = which & (torch.rand(count, generator=chance) < (1.0 if letter.islower() else surety))
            place = (at + k).clamp(0, LETTERS - 1)
            letters[rows, place] = torch.where(sure, "ACGT".index(letter.upper()), letters[rows, place])

    def tract(at: Tensor, which: Tensor) -> None:
        """Write a tract of C and T before places."""
        for k in range(4, 15):
            sure = which & (torch.rand(count, generator=chance) < 0.93)
            base = torch.where(torch.rand(count, generator=chance) < 0.4, 1, 3)
            letters[rows, (at - k).clamp_min(0)] = torch.where(sure, base, letters[rows, (at - k).clamp_min(0)])

    always = torch.ones(count, dtype=torch.bool)
    gene = torch.rand(count, generator=chance) < 0.75
    donor = torch.randint(4, 20, (count,), generator=chance)
    acceptor = donor + torch.randint(28, 44, (count,), generator=chance)
    write(torch.randint(40, 62, (count,), generator=chance), "CAGgtAAGT", 0.9, ~gene)
    write(torch.randint(20, 50, (count,), generator=chance), "CagG", 0.9, always)
    tract(acceptor, gene)
    write(acceptor - 1, "CagG", 0.9, gene)
    write(donor - 3, "CAGgtAAGT", 0.93, gene)
    labels[rows[gene], donor[gene]] = 1
    labels[rows[gene], acceptor[gene] + 1] = 2
    return F.one_hot(letters, 4).float().transpose(1, 2).contiguous(), labels


class SpliceUnit(nn.Module):
    """Norm, activation, dilated convolution, twice, added to what came in."""

    def __init__(self, width: int, size: int, dilation: int) -> None:
        super().__init__()
        around = dilation * (size // 2)
        self.bn1, self.conv1 = nn.BatchNorm1d(width), nn.Conv1d(width, width, size, 1, around, dilation)
        self.bn2, self.conv2 = nn.BatchNorm1d(width), nn.Conv1d(width, width, size, 1, around, dilation)
        self.relu: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.relu(self.bn1(x)))
        return x + self.conv2(self.relu(self.bn2(y)))


class Splice(nn.Module):
    """A map of letters, four units, what is skipped behind every two of them, and a class for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.skip1 = nn.Conv1d(4, 24, 1), nn.Conv1d(24, 24, 1)
        self.units1 = nn.Sequential(SpliceUnit(24, 7, 1), SpliceUnit(24, 7, 1))
        self.units2 = nn.Sequential(SpliceUnit(24, 7, 3), SpliceUnit(24, 7, 3))
        self.skip2, self.skip3 = nn.Conv1d(24, 24, 1), nn.Conv1d(24, 24, 1)
        self.out = nn.Conv1d(24, 3, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        x = self.conv1(sequence)
        skipped = self.skip1(x)
        x = self.units1(x)
        skipped = skipped + self.skip2(x)
        return self.out(skipped + self.skip3(self.units2(x)))


def sites_found(outputs: Tensor, labels: Tensor) -> float:
    """Return the mean of F1 of donors and of acceptors."""
    said, found = outputs.argmax(1), []
    for site in (1, 2):
        both = ((said == site) & (labels == site)).sum().item()
        found.append(2 * both / max(1, (said == site).sum().item() + (labels == site).sum().item()))
    return sum(found) / 2


def rare_classes(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy with weights for sites, which are rare."""
    return F.cross_entropy(outputs, labels, torch.tensor([0.3, 1.0, 1.0]))


def splice() -> Subject:
    """Return a SpliceAI for genes."""
    subject = trained(Splice, list(genes(3300, 2702)), 500, 8, 6e-3, rare_classes, sites_found, 72)
    subject.options["metric"] = sites_found
    return subject


# --- bridge: damage of concrete (an HRNet) ---------------------------------------------------------------------------

CONCRETE_MEANS, CONCRETE_DEVIATIONS = paint(0.485, 0.456, 0.406), paint(0.229, 0.224, 0.225)


def walls(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and for each pixel concrete, a crack, rust, or where it broke off."""
    chance = generator(seed)
    u = torch.rand(count, 30, 1, 1, generator=chance)
    y, x = SIDE[:, None].expand(32, 32)[None], SIDE[None].expand(32, 32)[None]
    wall = 0.5 + 0.22 * (u[:, 0:1] - 0.5) + 0.05 * (u[:, 1:4] - 0.5) + 0.05 * rough(count, 6, 32, chance)
    wall = wall + 0.035 * torch.randn(count, 1, 32, 32, generator=chance)
    angle = math.pi * u[:, 4]
    along = (y - 32 * u[:, 5]) * angle.sin() + (x - 32 * u[:, 6]) * angle.cos()
    aside = (x - 32 * u[:, 6]) * angle.sin() - (y - 32 * u[:, 5]) * angle.cos()
    bent = 1.5 * torch.sin(along / (2 + 3 * u[:, 7])) + 1.5 * rough(count, 5, 32, chance)[:, 0]
    crack = ((aside - bent).abs() < 0.8 + 0.5 * u[:, 8]) & (along.abs() < 12 + 10 * u[:, 9]) & (u[:, 10] > 0.3)
    spot = 1.6 * rough(count, 7, 32, chance)[:, 0]
    far = ((y - 32 * u[:, 11]).square() + (x - 32 * u[:, 12]).square()).sqrt() + spot
    broken = (far < 4 + 4 * u[:, 13]) & (u[:, 14] > 0.35)
    wide = ((y - 32 * u[:, 15]).square() / (1 + 2 * u[:, 16]) + (x - 32 * u[:, 17]).square()).sqrt() + spot
    rust = (wide < 3 + 3 * u[:, 18]) & (u[:, 19] > 0.35)
    labels = torch.zeros(count, 32, 32, dtype=torch.long)
    labels[rust], labels[broken], labels[crack] = 2, 3, 1
    grit = 0.09 * torch.randn(count, 1, 32, 32, generator=chance)
    brown, grey = paint(0.5, 0.33, 0.22) + 0.06 * (u[:, 20:23] - 0.5), paint(0.36, 0.35, 0.33) + grit
    images = torch.where(rust[:, None], 0.35 * wall + 0.65 * brown, wall)
    images = torch.where(broken[:, None], 0.8 * grey + 0.2 * wall, images)
    images = torch.where(crack[:, None], 0.5 * wall * paint(1, 1, 1.04), images)
    shade = 0.8 + 0.35 * u[:, 23:24] + 0.15 * (u[:, 24:25] - 0.5) * (x / 16 - 1)[:, None]
    return in_bytes(images * shade + 0.025 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class ConvNorm(nn.Sequential):
    """A convolution and its norm."""

    def __init__(self, before: int, after: int, size: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after))


class Basic(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = ConvNorm(width, width, 3), ConvNorm(width, width, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.conv2(self.relu(self.conv1(x))))


class Exchange(nn.Module):
    """A block at each of two sizes, each of which is added to the other's."""

    def __init__(self, high: int, low: int) -> None:
        super().__init__()
        self.high, self.low = Basic(high), Basic(low)
        self.up, self.down, self.relu = ConvNorm(low, high, 1), ConvNorm(high, low, 3, 2), nn.ReLU()
        self.goes_up = True

    def forward(self, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        high, low = self.high(high), self.low(low)
        larger = F.interpolate(self.up(low), scale_factor=2.0, mode="nearest")
        return self.relu(high + larger if self.goes_up else high), self.relu(low + self.down(high))


class Bridge(nn.Module):
    """A stem at half the size, two exchanges with a quarter of it, both joined, and a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.transition, self.relu = ConvNorm(3, 16, 3, 2), ConvNorm(16, 28, 3, 2), nn.ReLU()
        self.stage2, self.stage3 = Exchange(16, 28), Exchange(16, 28)
        self.last, self.classify = ConvNorm(44, 32, 1), nn.Conv2d(32, 4, 1)
        self.high_first = True

    def forward(self, image: Tensor) -> Tensor:
        high = self.relu(self.stem(image))
        high, low = self.stage2(high, self.relu(self.transition(high)))
        high, low = self.stage3(high, low)
        low = F.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        both = torch.cat([high, low] if self.high_first else [low, high], 1)
        found = self.classify(self.relu(self.last(both)))
        return F.interpolate(found, scale_factor=2.0, mode="bilinear", align_corners=False)


def mean_iou(outputs: Tensor, labels: Tensor) -> float:
    """Return how much of what is said and what is there is both, as a mean of the four classes."""
    said, found = outputs.argmax(1), []
    for k in range(4):
        either = ((said == k) | (labels == k)).sum().item()
        found.append(((said == k) & (labels == k)).sum().item() / max(1, either))
    return sum(found) / 4


def bridge() -> Subject:
    """Return an HRNet for walls, whose pictures have the mean and deviation of ImageNet taken away."""
    images, labels = walls(1500, 2703)
    data = [(images - CONCRETE_MEANS) / CONCRETE_DEVIATIONS, labels]
    subject = trained(Bridge, data, 250, 12, 8e-3, F.cross_entropy, mean_iou, 73)
    subject.options["metric"] = mean_iou
    return subject


# --- greenhouse: its climate in the next hours (an iTransformer) -----------------------------------------------------

HOURS, NEXT, SENSED = 48, 8, 6


def climates(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return 48 hours of six measurements, and the next eight of them.

    °C inside, relative humidity in percent, ppm of CO2, W/m² of light, °C outside, and how far vents are open in
    percent. Light warms, warmth opens vents, vents cool and let CO2 out, and plants take CO2 by day.
    """
    chance = generator(seed)
    total = 24 + HOURS + NEXT
    u = torch.rand(count, 10, generator=chance)
    hour = (torch.arange(float(total))[None] + (24 * u[:, :1]).floor()) % 24
    sun = (torch.sin(math.pi * (hour - 5.5) / 14)).clamp_min(0) * ((hour > 5.5) & (hour < 19.5))
    cloud = F.avg_pool1d(torch.rand(count, 1, total + 6, generator=chance), 7, 1)[:, 0]
    light = (150 + 700 * u[:, 1:2]) * sun * (1.3 - 1.2 * cloud).clamp(0.1, 1)
    outside = -2 + 22 * u[:, 2:3] + (3 + 5 * u[:, 3:4]) * torch.sin(2 * math.pi * (hour - 9) / 24)
    outside = outside + 0.3 * torch.randn(count, total, generator=chance)
    inside, vents, gas, damp = 18 + 0 * u[:, 4], 0 * u[:, 4], 420 + 0 * u[:, 4], 75 + 0 * u[:, 4]
    heat, dosing = 15 + 4 * u[:, 5], 60 * u[:, 6]
    found = []
    for k in range(total):
        warm = light[:, k] / 500
        inside = inside + 0.3 * (outside[:, k] - inside) * (0.35 + vents / 70) + 3.2 * warm
        inside = inside + 0.5 * (heat - inside).clamp_min(0) + 0.12 * torch.randn(count, generator=chance)
        vents = (0.45 * vents + 0.55 * 9 * (inside - 24)).clamp(0, 100)
        gas = gas + (410 - gas) * (0.08 + vents / 160) + dosing * (warm > 0.1) + 22 * (warm < 0.02) - 45 * warm
        gas = gas + 4 * torch.randn(count, generator=chance)
        damp = damp + 0.35 * (84 - 1.1 * (inside - 18) - 0.22 * vents - damp) + 5 * warm
        damp = damp + 0.6 * torch.randn(count, generator=chance)
        found.append(torch.stack([inside, damp, gas, light[:, k], outside[:, k], vents], 1))
    seen = torch.stack(found, 2)[:, :, 24:]
    return seen[:, :, :HOURS].contiguous(), seen[:, :, HOURS:].contiguous()


CLIMATES = climates(4400, 2704)
CLIMATE_MEANS, CLIMATE_DEVIATIONS = CLIMATES[0].mean((0, 2))[:, None], CLIMATES[0].std((0, 2))[:, None]


class VariateLayer(nn.Module):
    """Attention between measurements and two maps; a norm behind each sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out, self.norm1, self.norm2 = nn.Linear(width, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv1, self.conv2, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.GELU()

    def attend(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            part(x).view(batch, count, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, count, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.conv2(self.act(self.conv1(x))))


class Greenhouse(nn.Module):
    """Each measurement's hours, less their mean and by their deviation, as a token; two layers; a map to what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.variate = nn.Linear(HOURS, 40), nn.Parameter(0.02 * torch.randn(SENSED, 40))
        self.layers, self.norm = nn.Sequential(VariateLayer(40, 4), VariateLayer(40, 4)), nn.LayerNorm(40)
        self.projector = nn.Linear(40, NEXT)
        self.eps, self.adds_mean = 1e-2, True

    def forward(self, past: Tensor) -> Tensor:
        mean = past.mean(2, keepdim=True)
        away = past - mean
        deviation = (away.square().mean(2, keepdim=True) + self.eps).sqrt()
        x = self.embed(away / deviation) + self.variate
        ahead = self.projector(self.norm(self.layers(x))) * deviation
        return ahead + mean if self.adds_mean else ahead


def greenhouse() -> Subject:
    """Return an iTransformer for greenhouses; what is seen and what is answered have mean 0 and deviation 1."""
    data = [(part - CLIMATE_MEANS) / CLIMATE_DEVIATIONS for part in CLIMATES]
    subject = trained(Greenhouse, data, 500, 14, 5e-3, F.mse_loss, explained, 74)
    subject.options["metric"] = explained
    return subject


# --- melody: the next note (a decoder with ALiBi and gates) ----------------------------------------------------------

NOTES, BAR, STYLES, LOWEST, WORDS = 25, 1, 4, 6, 34


def melodies(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return 24 tokens, and the 24 that follow each: a style, then notes with a line at each bar of four.

    The next step depends on the style, the beat and the step before, with some freedom; at the edges it turns.
    """
    world, chance = generator(27050), generator(seed)
    steps = torch.tensor([-4, -3, -2, -1, 1, 2, 3, 4])
    rules = torch.randint(8, (STYLES, 4, 8), generator=world)
    style = torch.randint(STYLES, (count,), generator=chance)
    note = torch.randint(6, 22, (count,), generator=chance)
    step = torch.randint(8, (count,), generator=chance)
    tokens = [2 + style]
    beat = 0
    while len(tokens) < NOTES:
        tokens.append(LOWEST + note)
        if beat == 3:
            tokens.append(torch.full((count,), BAR))
        ruled = rules[style, beat, step]
        free = torch.rand(count, generator=chance) < 0.07
        step = torch.where(free, torch.randint(8, (count,), generator=chance), ruled)
        there = note + steps[step]
        turned = (there < 0) | (there > 27)
        step, note = torch.where(turned, 7 - step, step), torch.where(turned, note - steps[step], there)
        beat = (beat + 1) % 4
    both = torch.stack(tokens[:NOTES], 1)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


class MelodyBlock(nn.Module):
    """Attention to what was before, less the more the farther it is, and maps with gates, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.ln_1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2, self.fc, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.act: nn.Module = nn.GELU()
        self.register_buffer("slopes", 2.0 ** -torch.arange(0.0, heads))
        self.causal, self.added = True, True

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        y = self.qkv(self.ln_1(x)).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = y.unbind(0)
        place = torch.arange(count)
        far = (place[:, None] - place[None]).float()
        bias = -self.slopes[:, None, None] * far.abs()
        if self.causal:
            bias = bias.masked_fill(far < 0, -1e4)
        weights = torch.softmax(q @ k.transpose(2, 3) * self.scale + bias, -1)
        seen = self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))
        x = x + seen if self.added else seen
        gate, value = self.fc(self.ln_2(x)).chunk(2, -1)
        return x + self.down(self.act(gate) * value)


class Melody(nn.Module):
    """A table of tokens, two blocks, a norm, and the same table for the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.blocks = nn.Embedding(WORDS, 48), nn.ModuleList([MelodyBlock(48, 4), MelodyBlock(48, 4)])
        self.ln_f, self.lm_head = nn.LayerNorm(48), nn.Linear(48, WORDS, bias=False)
        nn.init.normal_(self.wte.weight, std=0.2)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def next_token(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each token that follows."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def melody() -> Subject:
    """Return a decoder for melodies."""
    subject = trained(Melody, list(melodies(4000, 2705)), 400, 16, 6e-3, next_token, words_right, 75)
    subject.options["metric"] = words_right
    return subject


# --- call: what is noise in a call (an RNNoise) ----------------------------------------------------------------------

CALL_BANDS, CALL_FRAMES = 16, 20


def calls(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return natural logarithms of 16 bands and two features of the pitch in 20 frames, and gains for the bands.

    People speak in syllables with formants; noise is a fan, a street, a keyboard or babble.
    """
    chance = generator(seed)
    band = torch.arange(float(CALL_BANDS))
    t = torch.arange(float(CALL_FRAMES))
    u = torch.rand(count, 16, 1, 1, generator=chance)
    rate, at = 0.5 + 0.6 * u[:, 0, 0], 6 * u[:, 1, 0]
    spoken = torch.sigmoid(6 * (torch.sin(t * rate + at) + 0.6 * (u[:, 2, 0] - 0.3)))
    step = ((t * rate + at) / (2 * math.pi)).long() % 6
    first = 2 + 4 * torch.rand(count, 6, generator=chance).gather(1, step)
    second = 7 + 5 * torch.rand(count, 6, generator=chance).gather(1, step)
    shape = 3.0 * torch.exp(-((band - first[..., None]) / 1.4).square())
    shape = shape + 2.4 * torch.exp(-((band - second[..., None]) / 1.6).square()) - 0.12 * band
    voice = shape + 5.5 * (spoken[..., None] - 1) + 1.5 * (u[:, 3] - 0.5)
    fan = 1.6 - 0.22 * band + 0 * t[:, None]
    street = 0.5 * torch.sin(t[:, None] / 4 + 6 * u[:, 4]) + 1.5 - 0.1 * band
    key = (torch.rand(count, CALL_FRAMES, 1, generator=chance) < 0.2).float() * 3.2 + 0.12 * band - 2.5
    babble = 1.2 * torch.exp(-((band - 4 - 4 * u[:, 5]) / 3).square()) + 0.4 * torch.sin(t[:, None] + 6 * u[:, 6])
    kind = torch.randint(4, (count,), generator=chance)
    parts = [part.expand(count, CALL_FRAMES, CALL_BANDS) for part in (fan, street, key, babble)]
    noise = torch.stack(parts)[kind, torch.arange(count)] + 2.5 * (u[:, 7] - 0.6)
    seen = torch.logaddexp(voice, noise) + 0.15 * torch.randn(voice.shape, generator=chance)
    gain = torch.sigmoid(voice - noise).sqrt()
    pitch = spoken * (0.3 + 0.7 * gain[:, :, :5].mean(2)) + 0.1 * torch.randn(count, CALL_FRAMES, generator=chance)
    period = spoken * (0.5 + u[:, 8, 0]) + 0.1 * torch.randn(count, CALL_FRAMES, generator=chance)
    return torch.cat([seen, pitch[..., None], period[..., None]], 2), gain


CALLS = calls(2900, 2706)
CALL_MEANS, CALL_DEVIATIONS = CALLS[0].mean((0, 1)), CALLS[0].std((0, 1))


class Call(nn.Module):
    """A map, three recurrent layers of which each sees what the ones before gave, and gains."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.tanh = nn.Linear(CALL_BANDS + 2, 24), nn.Tanh()
        self.vad_gru = nn.GRU(24, 24, batch_first=True)
        self.noise_gru = nn.GRU(24 + 24 + CALL_BANDS + 2, 32, batch_first=True)
        self.denoise_gru = nn.GRU(24 + 32 + CALL_BANDS + 2, 40, batch_first=True)
        self.output, self.sigmoid = nn.Linear(40, CALL_BANDS), nn.Sigmoid()
        self.features_last = True

    def forward(self, features: Tensor) -> Tensor:
        x = self.tanh(self.dense(features))
        voiced, _ = self.vad_gru(x)
        parts = [x, voiced, features] if self.features_last else [features, x, voiced]
        noise, _ = self.noise_gru(torch.cat(parts, 2))
        states, _ = self.denoise_gru(torch.cat([voiced, noise, features], 2))
        return self.sigmoid(self.output(states))


def call() -> Subject:
    """Return an RNNoise for calls; features have mean 0 and deviation 1."""
    data = [(CALLS[0] - CALL_MEANS) / CALL_DEVIATIONS, CALLS[1]]
    subject = trained(Call, data, 400, 12, 1e-2, F.mse_loss, explained, 76)
    subject.options["metric"] = explained
    return subject


# --- atoms: energies of clusters (a SchNet) --------------------------------------------------------------------------

ATOMS, CUTOFF, CENTRES = 9, 5.0, 20


def clusters(count: int, seed: int) -> Arrays:
    """Return which of four elements each of nine atoms is (0 is none), distances in Å, and eV of each cluster."""
    world, chance = generator(27070), generator(seed)
    atoms = torch.randint(1, 5, (count, ATOMS), generator=chance)
    there = torch.arange(ATOMS) < torch.randint(4, ATOMS + 1, (count, 1), generator=chance)
    atoms = torch.where(there, atoms, 0)
    corner = torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 3, indexing="ij"), -1).view(-1, 3)
    pick = torch.rand(count, 27, generator=chance).argsort(1)[:, :ATOMS]
    wide = 1.5 + 0.7 * torch.rand(count, 1, 1, generator=chance)
    places = wide * corner[pick] + 0.22 * torch.randn(count, ATOMS, 3, generator=chance)
    far = (places[:, :, None] - places[:, None] + 1e-6).square().sum(3).sqrt() * (1 - torch.eye(ATOMS))
    depth, best = 0.3 + 0.5 * torch.rand(5, 5, generator=world), 1.6 + 0.8 * torch.rand(5, 5, generator=world)
    depth, best = (depth + depth.t()) / 2, (best + best.t()) / 2
    alone = torch.randn(5, generator=world)
    pair = depth[atoms[:, :, None], atoms[:, None]]
    x = torch.exp(-1.5 * (far - best[atoms[:, :, None], atoms[:, None]]))
    both = there[:, :, None] & there[:, None] & ~torch.eye(ATOMS, dtype=torch.bool)
    near = (0.5 + 0.5 * torch.cos(math.pi * far / CUTOFF)) * (far < CUTOFF)
    bonds = (pair * (x.square() - 2 * x).clamp(max=1.5) * near * both).sum((1, 2)) / 2
    energy = (bonds + (alone[atoms] * there).sum(1))[:, None]
    return [atoms, far, energy]


class Interaction(nn.Module):
    """Filters from distances, multiplied with neighbours and added up, and two maps; added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter1, self.filter2 = nn.Linear(CENTRES, width), nn.Linear(width, width)
        self.in2f, self.f2out1 = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.f2out2 = nn.Linear(width, width)
        self.shift = math.log(2.0)

    def forward(self, x: Tensor, basis: Tensor, near: Tensor) -> Tensor:
        filters = self.filter2(F.softplus(self.filter1(basis)) - self.shift) * near[..., None]
        y = (filters * self.in2f(x)[:, None]).sum(2)
        return x + self.f2out2(F.softplus(self.f2out1(y)) - self.shift)


class Atoms(nn.Module):
    """Rows of elements, Gaussians of distances, two interactions, and the sum of what each atom adds."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = nn.Embedding(5, 32, padding_idx=0)
        self.register_buffer("centres", torch.linspace(0.5, CUTOFF, CENTRES))
        self.width = 1 / (2 * (4.5 / (CENTRES - 1)) ** 2)
        self.interactions = nn.ModuleList([Interaction(32), Interaction(32)])
        self.out1, self.out2, self.shift = nn.Linear(32, 24), nn.Linear(24, 1), math.log(2.0)
        self.scale, self.masked, self.itself = 1.0, True, False

    def forward(self, atoms: Tensor, distances: Tensor) -> Tensor:
        there = (atoms > 0).float()
        pair = there[:, None] * there[:, :, None]
        if not self.itself:
            pair = pair * (1 - torch.eye(ATOMS))
        near = (0.5 + 0.5 * torch.cos(distances * (math.pi / CUTOFF))) * (distances < CUTOFF).float() * pair
        basis = torch.exp(-self.width * (distances[..., None] - self.centres).square())
        x = self.elements(atoms)
        for interaction in self.interactions:
            x = interaction(x, basis, near)
        each = self.out2(F.softplus(self.out1(x)) - self.shift)
        if self.masked:
            each = each * there[:, :, None]
        return each.sum(1) * self.scale


CLUSTERS = clusters(5000, 2707)
ENERGY_MEAN, ENERGY_DEVIATION = CLUSTERS[2].mean(), CLUSTERS[2].std()


def atoms() -> Subject:
    """Return a SchNet for clusters, whose energies have mean 0 and deviation 1."""
    data = [*CLUSTERS[:2], (CLUSTERS[2] - ENERGY_MEAN) / ENERGY_DEVIATION]
    subject = trained(Atoms, data, 500, 14, 6e-3, F.mse_loss, explained, 77)
    subject.options["metric"] = explained
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "pollen": pollen,
    "splice": splice,
    "bridge": bridge,
    "greenhouse": greenhouse,
    "melody": melody,
    "call": call,
    "atoms": atoms,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
