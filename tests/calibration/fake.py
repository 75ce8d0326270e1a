"""A simulation small enough to see through: what calibration needs of one, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from intact8.calibration import make_observer
from intact8.calibration.data import Specs
from intact8.capture.graph import Graph
from intact8.errors import CalibrationError


class FakePoint:
    def __init__(self, observer: str, fixed: bool) -> None:
        self.observer = make_observer(observer)
        self.observing, self.quantizing, self.fixed = False, True, fixed
        self.lo, self.hi = 0, 255
        self.scale, self.zero_point = torch.tensor(1.0 if fixed else math.nan), torch.tensor(0, dtype=torch.int32)


class FakeWeightPoint:
    quantizing = True


class FakeSimulation(nn.Module):
    """linear → relu, with points at the input and behind the relu; adds ``shift`` where there is a second input."""

    def __init__(self, observer: str = "histogram", inputs: int = 1, shape: tuple[int | None, ...] = (None, 4)) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.points = {name: FakePoint(observer, False) for name in ("input", "relu")}
        self.weight_points = self.all_weight_points = {"linear": FakeWeightPoint()}
        names = ["x", "shift"][:inputs]
        self.input_specs = Specs((n, "float32", shape) for n in names)
        self.calibration: dict[str, Any] = {}
        self.resolved = 0
        self.looked_at: list[int] = []
        self.seen: list[dict[str, Any]] = []

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        self.seen.append(
            {
                "training": self.training,
                "gradients": torch.is_grad_enabled(),
                "observing": [p.observing for p in self.points.values()],
                "quantizing": [p.quantizing for p in (*self.points.values(), *self.weight_points.values())],
            }
        )
        self._observe("input", x)
        y = self.dropout(self.linear(x if shift is None else x + shift)).relu()
        self._observe("relu", y)
        return y

    def _observe(self, name: str, x: Tensor) -> None:
        if self.points[name].observing:
            self.points[name].observer.observe(x)

    constant_channels: dict[str, tuple[int, int]] = {}  # noqa: RUF012
    graph = Graph({}, [], [])

    def collect_statistics(self, calls: list[Any]) -> None:
        self.looked_at.append(len(calls))

    def flatten(self, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> list[Tensor]:
        return [*args, *kwargs.values()]

    def keep(self, inputs: list[Tensor]) -> None:
        """Nothing is reconstructed."""

    def resolve(self) -> None:
        self.resolved += 1
        for name, point in self.points.items():
            if point.fixed:
                continue
            if not point.observer.count:
                raise CalibrationError("this quantization point has seen no data", where=name)
            scale, zero_point = point.observer.calculate_qparams(0, 255, False)
            point.scale.fill_(float(scale))
            point.zero_point.fill_(zero_point)
