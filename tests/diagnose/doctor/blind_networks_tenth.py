"""Ten small networks of further families, trained on the spot: on digits, scenes, signals, texts and tables made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arrays = list[Tensor]
Loss = Callable[[Any, Tensor], Tensor]


# --- scores ---------------------------------------------------------------------------------------------------------


def classes_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose class is right."""
    return (outputs.argmax(1) == labels).float().mean().item()


def words_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of words whose class is right, classes last."""
    return (outputs.argmax(-1) == labels).float().mean().item()


def signs_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of logits that say yes or no as the labels do."""
    return ((outputs > 0) == (labels > 0.5)).float().mean().item()


def variance_explained(outputs: Tensor, labels: Tensor) -> float:
    """Return R²."""
    return (1 - (outputs - labels).square().mean() / labels.var()).item()


def explained(outputs: Tensor, labels: Tensor) -> float:
    """Return how much of the variance is explained, at least 0."""
    return max(0.0, variance_explained(outputs, labels))


@dataclass
class Subject:
    """A trained network, samples that it has not seen with their labels, and how its answers are scored."""

    model: nn.Module
    data: Arrays
    score: Callable[[Tensor, Tensor], float]
    options: dict[str, Any] = field(default_factory=dict)


def fit(
    model: nn.Module, data: Arrays, epochs: int, rate: float, loss: Loss, decay: float = 0.01, rise: float = 0.2
) -> nn.Module:
    """Train with AdamW in batches of 64 at a rate that rises and falls; return the network in evaluation mode."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    steps = epochs * math.ceil(len(data[0]) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=rise)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(data[0])).split(64):
            optimizer.zero_grad()
            loss(model(*(part[rows] for part in data[:-1])), data[-1][rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def trained(
    make: Callable[[], nn.Module],
    data: Arrays,
    held: int,
    epochs: int,
    rate: float,
    loss: Loss,
    score: Callable[[Tensor, Tensor], float],
    seed: int,
    decay: float = 0.01,
    rise: float = 0.2,
) -> Subject:
    """Train a network on all samples but the last ones, which are held out."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = fit(make(), [part[:-held] for part in data], epochs, rate, loss, decay, rise)
    torch.random.set_rng_state(state)
    return Subject(model, [part[-held:] for part in data], score)


def generator(seed: int) -> torch.Generator:
    """Return numbers of chance of one's own."""
    return torch.Generator().manual_seed(seed)


def spread(count: int, widest: float, seed: int) -> Tensor:
    """Return factors between 1 and the widest, in an order of chance."""
    return widest ** torch.linspace(0, 1, count)[torch.randperm(count, generator=generator(seed))]


# --- preact: a residual network with activations first, grouped convolutions and squeeze-and-excitation, on digits ----


class Squeeze(nn.Module):
    """Factors for channels from their means."""

    def __init__(self, width: int, least: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, least), nn.Linear(least, width)
        self.gate: nn.Module = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        factors = self.gate(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * factors[:, :, None, None]


class Preactivated(nn.Module):
    """Norm, activation, convolution, twice, the second convolution in groups; squeezed, and added to what came in."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.act1 = nn.BatchNorm2d(before), nn.ReLU()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.norm2, self.act2 = nn.BatchNorm2d(width), nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=4, bias=False)
        self.squeeze = Squeeze(width, 8)
        self.project = nn.Conv2d(before, width, 1, stride, bias=False) if before != width or stride > 1 else None
        self.shortcut = True

    def forward(self, x: Tensor) -> Tensor:
        inner = self.act1(self.norm1(x))
        out = self.squeeze(self.conv2(self.act2(self.norm2(self.conv1(inner)))))
        if not self.shortcut:
            return out
        return out + (x if self.project is None else self.project(inner))


class Preact(nn.Module):
    """Four blocks for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.block1, self.block2 = Preactivated(16, 16, 1), Preactivated(16, 32, 2)
        self.block3, self.block4 = Preactivated(32, 32, 1), Preactivated(32, 48, 2)
        self.norm, self.act = nn.BatchNorm2d(48), nn.ReLU()
        self.classify = nn.Linear(48, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.block4(self.block3(self.block2(self.block1(self.stem(image)))))
        return self.classify(self.act(self.norm(x)).mean((2, 3)))


DIGIT_MEAN, DIGIT_DEVIATION = 0.305, 0.376


@cache
def preact() -> Subject:
    """Return the pre-activated network, trained on digits of mean 0 and deviation 1."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator(10))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    images = (images - DIGIT_MEAN) / DIGIT_DEVIATION
    labels = torch.tensor(found.target)
    return trained(Preact, [images[order], labels[order]], 597, 14, 4e-3, F.cross_entropy, classes_right, 1)


# --- mobile: inverted residuals with hard swish on scenes in colour --------------------------------------------------


class Inverted(nn.Module):
    """Widen, a depthwise convolution, narrow; added where the sizes are the same."""

    def __init__(self, before: int, inner: int, after: int, stride: int) -> None:
        super().__init__()
        self.expand, self.norm1, self.act1 = (
            nn.Conv2d(before, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.Hardswish(),
        )
        self.depth = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.norm2, self.act2 = nn.BatchNorm2d(inner), nn.Hardswish()
        self.narrow, self.norm3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.adds = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.norm1(self.expand(x)))
        out = self.norm3(self.narrow(self.act2(self.norm2(self.depth(out)))))
        return x + out if self.adds else out


class Mobile(nn.Module):
    """Five inverted residuals for images of 24 × 24 in three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6())
        self.blocks = nn.Sequential(
            Inverted(12, 24, 12, 1),
            Inverted(12, 36, 20, 2),
            Inverted(20, 48, 20, 1),
            Inverted(20, 48, 28, 2),
            Inverted(28, 56, 28, 1),
        )
        self.last = nn.Sequential(nn.Conv2d(28, 64, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish())
        self.drop = nn.Dropout(0.2)
        self.classifier = nn.Linear(64, 8)

    def forward(self, image: Tensor) -> Tensor:
        x = self.last(self.blocks(self.stem(image)))
        return self.classifier(self.drop(x.mean((2, 3))))


MEANS = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
DEVIATIONS = torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def signs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return road signs between 0 and 1: four shapes in reds or blues on grounds of chance, and their classes."""
    chance = generator(seed)
    side = torch.arange(24.0)
    rows, columns = side[:, None].expand(24, 24), side[None].expand(24, 24)
    labels = torch.randint(8, (count,), generator=chance)
    u = torch.rand(count, 16, generator=chance)
    y, x = (8 + 8 * u[:, 0])[:, None, None], (8 + 8 * u[:, 1])[:, None, None]
    size = (4.5 + 3 * u[:, 2])[:, None, None]
    dy, dx = rows - y, columns - x
    inside = (dy.abs() < size) & (dx.abs() < size)
    shape = torch.stack(
        [
            inside & (dx.abs() < (dy + size) / 2),
            inside & (dx.abs() < (size - dy) / 2),
            (dy.square() + dx.square() < size.square()) & (dy.square() + dx.square() > (size * 0.5).square()),
            inside & (dy.abs() < size * 0.35),
        ]
    )[labels % 4, torch.arange(count)]
    red = (labels < 4).float()
    strong, weak, green = 0.55 + 0.4 * u[:, 3], 0.1 + 0.35 * u[:, 4], 0.1 + 0.4 * u[:, 5]
    colour = torch.stack([red * strong + (1 - red) * weak, green, red * weak + (1 - red) * strong], 1)
    ground = 0.2 + 0.6 * u[:, 6:9] * u[:, 9:10]
    slope = (rows / 24)[None, None] * (u[:, 10] - 0.2)[:, None, None, None] * 0.4
    images = torch.where(shape[:, None], colour[:, :, None, None], ground[:, :, None, None] + slope)
    images = images + 0.06 * torch.randn(count, 3, 24, 24, generator=chance)
    return images.clamp(0, 1), labels


@cache
def mobile() -> Subject:
    """Return the network of inverted residuals, trained on signs normalized as for ImageNet."""
    images, labels = signs(2600, 20)
    data = [(images - MEANS) / DEVIATIONS, labels]
    return trained(Mobile, data, 600, 6, 5e-3, F.cross_entropy, classes_right, 2)


# --- bert: an encoder with norms behind, for texts with padding ------------------------------------------------------


class SelfAttention(nn.Module):
    """Attention of several heads with projections of their own, and a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.heads, self.scale = heads, (width // heads) ** -0.5

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = (
            layer(x).view(batch, count, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-2, -1) * self.scale + shade).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).reshape(batch, count, width))


class EncoderLayer(nn.Module):
    """Attention and two maps, norms behind the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1 = SelfAttention(width, heads), nn.LayerNorm(width, eps=1e-12)
        self.up, self.act, self.down = nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, shade: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, shade))
        return self.norm2(x + self.down(self.act(self.up(x))))


WORDS, LENGTH = 72, 20
PAD, CLS, SEP, UNKNOWN, NOT = 0, 1, 2, 3, 4


class Bert(nn.Module):
    """Words, positions, two layers, a pooler on the first word, and the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 40, padding_idx=0), nn.Embedding(LENGTH + 4, 40)
        nn.init.normal_(self.words.weight, 0, 0.3)
        nn.init.normal_(self.positions.weight, 0, 0.3)
        self.norm = nn.LayerNorm(40, eps=1e-12)
        self.layer1, self.layer2 = EncoderLayer(40, 4), EncoderLayer(40, 4)
        self.pooler = nn.Linear(40, 40)
        self.answer = nn.Linear(40, 6)
        self.register_buffer("places", torch.arange(LENGTH))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.positions(self.places))
        shade = (1 - mask)[:, None, None, :] * -1e4
        x = self.layer2(self.layer1(x, shade), shade)
        return self.answer(torch.tanh(self.pooler(x[:, 0])))


def reviews(count: int, seed: int) -> Arrays:
    """Return texts about one of three topics, praised or not, with padding: words, mask, classes.

    A topic is named by words of its own (5 … 28), which stand among others (41 … 71); judgements (29 … 34 good, 35 … 40
    bad) are turned round by the word before them, where that is "not".
    """
    chance = generator(seed)

    def draw(least: int, beyond: int) -> int:
        return int(torch.randint(least, beyond, (1,), generator=chance))

    ids, labels = torch.zeros(count, LENGTH, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    for row in range(count):
        topic, good = draw(0, 3), draw(0, 2)
        turned = int(draw(0, 10) < 3)
        text = [[draw(41, WORDS)] for _ in range(draw(3, 9))]
        text += [[draw(5 + 8 * topic, 13 + 8 * topic)] for _ in range(draw(2, 4))]
        shown = good ^ turned
        text.append([NOT, draw(35 - 6 * shown, 41 - 6 * shown)] if turned else [draw(35 - 6 * shown, 41 - 6 * shown)])
        if not turned and draw(0, 10) < 3:
            text.append([NOT, draw(41, WORDS)])
        order = torch.randperm(len(text), generator=chance).tolist()
        words = [*[CLS, *(word for place in order for word in text[place])][: LENGTH - 1], SEP]
        ids[row, : len(words)] = torch.tensor(words)
        labels[row] = 2 * topic + good
    return [ids, (ids != PAD).float(), labels]


@cache
def bert() -> Subject:
    """Return the encoder, trained on texts."""
    return trained(Bert, reviews(5600, 30), 600, 12, 3e-3, F.cross_entropy, classes_right, 23)


# --- motion: two bidirectional LSTM layers on six axes ---------------------------------------------------------------


class Motion(nn.Module):
    """A map for every step, two LSTM layers in both directions, the last state of each, and the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, 6)
        self.takes = "last"

    def forward(self, motion: Tensor) -> Tensor:
        states, _ = self.lstm(torch.tanh(self.enter(motion)))
        if self.takes == "last":
            found = torch.cat([states[:, -1, :24], states[:, 0, 24:]], 1)
        elif self.takes == "mean":
            found = states.mean(1)
        else:
            found = states[:, -1]
        return self.out(self.norm(found))


def activities(count: int, seed: int) -> Arrays:
    """Return 40 steps of acceleration (m/s², gravity taken away, over 5) and rotation (rad/s) of six activities.

    They differ in pace, in which axes swing together, and in what begins strongly and ends weakly or the reverse.
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    steps = torch.arange(40.0)[None]
    u = torch.rand(count, 12, generator=chance)
    pace = torch.tensor([0.25, 0.25, 0.5, 0.5, 0.35, 0.35])[labels][:, None] * (0.85 + 0.3 * u[:, :1])
    phase = 2 * math.pi * u[:, 1:2]
    lag = torch.tensor([0.0, 1.6, 0.0, 1.6, 0.8, 0.8])[labels][:, None] + 0.3 * (u[:, 2:3] - 0.5)
    rise = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -1.0])[labels][:, None]
    force = (0.6 + 0.6 * u[:, 3:4]) * (1 + rise * (steps / 20 - 1) * 0.8)
    tilt = 0.4 * (u[:, 4:7] - 0.5)
    waves = [
        force * torch.sin(pace * steps + phase) + tilt[:, :1],
        force * torch.sin(pace * steps + phase + lag) + tilt[:, 1:2],
        0.5 * force * torch.sin(2 * pace * steps + phase) + tilt[:, 2:3] + 0.3,
        0.7 * force * torch.cos(pace * steps + phase),
        0.4 * force * torch.cos(pace * steps + phase + lag) - 0.2,
        0.3 * force * torch.cos(pace * steps + phase - lag),
    ]
    motion = torch.stack(waves, -1)
    motion = motion + 0.6 * torch.randn(motion.shape, generator=chance)
    return [motion, labels]


@cache
def motion() -> Subject:
    """Return the network of LSTM layers, trained on activities."""
    return trained(Motion, activities(2600, 40), 600, 10, 6e-3, F.cross_entropy, classes_right, 4)


# --- tagger: a GRU that says a tag for every word --------------------------------------------------------------------


class Tagger(nn.Module):
    """Words, a GRU, a map with a norm, and a tag for every word."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(80, 20)
        self.gru = nn.GRU(20, 32, batch_first=True)
        self.norm, self.hidden = nn.LayerNorm(32), nn.Linear(32, 32)
        self.tag = nn.Linear(32, 7)
        self.shortcut = True

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.gru(self.embed(words))
        inner = F.relu(self.hidden(self.norm(states)))
        return self.tag(states + inner if self.shortcut else inner)


def sentences(count: int, seed: int, alike: bool = False) -> Arrays:
    """Return texts of 16 words and their tags; half the words have two tags, of which the words before decide."""
    chance = generator(seed)
    grammar = generator(77)
    moves = torch.rand(7, 7, generator=grammar).pow(7)
    moves = moves / moves.sum(1, keepdim=True)
    own = torch.arange(80) % 7
    other = (own + 1 + torch.randint(6, (80,), generator=grammar)) % 7
    ambiguous = torch.rand(80, generator=grammar) < 0.5
    common = torch.rand(80, generator=grammar).pow(2) + 0.05
    speaks = torch.zeros(7, 80)
    speaks[own, torch.arange(80)] += common
    speaks[other, torch.arange(80)] += common * ambiguous
    if alike:
        speaks[:, 12:] = 0
    tags, words = [torch.randint(7, (count,), generator=chance)], []
    for _ in range(16):
        words.append(torch.multinomial(speaks[tags[-1]], 1, generator=chance)[:, 0])
        tags.append(torch.multinomial(moves[tags[-1]], 1, generator=chance)[:, 0])
    return [torch.stack(words, 1), torch.stack(tags[:-1], 1)]


def by_word(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of an answer for every word, classes last."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


@cache
def tagger() -> Subject:
    """Return the GRU, trained on sentences."""
    return trained(Tagger, sentences(2600, 50), 600, 12, 6e-3, by_word, words_right, 5)


# --- price: a network for tables that answers with a number ----------------------------------------------------------


class Price(nn.Module):
    """Three maps with batch norm, one of them with a shortcut, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1, self.act1 = nn.Linear(9, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.second, self.norm2, self.act2 = nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.third, self.norm3, self.act3 = nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU()
        self.number = nn.Linear(24, 1)

    def forward(self, features: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.first(features)))
        x = x + self.act2(self.norm2(self.second(x)))
        return self.number(self.act3(self.norm3(self.third(x))))


def houses(count: int, seed: int) -> Arrays:
    """Return houses in the units they are kept in, and their prices in thousands.

    Area, rooms, age, distance, income, crime, north, east, storeys.
    """
    chance = generator(seed)
    u = torch.rand(count, 9, generator=chance)
    area = 40 + 160 * u[:, 0]
    rooms = (area / 30 + 3 * u[:, 1]).round().clamp(1, 9)
    age, distance, income = 90 * u[:, 2], 25 * u[:, 3].square(), 20 + 60 * u[:, 4]
    crime, north, east, storeys = 8 * u[:, 5].pow(3), 4 * u[:, 6] - 2, 4 * u[:, 7] - 2, (1 + 3 * u[:, 8]).round()
    value = 60 + 1.6 * area + 12 * rooms - 0.9 * age + 0.012 * age.square() - 4 * distance + 1.1 * income
    value = value - 6 * crime + 45 * torch.sin(1.5 * north) * torch.cos(1.1 * east) - 0.012 * area * distance
    value = value + 9 * (storeys - 2).abs() + 8 * torch.randn(count, generator=chance)
    return [torch.stack([area, rooms, age, distance, income, crime, north, east, storeys], 1), value[:, None]]


HOUSES = houses(3600, 60)
HOUSE_MEANS, HOUSE_DEVIATIONS = HOUSES[0].mean(0), HOUSES[0].std(0)
PRICE_MEAN, PRICE_DEVIATION = HOUSES[1].mean(), HOUSES[1].std()


@cache
def price() -> Subject:
    """Return the network for tables; features and prices have mean 0 and deviation 1."""
    data = [(HOUSES[0] - HOUSE_MEANS) / HOUSE_DEVIATIONS, (HOUSES[1] - PRICE_MEAN) / PRICE_DEVIATION]
    return trained(Price, data, 600, 24, 8e-3, F.mse_loss, variance_explained, 6)


# --- shop: a recommender with tables of users and items --------------------------------------------------------------


class Shop(nn.Module):
    """Rows of users and items, their product, what else is known, and three maps to a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.kinds = nn.Embedding(120, 16), nn.Embedding(90, 16), nn.Embedding(6, 4)
        self.first, self.second, self.drop = nn.Linear(16 * 3 + 4 + 3, 48), nn.Linear(48, 24), nn.Dropout(0.3)
        self.click = nn.Linear(24, 1)
        self.order, self.how = "product, users, items, kinds, facts", "product"

    def forward(self, user: Tensor, item: Tensor, kind: Tensor, facts: Tensor) -> Tensor:
        one, other = self.users(user), self.items(item)
        product = one * other if self.how == "product" else one + other
        parts = {"product": product, "users": one, "items": other, "kinds": self.kinds(kind), "facts": facts}
        x = torch.cat([parts[name] for name in self.order.split(", ")], 1)
        x = self.drop(F.relu(self.first(x)))
        return self.click(F.relu(self.second(x)))


def visits(count: int, seed: int) -> Arrays:
    """Return who saw what (user, item, its kind, hour, price and age), and whether they bought it."""
    world, chance = generator(70), generator(seed)
    users, items = torch.randn(120, 3, generator=world), torch.randn(90, 3, generator=world)
    kinds, liked = torch.randint(6, (90,), generator=world), 0.9 * torch.randn(6, generator=world)
    costs = torch.rand(90, generator=world)
    user = torch.randint(120, (count,), generator=chance)
    item = torch.randint(90, (count,), generator=chance)
    hour, age = 2 * torch.rand(count, generator=chance) - 1, torch.randn(count, generator=chance)
    facts = torch.stack([hour, 3 * costs[item] - 1.5, age], 1)
    wish = 1.3 * (users[user] * items[item]).sum(1) + liked[kinds[item]] - 1.2 * facts[:, 1] + 1.0 * hour
    wish = wish + 0.9 * age * facts[:, 1] + 0.25 * torch.randn(count, generator=chance)
    return [user, item, kinds[item], facts, (wish > 0).float()[:, None]]


def yes_or_no(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of logits."""
    return F.binary_cross_entropy_with_logits(outputs, labels)


@cache
def shop() -> Subject:
    """Return the recommender, trained on visits."""
    return trained(Shop, visits(18800, 80), 800, 16, 6e-3, yes_or_no, signs_right, 7)


# --- road: pixels, with dilated branches and what the beginning saw --------------------------------------------------


def conv(before: int, after: int, size: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return a convolution, its norm and an activation."""
    padding = dilation * (size // 2)
    layer = nn.Conv2d(before, after, size, stride, padding, dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.LeakyReLU(0.1))


class Road(nn.Module):
    """Down twice, branches of three dilations, up again beside what the first layers saw."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.down1, self.down2 = conv(3, 12), conv(12, 16, stride=2), conv(16, 24, stride=2)
        self.wide1, self.wide2, self.wide3 = conv(24, 16), conv(24, 16, dilation=2), conv(24, 16, dilation=3)
        self.join = conv(48, 16, 1)
        self.up1, self.up2 = conv(32, 16), conv(28, 16)
        self.pixel = nn.Conv2d(16, 4, 1)
        self.deep_first = True
        self.how = "bilinear"

    def larger(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0, mode=self.how)

    def forward(self, image: Tensor) -> Tensor:
        near = self.near(image)
        middle = self.down1(near)
        far = self.down2(middle)
        far = self.larger(self.join(torch.cat([self.wide1(far), self.wide2(far), self.wide3(far)], 1)))
        x = self.larger(self.up1(torch.cat([far, middle] if self.deep_first else [middle, far], 1)))
        return self.pixel(self.up2(torch.cat([x, near], 1)))


def streets(count: int, seed: int) -> Arrays:
    """Return views of 24 × 24 between 0 and 1: sky, a road that narrows, grass beside it, cars; a class per pixel."""
    chance = generator(seed)
    side = torch.arange(24.0)
    rows, columns = side[:, None].expand(24, 24)[None], side[None].expand(24, 24)[None]
    u = torch.rand(count, 24, generator=chance)[:, :, None, None]
    horizon = 5 + 6 * u[:, 0]
    sky = rows < horizon
    middle, spread = 12 + 6 * (u[:, 1] - 0.5), 0.4 + 0.5 * u[:, 2]
    road = ~sky & ((columns - middle - (u[:, 3] - 0.5) * (rows - 24)).abs() < 1.5 + spread * (rows - horizon))
    top, left = horizon + 1 + (20 - horizon) * u[:, 4], middle + 8 * (u[:, 5] - 0.5)
    half = 1.5 + 0.18 * (top - horizon) + u[:, 6]
    car = (rows >= top) & (rows < top + 1.6 * half) & ((columns - left).abs() < half)
    labels = torch.zeros(count, 24, 24, dtype=torch.long)
    labels[road], labels[sky], labels[car] = 1, 2, 3
    light = 0.6 + 0.5 * u[:, 7]
    grass = torch.cat([0.25 + 0.25 * u[:, 8], 0.45 + 0.2 * u[:, 9], 0.15 + 0.15 * u[:, 10]], 1)
    asphalt = torch.cat([0.38 + 0.2 * u[:, 11]] * 3, 1) + 0.06 * torch.cat([u[:, 12], u[:, 13], u[:, 14]], 1)
    blue = torch.cat([0.4 + 0.2 * u[:, 15], 0.55 + 0.15 * u[:, 16], 0.7 + 0.25 * u[:, 17]], 1)
    paint = torch.cat([u[:, 18], 0.7 * u[:, 19], u[:, 20]], 1)
    colours = torch.stack([grass, asphalt, blue, paint], 1)
    images = colours.flatten(2).gather(1, labels.flatten(1)[:, :, None].expand(-1, -1, 3))
    images = images.transpose(1, 2).reshape(count, 3, 24, 24) * light[:, None]
    images = images + 0.07 * torch.randn(images.shape, generator=chance)
    return [images.clamp(0, 1), labels]


@cache
def road() -> Subject:
    """Return the network for pixels, trained on streets between -1 and 1."""
    images, labels = streets(1700, 90)

    def score(outputs: Tensor, labels: Tensor) -> float:
        return classes_right(outputs, labels)

    return trained(Road, [2 * images - 1, labels], 512, 5, 8e-3, F.cross_entropy, score, 8)


# --- wave: gated, dilated convolutions in one dimension --------------------------------------------------------------


class Gated(nn.Module):
    """A dilated convolution of which one half opens the other; a part of the sum goes on, another to the end."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilated = nn.Conv1d(width, 2 * width, 3, dilation=dilation, bias=False)
        self.norm = nn.BatchNorm1d(2 * width)
        self.back, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.scale, self.causal, self.exchanged, self.gated = 0.5**0.5, True, False, True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        reach = 2 * self.dilated.dilation[0]
        padded = F.pad(x, (reach, 0) if self.causal else (reach // 2, reach // 2))
        value, gate = self.norm(self.dilated(padded)).chunk(2, 1)
        if self.exchanged:
            value, gate = gate, value
        inner = torch.tanh(value) * torch.sigmoid(gate) if self.gated else torch.tanh(value)
        return (x + self.back(inner)) * self.scale, self.skip(inner)


class Wave(nn.Module):
    """Four gated layers whose parts are added up, pooled and answered."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(1, 16, 5, 2, 2)
        self.gate1, self.gate2, self.gate3, self.gate4 = Gated(16, 1), Gated(16, 2), Gated(16, 4), Gated(16, 8)
        self.norm, self.post, self.act = nn.BatchNorm1d(16), nn.Conv1d(16, 32, 3, 2, 1), nn.PReLU(32)
        self.label = nn.Linear(32, 6)
        self.pool = "max"

    def forward(self, signal: Tensor) -> Tensor:
        x, total = self.front(signal), None
        for gated in (self.gate1, self.gate2, self.gate3, self.gate4):
            x, skip = gated(x)
            total = skip if total is None else total + skip
        x = self.act(self.post(F.relu(self.norm(total))))
        return self.label(x.amax(-1) if self.pool == "max" else x.mean(-1))


def sounds(count: int, seed: int) -> Arrays:
    """Return 160 samples of six sounds: rising, falling, steady, beating, a click that dies away, two tones."""
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    t = (torch.arange(160.0) / 160)[None]
    u = torch.rand(count, 8, generator=chance)[:, :, None]
    base, loud, phase = 8 + 8 * u[:, 0], 0.4 + 0.5 * u[:, 1], 2 * math.pi * u[:, 2]
    turn = 2 * math.pi
    rising = torch.sin(turn * (base * t + 9 * t.square()) + phase)
    falling = torch.sin(turn * ((base + 18) * t - 9 * t.square()) + phase)
    steady = torch.sin(turn * (base + 9) * t + phase)
    beating = torch.sin(turn * (base + 9) * t + phase) * torch.sin(turn * (2 + 2 * u[:, 3]) * t + 6 * u[:, 4])
    click = (
        torch.sin(turn * (base + 9) * t + phase)
        * torch.exp(-9 * (t - 0.3 * u[:, 5]).clamp(min=0))
        * (t > 0.3 * u[:, 5])
    )
    two = 0.55 * torch.sin(turn * (base + 2) * t + phase) + 0.55 * torch.sin(turn * (base + 20) * t + 6 * u[:, 6])
    every = torch.stack([rising, falling, steady, beating, click, two])
    signal = loud * every[labels, torch.arange(count)] + 0.22 * torch.randn(count, 160, generator=chance)
    return [signal[:, None], labels]


@cache
def wave() -> Subject:
    """Return the gated network, trained on sounds."""
    return trained(Wave, sounds(2600, 100), 600, 9, 6e-3, F.cross_entropy, classes_right, 9)


# --- clinic: an image and a table, several answers of yes and no -----------------------------------------------------


class Clinic(nn.Module):
    """Convolutions for the image, maps for the table, both joined, and five logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.group1 = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.conv2, self.group2 = nn.Conv2d(16, 24, 3, 2, 1), nn.GroupNorm(4, 24)
        self.conv3, self.group3 = nn.Conv2d(24, 24, 3, 2, 1), nn.GroupNorm(4, 24)
        self.act = nn.SiLU()
        self.values1, self.values2 = nn.Linear(7, 24), nn.Linear(24, 24)
        self.both, self.findings = nn.Linear(24 * 4 + 24, 48), nn.Linear(48, 5)
        self.image_first = True

    def forward(self, scan: Tensor, values: Tensor) -> Tensor:
        x = self.act(self.group1(self.conv1(scan)))
        x = self.act(self.group2(self.conv2(x)))
        x = self.act(self.group3(self.conv3(x)))
        seen = F.avg_pool2d(x, 2).flatten(1)
        known = self.act(self.values2(self.act(self.values1(values))))
        both = torch.cat([seen, known] if self.image_first else [known, seen], 1)
        return self.findings(self.act(self.both(both)))


def patients(count: int, seed: int) -> Arrays:
    """Return scans of 16 × 16, seven values of a patient, and five findings.

    A bright spot left, a bright spot right, a dark ring, a fever with high count, and a spot in somebody old.
    """
    chance = generator(seed)
    side = torch.arange(16.0)
    rows, columns = side[:, None].expand(16, 16)[None], side[None].expand(16, 16)[None]
    u = torch.rand(count, 16, generator=chance)
    has = torch.rand(count, 3, generator=chance) < 0.5
    cell = u[:, :, None, None]

    def spot(y: Tensor, x: Tensor, size: float) -> Tensor:
        return torch.exp(-((rows - y).square() + (columns - x).square()) / (2 * size**2))

    scan = 0.4 + 0.1 * torch.sin(rows / 3 + 6 * cell[:, 0]) * torch.cos(columns / 4 + 6 * cell[:, 1])
    scan = scan + 0.42 * spot(3 + 10 * cell[:, 2], 2.5 + 3 * cell[:, 3], 1.2) * has[:, 0, None, None]
    scan = scan + 0.42 * spot(3 + 10 * cell[:, 4], 10.5 + 3 * cell[:, 5], 1.2) * has[:, 1, None, None]
    far = ((rows - 5 - 6 * cell[:, 6]).square() + (columns - 5 - 6 * cell[:, 7]).square()).sqrt()
    scan = scan - 0.3 * torch.exp(-(far - 3.5).square()) * has[:, 2, None, None]
    scan = scan + 0.08 * torch.randn(count, 16, 16, generator=chance)
    values = torch.randn(count, 7, generator=chance)
    values[:, 6] = (values[:, 6] > 0).float()
    fever = values[:, 0] + 0.8 * values[:, 1] - 0.5 * values[:, 3] * values[:, 6] > 0.2
    old = (has[:, 0] | has[:, 1]) & (values[:, 2] + 0.5 * values[:, 4] > 0)
    labels = torch.stack([has[:, 0], has[:, 1], has[:, 2], fever, old], 1).float()
    return [(scan[:, None].clamp(0, 1) - 0.45) / 0.2, values, labels]


@cache
def clinic() -> Subject:
    """Return the network of two inputs, trained on patients."""
    return trained(Clinic, patients(3600, 110), 600, 9, 4e-3, yes_or_no, signs_right, 10)


NETWORKS: dict[str, Callable[[], Subject]] = {
    "preact": preact,
    "mobile": mobile,
    "bert": bert,
    "motion": motion,
    "tagger": tagger,
    "price": price,
    "shop": shop,
    "road": road,
    "wave": wave,
    "clinic": clinic,
}


def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return NETWORKS[name]()
