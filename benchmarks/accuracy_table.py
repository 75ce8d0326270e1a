"""Trained networks in 8, 4 and 3 bits, quantized here and by others: top-1, signal to noise, and seconds.

    python benchmarks/accuracy_table.py [--assets DIR] [--only MobileNetV2 …] [--methods "W4A8 qdrop" …]
                                        [--iterations 500] [--held-out 1000] [--out benchmarks/results/DATE-NAME]

Networks are trained ones of the assets and of packages (see ``real_weights.py``), and ``ResNet`` and ``ViT``, small
ones, which are trained here on Fashion-MNIST. Every result is written to OUT.json at once; the same command goes on
where it was interrupted. OUT.md is made from it. All are calibrated on the same samples, which are never held out.

A method is "W8A8 PRESET", "W4A8 METHOD" (or other bits) for a method of ``recipes.reconstruct`` or "none" (rounding to
nearest), "tuned" (``intact8.tune``), or a peer's name. "tuned" and "NNCF accuracy control" may lose half a point of
agreement in top-1 (of cosine, where there are no labels) with float32 on the samples that calibrate. A preset with
"+float" keeps what is between layers in float32, as NNCF does there. Small layers, which together hold a twentieth of
all weights, keep weights of 8 bits, and with activations of 4 bits the first and the last layer have results of 8. No
peer has 4-bit weights with 8-bit activations for convolutions.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import re
import shlex
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import intact8
import peers
from assets import Task, fashion, folder, keywords, mobilenet, sentences
from intact8 import recipes
from qat_resnet import Vit, resnet, trained_on_fashion
from qat_tables import describe
from real_weights import NETWORKS, PEERS, decibels, run_all
from store import Store

DROP, TRIALS = 0.5, 40
"""Points that "tuned" and NNCF's accuracy control may lose, and candidates of the first, at most."""

TRAINED = Path(tempfile.gettempdir()) / "intact8-accuracy-table"
"""Where the weights of networks that are trained here are kept between runs."""

MAKERS: dict[str, Callable[[Path], Task]] = {
    "Fashion-MNIST cnn": lambda root: fashion(root, "cnn", 256),
    "Fashion-MNIST dw": lambda root: fashion(root, "dw", 256),
    "ResNet": lambda root: trained_on_fashion("resnet", resnet, kept=TRAINED / "resnet.pt"),
    "ViT": lambda root: trained_on_fashion("vit", Vit, lr=1e-3, kept=TRAINED / "vit.pt"),
    "MobileNetV1 ×0.25": lambda root: mobilenet(root, 128),
    "KWT-1": lambda root: keywords(root, 256),
    "SST-2 transformer": lambda root: sentences(root, "transformer", 256),
    "SST-2 BiLSTM": lambda root: sentences(root, "lstm", 256),
    "MobileNetV2": lambda root: NETWORKS["mobilenet_v2"](root, 250),
    "EfficientNet-Lite0": lambda root: NETWORKS["efficientnet_lite0"](root, 250),
    "MiniLM": lambda root: NETWORKS["minilm"](root, 200),
}
METHODS = [
    "W8A8 default",
    "W8A8 accurate",
    "tuned",
    "NNCF",
    "NNCF accuracy control",
    "ONNX Runtime",
    "torch.ao FX",
    "W4A8 qdrop",
    "W4A8 distill",
    "W4A4 distill",
    "W3A8 distill",
]
"""What is measured unless ``--methods`` says otherwise."""

BITS = re.compile(r"W(\d)A(\d) (\w+)(\+float)?")


def recipe_of(method: str, iterations: int) -> intact8.Recipe:
    """The recipe of one of our methods."""
    found = BITS.fullmatch(method)
    assert found is not None
    name, bits, activation_bits = found[3], int(found[1]), int(found[2])
    if name in recipes.presets():
        recipe = recipes.as_recipe(name)
        return replace(recipe, between_layers="float") if found[4] else recipe
    learned = name in intact8.recipe.recipe.LEARNED_ROUNDINGS
    return recipes.reconstruct(bits, activation_bits, method=name, **({"iterations": iterations} if learned else {}))


def ours(method: str, task: Task, iterations: int) -> tuple[Any, dict[str, Any]]:
    """What predicts, and how many integers differ between the simulation and the engine."""
    sim = intact8.prepare(task.model, task.calibration[:2], recipe_of(method, iterations)).eval()
    intact8.calibrate(sim, task.calibration.split(32))
    program = intact8.convert(sim)
    report = intact8.verify(program, task.held_out[:8], sim=sim)
    return program.run, {"compared": report.elements, "mismatches": report.mismatches}


def tuned(task: Task) -> tuple[Any, dict[str, Any]]:
    """What predicts after ``intact8.tune``, and what it chose."""
    metric = "top1" if len(task.labels) else "cosine"
    found = intact8.tune(
        task.model, task.calibration.split(32), metric=metric, max_drop=DROP, max_trials=TRIALS, engine="native"
    )
    report = intact8.verify(found.program, task.held_out[:8])
    chosen = {"chosen": found.best.change, "time": round(found.best.time, 2), "trials": len(found.trials)}
    return found.program.run, {"compared": report.elements, "mismatches": report.mismatches, **chosen}


def controlled(task: Task) -> tuple[Any, dict[str, Any]]:
    """What predicts after NNCF's accuracy control."""
    exact = run_all(task.model, task.calibration)

    def score(predict: peers.Predict) -> float:
        found = run_all(predict, task.calibration)
        if len(task.labels):
            return 100 * float((found.argmax(1) == exact.argmax(1)).double().mean())
        return 100 * float(nn.functional.cosine_similarity(found, exact, dim=1).mean())

    predict, judgements = peers.nncf_accuracy_control(
        task.model,
        task.calibration,
        task.calibration,
        score,
        DROP,
        transformer=True,  # as column NNCF
    )
    return predict, {"trials": judgements}


def compared(task: Task, expected: Tensor, found: Tensor) -> dict[str, Any]:
    """Top-1, its paired difference from float32 with half of its 95 % interval, and SQNR with its standard error."""
    ratio, error = decibels(expected.flatten(1), found.flatten(1))
    values: dict[str, Any] = {"held_out": len(expected), "db": round(ratio, 2), "db_error": round(error, 2)}
    if len(task.labels):
        base, right = ((y.argmax(1) == task.labels).double() for y in (expected, found))
        points = 100 * (right - base)
        half = 1.96 * float(points.std()) / len(points) ** 0.5
        top1 = {
            "float": float(base.mean()) * 100,
            "top1": float(right.mean()) * 100,
            "points": float(points.mean()),
            "half": half,
        }
        values |= {name: round(value, 2) for name, value in top1.items()}
    return values


def measured(method: str, task: Task, expected: Tensor, iterations: int) -> dict[str, Any]:
    """One row."""
    begun, about = time.process_time(), {}
    try:
        if method == "tuned":
            predict, about = tuned(task)
        elif method == "NNCF accuracy control":
            predict, about = controlled(task)
        elif method in PEERS:
            predict = getattr(importlib.import_module("peers"), PEERS[method])(task.model, task.calibration)
        else:
            predict, about = ours(method, task, iterations)
        seconds = time.process_time() - begun
        found = run_all(predict, task.held_out)
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
        return {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"}
    return {**compared(task, expected, found), **about, "processor_seconds": round(seconds, 1)}


def markdown(about: dict[str, str], results: dict[str, Any]) -> str:
    """One table."""
    lines = ["# Accuracy of networks in 8 and 4 bits", "", about["machine"], "", f"`{about['command']}`", ""]
    columns = (
        "network, held out, float32 %, method, top-1 %, to float32 (95 %), SQNR, integers that differ, processor s"
    )
    lines += ["| " + columns.replace(", ", " | ") + " |", "|---" * 9 + "|"]
    order = {name: place for place, name in enumerate(MAKERS)}
    for key, row in sorted(results.items(), key=lambda item: order[item[0].split("/")[0]]):
        network, method = key.split("/")
        if "failed" in row:
            lines.append(f"| {network} | | | {method} | {row['failed'].replace('|', '/')} | | | | |")
            continue
        labels = [f"{row['top1']:.2f}", f"{row['points']:+.2f} ± {row['half']:.2f}"] if "top1" in row else ["", ""]
        differ = f"{row['mismatches']} of {row['compared']:,}" if "compared" in row else ""
        base = f"{row['float']:.2f}" if "float" in row else ""
        noise = f"{row['db']:.1f} ± {row['db_error']:.1f} dB"
        method += f" (×{row['time']}: {row['chosen']})" if "chosen" in row else ""
        cells = [network, str(row["held_out"]), base, method, *labels, noise, differ, f"{row['processor_seconds']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--iterations", type=int, default=500, help="of learned roundings, per block")
    parser.add_argument("--held-out", type=int, default=1000, help="at most so many samples")
    default = Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-accuracy-table"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(options.assets)
    TRAINED.mkdir(exist_ok=True)
    command = f"python benchmarks/accuracy_table.py --iterations {options.iterations} --held-out {options.held_out}"
    if options.methods != METHODS:
        command += f" --methods {shlex.join(options.methods)}"
    store = Store(options.out.with_suffix(".json"), {"machine": describe(), "command": command})
    for name in options.only:
        if all(f"{name}/{method}" in store.results for method in options.methods):
            continue
        try:
            task = MAKERS[name](root)
        except ModuleNotFoundError as error:
            print(f"{name} left out: {error}", flush=True)
            continue
        task = task._replace(held_out=task.held_out[: options.held_out], labels=task.labels[: options.held_out])
        expected = run_all(task.model, task.held_out)
        for method in options.methods:
            store.once(f"{name}/{method}", partial(measured, method, task, expected, options.iterations))
            options.out.with_suffix(".md").write_text(markdown(store.about, store.results), encoding="utf-8")


if __name__ == "__main__":
    main()
