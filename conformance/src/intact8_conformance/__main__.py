"""The command: run the vectors on engines, print the table, exit with 1 where an engine's integers differ."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from intact8_conformance.compare import Result, compare, markdown, to_json
from intact8_conformance.engines import ENGINES
from intact8_conformance.vectors import OPERATIONS, vectors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where all integers agree, 1 where some differ, 2 where no engine could run."""
    asked = _parser().parse_args(arguments)
    names = asked.engine or [name for name, engine in ENGINES.items() if not engine.missing()]
    absent = {name: reason for name in names if (reason := ENGINES[name].missing())}
    for name, reason in absent.items():
        print(f"{name}: cannot run here: {reason}", file=sys.stderr)
    results: list[Result] = []
    for name in names:
        if name not in absent:
            results += compare(ENGINES[name], vectors(asked.seed, asked.operation))
    if not results:
        return 2
    versions = {name: ENGINES[name].version() for name in names if name not in absent}
    shown = markdown(results, versions, machine())
    print(shown, end="")
    if asked.markdown is not None:
        asked.markdown.write_text(shown, encoding="utf-8")
    if asked.json is not None:
        text = json.dumps(to_json(results, versions, machine()), indent=1)
        asked.json.write_text(text + "\n", encoding="utf-8")
    return int(any(result.differ for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="intact8_conformance", description=__doc__)
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="repeatable; all that can run here")
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS), help="repeatable; all by default")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases of the same corners")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    return parser


def machine() -> str:
    """Return the processor's name and the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {platform.system()}"


if __name__ == "__main__":
    sys.exit(main())
