"""A network of timm in int8: any name of its registry, with its own normalization written down beside the file.

    python examples/timm_model.py [NAME] [--out FILE]

Weights are random here (``pretrained=True`` downloads them), so only the way is shown: quantize, verify, save, run.
Needs timm.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch

import intact8


class Result(NamedTuple):
    """What :func:`run` measured: integers that differ between engines, and those compared; cosine to float32."""

    mismatches: int
    compared: int
    cosine: float


def run(name: str, path: Path, size: int = 64, pretrained: bool = False) -> Result:
    """Quantize a network of timm, verify it, and save it with what its images need.

    Args:
        name: as ``timm.list_models()`` has it.
        path: file to write.
        size: height and width of the images.
        pretrained: whether timm downloads trained weights.
    """
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=pretrained, num_classes=10).eval()
    config = timm.data.resolve_data_config(model.pretrained_cfg)
    images = torch.rand(32, 3, size, size)  # yours, from a data set
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    x = (images - mean) / std
    program = intact8.quantize(model, x)
    report = intact8.verify(program, x[:2], engines=("reference", "native", "onednn"))
    program.save(path)
    served = intact8.Program.load(path)
    with torch.no_grad():
        wanted, got = model(x[:8]), torch.as_tensor(served.run(x[:8]))
    cosine = torch.nn.functional.cosine_similarity(wanted, got).mean()
    print(f"{path}: images of {size}×{size}, mean {config['mean']}, std {config['std']}")
    return Result(report.mismatches, report.elements, float(cosine))


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="mobilenetv3_small_050")
    parser.add_argument("--out", type=Path, default=Path("timm.safetensors"))
    asked = parser.parse_args()
    result = run(asked.name, asked.out)
    print(f"{result.mismatches} of {result.compared:,} integers differ; cosine to float32 {result.cosine:.4f}")


if __name__ == "__main__":
    main()
