"""Eight small networks of further families, trained on the spot: on digits, and on data that are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.diagnose.doctor.blind_networks_tenth import (
    Arrays,
    Subject,
    generator,
    signs_right,
    trained,
    variance_explained,
)
from torch import Tensor, nn

DIGIT_MEAN, DIGIT_DEVIATION = 0.3053, 0.3762
CLOTH_MEANS = torch.tensor([0.55, 0.45, 0.40])[:, None, None]
CLOTH_DEVIATIONS = torch.tensor([0.25, 0.22, 0.24])[:, None, None]


# --- scores ---------------------------------------------------------------------------------------------------------


def classes_right(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of samples, or of places of samples, whose class is right."""
    return (outputs.argmax(1) == labels).float().mean().item()


def points_found(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of points that are no further than a pixel from where they should be."""
    return ((outputs - labels).square().sum(-1).sqrt() <= 1.0).float().mean().item()


@dataclass
class NearestInGallery:
    """The share of embeddings whose nearest enrolled embedding is that of their class."""

    gallery: Tensor

    def __call__(self, outputs: Tensor, labels: Tensor) -> float:
        return (torch.cdist(outputs.float(), self.gallery).argmin(1) == labels).float().mean().item()


def digits(seed: int) -> Arrays:
    """Return the digits, normalized and in an order of chance."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator(seed))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return [((images - DIGIT_MEAN) / DIGIT_DEVIATION)[order], torch.tensor(found.target, dtype=torch.int64)[order]]


# --- mixer: an MLP-Mixer on digits ------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act: nn.Module = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Mixing(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches, self.channels = Perceptron(patches, 32), Perceptron(width, 96)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Three blocks for images of 8 × 8 in patches of 2 × 2."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 48, 2, 2)
        self.blocks = nn.ModuleList([Mixing(16, 48) for _ in range(3)])
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch(pixels).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def mixer(seed: int = 21) -> Subject:
    """Train the mixer on digits."""
    return trained(Mixer, digits(1), 550, 40, 4e-3, F.cross_entropy, classes_right, seed)


# --- shuffle: a ShuffleNet on cloths ----------------------------------------------------------------------------------


class Shuffled(nn.Module):
    """Half of the channels goes through, half through three convolutions; then the halves are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.conv1, self.norm1 = nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half)
        self.depth, self.norm2 = nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half)
        self.conv3, self.norm3 = nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half)
        self.act1: nn.Module = nn.ReLU()
        self.act3: nn.Module = nn.ReLU()
        self.through_first = True

    def forward(self, x: Tensor) -> Tensor:
        through, worked = x.chunk(2, 1)
        worked = self.norm2(self.depth(self.act1(self.norm1(self.conv1(worked)))))
        worked = self.act3(self.norm3(self.conv3(worked)))
        joined = torch.cat([through, worked] if self.through_first else [worked, through], 1)
        return joined.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Down(nn.Module):
    """A convolution that halves the image."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(before, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class ShuffleNet(nn.Module):
    """Two stages for images of 3 × 16 × 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Down(3, 24)
        self.units1 = nn.Sequential(Shuffled(24), Shuffled(24))
        self.down = Down(24, 48)
        self.units2 = nn.Sequential(Shuffled(48), Shuffled(48))
        self.head = nn.Linear(48, 8)

    def forward(self, photo: Tensor) -> Tensor:
        return self.head(self.units2(self.down(self.units1(self.stem(photo)))).mean((2, 3)))


def cloths(count: int, seed: int) -> Arrays:
    """Return photos of cloths: one of four patterns, in warm or cold colours."""
    numbers = generator(seed)

    def chance(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=numbers)

    y, x = torch.arange(16.0)[None, :, None], torch.arange(16.0)[None, None, :]
    labels = torch.randint(8, (count,), generator=numbers)
    pattern, cold = labels % 4, labels // 4
    rate, phase, phase2 = 0.9 + 0.6 * chance(1, 1), 6.3 * chance(1, 1), 6.3 * chance(1, 1)
    waves = torch.stack(
        [
            (rate * y + phase).sin() + 0 * x,
            (rate * x + phase).sin() + 0 * y,
            (rate * (x + y) * 0.7 + phase).sin(),
            (rate * x + phase).sin() * (rate * y + phase2).sin() * 1.4,
        ]
    )[pattern, torch.arange(count)]
    light = torch.where(cold[:, None] == 0, torch.tensor([0.70, 0.45, 0.30]), torch.tensor([0.40, 0.45, 0.60]))
    light = light + 0.12 * (chance(3) - 0.5)
    photos = light[:, :, None, None] + (0.1 + 0.12 * chance(1, 1, 1)) * waves[:, None]
    photos = (photos + 0.13 * torch.randn(count, 3, 16, 16, generator=numbers)).clamp(0, 1)
    return [(photos - CLOTH_MEANS) / CLOTH_DEVIATIONS, labels]


def shuffle(seed: int = 22) -> Subject:
    """Train the ShuffleNet on cloths."""
    return trained(ShuffleNet, cloths(2400, 2), 600, 12, 6e-3, F.cross_entropy, classes_right, seed)


# --- points: a network for two points of an image, by the mean places of heat maps ------------------------------------


class Points(nn.Module):
    """A stem, two branches that are added, heat maps, and the mean places of these."""

    grid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1, self.act1 = nn.Conv2d(1, 16, 5, 1, 2, bias=False), nn.BatchNorm2d(16), nn.SiLU()
        self.down, self.norm2, self.act2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()
        self.near, self.near_norm = nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.far, self.far_norm = nn.Conv2d(32, 32, 3, 1, 3, dilation=3, bias=False), nn.BatchNorm2d(32)
        self.act3: nn.Module = nn.SiLU()
        self.heat = nn.Conv2d(32, 2, 1)
        self.sharpness = 3.0
        self.axis = 2
        places = torch.arange(12.0) * 2 + 0.5
        y, x = torch.meshgrid(places, places, indexing="ij")
        self.register_buffer("grid", torch.stack([x.flatten(), y.flatten()], 1))

    def forward(self, image: Tensor) -> Tensor:
        x = self.act2(self.norm2(self.down(self.act1(self.norm1(self.stem(image))))))
        x = self.act3(self.near_norm(self.near(x)) + self.far_norm(self.far(x)))
        maps = (self.heat(x).flatten(2) * self.sharpness).softmax(self.axis)
        return maps @ self.grid


def scenes(count: int, seed: int) -> Arrays:
    """Return images with a cross and a ring in noise, and their places in pixels, x first."""
    numbers = generator(seed)
    y, x = torch.arange(24.0)[None, :, None], torch.arange(24.0)[None, None, :]
    places = 4 + 15 * torch.rand(count, 2, 2, generator=numbers)
    images = 0.35 * torch.randn(count, 24, 24, generator=numbers)
    dx, dy = x - places[:, 0, :1, None], y - places[:, 0, 1:, None]
    images += (
        1.6
        * torch.maximum((-dx.square() / 1.2).exp(), (-dy.square() / 1.2).exp())
        * (torch.maximum(dx.abs(), dy.abs()) < 3.2)
    )
    dx, dy = x - places[:, 1, :1, None], y - places[:, 1, 1:, None]
    images += 1.6 * (-((dx.square() + dy.square()).sqrt() - 2.6).square() / 0.8).exp()
    return [images[:, None], places]


def points(seed: int = 23) -> Subject:
    """Train the network for points on scenes."""
    found = trained(Points, scenes(2000, 3), 500, 14, 8e-3, F.smooth_l1_loss, points_found, seed)
    found.options["metric"] = points_found
    return found


# --- tcn: gated dilated causal convolutions on signals of a machine ---------------------------------------------------


class Gated(nn.Module):
    """A causal convolution, tanh of which a sigmoid lets through; and what goes on, and to the sum of all."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.filter = nn.Conv1d(width, width, 3, dilation=dilation)
        self.gate = nn.Conv1d(width, width, 3, dilation=dilation)
        self.on, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)
        self.pad = (2 * dilation, 0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        padded = F.pad(x, self.pad)
        inner = self.filter(padded).tanh() * self.gate(padded).sigmoid()
        return x + self.on(inner), self.skip(inner)


class WaveNet(nn.Module):
    """Four gated convolutions for two channels; the state of the machine at each of 96 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 24, 1)
        self.blocks = nn.ModuleList([Gated(24, dilation) for dilation in (1, 2, 4, 8)])
        self.head1, self.head2 = nn.Conv1d(24, 32, 1), nn.Conv1d(32, 4, 1)

    def forward(self, signal: Tensor) -> Tensor:
        x = self.stem(signal)
        total = None
        for block in self.blocks:
            x, part = block(x)
            total = part if total is None else total + part
        return self.head2(F.relu(self.head1(F.relu(total))))


def signals(count: int, seed: int) -> Arrays:
    """Return vibration and current of a machine that is off, or runs slowly, fast, or with jerks."""
    numbers = generator(seed)
    steps = torch.arange(96.0)[None]
    switches = torch.cat([torch.zeros(count, 1), 24 + 20 * torch.rand(count, 1, generator=numbers)], 1)
    switches = torch.cat([switches, switches[:, 1:] + 26 + 12 * torch.rand(count, 1, generator=numbers)], 1)
    part = (steps[:, :, None] >= switches[:, None]).sum(2) - 1
    states = torch.randint(4, (count, 3), generator=numbers).gather(1, part)
    phase = 6.3 * torch.rand(count, 1, generator=numbers)
    slow, fast = (0.35 * steps + phase).sin(), (1.3 * steps + phase).sin()
    jerks = ((0.35 * steps + phase).sin() > 0).float() * 2 - 1
    vibration = torch.stack([0 * slow, slow, fast, jerks])[states, torch.arange(count)[:, None], torch.arange(96)]
    current = torch.tensor([0.0, 0.8, 0.8, 1.0])[states] + 0.3 * vibration.square()
    found = torch.stack([vibration, current - 0.8], 1)
    return [found + 0.3 * torch.randn(count, 2, 96, generator=numbers), states]


def tcn(seed: int = 24) -> Subject:
    """Train the net of causal convolutions on signals."""
    return trained(WaveNet, signals(1200, 4), 300, 14, 8e-3, F.cross_entropy, classes_right, seed)


# --- tagger: a GRU in both directions that gives each word of a sentence a tag ----------------------------------------


class Tagger(nn.Module):
    """Embeddings, a GRU in both directions, and the tags of the words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(tokens))[0]).transpose(1, 2)


def sentences(count: int, seed: int) -> Arrays:
    """Return sentences of up to 16 words of 49, and tags that depend on the words around; nothing is 0, tag 0."""
    numbers = generator(seed)
    words = torch.randint(1, 50, (count, 16), generator=numbers)
    lengths = torch.randint(9, 17, (count, 1), generator=numbers)
    words = words * (torch.arange(16)[None] < lengths)
    before = F.pad(words, (1, 0))[:, :-1]
    after = F.pad(words, (0, 1))[:, 1:]
    kind, kind_before, kind_after = words % 7, before % 7, after % 7
    tags = 1 + kind % 5
    tags = torch.where((kind == 5) & (kind_before < 3), 1, tags)
    tags = torch.where((kind == 5) & (kind_before >= 3), 4, tags)
    tags = torch.where((kind == 6) & (kind_after < 4), 2, tags)
    tags = torch.where((kind == 6) & (kind_after >= 4), 5, tags)
    tags = torch.where((kind == 3) & (kind_after < kind_before), 3, tags)
    return [words, torch.where(words == 0, 0, tags)]


def tagger(seed: int = 25) -> Subject:
    """Train the tagger on sentences."""
    return trained(Tagger, sentences(3000, 5), 500, 12, 1.5e-2, F.cross_entropy, classes_right, seed)


# --- towers: who likes what, by the angle between a vector of the user and one of the film ----------------------------


class Tower(nn.Module):
    """Two layers."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.fc1, self.norm, self.act = nn.Linear(before, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc2(self.drop(self.act(self.norm(self.fc1(x)))))
        return x / (x.square().sum(1, keepdim=True) + 1e-6).sqrt()


class Towers(nn.Module):
    """A tower for the user's numbers, one for the film's four tags, and their cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.tag = nn.Embedding(40, 24)
        self.user_tower, self.film_tower = Tower(10), Tower(24)
        self.factor, self.bias = nn.Parameter(torch.tensor(6.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, user: Tensor, tags: Tensor) -> Tensor:
        ours, theirs = self.user_tower(user), self.film_tower(self.tag(tags).mean(1))
        return (ours * theirs).sum(1) * self.factor + self.bias


def likings(count: int, seed: int) -> Arrays:
    """Return users, the tags of films, and whether they like them."""
    numbers = generator(seed)
    user = torch.randn(count, 10, generator=numbers)
    tags = torch.randint(40, (count, 4), generator=numbers)
    taste = (user @ torch.randn(10, 4, generator=numbers) / 2).tanh()
    kind = torch.randn(40, 4, generator=numbers)[tags].mean(1)
    liking = (taste * kind).sum(1)
    return [user, tags, (liking > 0.1).float()]


def towers(seed: int = 26) -> Subject:
    """Train the towers."""
    found = trained(Towers, likings(9000, 6), 800, 14, 1e-2, F.binary_cross_entropy_with_logits, signs_right, seed)
    found.options["metric"] = signs_right
    return found


# --- dense: a DenseNet that embeds digits, to be compared with enrolled ones ------------------------------------------


class Denser(nn.Module):
    """Norm, activation, convolution, of which the results join what came in."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm2d(before), nn.ReLU()
        self.conv = nn.Conv2d(before, growth, 3, 1, 1, bias=False)
        self.new_last = True

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv(self.act(self.norm(x)))
        return torch.cat([x, new] if self.new_last else [new, x], 1)


class Transition(nn.Module):
    """Fewer channels, and an image of half the size."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm2d(before), nn.ReLU()
        self.conv = nn.Conv2d(before, width, 1, bias=False)
        self.pool: nn.Module = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(self.act(self.norm(x))))


class DenseNet(nn.Module):
    """Two dense blocks, and an embedding of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.block1 = nn.Sequential(Denser(12, 8), Denser(20, 8), Denser(28, 8))
        self.transition = Transition(36, 20)
        self.block2 = nn.Sequential(Denser(20, 8), Denser(28, 8), Denser(36, 8))
        self.norm, self.act, self.pool = nn.BatchNorm2d(44), nn.ReLU(), nn.AvgPool2d(2)
        self.embed = nn.Linear(44 * 4, 16)

    def forward(self, scan: Tensor) -> Tensor:
        x = self.block2(self.transition(self.block1(self.stem(scan))))
        x = self.embed(self.pool(self.act(self.norm(x))).flatten(1))
        return x / (x.square().sum(1, keepdim=True) + 1e-6).sqrt()


def dense(seed: int = 27) -> Subject:
    """Train the DenseNet on digits by directions for the classes, and enroll the means of the training data."""
    data = digits(7)
    directions = torch.linalg.qr(torch.randn(16, 10, generator=generator(8)))[0].T.contiguous()

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs @ directions.T * 8, labels)

    found = trained(DenseNet, data, 550, 14, 1e-2, loss, classes_right, seed)
    with torch.no_grad():
        known = found.model(data[0][:-550])
    means = torch.stack([known[data[1][:-550] == label].mean(0) for label in range(10)])
    found.score = found.options["metric"] = NearestInGallery(F.normalize(means))
    return found


# --- ftt: a transformer for tables, with kinds and numbers, on rents --------------------------------------------------


class Attending(nn.Module):
    """Attention of four heads, and a perceptron, norms first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Perceptron(width, 2 * width)
        self.heads, self.scale, self.axis = 4, (width // 4) ** -0.5, -1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        shares = (q @ k.transpose(-2, -1) * self.scale).softmax(self.axis)
        x = x + self.out((shares @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TableTransformer(nn.Module):
    """A token for each of three kinds and six numbers, and one that gathers; a number comes out."""

    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(18, 32)
        self.register_buffer("offsets", torch.tensor([0, 8, 13]))
        self.weight, self.bias = nn.Parameter(0.5 * torch.randn(6, 32)), nn.Parameter(0.1 * torch.randn(6, 32))
        self.gather = nn.Parameter(0.1 * torch.randn(1, 1, 32))
        self.blocks = nn.ModuleList([Attending(32) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 1)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.kind(kinds + self.offsets), numbers[:, :, None] * self.weight + self.bias], 1)
        x = torch.cat([self.gather.expand(x.shape[0], -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0])).squeeze(1)


def rents(count: int, seed: int) -> Arrays:
    """Return flats by quarter, state and heating, six numbers, and their rents, which have mean 0 and deviation 1."""
    numbers = generator(seed)
    kinds = torch.stack([torch.randint(n, (count,), generator=numbers) for n in (8, 5, 5)], 1)
    values = torch.randn(count, 6, generator=numbers)
    quarter = torch.randn(8, generator=numbers)[kinds[:, 0]]
    state, heating = torch.randn(5, generator=numbers)[kinds[:, 1]], torch.randn(5, generator=numbers)[kinds[:, 2]]
    rent = values[:, 0] * (1 + 0.5 * quarter) + state * (values[:, 1] > 0) + 0.5 * heating
    rent = rent + quarter + (values[:, 2] * values[:, 3]).tanh() - 0.5 * values[:, 4].abs()
    rent = (rent - rent.mean()) / rent.std() + 0.05 * torch.randn(count, generator=numbers)
    return [kinds, values, rent]


def ftt(seed: int = 28) -> Subject:
    """Train the transformer on rents."""
    found = trained(TableTransformer, rents(4500, 9), 700, 14, 5e-3, F.mse_loss, variance_explained, seed)
    found.options["metric"] = variance_explained
    return found


BUILDERS: dict[str, Callable[[], Subject]] = {
    "mixer": mixer,
    "shuffle": shuffle,
    "points": points,
    "tcn": tcn,
    "tagger": tagger,
    "towers": towers,
    "dense": dense,
    "ftt": ftt,
}


@cache
def build(name: str) -> Subject:
    """Return a trained network, which is trained once."""
    return BUILDERS[name]()
