"""Inputs that nest have the same forms wherever data are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.errors import CalibrationError, InputError
from intact8.program.program import Program

X, H, C = torch.randn(5, 4, 2), torch.randn(1, 4, 2), torch.randn(1, 4, 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(2, 2)

    def forward(self, x: Tensor, hid: tuple[Tensor, Tensor]) -> Any:
        return self.lstm(x, hid)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Recurrent().eval()


@pytest.fixture(scope="module")
def program(model: nn.Module) -> Program:
    return intact8.quantize(model, [(X, (H, C))])


FORMS: dict[str, Any] = {
    "nested": (X, (H, C)),
    "nested-and-labels": (X, (H, C), torch.zeros(4)),
    "flat": (X, H, C),
    "by-argument": {"x": X, "hid": (H, C)},
    "by-tensor": {"x": X, "hid.0": H, "hid.1": C},
    "mapping-and-labels": ({"x": X, "hid": (H, C)}, torch.zeros(4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_calibrate_takes_it(model: nn.Module, form: str) -> None:
    sim = intact8.prepare(model, (X, (H, C))).eval()
    assert intact8.calibrate(sim, [FORMS[form]]).samples == len(X)


@pytest.mark.parametrize("form", [form for form in FORMS if "labels" not in form])
def test_run_and_verify_and_simulation_take_it(model: nn.Module, program: Program, form: str) -> None:
    given = FORMS[form]
    args, named = ((), given) if isinstance(given, dict) else (given, {})
    expected = program.run(X, H, C, engine="reference")
    found = program.run(*args, **named, engine="reference")
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1][1], expected[1][1])
    assert (
        intact8.verify(program, given, engines=("reference",)).samples
        == intact8.verify(program, [given], engines=("reference",)).samples
    )
    assert intact8.prepare(model, (X, (H, C)))(*args, **named)[0].shape == X.shape


@pytest.mark.parametrize("form", ["nested", "by-argument"])
def test_quantize_and_compare_take_it(model: nn.Module, form: str) -> None:
    program = intact8.quantize(model, [FORMS[form]])
    assert program.inputs == ("x", "hid.0", "hid.1")
    assert intact8.compare(model, program, [FORMS[form]]).samples == len(X)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((X, (H,)), "missing .'hid.1'."),
        ((X, (H, C, C)), "unexpected .'hid.2'."),
        (((X, (H, C)),), "nests its tensors differently"),
        ({"hid": (H, C)}, "has no 'x'"),
        ((X, (H, "c")), "expected a tensor, got str"),
    ],
    ids=["short", "long", "call-in-a-tuple", "no-x", "text"],
)
def test_other_nesting_is_refused(model: nn.Module, program: Program, entry: Any, message: str) -> None:
    sim = intact8.prepare(model, (X, (H, C))).eval()
    with pytest.raises(CalibrationError, match=message):
        intact8.calibrate(sim, [entry])
    with pytest.raises(InputError):
        program.run(*entry) if isinstance(entry, tuple) else program.run(**entry)
