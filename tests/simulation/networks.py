"""Random small networks of every operation the simulation computes, as ordinary PyTorch modules."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.calibration.summary import CalibrationWarning


class Step(nn.Module):
    """One operation on the tensors made so far: ``inputs`` are positions in that list."""

    def __init__(self, kind: str, inputs: list[int], body: nn.Module, **options: Any) -> None:
        super().__init__()
        self.kind, self.inputs, self.body, self.options = kind, inputs, body, options

    def forward(self, values: list[Tensor]) -> Tensor:
        x = values[self.inputs[0]]
        if self.kind == "body":
            y: Tensor = self.body(x)
            return y
        if self.kind == "squeeze_excite":
            return x * F.hardsigmoid(self.body(F.adaptive_avg_pool2d(x, 1)))
        other = values[self.inputs[1]]
        if self.kind == "add":
            return x + other
        if self.kind == "add_relu":
            return F.relu(self.body(x) + other)
        if self.kind == "sub":
            return x - other
        if self.kind == "mul":
            return x * other
        assert self.kind == "cat", self.kind
        return torch.cat([x, other, x], 1)


class Net(nn.Module):
    """Steps one after the other; returns the last tensor, and sometimes an inner one."""

    def __init__(self, steps: list[Step], head: nn.Module | None, extra: int | None) -> None:
        super().__init__()
        self.steps, self.head, self.extra = nn.ModuleList(steps), head, extra

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        values = [x]
        for step in self.steps:
            values.append(step(values))
        y = values[-1]
        if self.head is not None:
            y = self.head(y.mean((2, 3)))
        return y if self.extra is None else {"y": y, "inner": values[self.extra]}


@dataclass
class Builder:
    """Draws a network of about ``length`` operations on images."""

    seed: int
    length: int
    rng: random.Random = field(init=False)
    steps: list[Step] = field(default_factory=list)
    shapes: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def build(self) -> tuple[Net, tuple[int, int, int]]:
        torch.manual_seed(self.seed)
        self.shapes = [(self.rng.choice([1, 3, 5, 8]), self.rng.randint(5, 11), self.rng.randint(5, 11))]
        self._add("body", [0], self._conv(0))
        while len(self.steps) < self.length:
            at = len(self.shapes) - 1 if self.rng.random() < 0.75 else self.rng.randrange(1, len(self.shapes))
            self._draw(at)
        channels = self.shapes[-1][0]
        head = nn.Linear(channels, 4) if self.rng.random() < 0.5 else None
        extra = (
            self.rng.randrange(1, len(self.shapes) - 1) if self.rng.random() < 0.3 and len(self.shapes) > 2 else None
        )
        net = Net(self.steps, head, extra)
        _livelihood(net, self.shapes[0])
        return net.eval(), self.shapes[0]

    def _add(self, kind: str, inputs: list[int], body: nn.Module | None = None) -> None:
        step = Step(kind, inputs, body or nn.Identity())
        with torch.no_grad():
            values = [torch.zeros(1, *s) for s in self.shapes]
            y = step.eval()(values)
        if y.shape[1] <= 24:
            self.steps.append(step)
            self.shapes.append((int(y.shape[1]), int(y.shape[2]), int(y.shape[3])))

    def _draw(self, at: int) -> None:
        rng, (c, h, w) = self.rng, self.shapes[at]
        same = [i for i in range(1, len(self.shapes)) if self.shapes[i] == self.shapes[at]]
        kind = rng.choice(
            ["conv"] * 4 + ["act", "pool", "add", "add_relu", "sub", "mul", "cat", "se", "bn", "transposed", "up"]
        )
        if kind == "conv":
            self._add("body", [at], self._conv(at))
        elif kind == "act":
            self._add("body", [at], self._act(c))
        elif kind == "pool" and min(h, w) >= 3:
            self._add("body", [at], self._pool())
        elif kind in ("add", "sub", "mul", "cat"):
            self._add(kind, [at, rng.choice(same)])
        elif kind == "add_relu":
            body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c))
            self._add("add_relu", [at, rng.choice(same)], body)
        elif kind == "se":
            self._add("squeeze_excite", [at], nn.Conv2d(c, c, 1))
        elif kind == "bn":
            self._add("body", [at], nn.BatchNorm2d(c))
        elif kind == "transposed" and max(h, w) < 12:
            groups = 2 if c % 2 == 0 else 1
            body = nn.ConvTranspose2d(c, 2 * groups, 3, 2, 1, output_padding=rng.choice([0, 1]), groups=groups)
            self._add("body", [at], body)
        elif kind == "up" and max(h, w) < 8:
            self._add("body", [at], nn.Upsample(scale_factor=2, mode="nearest"))

    def _conv(self, at: int) -> nn.Module:
        rng, (c, h, w) = self.rng, self.shapes[at]
        groups = rng.choice([1, 1, c])
        out = groups * rng.choice([1, 2]) if groups > 1 else rng.choice([2, 6, 7])
        k = rng.choice([1, 3]) if min(h, w) >= 3 else 1
        dilation = 2 if k == 3 and min(h, w) >= 6 and rng.random() < 0.3 else 1
        padding = rng.choice([0, dilation]) if k == 3 else 0
        mode = "zeros" if padding == 0 or rng.random() < 0.8 else "reflect"
        conv = nn.Conv2d(c, out, k, rng.choice([1, 1, 2]), padding, dilation, groups, rng.random() < 0.5, mode)
        parts: list[nn.Module] = [conv]
        if rng.random() < 0.6:
            parts.append(nn.BatchNorm2d(out))
        if rng.random() < 0.7:
            parts.append(self._act(out))
        return nn.Sequential(*parts)

    def _act(self, channels: int) -> nn.Module:
        rng = self.rng
        made: list[Any] = [
            nn.ReLU, nn.ReLU6, nn.ReLU, nn.Hardswish, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Hardsigmoid, nn.ELU,
            lambda: nn.LeakyReLU(rng.choice([0.01, 0.1, 0.3, 1.0])), lambda: nn.Hardtanh(-0.7, 1.3), lambda: nn.PReLU(),
            lambda: _prelu(channels),
        ]  # fmt: skip
        act: nn.Module = rng.choice(made)()
        return act

    def _pool(self) -> nn.Module:
        rng = self.rng
        pools: list[Any] = [
            lambda: nn.MaxPool2d(2), lambda: nn.MaxPool2d(3, 1, 1), lambda: nn.AvgPool2d(2, ceil_mode=True),
            lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=rng.random() < 0.5), lambda: nn.AdaptiveAvgPool2d((2, 3)),
            lambda: nn.ZeroPad2d((1, 0, 2, 1)), lambda: nn.ConstantPad2d(1, 0.37),
        ]  # fmt: skip
        pool: nn.Module = rng.choice(pools)()
        return pool


def _prelu(channels: int) -> nn.Module:
    act = nn.PReLU(channels)
    with torch.no_grad():
        act.weight.copy_(torch.linspace(-0.5, 0.9, channels))
        act.weight[0] = 0.0
    return act


def _livelihood(net: nn.Module, shape: tuple[int, int, int]) -> None:
    """Batch norm statistics from data and parameters away from their defaults, so that no channel is dead."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # type: ignore[assignment]
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    net.train()
    with torch.no_grad():
        net(torch.randn(16, *shape))


def quantized(
    model: nn.Module, data: Any, recipe: intact8.Recipe | None = None, example: Any = None
) -> tuple[Any, intact8.Program]:
    """Simulation and program; calibration warnings (few samples) are of no interest here."""
    sim = intact8.prepare(model, data[:2] if example is None else example, recipe).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        intact8.calibrate(sim, data)
    return sim, intact8.convert(sim)
