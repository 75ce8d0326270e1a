"""Small networks for planted_blind_third.py, trained in a second or two on data of scikit-learn or made up."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Trained:
    """A trained network with the data it was trained on and data held apart."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    held_inputs: Tensor
    held_targets: Tensor

    def fresh(self) -> nn.Module:
        """Return a copy of the network, to break."""
        return copy.deepcopy(self.model)


class Block(nn.Module):
    """Two convolutions with batch norm around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.norm1(self.conv1(x)))
        return self.relu2(self.norm2(self.conv2(y)) + self.shortcut(x))


class Residual(nn.Module):
    """A ResNet of three blocks."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.stem_relu = nn.ReLU()
        self.block1 = Block(16, 16, 1)
        self.block2 = Block(16, 32, 2)
        self.block3 = Block(32, 32, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_relu(self.stem_norm(self.stem(x)))
        return self.classifier(self.pool(self.block3(self.block2(self.block1(x)))).flatten(1))


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, 8, 1)
        self.relu = nn.ReLU()
        self.expand = nn.Conv2d(8, channels, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.sigmoid(self.expand(self.relu(self.reduce(self.pool(x)))))


class Separable(nn.Module):
    """A depthwise convolution, squeeze and excitation, and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.norm1 = nn.BatchNorm2d(inputs)
        self.act1 = nn.ReLU6()
        self.gate = Gate(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.act2 = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(self.act1(self.norm1(self.depthwise(x))))
        return self.act2(self.norm2(self.pointwise(x)))


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions, as in MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.stem_act = nn.ReLU6()
        self.stage1 = Separable(16, 32, 2)
        self.stage2 = Separable(32, 32, 1)
        self.stage3 = Separable(32, 48, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem_act(self.stem_norm(self.stem(x))))))
        return self.classifier(self.dropout(self.pool(x).flatten(1)))


class Attention(nn.Module):
    """Self-attention of several heads, its scores divided by the root of a head's width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, w = x.shape
        q, k, v = (m(x).reshape(n, t, self.heads, -1).transpose(1, 2) for m in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.project((weights @ v).transpose(1, 2).reshape(n, t, w))


class Encoder(nn.Module):
    """A transformer's encoder layer, norms first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    """A vision transformer whose tokens are patches of 2 × 2 pixels."""

    def __init__(self, massive: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.positions = nn.Parameter(torch.randn(1, 16, 32) * 0.1)
        self.layer1 = Encoder(32)
        self.layer2 = Encoder(32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)
        shift = torch.zeros(1, 1, 32)
        shift[..., 5] = massive
        self.register_buffer("shift", shift)
        self.massive = massive != 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        if self.massive:
            x = x + self.shift
        return self.head(self.norm(self.layer2(self.layer1(x))).mean(1))


class Tabular(nn.Module):
    """A multilayer perceptron with batch norm for tables of numbers."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, 64)
        self.norm1 = nn.BatchNorm1d(64)
        self.relu1 = nn.ReLU()
        self.fc2 = nn.Linear(64, 64)
        self.relu2 = nn.ReLU()
        self.fc3 = nn.Linear(64, 32)
        self.relu3 = nn.ReLU()
        self.out = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.relu3(self.fc3(self.relu2(self.fc2(self.relu1(self.norm1(self.fc1(x))))))))


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Words(nn.Module):
    """A GRU over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 24)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(x))[0].mean(1))


class Signals(nn.Module):
    """One-dimensional convolutions over waveforms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 7, 2, 3, bias=False)
        self.norm1 = nn.BatchNorm1d(16)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv1d(16, 32, 5, 2, 2, bias=False)
        self.norm2 = nn.BatchNorm1d(32)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv1d(32, 32, 3, 1, 1, bias=False)
        self.norm3 = nn.BatchNorm1d(32)
        self.relu3 = nn.ReLU()
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.relu2(self.norm2(self.conv2(x)))
        return self.head(self.relu3(self.norm3(self.conv3(x))).mean(-1))


class Energies(nn.Module):
    """A filter bank: convolutions whose squares are averaged, and a classifier of the energies."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv1d(1, 24, 9, 1, 4)
        self.pool = nn.AvgPool1d(16)
        self.fc1 = nn.Linear(96, 32)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(self.pool(self.filters(x).square()).flatten(1))))


class Autoencoder(nn.Module):
    """Convolutions down to few channels, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, 16, 3, 2, 1)
        self.relu1 = nn.ReLU()
        self.down2 = nn.Conv2d(16, 24, 3, 2, 1)
        self.relu2 = nn.ReLU()
        self.code = nn.Conv2d(24, 12, 1)
        self.up1 = nn.ConvTranspose2d(12, 24, 2, 2)
        self.relu3 = nn.ReLU()
        self.up2 = nn.ConvTranspose2d(24, 16, 2, 2)
        self.relu4 = nn.ReLU()
        self.out = nn.Conv2d(16, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.code(self.relu2(self.down2(self.relu1(self.down1(x)))))
        return self.out(self.relu4(self.up2(self.relu3(self.up1(x)))))


class Segmenter(nn.Module):
    """A U-Net of one level: which pixels belong to ink that is darker than its surroundings."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.down = nn.MaxPool2d(2)
        self.enc2 = nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.dec = nn.Sequential(nn.Conv2d(32, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc1(x)
        b = self.up(self.enc2(self.down(a)))
        return self.out(self.dec(torch.cat([a, b], 1)))


class Branches(nn.Module):
    """Three branches side by side, as in Inception, joined by a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, 1, 1)
        self.relu = nn.ReLU()
        self.one = nn.Conv2d(16, 12, 1)
        self.relu_one = nn.ReLU()
        self.three = nn.Conv2d(16, 12, 3, 1, 1)
        self.relu_three = nn.ReLU()
        self.five = nn.Conv2d(16, 12, 5, 1, 2)
        self.relu_five = nn.ReLU()
        self.mix = nn.Conv2d(36, 32, 3, 2, 1)
        self.relu_mix = nn.ReLU()
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        branches = [self.relu_one(self.one(x)), self.relu_three(self.three(x)), self.relu_five(self.five(x))]
        return self.head(self.relu_mix(self.mix(torch.cat(branches, 1))).flatten(1))


class Experts(nn.Module):
    """Features weighted by positive gates exp(g), divided by their sum: a softmax that somebody wrote by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(64, 96)
        self.relu = nn.ReLU()
        self.rates = nn.Linear(64, 96)
        self.fc = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.features(x)) * self.rates(x).exp())


Loss = Callable[[Tensor, Tensor], Tensor]


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epochs: int,
    rate: float = 2e-3,
    loss: Loss = functional.cross_entropy,
    decay: float = 0.0,
) -> nn.Module:
    """Train with Adam and return the network in evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(64):
            if len(index) < 8:
                continue
            optimizer.zero_grad()
            loss(model(x[index]), y[index]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """Return digits as images of 8 × 8 numbers from 0 to 16, in an order of chance, and their classes."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order], torch.tensor(labels)[order]


def pixels(raw: Tensor) -> Tensor:
    """Normalize numbers from 0 to 16 as training did."""
    return (raw - 4.88) / 6.02


def divide(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divide into the first ``count`` samples and the others."""
    return x[:count], y[:count], x[count:], y[count:]


def of_digits(
    seed: int,
    network: Callable[[], nn.Module],
    epochs: int,
    rate: float = 2e-3,
    shown: Callable[[Tensor], Tensor] = lambda x: x,
) -> Trained:
    """Train a network on the first thousand digits, in the form in which they are ``shown`` to it."""
    torch.manual_seed(seed)
    raw, labels = digits()
    x, y, held, answers = divide(shown(pixels(raw)), labels, 1000)
    return Trained(fit(network(), x, y, epochs, rate), x, y, held, answers)


@functools.cache
def residual() -> Trained:
    return of_digits(11, Residual, 8)


@functools.cache
def colour() -> Trained:
    """Digits in warm ink on a bluish ground, three channels between 0 and 1, normalized by their means."""
    torch.manual_seed(12)
    raw, labels = digits()
    ink = raw / 16
    n = len(raw)
    warm = torch.tensor([0.95, 0.45, 0.1]) + 0.05 * torch.randn(n, 3)
    ground = torch.tensor([0.1, 0.2, 0.75]) + 0.05 * torch.randn(n, 3)
    image = ink * warm[:, :, None, None] + (1 - ink) * ground[:, :, None, None]
    x = (image.clamp(0, 1) - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]
    x, y, held, answers = divide(x, labels, 1000)
    return Trained(fit(Residual(3), x, y, 8), x, y, held, answers)


@functools.cache
def mobile() -> Trained:
    return of_digits(13, Mobile, 14, 4e-3)


@functools.cache
def vit() -> Trained:
    return of_digits(14, Vit, 40, 3e-3)


@functools.cache
def massive() -> Trained:
    return of_digits(14, lambda: Vit(40.0), 40, 3e-3)


@functools.cache
def tabular() -> Trained:
    torch.manual_seed(15)
    table, labels = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(labels))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(labels)[order]
    x = (x - x.mean(0)) / x.std(0)
    x, y, held, answers = divide(x, y, 300)
    return Trained(fit(Tabular(30, 2), x, y, 20), x, y, held, answers)


@functools.cache
def perceptron() -> Trained:
    torch.manual_seed(16)
    raw, labels = digits()
    x, y, held, answers = divide(raw.flatten(1) / 16, labels, 1000)
    return Trained(fit(Tabular(64, 10), x, y, 15), x, y, held, answers)


@functools.cache
def rows() -> Trained:
    return of_digits(17, Rows, 20, 5e-3, shown=lambda x: x[:, 0])


@functools.cache
def words() -> Trained:
    """Sentences of 12 words of 40; the topic is the one of four that most words belong to."""
    torch.manual_seed(18)
    topic = torch.randint(0, 4, (1800,))
    own = topic[:, None] * 10 + torch.randint(0, 10, (1800, 12))
    x = torch.where(torch.rand(1800, 12) < 0.5, own, torch.randint(0, 40, (1800, 12)))
    x, y, held, answers = divide(x, topic, 1000)
    return Trained(fit(Words(), x, y, 12, 5e-3), x, y, held, answers)


@functools.cache
def waves() -> tuple[Tensor, Tensor]:
    """Return sines, squares, sawtooths and chirps of 64 samples with noise, and which each is."""
    generator = torch.Generator().manual_seed(19)
    n = 1800
    kind = torch.randint(0, 4, (n,), generator=generator)
    t = torch.arange(64) / 64
    rate = 2 + 4 * torch.rand(n, 1, generator=generator)
    phase = (rate * t + torch.rand(n, 1, generator=generator)) % 1
    sine = (2 * torch.pi * phase).sin()
    chirp = (2 * torch.pi * (rate * t * (0.3 + 1.4 * t))).sin()
    each = torch.stack([sine, sine.sign(), 2 * phase - 1, chirp], 1)
    wave = each[torch.arange(n), kind] * (0.6 + 0.8 * torch.rand(n, 1, generator=generator))
    return (wave + 0.1 * torch.randn(n, 64, generator=generator))[:, None], kind


@functools.cache
def signals() -> Trained:
    torch.manual_seed(20)
    x, y, held, answers = divide(*waves(), 1000)
    return Trained(fit(Signals(), x, y, 10, 4e-3), x, y, held, answers)


@functools.cache
def energies() -> Trained:
    torch.manual_seed(21)
    x, y, held, answers = divide(*waves(), 1000)
    return Trained(fit(Energies(), x, y, 25, 5e-3), x, y, held, answers)


@functools.cache
def autoencoder() -> Trained:
    torch.manual_seed(22)
    raw, _ = digits()
    x, y, held, answers = divide(raw / 16, raw / 16, 1000)
    return Trained(fit(Autoencoder(), x, y, 25, 5e-3, functional.mse_loss), x, y, held, answers)


@functools.cache
def segmenter() -> Trained:
    """Every pixel is ground, the edge of ink, or ink."""
    torch.manual_seed(23)
    raw, _ = digits()
    ink = raw[:, 0] > 8
    near = functional.max_pool2d(raw, 3, 1, 1)[:, 0] > 8
    target = torch.where(ink, 2, torch.where(near, 1, 0))
    noisy = raw / 16 * (0.7 + 0.3 * torch.rand(len(raw), 1, 1, 1)) + 0.05 * torch.randn(raw.shape)
    x, y, held, answers = divide(noisy, target, 1000)
    return Trained(fit(Segmenter(), x, y, 10, 4e-3), x, y, held, answers)


@functools.cache
def branches() -> Trained:
    return of_digits(24, Branches, 8)


@functools.cache
def experts() -> Trained:
    return of_digits(25, Experts, 15, shown=lambda x: x.flatten(1))
