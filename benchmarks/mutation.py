"""How many planted faults the tests find: random mutations of the source, each met by the tests that execute it.

    python benchmarks/mutation.py --folder /tmp/mutation --count 300 --seed 0
    python benchmarks/mutation.py --folder /tmp/mutation --tests tests/lower    # survivors again, met by these tests

All faults drawn are planted in one copy of the source, each behind a question whether it is the one that holds. The
tests are collected once, and run once without a fault to see which of them ask for which; then a fault costs a
forked process that runs the tests that ask for it, quick ones first, for at most ``--seconds`` of their time. Faults in
what happens at import are met in a process of their own. A fault is killed when a test fails or the tests do not come
to an end. Results lie in the folder, and a run goes on where an earlier one was stopped. Prints every survivor; exit
status 1 where fewer than nine in ten were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # instead of this folder, which has a module named coverage

from benchmarks.mutations import Mutation, mutations, planted  # noqa: E402

ROOMS = (
    *("arithmetic", "opset", "program", "placement", "calibration", "lower", "recipe", "simulation", "runtime"),
    "engines/native",
)
"""What is mutated: the meaning of numbers, the checker and the certificates, lowering, placement, training, loading."""

TESTS = (
    *(f"{kind}/{room}" for kind in ("tests", "src/intact8") for room in ROOMS),
    "tests/train",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").glob("test_*.py") if "hugging" not in p.name),
)
"""The tests of these rooms and those of the whole way. The rest of CI would kill more."""

ENOUGH = 0.9
ALLOWED = 20
"""Seconds of the processor's time that the tests of one fault may take, beside three times what they took without."""

QUESTION = '''"""Which planted fault holds, and which were asked for.

In files, as probes have no environment; a number is the name of an empty one, as probes may write no byte.
"""
from pathlib import Path

folder, seen = Path(__file__).parents[2], set()
now = int((folder / "now").read_text())


def planted(number: int) -> bool:
    if number not in seen:
        seen.add(number)
        (folder / "asked" / str(number)).touch()
    return number == now
'''


class Planted:
    """A pytest plugin that runs the tests for every fault, in children of the process that collected them."""

    def __init__(self, folder: Path, drawn: list[Mutation], limit: float, tests: tuple[str, ...]) -> None:
        self.folder, self.drawn, self.limit, self.tests = folder, drawn, limit, tests
        self.seconds: dict[str, float] = {}
        self.asked: dict[int, set[str]] = {}
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest after every phase of a test."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Called by pytest in place of running what it collected."""
        journal = self.folder / f"tests-{'-'.join(self.tests).replace('/', '.')[:80]}.jsonl"
        for _ in range(20):  # a test that ends the process is left out
            if _forked(lambda: self._without_fault(session.items, journal)) == 0:
                break
        for line in journal.read_text().splitlines():
            test, seconds, numbers = json.loads(line)
            if numbers is not None:
                self.seconds[test] = seconds
                for number in numbers:
                    self.asked.setdefault(number, set()).add(test)
        found = self.folder / "found.jsonl"
        for number, mutation in self._left(found):
            items = self._chosen(number, mutation, session.items)
            at_import = number not in self.asked
            start = time.monotonic()
            alive = self._survives(number, items, at_import=at_import)
            with found.open("a") as file:
                entry = [str(mutation), self.tests, alive, len(items), round(time.monotonic() - start, 1)]
                file.write(json.dumps(entry) + "\n")
            if alive:
                print(f"survives {len(items)} tests: {mutation}", flush=True)
        return True

    def _left(self, found: Path) -> Iterator[tuple[int, Mutation]]:
        """Faults that neither were killed nor met by these very tests."""
        done = set()
        for line in found.read_text().splitlines() if found.exists() else ():
            text, tests, alive, *_ = json.loads(line)
            if not alive or tuple(tests) == self.tests:
                done.add(text)
        return ((i, m) for i, m in enumerate(self.drawn) if str(m) not in done)

    def _without_fault(self, items: list[pytest.Item], journal: Path) -> int:
        """Run every test that has no line yet, and write its seconds and the faults it asked for; None: it failed."""
        import _planted

        asks = self.folder / "asked"
        known = {json.loads(line)[0] for line in journal.read_text().splitlines()} if journal.exists() else set()
        left = [item for item in items if item.nodeid not in known]
        with journal.open("a") as file:
            for item, following in zip(left, [*left[1:], None], strict=True):
                print(json.dumps([item.nodeid, 0, None]), file=file, flush=True)
                _planted.seen.clear()
                for asked in asks.iterdir():
                    asked.unlink()
                self.failed, start = False, sum(os.times()[:4])
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if not self.failed:
                    numbers = sorted(int(asked.name) for asked in asks.iterdir())
                    print(json.dumps([item.nodeid, sum(os.times()[:4]) - start, numbers]), file=file, flush=True)
        return 0

    def _chosen(self, number: int, mutation: Mutation, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests that ask for a fault, file by file, quick ones first; where none does, those of its room."""
        folders = mutation.path.split("/")[2:-1]
        while not (ROOT / "tests").joinpath(*folders).is_dir():
            folders.pop()
        room = "/".join(folders)
        tests = self.asked.get(number) or {
            t for t in self.seconds if t.startswith((f"tests/{room}/", mutation.path, "tests/test_tiny"))
        }
        mine = sorted((i for i in items if i.nodeid in tests), key=lambda item: self.seconds[item.nodeid])
        total, taken = 0.0, list[pytest.Item]()
        for item in mine:
            total += self.seconds[item.nodeid]
            if taken and total > self.limit:
                break
            taken.append(item)
        first = {item.path: i for i, item in reversed(list(enumerate(taken)))}
        return sorted(taken, key=lambda item: first[item.path])

    def _survives(self, number: int, items: list[pytest.Item], *, at_import: bool) -> bool:
        """Whether all tests pass with the fault in place."""
        if not items:
            return True
        allowed = int(ALLOWED + 3 * sum(self.seconds[item.nodeid] for item in items))

        def meet() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
            if at_import:
                command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
                return subprocess.run([*command, *(item.nodeid for item in items)], check=False).returncode
            import _planted

            _planted.now = number
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    return 1
            return 0

        now = self.folder / "now"
        now.write_text(str(number))
        status = _forked(meet, 10.0 * allowed)
        now.write_text("-1")
        return status == 0


def _forked(work: Any, seconds: float = float("inf")) -> int:
    """The status of a child that does it, which may die or hang."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        try:
            status = work()
        finally:
            os._exit(status)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def prepare(folder: Path, count: int, seed: int, rooms: tuple[str, ...]) -> list[Mutation]:
    """A copy of the repository with all faults in it. Those of an earlier run in the folder stay, whatever changed."""
    source, workspace = folder / "source", folder / "workspace"
    ignored = shutil.ignore_patterns(".git", ".venv", ".ci", "__pycache__", "build", "*.egg-info", ".*_cache")
    if not source.exists():
        shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    shutil.rmtree(workspace, ignore_errors=True)
    shutil.copytree(ROOT, workspace, ignore=ignored)
    shutil.copytree(source / "src", workspace / "src", dirs_exist_ok=True)
    paths = sorted(p for room in rooms for p in (source / "src" / "intact8" / room).rglob("*.py"))
    every = [m for path in paths for m in mutations(source, path)]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    for name in {m.path for m in drawn}:
        mine = [(i, m) for i, m in enumerate(drawn) if m.path == name]
        (workspace / name).write_bytes(planted((source / name).read_bytes(), mine))
    (workspace / "src" / "_planted.py").write_text(QUESTION)
    (folder / "asked").mkdir(exist_ok=True)
    return drawn


def main() -> int:
    """Plant faults and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for results and a copy of the repository")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests per fault, at most")
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=ROOMS)
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="that meet what is not killed yet")
    parser.add_argument("--marked", default="not bench and not long", help="which tests, as pytest's -m takes them")
    given = parser.parse_args()
    folder = given.folder.resolve()
    drawn = prepare(folder, given.count, given.seed, tuple(given.rooms))
    workspace = folder / "workspace"
    os.chdir(workspace)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(workspace / "src"), "OMP_NUM_THREADS": "1"}
    (folder / "now").write_text("-1")
    sys.path[:1] = [str(workspace / "src"), str(workspace)]
    for name in [n for n in sys.modules if n.split(".")[0] in ("benchmarks", "intact8", "tests")]:
        del sys.modules[name]
    plugin = Planted(folder, drawn, given.seconds, tuple(given.tests))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", given.marked]
    pytest.main([*options, *given.tests], plugins=[plugin])
    killed = set()
    for line in (folder / "found.jsonl").read_text().splitlines():
        text, _, alive, *_ = json.loads(line)
        if not alive:
            killed.add(text)
    count = sum(str(m) in killed for m in drawn)
    print(f"killed {count} of {len(drawn)}: {count / len(drawn):.1%}")
    return 0 if count >= ENOUGH * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
