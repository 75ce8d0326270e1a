"""Files with one flipped bit anywhere, through the loader: every one must be refused as damaged, by its path.

    python benchmarks/bit_flips.py --count 100000 --seed 0 --output benchmarks/results/DATE-bit-flips.md

The files are the ones kept for every release, loaded and written again (so in the present format, with a checksum). A
third of the bits flip anywhere, a third within the first 400 bytes, a third within the header. What is flipped goes the
way of ``Program.load``, without the disk. Exit status 1 when one file is accepted, or is refused as something else.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def flip(path: Path, count: int, seed: int) -> Counter[str]:
    """What became of ``count`` files."""
    from tests.runtime.mutate import one_bit

    from intact8.errors import ProgramError
    from intact8.program.file import parse

    told: Counter[str] = Counter()
    for data in one_bit(path.read_bytes(), seed, count):
        try:
            parse(data, path)
        except ProgramError as error:
            named = error.what.startswith("the file is damaged") and error.where == str(path)
            told["refused as damaged" if named else f"refused otherwise: {error.what}"] += 1
        else:
            told["accepted"] += 1
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    from intact8.program.program import Program

    sources = sorted((ROOT / "tests" / "fixtures").glob("*/*.safetensors"))
    shares = [given.count // len(sources) + (i < given.count % len(sources)) for i in range(len(sources))]
    started, rows, fine = time.monotonic(), [], True
    with tempfile.TemporaryDirectory() as folder:
        for i, (source, share) in enumerate(zip(sources, shares, strict=True)):
            path = Program.load(source).save(Path(folder, source.name))
            told = flip(path, share, given.seed + i)
            fine &= told["refused as damaged"] == share
            others = ", ".join(f"{n:,} {what}" for what, n in told.items() if what.startswith("refused otherwise"))
            rows.append(
                f"| {source.parent.name} {source.stem} | {path.stat().st_size:,} | {share:,} | {told['accepted']} "
                f"| {told['refused as damaged']:,} | {others or '0'} |"
            )
    lines = [
        "# One flipped bit", "",
        f"`python benchmarks/bit_flips.py --count {given.count} --seed {given.seed}`, Python "
        f"{platform.python_version()}, {platform.machine()}, {(time.monotonic() - started) / 60:.0f} minutes.", "",
        "| program | bytes | files | accepted | refused as damaged | refused otherwise |", "|---|---|---|---|---|---|",
        *rows,
    ]  # fmt: skip
    print("\n".join(lines))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
