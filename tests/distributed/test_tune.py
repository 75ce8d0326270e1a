"""A search for a recipe on two ranks: they share the candidates and find what one process finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.distributed.conftest import Run
from torch import nn

import intact8
from intact8 import recipes
from intact8.program.file import digest
from intact8.tuning.measure import Measurement

POOR = replace(recipes.minmax(), weight=recipes.minmax().weight.changed({"granularity": "per_tensor"}))


def search(journal: Path | None) -> tuple[Any, ...]:
    """Return what a search found, and how many candidates this process measured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        model[2].weight[3] *= 100
    x, measured, trial = torch.randn(96, 8), [], Measurement.trial

    def counted(self: Measurement, *arguments: Any) -> Any:
        measured.append(arguments[0])
        return trial(self, *arguments)

    Measurement.trial = counted  # type: ignore[method-assign]
    try:
        found = intact8.tune(model, x, max_drop=1e-5, recipe=POOR, seconds=0, max_trials=9, journal=journal)
    finally:
        Measurement.trial = trial  # type: ignore[method-assign]
    return found.trials, found.best, digest(found.program), found.ended, len(measured)


def test_two_ranks_share_the_candidates_and_find_what_one_finds(ranks: Run, tmp_path: Path) -> None:
    *alone, all_of_them = search(None)
    first, second = ranks(search, tmp_path / "run.jsonl")
    assert list(first[:-1]) == list(second[:-1]) == alone
    assert 0 < first[-1] < all_of_them and 0 < second[-1] < all_of_them
    again = ranks(search, tmp_path / "run.jsonl")
    assert list(again[0][:-1]) == alone and again[0][-1] == 0
