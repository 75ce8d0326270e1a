"""What the search for a recipe reaches, and how long it takes: MobileNetV1 ×0.25 by top-1, MiniLM by cosine.

    python benchmarks/tune.py [--assets DIR] [--only mobilenet minilm nncf] [--journal FOLDER] [-o FILE]

MobileNetV1: every second image that does not calibrate judges the candidates, the others are held out. NNCF's
``quantize_with_accuracy_control`` gets the same calibration images, the same judging images and the same allowed drop.
MiniLM begins with ``recipes.integer()``. Prints, and writes, Markdown.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import intact8
from assets import Task, folder, minilm, mobilenet

HEAD = (
    "| network | tool | metric | float | start | chosen | held out: float | held out: int8 | time | trials | s |"
    "\n|---|---|---|---|---|---|---|---|---|---|---|"
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
    return row(task.name, intact8.tune(task.model, calibration, judged, max_drop=DROP, **options))


def tuned_minilm(task: Task, journal: Path | None) -> str:
    """Ours on MiniLM, from the integer recipe on."""
    path = None if journal is None else journal / "minilm.jsonl"
    judged, rest = task.held_out[:64], task.held_out[64:]
    options: dict[str, Any] = {"recipe": "integer", "engine": "native", "journal": path, "progress": told}
    return row(task.name, intact8.tune(task.model, [task.calibration], judged, max_drop=1.0, held_out=rest, **options))


def row(name: str, found: intact8.TuneResult) -> str:
    """Return a line of the table."""
    start, best = found.trials[0], found.best
    assert found.held_out is not None
    exact, int8 = found.held_out
    return (
        f"| {name} | intact8.tune | {found.metric} | {found.float_score:.2f} | {start.score:.2f} | {best.score:.2f} | "
        f"{exact:.2f} | {int8:.2f} | ×{best.time:.2f} | {len(found.trials)} | {found.seconds:.0f} |"
    )


def nncf_mobilenet(task: Task, journal: Path | None) -> str:
    """NNCF's accuracy control on the same images; times are not measured by it."""
    import nncf
    import openvino

    judged, rest = (task.held_out[::2], task.labels[::2]), (task.held_out[1::2], task.labels[1::2])
    trials = 0

    def validate(model: Any, data: Any) -> float:
        nonlocal trials
        trials += 1
        return right(lambda x: model(x.numpy())[0], *judged)

    converted = openvino.convert_model(copy.deepcopy(task.model).eval(), example_input=task.calibration[:1])
    pairs = [x.numpy() for x in task.calibration.split(1)]
    begun = time.monotonic()
    quantized = nncf.quantize_with_accuracy_control(
        converted,
        nncf.Dataset(pairs),
        nncf.Dataset([x.numpy() for x in judged[0].split(31)]),
        validation_fn=validate,
        max_drop=DROP,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(pairs),
    )
    seconds = time.monotonic() - begun
    compiled = openvino.Core().compile_model(quantized, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    exact = right(task.model, *judged)
    scores = [right(lambda x: compiled([x.numpy()])[0], *part) for part in (judged, rest)]
    held_out = right(task.model, *rest)
    return (
        f"| {task.name} | NNCF accuracy control | top1 | {exact:.2f} | | {scores[0]:.2f} | {held_out:.2f} | "
        f"{scores[1]:.2f} | | {trials} | {seconds:.0f} |"
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=("mobilenet", "nncf", "minilm"))
    parser.add_argument("--journal", type=Path, help="folder of journals, from which interrupted searches go on")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    makers: dict[str, tuple[Callable[[], Task], Callable[[Task, Path | None], str]]] = {
        "mobilenet": (lambda: mobilenet(root), tuned_mobilenet),
        "nncf": (lambda: mobilenet(root), nncf_mobilenet),
        "minilm": (lambda: minilm(root, 32, 264, 32), tuned_minilm),
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
