"""The formats: what writes a file, and what opens and runs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.program.program import Program

from .report import Values

Files = tuple[Path, ...]

Runner = Callable[[Files, Program, Values], Values]

EXTRAS = {"onnxruntime": "onnx"}
"""Runtime → the extra of intact8 that installs it, where that has another name."""


@dataclass(frozen=True)
class Options:
    """What a format is asked for, see :func:`intact8.exporting.export`."""

    uint8_input: bool = False
    layout: str = "NCHW"
    batch: int = 1


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        write: writes the file; returns the paths of all that it wrote.
        runs: runtime → what runs the files with it: inputs by name in, tensors of the program by name out. The first is
            run where none is asked for.
        exact: runtimes that give the program's integers, wherever no float operation lies before them.
        static: whether files are for one batch size.
        note: what a user of the file has to know, a sentence.
    """

    write: Callable[[Program, Path, Options], Files]
    runs: Mapping[str, Runner]
    exact: frozenset[str] = field(default=frozenset())
    static: bool = False
    note: str = ""


def version(runtime: str) -> str:
    """Return the runtime with its version.

    Raises:
        EngineError: it is not installed: nothing is written that nobody has run.
    """
    if importlib.util.find_spec(runtime) is None:
        remedy = f"pip install 'intact8[{EXTRAS.get(runtime, runtime)}]'"
        raise EngineError(f"{runtime} is not installed", where="export", why="it runs what was written", remedy=remedy)
    return f"{runtime} {importlib.metadata.version(runtime)}"


def _write_onnx(program: Program, path: Path, options: Options) -> Files:
    program.export_onnx(path, uint8_input=options.uint8_input, layout=options.layout)
    return (path,)


def _write_qdq(program: Program, path: Path, options: Options, signed: bool = False) -> Files:
    from intact8.export.onnx_qdq import export_qdq

    export_qdq(program, path, uint8_input=options.uint8_input, layout=options.layout, signed=signed)
    return (path,)


def _write_openvino(program: Program, path: Path, options: Options) -> Files:
    from intact8.engines.openvino.ir import save_ir

    _refuse_layout("openvino", options)
    return save_ir(program, path, batch=options.batch, uint8_input=options.uint8_input)


def _write_exported_program(program: Program, path: Path, options: Options) -> Files:
    from intact8.export.torch_module import export_program

    _refuse_layout("exported-program", options)
    if path.suffix != ".pt2":
        raise InputError("torch.export.load opens names that end in .pt2", where=str(path), remedy="rename it")
    export_program(program, path, uint8_input=options.uint8_input)
    return (path,)


def _write_encodings(program: Program, path: Path, options: Options) -> Files:
    from intact8.export.encodings import export_encodings

    _refuse_layout("encodings", options)
    if options.uint8_input:
        raise InputError("encodings are of a network of floats", where="export", remedy="leave uint8_input out")
    return export_encodings(program, path)


def _refuse_layout(to: str, options: Options) -> None:
    if options.layout != "NCHW":
        what, remedy = f"{to} takes images with channels first", "leave the layout out, or export to onnx"
        raise EngineError(what, where="export", remedy=remedy)


def run_onnxruntime(files: Files, program: Program, inputs: Values) -> dict[str, Array]:
    """Run an ONNX file on ONNX Runtime, and return every tensor of the program that has its name in the file."""
    import onnx

    model = onnx.load(str(files[0]))
    known = {output.name for output in model.graph.output}
    described = {value.name: value for value in model.graph.value_info}
    inside = [name for name in program.integer_tensors() if name in described and name not in known]
    model.graph.output.extend(described[name] for name in inside)
    return _run_model(model, inputs)


def _run_model(model: Any, inputs: Values) -> dict[str, Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _run_encodings(files: Files, program: Program, inputs: Values) -> dict[str, Array]:
    """Quantize the float model as the encodings say, and run it on ONNX Runtime."""
    from intact8.export.encodings import quantized_model

    found = _run_model(quantized_model(files[0]), inputs)
    first = {op.inputs[0]: op.name for op in reversed(program.ops) if op.kind == "quantize"}
    integers = {name.removesuffix("/integers"): y for name, y in found.items() if name.endswith("/integers")}
    return {first.get(name, name): y for name, y in integers.items()}


def _on_int8(run: Runner) -> Runner:
    """Return ``run`` of a file whose integers are int8."""

    def converted(files: Files, program: Program, inputs: Values) -> Values:
        raw = {name for name in program.inputs if program.tensors[name].dtype == "uint8"}
        raw = {name for name in raw if not program.tensors[name].quantized}  # bytes that stand for no numbers
        signed = {name for name, x in inputs.items() if x.dtype == np.uint8} - raw
        given = {name: (x ^ np.uint8(128)).view(np.int8) if name in signed else x for name, x in inputs.items()}
        return {name: _unsigned(y) for name, y in run(files, program, given).items()}

    return converted


def _unsigned(y: Array) -> Array:
    """Return int8 integers as the program's uint8."""
    return (y.astype(np.int16) + 128).astype(np.uint8) if y.dtype == np.int8 else y


def _run_openvino(files: Files, program: Program, inputs: Values) -> dict[str, Array]:
    from intact8.engines.openvino.ir import run_file

    return run_file(files[0], dict(inputs))


def _run_torch(files: Files, program: Program, inputs: Values) -> dict[str, Array]:
    import torch

    from intact8.export.torch_module import nested

    module = torch.export.load(files[0]).module()
    found = module(*(torch.from_numpy(np.array(inputs[name])) for name in program.inputs))
    places = [object() for _ in program.outputs]
    leaves = map(torch.utils._pytree.tree_leaves, (nested(program, places), found))
    given = dict(zip(*leaves, strict=True))
    return {name: given[place].numpy() for name, place in zip(program.outputs, places, strict=True)}


ORT, OPENVINO, TORCH = "onnxruntime", "openvino", "torch"

FORMATS: dict[str, Format] = {
    "onnx": Format(_write_onnx, {ORT: run_onnxruntime}, frozenset([ORT])),
    "onnx-qdq": Format(_write_qdq, {ORT: run_onnxruntime, OPENVINO: _run_openvino}),
    "onnx-qdq-tensorrt": Format(
        lambda program, path, options: _write_qdq(program, path, options, signed=True),
        {ORT: _on_int8(run_onnxruntime), OPENVINO: _on_int8(_run_openvino)},
    ),
    "openvino": Format(
        _write_openvino,
        {OPENVINO: _run_openvino},
        frozenset([OPENVINO]),
        static=True,
        note="The integers hold where it is compiled with the options in its runtime information, f32 precision first.",
    ),
    "encodings": Format(
        _write_encodings,
        {ORT: _run_encodings},
        note="The float model beside it was run with the quantizations that the encodings describe.",
    ),
    "exported-program": Format(_write_exported_program, {TORCH: _run_torch}, frozenset([TORCH])),
}
"""Name → format."""
