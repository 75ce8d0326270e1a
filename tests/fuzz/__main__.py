"""Fuzz the engines: ``python -m tests.fuzz --count 300000``; ``--sanitize`` with the extension built for that.

Exit status 1 where something died, raised what is no IntactError, or differs though it is certified.
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first case, to make one again")
    parser.add_argument("--engines", default="onednn", help="beside the reference, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--kinds", default="", help="kinds the programs begin with, separated by commas")
    parser.add_argument("--output", type=Path, help="write the faults here, one JSON object a line")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.sanitize and "FUZZ_EXTENSION" not in os.environ:
        sanitized([sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])
    if "FUZZ_EXTENSION" in os.environ:
        use(Path(os.environ["FUZZ_EXTENSION"]))
    from tests.fuzz.programs import NAMES
    from tests.fuzz.run import fuzz

    began, kinds = time.monotonic(), tuple(given.kinds.split(",")) if given.kinds else NAMES
    found = fuzz(given.seed, given.count, given.engines.split(","), given.seconds, kinds, given.start)
    for what, count in sorted(found.counts.items()):
        print(f"{count:9,} {what}")
    print(f"{time.monotonic() - began:9.0f} s, {os.times().children_user + os.times().children_system:.0f} s of CPU")
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for fault in found.faults:
        key = tuple(str(fault.get(name, ""))[:60] for name in ("fault", "engine", "place", "status", "error"))
        alike.setdefault(key if "ops" not in fault else (*key, *fault["ops"]), []).append(fault)
    for faults in sorted(alike.values(), key=len, reverse=True):
        print(f"{len(faults)} like", json.dumps(faults[0], ensure_ascii=False))
    if given.output:
        given.output.write_text("".join(json.dumps(f) + "\n" for f in found.faults), encoding="utf-8")
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
