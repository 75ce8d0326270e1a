"""The formats: what writes a file, and what opens and runs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from intact8.errors import EngineError
from intact8.opset.op import Array
from intact8.program.program import Program

from .report import Values

Run = Callable[[Values], Values]
"""Inputs by name → tensors of the program by name, those that the file gives."""


@dataclass(frozen=True)
class Options:
    """What a format is asked for, see :func:`intact8.exporting.export`."""

    uint8_input: bool = False
    layout: str = "NCHW"


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        runtime: the package that opens and runs it here.
        extra: of intact8, which installs the package.
        exact: whether it promises the program's integers wherever no float operation lies before them.
        write: writes the file; returns all paths, and what runs them.
        meaning: one line for people.
    """

    runtime: str
    extra: str
    exact: bool
    write: Callable[[Program, Path, Options], tuple[tuple[Path, ...], Run]]
    meaning: str

    def version(self) -> str:
        """Return the runtime with its version.

        Raises:
            EngineError: it is not installed: nothing is written that nobody has run.
        """
        if importlib.util.find_spec(self.runtime) is None:
            what, remedy = f"{self.runtime} is not installed", f"pip install 'intact8[{self.extra}]'"
            raise EngineError(what, where="export", why="it runs what was written", remedy=remedy)
        return f"{self.runtime} {importlib.metadata.version(self.runtime)}"


def _onnx(program: Program, path: Path, options: Options) -> tuple[tuple[Path, ...], Run]:
    program.export_onnx(path, uint8_input=options.uint8_input, layout=options.layout)
    return (path,), lambda inputs: run_onnx(path, program, inputs)


def run_onnx(path: Path, program: Program, inputs: Values) -> dict[str, Array]:
    """Run an ONNX file on ONNX Runtime, and return every tensor of the program that has its name in the file."""
    import onnx
    import onnxruntime

    model = onnx.load(str(path))
    known = {output.name for output in model.graph.output}
    described = {value.name: value for value in model.graph.value_info}
    inside = [name for name in program.integer_tensors() if name in described and name not in known]
    model.graph.output.extend(described[name] for name in inside)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _exported_program(program: Program, path: Path, options: Options) -> tuple[tuple[Path, ...], Run]:
    from intact8.export.torch_module import export_program

    _refuse_layout("exported-program", options)
    export_program(program, path, uint8_input=options.uint8_input)

    def run(inputs: Values) -> dict[str, Array]:
        import torch

        module = torch.export.load(path).module()
        found = module(*(torch.from_numpy(np.array(inputs[name])) for name in program.inputs))
        found = found if isinstance(found, tuple) else (found,)
        return {name: y.numpy() for name, y in zip(program.outputs, found, strict=True)}

    return (path,), run


def _refuse_layout(to: str, options: Options) -> None:
    if options.layout != "NCHW":
        what, remedy = f"{to} takes images with channels first", "leave the layout out, or export to onnx"
        raise EngineError(what, where="export", remedy=remedy)


FORMATS: dict[str, Format] = {
    "onnx": Format("onnxruntime", "onnx", True, _onnx, "ONNX of standard integer operators"),
    "exported-program": Format(
        "torch", "torch", True, _exported_program, "torch.export program (.pt2) of plain integer tensors"
    ),
}
"""Name → format."""
