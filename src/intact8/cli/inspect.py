"""``intact8 inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from intact8.cli import options
from intact8.cli.console import AsJson, Debug, friendly, print_json, stdout
from intact8.errors import InputError


def inspect(
    file: options.ProgramFile,
    tree: Annotated[bool, typer.Option("--tree", help="Operations under the modules they came from.")] = False,
    public_key: options.PublicKey = None,
    expect: options.Expect = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a program: operations, shapes, scales, zero points, what was fused, what was proved, what stayed float.

    \b
    Examples:
      intact8 inspect resnet.safetensors
      intact8 inspect resnet.safetensors --tree
      intact8 inspect resnet.safetensors --json | jq '.ops[0]'
    """
    with friendly(debug):
        if tree and as_json:
            raise InputError("choose one", where="--tree, --json")
        from intact8.program.inspect import table, to_json
        from intact8.program.inspect import tree as by_module
        from intact8.program.program import Program
        from intact8.program.remarks import remarks

        program = Program.load(file, public_key=public_key, expect=expect)
        if as_json:
            print_json(to_json(program))
        else:
            stdout().print(by_module(program) if tree else table(program))
            for remark in remarks(program) if tree else ():
                stdout().print(remark)
