"""Layers that quantize their inputs while they run, on the native engine: the reference's bits."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intact8.arithmetic.recurrent import GATES, gate_steps, state_count, tanh_table
from intact8.engines import available_engines, get_engine
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program


def bits(a):
    return np.where(np.isnan(a), np.float32(np.nan), a).view(np.int32) if a.dtype == np.float32 else a


def same(program, given):
    """Assert that every output has the reference's bits."""
    check(program)
    want = get_engine("reference").prepare(program)(given)
    for threads in (1, 2):
        found = get_engine("native").prepare(program, threads=threads)(given)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_array_equal(bits(a), bits(b))


def numbers(rng, shape, kind):
    """Return float32 rows: ordinary ones, of many magnitudes, or with zeros, NaN and infinity among them."""
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "magnitudes":
        x *= np.exp2(rng.integers(-130, 126, (*shape[:-1], 1))).astype(np.float32)
    if kind == "special":
        x[0], x[-1, ..., 0] = 0, np.nan
        x[1:2, ..., -1] = np.inf
    return x


@pytest.mark.parametrize("kind", ["ordinary", "magnitudes", "special"])
@pytest.mark.parametrize("granularity", ["per_row", "per_tensor"])
@pytest.mark.parametrize(
    ("rows", "width", "columns"), [(1, 1, 1), (5, 7, 3), (3, 40, 65), (50, 384, 130), (1, 512, 200)]
)
def test_dynamic_linear_layers(rows, width, columns, granularity, kind):
    rng = np.random.default_rng(rows + width)
    tensors, ops = {"x": Tensor("x", "float32", (None, width))}, []
    for i in range(2):
        arrays = {
            "weight": rng.integers(*((-8, 8) if i else (-127, 128)), (columns, width)).astype(np.int8),
            "scale": rng.uniform(1e-3, 1e-2, columns).astype(np.float32),
        }
        if i:
            arrays["bias"] = rng.standard_normal(columns).astype(np.float32)
        ops.append(Op(f"y{i}", "dynamic_linear", ("x",), {"granularity": granularity}, arrays))
        tensors[f"y{i}"] = Tensor(f"y{i}", "float32", (None, columns))
    same(Program(tensors, tuple(ops), ("x",), ("y0", "y1")), {"x": numbers(rng, (rows, width), kind)})


def gelu_program(rng, width, names):
    """Return the operations of these names of: y = the linear layer of g = gelu(x)."""
    arrays = {
        "weight": rng.integers(-127, 128, (2 * width, width)).astype(np.int8),
        "scale": rng.uniform(1e-3, 1e-2, 2 * width).astype(np.float32),
    }
    ops = {
        "g": Op("g", "float.unary", ("x",), {"fn": "gelu", "approximate": "none"}),
        "y": Op("y", "dynamic_linear", ("g",), {"granularity": "per_row"}, arrays),
    }
    inputs = ("x",) if "g" in names else ("g",)
    tensors = {n: Tensor(n, "float32", (None, 2 * width if n == "y" else width)) for n in (*inputs, *names)}
    return Program(tensors, tuple(ops[n] for n in names), inputs, tuple(names[-1:]))


@pytest.mark.parametrize("kind", ["ordinary", "magnitudes", "special", "offset"])
@pytest.mark.parametrize("width", [1, 7, 128, 1000])
def test_rows_of_a_gelu_are_made_from_its_input(kind, width):
    """The bits are those of a layer that reads the results of the GELU."""
    rng = np.random.default_rng(width)
    x = numbers(rng, (200, width), "ordinary" if kind == "offset" else kind)
    if kind == "offset":
        x = x * np.float32(0.5) + np.linspace(-7, 7, 200, dtype=np.float32)[:, None]
    first, second, both = (gelu_program(np.random.default_rng(0), width, names) for names in ("g", "y", "gy"))
    native = get_engine("native")
    (g,) = native.prepare(first, threads=1)({"x": x})
    (want,) = native.prepare(second, threads=1)({"g": g})
    runner = native.prepare(both, threads=2)
    np.testing.assert_array_equal(bits(runner({"x": x})[0]), bits(want))
    assert not runner.times({"x": x})["g"]
    assert runner.tensors({"x": x})["g"].tobytes() == g.tobytes()


def layer(rng, kind, sizes, relu=False, both=False, states=False, lengths=False, result="all", most=127):
    """Return a program of one recurrent layer, and inputs."""
    time, batch, width, hidden = sizes
    directions, rows = 1 + both, GATES[kind] * hidden
    steps = gate_steps(kind, hidden, relu)

    def scales():
        return (rng.uniform(2e-3, 6e-3, (directions, rows)) * steps).astype(np.float32)

    arrays = {
        "weight_ih": rng.integers(-most, most + 1, (directions, rows, width)).astype(np.int8),
        "weight_hh": rng.integers(-most, most + 1, (directions, rows, hidden)).astype(np.int8),
        "scale_ih": scales(),
        "scale_hh": scales() / np.float32(1 if relu else 127),
        "bias": (rng.standard_normal((directions, rows)) * steps).astype(np.float32),
    }
    if kind == "gru":
        arrays["bias_hh"] = (rng.standard_normal((directions, hidden)) * 512).astype(np.float32)
    if not relu:
        arrays["tanh"] = tanh_table()
    attrs = {"hidden": hidden, "bidirectional": both, "states": states, "lengths": lengths, "result": result}
    if kind == "rnn":
        attrs["nonlinearity"] = "relu" if relu else "tanh"
    given = {"x": rng.standard_normal((time, batch, width)).astype(np.float32)}
    tensors = {"x": Tensor("x", "float32", (time, None, width))}
    for i in range(state_count(kind) if states else 0):
        given[f"s{i}"] = rng.normal(0, 2, (directions, batch, hidden)).astype(np.float32)
        tensors[f"s{i}"] = Tensor(f"s{i}", "float32", (directions, None, hidden))
    if lengths:
        given["n"] = rng.integers(0, time + 1, batch)
        tensors["n"] = Tensor("n", "int64", (None,))
    count = {"all": state_count(kind) + time, "states": state_count(kind), "steps": time}[result]
    tensors["y"] = Tensor("y", "float32", (count, None, directions * hidden))
    names = tuple(given)
    return Program(tensors, (Op("y", kind, names, attrs, arrays),), names, ("y",)), given


KINDS = [("lstm", False), ("gru", False), ("rnn", False), ("rnn", True)]


@pytest.mark.parametrize("result", ["all", "states", "steps"])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(("kind", "relu"), KINDS)
def test_recurrent_layers(kind, relu, states, lengths, result):
    rng = np.random.default_rng(len(result))
    for sizes in ((1, 1, 1, 1), (4, 3, 5, 7), (3, 30, 4, 33)):
        for both in (False, True):
            same(*layer(rng, kind, sizes, relu, both, states, lengths, result))


@pytest.mark.parametrize(("kind", "relu"), KINDS)
def test_recurrent_layers_do_not_fall_back(kind, relu):
    program, given = layer(np.random.default_rng(1), kind, (4, 3, 5, 7), relu, states=True)
    runner = get_engine("native").prepare(program, threads=1)
    runner(given)
    assert not any(plan.lowered.fallbacks for plan in runner._plans._values.values())


@pytest.mark.parametrize("most", [127, 7])
@pytest.mark.parametrize(("kind", "relu"), KINDS)
def test_wide_recurrent_layers(kind, relu, most):
    same(*layer(np.random.default_rng(1), kind, (9, 2, 96, 200), relu, most=most))


@pytest.mark.parametrize(
    ("where", "bad"), [("x", np.nan), ("x", np.inf), ("s0", np.inf), ("s1", -np.inf), ("s1", 1e38)]
)
def test_numbers_that_are_not_finite_are_refused(where, bad):
    program, given = layer(np.random.default_rng(0), "lstm", (3, 2, 4, 21), states=True)
    given[where][0, 1, 1] = bad
    for engine in {*available_engines()} - {"openvino"}:  # which has no rule
        with pytest.raises(InputError, match="reached a recurrent layer"):
            get_engine(engine).prepare(program)(given)


@pytest.mark.skipif("INTACT8_ISA" in os.environ, reason="this is the child process")
@pytest.mark.parametrize(("isa", "chosen"), [("plain", ""), ("avx2", "products or dynamic_linear")])
def test_other_instruction_sets(isa, chosen):
    files = [__file__, str(Path(__file__).with_name("test_attention.py"))]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *files],
        env={**os.environ, "INTACT8_ISA": isa},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout + found.stderr
