"""The tests that take longer than a second or so, which ``make test`` leaves out and ``make test-all`` runs.

They are listed in slow_tests.txt by what was measured, so that a test moves by measuring again, not by opinion. Those
of ``tests/conformance`` and ``conformance``, which compare engines with the ideal semantics, are never left out, and of
every other file one is run at least, the fastest.

    PYTEST_ADDOPTS=--junitxml=build/times.xml make test-all
    python -m tests.slow build/times.xml
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("slow_tests.txt")

SECONDS = 1.0
"""Seconds on one core, and up, that a test takes to be left out."""

KEPT = ("tests/conformance/", "conformance/")
"""Where tests are never left out."""


def listed() -> set[str]:
    """Return the node ids of the slow tests, as pytest prints them."""
    return set(LIST.read_text().splitlines())


def of_file(path: str) -> str:
    """Return the file of a node id, relative to the repository."""
    return path.partition("::")[0]


def slow_ones(times: Iterable[tuple[str, float]], seconds: float = SECONDS) -> list[str]:
    """Return the node ids of the tests that took so long, in order, without those that are kept.

    >>> times = {"tests/test_a.py::test_b": 2.0, "tests/test_a.py::test_c": 3.0, "tests/conformance/d.py::e": 9.0}
    >>> slow_ones(times.items())
    ['tests/test_a.py::test_c']
    """
    files: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name, took in times:
        files[of_file(name)].append((took, name))
    left_out = (pair for tests in files.values() for pair in sorted(tests)[1:])
    return sorted(name for took, name in left_out if took >= seconds and not name.startswith(KEPT))


def measured(report: Path) -> Iterator[tuple[str, float]]:
    """Yield node ids and seconds, setup included, of a report in JUnit's form."""
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        files = ("/".join(parts[:count]) + ".py" for count in range(len(parts), 0, -1))
        path = next(file for file in files if (ROOT / file).is_file())
        classes = parts[path.count("/") + 1 :]
        yield "::".join([path, *classes, case.get("name", "")]), float(case.get("time", 0.0))


def main() -> None:
    """Write the list anew, of all tests in some reports; tests that are in none of them stay as they are."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("reports", nargs="+", type=Path, help="JUnit files")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    times = dict(pair for report in options.reports for pair in measured(report))
    kept = {name for name in listed() if name not in times and (ROOT / of_file(name)).is_file()}
    LIST.write_text("".join(f"{name}\n" for name in sorted({*slow_ones(times.items(), options.seconds), *kept})))


if __name__ == "__main__":
    main()
