"""``intact8 sign``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact8.cli.console import report_written
from intact8.cli.options import AsJson, ProgramFile


def sign(
    file: ProgramFile,
    key: Annotated[Path, typer.Option(metavar="PEM", help="Unencrypted Ed25519 private key.")],
    name: Annotated[
        str | None,
        typer.Option(help="The same for all versions of it; FILE up to its first dot by default."),
    ] = None,
    version: Annotated[
        int,
        typer.Option(min=0, help="A number to raise with every release; 0: not counted."),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Sign a program, its name and its version: write FILE.sig, an Ed25519 signature. Needs the package cryptography.

    Whoever opens the file with --public-key (or INTACT8_PUBLIC_KEY) demands a signature; with --expect NAME@N one of
    this name and of version N or later.

    \b
    Examples:
      openssl genpkey -algorithm ed25519 -out private.pem
      openssl pkey -in private.pem -pubout -out public.pem
      intact8 sign resnet.safetensors --key private.pem --name resnet --version 7
      intact8 run resnet.safetensors --public-key public.pem --expect resnet@7 --data x.npy -o y.npy
    """
    from intact8.program.file import parse, read
    from intact8.program.signing import sign as write_signature

    parse(read(file), file)  # what is signed is a whole and checked program, signed already or not
    written = write_signature(file, key, name, version)
    report_written(f"signed: {written}", {"signature": str(written)}, as_json)
