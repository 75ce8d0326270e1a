"""One .safetensors file per program: arrays as tensors ``op/role``, the program as JSON in the header's metadata.

Written under a temporary name and renamed, so that a file is complete or not there. Read with every size checked
first; a file is data, no code in it runs. The format is described in docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from intact.errors import ProgramError

from .certify import recheck
from .check import check
from .document import FORMAT, VERSION, dumps, from_document, to_document
from .ops import Array
from .program import Program

LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses longer headers, too."""


def save(program: Program, path: str | Path) -> Path:
    """Check ``program`` and write it to ``path``, replacing what is there, all at once or not at all.

    Returns:
        The path.

    Raises:
        ProgramError: the program breaks the specification, or the path cannot be written.
    """
    check(program)
    path = Path(path)
    metadata = {"format": FORMAT, "version": str(VERSION), "intact": dumps(to_document(program))}
    if sum(len(v.encode()) for v in metadata.values()) > LARGEST_HEADER // 2:
        raise ProgramError(f"the program needs a header of more than {LARGEST_HEADER} bytes", where=str(path),
                           remedy="split the network")  # fmt: skip
    data = _ordered(serialize(arrays_by_name(program), metadata=metadata))
    try:
        _write(path, data)
    except OSError as error:
        raise ProgramError(
            "cannot write the file", where=str(path), why=_reason(path, error), remedy=_remedy(path)
        ) from error
    return path


def arrays_by_name(program: Program) -> dict[str, Array]:
    """Every array of the program under ``op/role``, contiguous and little-endian."""
    return {
        f"{op.name}/{role}": np.array(array, array.dtype.newbyteorder("<"), order="C", copy=None)
        for op in program.ops
        for role, array in op.arrays.items()
    }


def _ordered(data: bytes) -> bytes:
    """The same file with its header in sorted order: safetensors writes metadata in random order, and equal programs
    should be equal files."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.dumps(
        json.loads(data[8 : 8 + length]), sort_keys=True, ensure_ascii=False, separators=(",", ":")
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _write(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise IsADirectoryError(21, "is a directory", str(path))
    # Not tempfile: its files are private to the user, this one gets what the umask allows.
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(folder: Path) -> None:
    """The rename itself reaches the disk. Windows has no handle on folders, and needs none."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(path: Path, error: OSError) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    return error.strerror or str(error)


def _remedy(path: Path) -> str:
    if path.is_dir():
        return "give a file name inside it"
    return "create the folder, free space or choose a path you may write to"


def load(path: str | Path) -> Program:
    """Read, check and recheck the certificates of a file written by :func:`save`.

    Raises:
        ProgramError: not a program, truncated, corrupt, of a newer version, or its certificates do not hold.
    """
    path = Path(path)
    try:
        _check_sizes(path)
        with safe_open(path, framework="numpy") as file:
            document = _document(file.metadata() or {}, path)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise ProgramError(
            "cannot read the file",
            where=str(path),
            why=error.strerror or str(error),
            remedy="check the path and its permissions",
        ) from error
    try:
        program = from_document(document, arrays)
        check(program)
        recheck(program)
    except ProgramError as error:
        raise ProgramError(
            error.what, where=f"{path}: {error.where}" if error.where else str(path), why=error.why, remedy=error.remedy
        ) from error
    return program


def _damaged(path: Path, why: str) -> ProgramError:
    return ProgramError(
        "not a readable .safetensors file", where=str(path), why=why,
        remedy="it is truncated, damaged or something else; copy or convert it again",
    )  # fmt: skip


def _check_sizes(path: Path) -> None:
    """The header length is eight bytes anybody may have written; believe it only when the file is that long."""
    size = path.stat().st_size
    if path.is_dir():
        raise IsADirectoryError(21, "is a directory", str(path))
    with open(path, "rb") as stream:
        start = stream.read(8)
    if len(start) < 8:
        raise _damaged(path, f"the file has {size} bytes")
    (length,) = struct.unpack("<Q", start)
    if length > LARGEST_HEADER or length + 8 > size:
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")


def _document(metadata: dict[str, str], path: Path) -> Any:
    if metadata.get("format") != FORMAT or "intact" not in metadata:
        raise ProgramError(
            "a .safetensors file, but not an intact program", where=str(path),
            why=f"its metadata holds {', '.join(sorted(metadata)) or 'nothing'}",
            remedy="give a file written by Program.save",
        )  # fmt: skip
    version = metadata.get("version", "")
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10 and int(version) >= 1):
        raise ProgramError(f"the format version is {version!r:.40}", where=str(path), remedy="convert the model again")
    if int(version) > VERSION:
        raise ProgramError(
            f"written by a newer intact (format {version}), this reads up to {VERSION}", where=str(path),
            remedy="upgrade: pip install --upgrade intact",
        )  # fmt: skip
    try:
        return json.loads(metadata["intact"], parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProgramError(
            "the program in the header is not valid JSON",
            where=str(path),
            why=str(error),
            remedy="convert the model again",
        ) from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def digest(program: Program) -> str:
    """SHA-256, hex, of what the program computes: everything but ``provenance``, so the same network hashes the same.

    Example:
        >>> from intact.program.program import Program
        >>> digest(Program({}, (), (), ())) == digest(Program({}, (), (), (), provenance={"created": "today"}))
        True
    """
    document = to_document(program)
    del document["provenance"]
    total = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    for name, array in sorted(arrays_by_name(program).items()):
        total.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        total.update(array.tobytes())
    return total.hexdigest()


__all__ = ["digest", "load", "save"]
