"""``intact sign``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intact.cli.messages import Debug, friendly, stderr
from intact.cli.options import ProgramFile


def sign(
    file: ProgramFile,
    key: Annotated[Path, typer.Option(metavar="PEM", help="Unencrypted Ed25519 private key.")],
    debug: Debug = False,
) -> None:
    """Sign a program: write its detached Ed25519 signature to FILE.sig. Needs the package cryptography.

    \b
    Examples:
      openssl genpkey -algorithm ed25519 -out private.pem
      openssl pkey -in private.pem -pubout -out public.pem
      intact sign resnet.safetensors --key private.pem
      intact check resnet.safetensors --public-key public.pem
    """
    with friendly(debug):
        from intact.program.program import Program
        from intact.runtime.signing import sign as write_signature

        Program.load(file)  # what is signed is a whole and checked program
        stderr().print(f"signed: {write_signature(file, key)}", highlight=False)
