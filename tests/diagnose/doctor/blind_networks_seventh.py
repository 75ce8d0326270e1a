"""Twelve small networks, different in kind, trained on the spot: on digits, tumours, and texts and signals made up."""

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
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(5))
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


# --- inverted residuals ---------------------------------------------------------------------------------------------


class Bottle(nn.Module):
    """An inverted residual."""

    def __init__(self, inside: int, outside: int, factor: int, stride: int) -> None:
        super().__init__()
        wide = inside * factor
        self.body = nn.Sequential(
            OrderedDict(
                widen=nn.Conv2d(inside, wide, 1, bias=False),
                norm_w=nn.BatchNorm2d(wide),
                cap_w=nn.ReLU6(),
                spread=nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                norm_s=nn.BatchNorm2d(wide),
                cap_s=nn.ReLU6(),
                squeeze=nn.Conv2d(wide, outside, 1, bias=False),
                norm_q=nn.BatchNorm2d(outside),
            )
        )
        self.skip = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class Pocket(nn.Module):
    """Inverted residuals on coloured digits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.bottles = nn.Sequential(
            Bottle(12, 12, 3, 1), Bottle(12, 20, 3, 2), Bottle(20, 20, 3, 1), Bottle(20, 20, 3, 1)
        )
        self.last = nn.Sequential(nn.Conv2d(20, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU6())
        self.answer = nn.Linear(48, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(pixels)))
        return self.answer(self.last(self.bottles(x)).mean((2, 3)))


def coloured(images: Tensor) -> Tensor:
    """Return digits of twice the size, red on dark green and blue paper, less the means and over the deviations."""
    noise = 0.05 * torch.randn(len(images), 3, 16, 16, generator=torch.Generator().manual_seed(2))
    large = F.interpolate(images, scale_factor=2, mode="bilinear")
    pixels = torch.cat([large, 0.2 + 0.5 * large, 0.8 - 0.3 * large], 1) + noise
    return (pixels - torch.tensor([0.3, 0.35, 0.7])[:, None, None]) / torch.tensor([0.36, 0.2, 0.14])[:, None, None]


def pocket() -> Subject:
    images, classes = digits()
    pixels = coloured(images)
    model = fit(Pocket(), [pixels[:1285], classes[:1285]], 14, 1e-2)
    return Subject(model, [pixels[1285:], classes[1285:]])


# --- residuals with norms before ------------------------------------------------------------------------------------


class Pre(nn.Module):
    """Norm, ReLU and convolution, twice, and the way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn_a, self.bn_b = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv_a = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv_b = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.way = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn_a(x).relu()
        around = x if self.way is None else self.way(inner)
        return around + self.conv_b(self.bn_b(self.conv_a(inner)).relu())


class Preact(nn.Module):
    """A residual network whose norms come before."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(1, 12, 3, 1, 1, bias=False)
        self.one, self.two = Pre(12, 12, 1), Pre(12, 24, 2)
        self.three, self.four = Pre(24, 24, 1), Pre(24, 24, 1)
        self.final = nn.BatchNorm2d(24)
        self.out = nn.Linear(24, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.four(self.three(self.two(self.one(self.entry(image)))))
        return self.out(self.final(x).relu().mean((2, 3)))


def preact() -> Subject:
    images, classes = digits()
    images = (images - 0.3) / 0.37
    return Subject(fit(Preact(), [images[:1285], classes[:1285]], 10, 1e-2), [images[1285:], classes[1285:]])


# --- dense connections ----------------------------------------------------------------------------------------------


class Grow(nn.Module):
    """A layer whose results are joined to what it read."""

    def __init__(self, inside: int, more: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inside)
        self.conv = nn.Conv2d(inside, more, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Dense(nn.Module):
    """Two groups of layers that read all before them."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Conv2d(1, 12, 3, 1, 1)
        self.early = nn.Sequential(Grow(12), Grow(20), Grow(28))
        self.between = nn.Sequential(nn.BatchNorm2d(36), nn.ReLU(), nn.Conv2d(36, 18, 1, bias=False), nn.AvgPool2d(2))
        self.late = nn.Sequential(Grow(18), Grow(26), Grow(34))
        self.norm_out = nn.BatchNorm2d(42)
        self.decide = nn.Linear(42, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.late(self.between(self.early(self.begin(x))))
        return self.decide(F.adaptive_avg_pool2d(F.relu(self.norm_out(x)), 1).flatten(1))


def dense() -> Subject:
    images, classes = digits()
    return Subject(fit(Dense(), [images[:1285], classes[:1285]], 10, 1e-2), [images[1285:], classes[1285:]])


# --- modern convolutions --------------------------------------------------------------------------------------------


class Modern(nn.Module):
    """A depthwise convolution, a norm of channels, and two maps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.ln = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.act = nn.GELU()
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln(self.deep(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(self.act(self.up(y)))).permute(0, 3, 1, 2)


class Next(nn.Module):
    """Three blocks behind patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 24, 2, 2)
        self.blocks = nn.Sequential(Modern(24), Modern(24), Modern(24))
        self.tail = nn.LayerNorm(24)
        self.fc = nn.Linear(24, 10)

    def forward(self, img: Tensor) -> Tensor:
        return self.fc(self.tail(self.blocks(self.patch(img)).mean((2, 3))))


def modern() -> Subject:
    images, classes = digits()
    images = (images - 0.5) / 0.5
    return Subject(fit(Next(), [images[:1285], classes[:1285]], 24, 8e-3), [images[1285:], classes[1285:]])


# --- an encoder of words --------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """An encoder of words, whose mean over the words that are there is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 32)
        self.places = nn.Parameter(0.3 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.05, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        there = ids != 0
        x = self.encoder(self.words(ids) + self.places, src_key_padding_mask=~there)
        weight = there[..., None].to(x.dtype)
        return self.head((x * weight).sum(1) / weight.sum(1))


def sentences(count: int, seed: int) -> Arrays:
    """Return texts of 8 to 16 words, padded with 0; the first of the words 1 to 5 that is there gives the class."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 30, (count, 16), generator=rng)
    classes = torch.randint(0, 5, (count,), generator=rng)
    for row in range(count):
        length = int(torch.randint(8, 17, (1,), generator=rng))
        spots = torch.randperm(length, generator=rng)[:3].sort().values
        ids[row, spots] = torch.randint(1, 6, (3,), generator=rng)
        ids[row, spots[0]] = classes[row] + 1
        ids[row, length:] = 0
    return [ids, classes]


def reader() -> Subject:
    return Subject(fit(Reader(), sentences(3000, 1), 16, 4e-3), sentences(512, 2))


# --- a tagger -------------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """A GRU in both directions that gives every word a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(20, 12)
        self.gru = nn.GRU(12, 20, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(40, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tags(self.gru(self.lookup(tokens))[0])


def tagged(count: int, seed: int) -> Arrays:
    """Return texts and tags, which depend on the word, the one before and the one behind."""
    tokens = torch.randint(0, 20, (count, 12), generator=torch.Generator().manual_seed(seed))
    kinds = tokens % 4
    before, behind = F.pad(kinds[:, :-1], (1, 0), value=2), F.pad(kinds[:, 1:], (0, 1), value=2)
    return [tokens, (kinds + 2 * (before == 0) + (behind == 1)) % 5]


def by_word(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of tags."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def tagger() -> Subject:
    return Subject(fit(Tagger(), tagged(1500, 1), 14, 2e-2, by_word), tagged(512, 2))


# --- dilated convolutions in time -----------------------------------------------------------------------------------


class Causal(nn.Module):
    """A convolution that sees no future, with a norm and a way around."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.conv(self.pad(x))))


class Temporal(nn.Module):
    """Five of them, of which the last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(2, 16, 1)
        self.d1, self.d2, self.d4, self.d8 = (Causal(16, 2**k) for k in range(4))
        self.d1b = Causal(16, 1)
        self.verdict = nn.Linear(16, 5)
        self.step = -1

    def forward(self, signal: Tensor) -> Tensor:
        x = self.d1b(self.d8(self.d4(self.d2(self.d1(self.mix(signal))))))
        return self.verdict(x[:, :, self.step])


def echoes(count: int, seed: int) -> Arrays:
    """Return pulses and their echoes on another channel; how much later they come gives the class."""
    rng = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 5, (count,), generator=rng)
    start = torch.randint(10, 16, (count,), generator=rng)
    time = torch.arange(32)[None]
    pulse = torch.exp(-0.5 * (time - start[:, None]) ** 2)
    echo = 0.7 * torch.exp(-0.5 * (time - (start + 1 + 3 * classes)[:, None]) ** 2)
    return [torch.stack([pulse, -echo], 1) + 0.08 * torch.randn(count, 2, 32, generator=rng), classes]


def temporal() -> Subject:
    return Subject(fit(Temporal(), echoes(2000, 1), 10, 1e-2), echoes(512, 2))


# --- two heads ------------------------------------------------------------------------------------------------------


class Spotter(nn.Module):
    """Finds the kind of the thing in an image, and its box in pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, 2, 1)
        self.c2 = nn.Conv2d(12, 24, 3, 2, 1)
        self.c3 = nn.Conv2d(24, 24, 3, 1, 1)
        self.neck = nn.Linear(24 * 16, 48)
        self.kind = nn.Linear(48, 3)
        self.box = nn.Linear(48, 4)

    def forward(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        x = self.c3(self.c2(self.c1(photo).relu()).relu()).relu()
        x = F.leaky_relu(self.neck(x.flatten(1)), 0.1)
        return self.kind(x), self.box(x).sigmoid() * 16


def things(count: int, seed: int) -> Arrays:
    """Return images of full boxes, frames and crosses, their kinds, and their boxes: left, top, right, bottom."""
    rng = torch.Generator().manual_seed(seed)
    photos = 0.15 * torch.randn(count, 1, 16, 16, generator=rng)
    kinds = torch.randint(0, 3, (count,), generator=rng)
    size = torch.randint(4, 10, (count, 2), generator=rng)
    corner = (torch.rand(count, 2, generator=rng) * (17 - size)).long()
    for row, kind in enumerate(kinds.tolist()):
        (x, y), (w, h) = corner[row].tolist(), size[row].tolist()
        part = photos[row, 0, y : y + h, x : x + w]
        if kind == 0:
            part += 1
        elif kind == 1:
            part[[0, -1]] += 1
            part[1:-1, [0, -1]] += 1
        else:
            part[h // 2] += 1
            part[:, w // 2] += 1
    return [photos, kinds, torch.cat([corner, corner + size], 1).float()]


def overlap(boxes: Tensor, right: Tensor) -> Tensor:
    """Return what boxes have in common over what they cover together."""
    low, high = torch.maximum(boxes[:, :2], right[:, :2]), torch.minimum(boxes[:, 2:], right[:, 2:])
    common = (high - low).clamp(min=0).prod(1)
    areas = [(found[:, 2:] - found[:, :2]).clamp(min=0).prod(1) for found in (boxes, right)]
    return common / (areas[0] + areas[1] - common).clamp(min=1e-6)


def found(outputs: Any, labels: Any) -> Tensor:
    """Return the overlap of boxes where the kind is right, and 0 elsewhere."""
    return overlap(outputs[1], labels[1]) * (outputs[0].argmax(1) == labels[0])


def spotter() -> Subject:
    def loss(outputs: Any, labels: Any) -> Tensor:
        return F.cross_entropy(outputs[0], labels[0]) + 0.5 * F.smooth_l1_loss(outputs[1], labels[1])

    return Subject(fit(Spotter(), things(3000, 1), 14, 5e-3, loss), things(512, 2), {"metric": found})


# --- a table --------------------------------------------------------------------------------------------------------


class Ledger(nn.Module):
    """Three columns of codes, which share one table, and six of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(20, 6)
        self.register_buffer("first", torch.tensor([0, 6, 16]))
        self.scaling = nn.BatchNorm1d(6)
        self.l1, self.n1 = nn.Linear(24, 40), nn.BatchNorm1d(40)
        self.l2, self.n2 = nn.Linear(40, 24), nn.BatchNorm1d(24)
        self.score = nn.Linear(24, 4)

    def forward(self, columns: Tensor, amounts: Tensor) -> Tensor:
        rows = self.codes(columns + self.first).flatten(1)
        x = torch.cat([rows, self.scaling(amounts)], 1)
        x = F.silu(self.n1(self.l1(x)))
        return self.score(F.silu(self.n2(self.l2(x))))


def accounts(count: int, seed: int) -> Arrays:
    """Return codes, numbers and classes that follow from both."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    columns = torch.stack([torch.randint(0, size, (count,), generator=rng) for size in (6, 10, 4)], 1)
    amounts = torch.randn(count, 6, generator=rng)
    tables = [2 * torch.randn(size, 4, generator=fixed) for size in (6, 10, 4)]
    scores = (
        sum(table[columns[:, k]] for k, table in enumerate(tables)) + amounts @ torch.randn(6, 4, generator=fixed) * 1.3
    )
    return [
        columns,
        amounts * torch.tensor([1, 1.5, 0.8, 2, 1, 0.6]) + torch.tensor([0, 1, 0.5, -1, 0, 2]),
        scores.argmax(1),
    ]


def ledger() -> Subject:
    return Subject(fit(Ledger(), accounts(3000, 1), 10, 1e-2, inputs=2), accounts(512, 2))


# --- an autoencoder -------------------------------------------------------------------------------------------------


class Coder(nn.Module):
    """Digits to ten numbers, drawn by chance in training, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1), nn.ELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mu, self.spread = nn.Linear(96, 10), nn.Linear(96, 10)
        self.drawn = nn.Sequential(
            nn.Linear(10, 96),
            nn.ELU(),
            nn.Unflatten(1, (24, 2, 2)),
            nn.ConvTranspose2d(24, 12, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose2d(12, 1, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, sheet: Tensor) -> Tensor:
        code = self.seen(sheet)
        middle = self.mu(code)
        if self.training:
            middle = middle + 0.1 * torch.randn_like(middle) * self.spread(code).exp()
        return self.drawn(middle)


def coder() -> Subject:
    images, _ = digits()
    model = fit(Coder(), [images[:1285], images[:1285]], 40, 8e-3, F.mse_loss)
    return Subject(model, [images[1285:], images[1285:]])


# --- sounds ---------------------------------------------------------------------------------------------------------


class Spoken(nn.Module):
    """Convolutions over bands and frames, and the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv2d(1, 12, (5, 3), (2, 1), (2, 1), bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.middle = nn.Conv2d(12, 16, 3, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.bands = nn.Conv2d(16, 32, (8, 1), bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.frames = nn.Conv1d(32, 32, 3, padding=1)
        self.command = nn.Linear(32, 8)

    def forward(self, mel: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.front(mel)))
        x = F.relu(self.bn2(self.middle(x)))
        x = F.relu(self.bn3(self.bands(x))).squeeze(2)
        return self.command(F.relu(self.frames(x)).mean(-1))


def sounds(count: int, seed: int) -> Arrays:
    """Return logarithms of 32 bands in 20 frames, normalized; where two formants begin and end gives the class."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(7)
    ends = 3 + 26 * torch.rand(8, 2, 2, generator=fixed)
    classes = torch.randint(0, 8, (count,), generator=rng)
    time = torch.linspace(0, 1, 20)
    mine = ends[classes] + 1.5 * torch.randn(count, 1, 1, generator=rng) + torch.randn(count, 2, 2, generator=rng)
    centre = mine[:, :, :1] * (1 - time) + mine[:, :, 1:] * time
    band = torch.arange(32.0)[None, None, :, None]
    energy = torch.exp(-0.5 * ((band - centre[:, :, None]) / 1.5) ** 2).sum(1)
    loud = (1.5 * torch.randn(count, 1, 1, generator=rng)).exp()
    energy = loud * energy + 0.03 * torch.rand(count, 32, 20, generator=rng) + 0.003
    return [((energy.log() + 2.5) / 2)[:, None], classes]


def spoken() -> Subject:
    return Subject(fit(Spoken(), sounds(2000, 1), 10, 1e-2), sounds(512, 2))


# --- tumours --------------------------------------------------------------------------------------------------------


def clinic() -> Subject:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = torch.randperm(569, generator=torch.Generator().manual_seed(4))
    x, y = torch.tensor(data.data, dtype=torch.float32)[order], torch.tensor(data.target)[order]
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(
        OrderedDict(
            enter=nn.Linear(30, 24),
            bend1=nn.LeakyReLU(0.1),
            inner=nn.Linear(24, 24),
            bend2=nn.Tanh(),
            leave=nn.Linear(24, 2),
        )
    )
    return Subject(fit(model, [x[:249], y[:249]], 30, 3e-3), [x[249:], y[249:]])


MAKERS: dict[str, Callable[[], Subject]] = {
    "pocket": pocket,
    "preact": preact,
    "dense": dense,
    "modern": modern,
    "reader": reader,
    "tagger": tagger,
    "temporal": temporal,
    "spotter": spotter,
    "ledger": ledger,
    "coder": coder,
    "spoken": spoken,
    "clinic": clinic,
}


@lru_cache(maxsize=len(MAKERS))
def build(name: str) -> Subject:
    """Return a trained network and its data, the same in every process."""
    state = torch.get_rng_state()
    torch.manual_seed(11)
    try:
        return MAKERS[name]()
    finally:
        torch.set_rng_state(state)
