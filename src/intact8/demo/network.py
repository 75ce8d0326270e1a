"""The network of the demonstration: small, and written as people write networks, without a thought of quantization.

It has depthwise separable layers, residual blocks that use one ReLU module twice, ReLU6, hard swish, batch norm and
dropout, and neither stubs nor quantization-aware modules.
"""

from __future__ import annotations

from torch import Tensor, nn


class Separable(nn.Module):
    """A depthwise 3×3 and a pointwise 1×1 convolution, each with batch norm and an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.depthwise_bn = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pointwise_bn = nn.BatchNorm2d(outputs)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H/stride, W/stride)."""
        x = self.activation(self.depthwise_bn(self.depthwise(x)))
        out: Tensor = self.activation(self.pointwise_bn(self.pointwise(x)))
        return out


class Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut; one ReLU module is used in both places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) to the same shape."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        out: Tensor = self.relu(y)
        return out


class DigitsNet(nn.Module):
    """A classifier of 16×16 digits with about 310 k parameters.

    Example:
        >>> import torch
        >>> DigitsNet().eval()(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.down1 = Separable(24, 64, 2, nn.ReLU6)
        self.block1 = Residual(64)
        self.down2 = Separable(64, 112, 2, nn.Hardswish)
        self.block2 = Residual(112)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(112, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, 1, 16, 16) float32 images in 0..1 to (N, 10) logits."""
        x = self.block1(self.down1(self.stem(x)))
        x = self.block2(self.down2(x))
        x = self.dropout(x.mean((2, 3)))
        out: Tensor = self.classifier(x)
        return out
