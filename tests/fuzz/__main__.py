"""Fuzz loader and engines: ``python -m tests.fuzz --count 300000 --files 200000``; ``--sanitize`` builds the extension
for that.

``--count`` programs by chance go through checks, files and engines; ``--files`` mutations of the files kept for every
release go the whole way of ``intact8.runtime.load``; ``--checkpoints`` mutations of files of ``torch.save`` go through
the reader that runs nothing; and files of ``--size`` bytes are made to take memory. Exit status
1 where something died, raised what is no IntactError, differs though it is certified, was accepted though the
specification does not allow it, or took more time or memory than stated. Faults are printed when they are found, the
counts once per 5,000 files and at the end, which SIGINT and SIGTERM bring about.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.sanitized import sanitized, use


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="programs; a fourth of them become files, mutated")
    parser.add_argument("--mutated", type=int, default=3, help="mutations of each of these files")
    parser.add_argument("--files", type=int, default=2_000, help="mutations of the files kept for every release")
    parser.add_argument("--checkpoints", type=int, default=1_000, help="mutations of files of torch.save")
    parser.add_argument("--size", type=int, default=4_000_000, help="bytes of the files made to take memory; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first case, to make one again")
    parser.add_argument("--engines", default="native,onednn", help="beside the reference, separated by commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop each part after this long")
    parser.add_argument("--kinds", default="", help="kinds the programs begin with, separated by commas")
    parser.add_argument("--output", type=Path, help="append the faults to this file, one JSON object a line")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.sanitize and "FUZZ_EXTENSION" not in os.environ:
        sanitized([sys.executable, "-m", "tests.fuzz", *sys.argv[1:]])
    if "FUZZ_EXTENSION" in os.environ:
        use(Path(os.environ["FUZZ_EXTENSION"]))
    from tests.fuzz import run
    from tests.fuzz.checkpoints import fuzz_checkpoints
    from tests.fuzz.files import fuzz_files, fuzz_memory
    from tests.fuzz.programs import NAMES
    from tests.fuzz.progress import Progress

    run.MUTATED = given.mutated
    kinds = tuple(given.kinds.split(",")) if given.kinds else NAMES
    found = Progress(given.output)
    with found.told():
        run.fuzz(given.seed, given.count, given.engines.split(","), given.seconds, kinds, given.start, found)
        fuzz_files(given.seed, given.files, given.seconds, found)
        fuzz_checkpoints(given.seed, given.checkpoints, found)
        if given.size and not given.sanitize:  # what a sanitizer keeps around every object is no memory of the reader's
            fuzz_memory(given.size, found)
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
