"""``intact8 inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import print_result, stdout
from intact8.cli.models import load_program
from intact8.errors import InputError


def inspect(
    file: options.ProgramFile,
    tree: Annotated[bool, typer.Option("--tree", help="Operations under the modules they came from.")] = False,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a program: operations, shapes, scales, zero points, what was fused, what was proved, what stayed float, and
    what the native engine computes slowly, by numpy.

    \b
    Examples:
      intact8 inspect resnet.safetensors
      intact8 inspect resnet.safetensors --tree
      intact8 inspect resnet.safetensors --json | jq '.ops[0]'
    """
    if tree and as_json:
        raise InputError("choose one", where="--tree, --json")
    from intact8.display import inert
    from intact8.engines import get_engine
    from intact8.engines.native.engine import numpy_operations
    from intact8.program.inspect import table, to_json
    from intact8.program.inspect import tree as by_module
    from intact8.program.remarks import remarks

    program = load_program(file, public_key, expect)
    built = get_engine("native").available() is None
    slow = numpy_operations(program) if built else None
    print_result(
        by_module(program) if tree else table(program),
        lambda: {**to_json(program), "numpy_on_native": None if slow is None else list(slow)},
        as_json,
    )
    if as_json:
        return
    for remark in remarks(program) if tree else ():
        stdout().print(remark)
    if slow:
        kinds = {op.name: op.kind for op in program.ops}
        names = ", ".join(f"{name} ({kinds[name]})" for name in slow)
        stdout().print(inert(f"computed by numpy on the native engine, exactly and slowly: {names}"))
