"""Calls of the native engine: from many threads, after a fork, interrupted, and what they take beside kernels."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.networks import Network
from tests.engines.test_fork_safety import RIGHT, in_child, network

from intact8.engines import engine_status, get_engine, run
from intact8.engines.binding import check_inputs
from intact8.engines.native import engine
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

REASON = engine_status()["native"]
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (16, 8, 32, 32)).astype(np.uint8)


def tiny() -> Program:
    """One operation on a handful of numbers."""
    tensors = {"x": Tensor("x", "float32", (None, 8)), "q": Tensor("q", "uint8", (None, 8), 0.5, 10)}
    return Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))


@pytest.fixture(scope="module")
def wanted() -> Any:
    return get_engine("reference").prepare(network())({"x": X})[0]


def test_results_do_not_depend_on_threads(wanted: Any) -> None:
    for threads in (1, 2, 3, 5, 16, 400):
        runner = get_engine("native").prepare(network(), threads=threads)
        for count in (1, 3, 16):
            assert np.array_equal(runner({"x": X[:count]})[0], wanted[:count])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sixteen_callers_at_once(wanted: Any, threads: int) -> None:
    runner, start = get_engine("native").prepare(network(), threads=threads), threading.Barrier(16)

    def caller(first: int) -> int:
        start.wait()
        given = [(first + i) % 13 for i in range(20)]
        return sum(np.array_equal(runner({"x": X[n : n + 1 + n % 3]})[0], wanted[n : n + 1 + n % 3]) for n in given)

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(caller, range(16))) == 16 * 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_amid_calls_of_other_threads(wanted: Any) -> None:
    runner, stop = get_engine("native").prepare(network(), threads=3), threading.Event()

    def work() -> None:
        while not stop.is_set():
            runner({"x": X[:2]})

    others = [threading.Thread(target=work) for _ in range(4)]
    for other in others:
        other.start()
    try:
        ends = [in_child(lambda: np.array_equal(runner({"x": X})[0], wanted)) for _ in range(5)]
    finally:
        stop.set()
        for other in others:
            other.join()
    assert ends == [RIGHT] * 5


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_multiprocessing(wanted: Any, method: str) -> None:
    program = network()
    assert np.array_equal(run(program, (X,), {}, "native"), wanted)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(run, [(program, (X[:n],), {}, "native") for n in (1, 2, 3)])
    assert all(np.array_equal(y, wanted[: len(y)]) for y in found)


START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
import numpy as np
from intact8.engines.native import NativeEngine
from intact8.program.file import load
program, X = load(sys.argv[1]), np.random.default_rng(0).integers(0, 256, (16, 8, 32, 32)).astype(np.uint8)
"""


def child(code: str, folder: Path, program: Program | None = None, **environment: str) -> subprocess.Popen[str]:
    """A process that runs the code on a program, by default ``network()``, behind ``START``."""
    path = (program or network()).save(folder / "network.safetensors")
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", START + code, str(path)]
    return subprocess.Popen(command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


INTERRUPTED = """
runner = NativeEngine().prepare(program, threads=2)
wanted = runner({"x": X})[0]
print("ready", flush=True)
stopped = 0
while stopped < 3:
    try:
        while True:
            runner({"x": X})
    except KeyboardInterrupt:
        stopped += 1
        assert np.array_equal(runner({"x": X})[0], wanted)
        print("stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on Unix")
def test_keyboard_interrupts(tmp_path: Path) -> None:
    with child(INTERRUPTED, tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(3):
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "stopped\n"
        assert process.wait(30) == 0


FLAT = """
import os
from pathlib import Path
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
runner, x = NativeEngine().prepare(program, threads=int(os.environ["THREADS"])), {"x": X[:1, :, :8, :8].copy()}
for _ in range(2_000):
    runner(x)
before = resident()
for _ in range(int(os.environ["CALLS"])):
    runner(x)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("calls", "threads"), [(30_000, 1), (10_000, 2), pytest.param(1_000_000, 1, marks=pytest.mark.long)]
)
def test_memory_is_flat(tmp_path: Path, calls: int, threads: int) -> None:
    """In a process of its own: the memory of this one changes by what other tests have left in it, too."""
    net = Network(np.random.default_rng(1))
    net.start((1, 8, 8, 8))
    program = net.program((net.conv("x", 8, 3),))
    with child(FLAT, tmp_path, program, CALLS=str(calls), THREADS=str(threads)) as process:
        told, said = process.communicate(timeout=600)
    assert process.returncode == 0, said[-2000:]
    assert int(told) < 1 << 20


COUNTER = """
#include <stddef.h>
long allocations;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { return allocations++, __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return allocations++, __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return allocations++, __libc_realloc(p, n); }
void *memalign(size_t to, size_t n) { return allocations++, __libc_memalign(to, n); }
void *aligned_alloc(size_t to, size_t n) { return allocations++, __libc_memalign(to, n); }
int posix_memalign(void **p, size_t to, size_t n) { return allocations++, !(*p = __libc_memalign(to, n)); }
"""

COUNTED = """
import ctypes
counter = ctypes.c_long.in_dll(ctypes.CDLL(None), "allocations")
for threads in (1, 2):
    runner = NativeEngine().prepare(program, threads=threads)
    library, calls = runner._library, []

    class Recorder:
        def __getattr__(self, name):
            if name != "run":
                return getattr(library, name)
            return lambda *given: calls.append(given) or library.run(*given)

    runner._library = Recorder()
    outputs = [runner({"x": X}) for _ in range(3)]
    run, given = library.run, calls[-1]
    run(*given)
    found = []
    for _ in range(5):  # the interpreter may allocate for itself, now and then
        before = counter.value
        for _ in range(50):
            run(*given)
        found.append(counter.value - before)
    print(threads, min(found))
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and glibc")
def test_a_call_allocates_nothing(tmp_path: Path) -> None:
    source, shim = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    with child(COUNTED, tmp_path, LD_PRELOAD=str(shim)) as process:
        told, said = process.communicate(timeout=120)
    assert process.returncode == 0, said[-2000:]
    assert told.split() == ["1", "0", "2", "0"]


def test_a_call_takes_little_beside_its_kernels() -> None:
    """The bound is for busy machines."""
    runner, x, least = get_engine("native").prepare(tiny(), threads=1), {"x": np.zeros((1, 8), np.float32)}, 1.0
    for _ in range(3_000):
        start = time.perf_counter()
        runner(x)
        least = min(least, time.perf_counter() - start)
    assert least < 50e-6


def test_sizes_that_take_turns_are_checked_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[int]()

    def check(program: Program, inputs: Any, takes: Any) -> Any:
        checked.append(len(inputs["x"]))
        return check_inputs(program, inputs, takes)

    monkeypatch.setattr(engine, "check_inputs", check)
    runner = get_engine("native").prepare(tiny(), threads=1)
    for _ in range(3):
        for count in range(1, engine.READY + 1):
            runner({"x": np.ones((count, 8), np.float32)})
    assert checked == list(range(1, engine.READY + 1))
    for count in range(engine.READY + 1, 4 * engine.READY):  # what is remembered has an end
        runner({"x": np.ones((count, 8), np.float32)})
        assert len(runner._ready) <= engine.READY  # type: ignore[attr-defined]


def test_what_is_no_array_is_converted_in_every_call() -> None:
    import torch

    tensors = {name: Tensor(name, "uint8", (None, 8), 0.5, 10) for name in "xyz"}
    op = Op("z", "add", ("x", "y"), {"a": [30, 40], "b": 101, "lo": 0, "hi": 255})
    runner = get_engine("native").prepare(Program(tensors, (op,), ("x", "y"), ("z",)))
    x, y = RNG.integers(0, 256, (2, 3, 8), dtype=np.uint8)
    want = runner({"x": x, "y": y})[0]
    for _ in range(2):
        np.testing.assert_array_equal(runner({"x": x, "y": torch.from_numpy(y)})[0], want)


def test_every_tensor_of_thousands_comes_back() -> None:
    """A network unrolled over time has more operations than anything that is one call's output."""
    count = 4200
    reversed_order = np.arange(256, dtype=np.uint8)[::-1].copy()
    names = ["x", *(f"t{i}" for i in range(count))]
    ops = [Op(name, "table", (x,), {"fn": "neg"}, {"table": reversed_order}) for x, name in itertools.pairwise(names)]
    tensors = {name: Tensor(name, "uint8", (None, 2), 0.5, 10) for name in names}
    runner = get_engine("native").prepare(Program(tensors, tuple(ops), ("x",), (names[-1],)), threads=1)
    x = np.array([[3, 200]], np.uint8)
    found = runner.tensors({"x": x})
    assert list(found) == names
    assert all(np.array_equal(found[name], 255 - x if i % 2 else x) for i, name in enumerate(names))
