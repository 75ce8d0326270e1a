"""A cache of its own for every test, a small program file, and engines that do what libraries should not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.program.build import certified

from intact.golden import with_golden
from intact.program.file import save

ENTRIES = {
    "segv": "SIGSEGV", "ill": "SIGILL", "abrt": "SIGABRT", "fpe": "SIGFPE", "bus": "SIGBUS", "kill": "SIGKILL",
    "hang": "hang", "eat": "eat", "raise": "raise", "exit": "exit", "wrong": "wrong", "fine": "fine",
    "chatty": "chatty", "curious": "curious",
}  # fmt: skip

ENGINE = """
import os, signal, sys, time
from pathlib import Path
from intact.engines.reference import ReferenceEngine

class Runner:
    def __init__(self, fault, inner):
        self.fault, self.inner, self.program = fault, inner, inner.program
    def __call__(self, inputs):
        misbehave(self.fault, "run")
        out = self.inner(inputs)
        return [y + 1 for y in out] if self.fault == "wrong" else out
    def tensors(self, inputs, feed=None):
        out = self.inner.tensors(inputs, feed)
        return {k: v ^ 1 if self.fault == "wrong" and k == "sum" else v for k, v in out.items()}

def misbehave(fault, stage):
    if os.environ.get("OMP_FAULT_STAGE", "run") != stage:
        return
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))
        time.sleep(10)
    if fault == "hang":
        while True:
            time.sleep(1)
    if fault == "eat":
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * (16 << 20)))
    if fault == "raise":
        raise ZeroDivisionError("as an engine should not")
    if fault == "exit":
        os._exit(7)
    if fault == "chatty":
        os.write(1, b'{"result": {"golden": "a lie"}}\\n' * 100_000)
        os.write(2, b"noise\\n" * 500_000)
    if fault == "curious" and "probe" in str(sys.modules["__main__"].__spec__):
        seen = [k for k in os.environ if "SECRET" in k]
        try:
            file = os.open(os.environ["PATH"].split(":")[0] + "/intact-was-here", os.O_CREAT | os.O_WRONLY)
            os.write(file, b"x")
            seen.append("a file was written")
        except OSError:
            pass
        if seen:
            raise RuntimeError(str(seen))

class Engine:
    fault = "fine"
    def __init__(self):
        self.name = self.fault
    def available(self):
        misbehave(self.fault, "import")
        return None
    def prepare(self, program, *, threads=None):
        misbehave(self.fault, "prepare")
        return Runner(self.fault, ReferenceEngine().prepare(program))

def _make(name, fault):
    globals()[name] = type(name, (Engine,), {"fault": fault})

for _name, _fault in ENTRIES.items():
    _make(_name, _fault)
"""


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of another package: its modules and entry points, on this process's path and so on its children's."""
    site = tmp_path / "site"
    info = site / "faulty-1.dist-info"
    info.mkdir(parents=True)
    (site / "faulty_engines.py").write_text(f"ENTRIES = {ENTRIES!r}\n{ENGINE}")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    lines = "\n".join(f"{name} = faulty_engines:{name}" for name in ENTRIES)
    (info / "entry_points.txt").write_text(f"[intact.engines]\n{lines}\n")
    monkeypatch.syspath_prepend(str(site))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where probes are remembered."""
    monkeypatch.setenv("INTACT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path, cache: Path) -> Path:
    """A small program with golden vectors, every kind of op in it."""
    return save(with_golden(certified()), tmp_path / "net.safetensors")
