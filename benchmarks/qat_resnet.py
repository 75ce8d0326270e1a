"""Networks trained here on Fashion-MNIST: a small ResNet, with ResNet18's residual adds and downsampling, and a ViT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import qat_train as train
from assets import Task

EPOCHS, LR, SEED, CALIBRATION = 2, 5e-3, 0, 512


class Block(nn.Module):
    """He et al. 2016, figure 2, written as torchvision does: an in-place ReLU used twice, and ``+=``.

    ``separate``: a ReLU for each place, as torchao pt2e QAT needs it.
    """

    def __init__(self, i: int, o: int, stride: int, separate: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.relu2 = nn.ReLU(inplace=True) if separate else None
        self.downsample = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += identity
        out: Tensor = self.relu(y) if self.relu2 is None else self.relu2(y)
        return out


def resnet(separate: bool = False) -> nn.Sequential:
    """Four blocks, 16 to 64 channels, 28×28 grey images, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        *(Block(i, o, s, separate) for i, o, s in ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 64, 2))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Vit(nn.Module):
    """A vision transformer: 16 patches of 7×7 pixels, three layers of 64 channels, the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Conv2d(1, 64, 7, 7), nn.Parameter(torch.zeros(1, 16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(64), enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))
        return y


def trained_on_fashion(
    name: str, make: Callable[[], nn.Module], lr: float = LR, images: int = 60000, kept: Path | None = None
) -> Task:
    """Return a network trained here, the same in every run on one machine: two epochs of so many images.

    Its weights are kept in the file ``kept``, and read from there.
    """
    from common import fashion_mnist

    x, y = (t[:images] for t in fashion_mnist("train"))
    torch.manual_seed(SEED)
    net = make()
    if kept is not None and kept.exists():
        net.load_state_dict(torch.load(kept, weights_only=True))
    else:
        contender = train.Contender(net, [{"params": list(net.parameters())}], lambda i, n: None, net.train, None)
        train.fit(contender, x, y, EPOCHS * (len(x) // train.BATCH), SEED, lr)
        if kept is not None:
            torch.save(net.state_dict(), kept)
    held_out, labels = fashion_mnist("test")
    return Task(name, net.eval(), x[:CALIBRATION], held_out, labels)


def fashion_resnet(root: Path) -> Task:
    """Return the small ResNet."""
    return trained_on_fashion("fashion-resnet", resnet)


def separate_relus(net: nn.Module) -> nn.Module:
    """The same network, parameters and all, with every ReLU used once."""
    other = resnet(separate=True)
    other.load_state_dict(net.state_dict())
    return other.eval()
