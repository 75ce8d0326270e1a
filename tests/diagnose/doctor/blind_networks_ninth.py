"""Twelve small networks of further kinds, trained on the spot: on digits, and on texts, signals and tables made up."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arrays = list[Tensor]


@dataclass
class Subject:
    """A trained network, data held apart from training, and further arguments of the doctor."""

    model: nn.Module
    data: Arrays
    options: dict[str, Any] = field(default_factory=dict)


def digits() -> tuple[Tensor, Tensor]:
    """Return the digits of scikit-learn between 0 and 1, in an order of chance, and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(17))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.tensor(found.target)[order]


def fit(
    model: nn.Module,
    data: Arrays,
    epochs: int,
    rate: float = 3e-3,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
    inputs: int = 1,
) -> nn.Module:
    """Train with Adam in batches of 64, at a rate that falls to zero, and return the network in evaluation mode."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    steps = epochs * math.ceil(len(data[0]) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(data[0])).split(64):
            optimizer.zero_grad()
            batch = [part[rows] for part in data]
            targets = batch[inputs:]
            loss(model(*batch[:inputs]), targets[0] if len(targets) == 1 else targets).backward()  # type: ignore[arg-type]
            optimizer.step()
            schedule.step()
    return model.eval()


# --- a vision transformer -------------------------------------------------------------------------------------------


class Regard(nn.Module):
    """Attention whose queries, keys and values come from one map, and a map of two layers, norms before them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(count, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(count, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Glance(nn.Module):
    """Sixteen patches and a token for the class, which is read in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.where = nn.Parameter(0.2 * torch.randn(1, 17, 32))
        self.layers = nn.Sequential(Regard(32, 4), Regard(32, 4))
        self.last = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(image), -1, -1), x], 1) + self.where
        return self.head(self.last(self.layers(x))[:, 0])


def glance() -> Subject:
    images, classes = digits()
    images = (images - 0.3) / 0.35
    return Subject(fit(Glance(), [images[:1285], classes[:1285]], 22, 6e-3), [images[1285:], classes[1285:]])


# --- squeeze and excitation -----------------------------------------------------------------------------------------


class Excite(nn.Module):
    """Factors of channels that follow from their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(x, 1)))))


class Inner(nn.Module):
    """A convolution, excited, with hard swish and a way around."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(outside)
        self.act = nn.Hardswish()
        self.se = Excite(outside)
        self.around = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = self.se(self.act(self.bn(self.conv(x))))
        return x + y if self.around else y


class Stamp(nn.Module):
    """Excited convolutions on two views of a digit: the sheet and its edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(2, 12, 3, 1, 1, bias=False)
        self.bn0 = nn.BatchNorm2d(12)
        self.act0 = nn.Hardswish()
        self.stages = nn.Sequential(Inner(12, 16, 2), Inner(16, 16), Inner(16, 24, 2), Inner(24, 24))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.wide = nn.Linear(24, 40)
        self.drop = nn.Dropout(0.1)
        self.classes = nn.Linear(40, 10)

    def forward(self, views: Tensor) -> Tensor:
        x = self.pool(self.stages(self.act0(self.bn0(self.conv0(views))))).flatten(1)
        return self.classes(self.drop(F.hardswish(self.wide(x))))


def stamp() -> Subject:
    images, classes = digits()
    large = F.interpolate(images, scale_factor=2, mode="bilinear")
    edges = F.pad(large[..., 1:] - large[..., :-1], (0, 1))
    views = torch.cat([(large - 0.3) / 0.36, edges / 0.2], 1)
    return Subject(fit(Stamp(), [views[:1285], classes[:1285]], 10, 1e-2), [views[1285:], classes[1285:]])


# --- shuffled groups ------------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """One half of the channels goes through convolutions, and then the halves are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.pw1 = nn.Conv2d(half, half, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(half)
        self.dw = nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False)
        self.bn2 = nn.BatchNorm2d(half)
        self.pw2 = nn.Conv2d(half, half, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(half)

    def forward(self, x: Tensor) -> Tensor:
        kept, y = x.chunk(2, 1)
        y = F.relu(self.bn1(self.pw1(y)))
        y = F.relu(self.bn3(self.pw2(self.bn2(self.dw(y)))))
        return F.channel_shuffle(torch.cat([kept, y], 1), 2)


class Cards(nn.Module):
    """Four such blocks, in two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Sequential(nn.Conv2d(1, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.upper = nn.Sequential(Halves(24), Halves(24))
        self.smaller = nn.MaxPool2d(2)
        self.lower = nn.Sequential(Halves(24), Halves(24))
        self.grow = nn.Sequential(nn.Conv2d(24, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.deal = nn.Linear(48, 10)

    def forward(self, sheet: Tensor) -> Tensor:
        x = self.grow(self.lower(self.smaller(self.upper(self.cut(sheet)))))
        return self.deal(x.mean((2, 3)))


def cards() -> Subject:
    images, classes = digits()
    return Subject(fit(Cards(), [images[:1285], classes[:1285]], 14, 1e-2), [images[1285:], classes[1285:]])


# --- segmentation ---------------------------------------------------------------------------------------------------


def double(inside: int, outside: int) -> nn.Sequential:
    """Return two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class Net(nn.Module):
    """A U of three sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(1, 8), double(8, 16), double(16, 24)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1 = double(32, 16), double(16, 8)
        self.mask = nn.Conv2d(8, 4, 1)

    def forward(self, scan: Tensor) -> Tensor:
        one = self.down1(scan)
        two = self.down2(self.pool(one))
        x = self.up2(self.bottom(self.pool(two)))
        x = self.up1(self.join2(torch.cat([two, x], 1)))
        return self.mask(self.join1(torch.cat([one, x], 1)))


def scans(count: int, seed: int) -> Arrays:
    """Return images with a disc, a ring and a bar, of like brightness, and what every pixel is."""
    rng = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    image = 0.12 * torch.randn(count, 24, 24, generator=rng)
    kinds = torch.zeros(count, 24, 24, dtype=torch.long)
    for kind in (1, 2, 3):
        centre = 5 + 14 * torch.rand(count, 2, generator=rng)
        y, x = row - centre[:, 0, None, None], column - centre[:, 1, None, None]
        far = (y**2 + x**2).sqrt()
        part = [far < 3, (far > 3) & (far < 5), (y.abs() < 1.5) & (x.abs() < 6)][kind - 1]
        image[part] = (0.6 + 0.15 * torch.randn(count, 24, 24, generator=rng))[part]
        kinds[part] = kind
    return [((image - 0.1) / 0.25)[:, None], kinds]


def net() -> Subject:
    return Subject(fit(Net(), scans(700, 1), 8, 1e-2), scans(192, 2))


# --- languages ------------------------------------------------------------------------------------------------------


class Tongue(nn.Module):
    """Two recurrent layers over letters, of which the last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(16, 10)
        self.memory = nn.LSTM(10, 24, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.language = nn.Linear(24, 6)

    def forward(self, text: Tensor) -> Tensor:
        _, (state, _) = self.memory(self.letters(text))
        return self.language(self.norm(state[-1]))


def phrases(count: int, seed: int) -> Arrays:
    """Return texts in which the chance of a letter depends on the one before, otherwise in each of six languages."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(31)
    chances = (1.6 * torch.randn(6, 16, 16, generator=fixed)).softmax(-1)
    classes = torch.randint(0, 6, (count,), generator=rng)
    text = torch.randint(0, 16, (count, 20), generator=rng)
    for step in range(1, 20):
        text[:, step] = torch.multinomial(chances[classes, text[:, step - 1]], 1, generator=rng)[:, 0]
    return [text, classes]


def tongue() -> Subject:
    return Subject(fit(Tongue(), phrases(2500, 1), 10, 1.5e-2), phrases(512, 2))


# --- heartbeats -----------------------------------------------------------------------------------------------------


class Beat(nn.Module):
    """A residual of two convolutions in time."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inside, outside, 5, stride, 2, bias=False)
        self.bn1 = nn.BatchNorm1d(outside)
        self.conv2 = nn.Conv1d(outside, outside, 5, 1, 2, bias=False)
        self.bn2 = nn.BatchNorm1d(outside)
        self.relu = nn.ReLU()
        self.downsample = (
            nn.Sequential(nn.Conv1d(inside, outside, 1, stride, bias=False), nn.BatchNorm1d(outside))
            if stride > 1
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Heart(nn.Module):
    """Residuals on two leads."""

    def __init__(self) -> None:
        super().__init__()
        self.lead_in = nn.Conv1d(2, 12, 7, 2, 3, bias=False)
        self.lead_bn = nn.BatchNorm1d(12)
        self.layer1, self.layer2, self.layer3 = Beat(12, 12, 1), Beat(12, 20, 2), Beat(20, 20, 1)
        self.rhythm = nn.Linear(20, 5)

    def forward(self, leads: Tensor) -> Tensor:
        x = F.relu(self.lead_bn(self.lead_in(leads)))
        return self.rhythm(self.layer3(self.layer2(self.layer1(x))).amax(-1))


def beats(count: int, seed: int) -> Arrays:
    """Return two leads of beats, standardized; the forms of three waves give the class."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(13)
    heights = torch.tensor([0.25, 1.2, 0.4]) * (1 + 0.5 * torch.randn(5, 3, generator=fixed))
    places = torch.tensor([18.0, 30, 44]) + 2.5 * torch.randn(5, 3, generator=fixed)
    widths = torch.tensor([2.5, 1.2, 4]) * (1 + 0.25 * torch.randn(5, 3, generator=fixed))
    classes = torch.randint(0, 5, (count,), generator=rng)
    time = torch.arange(64.0)[None, None]
    shift = 3 * torch.randn(count, 1, 1, generator=rng)
    height = (heights[classes] * (1 + 0.12 * torch.randn(count, 3, generator=rng)))[..., None]
    waves = height * torch.exp(-0.5 * ((time - places[classes][..., None] - shift) / widths[classes][..., None]) ** 2)
    first = waves.sum(1) + 0.06 * torch.randn(count, 64, generator=rng)
    second = waves[:, 0] - 0.6 * waves[:, 1] + 0.8 * waves[:, 2] + 0.06 * torch.randn(count, 64, generator=rng)
    return [torch.stack([(first - 0.15) / 0.3, (second - 0.05) / 0.25], 1), classes]


def heart() -> Subject:
    return Subject(fit(Heart(), beats(1600, 1), 8, 1e-2), beats(512, 2))


# --- prices ---------------------------------------------------------------------------------------------------------


class Estate(nn.Module):
    """A residual network on a table, which gives one number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 48)
        self.a1, self.a2 = nn.Linear(48, 48), nn.Linear(48, 48)
        self.b1, self.b2 = nn.Linear(48, 48), nn.Linear(48, 48)
        self.ln_a, self.ln_b = nn.LayerNorm(48), nn.LayerNorm(48)
        self.act = nn.SiLU()
        self.price = nn.Linear(48, 1)

    def forward(self, features: Tensor) -> Tensor:
        x = self.first(features)
        x = x + self.a2(self.act(self.a1(self.ln_a(x))))
        x = x + self.b2(self.act(self.b1(self.ln_b(x))))
        return self.price(F.silu(x))


def houses(count: int, seed: int) -> Arrays:
    """Return eight numbers, standardized, and the price that follows from six of them."""
    x = torch.rand(count, 8, generator=torch.Generator().manual_seed(seed))
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = y - 6 * x[:, 5] * x[:, 3]
    return [(x - 0.5) / 0.29, ((y - 13) / 4.5)[:, None]]


def estate() -> Subject:
    return Subject(fit(Estate(), houses(3000, 1), 16, 5e-3, F.mse_loss), houses(512, 2))


# --- cosines --------------------------------------------------------------------------------------------------------


class Faces(nn.Module):
    """Embeddings of length one, whose cosines with those of the classes are the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                c1=nn.Conv2d(1, 16, 3, padding=1, bias=False),
                n1=nn.BatchNorm2d(16),
                p1=nn.PReLU(16),
                c2=nn.Conv2d(16, 24, 3, 2, 1, bias=False),
                n2=nn.BatchNorm2d(24),
                p2=nn.PReLU(24),
                c3=nn.Conv2d(24, 32, 3, 2, 1, bias=False),
                n3=nn.BatchNorm2d(32),
                p3=nn.PReLU(32),
                flat=nn.Flatten(),
                embed=nn.Linear(128, 16, bias=False),
                norm=nn.BatchNorm1d(16),
            )
        )
        self.people = nn.Linear(16, 10, bias=False)
        self.temperature = 16.0

    def forward(self, crop: Tensor) -> Tensor:
        return self.people(F.normalize(self.body(crop), dim=1)) * self.temperature


def faces() -> Subject:
    images, classes = digits()
    images = (images - 0.5) / 0.5
    return Subject(fit(Faces(), [images[:1285], classes[:1285]], 10, 1e-2), [images[1285:], classes[1285:]])


# --- films ----------------------------------------------------------------------------------------------------------


class Cinema(nn.Module):
    """Products of a person's and a film's numbers, and a network on both, which say whether the film is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.person, self.film = nn.Embedding(50, 8), nn.Embedding(50, 8)
        self.person_deep, self.film_deep = nn.Embedding(50, 8), nn.Embedding(50, 8)
        self.deep = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.click = nn.Linear(24, 1)

    def forward(self, persons: Tensor, films: Tensor) -> Tensor:
        product = self.person(persons) * self.film(films)
        deep = self.deep(torch.cat([self.person_deep(persons), self.film_deep(films)], 1))
        return self.click(torch.cat([product, deep], 1))[:, 0]


def evenings(count: int, seed: int) -> Arrays:
    """Return persons, films, and whether one watched the other."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(41)
    tastes, kinds = torch.randn(50, 3, generator=fixed), torch.randn(50, 3, generator=fixed)
    fame = 0.8 * torch.randn(50, generator=fixed)
    persons, films = torch.randint(0, 50, (2, count), generator=rng)
    score = (tastes[persons] * kinds[films]).sum(1) + fame[films]
    return [persons, films, (score > 0).float()]


def cinema() -> Subject:
    model = fit(Cinema(), evenings(12000, 1), 10, 1.5e-2, F.binary_cross_entropy_with_logits, 2)
    return Subject(model, evenings(768, 2))


# --- a decoder ------------------------------------------------------------------------------------------------------


class Turn(nn.Module):
    """Attention to what came before, with separate projections, and a gated map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        y = self.ln1(x)
        q, k, v = (
            part(y).view(count, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        y = self.ln2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Scribe(nn.Module):
    """Two layers that tell the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 32), nn.Embedding(14, 32)
        self.register_buffer("steps", torch.arange(14))
        self.blocks = nn.Sequential(Turn(32, 4), Turn(32, 4))
        self.ln_f = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 7, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.wte(numbers) + self.wpe(self.steps)
        return self.lm_head(self.ln_f(self.blocks(x)))


def rows(count: int, seed: int) -> Arrays:
    """Return numbers, each the sum of the one before and the third before modulo 7, and those that follow."""
    rng = torch.Generator().manual_seed(seed)
    found = torch.randint(0, 7, (count, 15), generator=rng)
    for step in range(3, 15):
        found[:, step] = (found[:, step - 1] + found[:, step - 3]) % 7
    return [found[:, :-1].contiguous(), found[:, 1:].contiguous()]


def by_word(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of classes of words."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def scribe() -> Subject:
    return Subject(fit(Scribe(), rows(2500, 1), 16, 1e-2, by_word), rows(320, 2))


# --- a detector -----------------------------------------------------------------------------------------------------


class Grid(nn.Module):
    """For each of sixteen cells: whether something begins there, its kind, and its centre within the cell."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, 2, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, 2, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.conv3 = nn.Conv2d(24, 32, 3, 1, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(32)
        self.cells = nn.Conv2d(32, 6, 1)

    def forward(self, frame: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm1(self.conv1(frame)), 0.1)
        x = F.leaky_relu(self.norm2(self.conv2(x)), 0.1)
        x = F.leaky_relu(self.norm3(self.conv3(x)), 0.1)
        return self.cells(x)


def scenes(count: int, seed: int) -> Arrays:
    """Return images of three crosses, discs or squares in different cells, and a map of kinds and centres."""
    rng = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    frames = 0.1 * torch.randn(count, 16, 16, generator=rng)
    labels = torch.zeros(count, 4, 4, 4)
    for index in range(count):
        for cell in torch.randperm(16, generator=rng)[:3].tolist():
            top, left = divmod(cell, 4)
            place = 0.2 + 0.6 * torch.rand(2, generator=rng)
            y, x = row - 4 * (top + float(place[0])) + 0.5, column - 4 * (left + float(place[1])) + 0.5
            kind = int(torch.randint(0, 3, (1,), generator=rng))
            cross = torch.minimum(y.abs(), x.abs()) < 0.6
            near = torch.maximum(y.abs(), x.abs()) < 2.1
            part = [cross & near, (y**2 + x**2) < 2.5, near & ~((y.abs() < 1.1) & (x.abs() < 1.1))][kind]
            frames[index][part] += 1
            labels[index, :, top, left] = torch.tensor([1.0, kind, *place.tolist()])
    return [(frames[:, None] - 0.2) / 0.4, labels]


def hits(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the share of cells whose occupation, kind and centre (within a quarter of the cell) are right."""
    there, taken = outputs[:, 0] > 0, labels[:, 0] > 0
    near = (outputs[:, 4:].sigmoid() - labels[:, 2:]).abs().amax(1) < 0.25
    right = there & taken & near & (outputs[:, 1:4].argmax(1) == labels[:, 1].long())
    return right.flatten(1).sum(1) / (there | taken).flatten(1).sum(1).clamp(min=1)


def grid() -> Subject:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        taken = labels[:, 0]
        kind = F.cross_entropy(outputs[:, 1:4], labels[:, 1].long(), reduction="none")
        place = (outputs[:, 4:].sigmoid() - labels[:, 2:]).square().sum(1)
        found = F.binary_cross_entropy_with_logits(outputs[:, 0], taken)
        return found + ((kind + 5 * place) * taken).sum() / taken.sum()

    return Subject(fit(Grid(), scenes(1500, 1), 14, 1.5e-2, loss), scenes(384, 2), {"metric": hits})


# --- convolutions and memory ----------------------------------------------------------------------------------------


class Chirps(nn.Module):
    """Convolutions over bands and frames, and a recurrent layer over the frames, of which the last state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(1, 10, 3, padding=1, bias=False)
        self.bn_a = nn.BatchNorm2d(10)
        self.conv_b = nn.Conv2d(10, 16, 3, padding=1, bias=False)
        self.bn_b = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d((2, 1))
        self.lower = nn.Linear(64, 24)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.bird = nn.Linear(24, 6)

    def forward(self, bands: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn_a(self.conv_a(bands))))
        x = self.pool(F.relu(self.bn_b(self.conv_b(x))))
        x = self.lower(x.permute(0, 3, 1, 2).flatten(2))
        return self.bird(self.rnn(x.tanh())[0][:, -1])


def songs(count: int, seed: int) -> Arrays:
    """Return logarithms of 16 bands in 18 frames; the order of three notes in time gives the class."""
    rng = torch.Generator().manual_seed(seed)
    orders = torch.tensor([[3, 8, 12], [3, 12, 8], [8, 3, 12], [8, 12, 3], [12, 3, 8], [12, 8, 3]], dtype=torch.float32)
    classes = torch.randint(0, 6, (count,), generator=rng)
    note = orders[classes] + 0.7 * torch.randn(count, 3, generator=rng) + 0.6 * torch.randn(count, 1, generator=rng)
    begin = torch.tensor([3.0, 8, 13]) + 1.2 * torch.randn(count, 3, generator=rng)
    band, time = torch.arange(16.0)[None, None, :, None], torch.arange(18.0)[None, None, None]
    spot = ((band - note[..., None, None]) / 1.1) ** 2 + ((time - begin[..., None, None]) / 1.5) ** 2
    loud = (0.5 * torch.randn(count, 1, 1, generator=rng)).exp()
    power = loud * torch.exp(-0.5 * spot).sum(1) + 0.05 * torch.rand(count, 16, 18, generator=rng) + 0.005
    return [((power.log() + 2.7) / 1.3)[:, None], classes]


def chirps() -> Subject:
    return Subject(fit(Chirps(), songs(1600, 1), 8, 1e-2), songs(512, 2))


MAKERS: dict[str, Callable[[], Subject]] = {
    "glance": glance,
    "stamp": stamp,
    "cards": cards,
    "net": net,
    "tongue": tongue,
    "heart": heart,
    "estate": estate,
    "faces": faces,
    "cinema": cinema,
    "scribe": scribe,
    "grid": grid,
    "chirps": chirps,
}


@lru_cache(maxsize=len(MAKERS))
def build(name: str) -> Subject:
    """Return a trained network and its data, the same in every process."""
    state = torch.get_rng_state()
    torch.manual_seed(23)
    try:
        return MAKERS[name]()
    finally:
        torch.set_rng_state(state)
