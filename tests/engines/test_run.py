"""Running programs: inputs, outputs, engines by name."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.program.build import certified, data, with_op

import intact8.engines as engines
from intact8.engines import available_engines, engine_status, get_engine, get_runner
from intact8.errors import EngineError, InputError
from intact8.opset import Op, Tensor
from intact8.program.program import Program

PROGRAM = certified()
X, BIAS = data()


def run(*args: Any, **named: Any) -> Any:
    return PROGRAM.run(*args, engine="reference", **named)


def test_outputs_nest_as_the_model_did() -> None:
    y = run(X, BIAS)
    assert set(y) == {"probabilities", "rest"}
    second, nothing, again = y["rest"]
    assert second.shape == (3, 2) and nothing is None and again[0].shape == (3, 5)
    np.testing.assert_allclose(y["probabilities"].sum(1), 1, rtol=1e-5)


def test_objects_come_back_as_dicts() -> None:
    from dataclasses import replace

    program = replace(PROGRAM, structure={"object": "Out", "fields": {"a": 1}})
    assert program.run(X, BIAS, engine="reference")["a"].shape == (3, 2)


def test_inputs_by_name_and_by_position() -> None:
    want = run(X, BIAS)["probabilities"]
    np.testing.assert_array_equal(run(bias=BIAS, x=X)["probabilities"], want)
    np.testing.assert_array_equal(run(X, bias=BIAS)["probabilities"], want)


def test_torch_in_torch_out() -> None:
    want = run(X, BIAS)["probabilities"]
    got = run(torch.from_numpy(X).requires_grad_(), BIAS)["probabilities"]
    assert isinstance(got, torch.Tensor) and not isinstance(want, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), want)
    got += 1  # writable, and nobody else's memory
    np.testing.assert_array_equal(run(X, BIAS)["probabilities"], want)


def test_any_memory_layout() -> None:
    want = run(X, BIAS)["probabilities"]
    channels_last = torch.from_numpy(X).contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(run(channels_last, BIAS)["probabilities"].numpy(), want)
    np.testing.assert_array_equal(run(np.asfortranarray(X), BIAS)["probabilities"], want)
    read_only = X.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(run(read_only, BIAS)["probabilities"], want)


def test_integers_where_the_input_is_quantized_at_once() -> None:
    tensors = get_runner(PROGRAM, "reference").tensors({"x": X, "bias": BIAS})
    np.testing.assert_array_equal(run(tensors["xq"], BIAS)["probabilities"], tensors["softmax"])


def test_integers_are_clamped_like_what_is_quantized() -> None:
    program = with_op(PROGRAM, "xq", attrs={"lo": 1})
    zeros, ones = np.zeros(X.shape, np.uint8), np.ones(X.shape, np.uint8)
    want = program.run(ones, BIAS, engine="reference")["probabilities"]
    np.testing.assert_array_equal(program.run(zeros, BIAS, engine="reference")["probabilities"], want)


@pytest.mark.parametrize(("args", "named", "where", "what"), [
    ((X,), {}, "bias", "missing"),
    ((X, BIAS, BIAS), {}, "", "got 3 inputs, expected 2"),
    ((X, BIAS), {"y": X}, "y", "no such input"),
    ((X, BIAS), {"x": X}, "x", "by position and by name"),
    ((X.astype(np.float64), BIAS), {}, "x", "expected float32 or uint8, got float64"),
    ((X, (BIAS * 9).astype(np.uint8)), {}, "bias", "expected float32, got uint8"),
    ((X[0], BIAS), {}, "x", "expected shape (batch, 3, 8, 8), got (3, 8, 8)"),
    ((X[:, :, :7], BIAS), {}, "x", "expected shape (batch, 3, 8, 8), got (3, 3, 7, 8)"),
    ((X, BIAS[:2]), {}, "bias", "batch of 2, but x has 3"),
    ((X * np.float32("nan"), BIAS), {}, "x", "NaN"),
    ((X.tolist(), BIAS), {}, "x", "expected a numpy array or torch tensor, got list"),
    ((torch.from_numpy(X).bfloat16(), BIAS), {}, "x", "bfloat16"),
    ((torch.empty(X.shape, device="meta"), BIAS), {}, "x", "on meta"),
], ids=lambda v: v.replace(" ", "-")[:40] if isinstance(v, str) else "")  # fmt: skip
def test_bad_inputs_are_named(args: Any, named: Any, where: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        run(*args, **named)
    assert caught.value.where == where and what in caught.value.what and caught.value.remedy


def test_a_dict_or_a_tuple_of_inputs_is_said_to_be_spread() -> None:
    for given, remedy in (({"x": X, "bias": BIAS}, r"run\(\*\*inputs\)"), ((X, BIAS), r"run\(\*inputs\)")):
        with pytest.raises(InputError, match=remedy):
            run(given)


def test_infinities_saturate() -> None:
    x = np.full(X.shape, np.inf, np.float32)
    x[:, :, ::2] = -np.inf
    xq = get_runner(PROGRAM, "reference").tensors({"x": x, "bias": BIAS})["xq"]
    assert set(np.unique(xq)) == {0, 255}


@pytest.mark.parametrize("engine", available_engines())
def test_empty_batches_are_empty(engine: str) -> None:
    y = PROGRAM.run(X[:0], BIAS[:0], engine=engine)
    assert y["probabilities"].shape == (0, 5) and y["rest"][0].shape == (0, 2)
    assert y["probabilities"].dtype == np.float32


def test_unknown_engine() -> None:
    with pytest.raises(EngineError, match="no engine 'gpu'.*choose from auto, reference"):
        PROGRAM.run(X, BIAS, engine="gpu")


def test_missing_library_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "intact8.engines.onednn", None)
    with pytest.raises(EngineError, match="library is missing.*reference"):
        get_engine("onednn")
    monkeypatch.setattr("intact8.engines.onnxruntime.OnnxRuntimeEngine.available", lambda self: "not here")
    monkeypatch.setattr("intact8.engines.openvino.OpenVinoEngine.available", lambda self: "not here")
    monkeypatch.setattr("intact8.engines.native.NativeEngine.available", lambda self: "not here")
    assert available_engines() == ["reference"]
    assert "missing" in str(engine_status()["onednn"])
    assert get_engine("auto").name == "reference"


def test_auto_is_the_fastest_there_is() -> None:
    assert get_engine("auto").name == available_engines()[-1]


def test_unavailable_engines_are_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact8.engines.reference.ReferenceEngine.available", lambda self: "the moon is wrong")
    with pytest.raises(EngineError, match="the moon is wrong"):
        get_runner(certified(), "reference")


def test_runners_are_prepared_once_and_die_with_the_program() -> None:
    program = certified()
    runner = get_runner(program, "reference")
    assert get_runner(program, "reference") is runner
    gone = weakref.ref(runner)
    del runner, program
    gc.collect()
    assert gone() is None


def test_copies_and_pickles_leave_runners_out() -> None:
    program = certified()
    runner = get_runner(program, "reference")
    for twin in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert get_runner(twin, "reference") is not runner
        assert twin.run(X, BIAS, engine="reference")["probabilities"].shape == (3, 5)


def test_running_the_reference_imports_no_torch(tmp_path: Any) -> None:
    path = PROGRAM.save(tmp_path / "p.safetensors")
    np.savez(tmp_path / "data.npz", x=X, bias=BIAS)
    code = (
        "import sys, numpy as np\n"
        "from intact8.program.program import Program\n"
        f"d = np.load({str(tmp_path / 'data.npz')!r})\n"
        f"y = Program.load({str(path)!r}).run(d['x'], d['bias'], engine='reference')\n"
        "assert y['probabilities'].shape == (3, 5)\n"
        "assert 'torch' not in sys.modules\n"
    )
    source = str(Path(engines.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source})


def test_programs_are_still_comparable() -> None:
    assert isinstance(PROGRAM, Program) and engines.ENGINES[0] == "reference"


@pytest.mark.parametrize("shape", [(2, 3, 2), (5, 3, 2)])
def test_the_batch_has_one_size_wherever_it_stands(shape: tuple[int, ...]) -> None:
    x, y = Tensor("x", "float32", (2, 3, None)), Tensor("y", "float32", (None, 3, 2))
    z = Tensor("z", "float32", (None, 3, 2))
    ops = (Op("p", "permute", ("x",), {"dims": [2, 1, 0]}), Op("z", "float.add", ("p", "y")))
    program = Program({"x": x, "y": y, "p": replace(y, name="p"), "z": z}, ops, ("x", "y"), ("z",))
    given = np.zeros((2, 3, 5), np.float32)
    if shape[0] == 5:
        assert program.run(given, np.zeros(shape, np.float32), engine="reference").shape == shape
        return
    with pytest.raises(InputError, match="y: batch of 2, but x has 5"):
        program.run(given, np.zeros(shape, np.float32), engine="reference")


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("limits", [(3, float("inf")), (-float("inf"), 2), (None, 1 << 40), (-(1 << 40), 1)])
def test_limits_of_integers_may_be_beyond_all_of_them(engine: str, limits: tuple[Any, Any]) -> None:
    tensors = {name: Tensor(name, "int64", (None, 4)) for name in "xy"}
    program = Program(
        tensors, (Op("y", "float.clamp", ("x",), dict(zip(("min", "max"), limits, strict=True))),), ("x",), ("y",)
    )
    x = np.array([[-5, 0, 7, 4_000_000]])
    low, high = (end if isinstance(end, int) else None for end in limits)
    np.testing.assert_array_equal(get_engine(engine).prepare(program)({"x": x})[0], np.clip(x, low, high))
