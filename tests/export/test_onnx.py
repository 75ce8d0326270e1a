"""Exported files: the same integers with graph optimizations on and off, names, metadata, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance import build as single
from tests.conformance import networks as random_networks
from tests.export.models import meta, one_op, run_model
from tests.program.build import certified, data, with_op

pytest.importorskip("onnxruntime")
import onnx

from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.export.onnx import build, export_onnx
from intact8.opset.op import Op, Tensor
from intact8.program.file import digest
from intact8.program.program import Program

QUICK = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("kind", single.KINDS)
def test_single_operations_are_exact(kind: str) -> None:
    @settings(max_examples=15, **QUICK)
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        case = single.draw(kind, np.random.default_rng(seed), wide=False)
        model = export_onnx(case.program)
        for optimized in (False, True):
            got = run_model(model, case.inputs, optimized)["y"]
            assert got.shape == case.expected.shape, case.text
            assert (got == case.expected).all(), f"optimized={optimized}: {case.text}"

    check()


@settings(max_examples=15, **QUICK)
@given(st.integers(0, 2**63))
def test_networks_are_exact_whatever_the_optimizer_merges(seed: int) -> None:
    program, x, want = random_networks.draw(seed)
    for contrib in (False, True):
        model = export_onnx(program, contrib=contrib)
        for optimized in (False, True):
            got = run_model(model, {"x": x}, optimized)
            for name, value in zip(program.outputs, want, strict=True):
                np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("contrib", [False, True])
def test_every_integer_tensor_of_a_network_with_a_float_island(contrib: bool) -> None:
    program, (x, bias) = certified(), data()
    want = ReferenceEngine().prepare(program).tensors({"x": x, "bias": bias})
    got = run_model(build(program, contrib=contrib, everything=True), {"x": x, "bias": bias}, True)
    island = [op.name for op in program.ops].index("softmax")
    before = [op.name for op in program.ops[:island] if program.tensors[op.name].quantized]
    for name in before:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    np.testing.assert_allclose(got["softmax"], want["softmax"], rtol=1e-5)


def test_files_use_the_standard_domain_and_keep_names(tmp_path: Path) -> None:
    program = certified()
    export_onnx(program, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    assert {n.domain for n in model.graph.node} == {""}
    assert {o.domain for o in model.opset_import} == {""}
    assert [i.name for i in model.graph.input] == list(program.inputs)
    assert [o.name for o in model.graph.output] == list(program.outputs)
    made = {name for n in model.graph.node for name in n.output}
    assert {op.name for op in program.ops} <= made
    assert {p.key: p.value for p in model.metadata_props}["intact8.digest"] == digest(program)
    described = {v.name: v.doc_string for v in model.graph.value_info}
    assert described["net.c2"] == f"scale={program.tensors['net.c2'].scale!r} zero_point=90"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_shapes_are_what_onnx_infers(tmp_path: Path) -> None:
    model = export_onnx(certified())
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)


def test_contrib_uses_the_quantized_operators_of_onnx_runtime() -> None:
    kinds = {n.op_type for n in export_onnx(certified(), contrib=True).graph.node}
    assert {"QGemm", "QLinearMul", "QLinearGlobalAveragePool"} <= kinds


def test_uint8_input() -> None:
    program, (x, bias) = certified(), data()
    want = ReferenceEngine().prepare(program).tensors({"x": x, "bias": bias})
    model = export_onnx(program, uint8_input=True)
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert model.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    got = run_model(model, {"x": want["xq"], "bias": bias}, True)
    full = run_model(export_onnx(program), {"x": x, "bias": bias}, True)
    np.testing.assert_array_equal(got["parted"], full["parted"])


@settings(max_examples=20, **QUICK)
@given(st.floats(2.0**-100, 2.0**100, width=32), st.integers(0, 255), st.integers(0, 2**32))
def test_quantize_divides_and_breaks_ties_to_even(scale: float, z: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = np.concatenate([np.arange(-300, 300) / 2, rng.uniform(-300, 300, 999), [1e9, -1e9, np.inf, -np.inf]])
    with np.errstate(over="ignore"):
        x = (steps.astype(np.float32) * np.float32(scale))[None]
    tensors = {"x": meta("x", x), "y": Tensor("y", "uint8", (None, x.shape[1]), float(np.float32(scale)), z)}
    program = Program(tensors, (Op("y", "quantize", ("x",), {"lo": 3, "hi": 250}),), ("x",), ("y",))
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    np.testing.assert_array_equal(run_model(export_onnx(program), {"x": x}, True)["y"], want)


@pytest.mark.parametrize("weights", [60, 127])
def test_fused_residual_where_float32_cannot_hold_the_sums(weights: int) -> None:
    """40 × 40 × 3 × 3 products reach beyond 2²⁴ with large weights, and stay below with small ones."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, 900, 4, 4), dtype=np.uint8)
    w = rng.integers(weights - 9, weights + 1, (8, 900, 3, 3)).astype(np.int8)
    arrays = {"weight": w, "bias": np.zeros(8, np.int32), "a": np.full(8, 1, np.int32), "b": np.full(8, 4001, np.int32)}
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1,
             "transposed": False, "lo": 0, "hi": 255, "residual_a": 3001}  # fmt: skip
    r = rng.integers(0, 256, (1, 8, 4, 4), dtype=np.uint8)
    tensors = {"x": meta("x", x, z=127), "r": meta("r", r, z=9), "y": meta("y", r, z=100)}
    program = Program(tensors, (Op("y", "conv", ("x", "r"), attrs, arrays),), ("x", "r"), ("y",))
    kinds = {n.op_type for n in export_onnx(program).graph.node}
    assert "ConvInteger" in kinds
    want = ReferenceEngine().prepare(program)({"x": x, "r": r})[0]
    np.testing.assert_array_equal(run_model(export_onnx(program), {"x": x, "r": r}, True)["y"], want)


def test_a_mean_of_more_than_float32_can_count() -> None:
    x = np.random.default_rng(0).integers(200, 256, (2, 1, 300, 300), dtype=np.uint8)
    y = np.zeros((2, 1, 1, 1), np.uint8)
    op = Op("y", "mean", ("x",), {"dims": [2, 3], "keepdim": True, "a": 1, "b": 8191, "lo": 0, "hi": 255})
    program = Program({"x": meta("x", x, z=227), "y": meta("y", y, z=128)}, (op,), ("x",), ("y",))
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    for optimized in (False, True):
        np.testing.assert_array_equal(run_model(export_onnx(program), {"x": x}, optimized)["y"], want)


def test_outputs_may_be_inputs_and_constants() -> None:
    x = np.zeros((2, 3), np.uint8)
    program = one_op(Op("y", "reshape", ("x",), {"shape": [-1, 3]}), [meta("x", x, z=0)])
    program = replace(program, outputs=("x", "y"))
    assert set(run_model(export_onnx(program), {"x": x}, True)) == {"x", "y"}


def test_awkward_names_do_not_collide() -> None:
    """A tensor may be called what the exporter would call one of its own."""
    x = np.full((1, 3), 2, np.uint8)
    t = np.arange(256, dtype=np.uint8)[::-1].copy()
    first = Op("y/table", "table", ("x",), {"fn": "upside down"}, {"table": t})
    second = Op("y", "table", ("y/table",), {"fn": "upside down"}, {"table": t})
    tensors = {n: replace(meta("x", x, z=0), name=n) for n in ("x", "y/table", "y")}
    got = run_model(export_onnx(Program(tensors, (first, second), ("x",), ("y",))), {"x": x}, True)
    np.testing.assert_array_equal(got["y"], x)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(EngineError, match=r"^head: teleport has no form in ONNX\. Remedy: "):
        export_onnx(with_op(certified(), "head", kind="teleport"))


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot write the file"):
        export_onnx(certified(), tmp_path / "missing" / "net.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError, match="cannot write the file"):
        export_onnx(certified(), tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_dimension_called_batch_is_not_the_batch() -> None:
    def layer(name: str) -> tuple[str, str]:
        tensors = {n: Tensor(n, "float32", (None, name, 4)) for n in ("x", "y")}
        program = Program(
            tensors, (Op("y", "float.relu", ("x",)),), ("x",), ("y",), structure=0, dimensions={name: (1, 9)}
        )
        model = export_onnx(program)
        assert [d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim] == [
            d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim
        ]
        first, second, _ = (d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim)
        return first, second

    assert layer("n") == ("batch", "n")
    assert layer("batch") == ("batch_", "batch")
