"""Trying whole collections: ``python -m tests.torch_suites OUT.jsonl [--suite networks …] [--only PART] [--every N]``.

Cases run in a child process, so that one that ends it is recorded and the rest goes on. Results are lines of JSON, and
a case whose line is there already is not tried again. Without anything to do it prints the summary.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from .case import ENGINES, Case, Fault, Finding

SUITES = ("networks", "modules", "operators")
LIMIT = 120
"""Seconds of the processor's time that a case may take, for the machine may be busy; ten times as many in all."""


class Late(BaseException):
    """A case took longer than LIMIT."""


def late(_: int, __: FrameType | None) -> None:
    raise Late


def collected(suite: str) -> list[Case]:
    """All cases of one collection."""
    from importlib import import_module

    return list(import_module(f"{__package__}.{suite}").cases())


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Finished and started cases by suite and name; a started one that never finished died."""
    found: dict[str, dict[str, Any]] = {}
    for line in out.read_text().splitlines() if out.exists() else ():
        entry = json.loads(line)
        found[f"{entry['suite']}: {entry['name']}"] = entry
    return found


def work(args: argparse.Namespace) -> None:
    """Try what has no line yet, in this process."""
    import torch

    from .judge import judge

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    done = read(args.out)
    with args.out.open("a") as file:
        for suite in args.suite:
            for case in collected(suite)[args.start :: args.every]:
                wanted = any(part in case.name for part in args.only) and not any(p in case.name for p in args.skip)
                if f"{suite}: {case.name}" in done or not wanted:
                    continue
                print(json.dumps({"suite": suite, **Finding(case.name, "died").to_json()}), file=file, flush=True)
                signal.alarm(10 * LIMIT)
                signal.setitimer(signal.ITIMER_PROF, LIMIT)
                try:
                    finding = judge(case, args.engines, files=bool(args.engines), training=suite == "networks")
                except Late:
                    finding = Finding(case.name, "timeout")
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                print(json.dumps({"suite": suite, **finding.to_json()}), file=file, flush=True)


def summary(out: Path, suites: list[str], details: bool) -> None:
    """Numbers per collection; with details, every fault."""
    entries = list(read(out).values())
    for suite in suites:
        mine = [e for e in entries if e["suite"] == suite]
        if not mine:
            continue
        rules = Counter(rule for e in mine for rule in {f["rule"] for f in e["faults"]})
        where = Counter(w for e in mine for w in {f["where"] for f in e["faults"] if f["rule"] == "mismatch"})
        tried = [e for e in mine if e["outcome"] != "skipped"]
        clean = [e for e in tried if not e["faults"]]
        plain = [e for e in tried if e["tensor_in_and_out"]]
        print(f"{suite}: {len(mine)} cases, {len(tried)} tried, {sum(e['seconds'] for e in mine):.0f} s,",
              f"{sum(e['elements'] for e in mine):,} integers")  # fmt: skip
        print("  outcomes:", dict(Counter(e["outcome"] for e in mine)))
        print("  without a fault:", dict(Counter(e["outcome"] for e in clean)))
        print("  faults:", dict(rules), "mismatches in", dict(where))
        print("  refusals of an accepted program:", dict(Counter(
            w for e in tried if e["outcome"] == "converted" for w in e["refusals"])))  # fmt: skip
        print("  one tensor in and out:", dict(Counter(e["outcome"] for e in plain)),
              f"{sum(e['outcome'] == 'converted' for e in plain) / max(len(plain), 1):.1%}")  # fmt: skip
        if details:
            for e in mine:
                for f in e["faults"]:
                    print(f"    {e['name']}: {Fault(**f)}"[:700])


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torch_suites", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", nargs="+", default=list(SUITES), choices=SUITES)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--skip", nargs="+", default=[], help="parts of names that are left out")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), help="none: only the conversion is tried")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--summary", action="store_true", help="print, try nothing")
    parser.add_argument("--details", action="store_true", help="print every fault")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return 0
    while not args.summary:
        command = [sys.executable, "-m", __package__ or "", *sys.argv[1:], "--worker"]
        if subprocess.run(command, check=False).returncode in (0, 1, 2, -signal.SIGINT):
            break
    summary(args.out, args.suite, args.details)
    return 0


if __name__ == "__main__":
    sys.exit(main())
