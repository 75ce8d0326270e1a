"""What the search for a recipe reaches, and how long it takes: MobileNetV1 ×0.25 by top-1, MiniLM by cosine.

    python benchmarks/tune.py [--assets DIR] [--only mobilenet minilm nncf nncf-minilm] [--journal FOLDER] [-o FILE]

MobileNetV1: every second image that does not calibrate judges the candidates, the others are held out. NNCF's
``quantize_with_accuracy_control`` gets the same calibration images, the same judging images and the same allowed drop.
MiniLM begins with ``recipes.integer()``. Prints, and writes, Markdown; differences have their paired 95 % interval.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intact8
import peers
from assets import Task, folder, minilm, mobilenet

HEAD = (
    "| network | tool | metric | float | start | chosen | held out: float | held out: int8 | time | trials | s | "
    "processor s |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)
DROP = 0.5


def told(trial: intact8.tuning.Trial, best: intact8.tuning.Trial) -> None:
    """Print a trial."""
    print(f"  {trial.change[:60]}: drop {trial.drop:.3f}, ×{trial.time:.2f}; best {best.change[:40]}", flush=True)


def right(predict: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> float:
    """Top-1 in percent."""
    found = torch.cat([torch.as_tensor(predict(batch)).argmax(1) for batch in x.split(31)])
    return 100 * float((found == y).double().mean())


def tuned_mobilenet(task: Task, journal: Path | None) -> str:
    """Ours on MobileNetV1."""
    judged, rest = (task.held_out[::2], task.labels[::2]), (task.held_out[1::2], task.labels[1::2])
    path = None if journal is None else journal / "mobilenet.jsonl"
    calibration = task.calibration.split(32)
    options: dict[str, Any] = {"engine": "native", "journal": path, "progress": told, "held_out": rest}
    return row(task.name, lambda: intact8.tune(task.model, calibration, judged, max_drop=DROP, **options))


def tuned_minilm(task: Task, journal: Path | None) -> str:
    """Ours on MiniLM, from the integer recipe on."""
    path = None if journal is None else journal / "minilm.jsonl"
    judged, rest = task.held_out[:64], task.held_out[64:]
    options: dict[str, Any] = {"recipe": "integer", "engine": "native", "journal": path, "progress": told}
    return row(
        task.name, lambda: intact8.tune(task.model, [task.calibration], judged, max_drop=1.0, held_out=rest, **options)
    )


def row(name: str, search: Callable[[], intact8.TuneResult]) -> str:
    """Return a line of the table."""
    processor = time.process_time()
    found = search()
    processor = time.process_time() - processor
    print(f"  {found.summary()}", flush=True)
    start, best = found.trials[0], found.best
    assert found.held_out is not None
    exact, int8 = found.held_out
    return (
        f"| {name} | intact8.tune | {found.metric} | {found.float_score:.2f} | {start.score:.2f} | {best.score:.2f} | "
        f"{exact:.2f} | {int8:.2f} | ×{best.time:.2f} | {len(found.trials)} | {found.seconds:.0f} | "
        f"{processor:.0f} |"
    )


def alike(predict: Callable[[Tensor], Any], x: Tensor, exact: Tensor) -> float:
    """Mean cosine to float32's outputs, in percent."""
    found = torch.cat([torch.as_tensor(predict(batch)) for batch in x.split(32)])
    return 100 * float(nn.functional.cosine_similarity(found, exact, dim=1).mean())


def nncf_row(
    task: Task,
    metric: str,
    score: Callable[[Callable[[Tensor], Any], Tensor, Tensor], float],
    parts: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    max_drop: float,
) -> str:
    """NNCF's accuracy control on the same samples; times of runs are not measured by it."""
    judged, rest = parts
    begun, processor = time.monotonic(), time.process_time()
    transformer = metric == "cosine"
    predict, judgements = peers.nncf_accuracy_control(
        task.model, task.calibration, judged[0], lambda p: score(p, *judged), max_drop, transformer
    )
    seconds, processor = time.monotonic() - begun, time.process_time() - processor
    exact, held_out = score(task.model, *judged), score(task.model, *rest)
    scores = [score(predict, *part) for part in parts]
    return (
        f"| {task.name} | NNCF accuracy control | {metric} | {exact:.2f} | | {scores[0]:.2f} | {held_out:.2f} | "
        f"{scores[1]:.2f} | | {judgements} | {seconds:.0f} | {processor:.0f} |"
    )


def nncf_mobilenet(task: Task, journal: Path | None) -> str:
    """NNCF on MobileNetV1."""
    parts = (task.held_out[::2], task.labels[::2]), (task.held_out[1::2], task.labels[1::2])
    return nncf_row(task, "top1", right, parts, DROP)


def nncf_minilm(task: Task, journal: Path | None) -> str:
    """NNCF on MiniLM, with its scheme for transformers."""
    exact = torch.cat([task.model(x) for x in task.held_out.split(32)])
    return nncf_row(task, "cosine", alike, ((task.held_out[:64], exact[:64]), (task.held_out[64:], exact[64:])), 1.0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=("mobilenet", "nncf", "minilm", "nncf-minilm"))
    parser.add_argument("--journal", type=Path, help="folder of journals, from which interrupted searches go on")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    makers: dict[str, tuple[Callable[[], Task], Callable[[Task, Path | None], str]]] = {
        "mobilenet": (lambda: mobilenet(root), tuned_mobilenet),
        "nncf": (lambda: mobilenet(root), nncf_mobilenet),
        "minilm": (lambda: minilm(root, 32, 264, 32), tuned_minilm),
        "nncf-minilm": (lambda: minilm(root, 32, 264, 32), nncf_minilm),
    }
    lines = [HEAD]
    for name, (make, run) in makers.items():
        if name in args.only:
            with torch.no_grad():
                lines.append(run(make(), args.journal))
            print(lines[-1], flush=True)
    text = ["# The search for a recipe\n", f"`python benchmarks/tune.py`; torch {torch.__version__}.\n", *lines, ""]
    if args.output:
        args.output.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
