"""QDQ files: the integers on ONNX Runtime, real scales, and what TensorRT's form refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conformance import build as single
from tests.conformance import networks
from tests.export.models import run_model
from tests.program.build import certified, data

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
import onnx
import torch
from torch import nn

import intact8
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.export.onnx_qdq import export_qdq


@pytest.mark.parametrize("kind", [kind for kind in single.KINDS if kind != "pool"])
def test_single_operations_on_onnx_runtime(kind: str, tmp_path: Path) -> None:
    for seed in range(15):
        case = single.draw(kind, np.random.default_rng(seed), wide=False)
        op = case.program.ops[-1]
        if op.attrs.get("transposed"):  # output padding and groups that ONNX refuses are drawn, too
            continue
        got = run_model(export_qdq(case.program, tmp_path / "q.onnx"), case.inputs, True)["y"]
        np.testing.assert_array_equal(got, case.expected, err_msg=case.text)


def test_networks_on_onnx_runtime(tmp_path: Path) -> None:
    for seed in range(8):
        program, x, want = networks.draw(seed)
        got = run_model(export_qdq(program, tmp_path / "q.onnx"), {"x": x}, True)
        for name, value in zip(program.outputs, want, strict=True):
            np.testing.assert_array_equal(got[name], value)


def test_scales_are_real_and_every_group_is_between_two_quantizations(tmp_path: Path) -> None:
    program, (x, bias) = certified(), data()
    model = export_qdq(program, tmp_path / "q.onnx")
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.output[0] in program.tensors:
            ragged = node.output[0] == "average"  # windows of several sizes are sums of integers
            assert ragged or scales[node.input[1]] == np.float32(program.tensors[node.output[0]].scale)
    assert {"Conv", "Gemm", "Relu"} <= {n.op_type for n in model.graph.node}
    want = ReferenceEngine().prepare(program).tensors({"x": x, "bias": bias})
    np.testing.assert_allclose(run_model(model, {"x": x, "bias": bias}, True)["softmax"], want["softmax"], atol=0.02)


def test_what_tensorrt_cannot_take(tmp_path: Path) -> None:
    program = certified()
    with pytest.raises(
        EngineError, match=r"no form in TensorRT\. Reason: its zero point is .*Remedy: quantize with"
    ) as caught:
        export_qdq(program, tmp_path / "q.onnx", signed=True)
    remedy = re.search(r"Recipe\(.*\)", str(caught.value))
    assert remedy
    recipe = eval(remedy.group(), {"Recipe": intact8.Recipe, "Scheme": intact8.Scheme})
    symmetric = intact8.quantize(nn.Linear(4, 3).eval(), torch.randn(64, 4), recipe)
    export_qdq(symmetric, tmp_path / "q.onnx", signed=True)
    tensors = {n: replace(t, zero_point=128) if t.quantized else t for n, t in program.tensors.items()}
    with pytest.raises(EngineError, match="a table of .* has no form in TensorRT"):
        export_qdq(replace(program, tensors=tensors), tmp_path / "q.onnx", signed=True)


def test_a_grouped_transposed_convolution_is_refused(tmp_path: Path) -> None:
    for seed in range(200):
        case = single.draw("conv", np.random.default_rng(seed), wide=False)
        if case.program.ops[-1].attrs["transposed"] and case.program.ops[-1].attrs["groups"] > 1:
            with pytest.raises(EngineError, match="a grouped transposed convolution has no form in QDQ"):
                export_qdq(case.program, tmp_path / "q.onnx")
            return
    raise AssertionError("none was drawn")
