"""Which operations of well-known networks run as integers, which stay float and why: one Markdown table.

    python benchmarks/coverage.py [--models resnet18 …] [--size 96] [--batch 2] [--engines reference onednn …]

Unmodified models of torchvision and transformers (names that begin with hf-) with random weights are quantized, and
trained ones (kwt1, sst2-transformer) where the assets are; simulation and engines are compared on every integer tensor.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import intact8

MODELS = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "googlenet",
    "densenet121", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "lraspp_mobilenet_v3_large",
    "vit_b_16", "swin_t", "hf-bert", "hf-distilbert", "hf-vit",
)  # fmt: skip
TRAINED = ("kwt1", "sst2-transformer")
TOKENS = 16


def torchvision() -> Any:
    """torchvision, also where its compiled operators are missing (it has no CPU build for every torch)."""
    spec = importlib.util.find_spec("torchvision")
    for operators in () if spec is None else Path(str(spec.origin)).parent.glob("_C.*"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(operators)
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_library"] = library
    import torchvision

    return torchvision


def build(name: str, seed: int = 0, size: int = 224) -> torch.nn.Module:
    """A model with random weights and batch norm statistics taken from random images, so that activations are alive.

    Args:
        name: of torchvision's model, or "timm-" and the name of one of timm's (and "-merged", if its branches are to
            be merged for inference), or "smp-" and one of segmentation_models_pytorch, with a ResNet18 as its encoder,
            or that of one of ultralytics' YOLO.
        seed: of the weights.
        size: of images, for models that have to know it.
    """
    torch.manual_seed(seed)
    models = torchvision().models
    if name.startswith("timm-"):
        import timm

        model = timm.create_model(name.removeprefix("timm-").removesuffix("-merged"), pretrained=False)
    elif name.startswith("smp-"):
        import segmentation_models_pytorch

        model = segmentation_models_pytorch.create_model(name.removeprefix("smp-"), "resnet18", encoder_weights=None)
    elif name.startswith("yolo"):
        model = Detector(name)
    elif hasattr(models.segmentation, name):
        model = models.segmentation.__dict__[name](weights=None, weights_backbone=None)
    else:
        options: dict[str, Any] = {"init_weights": True} if name == "googlenet" else {}
        if name.startswith("vit"):
            options["image_size"] = size
        model = models.__dict__[name](weights=None, **options)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        if not name.startswith(("vit", "swin", "timm-vit")):
            model(torch.randn(8, 3, 96, 96))
    model.eval()
    if name.endswith("-merged"):
        from timm.utils import reparameterize_model

        model = reparameterize_model(model)
    return model


class Detector(torch.nn.Module):
    """Backbone, neck and head of a YOLO, as far as boxes and scores."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from ultralytics.nn.tasks import DetectionModel

        self.model = DetectionModel(f"{name}.yaml", verbose=False)

    def forward(self, x: torch.Tensor) -> Any:
        """(N, 3, H, W) → (N, 4 + classes, boxes)."""
        return self.model(x) if self.training else self.model(x)[0]


def transformer(name: str, size: int) -> torch.nn.Module:
    """A model of transformers with its default configuration."""
    torchvision()  # transformers imports it
    import transformers

    torch.manual_seed(0)
    model: torch.nn.Module
    if name == "hf-bert":
        model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=4), add_pooling_layer=False)
    elif name == "hf-distilbert":
        model = transformers.DistilBertModel(transformers.DistilBertConfig())
    else:
        model = transformers.ViTModel(transformers.ViTConfig(image_size=size), add_pooling_layer=False)
    return model.eval()


def trained(name: str, root: Path) -> tuple[torch.nn.Module, Any, Any]:
    """A trained transformer with calibration and other data."""
    if name == "kwt1":
        import kwt1

        front, model = kwt1.load()
        x, _ = kwt1.data(front)
        return model, x[::20], x[1::20]
    import sst2
    from safetensors.torch import load_file

    x, _, vocabulary = sst2.read("train")
    model = sst2.Transformer(len(vocabulary) + 2)
    model.load_state_dict(load_file(root / "sst2" / "transformer.safetensors"))
    return model.eval(), x[:64], sst2.read("test", vocabulary)[0]


def subject(name: str, size: int, batch: int, assets: str | None) -> tuple[torch.nn.Module, list[Any], Any]:
    """Model, batches to calibrate on, one to compare on. Sentences are padded to the longest, as tokenizers do."""
    if name in TRAINED:
        from assets import folder  # beside this file: only there when it is run as a script

        model, calibration, other = trained(name, folder(assets))
        return model, list(calibration.split(8)), other[:batch]
    model = transformer(name, size) if name.startswith("hf-") else build(name, size=size)
    torch.manual_seed(1)
    if name in ("hf-bert", "hf-distilbert"):
        ids, lengths = torch.randint(1000, 30000, (18, TOKENS)), torch.randint(TOKENS // 2, TOKENS + 1, (18, 1))
        mask = (torch.arange(TOKENS) < lengths).long()
        batches = [{"input_ids": i, "attention_mask": m} for i, m in zip(ids.split(2), mask.split(2), strict=True)]
        return model, batches[:8], batches[8]
    data = torch.randn(32 + batch, 3, size, size)
    return model, list(data[batch:].split(8)), data[:batch]


def row(name: str, size: int, batch: int, engines: tuple[str, ...], assets: str | None) -> str:
    """One line of the table."""
    model, calibration, data = subject(name, size, batch, assets)
    start = time.perf_counter()
    sim = intact8.prepare(model, calibration[0])
    intact8.calibrate(sim, calibration)
    program = intact8.convert(sim)
    seconds = time.perf_counter() - start
    report = intact8.verify(program, [data], engines=engines, sim=sim)
    integer = collections.Counter(op.kind for op in program.ops if not op.is_float)
    islands = collections.Counter(op.kind.removeprefix("float.") for op in program.islands())
    bilinear = sum(op.kind == "upsample" and program.tensors[op.name].dtype == "float32" for op in program.ops)
    floats = (
        ", ".join([f"{k} ×{n}" for k, n in islands.items()] + ([f"upsample bilinear ×{bilinear}"] if bilinear else []))
        or "none"
    )
    moves = integer["quantize"] + integer["dequantize"]
    ops = ", ".join(f"{k} ×{n}" for k, n in integer.most_common(9) if k not in ("quantize", "dequantize"))
    return f"| {name} | {len(program.ops)} | {ops} | {floats} | {moves} | {report.elements:,} | {report.mismatches} | {seconds:.1f} |"  # noqa: E501


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--engines", nargs="*", default=["reference", "onednn"])
    parser.add_argument("--assets", help="folder of trained networks, for " + ", ".join(TRAINED))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    print(
        "| model | ops | integer ops | float islands | quantize + dequantize | integers compared | differ | seconds |\n|---|---|---|---|---|---|---|---|"  # noqa: E501
    )
    for name in args.models:
        print(row(name, args.size, args.batch, tuple(args.engines), args.assets), flush=True)


if __name__ == "__main__":
    main()
