"""A process forked after a program had been loaded and run: every engine runs there, or says that it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.networks import Network

from intact8.engines import available_engines, get_engine
from intact8.engines.base import Runner
from intact8.errors import EngineError
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

SECONDS = 20
RIGHT, REFUSED, WRONG = 0, 3, 4
REFUSES = {"openvino"}
ROOT = Path(__file__).parents[2]


def network() -> Program:
    """Convolutions that engines share among threads."""
    net = Network(np.random.default_rng(5))
    net.start((2, 8, 32, 32))
    return net.program((net.conv(net.max_pool(net.conv("x", 32, 3)), 16, 3),))


def in_child(call: Callable[[], bool]) -> int:
    """How a forked child ends that makes the call: −14 where it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            os._exit(RIGHT if call() else WRONG)
        except EngineError as error:
            os._exit(REFUSED if error.remedy else WRONG)
        finally:
            os._exit(WRONG)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def gives(runner: Runner, x: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.array_equal(runner({"x": x})[0], wanted))


def try_all(counts: tuple[int | None, ...]) -> None:
    """Print how the children of this process end."""
    program = network()
    x = np.random.default_rng(0).integers(0, 256, (5, 8, 32, 32)).astype(np.uint8)
    wanted = get_engine("reference").prepare(program)({"x": x})[0]
    for name in available_engines():
        for threads in (None,) if name == "reference" else counts:
            engine = get_engine(name)
            runner = engine.prepare(program, threads=threads)
            assert gives(runner, x, wanted) and gives(runner, x[:2], wanted[:2])

            def run(runner: Runner = runner) -> bool:
                return all(gives(runner, x[:n], wanted[:n]) for n in (5, 2, 3, 5))

            def tensors(runner: Runner = runner) -> bool:
                return np.array_equal(runner.tensors({"x": x})[program.outputs[0]], wanted)

            def prepare(name: str = name, threads: int | None = threads) -> bool:
                return gives(get_engine(name).prepare(program, threads=threads), x, wanted)

            def elsewhere(run: Callable[[], bool] = run) -> bool:
                found: list[bool] = []
                thread = threading.Thread(target=lambda: found.append(run()))
                thread.start()
                thread.join()
                return found == [True]

            def again(run: Callable[[], bool] = run) -> bool:
                return run() and in_child(run) == RIGHT

            calls = {"run": run, "prepare": prepare}
            if threads == 2:
                calls |= {"tensors": tensors, "elsewhere": elsewhere, "again": again}
            for what, call in calls.items():
                print(name, threads, what, in_child(call), flush=True)
            print(name, threads, "parent", RIGHT if run() else WRONG, flush=True)


@pytest.mark.parametrize(
    "counts", [pytest.param((2,), id="2"), pytest.param((None, 1), id="others", marks=pytest.mark.long)]
)
def test_runners_in_forked_processes(counts: tuple[int | None, ...]) -> None:
    code = f"from tests.engines.test_fork_safety import try_all; try_all({counts})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == set(available_engines())
    for name, threads, what, status in lines:
        refused = name in REFUSES and what != "parent"
        # A thread of its own leaves its error on stderr, and gives nothing.
        expected = {REFUSED, WRONG} if refused and what == "elsewhere" else {REFUSED} if refused else {RIGHT}
        assert int(status) in expected, f"{name}, threads={threads}, {what}: {status}"
