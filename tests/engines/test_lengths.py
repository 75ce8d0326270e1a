"""Programs whose sequences may have any length: on every engine, at lengths no calibration saw, and none at all."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.capture.encoder import SEQUENCE, Encoder, call

import intact8
from intact8.engines import available_engines, get_runner
from intact8.errors import InputError
from intact8.program.program import Program
from intact8.runtime import load

ENGINES = [name for name in ("reference", "onednn", "onnxruntime", "openvino", "native") if name in available_engines()]
LENGTHS = ((1, 1), (3, 1), (2, 5), (5, 16), (1, 24))


@pytest.fixture(scope="module")
def model() -> Encoder:
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module")
def sim(model: Encoder) -> Any:
    sim = intact8.prepare(model, call(2, 7), dynamic_shapes=SEQUENCE).eval()
    intact8.calibrate(sim, [call(8, length) for length in (7, 9, 12, 9)])
    return sim


@pytest.fixture(scope="module")
def program(sim: Any) -> Program:
    return intact8.convert(sim)


@pytest.mark.parametrize(("batch", "length"), LENGTHS)
def test_every_engine_gives_the_simulations_integers(sim: Any, program: Program, batch: int, length: int) -> None:
    report = intact8.verify(program, call(batch, length), engines=ENGINES, sim=sim)
    assert report.exact and report.samples == batch, report


@pytest.mark.parametrize("engine", ENGINES)
def test_results_are_the_models(model: Encoder, program: Program, engine: str) -> None:
    for batch, length in LENGTHS:
        given = call(batch, length)
        with torch.no_grad():
            wanted = model(**given)
        got = program.run(**given, engine=engine)
        assert got.shape == wanted.shape
        assert float((got - wanted).abs().mean()) < 0.15


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_batch_gives_an_empty_result(program: Program, engine: str) -> None:
    assert program.run(**call(0, 5), engine=engine).shape == (0, 5, 16)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_runner_itself_says_what_it_does_with_an_empty_batch(program: Program, engine: str) -> None:
    given = {name: x.numpy() for name, x in call(0, 5).items()}
    try:
        (y,) = get_runner(program, engine)(given)
    except InputError as error:
        assert "the batch is empty" in str(error)
    else:
        assert y.shape == (0, 5, 16)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_length_outside_the_limits_is_refused(program: Program, engine: str) -> None:
    for length in (0, 25):
        given = {name: np.zeros((2, length), np.int64) for name in SEQUENCE}
        with pytest.raises(InputError, match=f"sequence is {length}, outside 1 to 24"):
            program.run(**given, engine=engine)
        with pytest.raises(InputError, match=f"sequence is {length}, outside 1 to 24"):
            get_runner(program, engine)(given)
    given = {"input_ids": np.zeros((2, 5), np.int64), "attention_mask": np.ones((2, 6), np.int64)}
    with pytest.raises(InputError, match="sequence is 6, but 5 in input_ids"):
        program.run(**given, engine=engine)


def test_the_file_keeps_dimensions(program: Program, tmp_path: Path) -> None:
    path = program.save(tmp_path / "encoder.safetensors")
    assert b'"version":"3"' in path.read_bytes()[:100000]
    again = Program.load(path)
    assert again.dimensions == {"sequence": (1, 24)}
    loaded = load(path, engine="reference")
    given = call(3, 11)
    assert torch.equal(loaded(**given), program.run(**given, engine="reference"))


@pytest.mark.skipif("onednn" not in ENGINES, reason="no onednn here")
def test_a_new_length_packs_no_weights_again(program: Program) -> None:
    runner: Any = get_runner(program, "onednn")

    def weights(batch: int, length: int) -> dict[tuple[Any, ...], int]:
        runner({name: x.numpy() for name, x in call(batch, length).items()})
        return {key: id(pack) for key, pack in runner._packs.items() if key[1] in ("linear", "array")}

    before = weights(1, 7)
    assert len(before) >= 8 and weights(2, 13) == before


class Encoding(UserDict):  # type: ignore[type-arg]
    """What tokenizers return: a mapping that is no dict."""


def test_quantize_finds_lengths_that_differ_in_tokenized_batches(model: Encoder) -> None:
    data = [Encoding(call(4, length)) for length in (7, 9, 12)]
    for batch in data:
        batch["labels"] = torch.zeros(4, dtype=torch.int64)
    program = intact8.quantize(model, iter(data))
    assert program.dimensions == {"sequence": (1, 24)}
    assert program.run(**call(1, 20)).shape == (1, 20, 16)


def test_lengths_that_do_not_differ_stay_fixed_unless_asked_for(model: Encoder) -> None:
    data = [call(4, 7, seed=i) for i in range(3)]
    assert intact8.quantize(model, data).dimensions == {}
    asked = {name: {1: torch.export.Dim("length", max=20)} for name in SEQUENCE}
    assert intact8.quantize(model, data, dynamic_shapes=asked).dimensions == {"length": (1, 20)}
