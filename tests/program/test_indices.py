"""Indices a network computes are proved to lie inside their table, or looked at by the engine that runs."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import intact8
from intact8.engines import engine_status, get_engine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.indices import Lookups, bounded_inputs, looked_up, table_rows, unproved
from intact8.program.program import Program

ROWS = 8
WEIGHT = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
STATUS = engine_status()
Step = tuple[str, dict[str, Any]]


def program(*steps: Step, dtype: str = "int64", shapes: tuple[tuple[int | None, ...], ...] = ()) -> Program:
    """An input of (N, 4), the steps, an embedding of 8 rows."""
    tensors = {"x": Tensor("x", dtype, (None, 4))}
    ops: list[Op] = []
    for i, (kind, attrs) in enumerate(steps):
        before, name = ops[-1].name if ops else "x", f"s{i}"
        compares = kind == "float.compare"
        tensors[name] = Tensor(name, "bool" if compares else "int64", shapes[i] if shapes else (None, 4))
        ops.append(Op(name, kind, (before,), attrs))
    last = ops[-1].name if ops else "x"
    tensors["y"] = Tensor("y", "float32", (*tensors[last].shape, 3))
    ops.append(Op("y", "float.embedding", (last,), {}, {"weight": WEIGHT}))
    made = Program(tensors, tuple(ops), ("x",), ("y",))
    check(made)
    return made


CAST: Step = ("float.cast", {"dtype": "int64"})
ARGMAX: Step = ("float.reduce", {"fn": "argmax", "dims": [1], "keepdim": False})
PROVED: dict[str, Program] = {
    "an input": program(),
    "a moved input": program(("roll", {"shifts": [1], "dims": [1]})),
    "argmax": program(ARGMAX, dtype="float32", shapes=((None,),)),
    "comparisons": program(("float.compare", {"fn": "gt", "value": 0.0}), CAST, dtype="float32"),
    "clamped": program(CAST, ("float.clamp", {"min": 0, "max": 7}), dtype="float32"),
    "counted down and clamped": program(
        ("float.affine_scalar", {"mul": -1, "add": 3}), ("float.clamp", {"min": 0, "max": 7})
    ),
    "bytes": program(CAST, ("float.clamp", {"min": None, "max": 7}), dtype="uint8"),
}
LOOSE: dict[str, Program] = {
    "a cast": program(CAST, dtype="float32"),
    "shifted": program(("float.affine_scalar", {"mul": 1, "add": 1})),
    "negative": program(("float.affine_scalar", {"mul": 1, "add": -1})),
    "clamped below": program(CAST, ("float.clamp", {"min": 0, "max": None}), dtype="float32"),
    "clamped to one too many": program(CAST, ("float.clamp", {"min": 0, "max": 8}), dtype="float32"),
    "bytes": program(CAST, dtype="uint8"),
    "a product": program(
        CAST,
        ("float.clamp", {"min": 0, "max": 7}),
        ("float.reduce", {"fn": "prod", "dims": [1], "keepdim": False}),
        dtype="float32",
        shapes=((None, 4), (None, 4), (None,)),
    ),
    "beyond int64": program(*[("float.affine_scalar", {"mul": 1 << 40, "add": 0})] * 2),
}


@pytest.mark.parametrize("name", PROVED)
def test_proved(name: str) -> None:
    assert unproved(PROVED[name]) == {}


@pytest.mark.parametrize("name", LOOSE)
def test_not_proved(name: str) -> None:
    assert unproved(LOOSE[name]) == {"y": ROWS}


def test_inputs_are_checked_behind_moves_too() -> None:
    moved = PROVED["a moved input"]
    assert table_rows(moved) == {"x": ROWS}
    with pytest.raises(InputError, match="index 8 is outside the table of 8 rows"):
        moved.run(np.array([[0, 1, 8, 2]]), engine="reference")


class Columns(torch.nn.Module):
    """Two columns of one input with a table each, and a third that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = torch.nn.Embedding(300, 4), torch.nn.Embedding(7, 4)
        self.fc = torch.nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.cat([self.users(x[:, 0]), self.items(x[:, 1]), x[:, 2:].float() / 1000], 1))
        return y


@functools.cache
def columns() -> tuple[Program, np.ndarray]:
    torch.manual_seed(0)
    x = torch.stack([torch.randint(0, size, (64,)) for size in (300, 7, 1000)], 1)
    x[0] = torch.tensor([299, 6, 999])
    return intact8.quantize(Columns().eval(), x), x.numpy()


def test_every_column_is_held_against_its_own_table() -> None:
    program, x = columns()
    assert table_rows(program) == {"x": 7} and bounded_inputs(program) == {} and unproved(program) == {}
    assert sorted(looked_up(program).values()) == [7, 300]
    engines = [engine for engine in ("native", "onednn", "onnxruntime", "openvino") if STATUS[engine] is None]
    assert intact8.verify(program, x, engines=("reference", *engines)).mismatches == 0
    for row, what in (([300, 1, 5], "index 300 is outside the table of 300 rows"), ([5, -1, 5], "index -1 is outside")):
        with pytest.raises(InputError, match=what):
            program.run(np.array([[1, 2, 3], row]))
    assert pickle.loads(pickle.dumps(program)) == program
    assert len(program.run(x[:0])) == 0


class Joined(torch.nn.Module):
    """A stored first token, and two inputs behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.fc = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)
        self.register_buffer("first", torch.tensor([[7]]))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.tokens(torch.cat([self.first.expand(a.shape[0], 1), a, b], 1)))
        return y


def test_an_index_is_said_to_be_in_the_input_that_holds_it() -> None:
    torch.manual_seed(0)
    a, b = torch.randint(0, 8, (2, 16, 3))
    program = intact8.quantize(Joined().eval(), [(a, b)])
    assert Lookups(program).outside({"a": a.numpy(), "b": b.numpy()}) is None
    for name, given in (("a", (9, 1)), ("b", (1, 9))):
        with pytest.raises(InputError, match="index 9 is outside the table of 8 rows") as refused:
            program.run(*(np.full((1, 3), value) for value in given))
        assert refused.value.where == name


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("engine", ["onednn", "onnxruntime"])
def test_what_is_proved_runs(engine: str, name: str) -> None:
    if STATUS[engine] is not None:
        pytest.skip(str(STATUS[engine]))
    made = PROVED[name]
    x = np.arange(8).reshape(2, 4).astype(made.tensors["x"].dtype)
    want = made.run(x, engine="reference")
    assert (made.run(x, engine=engine) == want).all()


@pytest.mark.parametrize("value", [-1, -8, -9, ROWS, 1 << 40])
@pytest.mark.parametrize("engine", ["reference", "onednn", "onnxruntime"])
def test_every_engine_refuses_the_same_index(engine: str, value: int, capfd: pytest.CaptureFixture[str]) -> None:
    if STATUS[engine] is not None:
        pytest.skip(str(STATUS[engine]))
    made = program(("float.affine_scalar", {"mul": 1, "add": value}))
    runner = get_engine(engine).prepare(made)
    fine = np.full((1, 4), 3 - value)
    assert (runner({"x": fine})[0] == WEIGHT[3]).all()
    for batch in (1, 3):
        with pytest.raises(InputError, match="y: an index outside the table"):
            runner({"x": np.zeros((batch, 4), np.int64)})
    assert capfd.readouterr() == ("", ""), "nothing is printed beside the error"


@pytest.mark.parametrize("value", [-1, ROWS])
def test_the_simulation_refuses_it_alike(value: int) -> None:
    network = torch.nn.Sequential(torch.nn.Embedding(ROWS, 3), torch.nn.Linear(3, 2)).eval()
    index = torch.arange(ROWS).reshape(2, 4)
    sim = intact8.prepare(network, index)
    intact8.calibrate(sim, index)
    for mode in (True, False):
        with pytest.raises(InputError, match="an index outside the table"):
            sim.train(mode)(torch.full((1, 4), value))


@pytest.mark.skipif(STATUS["openvino"] is not None, reason=str(STATUS["openvino"]))
def test_openvino_takes_proved_indices_only() -> None:
    with pytest.raises(EngineError, match="y: the indices that the network computes may lie outside of the table"):
        get_engine("openvino").prepare(LOOSE["shifted"])
    made = PROVED["clamped"]
    x = np.float32([[-5.0, 3.0, 7.0, 1e3]])
    assert (made.run(x, engine="openvino") == made.run(x, engine="reference")).all()
