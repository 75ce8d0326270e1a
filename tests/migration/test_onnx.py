"""ONNX files that ONNX Runtime's quantizer makes, operators beside ONNX Runtime, and files that are refused."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper
from tests.fuzz.checkpoints import mutated

import intact8
from intact8.errors import InputError, IntactError
from intact8.migration.description import rounding
from intact8.migration.onnx_graph import read_onnx
from intact8.migration.onnx_network import describe_graph

Array = Any


def constant(name: str, value: Array) -> Any:
    return numpy_helper.from_array(np.asarray(value), name)


def write(path: Path, nodes: list[Any], stored: list[Any], x: tuple[Any, ...], outputs: list[str]) -> Path:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "net", [given], made, stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def network(path: Path) -> Path:
    """A float network as exporters write it: convolutions, a residual, a pool, a linear layer."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    stored = [constant("w1", weight(8, 3, 3, 3)), constant("b1", weight(8)), constant("w2", weight(8, 4, 3, 3))]
    stored += [constant("b2", weight(8)), constant("fc.w", weight(5, 8)), constant("fc.b", weight(5))]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1] * 4, kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1] * 4, kernel_shape=[3, 3], group=2),
        helper.make_node("Add", ["c2", "r1"], ["s"], name="sum"),
        helper.make_node("MaxPool", ["s"], ["m"], name="max", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["m"], ["a"], name="mean"),
        helper.make_node("Flatten", ["a"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["y"], name="fc", transB=1),
    ]
    return write(path, nodes, stored, ("n", 3, 8, 8), ["y"])


def samples(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def run(path: Path, x: Array, precise: bool = True) -> Array:
    """Run a file; ``precise``: without sums that saturate on CPUs without VNNI, for which QGemm has no kernel."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", str(int(precise)))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def quantized(tmp_path: Path, form: str, **how: Any) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{"x": samples(8, seed)} for seed in range(4)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    logging.getLogger().setLevel(logging.ERROR)
    source, target = network(tmp_path / "float.onnx"), tmp_path / "quantized.onnx"
    quantize_static(str(source), str(target), Reader(), quant_format=QuantFormat[form], **how)
    return target


def decibels(a: Array, b: Array) -> float:
    return float(10 * np.log10((a.astype(np.float64) ** 2).sum() / ((a.astype(np.float64) - b) ** 2).sum()))


@pytest.mark.parametrize(
    ("form", "how"), [("QDQ", {"per_channel": True}), ("QDQ", {}), ("QOperator", {"per_channel": True})]
)
def test_files_of_onnx_runtimes_quantizer(form: str, how: dict[str, Any], tmp_path: Path) -> None:
    path, x = quantized(tmp_path, form, **how), samples(32, 9)
    found = intact8.migrate(path, data=[torch.from_numpy(x)])
    report = found.report
    assert report.weights == 8 * 27 + 8 * 36 + 5 * 8 and report.weights_changed <= report.weights // 50
    assert report.floats == () and report.observed == () and report.outputs_sqnr is not None
    there, here = run(path, x, form == "QDQ"), np.asarray(found.program.run(x, engine="reference"))
    want = run(tmp_path / "float.onnx", x)
    assert decibels(there, here) > 30 and decibels(want, here) > decibels(want, there) - 2
    assert intact8.verify(found.program, x[:4]).exact
    names = {layer.name for layer in report.layers}
    assert any("conv1" in name for name in names) and any("fc" in name for name in names)


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("quark_a8w8", "quark_u8s8_aaws", "quark_xint8")]


@pytest.mark.parametrize("name", ["aimet", *LONG])
def test_files_of_aimet_and_quark(name: str) -> None:
    """The files are of aimet-onnx 2.42 and amd-quark 0.13, made from one small network."""
    path = Path(__file__).parents[1] / "fixtures" / "migration" / f"{name}.onnx"
    x = np.random.default_rng(1).standard_normal((4, 3, 12, 12)).astype(np.float32)
    found = intact8.migrate(path, data=[torch.from_numpy(x)])
    assert (found.report.weights, found.report.weights_changed) == (544, 0)
    assert found.report.floats == () and found.report.observed == ()
    assert decibels(run(path, x), np.asarray(found.program.run(x, engine="reference"))) > 30
    assert intact8.verify(found.program, x).exact


def test_without_data_the_report_is_of_random_inputs_in_the_range_of_the_grid(tmp_path: Path) -> None:
    found = intact8.migrate(str(quantized(tmp_path, "QDQ")))
    assert found.report.outputs_sqnr is not None and any("random inputs" in note for note in found.report.notes)


def test_what_was_exported_comes_back_with_its_integers(tmp_path: Path) -> None:
    path, x = quantized(tmp_path, "QDQ", per_channel=True), samples(16, 5)
    first = intact8.migrate(path, data=[torch.from_numpy(x)]).program
    first.export(tmp_path / "again.onnx", "onnx-qdq")
    again = intact8.migrate(tmp_path / "again.onnx", data=[torch.from_numpy(x)])
    assert again.report.weights_changed == 0
    a, b = (np.asarray(p.run(x, engine="reference")) for p in (first, again.program))
    assert decibels(a, b) > 38


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_files_of_onnx_runtimes_quantizer(per_channel: bool, tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rng = np.random.default_rng(0)
    stored = [constant("w", rng.standard_normal((16, 12)).astype(np.float32)), constant("v", np.float32([0.5] * 12))]
    stored += [constant("u", rng.standard_normal((12, 3)).astype(np.float32))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "v"], ["b"], name="sum"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("MatMul", ["c", "u"], ["y"], name="second"),
    ]
    path = write(tmp_path / "float.onnx", nodes, stored, ("n", 16), ["y"])
    target = tmp_path / "dynamic.onnx"
    quantize_dynamic(str(path), str(target), per_channel=per_channel, weight_type=QuantType.QInt8)
    x = rng.standard_normal((32, 16)).astype(np.float32)
    found = intact8.migrate(target, data=[torch.from_numpy(x)])
    assert [op.kind for op in found.program.ops if op.arrays.get("weight") is not None] == ["dynamic_linear"] * 2
    assert found.report.weights_changed == 0
    assert decibels(run(path, x), np.asarray(found.program.run(x, engine="reference"))) > 30


def n(kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> tuple[Any, ...]:
    return helper.make_node(kind, ["x", *inputs], [f"y{i}" for i in range(outputs)], name="op", **attrs), outputs


I64 = np.int64
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Array]]] = {
    "relu": (n("Relu"), {}), "sigmoid": (n("Sigmoid"), {}), "tanh": (n("Tanh"), {}), "erf": (n("Erf"), {}),
    "hardswish": (n("HardSwish"), {}), "hardsigmoid": (n("HardSigmoid", alpha=1 / 6, beta=0.5), {}),
    "another hardsigmoid": (n("HardSigmoid"), {}), "leaky": (n("LeakyRelu", alpha=0.2), {}),
    "prelu": (n("PRelu", "s"), {"s": np.full((4, 1, 1), 0.3, np.float32)}),
    "clip": (n("Clip", "lo", "hi"), {"lo": np.float32(-0.5), "hi": np.float32(0.7)}),
    "max": (n("Max", "lo"), {"lo": np.float32(0.1)}), "min": (n("Min", "lo"), {"lo": np.float32(0.1)}),
    "add": (n("Add", "c"), {"c": np.float32([0.5])}), "div": (n("Div", "c"), {"c": np.float32([3.0])}),
    "softmax": (n("Softmax", axis=1), {}), "transpose": (n("Transpose", perm=[0, 2, 3, 1]), {}),
    "layer norm": (
        n("LayerNormalization", "g", "b"), {"g": np.float32([1, 2, 3, 4, 5, 6]), "b": np.zeros(6, np.float32)}
    ),
    "batch norm": (
        n("BatchNormalization", "g", "b", "m", "v"),
        {k: np.float32([1, 2, 3, 4]) / d for k, d in (("g", 1), ("b", 2), ("m", 3), ("v", 4))},
    ),
    "max pool": (n("MaxPool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]), {}),
    "uneven max pool": (n("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), {}),
    "average pool": (n("AveragePool", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 1, 0]), {}),
    "counted average pool": (n("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1), {}),
    "global pool": (n("GlobalAveragePool"), {}), "mean": (n("ReduceMean", axes=[2, 3], keepdims=0), {}),
    "flatten": (n("Flatten"), {}), "reshape": (n("Reshape", "s"), {"s": np.array([0, 2, -1], I64)}),
    "squeeze": (n("Unsqueeze", "a"), {"a": np.array([1, -1], I64)}),
    "slice": (
        n("Slice", "s", "e", "a", "t"),
        {k: np.array(v, I64) for k, v in (("s", [1, 0]), ("e", [2**63 - 1, -1]), ("a", [2, 3]), ("t", [2, 1]))},
    ),
    "split": (n("Split", "s", outputs=2, axis=1), {"s": np.array([1, 3], I64)}),
    "halves": (n("Split", outputs=2, axis=1), {}),
    "gather": (n("Gather", "i", axis=1), {"i": np.array([2, 0], I64)}),
    "select": (n("Gather", "i", axis=1), {"i": np.array(1, I64)}),
    "pad": (n("Pad", "p", "v"), {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1], I64), "v": np.float32(0.5)}),
    "reflect": (n("Pad", "p", mode="reflect"), {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1], I64)}),
    "nearest": (
        n("Resize", "", "s", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        {"s": np.float32([1, 1, 2, 2])},
    ),
    "bilinear": (n("Resize", "", "", "z", mode="linear"), {"z": np.array([3, 4, 7, 9], I64)}),
    "concat": (n("Concat", "x", axis=1), {}),
    "matrix product": (n("MatMul", "w"), {"w": np.arange(18, dtype=np.float32).reshape(6, 3) / 9}),
    "uneven conv": (n("Conv", "w", pads=[0, 1, 1, 0]), {"w": np.ones((2, 4, 2, 2), np.float32) / 5}),
    "transposed conv": (
        n("ConvTranspose", "w", strides=[2, 2], output_padding=[1, 0], group=2),
        {"w": np.ones((4, 3, 2, 2), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_compute_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    (node, outputs), stored = CASES[name]
    x = np.random.default_rng(0).standard_normal((3, 4, 5, 6)).astype(np.float32)
    s, z = constant("s_x", np.float32(0.05)), constant("z_x", np.uint8(128))
    marks = [
        helper.make_node("QuantizeLinear", ["given", "s_x", "z_x"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s_x", "z_x"], ["x"], name="d"),
    ]
    names = [f"y{i}" for i in range(outputs)]
    stored_tensors = [s, z, *(constant(k, v) for k, v in stored.items())]
    path = write(tmp_path / "one.onnx", [*marks, node], stored_tensors, x.shape, names)
    model = onnx.load(str(path))
    model.graph.input[0].name = "given"
    onnx.save(model, str(path))
    want = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"given": x})
    described = describe_graph(read_onnx(path))
    mark = described.marks[0]
    mark.rounding = True
    found = described.model(torch.from_numpy(x))
    for a, b in zip(want, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(b.numpy(), a, rtol=1e-5, atol=1e-5)


def refused(path: Path, **how: Any) -> str:
    with pytest.raises(IntactError) as caught:
        intact8.migrate(path, **how)
    return str(caught.value)


def test_what_is_refused_is_named(tmp_path: Path) -> None:
    assert "missing.onnx: cannot read the file. Reason: No such file" in refused(tmp_path / "missing.onnx")
    (tmp_path / "text.onnx").write_text("no protocol buffer")
    assert "this is no ONNX file" in refused(tmp_path / "text.onnx")
    (tmp_path / "field.onnx").write_bytes(b"\xf8\x01\x00")  # one unknown field
    assert "this is no ONNX file" in refused(tmp_path / "field.onnx")
    assert "nothing in this graph is quantized" in refused(network(tmp_path / "float.onnx"))
    odd = write(tmp_path / "odd.onnx", [helper.make_node("Det", ["x"], ["y"], name="odd")], [], (2, 3, 3), ["y"])
    assert refused(odd).startswith("odd: the operator Det is not known")
    cut = write(tmp_path / "cut.onnx", [helper.make_node("Relu", ["gone"], ["y"])], [], (2, 3), ["y"])
    assert refused(cut).startswith("gone: the graph reads a tensor that nothing makes")
    circle = [helper.make_node("Relu", [a], [b], name=b) for a, b in (("y", "z"), ("z", "y"))]
    assert "form a circle" in refused(write(tmp_path / "circle.onnx", circle, [], (2, 3), ["y"]))
    body = helper.make_graph([], "body", [], [])
    loop = write(
        tmp_path / "loop.onnx", [helper.make_node("If", ["x"], ["y"], name="if", then_branch=body)], [], (1,), ["y"]
    )
    assert "an operator with a body" in refused(loop)


def test_data_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    model = onnx.load(str(network(tmp_path / "in" / "net.onnx")))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../secret"
    (tmp_path / "in" / "net.onnx").write_bytes(model.SerializeToString())
    assert "only files in the folder of the model are read" in refused(tmp_path / "in" / "net.onnx")


def test_damaged_files_raise_our_errors_only(tmp_path: Path) -> None:
    data, rng = quantized(tmp_path, "QDQ").read_bytes(), np.random.default_rng(0)
    survived = 0
    for _ in range(150):
        (tmp_path / "broken.onnx").write_bytes(mutated(data, rng))
        try:
            describe_graph(read_onnx(tmp_path / "broken.onnx"))
            survived += 1
        except InputError:
            pass
    assert survived < 150


def test_operands_that_do_not_fit_raise_our_errors_only(tmp_path: Path) -> None:
    source, rng = onnx.load(str(quantized(tmp_path, "QOperator"))), np.random.default_rng(0)
    for _ in range(150):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        graph = model.graph
        node, other = (graph.node[int(rng.integers(len(graph.node)))] for _ in range(2))
        stored = graph.initializer[int(rng.integers(len(graph.initializer)))]
        change = int(rng.integers(4))
        if change == 0:
            node.input[int(rng.integers(len(node.input)))] = stored.name
        elif change == 1:
            del node.input[int(rng.integers(len(node.input)))]
        elif change == 2:
            node.op_type = other.op_type
        else:
            stored.CopyFrom(constant(stored.name, np.zeros((2, 0), numpy_helper.to_array(stored).dtype)))
        (tmp_path / "odd.onnx").write_bytes(model.SerializeToString())
        with contextlib.suppress(IntactError):
            describe_graph(read_onnx(tmp_path / "odd.onnx"))


def stored(**arrays: Any) -> list[Any]:
    return [constant(name, np.asarray(value)) for name, value in arrays.items()]


INTO = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
GRID: dict[str, Any] = {"s": np.float32(0.03), "z": np.uint8(100)}


@pytest.mark.parametrize("value", [100, 7, None])
def test_integers_are_padded_with_integers(value: int | None, tmp_path: Path) -> None:
    """The number around them is that of the integer, 0 where none is given: not the integer itself."""
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    more = {} if value is None else {"v": np.uint8(value)}
    nodes = [
        INTO,
        helper.make_node("Pad", ["q", "p", *more], ["r"], name="pad"),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["f"], axis=0),
        helper.make_node("Conv", ["d", "f"], ["y"], name="conv"),
    ]
    rng = np.random.default_rng(0)
    weight = {"w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), "ws": np.full(4, 0.01, np.float32)}
    path = write(
        tmp_path / "pad.onnx",
        nodes,
        stored(**GRID, p=pads, wz=np.zeros(4, np.int8), **weight, **more),
        (2, 3, 6, 6),
        ["y"],
    )
    x = rng.uniform(-3, 4.5, (2, 3, 6, 6)).astype(np.float32)
    described = describe_graph(read_onnx(path))
    with rounding(described.marks):
        np.testing.assert_allclose(described.model(torch.from_numpy(x)).numpy(), run(path, x), rtol=1e-5, atol=1e-4)
    made = intact8.migrate(path, data=torch.from_numpy(x))
    assert made.report.weights == 108 and made.report.weights_changed == 0


def test_integers_that_are_read_as_numbers_are_refused(tmp_path: Path) -> None:
    cast = [INTO, helper.make_node("Cast", ["q"], ["y"], name="cast", to=TensorProto.FLOAT)]
    assert refused(write(tmp_path / "a.onnx", cast, stored(**GRID), (2, 3), ["y"])).startswith("cast: Cast of integers")
    other = helper.make_node("QuantizeLinear", ["x", "t", "z"], ["o"])
    both = [INTO, other, helper.make_node("Concat", ["q", "o"], ["c"], name="cat", axis=1)]
    both.append(helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"]))
    made = write(tmp_path / "b.onnx", both, stored(**GRID, t=np.float32(0.1)), (2, 3), ["y"])
    assert refused(made).startswith("cat: Concat of integers of several grids")


def test_factors_of_a_gemm_go_into_scales_and_a_constant_is_added_to_integers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.integers(-127, 128, (8, 16)).astype(np.int8), rng.uniform(-3, 4, (32, 16)).astype(np.float32)
    numbers = {"w": weight, "ws": np.full(8, 0.02, np.float32), "wz": np.zeros(8, np.int8), "b": np.ones(8, np.float32)}
    grids = {"t": np.float32(0.3), "u": np.uint8(128), "c": np.uint8(30), "cs": np.float32(0.05)}
    nodes = [
        INTO,
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["f"], axis=0),
        helper.make_node("Gemm", ["d", "f", "b"], ["g"], name="gemm", alpha=0.5, beta=2.0, transB=1),
        helper.make_node("QuantizeLinear", ["g", "t", "u"], ["gq"]),
        helper.make_node(
            "QLinearAdd", ["gq", "t", "u", "c", "cs", "z", "t", "u"], ["a"], name="add", domain="com.microsoft"
        ),
        helper.make_node("DequantizeLinear", ["a", "t", "u"], ["y"]),
    ]
    path = write(tmp_path / "gemm.onnx", nodes, stored(**GRID, **numbers, **grids), (32, 16), ["y"])
    made = intact8.migrate(path, data=torch.from_numpy(x))
    assert made.report.weights == 128 and made.report.weights_changed == 0 and not made.report.floats
    assert float(np.abs(made.program.run(x) - run(path, x)).max()) < 0.31  # one step


def test_products_of_integers_whose_results_are_float_are_read(tmp_path: Path) -> None:
    torch.manual_seed(7)
    rows = torch.randn(16, 6)
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    program = intact8.quantize(net, rows, intact8.Recipe(between_layers="float"))
    assert program.ops[-1].kind == "dequantized_linear"
    program.export(tmp_path / "there.onnx", "onnx-qdq")
    made = intact8.migrate(tmp_path / "there.onnx", data=rows)
    assert made.report.weights_changed == 0 and made.report.observed and (made.report.outputs_sqnr or 0) > 30
    intact8.quantize(net, rows, intact8.Recipe(between_layers="integer")).export(
        tmp_path / "integers.onnx", "onnx"
    )  # sums of integers get a bias first
    with pytest.raises(InputError, match="MatMulInteger of other tensors"):
        intact8.migrate(tmp_path / "integers.onnx", data=rows)
