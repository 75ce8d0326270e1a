"""The doctor judged by its patients: trained networks with one planted fault each, and MobileNetV1 with a poor recipe.

    PYTHONPATH=. python benchmarks/doctor.py [--assets DIR] [--only NAME …] [--no-remedies] [-o FILE]

Prints, and writes, Markdown: for every patient where the fault was planted and what the doctor says first, whether it
is right, and the accuracy before and after its recipe on images it did not see; then the recovery of MobileNetV1 ×0.25.
"""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
import warnings
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import torch
from tests.diagnose.doctor import (
    planted_accidents,
    planted_afresh,
    planted_at_work,
    planted_blind,
    planted_blind_second,
    planted_blind_third,
    planted_blind_third_further,
    planted_by_judges,
    planted_by_strangers,
    planted_elsewhere,
    planted_further,
    planted_in_practice,
    planted_in_the_field,
    planted_mistakes,
    planted_on_digits,
)
from tests.diagnose.doctor.planted import PLANTS, World
from tests.diagnose.doctor.planted_on_digits import examined

import intact8
from assets import folder, mobilenet
from intact8 import Recipe, Scheme

HEAD = (
    "| patient | planted: place, cause | said first: place, cause | right | noise said to go | float % | before % "
    "| after % | s |\n|---|---|---|---|---|---|---|---|---|"
)


SETS = (
    planted_accidents, planted_mistakes, planted_elsewhere, planted_further, planted_by_strangers, planted_in_practice,
    planted_by_judges, planted_afresh, planted_in_the_field, planted_at_work, planted_blind,
    planted_blind_second, planted_blind_third, planted_blind_third_further,
)  # fmt: skip
"""Sets of patients with answers of their own."""


Answers = set[tuple[str, str]]
"""Pairs of place and cause that are right; a star stands for any end of a name."""


def row(name: str, answers: Answers, report: intact8.DoctorReport, seconds: float) -> tuple[bool, str]:
    """Whether the first finding is right, and a line of the table."""
    first = report.findings[0] if report.findings else None
    right = first is not None and any(fnmatchcase(first.place, p) and first.cause == c for p, c in answers)
    place, cause = min(answers)
    said = "nothing" if first is None else f"{first.place}, {first.cause}"
    noise = "" if first is None or not first.noise else f"{first.noise:.1e}"
    figures = " | ".join(f"{100 * report.outcome(o).metric:.1f}" for o in ("float", "before", "after"))
    mark = "yes" if right else "**no**"
    return right, f"| {name} | {place}, {cause} | {said} | {mark} | {noise} | {figures} | {seconds:.0f} |"


def recovery(assets: Path) -> list[str]:
    """MobileNetV1 ×0.25 with per-tensor weights and min-max ranges: what the doctor's recipe wins back."""
    task = mobilenet(assets)
    x, y = importlib.import_module("common").imagenet_500()
    lines = [
        "| recipe | float % | before % | after % | won back | held-out images | s |",
        "|---|---|---|---|---|---|---|",
    ]
    weight = Scheme(dtype="int8", symmetric=True, observer="minmax")
    for label, equalize in (("per-tensor weights, min-max", True), ("the same, without equalization", False)):
        poor = Recipe(activation=Scheme(observer="minmax"), weight=weight, equalize=equalize)
        start = time.perf_counter()
        data = list(zip(x.split(25), y.split(25), strict=True))
        report = intact8.doctor(task.model, data, recipe=poor, seconds=0)
        figures = " | ".join(f"{100 * report.outcome(o).metric:.1f}" for o in ("float", "before", "after"))
        won = "–" if report.recovered is None else f"{report.recovered:.0%}"
        seconds = time.perf_counter() - start
        lines.append(f"| {label} | {figures} | {won} | {report.samples['held_out']} | {seconds:.0f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", help="patients whose name contains one of these")
    parser.add_argument("--no-remedies", action="store_true")
    parser.add_argument("--no-recovery", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    world = World(root)
    plants = {name: partial(make, world) for name, make in PLANTS.items()} | planted_on_digits.PLANTS
    accidents = {name: plant for plants_of in SETS for name, plant in plants_of.PLANTS.items()}
    plants |= {name: make for name, (make, _) in accidents.items()}
    lines, missed, failed = [HEAD], [], []
    print(HEAD, flush=True)
    for name, make in plants.items():
        if args.only and not any(part in name for part in args.only):
            continue
        start = time.perf_counter()
        try:
            case = make()
            report = examined(case, not args.no_remedies)
        except (intact8.IntactError, RuntimeError, ValueError, KeyError):  # one patient's failure is part of the result
            failed.append(f"{name}:\n{traceback.format_exc()}")
            print(failed[-1], flush=True)
            continue
        answers = accidents[name][1] if name in accidents else {(case.place, case.causes[0])}
        right, line = row(name, answers, report, time.perf_counter() - start)
        lines.append(line)
        print(line, flush=True)
        if not right:
            said = "; ".join(map(str, report.findings[:3])) or "nothing is said: the noise is below 40 dB"
            missed.append(f"- {name}: {said}")
    count = len(lines) - 1
    text = [
        "# The doctor and its patients\n",
        f"`PYTHONPATH=. python benchmarks/doctor.py`; torch {torch.__version__}.\n",
        "\n".join(lines),
        f"\n{count - len(missed)} of {count} right: the right layer and the right cause first.\n",
        "What it gets wrong:\n\n" + "\n".join(missed) + "\n" if missed else "",
        "Failed:\n\n```\n" + "\n".join(failed) + "\n```\n" if failed else "",
    ]
    if not args.no_recovery:
        text += ["## MobileNetV1 ×0.25 with a poor recipe\n", "\n".join(recovery(root)), ""]
    if args.output:
        args.output.write_text("\n".join(part for part in text if part), encoding="utf-8")
    print(text[3])


if __name__ == "__main__":
    main()
