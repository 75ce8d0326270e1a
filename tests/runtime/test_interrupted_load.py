"""Signals whose handlers raise while a program is loaded: no process is left behind, no lock held."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from tests.program.build import certified

import intact8.runtime
from intact8.golden import with_golden

CHILDREN = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(not CHILDREN.exists(), reason="children are read from /proc")


class Stop(Exception):
    """Raised by the handler."""


def children() -> set[str]:
    found: set[str] = set()
    for task in CHILDREN.iterdir():
        with suppress(FileNotFoundError):  # a thread may end meanwhile
            found.update((task / "children").read_text(encoding="utf-8").split())
    return found


SHARES = [pytest.param([0.5], id="half way"),
          pytest.param([0.02, 0.33, 0.64, 0.95], id="anywhere", marks=pytest.mark.long)]  # fmt: skip


@pytest.mark.parametrize("shares", SHARES)
def test_interrupted_loads(shares: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "cache"))
    path = with_golden(certified()).save(tmp_path / "p.safetensors")
    before, there = signal.getsignal(signal.SIGALRM), children()

    def load(probe: str) -> float:
        start = time.perf_counter()
        intact8.runtime.load(path, engine="onnxruntime", probe=probe)
        return time.perf_counter() - start

    pytest.importorskip("onnxruntime")
    whole = load("always")

    def handler(number: int, frame: FrameType | None) -> None:
        raise Stop

    signal.signal(signal.SIGALRM, handler)
    stopped = 0
    try:
        for share in shares:
            try:
                signal.setitimer(signal.ITIMER_REAL, share * whole)
                load("always")
            except Stop:
                stopped += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert children() <= there, f"after {share:.0%} of a load"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped
    assert load("always") < 10 * whole  # it waits for no lock
