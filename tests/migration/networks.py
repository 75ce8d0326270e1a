"""Networks that torch.ao quantizes in these tests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

ao = pytest.importorskip("torch.ao.quantization")
from torch.ao.nn.quantized import FloatFunctional  # noqa: E402
from torch.ao.quantization import quantize_fx  # noqa: E402


class Residual(nn.Module):
    """A residual block with batch norm, pooling and a linear layer, as a user of the eager mode writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.skip = ao.QuantStub(), ao.DeQuantStub(), FloatFunctional()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(self.quant(x))))
        y = self.skip.add_relu(self.bn2(self.conv2(y)), y)
        return self.dequant(self.fc(torch.flatten(self.pool(y), 1)))


class Plain(Residual):
    """The same without stubs, for the FX mode."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)) + y)
        return self.fc(torch.flatten(self.pool(y), 1))


FUSED = [["conv1", "bn1", "relu"], ["conv2", "bn2"]]


def samples(count: int = 32) -> Tensor:
    """Images."""
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def network(kind: type[Residual]) -> Any:
    """A network whose batch norm has statistics."""
    torch.manual_seed(0)
    model = kind().train()
    with torch.no_grad():
        for _ in range(3):
            model(samples())
    return model.eval()


def prepared(mode: str, qconfig: Any = None, model: Any = None) -> Any:
    """A model that torch.ao has prepared and calibrated or trained: "eager ptq", "eager qat", "fx ptq" or "fx qat"."""
    x, qat = samples(), mode.endswith("qat")
    model = model or network(Residual if mode.startswith("eager") else Plain)
    model.train(qat)
    if mode.startswith("eager"):
        model = (ao.fuse_modules_qat if qat else ao.fuse_modules)(model, FUSED)
        model.qconfig = qconfig or (ao.get_default_qat_qconfig if qat else ao.get_default_qconfig)("fbgemm")
        model = (ao.prepare_qat if qat else ao.prepare)(model)
    else:
        mapping = (ao.get_default_qat_qconfig_mapping if qat else ao.get_default_qconfig_mapping)("fbgemm")
        model = (quantize_fx.prepare_qat_fx if qat else quantize_fx.prepare_fx)(model, mapping, (x,))
    if qat:
        for _ in range(2):
            model(x).square().mean().backward()
        model.apply(ao.disable_observer)
    with torch.no_grad():
        model.eval()(x)
    return model


def converted(model: Any) -> Any:
    """What torch.ao converts a prepared model to; the model itself stays as it is."""
    graph = isinstance(model, torch.fx.GraphModule)
    return (quantize_fx.convert_fx if graph else ao.convert)(copy.deepcopy(model))
