"""One .safetensors file per program: arrays as tensors ``op/role``, the program as JSON in the header's metadata.

Written under a temporary name and renamed, so that a file is complete or not there. Read with every size checked
first, then the checksum over every byte; a file is data, no code in it runs. The format is described in docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as serialize

from intact8 import late_binding as late
from intact8.atomic_write import write_atomically
from intact8.errors import ProgramError
from intact8.opset.op import Array
from intact8.opset.violation import Violation
from intact8.regular_file import path_of, unwritable

from . import integrity
from .certify import with_proofs
from .check import check
from .document import FORMAT, VERSION, dumps, from_document, lowest_version, to_document
from .integrity import damaged
from .packed_weights import KEY, SINCE, Shapes, in_bytes, in_four_bits
from .program import Program
from .read import LARGEST_HEADER, arrays_in, bounded_json, check_header, read
from .recheck import recheck
from .signing import Claim, claimed

UNSEALED = "the file has no checksum (it is of format {}): damage in it cannot be noticed; load and save it again"


PLAN = "plan"
"""Entry of ``provenance`` with the plan for the C API, which readers without it pass over."""


def save(program: Program, path: str | Path, *, plan: bool | Sequence[Mapping[str, int]] = False) -> Path:
    """Check ``program`` and write it to ``path``, replacing what is there, all at once or not at all.

    Args:
        program: what to write.
        path: of the file.
        plan: store the native engine's plan of one sample, too, or plans of given sizes, see
            :mod:`intact8.engines.native.stored_plan`.

    Returns:
        The path.

    Raises:
        ProgramError: the program breaks the specification, or the path cannot be written.
        EngineError: the native engine has no plan of fixed sizes for it.
    """
    check(program)
    path = path_of(path, kind=ProgramError)
    golden = {} if program.golden is None else program.golden.arrays()
    stored, shapes = in_four_bits(arrays_by_name(program))
    content = serialize({**stored, **golden})
    provenance = {key: value for key, value in program.provenance.items() if key != PLAN}
    if plan:
        provenance[PLAN] = late.call("stored_plan", program, _places(content), shapes, plan)
    program = replace(program, provenance=provenance)
    version = max(lowest_version(program), SINCE if shapes else 0)
    metadata = {"format": FORMAT, "version": str(version), FORMAT: _text(program, shapes)}
    if sum(len(v.encode()) for v in metadata.values()) > LARGEST_HEADER // 2:
        raise ProgramError(
            f"the program needs a header of more than {LARGEST_HEADER} bytes",
            where=str(path),
            remedy="split the network",
        )
    data = integrity.seal(_ordered(content, metadata))
    try:
        write_atomically(path, data)
    except OSError as error:
        raise unwritable(path, "the file", ProgramError, error) from error
    return path


def arrays_by_name(program: Program) -> dict[str, Array]:
    """Every array of the program under ``op/role``, contiguous and little-endian."""
    return {
        f"{op.name}/{role}": np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        for op in program.ops
        for role, array in op.arrays.items()
    }


def _text(program: Program, packed: Shapes) -> str:
    text = dumps({**to_document(program), **({KEY: packed} if packed else {})})
    try:
        text.encode()
        bounded_json(text)
    except ValueError as error:
        raise ProgramError(
            "the program holds a value that could not be read again",
            why=str(error),
            remedy="keep names, provenance and attributes plain",
        ) from error
    return text


def _places(data: bytes) -> dict[str, int]:
    """Return the offset of every array among the arrays of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    return {name: entry["data_offsets"][0] for name, entry in json.loads(data[8 : 8 + length]).items()}


def _ordered(data: bytes, metadata: dict[str, str]) -> bytes:
    """Return the same file with metadata, its header in sorted order, and room for the checksum in front: safetensors
    writes metadata in random order, and equal programs should be equal files."""
    (length,) = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8 : 8 + length])
    metadata = {integrity.KEY: integrity.BLANK, **dict(sorted(metadata.items()))}
    ordered = {"__metadata__": metadata, **dict(sorted(entries.items()))}
    header = json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def load(path: str | Path, public_key: str | Path | None = None, expect: str | None = None) -> Program:
    """Read, check and recheck the certificates of a file written by :func:`save`.

    Args:
        path: of the file.
        public_key: file of an Ed25519 public key (PEM); the file's detached signature is then demanded and verified
            before anything is read from it. None: what the environment variable ``INTACT8_PUBLIC_KEY`` names, if it is
            set.
        expect: ``"NAME"`` or ``"NAME@N"``: the name that must have been signed, and its lowest version.

    Raises:
        ProgramError: not a program, damaged, of a newer version, not signed as demanded, or its certificates do not
            hold.
    """
    return opened(path, public_key, expect)[0]


def opened(
    path: str | Path, public_key: str | Path | None = None, expect: str | None = None
) -> tuple[Program, Claim | None]:
    """Return the program of a file, and what its signature says where one was demanded. As :func:`load`."""
    claim = claimed(path, public_key, expect)
    data = read(path, None if claim is None else claim.size)
    if claim is None:
        return parse(data, path), None
    claim.verify(data)
    program = parse(data, path)
    return with_proofs(replace(program, remarks=(*program.remarks, *claim.remarks)), program), claim


def parse(data: bytes, path: str | Path) -> Program:
    """Return the program in the bytes of a file. The path is only what errors call it.

    Bytes and not a mapped file: what another process does to the file meanwhile cannot reach this one.

    Raises:
        ProgramError: as for :func:`load`.
    """
    path = Path(path)
    header = check_header(data, len(data), path)
    checksum = integrity.sealed(data, path)
    document, remarks = _document(header.get("__metadata__", {}), bool(checksum), path)
    arrays = arrays_in(data, header, path)
    try:
        if isinstance(document, dict):
            arrays = in_bytes(arrays, document.pop(KEY, {}))
    except Violation as violation:
        raise damaged(path, str(violation)) from violation
    try:
        program = replace(from_document(document, arrays), remarks=remarks)
        check(program)
        recheck(program)
    except ProgramError as error:
        raise ProgramError(
            error.what, where=f"{path}: {error.where}" if error.where else str(path), why=error.why, remedy=error.remedy
        ) from error
    vars(program)["_identity"] = checksum
    return program


def _document(metadata: dict[str, str], sealed: bool, path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the program's JSON, and what should be known about the file."""
    if metadata.get("format") != FORMAT or FORMAT not in metadata:
        raise ProgramError(
            "a .safetensors file, but not an intact8 program",
            where=str(path),
            why=f"its metadata holds {', '.join(sorted(metadata))[:200] or 'nothing'}",
            remedy="give a file written by Program.save",
        )
    version = _version(metadata.get("version", ""), path)
    _entries(metadata, version, sealed, path)
    try:
        document = bounded_json(metadata[FORMAT], unique=True)
    except ValueError as error:
        raise ProgramError(
            "the program in the header is not valid JSON",
            where=str(path),
            why=str(error),
            remedy="convert the model again",
        ) from error
    return document, () if sealed else (UNSEALED.format(version),)


def _version(text: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) >= 1):
        raise ProgramError(f"the format version is {text!r:.40}", where=str(path), remedy="convert the model again")
    if int(text) > VERSION:
        raise ProgramError(
            f"written by a newer intact8 (format {text}), this reads up to {VERSION}",
            where=str(path),
            remedy="upgrade: pip install --upgrade intact8",
        )
    return int(text)


def _entries(metadata: dict[str, str], version: int, sealed: bool, path: Path) -> None:
    """Every entry of the metadata is one of its version, and the checksum is where it is looked for.

    So a bit that flips in the checksum's name, or in the version, does not make a file without checksum of this one.
    """
    known = {"format", "version", FORMAT, *((integrity.KEY,) if version >= integrity.SINCE else ())}
    unknown = sorted(set(metadata) - known)
    if unknown:
        raise damaged(path, f"its metadata holds {unknown[0]!r:.60}, which format {version} does not know")
    if version >= integrity.SINCE and not sealed:
        raise damaged(path, f"it is of format {version} and has no checksum in its place")


def digest(program: Program) -> str:
    """Return SHA-256, hex, of what the program computes (no ``provenance``, no ``golden``): same network, same hash.

    Example:
        >>> from intact8.program.program import Program
        >>> digest(Program({}, (), (), ())) == digest(Program({}, (), (), (), provenance={"created": "today"}))
        True
    """
    document = to_document(program)
    del document["provenance"]
    document.pop("golden", None)  # follows from the rest
    total = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    for name, array in sorted(arrays_by_name(program).items()):
        total.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()


def identity(program: Program) -> str:
    """Return what tells loaded programs apart in caches, hex: the checksum of the file, which reading it has made
    already, or the digest of a program from a file without one."""
    known: dict[str, str] = vars(program)
    if not known.get("_identity"):
        known["_identity"] = digest(program)
    return known["_identity"]


__all__ = ["digest", "identity", "load", "opened", "parse", "read", "save"]
