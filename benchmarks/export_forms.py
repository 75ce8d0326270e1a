"""Integers that differ where runtimes read QDQ files of programs: one Markdown table per operation and per network.

    PYTHONPATH=src:. python benchmarks/export_forms.py [--cases 40] [--models resnet18 mobilenet_v2]

Operations are random single ones of the conformance tests, networks have random weights. Every file is written by
``intact8.export.onnx_qdq`` and run by the runtime alone.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.conformance import build, nonlinear

import intact8
from intact8.errors import IntactError
from intact8.export.onnx_qdq import export_qdq
from intact8.exporting.formats import FORMATS
from intact8.program.program import Program

RUNTIMES = FORMATS["onnx-qdq"].runs


def operations() -> dict[str, Callable[[Any, bool], Any]]:
    """What draws a case, by name."""
    more = {"softmax": nonlinear.softmax_case, "norms": nonlinear.norm_case, "group norm": nonlinear.group_norm_case}
    return {**build.KINDS, **more}


def consistent(program: Program) -> Program | None:
    """Return the program with the scale of a softmax's levels, or None where its file would not be taken."""
    op = program.ops[-1]
    if op.kind == "softmax":
        scale = float(np.float32(1 / op.attrs["levels"]))
        program = replace(program, tensors={**program.tensors, "y": replace(program.tensors["y"], scale=scale)})
    return None if op.kind == "max_pool" else program  # whose scales are drawn apart


def operation(draw: Callable[[Any, bool], Any], cases: int, folder: Path) -> list[str]:
    """One row: mismatches, integers and the largest difference, by runtime."""
    totals = {runtime: [0, 0, 0, 0] for runtime in RUNTIMES}
    for seed in range(cases):
        try:
            case = draw(np.random.default_rng(seed), False)
            program = consistent(case.program)
            if program is None:
                continue
            export_qdq(program, folder / "op.onnx")
        except (build.Unusable, IntactError):
            continue
        for runtime, run in RUNTIMES.items():
            total = totals[runtime]
            try:
                found = run((folder / "op.onnx",), program, case.inputs)["y"]
            except Exception:  # whatever a runtime raises: it does not take the file  # noqa: BLE001
                total[3] += 1
                continue
            apart = np.abs(found.astype(int) - case.expected)
            total[0] += int((apart > 0).sum())
            total[1] += apart.size
            total[2] = max(total[2], int(apart.max(initial=0)))
    return [cell(*total) for total in totals.values()]


def cell(differ: int, integers: int, largest: int, refused: int) -> str:
    """Return the text of one cell."""
    text = f"{differ:,} of {integers:,}" + (f" (by {largest} at most)" if differ else "")
    return f"{text}, {refused} files refused" if refused else text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--programs", nargs="*", default=[], help="program files")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| operation |", " | ".join(RUNTIMES), "|\n|---|" + "---|" * len(RUNTIMES))
    with tempfile.TemporaryDirectory() as name:
        for kind, draw in operations().items():
            print(f"| {kind} |", " | ".join(operation(draw, args.cases, Path(name))), "|", flush=True)
        for file in args.programs:
            program = intact8.Program.load(file)
            reports = [program.export(Path(name) / "net.onnx", "onnx-qdq", runtime=runtime) for runtime in RUNTIMES]
            cells = [f"{r.mismatches:,} of {r.elements:,}" for r in reports]
            print(f"| {Path(file).stem} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
