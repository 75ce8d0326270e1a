"""Ten small networks of further families, trained on the spot: on digits, and on scenes, signals and texts made up."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_seventh import Subject
from torch import Tensor, nn

Arrays = list[Tensor]


def digits() -> tuple[Tensor, Tensor]:
    """Return the digits of scikit-learn between 0 and 1, in an order of chance, and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(8))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.tensor(found.target)[order]


def fit(
    model: nn.Module,
    data: Arrays,
    epochs: int,
    rate: float = 3e-3,
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
) -> nn.Module:
    """Train with AdamW in batches of 64, at a rate that rises and falls, and return the network in evaluation mode."""
    inputs, targets = data
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    steps = epochs * math.ceil(len(inputs) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            loss(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def by_step(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of an answer for every step, classes last."""
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


# --- a vision transformer with a token for the class ----------------------------------------------------------------


class Attention(nn.Module):
    """Attention whose queries, keys and values come from one layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, count, width))


class Layer(nn.Module):
    """Attention and two maps, norms before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(OrderedDict(fc1=nn.Linear(width, 64), act=nn.GELU(), fc2=nn.Linear(64, width)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Sixteen patches and a token of which the class is read."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.pos = nn.Parameter(0.1 * torch.randn(1, 17, 32))
        self.layers = nn.Sequential(Layer(32, 4), Layer(32, 4))
        self.norm = nn.LayerNorm(32, eps=1e-6)
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(image), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.layers(x))[:, 0])


def vit() -> Subject:
    images, classes = digits()
    images = (images - 0.5) / 0.25
    return Subject(fit(Vit(), [images[:1285], classes[:1285]], 24, 6e-3), [images[1285:], classes[1285:]])


# --- segmentation ---------------------------------------------------------------------------------------------------


def twice(inside: int, outside: int) -> nn.Sequential:
    """Return two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Unet(nn.Module):
    """Down twice, up twice, with ways across."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2, self.bottom = twice(1, 8), twice(8, 16), twice(16, 24)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.dec2 = nn.ConvTranspose2d(24, 16, 2, 2), twice(32, 16)
        self.up1, self.dec1 = nn.ConvTranspose2d(16, 8, 2, 2), twice(16, 8)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, scan: Tensor) -> Tensor:
        one = self.enc1(scan)
        two = self.enc2(self.pool(one))
        x = self.up2(self.bottom(self.pool(two)))
        x = self.up1(self.dec2(torch.cat([two, x], 1)))
        return self.last(self.dec1(torch.cat([one, x], 1)))


def scenes(count: int, seed: int) -> Arrays:
    """Return noisy images of a disc, a box and a wedge, which are about as bright as each other, and their masks."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    masks = torch.zeros(count, 24, 24, dtype=torch.int64)
    for mask in masks:
        for kind in torch.randperm(3, generator=rng).tolist():
            (cy, cx, r), turn = torch.rand(3, generator=rng).tolist(), kind + 1
            cy, cx, r = 4 + 16 * cy, 4 + 16 * cx, 3 + 2.5 * r
            if kind == 0:
                part = (y - cy) ** 2 + (x - cx) ** 2 < r * r
            elif kind == 1:
                part = ((y - cy).abs() < r * 0.9) & ((x - cx).abs() < r * 0.9)
            else:
                part = (y - cy < r) & (y - cy > -r) & ((x - cx).abs() < (y - cy + r) / 2)
            mask[part] = turn
    tone = torch.tensor([0.1, 0.75, 0.6, 0.9])[masks]
    return [(tone + 0.07 * torch.randn(count, 24, 24, generator=rng))[:, None], masks]


def unet() -> Subject:
    return Subject(fit(Unet(), scenes(500, 1), 8, 1e-2), scenes(192, 2))


# --- a recurrent network over measurements --------------------------------------------------------------------------


class Tracker(nn.Module):
    """Two LSTM layers over an accelerometer's axes, whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 24, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.activity = nn.Linear(24, 5)

    def forward(self, axes: Tensor) -> Tensor:
        return self.activity(self.drop(self.lstm(axes)[0][:, -1]))


def movements(count: int, seed: int) -> Arrays:
    """Return three axes over 24 steps: how fast they swing, on which, and how the phase moves give the class."""
    rng = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 5, (count,), generator=rng)
    time = torch.arange(24.0)[None]
    speed = torch.tensor([0.3, 0.6, 0.6, 0.95, 0.3])[classes][:, None]
    strength = torch.tensor([[1, 0.5, 0.2], [1, 0.5, 0.2], [0.2, 0.5, 1], [0.6, 0.6, 0.6], [0.3, 1.0, 0.6]])[classes]
    phase = 6.28 * torch.rand(count, 1, generator=rng)
    swing = torch.stack([torch.sin(speed * time + phase + k) for k in range(3)], 2)
    pull = torch.tensor([0.1, -0.2, 1.0]) + 0.1 * torch.randn(count, 1, 3, generator=rng)
    noise = 0.2 * torch.randn(count, 24, 3, generator=rng)
    loud = 0.7 + 0.6 * torch.rand(count, 1, 1, generator=rng)
    return [loud * strength[:, None] * swing + pull + noise, classes]


def tracker() -> Subject:
    return Subject(fit(Tracker(), movements(1500, 1), 10, 1.5e-2), movements(512, 2))


# --- residual convolutions on one signal ----------------------------------------------------------------------------


class Beat(nn.Module):
    """Two convolutions, norms behind, and the way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inside, outside, 5, stride, 2, bias=False)
        self.bn1 = nn.BatchNorm1d(outside)
        self.conv2 = nn.Conv1d(outside, outside, 5, 1, 2, bias=False)
        self.bn2 = nn.BatchNorm1d(outside)
        self.down = None
        if stride > 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv1d(inside, outside, 1, stride, bias=False), nn.BatchNorm1d(outside))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.down is None else self.down(x)
        return F.relu(around + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Pulse(nn.Module):
    """A residual network on one lead of an electrocardiogram."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 12, 7, 2, 3, bias=False), nn.BatchNorm1d(12), nn.ReLU())
        self.pool = nn.MaxPool1d(3, 2, 1)
        self.layer1, self.layer2, self.layer3 = Beat(12, 12, 1), Beat(12, 20, 2), Beat(20, 20, 1)
        self.rhythm = nn.Linear(20, 4)

    def forward(self, lead: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.pool(self.stem(lead)))))
        return self.rhythm(x.mean(-1))


def hearts(count: int, seed: int) -> Arrays:
    """Return beats on a wandering line: as usual, too early, broad and inverted, or without the small wave before."""
    rng = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 4, (count,), generator=rng)
    time = torch.arange(96.0)[None]
    lead = 0.1 * torch.randn(count, 96, generator=rng)
    lead += 0.3 * torch.sin(time / 15 + 6.28 * torch.rand(count, 1, generator=rng))
    start = 12 + 8 * torch.rand(count, 1, generator=rng)
    for beat in range(3):
        middle = start + 28 * beat
        if beat == 1:
            middle = middle - 9.0 * (classes == 1)[:, None]
        wide = torch.where(((classes == 2) & (beat == 1))[:, None], 3.5, 1.2)
        high = torch.where(((classes == 2) & (beat == 1))[:, None], 1.4, 2.0)
        lead += high * torch.exp(-0.5 * ((time - middle) / wide) ** 2)
        lead -= 0.5 * torch.exp(-0.5 * ((time - middle - 3) / 1.2) ** 2)
        small = torch.where(classes == 3, 0.0, 0.6)[:, None]
        lead += small * torch.exp(-0.5 * ((time - middle + 6) / 1.5) ** 2)
    return [lead[:, None], classes]


def pulse() -> Subject:
    return Subject(fit(Pulse(), hearts(1500, 1), 8, 1e-2), hearts(512, 2))


# --- regression -----------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Two maps with a norm, and the way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.relu(self.wide(self.ln(x))))


class Valve(nn.Module):
    """A residual network of maps that predicts a plant's two numbers from eight."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(8, 32)
        self.b1, self.b2 = Wide(32), Wide(32)
        self.exit = nn.Linear(32, 2)

    def forward(self, sensors: Tensor) -> Tensor:
        return self.exit(self.b2(self.b1(self.entry(sensors))))


def plant_data(count: int, seed: int) -> Arrays:
    """Return standardized measurements, and a flow and a temperature that follow from them."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=rng)
    flow = 2 * torch.tanh(x[:, 0] + 0.5 * x[:, 1] * x[:, 2]) + x[:, 3] - 0.4 * x[:, 4].abs() + 0.3 * x[:, 5]
    heat = 1.5 * torch.sin(x[:, 5]) + 0.8 * x[:, 6] - x[:, 0] * (x[:, 7] > 0) + 1.2 * x[:, 1]
    return [x, torch.stack([flow, heat], 1) + 0.03 * torch.randn(count, 2, generator=rng)]


def valve() -> Subject:
    return Subject(fit(Valve(), plant_data(4000, 1), 14, 8e-3, F.mse_loss), plant_data(512, 2))


# --- embeddings -----------------------------------------------------------------------------------------------------


class Face(nn.Module):
    """Embeddings of length one, compared with one direction for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, 3, 1, 1),
                act1=nn.PReLU(16),
                conv2=nn.Conv2d(16, 24, 3, 2, 1),
                act2=nn.PReLU(24),
                conv3=nn.Conv2d(24, 32, 3, 2, 1),
                act3=nn.PReLU(32),
            )
        )
        self.embed = nn.Linear(128, 24, bias=False)
        self.bn = nn.BatchNorm1d(24)
        self.directions = nn.Linear(24, 10, bias=False)

    def forward(self, crop: Tensor) -> Tensor:
        vector = F.normalize(self.bn(self.embed(self.features(crop).flatten(1))), dim=1)
        return 3 * self.directions(vector)


def face() -> Subject:
    images, classes = digits()
    images = images * 2 - 1
    return Subject(fit(Face(), [images[:1285], classes[:1285]], 12, 1e-2), [images[1285:], classes[1285:]])


# --- groups whose channels are shuffled -----------------------------------------------------------------------------


class Unit(nn.Module):
    """Half of the channels go through convolutions, and then the halves are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            OrderedDict(
                pw1=nn.Conv2d(half, half, 1, bias=False),
                bn1=nn.BatchNorm2d(half),
                relu1=nn.ReLU(),
                dw=nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
                bn2=nn.BatchNorm2d(half),
                pw2=nn.Conv2d(half, half, 1, bias=False),
                bn3=nn.BatchNorm2d(half),
                relu2=nn.ReLU(),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        x = torch.cat([left, self.branch(right)], 1)
        batch, width, high, wide = x.shape
        return x.view(batch, 2, width // 2, high, wide).transpose(1, 2).reshape(batch, width, high, wide)


class Shuffle(nn.Module):
    """Three of them, between a stem and a last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.stage = nn.Sequential(Unit(24), Unit(24), Unit(24))
        self.conv5 = nn.Sequential(nn.Conv2d(24, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU())
        self.classify = nn.Linear(48, 10)

    def forward(self, pic: Tensor) -> Tensor:
        x = self.conv5(self.stage(self.pool(self.stem(pic))))
        return self.classify(F.adaptive_avg_pool2d(x, 1).flatten(1))


def shuffle() -> Subject:
    images, classes = digits()
    images = (images - 0.3) / 0.37
    return Subject(fit(Shuffle(), [images[:1285], classes[:1285]], 14, 1.5e-2), [images[1285:], classes[1285:]])


# --- a decoder ------------------------------------------------------------------------------------------------------


class Root(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Block(nn.Module):
    """Attention that looks back, and a gated map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_m = Root(width), Root(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("mask", torch.full((16, 16), -1e4).triu(1), persistent=False)

    def split(self, x: Tensor) -> Tensor:
        """Return one head after the other."""
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_a(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + self.mask
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        y = self.norm_m(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Scribe(nn.Module):
    """A decoder that says the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(12, 32)
        self.place = nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm = Root(32)
        self.out = nn.Linear(32, 12, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.place(torch.arange(text.shape[1], device=text.device))
        return self.out(self.norm(self.blocks(x)))


def letters(count: int, seed: int) -> Arrays:
    """Return texts that repeat words of three to five letters, and the letters that come next."""
    rng = torch.Generator().manual_seed(seed)
    texts = torch.zeros(count, 17, dtype=torch.int64)
    for row in texts:
        period = int(torch.randint(3, 6, (1,), generator=rng))
        word = torch.randint(0, 12, (period,), generator=rng)
        row[:] = word.repeat(6)[:17]
    return [texts[:, :-1].contiguous(), texts[:, 1:].contiguous()]


def scribe() -> Subject:
    return Subject(fit(Scribe(), letters(3000, 1), 14, 1e-2, by_step), letters(384, 2))


# --- convolutions over words, and several answers -------------------------------------------------------------------


class Kim(nn.Module):
    """Convolutions of three widths over words, their largest results, and a yes or no for each of four topics."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(40, 16, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, width) for width in (2, 3, 4))
        self.drop = nn.Dropout(0.2)
        self.topics = nn.Linear(48, 4)

    def forward(self, words: Tensor) -> Tensor:
        x = self.emb(words).transpose(1, 2)
        found = torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)
        return self.topics(self.drop(found))


def notices(count: int, seed: int) -> Arrays:
    """Return texts of 20 words, and whether each of four phrases of two or three words is in them."""
    rng = torch.Generator().manual_seed(seed)
    phrases = [[3, 17], [9, 4, 22], [30, 8], [17, 3, 12]]
    words = torch.randint(1, 40, (count, 20), generator=rng)
    words[:, 17:] *= (torch.rand(count, 1, generator=rng) < 0.5).long()
    for row in words:
        spots = torch.randperm(4, generator=rng)
        for spot, phrase in zip(spots.tolist(), phrases, strict=True):
            if torch.rand(1, generator=rng) < 0.4:
                row[4 * spot : 4 * spot + len(phrase)] = torch.tensor(phrase)
            elif torch.rand(1, generator=rng) < 0.5:
                row[4 * spot : 4 * spot + len(phrase)] = torch.tensor(phrase[::-1])
    texts = words.tolist()
    topics = [[any(text[k : k + len(phrase)] == phrase for k in range(20)) for phrase in phrases] for text in texts]
    return [words, torch.tensor(topics).float()]


def kim() -> Subject:
    return Subject(fit(Kim(), notices(2500, 1), 14, 1.5e-2, F.binary_cross_entropy_with_logits), notices(512, 2))


# --- excitation of channels -----------------------------------------------------------------------------------------


class Squeeze(nn.Module):
    """Weighs channels by what is in all of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(weights)


class Gate(nn.Module):
    """Three convolutions with hard swish and weighed channels."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.se1 = Squeeze(16)
        self.c2, self.n2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.se2 = Squeeze(32)
        self.c3, self.n3 = nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.act = nn.Hardswish()
        self.fc = nn.Linear(32 * 4, 48)
        self.total = nn.Linear(48, 10)

    def forward(self, picture: Tensor) -> Tensor:
        x = self.se1(self.act(self.n1(self.c1(picture))))
        x = self.se2(self.act(self.n2(self.c2(x))))
        x = F.max_pool2d(self.act(self.n3(self.c3(x))), 2)
        return self.total(self.act(self.fc(x.flatten(1))))


def gate() -> Subject:
    images, classes = digits()
    images = (images - images[:1285].mean()) / images[:1285].std()
    return Subject(fit(Gate(), [images[:1285], classes[:1285]], 12, 1e-2), [images[1285:], classes[1285:]])


MAKERS: dict[str, Callable[[], Subject]] = {
    "vit": vit,
    "unet": unet,
    "tracker": tracker,
    "pulse": pulse,
    "valve": valve,
    "face": face,
    "shuffle": shuffle,
    "scribe": scribe,
    "kim": kim,
    "gate": gate,
}


@lru_cache(maxsize=len(MAKERS))
def build(name: str) -> Subject:
    """Return a trained network and its data, the same in every process."""
    state = torch.get_rng_state()
    torch.manual_seed(13)
    try:
        return MAKERS[name]()
    finally:
        torch.set_rng_state(state)
