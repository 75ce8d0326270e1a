"""Names that engines and exporters make up may be names of a program's tensors, too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="exporters and onednn need torch")

import torch
from tests.fuzz.programs import inputs_of, list_of, make

import intact8
from intact8.engines import available_engines
from intact8.errors import IntactError
from intact8.exporting import export
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program
from intact8.verification import verify


def renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with other names of tensors; those that are not in ``names`` stay."""

    def name(old: str) -> str:
        return names.get(old, old)

    tensors = {name(old): replace(t, name=name(old)) for old, t in program.tensors.items()}
    ops = tuple(replace(op, name=name(op.name), inputs=tuple(map(name, op.inputs))) for op in program.ops)
    inputs, outputs = (tuple(map(name, found)) for found in (program.inputs, program.outputs))
    return replace(program, tensors=tensors, ops=ops, inputs=inputs, outputs=outputs, golden=None)


def names_made(program: Program, folder: Path) -> list[str]:
    """Every name in what engines and exporters make of a program, that of a tensor or not."""
    found: dict[str, None] = {}
    for names in (_onnx(program, folder), _openvino(program, folder), _onednn(program), _torch(program)):
        try:
            found |= dict.fromkeys(names)
        except IntactError:  # an engine may refuse a program
            continue
    return [name for name in found if name]


def _onednn(program: Program) -> Iterator[str]:
    from intact8.engines.onednn.merge_linear import merge_linear

    yield from merge_linear(program).tensors


def _torch(program: Program) -> Iterator[str]:
    from intact8.export.torch_module import TorchProgram

    yield from (name for name, _ in TorchProgram(program).named_buffers())


def _onnx(program: Program, folder: Path) -> Iterator[str]:
    onnx = pytest.importorskip("onnx")
    from intact8.export.onnx import IR_VERSION, OPSET, build
    from intact8.export.onnx_tables import candidates

    models = [build(program, contrib=contrib, everything=every) for contrib in (True, False) for every in (True, False)]
    models += filter(None, [candidates(program, OPSET, IR_VERSION)])
    for to in ("onnx-qdq", "onnx-qdq-tensorrt"):
        try:
            export(program, folder / "named.onnx", to)
        except IntactError:
            continue
        models.append(onnx.load(folder / "named.onnx"))
    for model in models:
        yield from _of_graph(model.graph)


def _of_graph(graph: Any) -> Iterator[str]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    yield from (value.name for value in graph.initializer)
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)


def _openvino(program: Program, folder: Path) -> Iterator[str]:
    openvino = pytest.importorskip("openvino")
    from intact8.engines.openvino.execution_graph import END

    for i in range(len(program.ops)):
        yield from (f"op{i}", f"op{i}{END}")
    export(program, folder / "named.xml", "openvino")
    model = openvino.Core().read_model(folder / "named.xml")
    for node in model.get_ops():
        yield node.get_friendly_name()
        for output in node.outputs():
            yield from output.get_names()


def results(program: Program, inputs: dict[str, Any], folder: Path) -> dict[str, str]:
    """What every engine and every exported file does: how many integers differ, or why it is refused."""
    found = {}
    for engine in (name for name in available_engines() if name != "reference"):
        found[engine] = told(lambda engine=engine: verify(program, inputs, engine).mismatches)
    for to, name in {"onnx": "net.onnx", "onnx-qdq": "net.onnx", "openvino": "net.xml", "encodings": "net.enc"}.items():
        found[to] = told(lambda to=to, name=name: export(program, folder / name, to).differences)
    return found


def told(work: Callable[[], object]) -> str:
    try:
        return str(work())
    except IntactError as error:
        return error.what


def encoder() -> tuple[Program, dict[str, Any]]:
    torch.manual_seed(0)
    net = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0).eval()
    x = torch.randn(32, 3, 8)
    program = intact8.quantize(net, x, recipe=intact8.recipes.dynamic())
    return program, {program.inputs[0]: x[:2].numpy()}


def random_program(index: int) -> tuple[Program, dict[str, Any]]:
    made = make(3, index)
    assert made is not None
    program = certify(made[0], ("reference", *available_engines()))
    check(program)
    return program, inputs_of(program, index, 2)


PROGRAMS: dict[str, Callable[[], tuple[Program, dict[str, Any]]]] = {
    f"random {i}": partial(random_program, i) for i in (6, 25, 27)
}


@pytest.mark.parametrize("which", PROGRAMS)
def test_tensors_may_have_the_names_that_engines_and_exporters_make(which: str, tmp_path: Path) -> None:
    program, inputs = PROGRAMS[which]()
    want = results(program, inputs, tmp_path)
    names, old = names_made(program, tmp_path), list(program.tensors)
    # Inputs are called as labels are, which are the names that OpenVINO's kernels are looked up by.
    given = [f"op{i + 1}" for i in range(len(program.inputs))]
    pool = [name for name in random.Random(0).sample(names, len(names)) if name not in (*old, *given)]
    pool = [*given, *pool, *(f"{name}/x" for name in old)]
    new = dict(zip([*program.inputs, *(n for n in old if n not in program.inputs)], pool, strict=False))
    other = renamed(program, new)
    check(other)
    assert results(other, {new[name]: x for name, x in inputs.items()}, tmp_path) == want


def test_operations_may_have_the_names_of_what_stands_apart_or_for_several() -> None:
    """ONNX Runtime takes no two nodes of one name, and onednn computes products of one input as one."""
    program, inputs = encoder()
    inside = next(op.name for op in program.ops if op.kind == "permute")
    (together,) = set(_onednn(program)) - set(program.tensors) or {"none"}
    other = renamed(program, {program.ops[-2].name: f"{inside}/apart", program.ops[-3].name: together})
    for engine in {"onednn", "onnxruntime"} & set(available_engines()):
        assert verify(other, inputs, engine).mismatches == 0


@pytest.mark.parametrize("index", [42, 1])
def test_divisions_and_outputs_that_are_inputs_are_told_of_by_openvino(index: int, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    program, _ = random_program(index)  # 42 divides floats, and rounds none of the quotients
    assert told(lambda: export(program, tmp_path / "net.xml", "openvino").differences) in (
        "()",
        "an output is an input",
    )


@pytest.mark.parametrize("index", [1, 3, 18, 22, 24])
def test_encodings_are_of_floats(index: int, tmp_path: Path) -> None:
    """Inputs of integers and operations that quantize by themselves are refused; integers that no layer reads are
    not."""
    pytest.importorskip("onnxruntime")
    program, _ = random_program(index)
    found = told(lambda: export(program, tmp_path / "net.enc", "encodings").differences)
    assert found == "()" or "float" in found


@pytest.mark.parametrize("to", ["onnx-qdq", "onnx-qdq-tensorrt"])
def test_one_tensor_dequantized_twice_is_exported(to: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    tensors = {"x": Tensor("x", "uint8", (None, 4), 0.5, 128)}
    tensors |= {name: Tensor(name, "float32", (None, 4)) for name in ("first", "second")}
    ops = tuple(Op(name, "dequantize", ("x",)) for name in ("first", "second"))
    program = Program(tensors, ops, ("x",), ("first", "second"), structure=list_of(2))
    check(program)
    assert not export(program, tmp_path / "net.onnx", to).differences


def test_bytes_that_stand_for_no_numbers_stay_bytes_for_tensorrt(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    tensors = {name: Tensor(name, "uint8", (None, 2, 3)) for name in ("x", "y")}
    program = Program(tensors, (Op("y", "permute", ("x",), {"dims": [0, 2, 1]}),), ("x",), ("y",))
    program.tensors["y"] = replace(program.tensors["y"], shape=(None, 3, 2))
    check(program)
    assert not export(program, tmp_path / "net.onnx", "onnx-qdq-tensorrt").differences
