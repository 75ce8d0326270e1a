"""OpenVINO IR as NNCF writes it: FakeQuantize on activations, weights as integers or behind FakeQuantize."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("torch")

import openvino
import torch
from openvino import opset13 as ov
from tests.fuzz.checkpoints import mutated

import intact8
from intact8.errors import IntactError
from intact8.migration.onnx_network import describe_graph
from intact8.migration.openvino_ir import read_ir


def weight(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def stored(w: Any, name: str) -> Any:
    """int8 → Convert → Multiply, one scale per output channel."""
    scale = np.abs(w).reshape(len(w), -1).max(1).reshape(-1, *[1] * (w.ndim - 1)) / 127
    q = ov.convert(ov.constant(np.rint(w / scale).astype(np.int8)), "f32")
    node = ov.multiply(q, ov.constant(scale.astype(np.float32)))
    node.set_friendly_name(name)
    return node


def fake(x: Any, low: Any, high: Any, levels: int = 256) -> Any:
    ends = [ov.constant(np.float32(v)) for v in (low, high)]
    return ov.fake_quantize(x, *ends, *ends, levels)


def model(path: Path, *, along_columns: bool = False) -> Path:
    x = ov.parameter(openvino.PartialShape([-1, 3, 8, 8]), np.float32, name="x")
    y = fake(x, -128 / 127 * 2.0, 2.0)
    y = ov.convolution(y, stored(weight(8, 3, 3, 3), "w1"), [1, 1], [1, 1], [1, 1], [1, 1])
    y.set_friendly_name("conv1")
    y = fake(ov.relu(ov.add(y, ov.constant(weight(1, 8, 1, 1)))), 0.0, 2.55)
    w2 = weight(8, 1, 1, 3, 3)
    ends = np.abs(w2).reshape(8, -1).max(1).reshape(8, 1, 1, 1, 1)
    if along_columns:
        ends = np.abs(w2).max((1, 2, 3), keepdims=True)
    z = ov.group_convolution(y, fake(ov.constant(w2), -ends, ends, 255), [1, 1], [1, 1], [1, 1], [1, 1])
    z.set_friendly_name("depthwise")
    z = fake(ov.clamp(z, 0.0, 6.0), 0.0, 1.5)
    y = fake(ov.add(y, z), 0.0, 4.0)
    y = ov.max_pool(y, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(0)
    y = fake(ov.reduce_mean(y, ov.constant(np.array([2, 3])), keep_dims=False), 0.0, 3.0)
    y = ov.matmul(y, stored(weight(5, 8), "w3"), False, True)
    y.set_friendly_name("fc")
    y = ov.add(y, ov.constant(weight(1, 5)))
    y.set_friendly_name("sum")
    made = openvino.Model([ov.result(ov.softmax(y, 1))], [x], "net")
    openvino.save_model(made, str(path), compress_to_fp16=False)
    return path


def samples(count: int) -> Any:
    return np.random.default_rng(3).standard_normal((count, 3, 8, 8)).astype(np.float32)


def test_an_ir_with_integer_weights_and_fake_quantize(tmp_path: Path) -> None:
    path, x = model(tmp_path / "net.xml"), samples(24)
    found = intact8.migrate(path, data=[torch.from_numpy(x)])
    assert found.report.weights == 8 * 27 + 8 * 9 + 5 * 8 and found.report.weights_changed <= 30
    assert found.report.floats == () and found.report.observed == ("fc",)  # nothing quantizes the last layer there
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    there, here = compiled(x)[0], np.asarray(found.program.run(x, engine="reference"))
    power, error = (there**2).sum(), ((there - here) ** 2).sum()
    assert 10 * np.log10(power / error) > 30
    assert intact8.verify(found.program, x[:4]).exact


def test_attention(tmp_path: Path) -> None:
    x = ov.parameter([2, 2, 5, 8], np.float32, name="x")
    q, k, v = (fake(ov.multiply(x, ov.constant(np.float32(f))), -128 / 127 * 4, 4.0) for f in (0.5, 0.75, 1.25))
    y = fake(ov.scaled_dot_product_attention(q, k, v, causal=False), -128 / 127 * 3, 3.0)
    openvino.save_model(openvino.Model([ov.result(y)], [x], "net"), str(tmp_path / "net.xml"), compress_to_fp16=False)
    data = np.random.default_rng(0).standard_normal((2, 2, 5, 8)).astype(np.float32)
    found = intact8.migrate(tmp_path / "net.xml", data=[torch.from_numpy(data)])
    compiled = openvino.Core().compile_model(str(tmp_path / "net.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert np.abs(compiled(data)[0] - np.asarray(found.program.run(data, engine="reference"))).max() < 0.1
    assert intact8.verify(found.program, data).exact


def test_damaged_files_raise_our_errors_only(tmp_path: Path) -> None:
    path, rng, read = model(tmp_path / "net.xml"), np.random.default_rng(0), 0
    content, weights = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    (tmp_path / "broken.bin").write_bytes(weights)
    for _ in range(150):
        (tmp_path / "broken.xml").write_bytes(mutated(content, rng))
        try:
            describe_graph(read_ir(tmp_path / "broken.xml"))
            read += 1
        except IntactError:
            pass
    assert read < 150


def test_observing_a_missing_range_changes_no_weight(tmp_path: Path) -> None:
    """The last layer has no range there; channels between a layer and a depthwise one are not equalized for that."""
    found = intact8.migrate(model(tmp_path / "net.xml"), data=[torch.from_numpy(samples(48))])
    assert found.report.observed == ("fc",) and not found.simulation.equalized
    assert not found.simulation.recipe.bias_correction


def test_weights_with_scales_along_two_dimensions_are_quantized_anew_only_if_named(tmp_path: Path) -> None:
    path = model(tmp_path / "net.xml", along_columns=True)
    with pytest.raises(IntactError, match=r"^depthwise: its weight has scales along several dimensions.*requantize="):
        intact8.migrate(path)
    assert intact8.migrate(path, requantize=["depth*"], data=[torch.from_numpy(samples(32))]).report.requantized == (
        "depthwise",
    )


def test_what_is_refused_is_named(tmp_path: Path) -> None:
    with pytest.raises(IntactError, match=r"missing\.xml: cannot read the file. Reason: No such file"):
        intact8.migrate(tmp_path / "missing.xml")
    (tmp_path / "alone.xml").write_text("")
    with pytest.raises(IntactError, match=r"alone\.bin: cannot read the file. Reason: No such file"):
        intact8.migrate(tmp_path / "alone.xml")
    path = model(tmp_path / "net.xml")
    text = path.read_text()
    for broken in (text[: len(text) // 2], text.replace('size="216"', 'size="99999999"'), ""):
        path.write_text(broken)
        with pytest.raises(IntactError, match="this is no IR, or a damaged one"):
            intact8.migrate(path)
    x = ov.parameter([2, 4], np.float32)
    odd = ov.cum_sum(fake(x, -1.28, 1.27), ov.constant(np.int64(1)))
    odd.set_friendly_name("odd")
    openvino.save_model(openvino.Model([ov.result(odd)], [x], "net"), str(tmp_path / "odd.xml"))
    with pytest.raises(IntactError, match="odd: the operation CumSum is not known"):
        intact8.migrate(tmp_path / "odd.xml")
    loose = ov.fake_quantize(x, *[ov.constant(np.float32(v)) for v in (-1.28, 1.27, -2.56, 2.54)], 256)
    openvino.save_model(openvino.Model([ov.result(loose)], [x], "net"), str(tmp_path / "loose.xml"))
    with pytest.raises(IntactError, match="FakeQuantize that changes the range"):
        intact8.migrate(tmp_path / "loose.xml")


def test_activations_with_a_scale_per_channel_get_one_only_if_named(tmp_path: Path) -> None:
    x = ov.parameter(openvino.PartialShape([-1, 3, 8, 8]), np.float32, name="x")
    y = fake(ov.relu(x), 0.0, np.float32([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1))
    y = fake(ov.convolution(y, stored(weight(4, 3, 3, 3), "w"), [1, 1], [0, 0], [0, 0], [1, 1]), -1.28, 1.27)
    made = openvino.Model([ov.result(y)], [x], "net")
    openvino.save_model(made, str(tmp_path / "net.xml"), compress_to_fp16=False)
    with pytest.raises(IntactError, match=r"an activation of uint8 with 3 scales.*requantize="):
        intact8.migrate(tmp_path / "net.xml")
    found = intact8.migrate(tmp_path / "net.xml", requantize=["*"], data=[torch.from_numpy(samples(32))])
    assert len(found.report.requantized) == 1
    scales = [t.scale for t in found.program.tensors.values() if t.quantized]
    assert min(abs(s - 3 / 255) for s in scales if s) < 3e-4
