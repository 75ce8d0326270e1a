"""The onednn engine as a whole: several ops, memory, batches, threads, errors, CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from intact.arithmetic import integer
from intact.engines import cpu
from intact.engines.onednn import OnednnEngine
from intact.errors import EngineError, InputError
from intact.program.ops import Op, Tensor
from intact.program.program import Program

ENGINE = OnednnEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))
Array = npt.NDArray[Any]


def block(seed: int = 0) -> Program:
    """quantize → conv 3×3 (relu) → conv 1×1 + residual (relu), which is read again → dequantize."""
    rng = np.random.default_rng(seed)
    shape = (None, 8, 9, 7)
    names = {"x": None, "q": 3, "c1": 0, "c2": 100, "sum": 50}
    tensors = {n: Tensor(n, "uint8", shape, 0.1, z) for n, z in names.items() if z is not None}
    tensors = {"x": Tensor("x", "float32", shape)} | tensors | {"y": Tensor("y", "float32", shape)}
    ones = np.ones(8, np.int32)

    def conv(name: str, inputs: tuple[str, ...], k: int, z: int, residual: int) -> Op:
        w = rng.integers(-60, 61, (8, 8, k, k), dtype=np.int8)
        geometry = {"stride": [1, 1], "padding": [k // 2] * 2, "dilation": [1, 1], "output_padding": [0, 0]}
        attrs = geometry | {"groups": 1, "transposed": False, "lo": z, "hi": 255, "residual_a": residual}
        return Op(name, "conv", inputs, attrs, {"weight": w, "bias": ones, "a": ones * 7, "b": ones * 1999})

    ops = (
        Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),
        conv("c1", ("q",), 3, 0, 0),
        conv("c2", ("c1", "q"), 1, 100, 1500),
        Op("sum", "add", ("c2", "q"), {"a": [501, 333], "b": 1001, "lo": 0, "hi": 255}),
        Op("y", "dequantize", ("sum",)),
    )
    return Program(tensors, ops, ("x",), ("y",))


def ideal(program: Program, x: Array) -> dict[str, Array]:
    """Every tensor of :func:`block`, by exact integers."""
    _, c1, c2, total, _ = program.ops
    z = {n: t.zero_point for n, t in program.tensors.items()}
    s = np.float32(0.1)
    q = np.clip(np.rint(x / s) + np.float32(3), 0, 255).astype(np.uint8)

    def conv(op: Op, v: Array, zero: int, **more: Any) -> Array:
        g = op.attrs
        acc = integer.conv_accumulate(
            v, zero, op.arrays["weight"], op.arrays["bias"], g["stride"], g["padding"], g["dilation"], 1
        )
        return integer.requantize(acc, op.arrays["a"], op.arrays["b"], z[op.name], g["lo"], g["hi"], 1, **more)

    a = conv(c1, q, 3)
    b = conv(c2, a, 0, residual=q.astype(np.int64) - 3, residual_a=1500)
    t = integer.add([b, q], [100, 3], total.attrs["a"], 1001, 50)
    return {"x": x, "q": q, "c1": a, "c2": b, "sum": t, "y": (t.astype(np.float32) - 50) * s}


def images(batch: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(5, 6, (batch, 8, 9, 7)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_every_tensor_is_ideal_at_any_batch_size(batch: int) -> None:
    program, x = block(), images(batch)
    expected = ideal(program, x)
    got = ENGINE.prepare(program).tensors({"x": x})
    assert list(got) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
        assert got[name].flags.c_contiguous


def test_calls_leave_inputs_and_earlier_outputs_alone() -> None:
    runner, x, other = ENGINE.prepare(block()), images(2), images(2, seed=9)
    before = x.copy()
    (first,) = runner({"x": x})
    kept = first.copy()
    (second,) = runner({"x": other})
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(first, kept)
    assert (first != second).any()


def test_uint8_is_taken_where_the_input_is_only_quantized() -> None:
    program, x = block(), images(3)
    runner, expected = ENGINE.prepare(program), ideal(block(), x)
    np.testing.assert_array_equal(runner({"x": expected["q"]})[0], expected["y"])
    np.testing.assert_array_equal(runner({"x": np.asfortranarray(expected["q"])})[0], expected["y"])


def test_read_only_and_strided_inputs() -> None:
    runner, x = ENGINE.prepare(block()), images(4)
    expected = ideal(block(), x[::-2])["y"]
    frozen = x[::-2].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(runner({"x": x[::-2]})[0], expected)
    np.testing.assert_array_equal(runner({"x": frozen})[0], expected)


def test_many_threads_at_once() -> None:
    runner, inputs = ENGINE.prepare(block()), [images(1 + i % 6, seed=i) for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: runner({"x": x})[0], inputs))
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(y, ideal(block(), x)["y"])


def test_thread_count_is_set_back() -> None:
    before = torch.get_num_threads()
    runner = ENGINE.prepare(block(), threads=before + 1)
    runner({"x": images(1)})
    assert torch.get_num_threads() == before


def test_torch_call_gives_the_same_without_numpy() -> None:
    runner, x = ENGINE.prepare(block()), images(2)
    (y,) = runner.torch_call([torch.from_numpy(x)])
    np.testing.assert_array_equal(y.numpy(), ideal(block(), x)["y"])


def test_fed_tensors_replace_results() -> None:
    program, x = block(), images(2)
    fed = np.full((2, 8, 9, 7), 1.5, np.float32)
    got = ENGINE.prepare(program).tensors({"x": x}, feed={"y": fed})
    np.testing.assert_array_equal(got["y"], fed)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "missing"),
        ({"x": np.zeros((1, 8, 9, 7))}, "float32"),
        ({"x": np.zeros((1, 8, 9, 8), np.float32)}, "shape"),
        ({"x": np.zeros((8, 9, 7), np.float32)}, "shape"),
    ],
    ids=["missing", "float64", "shape", "rank"],
)
def test_wrong_inputs_are_named(inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ENGINE.prepare(block())(inputs)


def test_an_op_without_a_rule_is_refused_by_name() -> None:
    program = block()
    ops = (*program.ops[:-1], replace(program.ops[-1], kind="fourier"))
    with pytest.raises(EngineError, match="y: no rule for kind 'fourier'"):
        ENGINE.prepare(replace(program, ops=ops))


def test_vnni_is_demanded_where_the_program_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "isa", lambda: "avx2")
    with pytest.raises(EngineError, match="portable=True"):
        ENGINE.prepare(replace(block(), needs=("vnni",)))
    ENGINE.prepare(block())


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("sse4_1 avx avx2", "ALL", "avx2"),
        ("sse4_1 avx avx2 avx_vnni", "ALL", "avx2_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "ALL", "avx512_core_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "AVX512_CORE", "avx512_core"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "avx2_vnni", "avx2_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni", "AVX2", "avx2"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni", "AVX512_CORE_AMX", "avx512_core_vnni"),
    ],
)
def test_instruction_sets(flags: str, limit: str, expected: str) -> None:
    assert cpu.isa(frozenset(flags.split()), limit) == expected


@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2_VNNI", "AVX2"])
def test_portable_programs_are_exact_on_lesser_cpus(limit: str) -> None:
    """The same conformance cases with oneDNN held back to an older instruction set."""
    code = """
import numpy as np
from conformance.build import draw
from conformance.test_onednn import mismatches
rng = np.random.default_rng(11)
bad = [c.text for kind in ("conv", "linear", "add", "mean", "pool") for c in (draw(kind, rng, False) for _ in range(60))
       if mismatches(c)]
print(bad)
assert not bad
"""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([tests, *sys.path])
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": limit, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
