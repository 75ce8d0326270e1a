"""Inputs that nest have the same forms wherever data are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import intact8
from intact8.errors import CalibrationError, InputError
from intact8.program.program import Program
from intact8.torch import Module

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
    assert intact8.calibrate(sim, [FORMS[form]]).samples == X.shape[1]  # steps are first


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


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclass
class Picture:
    image: Tensor
    mask: Any = None


class Layers(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.one, self.two = form, nn.Linear(4, 4), nn.Linear(4, 4)


class Takes(Layers):
    """Takes what ``form`` says, and always something that is no tensor."""

    def forward(self, x: Any, info: Any = None, *, scale: float = 1.0) -> Any:
        if self.form == "named tuple":
            return Pair(self.one(x.a), self.two(x.b))
        if self.form == "dataclass":
            return Picture(self.one(x.image))
        if self.form == "dict alone":
            return {"out": self.one(x["p3"]) + self.two(x["p4"])}
        y = self.one(x) * scale
        return (y + self.two(info["features"][0]) * info["times"], {"none": None}) if info else [y, 3]


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 4)


CALLS: dict[str, Any] = {
    "None": lambda: (rows(), None),
    "number by name": lambda: {"x": rows(), "info": None, "scale": 2.0},
    "number inside": lambda: (rows(), {"features": [rows()], "times": 2}),
    "named tuple": lambda: (Pair(rows(), rows()),),
    "dataclass": lambda: (Picture(rows()),),
    "dict alone": lambda: ({"p3": rows(), "p4": rows()},),
}


@pytest.mark.parametrize("form", CALLS)
def test_calls_with_what_is_no_tensor_have_one_form_everywhere(form: str, tmp_path: Any) -> None:
    model, data = Takes(form).eval(), [CALLS[form]() for _ in range(8)]
    program = intact8.quantize(model, data, example_inputs=data[0])
    assert all(program.tensors[name].shape[0] is None for name in program.inputs)
    given = CALLS[form]()
    args, named = ((), given) if isinstance(given, dict) else (given, {})
    expected, found = model(*args, **named), program.run(*args, **named, engine="reference")
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    kinds = [[type(leaf) for leaf in pytree.tree_leaves(value)] for value in (expected, found)]
    assert kinds[0] == kinds[1]
    assert str(Module(program, "reference")(*args, **named)) == str(found)
    for inputs in (given, data):
        assert intact8.verify(program, inputs, engines=("reference",)).samples
    if form != "number inside":  # what follows the arguments without defaults are labels there: give these by name
        assert intact8.compare(model, program, data).samples == 40
    program.save(tmp_path / "program.i8")
    loaded = intact8.Program.load(tmp_path / "program.i8")
    assert str(loaded.run(*args, **named, engine="reference")) == str(found)


class Player(nn.Module):
    """What is seen comes as a dict, what was remembered beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.place = nn.Linear(4, 3), nn.Embedding(10, 3)

    def forward(self, seen: dict[str, Tensor], state: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tanh(self.see(seen["frame"]) + self.place(seen["place"]).unsqueeze(1) + state[0] + state[1])


def turn(length: int, labels: bool) -> Any:
    seen = {"frame": torch.randn(4, length, 4), "place": torch.randint(10, (4,))}
    return seen, (torch.randn(4, length, 3), torch.randn(4, length, 3)), *([torch.zeros(4)] if labels else [])


@pytest.mark.parametrize("labels", [False, True])
def test_a_dict_may_be_an_argument_beside_others(labels: bool) -> None:
    model, data = Player().eval(), [turn(5, labels), turn(7, labels)]
    sim = intact8.prepare(
        model, data[0][:2], dynamic_shapes={"seen.frame": {1: "t"}, "state.0": {1: "t"}, "state.1": {1: "t"}}
    )
    assert intact8.calibrate(sim, data).samples == 8
    program = intact8.quantize(model, data)
    assert set(program.dimensions) == {"sequence"}
    given = turn(9, False)
    assert program.run(*given).shape == model(*given).shape == (4, 9, 3)
    assert intact8.verify(program, data, engines=("reference",)).exact


def test_another_fixed_value_is_refused() -> None:
    model, example = Takes("number").eval(), {"x": rows(), "info": None, "scale": 2.0}
    program = intact8.quantize(model, [example])
    with pytest.raises(InputError, match="scale is fixed to 2.0"):
        program.run(rows(), scale=3.0)
    with pytest.raises(InputError, match="scale is fixed to 2.0"):
        intact8.calibrate(intact8.prepare(model, example), [example | {"scale": 3.0}])
    assert program.run(rows(), engine="reference")[0].shape == (5, 4)  # and may be left out
