"""Integer softmax, norms and embeddings against float islands: exactness, accuracy and speed of both.

    python benchmarks/nonlinear.py [--assets DIR] [--networks kwt1 sst2 minilm vit_b_16] [--seconds 4] [--out FILE]

``kwt1`` and ``sst2`` are trained: top-1 on data that calibration did not see (the KWT-1 clips are halved, SST-2 is
calibrated on training sentences and tested on the test split). ``minilm`` (BERT, 384 wide, 6 layers, 12 heads, 128
tokens) and torchvision's ``vit_b_16`` have random weights: exactness and speed only. ``attention`` of both recipes is
integer. Times are medians of one call, one sample, one thread, contenders interleaved.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import assets
import intact8
from coverage import torchvision
from intact8 import recipes
from intact8.engines import get_engine
from intact8.errors import IntactError
from intact8.timing import interleaved

ENGINES = ("onednn", "onnxruntime")
RECIPES = {"float islands": recipes.default, "integer": recipes.integer}


@dataclass
class Subject:
    """A network with samples; labels where accuracy means something."""

    name: str
    model: nn.Module
    calibration: Tensor
    held_out: Tensor
    labels: Tensor | None = None


def kwt1(root: Path) -> Subject:
    """Calibrated on one half of the clips, tested on the other."""
    import kwt1 as loader

    front, model = loader.load()
    x, y = loader.data(front)
    return Subject("kwt1", model.eval(), x[1::2], x[::2], y[::2])


def sst2(root: Path) -> Subject:
    """Calibrated on 512 training sentences."""
    import sst2 as loader
    from safetensors.torch import load_file

    x, _, vocabulary = loader.read("train")
    held_out, labels, _ = loader.read("test", vocabulary)
    model = loader.Transformer(len(vocabulary) + 2)
    model.load_state_dict(load_file(root / "sst2" / "transformer.safetensors"))
    return Subject("sst2", model.eval(), x[:512], held_out, labels)


def minilm(root: Path) -> Subject:
    """Random weights, half of the sentences padded."""
    from transformers_speed import TOKENS, VOCABULARY, Encoder

    ids = torch.randint(1, VOCABULARY, (20, TOKENS), generator=torch.Generator().manual_seed(0))
    ids[::2, TOKENS // 2 :] = 0
    return Subject("minilm", Encoder().eval(), ids[:16], ids[16:])


def vit_b_16(root: Path) -> Subject:
    """Random weights."""
    model = torchvision().models.vit_b_16(weights=None).eval()
    nn.init.normal_(model.heads.head.weight, std=0.02)
    x = torch.randn(10, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return Subject("vit_b_16", model, x[:8], x[8:])


NETWORKS: dict[str, Callable[[Path], Subject]] = {"kwt1": kwt1, "sst2": sst2, "minilm": minilm, "vit_b_16": vit_b_16}


def top1(predict: Callable[[Tensor], Any], subject: Subject) -> float:
    """Percent right."""
    assert subject.labels is not None
    hits = 0
    for x, y in zip(subject.held_out.split(100), subject.labels.split(100), strict=True):
        hits += int((torch.as_tensor(np.asarray(predict(x))).argmax(1) == y).sum())
    return 100.0 * hits / len(subject.labels)


def measure(subject: Subject, seconds: float) -> list[str]:
    """Rows of the table."""
    few = subject.held_out[: 2 if subject.labels is None else 16]
    calls: dict[str, Callable[[], object]] = {}
    rows: list[tuple[str, str, str, str, dict[str, str]]] = []
    with torch.no_grad():
        score = "–" if subject.labels is None else f"{top1(subject.model, subject):.2f}"
    rows.append(("float32", "", "", score, {"onednn": "float32"}))
    one = subject.held_out[:1]
    calls["float32"] = lambda: subject.model(one)
    for name, recipe in RECIPES.items():
        sim = intact8.prepare(subject.model, subject.calibration[:2], recipe()).eval()
        intact8.calibrate(sim, subject.calibration.split(16))
        program = intact8.convert(sim)
        report = intact8.verify(program, few, sim=sim, engines=["reference", *ENGINES])
        kinds = sorted({op.kind.removeprefix("float.") for op in program.islands()})
        islands = f"{len(program.islands())}" + (f" ({', '.join(kinds)})" if kinds else "")
        compared = sum(e.elements for e in report.by_engine.values())
        times = {}
        for engine in ENGINES:
            try:
                runner = get_engine(engine).prepare(program, threads=1)
            except IntactError as error:
                print(f"{subject.name}, {name}, {engine}: {error}", file=sys.stderr)
                continue
            key = f"{name}/{engine}"
            given = {program.inputs[0]: one.numpy()}
            calls[key] = lambda runner=runner, given=given: runner(given)  # type: ignore[misc]
            times[engine] = key
        score = "–"
        if subject.labels is not None:
            score = f"{top1(lambda x, p=program: p.run(x.numpy(), engine='onednn'), subject):.2f}"
        rows.append((name, islands, f"{report.mismatches} of {compared:,}", score, times))
        print(f"{subject.name}, {name}: {rows[-1][1:4]}", file=sys.stderr, flush=True)
    with torch.inference_mode():
        timings = interleaved(calls, seconds=seconds)
    lines = []
    for name, islands, exact, score, times in rows:
        shown = [f"{timings[times[e]].median * 1e3:.2f}" if e in times else "" for e in ENGINES]
        lines.append(f"| {subject.name} | {name} | {islands} | {exact} | {score} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    root = assets.folder(options.assets)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    columns = [
        "network",
        "recipe",
        "float operations",
        "integers that differ",
        "top-1 %",
        *(f"{e} ms" for e in ENGINES),
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in options.networks:
        lines += measure(NETWORKS[name](root), options.seconds)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
