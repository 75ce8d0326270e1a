"""How many planted faults the tests find: random mutations of the source, each met by the tests that execute its lines.

    pip install coverage
    python benchmarks/mutation.py collect --folder /tmp/mutation                # once: which test executes which lines
    python benchmarks/mutation.py run --folder /tmp/mutation --count 300 --seed 0

``collect`` runs the tests of these rooms once under coverage. ``run`` draws mutations from the rooms below, evenly over
all places where one is possible, and runs for each the tests that execute it, those of the same room and the quickest
first, for at most ``--seconds`` of their own time; a module's top level is met by all tests of its room. A mutation is
killed when a test fails or the tests do not come to an end. It prints every survivor, and exits with 1 where fewer
than nine in ten were killed. What was found lies in ``found-SEED.jsonl`` in the folder, so that a run goes on where an
earlier one was stopped.
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
from collections import defaultdict
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # instead of this folder, which has a module named coverage

from benchmarks.mutations import Mutation, mutations  # noqa: E402

ROOMS = (
    *("arithmetic", "opset", "program", "placement", "calibration", "lower", "recipe", "simulation", "runtime"),
    "engines/native",
)
"""What is mutated: the meaning of numbers, the checker and the certificates, lowering, placement, training, loading."""

TESTS = (
    *(f"{kind}/{room}" for kind in ("tests", "src/intact8") for room in ROOMS),
    "tests/train",
    "tests/calibration",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").glob("test_*.py") if "hugging" not in p.name),
)
"""What ``collect`` runs: the tests of these rooms and those of the whole way. The rest of CI would kill more."""

ENOUGH = 0.9


class Contexts:
    """A pytest plugin that tells coverage which test runs, and keeps how long each took."""

    def __init__(self, measured: Any) -> None:
        self.measured, self.seconds = measured, defaultdict[str, float](float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Called by pytest before a test and its fixtures."""
        self.measured.switch_context(nodeid.split("[")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after every phase of a test."""
        self.seconds[report.nodeid.split("[")[0]] += report.duration


def collect(folder: Path) -> None:
    """Run the tests once and write which of them execute which line."""
    import pytest

    import coverage

    folder.mkdir(parents=True, exist_ok=True)
    measured = coverage.Coverage(data_file=None, source=[str(ROOT / "src")], messages=False)
    plugin = Contexts(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", *(str(ROOT / t) for t in TESTS)], plugins=[plugin])
    measured.stop()
    data = measured.get_data()
    lines = {}
    for path in data.measured_files():
        name = Path(path).relative_to(ROOT).as_posix()
        lines[name] = {str(line): [t for t in tests if t] for line, tests in data.contexts_by_lineno(path).items()}
    found = {"lines": lines, "seconds": plugin.seconds}
    (folder / "lines.json").write_text(json.dumps(found))


def draw(count: int, seed: int, rooms: tuple[str, ...]) -> list[Mutation]:
    """Some of all mutations, evenly."""
    folder = ROOT / "src" / "intact8"
    paths = sorted(p for room in rooms for p in (folder / room).rglob("*.py"))
    every = [m for path in paths for m in mutations(ROOT, path)]
    return random.Random(seed).sample(every, min(count, len(every)))


def chosen(mutation: Mutation, collected: dict[str, Any], limit: float) -> list[str]:
    """The tests that execute a mutation's lines: those of its room first, quick ones first."""
    room = mutation.path.split("/")[2]
    lines, seconds = collected["lines"].get(mutation.path, {}), collected["seconds"]
    tests = {t for n in range(mutation.first, mutation.last + 1) for t in lines.get(str(n), ())}
    if not tests:
        tests = {t for t in seconds if t.startswith((f"tests/{room}/", mutation.path))}
    ordered = sorted(tests, key=lambda t: (not t.startswith((f"tests/{room}/", "src/")), seconds.get(t, 0.0)))
    out, total = [], 0.0
    for test in ordered:
        total += seconds.get(test, 0.0)
        if out and total > limit:
            break
        out.append(test)
    return out


def survives(workspace: Path, mutation: Mutation, tests: list[str], limit: float) -> bool:
    """Whether all ``tests`` pass with the fault in place. Works in a child process, which may die or hang."""
    path = workspace / mutation.path
    source, about = path.read_bytes(), path.stat()
    path.write_bytes(mutation.apply(source))
    child = os.fork()
    enough = int(30 + 4 * limit)  # of the processor's time, for the machine may be busy
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (enough, enough))
        _test(workspace, tests)
    ends = time.monotonic() + 10 * enough
    status = 1
    try:
        while time.monotonic() < ends:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = code
                break
            time.sleep(0.05)
        else:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return status == 0


def _test(workspace: Path, tests: list[str]) -> None:
    """Run tests in this process and end it: status 0 where all pass."""
    import pytest

    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    os.chdir(workspace)
    sys.path[:] = [str(workspace / "src"), str(workspace), *(p for p in sys.path if p != str(ROOT))]
    os.environ["PYTHONPATH"] = str(workspace / "src")
    for name in [n for n in sys.modules if n.split(".")[0] in ("benchmarks", "intact8", "tests")]:
        del sys.modules[name]
    code = 1
    try:
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))
    finally:
        os._exit(0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1)


def work(number: int, folder: Path, todo: Queue[Any], done: Queue[Any], limit: float) -> None:
    """One worker: a copy of the repository, in which it puts one fault after another."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    import numpy  # noqa: F401
    import onnxruntime  # noqa: F401
    import torch

    torch.set_num_threads(1)
    workspace = folder / f"workspace{number}"
    shutil.rmtree(workspace, ignore_errors=True)
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, workspace, ignore=ignored)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(workspace / "src")], check=False)
    while (entry := todo.get()) is not None:
        mutation, tests = entry
        done.put((mutation, len(tests), not tests or survives(workspace, mutation, tests, limit)))
    shutil.rmtree(workspace, ignore_errors=True)


def run(folder: Path, count: int, seed: int, workers: int, limit: float, rooms: tuple[str, ...]) -> int:
    """Plant faults and count. Returns the exit status."""
    collected = json.loads((folder / "lines.json").read_text())
    drawn, journal = draw(count, seed, rooms), folder / f"found-{seed}.jsonl"
    earlier = dict(map(json.loads, journal.read_text().splitlines())) if journal.exists() else {}
    left = [mutation for mutation in drawn if str(mutation) not in earlier]
    survivors = sum(earlier.get(str(mutation), False) for mutation in drawn)
    context = get_context("fork")
    todo, done = context.Queue(), context.Queue()
    for mutation in left:
        todo.put((mutation, chosen(mutation, collected, limit)))
    for _ in range(workers):
        todo.put(None)
    processes = [context.Process(target=work, args=(n, folder, todo, done, limit)) for n in range(workers)]
    for process in processes:
        process.start()
    for i in range(len(drawn) - len(left), len(drawn)):
        mutation, tests, alive = done.get()
        with journal.open("a") as file:
            file.write(json.dumps([str(mutation), alive]) + "\n")
        survivors += alive
        if alive:
            print(f"survives {tests} tests: {mutation}", flush=True)
        elif i % 25 == 24:
            print(f"{i + 1} of {len(drawn)}: {survivors} survive", flush=True)
    for process in processes:
        process.join()
    share = 1 - survivors / max(len(drawn), 1)
    print(f"killed {len(drawn) - survivors} of {len(drawn)}: {share:.1%}")
    return 0 if share >= ENOUGH else 1


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("collect", "run"))
    parser.add_argument("--folder", type=Path, required=True, help="for what is collected and for copies of the source")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests per mutation, at most")
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=ROOMS)
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.folder)
    else:
        sys.exit(run(given.folder, given.count, given.seed, given.workers, given.seconds, tuple(given.rooms)))


if __name__ == "__main__":
    main()
