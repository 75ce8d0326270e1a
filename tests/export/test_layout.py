"""Exported files that take images with channels last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conformance import networks as random_networks
from tests.export.models import meta, one_op, run_model
from tests.program.build import certified, data

pytest.importorskip("onnxruntime")
import onnx

from intact8.engines.reference import ReferenceEngine
from intact8.errors import InputError
from intact8.export.onnx import export_onnx
from intact8.opset.op import Op


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_integers_from_images_with_channels_last(seed: int, optimized: bool) -> None:
    program, x, want = random_networks.draw(seed)
    got = run_model(export_onnx(program, layout="NHWC"), {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))}, optimized)
    for name, value in zip(program.outputs, want, strict=True):
        np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("uint8_input", [False, True])
def test_only_images_are_transposed(uint8_input: bool, tmp_path: Path) -> None:
    program, (x, bias) = certified(), data()
    values = ReferenceEngine().prepare(program).tensors({"x": x, "bias": bias})
    path = program.export_onnx(tmp_path / "net.onnx", uint8_input=uint8_input, layout="NHWC")
    model = onnx.load(path)
    shapes = {i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    assert shapes["x"] == ["batch", 8, 8, 3] and len(shapes["bias"]) == 2
    given = values["xq"] if uint8_input else x
    got = run_model(model, {"x": np.ascontiguousarray(np.moveaxis(given, 1, -1)), "bias": bias}, True)
    np.testing.assert_allclose(got["softmax"], values["softmax"], rtol=1e-5)


def test_programs_without_images_have_no_layout() -> None:
    x = np.zeros((2, 5), np.uint8)
    program = one_op(Op("y", "roll", ("x",), {"shifts": [1], "dims": [1]}), [meta("x", x, z=3)])
    with pytest.raises(InputError, match="no input has four dimensions"):
        export_onnx(program, layout="NHWC")
