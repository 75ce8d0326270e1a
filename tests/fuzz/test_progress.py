"""A long run reports as it goes, and at its end, however it ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.fuzz.progress import Progress
from tests.fuzz.run import Found

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def part(files: int, *faults: str) -> Found:
    found = Found()
    found.counts["files"] = files
    for fault in faults:
        found.fault(fault, index=3)
    return found


def test_faults_are_printed_when_found_and_counts_once_per_so_many_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = Progress(tmp_path / "faults", every=100)
    total.add(part(60, "death"))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"fault": "death", "index": 3}]
    total.add(part(60))
    line = json.loads(capsys.readouterr().out)
    assert (line["run"], line["files"], line["faults"], line["death"]) == ("so far", 120, 1, 1)
    total.add(part(60))
    assert not capsys.readouterr().out
    total.fault("slow", seed=1)
    assert json.loads(capsys.readouterr().out) == {"fault": "slow", "seed": 1}
    assert len((tmp_path / "faults").read_text().splitlines()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_tells_its_counts(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    total, handlers = Progress(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with total.told():
        total.add(part(7))
        os.kill(os.getpid(), number)
        total.add(part(7))
    line = json.loads(capsys.readouterr().out)
    assert (line["run"], line["files"]) == (f"interrupted by {number.name}", 7)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
