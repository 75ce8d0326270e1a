"""Which operations of well-known networks run as integers, which stay float and why: one Markdown table.

    python benchmarks/coverage.py [--models resnet18 …] [--size 96] [--batch 2]

Unmodified torchvision models with random weights are quantized, and simulation, reference and onednn compared on
every integer tensor.
"""

from __future__ import annotations

import argparse
import collections
import time
import warnings
from typing import Any

import torch

import intact

MODELS = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0", "googlenet",
    "densenet121", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "lraspp_mobilenet_v3_large",
)  # fmt: skip


def torchvision() -> Any:
    """torchvision, also where its compiled operators are missing (it has no CPU build for every torch)."""
    try:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_library"] = library
    except RuntimeError:
        pass  # already defined by a torchvision with compiled operators
    import torchvision

    return torchvision


def build(name: str, seed: int = 0) -> torch.nn.Module:
    """A model with random weights and batch norm statistics taken from random images, so that activations are alive."""
    torch.manual_seed(seed)
    models = torchvision().models
    if hasattr(models.segmentation, name):
        model = models.segmentation.__dict__[name](weights=None, weights_backbone=None)
    else:
        options: dict[str, Any] = {"init_weights": True} if name == "googlenet" else {}
        model = models.__dict__[name](weights=None, **options)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        model(torch.randn(8, 3, 96, 96))
    return model.eval()


def row(name: str, size: int, batch: int) -> str:
    """One line of the table."""
    model = build(name)
    torch.manual_seed(1)
    data = torch.randn(32, 3, size, size)
    start = time.perf_counter()
    sim = intact.prepare(model, data[:2])
    intact.calibrate(sim, data.split(8))
    program = intact.convert(sim)
    seconds = time.perf_counter() - start
    report = intact.verify(program, [torch.randn(batch, 3, size, size)], engines=("reference", "onednn"), sim=sim)
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
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    print(
        "| model | ops | integer ops | float islands | quantize + dequantize | integers compared | differ | seconds |\n|---|---|---|---|---|---|---|---|"  # noqa: E501
    )
    for name in args.models:
        print(row(name, args.size, args.batch), flush=True)


if __name__ == "__main__":
    main()
