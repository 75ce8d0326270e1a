"""What a program is predicted to take, and calls that are refused by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import certified, data

import intact8.runtime
from intact8.engines import available_engines, get_engine, memory
from intact8.engines.memory import MODELS, Admission, held, predicted, running, seconds
from intact8.errors import InputError
from intact8.exporting import export
from intact8.opset.op import Op, Tensor
from intact8.program.dimensions import sized_near
from intact8.program.program import Program
from intact8.verification import verify

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "memory_prediction.py"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize(
    "engine", [pytest.param(n, marks=() if n == "onnxruntime" else pytest.mark.long) for n in available_engines()]
)
def test_prediction_is_within_a_factor_of_two(engine: str) -> None:
    command = [sys.executable, str(SCRIPT), "--engine", engine, "--programs", "6", "--elements", "3e6", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (rows,) = json.loads(done.stdout).values()
    assert len(rows) >= 4
    off = [row for row in rows if max(row["predicted"], row["measured"]) > 16 << 20
           and not 0.5 <= row["predicted"] / row["measured"] <= 2]  # fmt: skip
    assert not off


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "bytes_of_a_pixel"),
    [(16, 16, 1, 8 * 25), (16, 8, 1, 16 * 25 + 32), (6, 16, 1, 6 * 25 + 64), (32, 32, 4, 8 * 25 + 128), (8, 8, 8, 200)],
)
def test_windows_are_pointed_to_or_gathered(channels: int, outputs: int, groups: int, bytes_of_a_pixel: int) -> None:
    """ONNX Runtime has kernels that read windows where they lie, for some numbers of channels only."""
    windows = {"stride": [1, 1], "padding": [2, 2], "dilation": [1, 1], "output_padding": [0, 0], "transposed": False}
    attrs, one = {**windows, "groups": groups, "lo": 0, "hi": 255, "residual_a": 0}, np.ones(outputs, np.int32)
    weight = np.ones((outputs, channels // groups, 5, 5), np.int8)
    op = Op("y", "conv", ("x",), attrs, {"weight": weight, "bias": one, "a": one, "b": one})
    tensors = {n: Tensor(n, "uint8", (None, c, 100, 100), 1.0, 0) for n, c in (("x", channels), ("y", outputs))}
    program = Program(tensors, (op,), ("x",), ("y",))
    assert running(program, "onnxruntime") == 10_000 * (channels + outputs + channels // 2 + bytes_of_a_pixel)


EXACT = """
from memory_prediction import NAMES, WARM, SMALL, alone, drawn, get_engine, inputs, once, peak
for kind in list(NAMES)[:WARM]:
    once("native", alone(kind, SMALL))
for seed in (4, 6, 11):
    program = drawn(seed, 3_000_000)
    given, runner, kept = inputs(program, 1), get_engine("native").prepare(program, threads=1), []
    more = runner.call_bytes(given) - sum(x.nbytes for x in given.values())
    print(more, peak(lambda: kept.append(runner(given))))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
@pytest.mark.skipif("native" not in available_engines(), reason="the native library was not built")
def test_the_native_engine_knows_what_a_call_takes() -> None:
    path = os.pathsep.join([str(SCRIPT.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", EXACT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        told, measured = map(int, line.split())
        assert measured > 16 << 20 and measured / 1.25 < told < 1.25 * measured


def test_a_call_is_refused_by_what_its_plan_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 30)
    x, asked = np.broadcast_to(np.float32(0), (4, 512, 1024)), list[str]()
    admit = Admission(stretched(), "native", None, lambda _: asked.append("probe"), lambda _: 3 << 30)
    with pytest.raises(InputError, match="would take about"):
        admit({"x": x})
    assert asked == ["probe"]


def stretched() -> Program:
    """A batch of rows of any length."""
    x, y = Tensor("x", "float32", (None, "n", 1024)), Tensor("y", "float32", (None, "n", 1024))
    return Program({"x": x, "y": y}, (Op("y", "float.unary", ("x",), {"fn": "tanh"}),), ("x",), ("y",),
                   dimensions={"n": (1, None)})  # fmt: skip


def test_prediction_grows_with_batch_and_sizes() -> None:
    program = stretched()
    one = running(program, "reference", 1, {"n": 100})
    assert running(program, "reference", 8, {"n": 100}) == running(program, "reference", 1, {"n": 800}) == 8 * one
    assert predicted(program, "an engine of another package") == predicted(program, "reference")


def test_what_is_moved_into_the_batch_counts_as_often() -> None:
    x, y, z = (Tensor(n, "float32", s) for n, s in (("x", (None, 64, 1024)), ("y", (None, 1024)), ("z", (None, 1024))))
    ops = (Op("y", "reshape", ("x",), {"shape": [-1, 1024]}), Op("z", "float.unary", ("y",), {"fn": "tanh"}))
    program = Program({"x": x, "y": y, "z": z}, ops, ("x",), ("z",))
    given = 4 * 3 * 64 * 1024
    for engine in MODELS:
        assert running(program, engine, 3) >= 2 * given
        assert abs(running(program, engine, 6) - 2 * running(program, engine, 3)) <= 1


def test_outputs_are_counted_as_often_as_they_are_copied() -> None:
    program = sized_near(stretched(), 1000)
    many = Program(program.tensors, program.ops, program.inputs, ("y",) * 60)
    assert predicted(many, "reference") > 10 * predicted(program, "reference") / 2


def test_calls_that_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = stretched()
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 30)
    admit = Admission(program, "reference")
    small, large = (np.broadcast_to(np.float32(0), (n, 512, 1024)) for n in (4, 400))
    admit({"x": small})
    with pytest.raises(InputError, match="would take about") as error:
        admit({"x": large})
    assert "fewer samples" in error.value.remedy
    with pytest.raises(InputError, match="would take about"):
        program.run(large, engine="reference")
    parts = Admission(program, "reference", part=1)
    assert parts.needed({"x": large}) < admit.needed({"x": large})


def test_a_size_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "running", lambda *args: asked.append(1) or 0)
    admit = Admission(certified(), "reference")
    for n in (1, 2, 1, 2, 2):
        admit(dict(zip(("x", "bias"), data(n), strict=True)))
    assert len(asked) == 2


def test_loaded_programs_refuse_such_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = intact8.runtime.load(stretched().save(tmp_path / "p.safetensors"), engine="reference")
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 28)
    with pytest.raises(InputError, match="would take about"):
        runner(np.broadcast_to(np.float32(0), (100, 512, 1024)))
    assert runner(np.zeros((1, 3, 1024), np.float32)).shape == (1, 3, 1024)


def test_the_reference_takes_no_longer_than_predicted() -> None:
    import time

    from intact8.engines import get_engine

    program = certified()
    runner, given = get_engine("reference").prepare(program), dict(zip(("x", "bias"), data(1), strict=True))
    start = time.process_time()
    for _ in range(10):
        runner(given)
    assert (time.process_time() - start) / 10 < 10 * seconds(program)


def test_results_in_the_memory_of_an_operand_and_outputs_that_are_read() -> None:
    shape = (None, 1 << 20)
    t = {name: Tensor(name, "float32", shape) for name in "xyzw"}
    sums = Op("y", "float.add", ("x", "x")), Op("z", "float.relu", ("y",)), Op("w", "float.relu", ("z",))
    inside = Program(t, sums, ("x",), ("w",))
    kept = Program(t, sums, ("x",), ("w", "z"))  # nothing is written over an output
    assert (
        running(kept, "onednn") > running(inside, "onednn") == running(Program(t, sums[:2], ("x",), ("z",)), "onednn")
    )

    q = {"q": Tensor("q", "uint8", shape, 0.1, 0), "r": Tensor("r", "uint8", shape, 0.1, 0), "y": t["y"]}
    ends = Op("r", "pad", ("q",), {"pads": [[0, 0], [0, 0]], "value": 0}), Op("y", "dequantize", ("r",))
    both = running(Program(q, ends, ("q",), ("r", "y")), "openvino")
    assert both >= running(Program(q, ends, ("q",), ("y",)), "openvino")


@pytest.mark.parametrize("name", ["reference", "native"])
def test_a_call_too_large_is_refused_before_its_numbers_are_read(name: str, tmp_path: Path) -> None:
    tensors = {"x": Tensor("x", "float32", (None, 2)), "q": Tensor("q", "uint8", (None, 2), 0.5, 10)}
    program = Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
    if get_engine(name).available() is not None:
        pytest.skip("the engine is not here")
    endless = np.broadcast_to(np.zeros((1, 2), np.float32), (1 << 40, 2))  # eight bytes, and hours to look at
    loaded = intact8.runtime.load(program.save(tmp_path / "net.safetensors"), name, probe="never")
    for call in (loaded, lambda x: program.run(x, engine=name)):
        with pytest.raises(InputError, match="this call would take about .* MiB"):
            call(endless)
        assert call(np.zeros((3, 2), np.float32)).shape == (3, 2)


def test_memory_an_array_lies_in() -> None:
    x = np.zeros((4, 6, 2), np.float32)
    assert [held(y) for y in (x, x[::2], x.transpose(2, 0, 1), x[:0])] == [x.nbytes, x.nbytes // 2, x.nbytes, 0]
    assert held(np.broadcast_to(np.float32(1), (1 << 40, 2))) == 4


def test_every_tensor_at_once_is_refused_where_memory_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, samples = certified(), dict(zip(certified().inputs, data(2), strict=True))
    monkeypatch.setattr(memory, "ALWAYS_ADMITTED", 0)
    verify(program, samples, "native")
    calls: list[Callable[[], object]] = [
        lambda: verify(program, samples, "native"),
        lambda: export(program, tmp_path / "net.onnx", "onnx"),
    ]
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 12)
    for call in calls:
        with pytest.raises(InputError, match="every tensor of . samples would take about"):
            call()
    assert not list(tmp_path.iterdir())
