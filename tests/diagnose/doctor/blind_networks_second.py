"""More networks of many kinds, by somebody who did not know the doctor, and what they are trained on.

Those at the end were trained elsewhere; their weights and data are assets beside the repository.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parents[3].parent / "shared" / "assets"
"""The folder of assets."""

Data = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and answers to train on, and others."""


def cbr(i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, a batch norm and a ReLU."""
    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU())


class ResBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Any:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Res(nn.Module):
    def __init__(self, c: int = 24) -> None:
        super().__init__()
        self.stem = cbr(1, c)
        self.blocks = nn.Sequential(*[ResBlock(c) for _ in range(3)])
        self.fc = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class SelfAttention(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.scale = (d // h) ** -0.5

    def forward(self, x: Tensor) -> Any:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(n, t, d))


class ViTBlock(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(d), SelfAttention(d, h), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, d: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, d, 2, 2)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.randn(1, 17, d) * 0.5)
        self.blocks = nn.Sequential(*[ViTBlock(d, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class Recurrent(nn.Module):
    def __init__(self, kind: str = "GRU", features: int = 8, hidden: int = 48, outputs: int = 10) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(features, hidden, batch_first=True)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.drop(self.rnn(x[:, 0])[0][:, -1]))


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        up, further = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)
        self.dec = nn.Sequential(up, nn.ReLU(), further, nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Any:
        return self.dec(self.enc(x))


class Tied(nn.Module):
    """An autoencoder trained with one matrix, which the decoder has transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Any:
        return self.decoder(torch.relu(self.encoder(x)))


class UNet(nn.Module):
    swap = False

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2, self.mid = cbr(1, 16), cbr(16, 32), cbr(32, 32)
        self.up = nn.Upsample(scale_factor=2)
        self.red, self.dec, self.out = cbr(32, 16, 1), cbr(32, 16), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Any:
        a = self.e1(x)
        b = self.red(self.up(self.mid(self.e2(F.max_pool2d(a, 2)))))
        return self.out(self.dec(torch.cat([b, a] if self.swap else [a, b], 1)))


class Detector(nn.Module):
    pixels = 0.0

    def __init__(self) -> None:
        super().__init__()
        layers = cbr(1, 16), cbr(16, 32, stride=2), cbr(32, 48, stride=2)
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 25, 64), nn.ReLU())
        self.cls, self.box = nn.Linear(64, 10), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.body(x)
        box = self.box(x).sigmoid()
        return torch.cat([self.cls(x), box * self.pixels if self.pixels else box], 1)


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(cbr(1, 16), cbr(16, 32, stride=2), cbr(32, 32), nn.Flatten())
        self.emb = nn.Linear(32 * 16, 16)

    def forward(self, x: Tensor) -> Any:
        return F.normalize(self.emb(self.body(x)), dim=1)


class NormedMlp(nn.Module):
    def __init__(self, i: int, o: int, h: int = 48) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2, self.bn2 = nn.Linear(i, h), nn.BatchNorm1d(h), nn.Linear(h, h), nn.BatchNorm1d(h)
        self.fc3 = nn.Linear(h, o)

    def forward(self, x: Tensor) -> Any:
        return self.fc3(F.relu(self.bn2(self.fc2(F.relu(self.bn1(self.fc1(x)))))))


class Plain(nn.Sequential):
    def __init__(self, i: int, o: int, h: int = 64) -> None:
        layers = nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o)
        super().__init__(*layers)


class Dilated(nn.Module):
    def __init__(self, c: int, d: int) -> None:
        super().__init__()
        self.d = d
        self.c1, self.c2 = nn.Conv1d(c, c, 3, dilation=d), nn.Conv1d(c, c, 1)

    def forward(self, x: Tensor) -> Any:
        return x + self.c2(F.relu(self.c1(F.pad(x, (2 * self.d, 0)))))


class TCN(nn.Module):
    def __init__(self, c: int = 24) -> None:
        super().__init__()
        self.inp = nn.Conv1d(1, c, 1)
        self.blocks = nn.Sequential(*[Dilated(c, d) for d in (1, 2, 4, 8)])
        self.out = nn.Linear(c, 4)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.blocks(self.inp(x))[:, :, -1])


class DSCNN(nn.Module):
    def __init__(self, outputs: int = 4, c: int = 32) -> None:
        super().__init__()
        self.stem = cbr(1, c, 5, 2)
        self.body = nn.Sequential(*[nn.Sequential(cbr(c, c, 3, 1 + (i == 1), c), cbr(c, c, 1)) for i in range(3)])
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(c, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.drop(self.body(self.stem(x[:, None])).mean((2, 3))))


class Recommender(nn.Module):
    def __init__(self, users: int = 300, items: int = 64, d: int = 24) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> Any:
        return self.mlp(torch.cat([self.user(x[:, 0]), self.item(x[:, 1])], 1))


class MixerBlock(nn.Module):
    def __init__(self, t: int, d: int) -> None:
        super().__init__()
        self.n1, self.t1, self.t2 = nn.LayerNorm(d), nn.Linear(t, 32), nn.Linear(32, t)
        self.n2, self.c1, self.c2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Any:
        x = x + self.t2(F.gelu(self.t1(self.n1(x).transpose(1, 2)))).transpose(1, 2)
        return x + self.c2(F.gelu(self.c1(self.n2(x))))


class Mixer(nn.Module):
    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, d, 2, 2)
        self.blocks = nn.Sequential(*[MixerBlock(16, d) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


class SEBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.exp, self.b1 = nn.Conv2d(c, 2 * c, 1, bias=False), nn.BatchNorm2d(2 * c)
        self.dw, self.b2 = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c, bias=False), nn.BatchNorm2d(2 * c)
        self.s1, self.s2 = nn.Conv2d(2 * c, 8, 1), nn.Conv2d(8, 2 * c, 1)
        self.pw, self.b3 = nn.Conv2d(2 * c, c, 1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Any:
        h = F.hardswish(self.b2(self.dw(F.hardswish(self.b1(self.exp(x))))))
        h = h * F.hardsigmoid(self.s2(F.relu(self.s1(h.mean((2, 3), keepdim=True)))))
        return x + self.b3(self.pw(h))


class SE(nn.Module):
    def __init__(self, c: int = 20) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.Hardswish())
        self.blocks = nn.Sequential(*[SEBlock(c) for _ in range(3)])
        self.fc = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Dense(nn.Module):
    def __init__(self, g: int = 12) -> None:
        super().__init__()
        self.stem = cbr(1, g)
        self.layers = nn.ModuleList([cbr(g * (i + 1), g) for i in range(4)])
        self.fc = nn.Linear(g * 5, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.fc(x.mean((2, 3)))


class NeXtBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(c, c, 5, padding=2, groups=c), nn.LayerNorm(c)
        self.f1, self.f2 = nn.Linear(c, 3 * c), nn.Linear(3 * c, c)

    def forward(self, x: Tensor) -> Any:
        return x + self.f2(F.gelu(self.f1(self.norm(self.dw(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)


class NeXt(nn.Module):
    def __init__(self, c: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, c, 2, 2)
        self.blocks = nn.Sequential(*[NeXtBlock(c) for _ in range(3)])
        self.head = nn.Linear(c, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.f1, self.f2 = nn.Linear(96, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.c2(x)), 2)
        return self.f2(torch.tanh(self.f1(x.flatten(1))))


class VGG(nn.Sequential):
    def __init__(self) -> None:
        first = nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        super().__init__(*first, *second, nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))


# What they are trained on.
def divided(x: Tensor, y: Tensor, count: int) -> Data:
    """The first ``count`` samples of a fixed order, and the others."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:count], y[:count], x[count:], y[count:]


@functools.cache
def digits() -> Data:
    """Digits, bright on dark, from 0 to 1."""
    found = datasets.load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return divided(x, torch.tensor(found.target), 1300)


def normalized_digits() -> Data:
    """Digits with mean 0 and deviation 1."""
    a, b, c, d = digits()
    return (a - 0.305) / 0.376, b, (c - 0.305) / 0.376, d


def images_again() -> Data:
    """Digits that are to be given back."""
    a, _, c, _ = digits()
    return a, a, c, c


def rows_again() -> Data:
    """The same in rows."""
    a, _, c, _ = digits()
    a, c = a.flatten(1), c.flatten(1)
    return a, a, c, c


def table(name: str, scale: bool = True) -> Data:
    """A table of scikit-learn's, standardized or as it is."""
    rest = {"scaled": False} if name == "diabetes" else {}
    found = getattr(datasets, f"load_{name}")(**rest)
    x, y = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    a, b, c, d = divided(x, y, int(len(x) * 0.7))
    if scale:
        mean, std = a.mean(0), a.std(0)
        a, c = (a - mean) / std, (c - mean) / std
    if name == "diabetes":
        b, d = (((t.float() - 152) / 77)[:, None] for t in (b, d))
    return a, b, c, d


def segments() -> Data:
    """Pictures of two digits, and which pixels are of small ones and which of large ones."""

    def made(x: Tensor, y: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        image, label = torch.rand(count, 1, 16, 16, generator=g) * 0.1, torch.zeros(count, 16, 16, dtype=torch.long)
        for i in range(count):
            for left in (0, 8):
                j, top = (int(torch.randint(n, (1,), generator=g)) for n in (len(x), 9))
                image[i, 0, top : top + 8, left : left + 8] += x[j, 0]
                label[i, top : top + 8, left : left + 8][x[j, 0] > 0.3] = 1 + int(y[j] > 4)
        return image, label

    a, b, c, d = digits()
    return (*made(a, b, 2000, 1), *made(c, d, 400, 2))


def boxes() -> Data:
    """Pictures with a digit somewhere: which, and where."""

    def made(x: Tensor, y: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        image, label = torch.rand(count, 1, 20, 20, generator=g) * 0.1, torch.zeros(count, 3)
        for i in range(count):
            j = int(torch.randint(len(x), (1,), generator=g))
            top, left = (int(v) for v in torch.randint(13, (2,), generator=g))
            image[i, 0, top : top + 8, left : left + 8] += x[j, 0]
            label[i] = torch.tensor([float(y[j]), (left + 4) / 20, (top + 4) / 20])
        return image, label

    a, b, c, d = digits()
    return (*made(a, b, 4000, 1), *made(c, d, 500, 2))


def ratings() -> Data:
    """Which pixels of which digits are bright: users and items."""
    a, _, c, _ = digits()
    liked = (torch.cat([a, c])[:300].flatten(1) > 0.5).long()
    user, item = (t.flatten() for t in torch.meshgrid(torch.arange(300), torch.arange(64), indexing="ij"))
    return divided(torch.stack([user, item], 1), liked.flatten(), 16000)


# Assets beside the repository.
def loader(name: str) -> Any:
    """A module that reads an asset."""
    if str(ROOT / "loaders") not in sys.path:
        sys.path.append(str(ROOT / "loaders"))
    threads = torch.get_num_threads()
    try:
        return importlib.import_module(name)
    finally:
        torch.set_num_threads(threads)  # some choose one


@functools.cache
def clothes() -> Data:
    """Fashion-MNIST, normalized."""
    common = loader("common")
    (a, b), (c, d) = common.fashion_mnist("train"), common.fashion_mnist("test")
    return a[:4000].clone(), b[:4000].clone(), c[:1500].clone(), d[:1500].clone()


@functools.cache
def photographs() -> Data:
    """Half of 500 ImageNet images, and the other half."""
    x, y = loader("common").imagenet_500(resize=216, crop=192, step=1)
    return x[::2], y[::2], x[1::2], y[1::2]


@functools.cache
def keywords() -> Data:
    """MFCC of 1000 clips."""
    kwt1 = loader("kwt1")
    x, y = kwt1.data(kwt1.load()[0])
    return divided(x, y, 400)


def few_keywords() -> Data:
    """Four keywords by twenty coefficients, normalized."""
    x, y = (torch.cat(pair) for pair in (keywords()[::2], keywords()[1::2]))
    kept = [0, 2, 6, 10]
    chosen = torch.isin(y, torch.tensor(kept))
    x, y = x[chosen], torch.tensor([kept.index(int(v)) for v in y[chosen]])
    x, n = (x - x.mean((0, 1))) / x.std((0, 1)), int(len(x) * 0.75)
    return x[:n, :, :20].contiguous(), y[:n], x[n:, :, :20].contiguous(), y[n:]


def keyword_images() -> Data:
    """The same with a channel."""
    a, b, c, d = few_keywords()
    return a[:, None], b, c[:, None], d


def loudness() -> Data:
    """The loudness of 24 frames, and of the next four."""
    s = torch.cat([keywords()[0], keywords()[2]])[:, :, 0]
    s = F.conv1d(((s - s.mean()) / s.std())[:, None], torch.ones(1, 1, 5) / 5)[:, 0]
    w = s.unfold(1, 28, 11).reshape(-1, 28)
    w = w[torch.randperm(len(w), generator=torch.Generator().manual_seed(0))]
    x, y = w[:, None, :24].contiguous(), w[:, 24:].contiguous()
    return x[:4000], y[:4000], x[4000:5000], y[4000:5000]


@functools.cache
def sentences() -> tuple[Data, int]:
    """Sentences of SST-2, padded with 0, and the size of the vocabulary."""
    sst2 = loader("sst2")
    a, b, vocabulary = sst2.read("train")
    c, d, _ = sst2.read("test", vocabulary)
    return (a, b, c, d), len(vocabulary) + 2


def ready(name: str) -> Any:
    """A network that was trained elsewhere."""
    from safetensors.torch import load_file

    if name == "mob":
        return loader("mobilenetv1_025").load()
    if name == "kwt":
        return loader("kwt1").load()[1]
    if name in ("cnn", "dw"):
        net, file = loader("fashion_mnist").net(name), f"fashion_mnist/{name}.safetensors"
    else:
        sst2, words = loader("sst2"), sentences()[1]
        net = sst2.BiLSTM(words) if name == "slstm" else sst2.Transformer(words)
        file = f"sst2/{'lstm' if name == 'slstm' else 'transformer'}.safetensors"
    net.load_state_dict(load_file(ROOT / file))
    return net


# Training.
def where_and_what(output: Tensor, label: Tensor) -> Tensor:
    """The loss of a detector."""
    return F.cross_entropy(output[:, :10], label[:, 0].long()) + 20 * F.mse_loss(output[:, 10:], label[:, 1:])


def apart(output: Tensor, y: Tensor) -> Tensor:
    """The loss of features: those of a class are to be alike."""
    own = torch.eye(len(output))
    scores = output @ output.T / 0.2 - 1e9 * own
    same = (y[:, None] == y) & ~own.bool()
    return -(scores.log_softmax(1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


@dataclass(frozen=True)
class Task:
    """A network, its data and its training; no epochs where it has been trained."""

    make: Callable[[], Any]
    data: Callable[[], Data]
    epochs: int = 0
    loss: Callable[..., Tensor] = F.cross_entropy
    rate: float = 3e-3
    size: int = 64


def train(net: Any, data: Data, task: Task) -> None:
    """Train by AdamW and one cycle."""
    torch.manual_seed(1)
    x, y, _, _ = data
    optimizer, count = torch.optim.AdamW(net.parameters(), task.rate), len(x) // task.size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, total_steps=task.epochs * count)
    net.train()
    for _ in range(task.epochs):
        for b in torch.randperm(len(x)).split(task.size)[:count]:
            optimizer.zero_grad()
            task.loss(net(x[b]), y[b]).backward()
            optimizer.step()
            schedule.step()


def tied() -> Any:
    """The autoencoder of one matrix; ``first`` is what its decoder began with."""
    net, x = Tied(), rows_again()[0]
    optimizer = torch.optim.AdamW([*net.encoder.parameters(), net.decoder.bias], 3e-3)
    for _ in range(40):
        for b in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            hidden = torch.relu(net.encoder(x[b]))
            F.mse_loss(F.linear(hidden, net.encoder.weight.T, net.decoder.bias), x[b]).backward()
            optimizer.step()
    net.first = net.decoder.weight.detach().clone()  # type: ignore[assignment]
    net.decoder.weight.data = net.encoder.weight.data.T.clone()
    return net


TASKS = {
    "res": Task(Res, digits, 8),
    "vit": Task(ViT, digits, 40),
    "gru": Task(Recurrent, digits, 25),
    "lstm": Task(lambda: Recurrent("LSTM"), digits, 25),
    "ae": Task(AutoEncoder, images_again, 25, F.mse_loss),
    "tied": Task(tied, rows_again),
    "unet": Task(UNet, segments, 8),
    "det": Task(Detector, boxes, 8, where_and_what),
    "metric": Task(Embedder, digits, 12, apart),
    "bc": Task(lambda: NormedMlp(30, 2), lambda: table("breast_cancer"), 20),
    "wine": Task(lambda: Plain(13, 3), lambda: table("wine"), 40, size=16),
    "diab": Task(lambda: Plain(10, 1, 32), lambda: table("diabetes"), 8, F.mse_loss),
    "rec": Task(Recommender, ratings, 25, rate=5e-3, size=256),
    "mixer": Task(Mixer, digits, 25),
    "se": Task(SE, digits, 10),
    "dense": Task(Dense, digits, 10),
    "next": Task(NeXt, normalized_digits, 25),
    "tanh": Task(Tanh, digits, 25),
    "vgg": Task(VGG, digits, 15),
    "tcn": Task(TCN, loudness, 10, F.mse_loss),
    "ds": Task(DSCNN, few_keywords, 40, size=32),
    "agru": Task(lambda: Recurrent("GRU", 20, outputs=4), keyword_images, 40, size=32),
    "cnn": Task(lambda: ready("cnn"), clothes),
    "dw": Task(lambda: ready("dw"), clothes),
    "mob": Task(lambda: ready("mob"), photographs),
    "kwt": Task(lambda: ready("kwt"), keywords),
    "slstm": Task(lambda: ready("slstm"), lambda: sentences()[0]),
    "str": Task(lambda: ready("str"), lambda: sentences()[0]),
}
ASSETS = ("tcn", "ds", "agru", "cnn", "dw", "mob", "kwt", "slstm", "str")
"""Networks, or networks on data, that are beside the repository."""


@functools.cache
def _trained(name: str) -> Any:
    torch.manual_seed(0)
    task = TASKS[name]
    net = task.make()
    if task.epochs:
        train(net, task.data(), task)
    return net.eval()


def trained(name: str) -> Any:
    """A copy of a trained network."""
    return copy.deepcopy(_trained(name))
