"""A small ResNet trained on Fashion-MNIST: residual adds and downsampling as ResNet18 has them."""

from __future__ import annotations

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


def fashion_resnet(root: Path) -> Task:
    """Trained here, the same in every run on one machine."""
    from common import fashion_mnist

    x, y = fashion_mnist("train")
    torch.manual_seed(SEED)
    net = resnet()
    contender = train.Contender(net, [{"params": list(net.parameters())}], lambda i, n: None, net.train, None)
    train.fit(contender, x, y, EPOCHS * (len(x) // train.BATCH), SEED, LR)
    held_out, labels = fashion_mnist("test")
    return Task("fashion-resnet", net.eval(), x[:CALIBRATION], held_out, labels)


def separate_relus(net: nn.Module) -> nn.Module:
    """The same network, parameters and all, with every ReLU used once."""
    other = resnet(separate=True)
    other.load_state_dict(net.state_dict())
    return other.eval()
