"""Trained networks and real data for benchmarks: a folder given by --assets or INTACT_ASSETS."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Task(NamedTuple):
    """A trained network with data: ``calibration`` was never part of ``held_out``."""

    name: str
    model: nn.Module
    calibration: Tensor
    held_out: Tensor
    labels: Tensor


def folder(argument: str | None) -> Path:
    """The assets folder, or exit with the reason."""
    path = Path(argument or os.environ.get("INTACT_ASSETS", "../shared/assets"))
    if not (path / "loaders").is_dir():
        raise SystemExit(f"no assets in {path}: give --assets DIR or set INTACT_ASSETS")
    sys.path.insert(0, str(path / "loaders"))
    return path


def fashion(root: Path, kind: str, calibration: int = 512) -> Task:
    """Fashion-MNIST ``cnn`` or ``dw``; calibrated on training images, held out are the 10,000 test images."""
    import fashion_mnist
    from common import fashion_mnist as read
    from safetensors.torch import load_file

    model = fashion_mnist.net(kind)
    model.load_state_dict(load_file(root / "fashion_mnist" / f"{kind}.safetensors"))
    x, y = read("test")
    return Task(f"fashion-{kind}", model.eval(), read("train")[0][:calibration], x, y)


def mobilenet(root: Path, calibration: int = 128) -> Task:
    """MobileNetV1 ×0.25: calibrated on some of the 500 ImageNet images, evenly spread, held out are the others."""
    import mobilenetv1_025
    from common import imagenet_500

    x, y = imagenet_500()
    chosen = torch.zeros(len(x), dtype=torch.bool)
    chosen[torch.arange(calibration) * len(x) // calibration] = True
    return Task("mobilenetv1_025", mobilenetv1_025.load(), x[chosen], x[~chosen], y[~chosen])


def accuracy(predict: Any, task: Task, batch: int = 100) -> float:
    """Top-1 of ``predict`` (tensor → logits) on the held-out images, in percent."""
    hits = 0
    for x, y in zip(task.held_out.split(batch), task.labels.split(batch), strict=True):
        hits += int((torch.as_tensor(predict(x)).argmax(1) == y).sum())
    return 100 * hits / len(task.labels)
