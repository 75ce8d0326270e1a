"""Some of torch's own test networks, layers and operators, on every engine; the README here says how to try all."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's test collections import it")

from tests.torch_suites import selection
from tests.torch_suites.case import Case

PARTS = 4
ONE_IN = {"networks": 15, "modules": 36, "operators": 90}
"""Suite → every how many cases one is tried here."""

WHOLE = {"networks": 90, "modules": 300, "operators": 1200}
"""Suite → cases there are at least, whatever the version of torch."""


@cache
def collected(suite: str) -> list[Case]:
    """All cases of a suite: their samples take a second to make."""
    return list(import_module(f"tests.torch_suites.{suite}").cases())


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("suite", ONE_IN)
def test_no_rule_is_broken(suite: str, part: int) -> None:
    cases = collected(suite)
    assert len(cases) >= WHOLE[suite]
    mine = selection.share(selection.chosen(cases, ONE_IN[suite]), part, PARTS)
    findings, faults = selection.faults(mine, training=suite == "networks")
    assert not faults, "\n".join(faults)
    assert any(finding.outcome == "converted" for finding in findings), [f.refusals for f in findings]
