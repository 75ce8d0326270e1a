"""The checksum of a program file: SHA-256 over every byte of it, its own 64 digits counted as zeros.

It stands at a fixed place, as the first entry of the metadata, so that it is found without parsing anything, and what
is hashed are the bytes as they lie in the file: a bit that flips in the length, in a key, in a space or in the digits
themselves is noticed as one in a weight is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from intact8.errors import ProgramError

KEY, SINCE = "checksum", 3
"""Name of the metadata entry, and the version of the format from which on every file must have it."""

START = b'{"__metadata__":{"checksum":"'
PLACE, DIGITS = 8 + len(START), 64
BLANK = "0" * DIGITS


def seal(data: bytes) -> bytes:
    """Return the file with its checksum where :data:`BLANK` stands."""
    sealed = bytearray(data)
    sealed[PLACE : PLACE + DIGITS] = checksum(data).encode()
    return bytes(sealed)


def checksum(data: bytes) -> str:
    """Return SHA-256, hex, of a file that has a place for it.

    Example:
        >>> file = bytes(8) + START + BLANK.encode() + b'"}}'
        >>> checksum(seal(file)) == checksum(file) != checksum(file + b" ")
        True
    """
    view = memoryview(data)
    total = hashlib.sha256(view[:PLACE])
    total.update(BLANK.encode())
    total.update(view[PLACE + DIGITS :])
    return total.hexdigest()


def sealed(data: bytes, path: Path) -> str:
    """Return the checksum, which the content of the file fits; "" where none stands in its place.

    Raises:
        ProgramError: the content does not fit it.
    """
    if not data.startswith(START, 8):
        return ""
    found = checksum(data)
    if data[PLACE : PLACE + DIGITS] != found.encode():
        raise damaged(path, "its content is not what its checksum was made from")
    return found


def damaged(path: Path, why: str) -> ProgramError:
    """Return the error for a file that is not what was written."""
    return ProgramError(
        f"the file is damaged: {why}",
        where=str(path),
        remedy="copy it again from where it came from, or convert the model again",
    )


def not_signed(path: Path, why: str) -> ProgramError:
    """Return the error for a file whose signature is a good one, of other content."""
    return ProgramError(
        "the signature beside the file is of other content than it has",
        where=str(path),
        why=why,
        remedy="sign it again where you wrote it since; else it was altered: do not use it, and get both again",
    )
