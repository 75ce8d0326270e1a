"""The rules can be broken: each is, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.torch_suites.case import Case, Finding, Network
from tests.torch_suites.judge import error, judge
from tests.torch_suites.plain import plain, rounded
from torch import Tensor, nn

import intact8
from intact8.engines import get_runner
from intact8.errors import CaptureError


class Small(nn.Module):
    """Two layers, and a place to do wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


def tried(model: nn.Module) -> Finding:
    case = Case("case", lambda: Network(model, lambda n: (torch.randn(n, 4),)))
    return judge(case, ("onednn",), files=True)


def rules(finding: Finding) -> set[str]:
    return {fault.rule for fault in finding.faults}


def test_a_small_network_breaks_no_rule() -> None:
    finding = tried(Small())
    assert finding.outcome == "converted" and not finding.faults and finding.elements > 0


def test_a_foreign_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(intact8, "prepare", broken)
    finding = tried(Small())
    assert rules(finding) == {"foreign"} and "KeyError" in finding.faults[0].text


def test_a_refusal_without_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise CaptureError("no")

    monkeypatch.setattr(intact8, "prepare", refusing)
    finding = tried(Small())
    assert finding.outcome == "refused" and rules(finding) == {"useless"}


def test_an_integer_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(program: Any, name: str = "auto", threads: int | None = None) -> Any:
        runner = get_runner(program, name, threads)
        if name != "onednn":
            return runner
        changed = {"tensors": lambda self, *a: _changed(runner.tensors(*a)), "__call__": runner, "program": program}
        return type("Off", (), changed)()

    monkeypatch.setattr("intact8.verification.run.get_runner", off_by_one)
    finding = tried(Small())
    assert "mismatch" in rules(finding) and finding.faults[0].where == "onednn"


def _changed(tensors: Any) -> dict[str, Any]:
    last = [name for name, t in tensors.items() if t.dtype == np.uint8][-1]
    return {**tensors, last: tensors[last] ^ 1}


def test_an_output_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact8.Program.run", lambda *_, **__: None)
    assert "lost" in rules(tried(Small()))


class Cancels(Small):
    """Small differences of large numbers: 8 bits leave nothing of them."""

    def forward(self, x: Tensor) -> Tensor:
        large = 1000.0 * self.first(x)[:, :3]
        return large + super().forward(x) - large


def test_an_output_far_from_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact8.api.choose_between_layers", lambda *_: None)
    assert "far" not in rules(tried(Cancels()))  # convert warns of it
    monkeypatch.setattr("intact8.api.check_outputs", lambda sim, measured: {})
    assert "far" in rules(tried(Cancels()))


class Counts(Small):
    """A model whose weights change when it is converted."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            self.first.weight.add_(1e-3)
        return super().state_dict(*args, **kwargs)


def test_a_model_that_changed() -> None:
    assert "mutated" in rules(tried(Counts()))


def test_relative_errors() -> None:
    x = torch.tensor([3.0, 4.0])
    assert error(x, x) == 0
    assert error(x + torch.tensor([0.0, 0.5]), x) == pytest.approx(0.1)
    assert error(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert error(torch.tensor([3.0, torch.nan]), x) == float("inf")


def test_plain_rounds_around_layers_alone() -> None:
    model, x = Small().eval(), torch.randn(64, 4)
    with torch.no_grad():
        far = error(plain(model, (x,)), model(x))
    assert 0.001 < far < 0.05
    assert len(rounded(torch.randn(5000)).unique()) <= 256
