"""Inputs of the openvino engine: quantized by the model or by numpy; any memory; floats and bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino
from tests.conformance.networks import Network, of_floats

from intact8.arithmetic.affine import quantize
from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.openvino.build import Plan
from intact8.engines.openvino.input_quantize import Grid, boundaries
from intact8.engines.reference import ReferenceEngine
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))
CLAMP = {"lo": 0, "hi": 255}
MANY = 4


@pytest.fixture(params=["inside", "numpy"])
def quantizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who quantizes floats: the model, or numpy."""
    if request.param == "numpy":
        monkeypatch.setattr("intact8.engines.openvino.input_quantize.proved", lambda program: frozenset())
    return str(request.param)


def byte_network() -> tuple[Program, Any]:
    """Two convolutions of bytes, which are read where the caller has them; a batch of two."""
    net = Network(np.random.default_rng(5))
    net.start((2, 16, 9, 9))
    last = net.conv(net.conv("x", 16, 3), 16, 1)
    x = np.random.default_rng(0).integers(0, 256, (2, 16, 9, 9)).astype(np.uint8)
    return net.program((last,)), x


@pytest.fixture(params=[1, MANY])
def threads(request: pytest.FixtureRequest) -> int:
    """Threads of the engine."""
    return int(request.param)


def quantizer(scale: float, zero: int, shape: tuple[int | None, ...], lo: int = 0, hi: int = 255) -> Program:
    tensors = {"x": Tensor("x", "float32", shape), "q": Tensor("q", "uint8", shape, scale, zero)}
    return Program(tensors, (Op("q", "quantize", ("x",), {"lo": lo, "hi": hi}),), ("x",), ("q",))


def float_network() -> tuple[Program, Any]:
    """An image, quantized, and two convolutions; a float batch of two."""
    net = Network(np.random.default_rng(5))
    net.start((2, 16, 9, 9))
    last = net.conv(net.conv("x", 16, 3), 16, 1)
    x = np.random.default_rng(0).standard_normal((2, 16, 9, 9)).astype(np.float32)
    return of_floats(net.program((last,)), float(np.float32(0.0173)), **CLAMP), x


CHECK = """
import sys
import numpy as np
from tests.engines.openvino.test_inputs import ENGINE, MANY, quantizer
from intact8.arithmetic.affine import quantize
from intact8.engines.openvino.build import Plan
from intact8.engines.openvino.input_quantize import Grid, boundaries

rng = np.random.default_rng(int(sys.argv[1]))
count = elements = 0
for i in range(int(sys.argv[2])):
    scale = float(np.float32(np.exp(rng.uniform(-12, 6)) if i else 2.0**-20))
    lo, hi = (0, 255) if i % 3 else sorted(int(v) for v in rng.integers(0, 256, 2))
    grid = Grid(scale, int(rng.integers(0, 256)), lo, hi)
    x = boundaries(grid)
    x = np.concatenate([x, (rng.standard_normal(4096) * scale * 90).astype(np.float32)])[None]
    program = quantizer(grid.scale, grid.zero, (None, x.shape[1]), lo, hi)
    assert Plan.of(program).divided == {"q"}
    want = quantize(x, np.float32(grid.scale), grid.zero, lo, hi)
    got = ENGINE.prepare(program, threads=MANY)({"x": x})[0]
    count, elements = count + int((got != want).sum()), elements + x.size
print(count, elements)
"""


@pytest.mark.parametrize("level", ["", "AVX512_CORE", "AVX2_VNNI", "AVX2", "SSE41"])
def test_a_division_at_every_level_of_the_cpu(level: str) -> None:
    """Values around every rounding boundary: a multiplication with 1/s gets about one in two hundred of them wrong."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), *sys.path])}
    if level:
        env["ONEDNN_MAX_CPU_ISA"] = level
    run = subprocess.run(
        [sys.executable, "-c", CHECK, "1", "8"], env=env, cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["0", str(8 * (257 * 9 + 6 + 4096))]


def test_a_quantization_that_is_not_proved_is_done_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OpenVINO that ignores the attribute multiplies with 1/s: it is noticed, and the integers stay right."""
    grid = Grid(float(np.float32(0.0113)), 140, 0, 255)
    monkeypatch.setattr("intact8.engines.openvino.input_quantize.KEEP_DIVISION", "another_attribute")
    from intact8.engines.openvino import input_quantize

    input_quantize._exact.cache_clear()
    program = quantizer(grid.scale, grid.zero, (None, 2319))
    assert Plan.of(program).divided == frozenset()
    x = boundaries(grid)[None]
    got = ENGINE.prepare(program, threads=MANY)({"x": x})[0]
    input_quantize._exact.cache_clear()
    assert (got == quantize(x, np.float32(grid.scale), grid.zero, 0, 255)).all()


def test_every_value_next_to_a_rounding_boundary(quantizes: str, threads: int) -> None:
    rng = np.random.default_rng(3)
    for shape in ((None, 257 * 9 + 6), (None, 3, 257, 9 + 6)):
        for lo, hi in ((0, 255), (3, 250), (128, 255)):
            grid = Grid(float(np.float32(np.exp(rng.uniform(-12, 6)))), int(rng.integers(0, 256)), lo, hi)
            x = np.resize(boundaries(grid), (2, *shape[1:]))
            runner = ENGINE.prepare(quantizer(grid.scale, grid.zero, shape, lo, hi), threads=threads)
            want = quantize(x, np.float32(grid.scale), grid.zero, lo, hi)
            last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
            for given in (x, np.moveaxis(last, -1, 1), np.repeat(x, 2, axis=0)[::2]):
                assert (runner({"x": given})[0] == want).all()


def test_nan_is_refused(quantizes: str, threads: int) -> None:
    program, x = float_network()
    runner = ENGINE.prepare(program, threads=threads)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for given in (x, last, x[:1]):
        for at in ((0, 0, 0, 0), (-1, -1, -1, -1), (0, 7, 4, 5)):
            broken = given.copy(order="K")
            broken[at] = np.nan
            with pytest.raises(InputError, match="NaN"):
                runner({"x": broken})
        runner({"x": given})


def test_the_first_convolution_behind_it_runs_as_int8(quantizes: str, threads: int) -> None:
    program, x = float_network()
    runner = ENGINE.prepare(program, threads=threads)
    assert runner._plan.divided == ({"q"} if quantizes == "inside" else set())
    assert all(kernel.endswith("_I8") for kernel in runner.kernels().values())
    assert {op.name for op in program.ops if op.kind == "conv"} <= set(runner.kernels())
    want = ReferenceEngine().prepare(program).tensors({"x": x})
    found = runner.tensors({"x": x})
    assert all((found[name] == want[name]).all() for name in want)


def test_memory_of_every_kind(quantizes: str, threads: int) -> None:
    """Channels last, every second sample, read-only, one array changed between calls, bytes in between."""
    program, x = float_network()
    runner, reference = ENGINE.prepare(program, threads=threads), ReferenceEngine().prepare(program)
    frozen = x.copy()
    frozen.flags.writeable = False
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    same = x.copy()
    q = reference.tensors({"x": x})["q"]
    turned = np.ascontiguousarray(q.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    floats = x, frozen, last, np.repeat(x, 2, axis=0)[::2], same
    for given in (*floats, q, same, turned, -x, x[:1], turned[:1], q[:1], q.copy(), turned, q):
        assert (runner({"x": given})[0] == reference({"x": given})[0]).all()
    runner({"x": same})
    same *= np.float32(-0.5)
    assert (runner({"x": same})[0] == reference({"x": same})[0]).all()


def test_an_array_that_was_resized_in_place_is_read_where_it_is(threads: int) -> None:
    program, x = byte_network()
    runner = ENGINE.prepare(program, threads=threads)
    expected = ReferenceEngine().prepare(program)
    values = x.copy()
    runner({"x": values})
    values.resize((40_000, *x.shape[1:]), refcheck=False)
    values.resize(x.shape, refcheck=False)
    values[...] = x[::-1]
    np.testing.assert_array_equal(runner({"x": values})[0], expected({"x": values})[0])


def test_an_interrupt_between_binding_and_noting_it_is_no_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = byte_network()
    runner = ENGINE.prepare(program)
    wanted = ReferenceEngine().prepare(program)({"x": x})[0]
    np.testing.assert_array_equal(runner({"x": x})[0], wanted)
    bind = openvino.InferRequest.set_input_tensor

    def interrupted(*given: Any) -> None:
        bind(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(openvino.InferRequest, "set_input_tensor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner({"x": 255 - x})
    monkeypatch.undo()
    np.testing.assert_array_equal(runner({"x": x})[0], wanted)
