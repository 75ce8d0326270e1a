"""A sensitivity run on two ranks gives, on both, the numbers of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.diagnose.networks import calibrated, data, net
from tests.distributed.conftest import Run

import intact8
from intact8.diagnose.sensitivity.report import MODES, SensitivityReport


def measured(state: str | None) -> Any:
    torch.set_num_threads(1)
    sim = calibrated(net(), data())
    return intact8.sensitivity(sim, data().split(16), modes=MODES, greedy=2, state=state).to_dict()


def test_two_ranks_give_the_numbers_of_one(ranks: Run, tmp_path: Path) -> None:
    first, second = ranks(measured, str(tmp_path / "state"))
    assert first == second
    shares = [json.loads((tmp_path / f"state.rank{r}of2").read_text())["passes"]["layers"]["sums"] for r in range(2)]
    assert not set(shares[0]) & set(shares[1]) and abs(len(shares[0]) - len(shares[1])) <= 1
    threads = torch.get_num_threads()
    try:
        assert SensitivityReport.from_dict(first) == SensitivityReport.from_dict(measured(None))
    finally:
        torch.set_num_threads(threads)
