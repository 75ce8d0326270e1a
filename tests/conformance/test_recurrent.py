"""LSTM, GRU and RNN: the same float32 bits on every engine that runs them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from intact8.engines import engine_status, get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.errors import InputError, ProgramError
from intact8.program.check import check
from intact8.program.file import load, save

from .recurrent import draw_inputs, layer

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(STATUS[name] is not None, reason=str(STATUS[name])))
    for name in ("native", "onednn", "onnxruntime")
]
KINDS = [("lstm", False), ("gru", False), ("rnn", False), ("rnn", True)]
SIZES = [(1, 1, 3, 4), (5, 3, 7, 6), (9, 8, 16, 33), (7, 1, 100, 96), (6, 2, 1, 1)]


@pytest.mark.parametrize(("kind", "relu"), KINDS, ids=["lstm", "gru", "rnn", "relu"])
@pytest.mark.parametrize("engine", ENGINES)
def test_bits(engine: str, kind: str, relu: bool) -> None:
    rng, compared = np.random.default_rng(7), 0
    for directions, states, lengths in itertools.product((1, 2), (False, True), (False, True)):
        for time, batch, inputs, hidden in SIZES if engine != "onnxruntime" else SIZES[:3]:
            program = layer(
                kind, rng, directions=directions, states=states, lengths=lengths, relu=relu, time=time, inputs=inputs,
                hidden=hidden,
            )  # fmt: skip
            values = draw_inputs(program, batch, rng)
            want = ReferenceEngine().prepare(program)(values)[0]
            got = get_engine(engine).prepare(program, threads=1)(values)[0]
            assert (want.view(np.int32) == got.view(np.int32)).all(), (directions, states, lengths, time, batch)
            compared += want.size
    assert compared > 15_000


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_other_sizes_and_rows_of_a_batch(engine: str) -> None:
    """A row's result does not depend on the rows beside it."""
    rng = np.random.default_rng(1)
    program = layer("lstm", rng, directions=2)
    runner = get_engine(engine).prepare(program, threads=1)
    values = draw_inputs(program, 6, rng)
    whole = runner(values)[0]
    for i in range(6):
        alone = runner({"x": np.ascontiguousarray(values["x"][:, i : i + 1])})[0]
        assert (alone[:, 0] == whole[:, i]).all()


@pytest.mark.parametrize("engine", ["reference", ENGINES[0]])
def test_numbers_that_are_not_finite_are_refused(engine: str) -> None:
    rng = np.random.default_rng(2)
    program = layer("gru", rng, states=True)
    values = draw_inputs(program, 2, rng)
    for name in ("x", "h0"):
        bad = {k: v.copy() for k, v in values.items()}
        bad[name][0, 0, 0] = np.nan
        with pytest.raises(InputError, match="recurrent layer"):
            get_engine(engine).prepare(program)(bad)


BAD = {
    "weight_hh of another size": ({"weight_hh": np.ones((1, 24, 5), np.int8)}, "weight_hh has shape"),
    "a scale of zero": ({"scale_ih": np.zeros((1, 24), np.float32)}, "not positive"),
    "a table beyond one": ({"tanh": np.full(4097, 2, np.float32)}, "outside 0..1"),
    "a bias of NaN": ({"bias": np.full((1, 24), np.nan, np.float32)}, r"bias holds nan at index \(0, 0\)"),
    "a weight of -128": ({"weight_ih": np.full((1, 24, 7), -128, np.int8)}, "-128"),
}


@pytest.mark.parametrize("name", BAD)
def test_layers_that_do_not_fit_are_refused(name: str) -> None:
    changes, message = BAD[name]
    program = layer("lstm", np.random.default_rng(0))
    (op,) = program.ops
    with pytest.raises(ProgramError, match=message):
        check(replace(program, ops=(replace(op, arrays=op.arrays | changes),)))


def test_file(tmp_path: object) -> None:
    program = layer("gru", np.random.default_rng(0), directions=2, states=True, lengths=True)
    again = load(save(program, f"{tmp_path}/layer.safetensors"))
    values = draw_inputs(program, 3, np.random.default_rng(1))
    want, got = (ReferenceEngine().prepare(p)(values)[0] for p in (program, again))
    assert (want == got).all()
    assert program.ops[0].certificate == again.ops[0].certificate and program.ops[0].certificate["portable"]  # type: ignore[index]
