"""The bytes of a program file: every size is checked before anything is allocated for it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intact8.errors import ProgramError
from intact8.opset.op import Array
from intact8.program.foreign_formats import OPENING, foreign_format
from intact8.regular_file import opened, path_of

from .integrity import damaged, not_signed

LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses longer headers, too."""

LARGEST_FILE = 1 << 36
DEEPEST = 200
"""JSON nested deeper is refused before it is parsed; outputs nest at most 50 levels, of up to three each."""

SIZES = {
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""Bytes per element of the dtypes numpy reads; which of them an op takes is checked later."""

NAMES = {"BOOL": "?", **{name: f"<{name[0].lower()}{size}" for name, size in SIZES.items() if name != "BOOL"}}
"""numpy's name of each."""


def read(path: str | Path, size: int | None = None) -> bytes:
    """Return the bytes of a regular file whose header fits its length.

    Args:
        path: of the file.
        size: bytes it must have; a caller who knows that (from a signature) gets them without any of them being parsed.

    Raises:
        ProgramError: it cannot be read, is no regular file, or its header claims another length than it has.
    """
    path = path_of(path, kind=ProgramError)
    with opened(path, kind=ProgramError) as stream:
        found = os.fstat(stream.fileno()).st_size
        if found > LARGEST_FILE:
            raise damaged(path, f"the file has {found} bytes, more than {LARGEST_FILE}")
        if size is not None and found != size:
            raise not_signed(path, f"it has {found} bytes, and had {size} when it was signed")
        if size is None:
            start = stream.read(OPENING)
            start += stream.read(max(0, 8 + _header_length(start, found, path) - len(start)))
            check_header(start, found, path)
            stream.seek(0)
        data = stream.read(found)  # in one piece from the beginning, which takes no copying
    if len(data) != found:
        raise damaged(path, f"it had {found} bytes and gave {len(data)}: something is writing to it")
    return data


def _header_length(start: bytes, size: int, path: Path) -> int:
    """Return the header's length: eight bytes anybody may have written, believed only when the file is that long."""
    other = foreign_format(start[:OPENING])
    if other is not None:
        raise ProgramError(
            f"{other}, not an intact8 program",
            where=str(path),
            remedy="give a file written by Program.save; intact8.quantize makes a program of a PyTorch model",
        )
    length = int.from_bytes(start[:8], "little")
    if length > LARGEST_HEADER or length + 8 > size:
        raise damaged(path, f"a header of {length} bytes in a file of {size}")
    return length


def check_header(data: bytes, size: int, path: Path) -> dict[str, Any]:
    """Return the safetensors header of a file of ``size`` bytes, its first bytes given.

    Raises:
        ProgramError: not JSON, doubled names, or arrays whose extents are not those of the file.
    """
    length = _header_length(data[:OPENING], size, path)
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


def arrays_in(data: bytes, header: Mapping[str, Any], path: Path) -> dict[str, Array]:
    """Return the arrays of a file: copies that can be written to, as OpenVINO asks of what it shares.

    Args:
        data: of the file.
        header: of :func:`check_header`.
        path: of the file.

    Raises:
        ProgramError: arrays overlap, or bytes between them belong to none.
    """
    start, end = len(data) - _length(header), 0
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    found = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        if first != end:
            raise damaged(path, f"array {name!r:.80} does not begin where the one before it ends")
        end, dtype = last, np.dtype(NAMES[entry["dtype"]])
        array = np.frombuffer(memoryview(data)[start + first : start + last], dtype).copy()
        found[name] = array.reshape(entry["shape"])
    return found


def _length(header: Mapping[str, Any]) -> int:
    """Return the bytes of all arrays."""
    return max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)


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
    value = json.loads(
        text,
        parse_constant=_refuse,
        parse_int=_whole if _long_integers(text) else None,
        object_pairs_hook=_unique if unique else None,
    )
    if "\\u" in text:  # the only way to write half of a character
        _encodable(value)
    return value


def _depth(text: str) -> int:
    """Return how deep brackets nest outside strings, in linear time whatever the text is."""
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


def _long_integers(text: str) -> bool:
    """Return whether 19 digits stand in a row anywhere but behind a decimal point: what an integer beyond 64 bits
    takes."""
    characters = np.frombuffer(b" " + text.encode("utf-8", "replace"), np.uint8)
    run = characters - np.uint8(ord("0")) < 10
    for further in (1, 2, 4, 8, 3):  # runs of 2, 4, 8, 16 and 19
        run = run[:-further] & run[further:]
    starts = np.flatnonzero(run)
    before = characters[starts - 1]
    return bool(((before != ord(".")) & (before - np.uint8(ord("0")) >= 10)).any())


def _whole(digits: str) -> int:
    """Return an integer of 64 bits: none in a program is larger, and many functions of Python and numpy take no
    other."""
    if len(digits) > 20 or not -(1 << 63) <= (value := int(digits)) < 1 << 63:
        raise ValueError(f"the integer {digits:.24} is beyond 64 bits")
    return value


def _encodable(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text holds half of a character (a lone surrogate): {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return out
