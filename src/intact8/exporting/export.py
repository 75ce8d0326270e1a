"""Writing a program in the format of another tool, and running what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from intact8.arithmetic.affine import quantize
from intact8.engines import get_runner
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.program.inputs import check_layout, sole_quantizers
from intact8.program.program import Program
from intact8.program.samples import random_samples

from .formats import FORMATS, Options
from .report import ExportReport, Values, compare

SAMPLES = 4
"""Samples that a written file is run on."""


def export(
    program: Program, path: str | Path, to: str = "onnx", *, uint8_input: bool = False, layout: str = "NCHW"
) -> ExportReport:
    """Write the program in the format of another tool, then open and run what was written.

    Args:
        program: converted or loaded.
        path: of the file.
        to: a key of ``FORMATS``: "onnx", "exported-program".
        uint8_input: take the integers of quantized inputs instead of floats.
        layout: "NHWC" to take inputs of four dimensions as (N, H, W, C).

    Returns:
        What was written, and every tensor whose integers differ from the reference engine's, on random inputs.

    Raises:
        InputError: the format, or the layout, is not known.
        EngineError: a package is missing, an operation has no form in this format, the file cannot be written or run,
            or integers differ where the format promises the same.

    Example:
        >>> sorted(FORMATS)
        ['exported-program', 'onnx']
    """
    path = Path(path)
    if to not in FORMATS:
        raise InputError(f"the format {to!r} is not known", where="export", remedy=f"choose from {', '.join(FORMATS)}")
    check_layout(program, layout)
    made, version = FORMATS[to], FORMATS[to].version()
    files, run = made.write(program, path, Options(uint8_input, layout))
    inputs = _inputs(program, uint8_input)
    want = get_runner(program, "reference").tensors(inputs)
    elements, differences = compare(program, want, run(_ordered(inputs, layout)))
    broken = next((d for d in differences if made.exact and not d.behind_float), None)
    if broken is not None:
        what = f"{made.runtime} gives {broken.mismatches} of {broken.elements} other integers for {path}"
        raise EngineError(what, where=broken.tensor, remedy="report this, and do not use the file")
    return ExportReport(to, files, version, made.exact, elements, differences)


def _inputs(program: Program, integers: bool) -> dict[str, Array]:
    """Return random inputs, as the integers they are quantized to where a file takes those."""
    inputs = random_samples(program, SAMPLES)
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
