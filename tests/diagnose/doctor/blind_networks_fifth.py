"""Eleven networks with the data of their users, five of them with real weights, for planted_blind_fifth.py."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_fourth import Arrays, Subject, accuracy, digits, explained, fit, mse, split
from torch import Tensor, nn


def loader(name: str) -> Any:
    """Return a loader of the folder with real weights, which must be importable."""
    return importlib.import_module(name)


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution without bias and its batch norm."""
    return [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Basic(nn.Module):
    """Two convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride)
        self.conv2, self.bn2 = conv(outputs, outputs)
        changes = stride > 1 or inputs != outputs
        self.down = nn.Sequential(*conv(inputs, outputs, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


class DigitResNet(nn.Module):
    """A stem, four blocks, mean, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(1, 16)
        self.layer1 = nn.Sequential(Basic(16, 16), Basic(16, 16))
        self.layer2 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class Gate(nn.Module):
    """Squeeze and excite."""

    def __init__(self, channels: int, act: Callable[[Tensor], Tensor] = torch.sigmoid) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return x * self.act(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """Expand, depthwise, gate, project; a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        wide = 4 * inputs
        self.expand = nn.Sequential(*conv(inputs, wide, 1), nn.SiLU())
        self.depthwise = nn.Sequential(*conv(wide, wide, 3, stride, wide), nn.SiLU())
        self.gate = Gate(wide)
        self.project = nn.Sequential(*conv(wide, outputs, 1))
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.gate(self.depthwise(self.expand(x))))
        return x + y if self.same else y


class EfficientNet(nn.Module):
    """Inverted residuals with SiLU and gates for images of 14 by 14."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv(1, 16), nn.SiLU())
        self.blocks = nn.Sequential(
            MBConv(16, 16), MBConv(16, 24, 2), MBConv(24, 24), MBConv(24, 32, 2), MBConv(32, 32)
        )
        self.top = nn.Sequential(*conv(32, 96, 1), nn.SiLU())
        self.classifier = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.top(self.blocks(self.stem(x))).mean((2, 3)))


class Attention(nn.Module):
    """Attention of several heads; ``axis`` is the axis of the softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.axis = heads, -1
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(self.axis)
        return self.out((self.drop(scores) @ v).transpose(1, 2).reshape(n, t, width))


class Layer(nn.Module):
    """Attention and a perceptron, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.drop(F.gelu(self.fc1(self.norm2(x)))))


class DigitViT(nn.Module):
    """Sixteen patches of 2 by 2 and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 2, 2)
        self.cls = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
        self.pos = nn.Parameter(torch.randn(1, 17, 32) * 0.1)
        self.layers = nn.Sequential(*[Layer(32, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.layers(x))[:, 0])


class Machine(nn.Module):
    """Four accelerometers' worth of samples to the state of a machine."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 32, batch_first=True)
        self.hidden, self.head = nn.Linear(32, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.gru(x)[0][:, -1])))


class Price(nn.Module):
    """A perceptron that forecasts one number of ten columns."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.out = (
            nn.Linear(10, 48),
            nn.Linear(48, 48),
            nn.Linear(48, 24),
            nn.Linear(24, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc1(x))
        return self.out(torch.relu(self.fc3(torch.relu(self.fc2(x)))))


class Fire(nn.Module):
    """SqueezeNet's block: squeeze, and two expansions side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1, self.expand3 = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)
        self.turned = False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        a, b = torch.relu(self.expand1(x)), torch.relu(self.expand3(x))
        return torch.cat([b, a] if self.turned else [a, b], 1)


class SqueezeNet(nn.Module):
    """Without norms, branches joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.fire1, self.fire2, self.fire3 = Fire(24, 12, 16), Fire(32, 12, 24), Fire(48, 16, 32)
        self.head = nn.Conv2d(64, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.fire1(torch.relu(self.stem(x))), 2)
        return self.head(self.fire3(self.fire2(x))).mean((2, 3))


# --- data -------------------------------------------------------------------------------------------------------------


@functools.cache
def standardized_digits() -> Arrays:
    """Return the digits of scikit-learn with mean 0 and deviation 1."""
    x, y = digits()
    return [(x - 0.3053) / 0.3760, y]


@functools.cache
def small_clothes(kind: str, count: int) -> Arrays:
    """Return the first images of Fashion-MNIST, averaged to 14 by 14."""
    x, y = loader("common").fashion_mnist(kind)
    return [F.avg_pool2d(x[:count], 2), y[:count]]


@functools.cache
def vibrations(count: int, seed: int) -> Arrays:
    """Return 40 steps of four axes, in g, and one of five states: frequency, and which axes move together."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, count)
    time = np.arange(40)
    frequency = np.array([0.15, 0.3, 0.3, 0.5, 0.5])[labels] * rng.uniform(0.85, 1.15, count)
    lag = np.array([0.0, 0.0, np.pi, 0.8, 2.4])[labels]
    phase = rng.uniform(0, 2 * np.pi, count)
    angle = 2 * np.pi * frequency[:, None] * time / 2 + phase[:, None]
    axes = [np.sin(angle), np.sin(angle + lag[:, None]), 0.5 * np.cos(angle), 0.3 * np.sin(2 * angle)]
    x = np.stack(axes, -1) * rng.lognormal(0, 0.3, (count, 1, 1)) + rng.normal(0, 0.45, (count, 40, 4))
    return [torch.tensor(x, dtype=torch.float32), torch.tensor(labels)]


@functools.cache
def houses(count: int, seed: int) -> Arrays:
    """Return ten standardized columns and a standardized price, Friedman's function with noise."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(0, 1, (count, 10))
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    y = (y - 14.4) / 4.9 + rng.normal(0, 0.1, count)
    x = (u - 0.5) / 0.29
    return [torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)]


# --- networks ---------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, train: Arrays, held: Arrays, epochs: int, rate: float = 4e-3) -> Subject:
    """Return a classifier, trained."""
    return Subject(fit(model, train, F.cross_entropy, epochs, rate), held, accuracy)


def mobile() -> Subject:
    """MobileNetV1 x0.25 and every other of 500 images of ImageNet."""
    return Subject(loader("mobilenetv1_025").load(), list(loader("common").imagenet_500(step=2)), accuracy)


def fashion() -> Subject:
    """The trained depthwise network and 1500 images of Fashion-MNIST."""
    from safetensors.torch import load_file

    model = loader("fashion_mnist").net("dw")
    model.load_state_dict(load_file(loader("common").ROOT + "/fashion_mnist/dw.safetensors"))
    return Subject(model.eval(), [part[:1500] for part in loader("common").fashion_mnist("test")], accuracy)


def speech() -> Subject:
    """The keyword transformer and 500 clips, of which the front end has made coefficients."""
    kwt = loader("kwt1")
    front, model = kwt.load()
    x, y = kwt.data(front)
    return Subject(model, [x[::2].contiguous(), y[::2].contiguous()], accuracy)


def sentiment(kind: str) -> Subject:
    """A network that tells friendly sentences from others, and 1000 sentences."""
    from safetensors.torch import load_file

    sst2 = loader("sst2")
    _, _, vocabulary = sst2.read("train")
    x, y, _ = sst2.read("test", vocabulary)
    model = getattr(sst2, kind)(len(vocabulary) + 2)
    name = {"BiLSTM": "lstm", "Transformer": "transformer"}[kind]
    model.load_state_dict(load_file(f"{loader('common').ROOT}/sst2/{name}.safetensors"))
    return Subject(model.eval(), [x[:1000], y[:1000]], accuracy)


def make(name: str) -> Subject:
    """Return a network by its name, trained from the same seed every time."""
    torch.manual_seed(0)
    if name == "resnet":
        return trained(DigitResNet(), *split(standardized_digits(), 1000), 8)
    if name == "vit":
        return trained(DigitViT(), *split(standardized_digits(), 1000), 25)
    if name == "squeeze":
        return trained(SqueezeNet(), *split(standardized_digits(), 1000), 15)
    if name == "efficient":
        return trained(EfficientNet(), small_clothes("train", 4000), small_clothes("test", 1000), 6)
    if name == "machine":
        return trained(Machine(), vibrations(1500, 0), vibrations(800, 1), 12)
    if name == "price":
        return Subject(fit(Price(), houses(2000, 0), mse, 40, 4e-3), houses(1000, 1), explained)
    return {"mobile": mobile, "fashion": fashion, "speech": speech}[name]() if name in REAL[:3] else sentiment(name)


REAL = ("mobile", "fashion", "speech", "BiLSTM", "Transformer")
"""Networks whose weights are real, and not published with the tests; so are the images of ``efficient``."""


@functools.cache
def build(name: str) -> Subject:
    """Return a network and its data; whoever changes them copies them first."""
    return make(name)
