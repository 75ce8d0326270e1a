"""The memory a program takes, as predicted and as measured: over every kind of operation, or random programs.

    python benchmarks/memory_prediction.py [--engine NAME ...] [--programs 40 --first 0 | --kinds] [--elements 8e6]

Programs are made by ``tests/runtime/large.py``. Every program has a process of its own, which runs a few small programs
first; measured is by how much the highest resident set while a program is prepared and run once exceeds the resident
set before. Bound: where more than 16 MiB are measured or predicted, the prediction is within a factor of two. Exit
status 1 beyond it. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.runtime.large import NAMES, alone, drawn, inputs  # noqa: E402

from intact8.engines import available_engines, get_engine  # noqa: E402
from intact8.engines.memory import predicted  # noqa: E402
from intact8.errors import EngineError  # noqa: E402
from intact8.machine import trim  # noqa: E402
from intact8.program.program import Program  # noqa: E402
from intact8.program.spill import evict  # noqa: E402

FACTOR, LITTLE, WARM, SMALL = 2.0, 16 << 20, 6, 4096


def resident(key: str) -> int:
    """Bytes, by its name in /proc/self/status."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(text.split(f"{key}:")[1].split()[0])


def peak(call: Callable[[], object]) -> int:
    """Bytes that ``call`` needs beyond those there are."""
    gc.collect()
    evict()
    trim()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the highest resident set is the present one
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def once(engine: str, program: Program, batch: int = 1) -> None:
    """Prepare and run."""
    runner = get_engine(engine).prepare(program, threads=None if engine == "reference" else 1)
    runner(inputs(program, batch))


def measured(engine: str, name: str | int, elements: int, batch: int) -> dict[str, Any] | None:
    """One kind or the seed of a random program, in this process, which runs no other; None where it has no rule."""
    for kind in list(NAMES)[:WARM]:
        once(engine, alone(kind, SMALL))
    program = alone(name, elements // batch) if isinstance(name, str) else drawn(name, elements // batch)
    try:
        taken = peak(lambda: once(engine, program, batch))
    except EngineError:
        return None
    kinds = " ".join(op.kind for op in program.ops)
    return {"name": str(name), "predicted": predicted(program, engine, batch), "measured": taken, "kinds": kinds}


def measure(engine: str, programs: int | None, elements: int, first: int = 0, batch: int = 1) -> list[dict[str, Any]]:
    """Every kind (None), or so many random programs, each in a copy of this process: what one leaves, none finds."""
    if engine in ("onednn", "openvino"):
        importlib.import_module({"onednn": "torch"}.get(engine, engine))  # once, for all copies
    names = list(NAMES) if programs is None else range(first, first + programs)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(measured, [(engine, name, elements, batch) for name in names], chunksize=1)
    return [row for row in rows if row is not None]


def right(row: dict[str, Any]) -> bool:
    """Whether the prediction is within the bound."""
    guess, taken = row["predicted"], row["measured"]
    return max(guess, taken) <= LITTLE or taken / FACTOR <= guess <= taken * FACTOR


def main() -> int:
    """See this module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", action="append", choices=available_engines())
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--batch", type=int, default=1, help="samples of a call; elements are those of all")
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--elements", type=float, default=8e6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engines = args.engine or available_engines()
    if len(engines) == 1:
        found = {
            engines[0]: measure(
                engines[0], None if args.kinds else args.programs, int(args.elements), args.first, args.batch
            )
        }
    else:
        command = [
            sys.executable,
            __file__,
            "--json",
            "--programs",
            str(args.programs),
            "--first",
            str(args.first),
            "--batch",
            str(args.batch),
            "--elements",
            str(args.elements),
        ]
        command += ["--kinds"] * args.kinds
        found = {}
        for engine in engines:
            found |= json.loads(subprocess.run([*command, "--engine", engine], check=True, capture_output=True).stdout)
    if args.json:
        print(json.dumps(found))
        return 0
    for engine, rows in found.items():
        for row in rows:
            ratio = row["predicted"] / max(row["measured"], 1)
            mark = "" if right(row) else "  <- beyond the bound"
            print(
                f"{engine:12} {row['name']:26} {row['measured'] >> 20:6} MiB  {ratio:5.2f}  {row['kinds'][:60]}{mark}"
            )
        print(f"{engine}: {sum(map(right, rows))} of {len(rows)} within a factor of {FACTOR:g}")
    return 0 if all(right(row) for rows in found.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
