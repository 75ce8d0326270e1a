"""``intact8 export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import print_result
from intact8.cli.models import load_program
from intact8.errors import InputError


def export(
    file: options.ProgramFile,
    onnx: Annotated[Path | None, typer.Option("--onnx", help="Write an ONNX model to this path.")] = None,
    uint8_input: Annotated[
        bool, typer.Option("--uint8-input", help="Take the integers of quantized inputs instead of floats.")
    ] = False,
    layout: Annotated[str, typer.Option(help="NHWC: take images with channels last.")] = "NCHW",
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a program in another format, with the same integers.

    \b
    Examples:
      intact8 export resnet.safetensors --onnx resnet.onnx
      intact8 export resnet.safetensors --onnx resnet.onnx --uint8-input --layout NHWC
    """
    if onnx is None:
        raise InputError("no format chosen", where="intact8 export", remedy="give --onnx PATH")
    path = load_program(file, public_key, expect).export_onnx(onnx, uint8_input=uint8_input, layout=layout)
    size = path.stat().st_size
    print_result(f"{path}: {size:,} bytes", lambda: {"file": str(path), "bytes": size}, as_json)
