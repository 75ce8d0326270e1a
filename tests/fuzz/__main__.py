"""Fuzz loader and engines: ``python -m tests.fuzz --count 300000 --files 200000``; ``--sanitize`` builds the extension
for that.

``--count`` programs by chance go through checks, files and engines; ``--files`` mutations of the files kept for every
release go the whole way of ``intact8.runtime.load``; and files of ``--size`` bytes are made to take memory. Exit status
1 where something died, raised what is no IntactError, differs though it is certified, was accepted though the
specification does not allow it, or took more time or memory than stated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.sanitized import sanitized, use


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="programs; a fourth of them become files, mutated")
    parser.add_argument("--files", type=int, default=2_000, help="mutations of the files kept for every release")
    parser.add_argument("--size", type=int, default=4_000_000, help="bytes of the files made to take memory; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first case, to make one again")
    parser.add_argument("--engines", default="onednn", help="beside the reference, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop each part after this long")
    parser.add_argument("--kinds", default="", help="kinds the programs begin with, separated by commas")
    parser.add_argument("--output", type=Path, help="write the faults here, one JSON object a line")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.sanitize and "FUZZ_EXTENSION" not in os.environ:
        sanitized([sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])
    if "FUZZ_EXTENSION" in os.environ:
        use(Path(os.environ["FUZZ_EXTENSION"]))
    from tests.fuzz.files import fuzz_files, fuzz_memory
    from tests.fuzz.programs import NAMES
    from tests.fuzz.run import fuzz

    began, kinds = time.monotonic(), tuple(given.kinds.split(",")) if given.kinds else NAMES
    found = fuzz(given.seed, given.count, given.engines.split(","), given.seconds, kinds, given.start)
    found.add(fuzz_files(given.seed, given.files, given.seconds))
    if given.size:
        found.add(fuzz_memory(given.size))
    for what, count in sorted(found.counts.items()):
        print(f"{count:9,} {what}")
    for what, value in sorted(found.worst.items()):
        print(f"{value:9.3f} at most: {what}")
    print(f"{time.monotonic() - began:9.0f} s, {os.times().children_user + os.times().children_system:.0f} s of CPU")
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for fault in found.faults:
        key = tuple(str(fault.get(name, ""))[:60] for name in ("fault", "engine", "place", "status", "error", "source"))
        alike.setdefault(key if "ops" not in fault else (*key, *fault["ops"]), []).append(fault)
    for faults in sorted(alike.values(), key=len, reverse=True):
        print(f"{len(faults)} like", json.dumps(faults[0], ensure_ascii=False))
    if given.output:
        given.output.write_text("".join(json.dumps(f) + "\n" for f in found.faults), encoding="utf-8")
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
