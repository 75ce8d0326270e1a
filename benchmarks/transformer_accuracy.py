"""Accuracy and exactness of int8 transformers and a BiLSTM: float32, intact8's recipes, and other quantizers.

    python benchmarks/transformer_accuracy.py [--assets DIR] [--only KWT-1 …] [--methods "intact8 dynamic" …]
                                              [--elements 2e6] [--out benchmarks/results/DATE-transformer-accuracy]

Every result is written to OUT.json at once; the same command goes on where it was interrupted. OUT.md is made from it.
All static flows are calibrated on the same data, which are never among the held-out ones. Classifiers: top-1 in %.
MiniLM: mean cosine of 500 sentence embeddings to those of float32, and Spearman's rank correlation of the
similarities of all pairs. In the same run, integers (and the float32 of dynamic layers) are compared, bit for bit,
between the simulation, the reference and onednn.
"""

from __future__ import annotations

import argparse
import datetime
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import intact8
import peers
from accuracy import exactness
from assets import Task, accuracy, folder, keywords, minilm, sentences
from qat_tables import describe
from store import Store

BATCH = 50
RECIPES: dict[str, Callable[[], intact8.Recipe]] = {
    "intact8 default": intact8.recipes.default,
    "intact8 transformer": intact8.recipes.transformer,
    "intact8 dynamic": intact8.recipes.dynamic,
    "intact8 integer": intact8.recipes.integer,
}
PEERS: dict[str, Callable[[Task], peers.Predict]] = {
    "torch.ao quantize_dynamic": lambda task: peers.torch_ao_dynamic(task.model),
    "ONNX Runtime quantize_dynamic": lambda task: peers.onnxruntime_dynamic(task.model, task.calibration),
    "ONNX Runtime quantize_static": lambda task: peers.onnxruntime_static(task.model, task.calibration),
    "NNCF, OpenVINO": lambda task: peers.nncf_predict(task.model, task.calibration),
}


FAILURES = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError, ImportError)
"""What other tools raise where they do not take a network."""


def outputs(predict: Any, task: Task) -> torch.Tensor:
    """What ``predict`` gives for all held-out inputs."""
    with torch.no_grad():
        return torch.cat([torch.as_tensor(predict(x)) for x in task.held_out.split(BATCH)])


def rank_correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Spearman's ρ of the similarities of all pairs of embeddings, (N, D) of length 1 each."""
    first, second = torch.triu_indices(len(a), len(a), 1)
    ranks = [(e @ e.T)[first, second].argsort().argsort().double() for e in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def score(predict: Any, task: Task, base: torch.Tensor) -> dict[str, float]:
    """Top-1 and its difference to float32, or how near embeddings are to float32's."""
    if len(task.labels):
        top1, float1 = accuracy(predict, task, BATCH), accuracy(peers.without_grad(task.model), task, BATCH)
        return {"top1": round(top1, 2), "to float32": round(top1 - float1, 2)}
    y = outputs(predict, task)
    cosine = torch.nn.functional.cosine_similarity(y, base, dim=1)
    return {
        "cosine": round(float(cosine.mean()), 5),
        "least cosine": round(float(cosine.min()), 4),
        "rank correlation": round(rank_correlation(y, base), 5),
    }


def ours(recipe: intact8.Recipe, task: Task, base: torch.Tensor, elements: float) -> dict[str, Any]:
    """Accuracy of the program on onednn, and its integers against the simulation's and the reference's."""
    sim = intact8.prepare(task.model, task.calibration[:2], recipe).eval()
    intact8.calibrate(sim, task.calibration.split(32))
    program = intact8.convert(sim)
    report = exactness(sim, program, task, elements)
    found = score(lambda x: program.run(x, engine="onednn"), task, base)
    return {**found, "compared": report.elements, "mismatches": report.mismatches}


def attempt(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result, or why there is none: other tools may not take every network."""
    try:
        return run()
    except FAILURES as error:
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}


def runs(task: Task, methods: list[str], elements: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every method with what runs it."""
    base = outputs(task.model, task)
    yield "float32", lambda: score(peers.without_grad(task.model), task, base)
    for method in methods:
        if method in RECIPES:
            yield method, partial(ours, RECIPES[method](), task, base, elements)
        else:
            yield method, partial(attempt, partial(theirs, method, task, base))


def theirs(method: str, task: Task, base: torch.Tensor) -> dict[str, float]:
    """Accuracy of another quantizer."""
    return score(PEERS[method](task), task, base)


def markdown(about: dict[str, str], results: dict[str, Any]) -> str:
    """One table."""
    lines = ["# Accuracy of transformers", "", about["machine"], "", f"`{about['command']}`", ""]
    lines += ["| network | method | result | bits compared | differ |", "|---|---|---|---|---|"]
    for key, found in results.items():
        task, method = key.split("/")
        if "failed" in found:
            text = found["failed"].replace("|", "/")
        elif "top1" in found:
            text = f"{found['top1']:.2f} % ({found['to float32']:+.2f})"
        else:
            text = (
                f"cosine {found['cosine']:.4f} (least {found['least cosine']:.3f}), ρ {found['rank correlation']:.4f}"
            )
        compared = f"{found['compared']:,}" if "compared" in found else ""
        lines.append(f"| {task} | {method} | {text} | {compared} | {found.get('mismatches', '')} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=["KWT-1", "SST-2 transformer", "SST-2 lstm", "MiniLM"])
    parser.add_argument("--methods", nargs="*", default=[*RECIPES, *PEERS])
    parser.add_argument("--elements", type=float, default=2e6)
    parser.add_argument("--threads", type=int, default=2)
    default = Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-transformers"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    torch.set_num_threads(args.threads)
    tasks = {
        "KWT-1": lambda: keywords(root),
        "SST-2 transformer": lambda: sentences(root, "transformer"),
        "SST-2 lstm": lambda: sentences(root, "lstm"),
        "MiniLM": lambda: minilm(root),
    }
    options = f"--elements {args.elements:g} --threads {args.threads}"
    about = {"machine": describe(), "command": f"python benchmarks/transformer_accuracy.py {options}"}
    store = Store(args.out.with_suffix(".json"), about)
    for name in args.only:
        task = tasks[name]()
        torch.set_num_threads(args.threads)  # the loaders of the assets choose their own
        for method, run in runs(task, args.methods, args.elements):
            store.once(f"{name}/{method}", run)
            args.out.with_suffix(".md").write_text(markdown(about, store.results))


if __name__ == "__main__":
    main()
