"""``intact8 export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli import options
from intact8.cli.console import WRITTEN, print_result
from intact8.errors import InputError

FORMATS = "onnx, onnx-qdq, onnx-qdq-tensorrt, openvino, exported-program, encodings"


def export(
    file: options.ProgramFile,
    path: Annotated[Path | None, WRITTEN, typer.Argument(metavar="[PATH]", help="Where to write.")] = None,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {FORMATS}.")] = "onnx",
    onnx: Annotated[Path | None, WRITTEN, typer.Option("--onnx", help="The same as --to onnx with this path.")] = None,
    uint8_input: Annotated[
        bool, typer.Option("--uint8-input", help="Take the integers of quantized inputs instead of floats.")
    ] = False,
    layout: Annotated[str, typer.Option(help="NHWC: take images with channels last.")] = "NCHW",
    batch: Annotated[int, typer.Option(min=1, help="openvino: samples of a call.")] = 1,
    runtime: Annotated[
        str | None, typer.Option(help="What runs the file afterwards: onnx-qdq by onnxruntime or openvino.")
    ] = None,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a program in another format, then open and run what was written: integers are compared.

    A child process does it: a library that dies there does not end the command without a word.

    \b
    Examples:
      intact8 export resnet.safetensors resnet.onnx --to onnx
      intact8 export resnet.safetensors resnet.onnx --to onnx-qdq --runtime openvino
      intact8 export resnet.safetensors resnet.xml --to openvino --batch 8
      intact8 export resnet.safetensors resnet.pt2 --to exported-program
      intact8 export resnet.safetensors --onnx resnet.onnx --uint8-input --layout NHWC
    """
    from intact8.exporting.in_child import export_file

    target, to = (onnx, "onnx") if onnx is not None else (path, to)
    if target is None:
        raise InputError("no path chosen", where="intact8 export", remedy="give PATH and --to FORMAT")
    how: dict[str, Any] = {"uint8_input": uint8_input, "layout": layout, "batch": batch, "runtime": runtime}
    report = export_file(file, target, to, public_key=public_key, expect=expect, **how)
    print_result(report, report.to_json, as_json)
