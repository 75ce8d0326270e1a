"""Detached Ed25519 signatures of program files, through the ``cryptography`` package (``intact[sign]``).

The signature lies beside the file, in ``FILE.sig``: one line of base64. What is signed is the file's SHA-512 under a
prefix that no other use of the key would sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from intact.errors import ProgramError
from intact.program.read import read
from intact.program.write import write

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

CONTEXT = b"intact program file, signature version 1\n"


def signature_path(path: str | Path) -> Path:
    """Where the signature of a file lies.

    Example:
        >>> str(signature_path("a/net.safetensors"))
        'a/net.safetensors.sig'
    """
    path = Path(path)
    return path.with_name(f"{path.name}.sig")


def sign(path: str | Path, private_key: str | Path) -> Path:
    """Write the signature of ``path`` beside it.

    Args:
        path: a program file.
        private_key: file of an unencrypted Ed25519 private key, PEM (``openssl genpkey -algorithm ed25519``).

    Returns:
        The path of the signature.

    Raises:
        ProgramError: cryptography is not installed, the key is no such key, or a file cannot be read or written.
    """
    key = _private_key(Path(private_key))
    target = signature_path(path)
    text = base64.b64encode(key.sign(_message(read(path)))) + b"\n"
    try:
        write(target, text)
    except OSError as error:
        raise ProgramError(
            "cannot write the signature", where=str(target), why=error.strerror or str(error), remedy="see the reason"
        ) from error
    return target


def verify(data: bytes, path: str | Path, public_key: str | Path) -> None:
    """Demand that ``data``, the bytes of ``path``, is what the signature beside it signs.

    Raises:
        ProgramError: no signature, a wrong one, no such key, or cryptography is not installed.
    """
    key = _public_key(Path(public_key))
    from cryptography.exceptions import InvalidSignature

    place = signature_path(path)
    try:
        with open(place, "rb") as stream:
            signature = base64.b64decode(stream.read(1024).strip(), validate=True)
    except FileNotFoundError as error:
        raise ProgramError(
            "the file is not signed", where=str(path), why=f"there is no {place.name}",
            remedy="get its signature, or sign it: intact sign FILE --key private.pem",
        ) from error  # fmt: skip
    except (OSError, binascii.Error) as error:
        raise ProgramError(
            "the signature cannot be read", where=str(place), why=str(error), remedy="get it again"
        ) from error
    try:
        key.verify(signature, _message(data))
    except InvalidSignature as error:
        raise ProgramError(
            "the signature does not fit the file", where=str(path),
            why=f"the file was altered, or signed with another key than {public_key}",
            remedy="do not use it; get file and signature again from where they come from",
        ) from error  # fmt: skip


def _message(data: bytes) -> bytes:
    return CONTEXT + hashlib.sha512(data).digest()


def _missing(error: ImportError) -> ProgramError:
    return ProgramError(
        "signatures need the package cryptography",
        where="signature",
        why=str(error),
        remedy="pip install 'intact[sign]'",
    )


def _bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 16)
    except OSError as error:
        raise ProgramError(
            "cannot read the key", where=str(path), why=error.strerror or str(error), remedy="check the path"
        ) from error


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise _missing(error) from error
    try:
        key = load_pem_private_key(_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "private", str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", f"it is a {type(key).__name__}")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise _missing(error) from error
    try:
        key = load_pem_public_key(_bytes(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "public", str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", f"it is a {type(key).__name__}")
    return key


def _no_key(path: Path, kind: str, why: str) -> ProgramError:
    return ProgramError(
        f"no Ed25519 {kind} key in PEM form", where=str(path), why=why[:200],
        remedy="make one: openssl genpkey -algorithm ed25519 -out private.pem; "
        "openssl pkey -in private.pem -pubout -out public.pem",
    )  # fmt: skip


__all__ = ["sign", "signature_path", "verify"]
