"""NaN and infinity inside a program become the same integers on every engine, in the simulation and in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import intact8
from intact8.arithmetic.affine import quantize
from intact8.engines import engine_status, get_engine
from intact8.engines.onednn import quantize_passes
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program
from intact8.verification import verify

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(reason is not None, reason=str(reason)))
    for name, reason in STATUS.items()
]
SHAPE, ZERO, SCALE = (None, 4, 8), 100, 0.5
X = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32).round(1)
X[0, 0, :3], X[1, 2, 3] = (0.0, np.inf, -np.inf), 3e38
ISLANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "log": ("float.unary", {"fn": "log"}),
    "sqrt": ("float.unary", {"fn": "sqrt"}),
    "0/0 and inf/inf": ("float.div", {}),
    "inf - inf": ("float.sub", {}),
    "layer norm": ("float.layer_norm", {"shape": [8], "eps": 1e-5}),
    "cumulative inf - inf": ("float.cumsum", {"axis": 2}),
    "mean": ("float.mean", {"dims": [2], "keepdim": True}),
}


def island(name: str, lo: int, hi: int) -> Program:
    kind, attrs = ISLANDS[name]
    shape = (None, 4, 1) if name == "mean" else SHAPE
    float_op = Op("f", kind, ("x", "x") if kind in ("float.div", "float.sub") else ("x",), attrs)
    ops = (float_op, Op("y", "quantize", ("f",), {"lo": lo, "hi": hi}), Op("d", "dequantize", ("y",)))
    tensors = (Tensor("x", "float32", SHAPE), Tensor("f", "float32", shape), Tensor("y", "uint8", shape, SCALE, ZERO),
               Tensor("d", "float32", shape))  # fmt: skip
    return Program({t.name: t for t in tensors}, ops, ("x",), ("y", "d"))


LIMITS = ((0, 255), (7, 200), (100, 255))


@pytest.mark.parametrize("name", ISLANDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_becomes_the_least_integer(engine: str, name: str) -> None:
    check_least(engine, name, *LIMITS[list(ISLANDS).index(name) % 3])


@pytest.mark.long
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("name", ISLANDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_nan_becomes_the_least_integer_of_any_limits(engine: str, name: str, limits: tuple[int, int]) -> None:
    check_least(engine, name, *limits)


def check_least(engine: str, name: str, lo: int, hi: int) -> None:
    program = island(name, lo, hi)
    values = get_engine("reference").prepare(program).tensors({"x": X})["f"]
    assert np.isnan(values).any()
    got = get_engine(engine).prepare(program)({"x": X})[0]
    special = ~np.isfinite(values)
    assert (got[np.isnan(values)] == lo).all()
    assert (got[special] == quantize(values, SCALE, ZERO, lo, hi)[special]).all()


@pytest.mark.skipif(STATUS["onnxruntime"] is not None, reason=str(STATUS["onnxruntime"]))
def test_a_file_says_what_nan_becomes() -> None:
    """ONNX leaves QuantizeLinear of NaN open: the model replaces it, and does so only behind float operations."""
    import onnxruntime

    from intact8.export.onnx import export_onnx

    program = island("log", 7, 200)
    model = export_onnx(program)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("IsNaN") == 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = get_engine("reference").prepare(program)({"x": X})[0]
    assert (session.run(["y"], {"x": X})[0] == want).all()


@pytest.mark.parametrize("divisor", [1.0, 0.5])
def test_torch_operations_give_the_least_integer(divisor: float) -> None:
    v = torch.tensor([float("nan"), 1.0, float("inf"), -float("inf")])
    q = quantize_passes.make_quantize(100, 7, 200, divisor, nan=True)(v)
    assert q.tolist() == [7, 100 + 1 / divisor, 200, 7]


def test_verify_counts_them() -> None:
    report = verify(island("log", 0, 255), X, ("onednn",))
    assert report.exact and report.nan == {"y": int((X < 0).sum())} and report.to_json()["nan"] == report.nan


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.softmax(self.first(x), -1))


def test_the_simulation_does_the_same() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    sim = intact8.prepare(Normalized().eval(), x)
    intact8.calibrate(sim, x)
    program = intact8.convert(sim)
    (float_op,) = (op for op in program.islands() if op.kind == "float.softmax")
    inputs = {program.inputs[0]: x.numpy()}
    reference = get_engine("reference").prepare(program)
    values = reference.tensors(inputs)[float_op.name].copy()
    values[::2, 1], values[1, 2] = np.nan, np.inf
    want = reference.tensors(inputs, {float_op.name: values})
    got = sim.eval().integer_tensors([x], {float_op.name: values})
    assert set(program.integer_tensors()) <= set(got)
    for name in program.integer_tensors():
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def test_an_input_that_is_quantized_holds_none() -> None:
    """Also where other operations read it, too, or values are moved before."""
    moved = Op("m", "permute", ("x",), {"dims": [0, 2, 1]})
    ops = (moved, Op("y", "quantize", ("m",), {"lo": 0, "hi": 255}), Op("z", "float.relu", ("x",)))
    tensors = (Tensor("x", "float32", SHAPE), Tensor("m", "float32", (None, 8, 4)),
               Tensor("y", "uint8", (None, 8, 4), SCALE, ZERO), Tensor("z", "float32", SHAPE))  # fmt: skip
    program = Program({t.name: t for t in tensors}, ops, ("x",), ("y", "z"))
    program.run(X, engine="reference")
    with pytest.raises(InputError, match="x: the input holds NaN"):
        program.run(np.where(X > 1, np.float32(np.nan), X), engine="reference")


@pytest.mark.parametrize("engine", [p for p in ENGINES if p.values[0] != "openvino"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_dynamic_scale(engine: str, odd: float) -> None:
    arrays = {"weight": np.ones((33, 3), np.int8), "scale": np.ones(33, np.float32), "bias": np.ones(33, np.float32)}
    op = Op("y", "dynamic_linear", ("x",), {"granularity": "per_row"}, arrays)
    tensors = {n: Tensor(n, "float32", (None, w)) for n, w in (("x", 3), ("y", 33))}
    x = np.float32([[1, odd, 2], [1, 2, 3]])
    (y,) = get_engine(engine).prepare(Program(tensors, (op,), ("x",), ("y",)))({"x": x})
    assert np.isnan(y[0]).all() and np.isfinite(y[1]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_fed_has_the_form_of_what_it_replaces(engine: str) -> None:
    runner = get_engine(engine).prepare(island("log", 0, 255))
    fed = np.ones((3, 4, 8), np.float32)
    assert runner.tensors({"x": X}, {"f": fed})["y"].min() == 102
    for bad in (fed.astype(np.float64), fed[:2], fed[:, :3], np.float32(1), fed[:0]):
        with pytest.raises(InputError, match="fed .* not .*float32"):
            runner.tensors({"x": X}, {"f": bad})
