"""The bytes of a program file: every size is checked before anything is allocated for it."""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np

from intact.errors import ProgramError

LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses longer headers, too."""

LARGEST_FILE = 1 << 36
DEEPEST = 200
"""JSON nested deeper is refused before it is parsed; outputs nest at most 50 levels, of up to three each."""

SIZES = {
    "U8": 1, "I8": 1, "BOOL": 1, "U16": 2, "I16": 2, "F16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8,
    "F64": 8,
}  # fmt: skip
"""Bytes per element of the dtypes numpy reads; which of them an op takes is checked later."""


def damaged(path: Path, why: str) -> ProgramError:
    """The error for a file that is no whole safetensors file."""
    return ProgramError(
        "not a readable .safetensors file", where=str(path), why=why,
        remedy="it is truncated, damaged or something else; copy or convert it again",
    )  # fmt: skip


def read(path: str | Path) -> bytes:
    """The bytes of a regular file whose header fits its length.

    Raises:
        ProgramError: it cannot be read, is no regular file, or its header claims another length than it has.
    """
    path = Path(path)
    try:
        # Opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(21, "is a directory", str(path))
            if not stat.S_ISREG(status.st_mode):
                raise damaged(path, "it is a device or a pipe, no regular file")
            size = status.st_size
            start = stream.read(8)
            start += stream.read(_header_length(start, size, path))
            check_header(start, size, path)
            data = start + stream.read(size - len(start))
    except OSError as error:
        raise ProgramError(
            "cannot read the file",
            where=str(path),
            why=error.strerror or str(error),
            remedy="check the path and its permissions",
        ) from error
    if len(data) != size:
        raise damaged(path, f"it had {size} bytes and gave {len(data)}: something is writing to it")
    return data


def _header_length(start: bytes, size: int, path: Path) -> int:
    """The header length is eight bytes anybody may have written; believe it only when the file is that long."""
    if len(start) < 8:
        raise damaged(path, f"the file has {size} bytes")
    if size > LARGEST_FILE:
        raise damaged(path, f"the file has {size} bytes, more than {LARGEST_FILE}")
    (length,) = struct.unpack("<Q", start[:8])
    if length > LARGEST_HEADER or length + 8 > size:
        raise damaged(path, f"a header of {length} bytes in a file of {size}")
    return int(length)


def check_header(data: bytes, size: int, path: Path) -> dict[str, Any]:
    """The safetensors header of a file of ``size`` bytes, its first bytes given.

    Raises:
        ProgramError: not JSON, doubled names, or arrays whose extents are not those of the file.
    """
    length = _header_length(data[:8], size, path)
    try:
        header = bounded_json(data[8 : 8 + length].decode("utf-8"), unique=True)
    except ValueError as error:
        raise damaged(path, f"its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise damaged(path, "its metadata is no object of texts")
    end = 0
    for name, entry in header.items():
        if name != "__metadata__":
            end = max(end, _extent(name, entry, path))
    if length + 8 + end != size:
        raise damaged(path, f"its header describes {length + 8 + end} bytes, it has {size}")
    return header


def _extent(name: str, entry: Any, path: Path) -> int:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise damaged(path, f"bad description of array {name!r:.80}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise damaged(path, f"array {name!r:.80} has dtype {dtype!r:.20}; numpy reads {', '.join(SIZES)}")
    for values, most in ((shape, 8), (offsets, 2)):
        whole = isinstance(values, list) and len(values) <= most and all(type(v) is int and v >= 0 for v in values)
        if not whole:
            raise damaged(path, f"bad description of array {name!r:.80}")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * SIZES[dtype]:
        raise damaged(path, f"the extent of array {name!r:.80} is not that of its shape")
    return int(offsets[1])


def bounded_json(text: str, *, unique: bool = False) -> Any:
    """Parse JSON that is no deeper than any program's, without the constants that are not JSON.

    Args:
        text: what to parse.
        unique: refuse an object that has a name twice, which parsers read differently.

    Raises:
        ValueError: it is not that.

    Example:
        >>> bounded_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    depth = _depth(text)
    if depth > DEEPEST:
        raise ValueError(f"nested {depth} deep, more than {DEEPEST}")
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique if unique else None)


def _depth(text: str) -> int:
    """How deep brackets nest outside strings, in linear time whatever the text is."""
    # Runs of backslashes lose their pairs, then escaped quotes go: every quote left opens or closes a string.
    plain = text.replace("\\\\", "").replace('\\"', "").encode("utf-8", "replace")
    marks = np.frombuffer(plain.translate(None, _REST), np.uint8)
    quotes = marks == ord('"')
    outside = np.bitwise_xor.accumulate(quotes.view(np.uint8)) == 0
    brackets = marks[outside & ~quotes]
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), np.int8(1), np.int8(-1))
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


_REST = bytes(set(range(256)) - set(b'"[]{}'))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return out


__all__ = ["bounded_json", "check_header", "damaged", "read"]
