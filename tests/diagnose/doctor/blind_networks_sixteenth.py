"""Eight small networks of further trades, trained on the spot: commands, hearts, machines, pairs, requests and more."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.diagnose.doctor.blind_networks_tenth import (
    Arrays,
    Subject,
    classes_right,
    generator,
    signs_right,
    trained,
    variance_explained,
)
from torch import Tensor, nn

# --- scores ---------------------------------------------------------------------------------------------------------


def ranked_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the area below the ROC curve: the share of pairs of which the anomaly has the greater score."""
    odd, usual = outputs[labels > 0.5], outputs[labels <= 0.5]
    more = (odd[:, None] > usual[None]).float() + 0.5 * (odd[:, None] == usual[None]).float()
    return more.mean().item()


def best_taken(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of states in which the action of the greatest output is the one of the greatest label."""
    return (outputs.argmax(1) == labels.argmax(1)).float().mean().item()


# --- keyword: spoken commands (depthwise separable convolutions on mel spectra in decibels) --------------------------

BANDS = FRAMES = 24
MEL_MEAN, MEL_DEVIATION = -19.0, 10.0
WORDS = ((0, 1, 2), (2, 1, 0), (3, 0, 4), (4, 0, 3), (1, 5, 3), (3, 5, 1), (2, 4, 5), (5, 4, 2))
FORMANTS = ((3.0, 9.0), (5.0, 17.0), (7.0, 13.0), (2.0, 20.0), (9.0, 18.0), (15.0, 21.0))


def said(word: int, chance: torch.Generator) -> Tensor:
    """Return the mel spectrum in decibels of a word of three phones, of a speaker and a room of chance."""
    u = torch.rand(12, generator=chance).tolist()
    times = torch.arange(FRAMES, dtype=torch.float32)
    bands = torch.arange(BANDS, dtype=torch.float32)
    begin, length = 1 + 5 * u[0], 13 + 5 * u[1]
    power = torch.zeros(BANDS, FRAMES)
    for place, phone in enumerate(WORDS[word]):
        middle = begin + length * (place + 0.5) / 3 + (u[2 + place] - 0.5)
        shape = torch.exp(-(((times - middle) / (length / 6.5)) ** 4))
        first, second = FORMANTS[phone]
        drift = 1.6 * (u[5] - 0.5)
        tone = torch.exp(-(((bands - first - drift) / 1.3) ** 2))
        tone = tone + 0.5 * torch.exp(-(((bands - second - 1.5 * drift) / 1.6) ** 2))
        power = power + tone[:, None] * shape * (0.5 + u[6 + place])
    power = power * 10 ** (0.8 * (u[9] - 0.5)) + 10 ** (-2.6 + 0.6 * u[10])
    decibels = 10 * power.log10()
    return decibels + 1.8 * torch.randn(BANDS, FRAMES, generator=chance)


class Separable(nn.Module):
    """A convolution of each channel, then one of each place, with norms."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False)
        self.norm1 = nn.BatchNorm2d(before)
        self.point, self.norm2 = nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after)
        self.act1: nn.Module = nn.ReLU6()
        self.act2: nn.Module = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(self.norm2(self.point(self.act1(self.norm1(self.depth(x))))))


class Keyword(nn.Module):
    """A convolution and four separable ones, means over time and bands, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(1, 20, (3, 5), 2, (1, 2), bias=False), nn.BatchNorm2d(20), nn.ReLU6()
        self.block1, self.block2 = Separable(20, 28, 1), Separable(28, 36, 2)
        self.block3, self.block4 = Separable(36, 36, 1), Separable(36, 48, 2)
        self.drop = nn.Dropout(0.2)
        self.word = nn.Linear(48 * 3, 8)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(spectrum)))
        x = self.block4(self.block3(self.block2(self.block1(x))))
        return self.word(self.drop(x.mean(2).flatten(1)))


def keyword() -> Subject:
    """Return a network that tells eight commands."""
    chance = generator(161)
    words = torch.randint(8, (2000,), generator=chance)
    spectra = torch.stack([said(int(word), chance) for word in words])[:, None]
    spectra = (spectra - MEL_MEAN) / MEL_DEVIATION
    return trained(Keyword, [spectra, words], 600, 7, 6e-3, F.cross_entropy, classes_right, 1)


# --- heart: kinds of beats in two leads (a residual network in one dimension) ----------------------------------------

SAMPLES = 160


def leads(kind: int, chance: torch.Generator) -> Tensor:
    """Return two leads in millivolts: usual, early wide beats, fibrillation, raised ST, or a blocked branch."""
    time = torch.arange(SAMPLES) / 100.0
    u = torch.rand(16, generator=chance).tolist()
    period = 0.55 + 0.35 * u[0]
    one, two = torch.zeros(SAMPLES), torch.zeros(SAMPLES)

    def wave(at: float, width: float) -> Tensor:
        return torch.exp(-(((time - at) / width) ** 2))

    at, beat = -period * u[1], 0
    size = 0.8 + 0.5 * u[2]
    while at < 2.0:
        early = kind == 1 and beat % 3 == 1
        wide = 0.055 if early else 0.022
        if kind != 2 and not early:
            one, two = one + 0.14 * wave(at - 0.16, 0.03), two + 0.09 * wave(at - 0.16, 0.03)
        if early:
            one, two = one + 1.3 * size * wave(at, wide), two - 0.9 * size * wave(at, wide)
            one, two = one - 0.35 * wave(at + 0.22, 0.08), two + 0.3 * wave(at + 0.22, 0.08)
        elif kind == 4:
            one = one + size * (0.8 * wave(at - 0.03, 0.025) + 0.9 * wave(at + 0.04, 0.025))
            two = two + size * (0.35 * wave(at - 0.03, 0.025) - 0.9 * wave(at + 0.045, 0.03))
        else:
            one = one + size * (wave(at, wide) - 0.15 * wave(at - 0.04, 0.015) - 0.2 * wave(at + 0.045, 0.018))
            two = two + size * (0.4 * wave(at, wide) - 0.7 * wave(at + 0.035, 0.022))
        if not early:
            lift = 0.22 if kind == 3 else 0.0
            one = one + lift * wave(at + 0.13, 0.07) + 0.28 * wave(at + 0.27, 0.055)
            two = two + 1.2 * lift * wave(at + 0.13, 0.07) + 0.2 * wave(at + 0.27, 0.055)
        step = period
        if kind == 1:
            step = period * (0.62 if beat % 3 == 0 else 1.35 if beat % 3 == 1 else 1.0)
        elif kind == 2:
            step = period * (0.55 + 0.9 * torch.rand(1, generator=chance).item())
        at, beat = at + step, beat + 1
    if kind == 2:
        for k in range(3):
            one = one + 0.035 * torch.sin(2 * math.pi * ((5 + 1.5 * k) * time + u[4 + k]))
    wander = 0.08 * torch.sin(2 * math.pi * (0.4 * time + u[8]))
    signal = torch.stack([one + wander, two + 0.7 * wander])
    return signal + 0.03 * torch.randn(2, SAMPLES, generator=chance)


class Residual(nn.Module):
    """Two convolutions with norms, added to what came in, and an activation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(before, after, 5, stride, 2, bias=False), nn.BatchNorm1d(after)
        self.conv2, self.norm2 = nn.Conv1d(after, after, 5, 1, 2, bias=False), nn.BatchNorm1d(after)
        self.shorter = nn.Sequential()
        if stride > 1 or before != after:
            self.shorter = nn.Sequential(nn.Conv1d(before, after, 1, stride, bias=False), nn.BatchNorm1d(after))
        self.act: nn.Module = nn.ReLU()
        self.adds = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return self.act(out + self.shorter(x)) if self.adds else self.act(out)


class Heart(nn.Module):
    """A convolution, a maximum, four residual blocks, means over time, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(2, 16, 7, 2, 3, bias=False), nn.BatchNorm1d(16)
        self.pool: nn.Module = nn.MaxPool1d(3, 2, 1)
        self.block1, self.block2 = Residual(16, 16, 1), Residual(16, 24, 2)
        self.block3, self.block4 = Residual(24, 32, 2), Residual(32, 40, 1)
        self.rhythm = nn.Linear(40, 5)

    def forward(self, leads: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(leads))))
        x = self.block4(self.block3(self.block2(self.block1(x))))
        return self.rhythm(x.mean(2))


def heart() -> Subject:
    """Return a network that tells five kinds of electrocardiograms."""
    chance = generator(162)
    kinds = torch.randint(5, (1900,), generator=chance)
    signals = torch.stack([leads(int(kind), chance) for kind in kinds])
    return trained(Heart, [signals, kinds], 500, 9, 6e-3, F.cross_entropy, classes_right, 2)


# --- machine: anomalies of a machine (an autoencoder whose answer is its error) --------------------------------------

SENSORS, STATES = 32, 5


class Autoencoder(nn.Module):
    """Down to few numbers and up again; the answer is the root of the mean squared error of what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.code = nn.Linear(SENSORS, 64), nn.Linear(64, 32), nn.Linear(32, 6)
        self.dec1, self.dec2, self.back = nn.Linear(6, 32), nn.Linear(32, 64), nn.Linear(64, SENSORS)
        self.act: nn.Module = nn.ELU()
        self.eps = 1e-6

    def forward(self, sensors: Tensor) -> Tensor:
        code = self.code(self.act(self.enc2(self.act(self.enc1(sensors)))))
        back = self.back(self.act(self.dec2(self.act(self.dec1(code)))))
        return ((sensors - back).square().mean(1) + self.eps).sqrt()


def machine() -> Subject:
    """Return an autoencoder that knows a machine's usual states, and held-out states of which a third are odd."""
    chance = generator(163)
    usual, held = 6000, 600
    state = torch.randn(usual + held, STATES, generator=chance)
    state[:, 3:] = 2 * torch.rand(usual + held, 2, generator=chance) - 1
    mix, more = torch.randn(STATES, SENSORS, generator=chance), torch.randn(STATES, SENSORS, generator=chance)
    shift = torch.randn(SENSORS, generator=chance)
    sensors = torch.tanh(0.5 * state @ mix + 0.3 * shift) + 0.15 * torch.sin(1.2 * state @ more)
    sensors = sensors + 0.04 * torch.randn(sensors.shape, generator=chance)
    odd = torch.zeros(usual + held)
    rows = torch.arange(usual, usual + held)[torch.rand(held, generator=chance) < 0.33]
    odd[rows] = 1.0
    for row in rows.tolist():
        some = torch.randperm(SENSORS, generator=chance)[:6]
        other = int(torch.randint(usual, (1,), generator=chance))
        sensors[row, some] = 0.4 * sensors[row, some] + 0.6 * sensors[other, some]
    sensors = (sensors - sensors[:usual].mean(0)) / sensors[:usual].std(0)

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs.square().mean()

    subject = trained(Autoencoder, [sensors, odd], held, 30, 5e-3, loss, ranked_right, 3, decay=0.0)
    subject.options["metric"] = ranked_right
    return subject


# --- pair: whether two pictures show the same (one network for both, and a cosine) -----------------------------------

INK_MEAN, INK_DEVIATION = 0.305, 0.376


class Embed(nn.Module):
    """Three convolutions with group norms, and a vector of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 24, 3, padding=1), nn.GroupNorm(4, 24)
        self.conv2, self.norm2 = nn.Conv2d(24, 32, 3, 2, 1), nn.GroupNorm(4, 32)
        self.conv3, self.norm3 = nn.Conv2d(32, 40, 3, 2, 1), nn.GroupNorm(4, 40)
        self.vector = nn.Linear(160, 24)
        self.act: nn.Module = nn.Hardswish()

    def forward(self, image: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(image)))
        x = self.act(self.norm2(self.conv2(x)))
        x = self.act(self.norm3(self.conv3(x)))
        return F.normalize(self.vector(x.flatten(1)), dim=1)


class Pair(nn.Module):
    """The same embedding of both, the cosine between them, and a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Embed()
        self.decide = nn.Linear(1, 1)
        nn.init.constant_(self.decide.weight, 8.0)
        nn.init.constant_(self.decide.bias, -4.0)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        near = (self.embed(one) * self.embed(other)).sum(1, keepdim=True)
        return self.decide(near).squeeze(1)


def pair() -> Subject:
    """Return a network that tells whether two digits are the same."""
    chance = generator(164)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=chance)
    images = (torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16 - INK_MEAN) / INK_DEVIATION
    classes = torch.tensor(digits.target)[order]

    def drawn(count: int, least: int, beyond: int) -> Arrays:
        one = torch.randint(least, beyond, (count,), generator=chance)
        other = torch.randint(least, beyond, (count, 12), generator=chance)
        alike = classes[one][:, None] == classes[other]
        want = torch.rand(count, generator=chance) < 0.5
        take = torch.where(want[:, None], alike, ~alike).float().argmax(1)
        other = other[torch.arange(count), take]
        return [images[one], images[other], (classes[one] == classes[other]).float()]

    train, held = drawn(3000, 0, 1297), drawn(500, 1297, len(classes))
    data = [torch.cat(parts) for parts in zip(train, held, strict=True)]
    subject = trained(Pair, data, 500, 10, 5e-3, F.binary_cross_entropy_with_logits, signs_right, 4)
    subject.options["metric"] = signs_right
    return subject


# --- intent: what a request asks for (a TextCNN) ---------------------------------------------------------------------

TOKENS, SENTENCE, EMPTY = 96, 16, 0


def requests(count: int, seed: int) -> Arrays:
    """Return sentences with padding, and their intents.

    A verb of one of three groups (4 … 27) before a thing of one of two (28 … 51) asks; a thing before a verb does not,
    and neither do the other words (52 … 95); the words 1 … 3 are the beginning, the end and a "please".
    """
    chance = generator(seed)

    def draw(least: int, beyond: int) -> int:
        return int(torch.randint(least, beyond, (1,), generator=chance))

    ids, labels = torch.full((count, SENTENCE), EMPTY), torch.zeros(count, dtype=torch.long)
    for row in range(count):
        verb, thing = draw(0, 3), draw(0, 2)
        asks = [draw(4 + 8 * verb, 12 + 8 * verb), draw(28 + 12 * thing, 40 + 12 * thing)]
        parts = [asks]
        if draw(0, 2):
            parts.append([draw(28, 52), draw(52, TOKENS), draw(4, 28)])
        parts += [[draw(52, TOKENS)] for _ in range(draw(2, 6))]
        order = torch.randperm(len(parts), generator=chance).tolist()
        words = [1, *(word for k in order for piece in (parts[k], [draw(52, TOKENS)]) for word in piece)]
        if draw(0, 2):
            words.append(3)
        if not all(word in words[: SENTENCE - 1] for word in asks):
            words = [1, *asks, *[draw(52, TOKENS) for _ in range(6)]]
        words = [*words[: SENTENCE - 1], 2]
        ids[row, : len(words)] = torch.tensor(words)
        labels[row] = 2 * verb + thing
    return [ids, labels]


class Intent(nn.Module):
    """Words, convolutions over two, three and four of them, maxima over the sentence, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, 32)
        self.two, self.three, self.four = (nn.Conv1d(32, 32, size, padding=size // 2) for size in (2, 3, 4))
        self.drop = nn.Dropout(0.3)
        self.hidden, self.intent = nn.Linear(96, 48), nn.Linear(48, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        found = [F.relu(layer(x)).amax(2) for layer in (self.two, self.three, self.four)]
        return self.intent(F.relu(self.hidden(self.drop(torch.cat(found, 1)))))


def intent() -> Subject:
    """Return a network that tells six intents."""
    return trained(Intent, requests(5000, 165), 600, 12, 4e-3, F.cross_entropy, classes_right, 5)


# --- lander: a policy by values of actions (a value and advantages, layer norms) -------------------------------------

OBSERVED_MEANS = torch.tensor([0.0, 0.6, 0.0, -0.4, 0.0, 0.0, 0.3, 0.3])
OBSERVED_DEVIATIONS = torch.tensor([0.45, 0.35, 0.5, 0.45, 0.25, 0.4, 0.46, 0.46])


def landings(count: int, seed: int) -> Arrays:
    """Return states of a lander (places, speeds, angle, its speed, two legs), normalized, and values of actions."""
    chance = generator(seed)
    plain = torch.randn(count, 6, generator=chance)
    x, y = 0.45 * plain[:, 0], (0.6 + 0.35 * plain[:, 1]).clamp_min(0.0)
    vx, vy, angle, turn = 0.5 * plain[:, 2], -0.4 + 0.45 * plain[:, 3], 0.25 * plain[:, 4], 0.4 * plain[:, 5]
    legs = (torch.rand(count, 2, generator=chance) < 0.3).float()
    wanted = (0.5 * x + vx).clamp(-0.4, 0.4)
    tilt = 0.9 * (wanted - angle) - 0.6 * turn
    lift = 0.7 * (0.55 * x.abs() - y) - 0.7 * vy
    down = legs.amax(1)
    tilt, lift = tilt * (1 - down), torch.where(down > 0, -0.7 * vy, lift)
    common = -1.2 * (x * x + y * y).sqrt() - 0.8 * (vx * vx + vy * vy).sqrt() - angle.abs() + 0.4 * legs.sum(1)
    gain = torch.stack([torch.full((count,), 0.1), -2.2 * tilt, 2.0 * lift, 2.2 * tilt], 1).clamp(-1.5, 1.5)
    state = torch.cat([torch.stack([x, y, vx, vy, angle, turn], 1), legs], 1)
    return [(state - OBSERVED_MEANS) / OBSERVED_DEVIATIONS, common[:, None] + gain]


class Lander(nn.Module):
    """Two layers with layer norms; a value of the state, and what each action adds, less the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(8, 64), nn.LayerNorm(64)
        self.fc2, self.norm2 = nn.Linear(64, 64), nn.LayerNorm(64)
        self.value1, self.value2 = nn.Linear(64, 32), nn.Linear(32, 1)
        self.gain1, self.gain2 = nn.Linear(64, 32), nn.Linear(32, 4)
        self.act: nn.Module = nn.Tanh()

    def forward(self, state: Tensor) -> Tensor:
        x = self.act(self.norm1(self.fc1(state)))
        x = self.act(self.norm2(self.fc2(x)))
        value = self.value2(F.relu(self.value1(x)))
        gain = self.gain2(F.relu(self.gain1(x)))
        return value + gain - gain.mean(1, keepdim=True)


def lander() -> Subject:
    """Return values of a lander's actions."""
    data = landings(9000, 166)
    subject = trained(Lander, data, 800, 25, 5e-3, F.mse_loss, best_taken, 6)
    subject.options["metric"] = best_taken
    return subject


# --- credit: a table, each of whose columns is a token (a feature tokenizer and a transformer) -----------------------

COLUMNS, KINDS = 6, (8, 5, 12)
MEANS = torch.tensor([42.0, 3200.0, 0.4, 12.0, 650.0, 2.0])
DEVIATIONS = torch.tensor([12.0, 1100.0, 0.2, 7.0, 80.0, 1.3])


class Attention(nn.Module):
    """Attention with four heads, behind a norm, and a gated layer, behind a norm, both added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.scale, self.axis, self.gate_first = (width // 4) ** -0.5, -1, False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        share = torch.softmax(q @ k.transpose(-2, -1) * self.scale, self.axis)
        x = x + self.out((share @ v).transpose(1, 2).flatten(2))
        value, gate = self.up(self.norm2(x)).chunk(2, -1)
        if self.gate_first:
            value, gate = gate, value
        return x + self.down(value * F.relu(gate))


class Credit(nn.Module):
    """A token for each column and one for the answer, two layers of attention, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.randn(COLUMNS, 24) * 0.3)
        self.offsets = nn.Parameter(torch.randn(COLUMNS, 24) * 0.3)
        self.tables = nn.ModuleList(nn.Embedding(size, 24) for size in KINDS)
        self.cls = nn.Parameter(torch.randn(1, 1, 24) * 0.3)
        self.layer1, self.layer2 = Attention(24), Attention(24)
        self.norm, self.answer = nn.LayerNorm(24), nn.Linear(24, 3)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        columns = numbers[:, :, None] * self.slopes + self.offsets
        rows = [table(ids[:, i])[:, None] for i, table in enumerate(self.tables)]
        x = torch.cat([self.cls.expand(numbers.shape[0], -1, -1), columns, *rows], 1)
        x = self.layer2(self.layer1(x))
        return self.answer(F.relu(self.norm(x[:, 0])))


def credit() -> Subject:
    """Return a network that grades applications for credit in three classes."""
    chance = generator(167)
    count = 6000
    plain = torch.randn(count, COLUMNS, generator=chance)
    ids = torch.stack([torch.randint(size, (count,), generator=chance) for size in KINDS], 1)
    effects = [torch.randn(size, generator=chance) for size in KINDS]
    slope = torch.randn(KINDS[0], generator=chance)
    risk = effects[0][ids[:, 0]] + 0.8 * effects[1][ids[:, 1]] + 0.7 * effects[2][ids[:, 2]]
    risk = risk + slope[ids[:, 0]] * plain[:, 1] + 1.2 * plain[:, 2] * plain[:, 3].sign() - plain[:, 4]
    risk = risk + 0.8 * plain[:, 0].square() - 0.7 * plain[:, 5]
    low, high = risk.quantile(0.33), risk.quantile(0.67)
    grades = (risk > low).long() + (risk > high).long()
    numbers = ((plain * DEVIATIONS + MEANS) - MEANS) / DEVIATIONS
    return trained(Credit, [numbers, ids, grades], 700, 12, 5e-3, F.cross_entropy, classes_right, 7)


# --- clean: pictures without noise (convolutions at half the size, with a map of the noise's level) -------------------


def sharp(count: int, chance: torch.Generator) -> Tensor:
    """Return pictures of 24 × 24 in three colours between 0 and 1: bars, discs and corners with sharp edges."""
    grid = torch.arange(24.0)
    rows, columns = grid[:, None], grid[None]
    pictures = []
    for _ in range(count):
        u = torch.rand(30, generator=chance)
        picture = u[:3].view(3, 1, 1).expand(3, 24, 24)
        for k in range(3):
            v = u[3 + 9 * k : 12 + 9 * k]
            colour = v[:3].view(3, 1, 1)
            y, x, angle = 24 * v[3], 24 * v[4], 2 * math.pi * v[5]
            along = (rows - y) * angle.sin() + (columns - x) * angle.cos()
            across = (columns - x) * angle.sin() - (rows - y) * angle.cos()
            if v[6] < 0.3:
                form = along.abs() < 1.2 + 1.5 * v[7]
            elif v[6] < 0.7:
                form = along.square() + across.square() < (3 + 5 * v[7]) ** 2
            else:
                form = (along > 0) & (across > 0) & (along < 14)
            picture = torch.where(form, colour, picture)
        pictures.append(picture)
    return torch.stack(pictures)


class Clean(nn.Module):
    """Four pixels and the noise's level to the channels, five convolutions, and the pixels back again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(13, 40, 3, padding=1), nn.PReLU(40)
        self.conv2, self.act2 = nn.Conv2d(40, 40, 3, padding=1), nn.PReLU(40)
        self.conv3, self.act3 = nn.Conv2d(40, 40, 3, padding=1), nn.PReLU(40)
        self.conv4, self.act4 = nn.Conv2d(40, 40, 3, padding=1), nn.PReLU(40)
        self.last = nn.Conv2d(40, 12, 3, padding=1)

    def forward(self, picture: Tensor, level: Tensor) -> Tensor:
        small = F.pixel_unshuffle(picture, 2)
        x = torch.cat([small, level[:, :, None, None].expand(-1, -1, 12, 12)], 1)
        x = self.act2(self.conv2(self.act1(self.conv1(x))))
        x = x + self.act4(self.conv4(self.act3(self.conv3(x))))
        return F.pixel_shuffle(self.last(x), 2)


def clean() -> Subject:
    """Return a network that takes noise of a known level from pictures."""
    chance = generator(168)
    pictures = (sharp(1300, chance) - 0.5) / 0.25
    level = 0.3 + 0.9 * torch.rand(len(pictures), 1, generator=chance)
    noisy = pictures + level[:, :, None, None] * torch.randn(pictures.shape, generator=chance)
    data = [noisy, level, pictures]
    subject = trained(Clean, data, 400, 16, 4e-3, F.mse_loss, variance_explained, 8, decay=0.0)
    subject.options["metric"] = variance_explained
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "keyword": keyword,
    "heart": heart,
    "machine": machine,
    "pair": pair,
    "intent": intent,
    "lander": lander,
    "credit": credit,
    "clean": clean,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
