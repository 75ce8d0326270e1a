"""Fuzz the loader: mutated program files, in child processes, so that a death is counted and not shared.

    python benchmarks/fuzz.py --count 200000 --seed 0

Prints how many files were refused and accepted, for which reasons, the slowest, the memory taken, and the deaths. Exit
status 1 when a process died, a file took more than two seconds, or an accepted program was not sound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

CHUNK, SLOW = 5000, 2.0


def chunk(seed: int, count: int) -> dict[str, Any]:
    """One child's work."""
    from tests.program.build import certified
    from tests.runtime.mutate import accepted_is_sound, mutations

    from intact.errors import IntactError
    from intact.golden import with_golden
    from intact.program.file import parse, save

    path = ROOT / f".fuzz-{seed}"
    try:
        whole = save(with_golden(certified()), path).read_bytes()
    finally:
        path.unlink(missing_ok=True)
    before = peak()
    refused: Counter[str] = Counter()
    accepted, slowest, largest = 0, 0.0, 0
    for data in mutations(whole, seed, count):
        started = time.process_time()
        try:
            program = parse(data, "mutated")
        except IntactError as error:
            refused[f"{type(error).__name__}: {error.what[:40]}"] += 1
        else:
            accepted += 1
            accepted_is_sound(program)
        slowest = max(slowest, time.process_time() - started)
        largest = max(largest, len(data))
    return {
        "accepted": accepted, "refused": dict(refused), "slowest": slowest, "memory": peak() - before,
        "largest": largest,
    }  # fmt: skip


def peak() -> int:
    """Largest resident size of this process so far, in bytes; 0 where it cannot be read."""
    status = Path("/proc/self/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 if status.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(chunk(given.seed, given.count)))
        return
    started, done, deaths = time.monotonic(), 0, []
    refused: Counter[str] = Counter()
    accepted, slowest, memory, largest = 0, 0.0, 0, 0
    while done < given.count and time.monotonic() - started < given.seconds:
        count, seed = min(CHUNK, given.count - done), given.seed + done // CHUNK
        command = [sys.executable, __file__, "--child", "--seed", str(seed), "--count", str(count)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        done += count
        if child.returncode != 0:
            last = (child.stderr.strip().splitlines() or [""])[-1]
            deaths.append(f"seed {seed}: exit status {child.returncode}: {last}")
            continue
        found = json.loads(child.stdout)
        refused.update(found["refused"])
        accepted += found["accepted"]
        slowest, memory = max(slowest, found["slowest"]), max(memory, found["memory"])
        largest = max(largest, found["largest"])
    print(f"{done} files: {sum(refused.values())} refused, {accepted} accepted and sound, {len(deaths)} processes died")
    print(f"slowest {slowest:.3f} s of CPU; memory grew by {memory / 1e6:.1f} MB, largest file {largest / 1e3:.1f} kB")
    for reason, number in refused.most_common(15):
        print(f"{number:9d}  {reason}")
    for death in deaths:
        print(f"DEATH {death}")
    if deaths or slowest > SLOW:
        sys.exit(1)


if __name__ == "__main__":
    main()
