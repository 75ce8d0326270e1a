"""Writing a program in the format of another tool, and running what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from intact8.arithmetic.affine import quantize
from intact8.atomic_write import target_of
from intact8.engines import get_runner
from intact8.engines.memory import refuse_tensors
from intact8.errors import EngineError, InputError, require_number
from intact8.opset.op import Array
from intact8.program.inputs import check_layout, sole_quantizers
from intact8.program.program import Program
from intact8.program.samples import random_samples

from .formats import FORMATS, Options, version
from .report import ExportReport, Values, compare

SAMPLES = 4
"""Samples that a written file is run on."""


def export(
    program: Program,
    path: str | Path,
    to: str = "onnx",
    *,
    uint8_input: bool = False,
    layout: str = "NCHW",
    batch: int = 1,
    runtime: str | None = None,
) -> ExportReport:
    """Write the program in the format of another tool, then open and run what was written.

    Args:
        program: converted or loaded.
        path: of the file.
        to: the format: "onnx", "onnx-qdq", "onnx-qdq-tensorrt", "openvino", "exported-program" or "encodings".
        uint8_input: take the integers of quantized inputs instead of floats.
        layout: "NHWC" to take inputs of four dimensions as (N, H, W, C).
        batch: samples of a call, in formats whose files are for one batch size.
        runtime: what runs the file here, where there is a choice: onnx-qdq by "onnxruntime" or "openvino".

    Returns:
        What was written, and every tensor whose integers differ from the reference engine's, on random inputs.

    Raises:
        InputError: the format, or the layout, is not known, or ``batch`` is no number of samples.
        EngineError: a package is missing, an operation has no form in this format, the file cannot be written or run,
            or integers differ where the format promises the same.

    Example:
        >>> FORMATS["openvino"].static
        True
    """
    if not isinstance(to, str) or to not in FORMATS:
        raise InputError(f"the format {to!r} is not known", where="export", remedy=f"choose from {', '.join(FORMATS)}")
    made, path = FORMATS[to], target_of(path)
    runtime = next(iter(made.runs)) if runtime is None else runtime
    if not isinstance(runtime, str) or runtime not in made.runs:
        what = f"{to} is not run by {runtime!r} here"
        raise InputError(what, where="export", remedy=f"choose from {', '.join(made.runs)}")
    check_layout(program, layout)
    require_number("batch", batch, 1, "export")
    ran_by = version(runtime)
    samples = batch if made.static else SAMPLES
    refuse_tensors(program, ["reference", runtime], samples)
    files = made.write(program, path, Options(uint8_input, layout, batch))
    inputs = _inputs(program, samples, uint8_input)
    want = get_runner(program, "reference").tensors(inputs)
    try:
        found = made.runs[runtime](files, program, _ordered(inputs, layout))
    except ImportError as error:
        what, remedy = f"{runtime} cannot be imported, which would check the file", "reinstall it"
        raise EngineError(what, where=str(path), why=str(error), remedy=remedy) from error
    exact = runtime in made.exact
    elements, differences = compare(program, want, found, bits=exact)
    broken = next((d for d in differences if exact and not d.behind_float), None)
    if broken is not None:
        what = f"{runtime} gives {broken.mismatches} of {broken.elements} other integers for {path}"
        raise EngineError(what, where=broken.tensor, remedy="report this, and do not use the file")
    return ExportReport(to, files, ran_by, exact, elements, differences, (made.note,) if made.note else ())


def _inputs(program: Program, samples: int, integers: bool) -> dict[str, Array]:
    """Return random inputs, as the integers they are quantized to where a file takes those."""
    inputs = random_samples(program, samples)
    for name, op in sole_quantizers(program).items() if integers else ():
        t = program.tensors[op.name]
        grid = np.float32(t.scale or 1.0), int(t.zero_point or 0)
        inputs[name] = quantize(inputs[name], *grid, op.attrs["lo"], op.attrs["hi"]).astype(np.uint8)
    return inputs


def _ordered(inputs: Values, layout: str) -> Values:
    """Return the inputs with images in the layout of the file."""
    if layout == "NCHW":
        return inputs
    return {name: np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x for name, x in inputs.items()}
