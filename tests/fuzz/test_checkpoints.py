"""The bounded part of the fuzz of checkpoints, and that it finds what it looks for."""

from __future__ import annotations

import os
from functools import partial

import pytest
from tests.fuzz import checkpoints
from tests.fuzz.run import forked

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def test_mutated_checkpoints_run_nothing_and_are_cheap() -> None:
    found = checkpoints.fuzz_checkpoints(0, 600)
    assert not found.faults
    assert found.counts["checkpoint read"] > 50 and found.counts["checkpoint refused"] > 100


@pytest.mark.parametrize(
    ("fault", "harm"),
    [("code ran", "os.system('true')"), ("foreign error", "1 / 0"), ("memory", "bytearray(1 << 24)")],
    ids=["code", "exception", "memory"],
)
def test_faults_are_found(fault: str, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compile(harm, "harm", "exec")
    checkpoints.sources()
    read = checkpoints.read_torch_bytes

    def harmful(data: bytes, where: str) -> object:
        if data not in checkpoints.sources().values():
            exec(run, {"os": os})
        return read(data, where)

    monkeypatch.setattr(checkpoints, "read_torch_bytes", harmful)
    found, status = forked(partial(checkpoints.chunk, "legacy", 0, 5))
    assert not status and fault in {f["fault"] for f in found.faults}
