"""Engines and libraries that do what they should not, installed as packages of their own in a folder."""

from __future__ import annotations

from pathlib import Path

SIGNALS = {"segv": "SIGSEGV", "ill": "SIGILL", "abrt": "SIGABRT", "fpe": "SIGFPE", "bus": "SIGBUS", "kill": "SIGKILL"}
FAULTS = {
    **SIGNALS, "hang": "hang", "eat": "eat", "raise": "raise", "exit": "exit", "wrong": "wrong", "fine": "fine",
    "chatty": "chatty", "curious": "curious", "single": "single",
}  # fmt: skip
"""Engine → what it does."""

STAGE = "OMP_FAULT_STAGE"
"""When: "import", "prepare" or "run" (the default). The prefix is one that reaches the child process of a probe."""

ENGINE = """
import os, signal, sys, time
from pathlib import Path
from intact8.engines.reference import ReferenceEngine

class Runner:
    def __init__(self, fault, inner):
        self.fault, self.inner, self.program = fault, inner, inner.program
    def __call__(self, inputs):
        misbehave(self.fault, "run")
        if self.fault == "single" and any(len(x) > 1 for x in inputs.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
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
            file = os.open(os.environ["PATH"].split(":")[0] + "/intact8-was-here", os.O_CREAT | os.O_WRONLY)
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


def install(site: Path) -> Path:
    """The package of the engines: its module and entry points. ``site`` has to come onto ``sys.path``."""
    _distribution(site, "faulty", "1")
    (site / "faulty_engines.py").write_text(f"ENTRIES = {FAULTS!r}\n{ENGINE}")
    lines = "\n".join(f"{name} = faulty_engines:{name}" for name in FAULTS)
    (site / "faulty-1.dist-info" / "entry_points.txt").write_text(f"[intact8.engines]\n{lines}\n")
    return site


BROKEN = {
    "another C++ library": 'raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.99\' not found")',
    "aborts": "import os; os.abort()",
    "SIGILL": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGFPE": "import os, signal; os.kill(os.getpid(), signal.SIGFPE)",
    "hangs": "import time; time.sleep(1000)",
    "eats memory": "hoard = [bytearray(b'x' * (16 << 20)) for _ in range(1 << 20)]",
    "ends Python": "import os; os._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "raises": "raise RuntimeError('no')",
    "is empty": "",
}
"""What goes wrong → the code an imported library has in place of its own."""


def shadow(site: Path, package: str, code: str, version: str = "") -> Path:
    """A package that stands before the real one on the path: with this code, and with a version of its own if given."""
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text(code + "\n")
    if version:
        _distribution(site, package, version)
    return site


def stale(site: Path, package: str, version: str, *tags: str) -> Path:
    """Only what is said about the installed package: its version and the platforms of its wheel."""
    info = _distribution(site, package, version)
    if tags:
        (info / "WHEEL").write_text("Wheel-Version: 1.0\n" + "".join(f"Tag: cp311-cp311-{tag}\n" for tag in tags))
    return site


def _distribution(site: Path, name: str, version: str) -> Path:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info
