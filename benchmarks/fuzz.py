"""Fuzz the loader: mutated program files, in child processes, so that a death is counted and not shared.

    python benchmarks/fuzz.py --count 200000 --seed 0 --output benchmarks/results/DATE-fuzz.md

Every file goes the whole way of ``intact.runtime.load`` on the reference engine. Printed are how many were refused, for
which reasons, and accepted; deaths; files that took more than two seconds; accepted files that are not sound (schema,
checks and a run, see tests/runtime/sound.py); and the memory taken, as a multiple of the file's size, also by files
made to take much of it. Exit status 1 when one of these is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

CHUNK, SLOW, STUCK = 2000, 2.0, 1200.0
MULTIPLE, FIXED, SMALL = 50, 1 << 20, 4096
"""Reading takes at most MULTIPLE times the file's size and FIXED bytes; of files below SMALL no multiple is told."""


def chunk(seed: int, count: int) -> dict[str, Any]:
    """One child's work: ``count`` mutations of one of the files kept for every release."""
    from tests.runtime.mutate import mutations
    from tests.runtime.sound import accepted_is_sound

    from intact.errors import EngineError, ProgramError
    from intact.program.file import digest, load
    from intact.runtime import Facts
    from intact.runtime.load import open_program, start

    sources = sorted((ROOT / "tests" / "fixtures").glob("*/*.safetensors"))
    source = sources[seed % len(sources)]
    original, facts = digest(load(source)), Facts.here()
    told: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    worst = {"seconds": 0.0, "multiple": 0.0, "bytes": 0.0}
    unsound: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mutated")
        for i, data in enumerate(mutations(source.read_bytes(), seed, count)):
            path.write_bytes(data)
            tracemalloc.start()
            started, opened = time.process_time(), None
            try:
                opened = open_program(path)
            except ProgramError as error:
                told["refused"] += 1
                reasons[error.what[:48]] += 1
            seconds, taken = time.process_time() - started, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if opened is not None:
                try:
                    accepted_is_sound(opened.program)
                except AssertionError as error:
                    unsound.append(f"{source.name}, seed {seed}, file {i}: {error!s:.80}")
                started = time.process_time()
                try:
                    start(opened, "reference", None, "never", SLOW, facts)
                    told["accepted as it was" if opened.digest == original else "accepted, another program"] += 1
                except EngineError as error:
                    told["refused by preflight or golden vectors"] += 1
                    reasons[error.what[:48]] += 1
                seconds += time.process_time() - started
            told["slow"] += seconds > SLOW
            worst["seconds"] = max(worst["seconds"], seconds)
            worst["bytes"] = max(worst["bytes"], taken - MULTIPLE * len(data))
            if len(data) >= SMALL:
                worst["multiple"] = max(worst["multiple"], taken / len(data))
    return {"told": told, "reasons": reasons, "worst": worst, "unsound": unsound}


def hostile(name: str, size: int) -> dict[str, Any]:
    """One child's work: what one file made to take memory does take, beyond what this process has anyway."""
    from tests.runtime.hostile import HOSTILE

    from intact.errors import ProgramError
    from intact.program.file import load

    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "hostile"), Path(folder, "small")
        small.write_bytes(HOSTILE[name](1000))
        length = path.write_bytes(HOSTILE[name](size))
        for file in (small, path):  # the first one brings in what is imported late
            before, started = memory("VmRSS"), time.process_time()
            try:
                load(file)
            except ProgramError as error:
                what = error.what
        return {"multiple": (memory("VmHWM") - before) / length, "seconds": time.process_time() - started, "what": what}


def memory(field: str) -> int:
    """VmRSS or VmHWM of this process in bytes; 0 where there is none."""
    status = Path("/proc/self/status")
    return int(status.read_text().split(f"{field}:")[1].split()[0]) * 1024 if status.exists() else 0


def child(*arguments: str) -> tuple[dict[str, Any] | None, str]:
    """What a child process found, or what became of it."""
    try:
        command = [sys.executable, __file__, "--child", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=STUCK)
    except subprocess.TimeoutExpired:
        return None, f"not done after {STUCK:.0f} s"
    if done.returncode != 0:
        return None, f"exit status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    return json.loads(done.stdout), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--size", type=int, default=4_000_000, help="bytes of the files made to take memory")
    parser.add_argument("--output", type=Path, help="also write the table here")
    parser.add_argument("--child", nargs=2, metavar=("WHAT", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what, number = given.child[0], int(given.child[1])
        print(json.dumps(chunk(int(what), number) if what.isdigit() else hostile(what, number)))
        return
    text, fine = report(given)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if fine else 1)


def report(given: argparse.Namespace) -> tuple[str, bool]:
    """The table, and whether all is as it must be."""
    from tests.runtime.hostile import HOSTILE

    started, done = time.monotonic(), 0
    told: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    worst = {"seconds": 0.0, "multiple": 0.0, "bytes": 0.0}
    deaths: list[str] = []
    unsound: list[str] = []
    while done < given.count and time.monotonic() - started < given.seconds:
        count, seed = min(CHUNK, given.count - done), given.seed + done // CHUNK
        found, problem = child(str(seed), str(count))
        done += count
        if found is None:
            deaths.append(f"seed {seed}: {problem}")
            continue
        told.update(found["told"])
        reasons.update(found["reasons"])
        unsound += found["unsound"]
        worst = {key: max(worst[key], found["worst"][key]) for key in worst}
    rows = []
    for name in HOSTILE:
        found, problem = child(name, str(given.size))
        if found is None:
            deaths.append(f"{name}: {problem}")
            continue
        rows.append((name, found))
    most = max((found["multiple"] for _, found in rows), default=0.0)
    fine = not (deaths or unsound or told["slow"]) and most <= MULTIPLE and worst["bytes"] <= FIXED
    options = f"--count {given.count} --seed {given.seed} --size {given.size}"
    lines = [
        "# Damaged files through the loader",
        "",
        f"`python benchmarks/fuzz.py {options}`, Python {platform.python_version()}, {platform.machine()}, "
        f"{(time.monotonic() - started) / 60:.0f} minutes.",
        "",
        "| | |",
        "|---|---|",
        f"| files | {done:,} |",
        f"| refused by the checks of the file | {told['refused']:,} |",
        f"| refused by preflight or golden vectors | {told['refused by preflight or golden vectors']:,} |",
        f"| accepted, the original program (provenance or golden vectors differ) | {told['accepted as it was']:,} |",
        f"| accepted, another one that the specification allows | {told['accepted, another program']:,} |",
        f"| **accepted, and not what the specification allows** | **{len(unsound)}** |",
        f"| **crashes** (a child process of {CHUNK} files died) | **{len(deaths)}** |",
        f"| **took more than {SLOW:.0f} s of CPU** | **{told['slow']}** |",
        f"| slowest | {worst['seconds']:.3f} s |",
        f"| most memory, of mutated files above {SMALL} bytes | {worst['multiple']:.1f} times the file |",
        f"| most memory beyond {MULTIPLE} times the file, of all | {max(worst['bytes'], 0) / 1e3:.0f} kB |",
        f"| most memory, of files made to take much | {most:.1f} times the file |",
        "",
        f"The stated bound: {MULTIPLE} times the file's size and {FIXED >> 20} MiB.",
        "",
        f"Files of {given.size / 1e6:.0f} MB made to take much memory (resident size, one process each):",
        "",
        "| file | memory / file | CPU | refused with |",
        "|---|---|---|---|",
        *(f"| {n} | {f['multiple']:.1f} | {f['seconds']:.2f} s | {f['what']} |" for n, f in rows),
        "",
        "Reasons of refusals, the most frequent ones:",
        "",
        *(f"- {number:,}: {reason}" for reason, number in reasons.most_common(20)),
        *(f"- DEATH {death}" for death in deaths),
        *(f"- UNSOUND {case}" for case in unsound),
    ]
    return "\n".join(lines), fine


if __name__ == "__main__":
    main()
