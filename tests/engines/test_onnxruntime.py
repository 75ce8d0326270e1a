"""The onnxruntime engine: exact integers, threads, batches, feeding, and clear refusals."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import certified, data, with_op

pytest.importorskip("onnxruntime")

from intact8.engines import cpu
from intact8.engines.onnxruntime import OnnxRuntimeEngine
from intact8.engines.onnxruntime import engine as module
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

ENGINE = OnnxRuntimeEngine()
PROGRAM = certified()
X, BIAS = data()


def table_program(entries: np.ndarray, z: int = 60, zy: int = 20) -> Program:
    tensors = {"x": Tensor("x", "uint8", (None, 256), SCALE, z), "y": Tensor("y", "uint8", (None, 256), SCALE, zy)}
    op = Op("y", "table", ("x",), {"fn": "test"}, {"table": entries.astype(np.uint8)})
    return Program(tensors, (op,), ("x",), ("y",))


SCALE = float(np.float32(0.061))
V = (np.arange(256) - 60) * SCALE
TABLES = {
    "same": np.clip(np.arange(256), 30, 200),
    "affine": np.clip(np.rint(np.maximum(V, 0) / SCALE) + 20, 0, 255),
    "hardswish": np.clip(np.rint(V * np.clip(V + 3, 0, 6) / 6 / SCALE) + 20, 0, 255),
    "silu": np.clip(np.rint(V / (1 + np.exp(-V)) / SCALE) + 20, 0, 255),
}


@pytest.mark.parametrize("form", TABLES)
def test_tables_are_computed_only_where_every_entry_agrees(form: str) -> None:
    x, entries = np.arange(256, dtype=np.uint8)[None], TABLES[form]
    runner = ENGINE.prepare(table_program(entries))
    assert runner.forms == {"y": (form, form in {"same", "affine"})}
    np.testing.assert_array_equal(runner({"x": x})[0][0], entries)
    for i in (80, 130, 180):  # the ends could be a clamp
        changed = entries.copy()
        changed[i] = entries[i] + 1 if entries[i] < 128 else entries[i] - 1
        runner = ENGINE.prepare(table_program(changed))
        assert not runner.forms
        np.testing.assert_array_equal(runner({"x": x})[0][0], changed)


SATURATES = pytest.mark.skipif(
    not cpu.adds_at_once(), reason="this CPU lacks VNNI, without which sums of two products saturate"
)


@pytest.mark.parametrize(
    "form", ["conv", "transposed", pytest.param("rows", marks=SATURATES), pytest.param("batch", marks=SATURATES)]
)
def test_a_negative_slope_meets_the_least_weight(form: str) -> None:
    """A weight of −128 has no int8 that is its opposite."""
    rng, limits = np.random.default_rng(0), {"lo": 51, "hi": 163, "residual_a": 0}
    kernel = (3, 3) if form in ("conv", "transposed") else ()
    weight = rng.integers(-128, 128, (4, 4, *kernel), np.int8)
    weight[:, 1] = -128
    one = np.ones(4, np.int32)
    arrays = {"weight": weight, "bias": 300 * one, "a": one, "b": one, "a_neg": one * [-3, -1, 2, -60], "b_neg": one}
    arrays["a_neg"] = arrays["a_neg"].astype(np.int32)
    if kernel:
        windows = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
        op = Op("y", "conv", ("x",), {**limits, **windows, "transposed": form == "transposed"}, arrays)
        shape: tuple[int | None, ...] = (None, 4, 5, 5)
    else:
        op, shape = Op("y", "linear", ("x",), limits, arrays), (None, 4) if form == "batch" else (None, 3, 4)
    tensors = {n: Tensor(n, "uint8", shape, 1.0, z) for n, z in (("x", 128), ("y", 100))}
    program = Program(tensors, (op,), ("x",), ("y",))
    x = {"x": rng.integers(0, 256, (8, *shape[1:]), np.uint8)}
    np.testing.assert_array_equal(ENGINE.prepare(program)(x)[0], ReferenceEngine().prepare(program)(x)[0])


@pytest.mark.parametrize(("suffix", "role"), [("", "weight_hh"), (".reverse", "bias_hh")])
def test_a_gru_whose_closed_gate_would_leak_is_refused(suffix: str, role: str) -> None:
    """The sigmoid of ONNX Runtime's GRU ends below 0, and a large product of the new gate shows it."""
    shapes = {"weight_ih": (9, 4), "weight_hh": (9, 3), "bias_ih": (9,), "bias_hh": (9,)}
    arrays = {name + d: np.full(shape, 0.5, np.float32) for name, shape in shapes.items() for d in ("", ".reverse")}
    attrs = {"hidden": 3, "bidirectional": True, "states": False, "lengths": False, "result": "steps"}
    tensors = {n: Tensor(n, "float32", (2, None, size)) for n, size in (("x", 4), ("y", 6))}
    x = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 2, 4)}
    for value in (1000, 1040):
        arrays[role + suffix] = np.zeros(shapes[role], np.float32)
        arrays[role + suffix][8] = value / (3 if role == "weight_hh" else 1)
        program = Program(tensors, (Op("y", "float.gru", ("x",), attrs, arrays),), ("x",), ("y",))
        if value == 1000:
            found, wanted = ENGINE.prepare(program)(x)[0], ReferenceEngine().prepare(program)(x)[0]
            np.testing.assert_allclose(found, wanted, atol=5e-4)
        else:
            with pytest.raises(EngineError, match="does not compute this GRU"):
                ENGINE.prepare(program)


@pytest.mark.parametrize("float_between", [False, True])
def test_two_quantizations_stay_two(float_between: bool) -> None:
    """A table computed as a float function, and nothing between two grids, stand between quantizations alike."""
    coarser, limits = float(np.float32(1.3 * SCALE)), {"lo": 0, "hi": 255}
    entries = np.clip(np.rint(V / coarser) + 20, 0, 255)
    program = table_program(entries)
    tensors = {n: Tensor(n, "float32", (None, 256)) for n in ("given", "between", "result")} | {
        "x": program.tensors["x"], "y": replace(program.tensors["y"], scale=coarser)
    }  # fmt: skip
    moved = (
        (Op("between", "dequantize", ("x",)), Op("y", "quantize", ("between",), limits))
        if float_between
        else program.ops
    )
    tensors = {n: t for n, t in tensors.items() if n != "between" or float_between}
    ops = (Op("x", "quantize", ("given",), limits), *moved, Op("result", "dequantize", ("y",)))
    program = Program(tensors, ops, ("given",), ("result",))
    runner, given = ENGINE.prepare(program), {"given": np.linspace(-6, 16, 2048, dtype=np.float32).reshape(-1, 256)}
    assert float_between or runner.forms == {"y": ("affine", False)}
    np.testing.assert_array_equal(runner(given)[0], ReferenceEngine().prepare(program)(given)[0])


def test_numbers_keep_their_shape() -> None:
    """A scalar as an input, an output and fed."""
    tensors = {
        "x": Tensor("x", "float32", ()), "q": Tensor("q", "uint8", (), 0.5, 3), "y": Tensor("y", "float32", ()),
    }  # fmt: skip
    ops = (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}), Op("y", "dequantize", ("q",)))
    program = Program(tensors, ops, ("x",), ("y", "q"), {"list": [0, 1]})
    runner, given = ENGINE.prepare(program), {"x": np.array(7.3, np.float32)}
    want = ReferenceEngine().prepare(program)(given)
    for got, ideal in zip(runner(given), want, strict=True):
        assert got.shape == () and got == ideal
    assert all(t.shape == () for t in runner.tensors(given).values())


def test_feeding_a_float_island_makes_what_follows_comparable() -> None:
    want = ReferenceEngine().prepare(PROGRAM).tensors({"x": X, "bias": BIAS})
    feed = {op.name: want[op.name] + np.float32(0.01) for op in PROGRAM.islands()}
    fed = ReferenceEngine().prepare(PROGRAM).tensors({"x": X, "bias": BIAS}, feed)
    got = ENGINE.prepare(PROGRAM).tensors({"x": X, "bias": BIAS}, feed)
    assert list(got) == list(PROGRAM.tensors)
    for name in PROGRAM.integer_tensors():
        np.testing.assert_array_equal(got[name], fed[name], err_msg=name)
    assert (fed["again"] != want["again"]).any()
    np.testing.assert_array_equal(got["softmax"], feed["softmax"])


def test_uint8_where_an_input_is_quantized_at_once() -> None:
    runner = ENGINE.prepare(PROGRAM)
    quantized = runner.tensors({"x": X, "bias": BIAS})["xq"]
    for a, b in zip(runner({"x": quantized, "bias": BIAS}), runner({"x": X, "bias": BIAS}), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(runner.tensors({"x": quantized, "bias": BIAS})["xq"], quantized)


def test_batches_without_preparing_again_and_strided_inputs() -> None:
    runner = ENGINE.prepare(PROGRAM, threads=1)
    x, bias = data(64)
    whole = runner({"x": x, "bias": bias})[1]
    for part in (slice(0, 1), slice(3, 20)):
        np.testing.assert_array_equal(runner({"x": x[part], "bias": bias[part]})[1], whole[part])
    strided = np.asfortranarray(x)
    strided.flags.writeable = False
    np.testing.assert_array_equal(runner({"x": strided, "bias": bias})[1], whole)


def test_many_threads_share_a_runner() -> None:
    runner = ENGINE.prepare(PROGRAM, threads=2)
    want = runner.tensors({"x": X, "bias": BIAS})

    def work(i: int) -> bool:
        n = i % 3 + 1
        if i % 2:
            return bool((runner({"x": X[:n], "bias": BIAS[:n]})[1] == want["parted"][:n]).all())
        return bool((runner.tensors({"x": X[:n], "bias": BIAS[:n]})["head"] == want["head"][:n]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_outputs_given_twice_are_separate_arrays() -> None:
    program = replace(PROGRAM, outputs=("parted", "parted"), structure={"list": [0, 1]})
    first, second = ENGINE.prepare(program)({"x": X, "bias": BIAS})
    kept = second.copy()
    first += 1
    np.testing.assert_array_equal(second, kept)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == "onnx" else object())
    assert ENGINE.available() == "onnx not installed: pip install 'intact8[onnx]'"
    with pytest.raises(EngineError, match="onnx not installed"):
        ENGINE.prepare(PROGRAM)


def test_vnni_is_required_where_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "is_x86", lambda: True)
    monkeypatch.setattr(cpu, "flags", lambda: frozenset({"avx2"}))
    ENGINE.prepare(PROGRAM)
    with pytest.raises(EngineError, match="needs VNNI"):
        ENGINE.prepare(replace(PROGRAM, needs=("vnni",)))
    monkeypatch.setattr(cpu, "is_x86", lambda: False)
    ENGINE.prepare(replace(PROGRAM, needs=("vnni",)))


def test_refusals() -> None:
    with pytest.raises(EngineError, match=r"threads is 0\. Remedy: give an integer of 1 or more"):
        ENGINE.prepare(PROGRAM, threads=0)
    with pytest.raises(EngineError, match="^head: teleport has no form"):
        ENGINE.prepare(with_op(PROGRAM, "head", kind="teleport"))
    runner = ENGINE.prepare(PROGRAM)
    with pytest.raises(InputError, match="^bias: input is missing"):
        runner({"x": X})
    with pytest.raises(InputError, match="^x: expected float32, got float64"):
        runner({"x": X.astype(np.float64), "bias": BIAS})
    with pytest.raises(InputError, match="^bias: expected float32, got uint8"):
        runner({"x": X, "bias": BIAS.astype(np.uint8)})
    with pytest.raises(InputError, match="^x: expected shape"):
        runner({"x": X[0], "bias": BIAS})


def test_what_onnx_runtime_refuses_is_reported_with_the_op() -> None:
    """An axis that does not exist gets past the exporter (the checker would find it), not past ONNX Runtime."""
    broken = with_op(PROGRAM, "cat", attrs={"axis": 5})
    with pytest.raises(EngineError, match=r"^cat: ONNX Runtime does not take this program\. Reason: "):
        ENGINE.prepare(broken)


def test_what_fails_while_running_is_reported_with_the_op() -> None:
    program = with_op(PROGRAM, "flat", attrs={"shape": [-1, 48]})
    with pytest.raises(InputError, match="^flat: ONNX Runtime cannot run this input"):
        ENGINE.prepare(with_op(program, "head", arrays={"weight": np.ones((5, 48), np.int8)}))({"x": X, "bias": BIAS})


@pytest.mark.parametrize("move", ["permute", "reshape"])
@pytest.mark.parametrize("everything", [False, True])
def test_an_output_stays_float_where_what_it_becomes_is_quantized(move: str, everything: bool) -> None:
    """ONNX Runtime's transpose optimizer quantizes before it moves, and gives the rounded values as the output."""
    attrs: dict[str, Any] = {"dims": [0, 2, 1]} if move == "permute" else {"shape": [-1, 9, 4]}
    tensors = {
        "x": Tensor("x", "float32", (None, 4, 10)), "s": Tensor("s", "float32", (None, 4, 9)),
        "p": Tensor("p", "float32", (None, 9, 4)), "q": Tensor("q", "uint8", (None, 9, 4), 1.0, 199),
        "d": Tensor("d", "float32", (None, 9, 4)),
    }  # fmt: skip
    ops = (
        Op("s", "slice", ("x",), {"axis": 2, "start": 1, "end": 10, "step": 1}), Op("p", move, ("s",), attrs),
        Op("q", "quantize", ("p",), {"lo": 0, "hi": 255}), Op("d", "dequantize", ("q",)),
    )  # fmt: skip
    program = Program(tensors, ops, ("x",), ("d", "s"), {"list": [0, 1]})
    x = {"x": np.random.default_rng(0).standard_normal((2, 4, 10)).astype(np.float32)}
    wanted, runner = ReferenceEngine().prepare(program), OnnxRuntimeEngine().prepare(program)
    if everything:
        for name, value in wanted.tensors(x).items():
            np.testing.assert_array_equal(runner.tensors(x)[name], value)
        return
    for got, want in zip(runner(x), wanted(x), strict=True):
        np.testing.assert_array_equal(got, want)
