"""The fault matrix: everything that goes wrong around a load or a save, in one table.

    python benchmarks/faults.py --output benchmarks/results/DATE-faults.md
    python benchmarks/faults.py --quick            # what the tests run
    python benchmarks/faults.py --only emulated    # cases by a part of their group or name; --without for all others

What loads or saves is a process of its own. Exit status 1 unless it survives every case but those that kill it, with
the right error, no file is lost and no temporary file stays.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the cases the tests run")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of groups or cases")
    parser.add_argument("--without", nargs="+", default=[], help="the same, to be left out")
    parser.add_argument("--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tests.runtime.faults import matrix
    from tests.runtime.faults.base import close, problem

    started, rows, problems, skipped = time.monotonic(), [], [], []
    total: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {}
    for case in matrix.cases():
        name = f"{case.group}: {case.name}"
        wanted = any(part in name for part in given.only) and not any(part in name for part in given.without)
        if not wanted or (given.quick and not case.quick):
            continue
        result = matrix.run(case)
        if result.skipped:
            skipped.append(f"{case.group}: {case.name}: {result.skipped}")
            continue
        for key in ("cases", "deaths", "lost", "left"):
            total[key] += getattr(result, key)
        outcomes.setdefault(case.group, Counter())["cases"] += result.cases
        outcomes[case.group]["wrong"] += not result.fine
        if not result.fine:
            problems.append(f"{case.group}: {case.name}: {problem(result)}")
        print(f"{'ok  ' if result.fine else 'BAD '} {case.group}: {case.name}: {result.outcome[:200]}", flush=True)
        rows.append(f"| {case.group} | {case.name} | {cell(result.outcome)} |")
    close()
    options = " ".join(sys.argv[1 : None if given.output is None else sys.argv.index("--output")])
    lines = [
        "# The fault matrix",
        "",
        f"`python benchmarks/faults.py {options}`, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {(time.monotonic() - started) / 60:.0f} minutes.",
        "",
        f"**{total['cases']:,} cases; {total['deaths']} deaths of the calling process; {total['lost']} files lost; "
        f"{total['left']} temporary files left; {len(problems)} wrong outcomes.**",
        "",
        "| group | cases | wrong |",
        "|---|---|---|",
        *(f"| {group} | {found['cases']:,} | {found['wrong']} |" for group, found in outcomes.items()),
        "",
        *(f"- WRONG {problem}" for problem in problems),
        *(f"- not tried here: {reason}" for reason in skipped),
        "",
        "| group | case | outcome |",
        "|---|---|---|",
        *rows,
    ]
    print("\n".join(lines[:4] + lines[4 : len(lines) - len(rows) - 3]))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(1 if problems or not total["cases"] else 0)


def cell(text: str) -> str:
    """What fits into a table; no paths of this machine."""
    import re

    text = re.sub(r"/tmp/\S*?([\w.-]+)(?=[\s:,;)'\"]|$)", r"\1", text).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= 300 else text[:297] + "…"


if __name__ == "__main__":
    main()
