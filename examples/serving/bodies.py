"""Bodies of requests as arrays. Sizes are compared with the program's before anything is decoded or decompressed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intact8.engines.binding import bind
from intact8.errors import InputError
from intact8.program.program import Program

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"
LARGEST_BODY = 64 << 20
"""Bytes, whatever the program."""
LARGEST_JSON = 4 << 20
"""Parsing holds everything else up for a twentieth of a second per megabyte; larger inputs come as .npy."""
HEADER = 1 << 10
"""Bytes of a .npy header, and of what describes an entry of an archive."""
DIGITS = 32
"""Characters of a number in JSON, with what separates it from the next."""
JSON_MEMORY = 24
"""Memory that parsed JSON takes at most, per byte of it: "[]," becomes a list of 56 bytes and a reference."""

HEADER_TEXT = re.compile(
    rb"\s*\{\s*'descr'\s*:\s*'(?P<descr>[<>|=]?[A-Za-z]\d{0,3})'\s*,\s*'fortran_order'\s*:\s*(?P<fortran>True|False)"
    rb"\s*,\s*'shape'\s*:\s*\((?P<shape>(?:\s*\d+\s*,)*\s*\d*\s*)\)\s*,?\s*\}\s*"
)
"""A header of a .npy file. numpy reads it with ``ast.literal_eval``, which fails now and then while other threads parse
(CPython's issue 106905), and compiles what strangers send."""


class TooLarge(Exception):
    """The body exceeds what the program can take."""


@dataclass(frozen=True)
class Limits:
    """What a program takes at most, of ``most`` samples.

    Attributes:
        program: the program.
        most: samples.
        arrays: input → bytes of its array.
        elements: numbers in all inputs.
    """

    program: Program
    most: int
    arrays: dict[str, int]
    elements: int

    @staticmethod
    def of(program: Program, most: int) -> Limits:
        """The limits of ``program``. Named dimensions without a limit leave LARGEST_BODY as the only one."""
        sizes: dict[str, int] = {}
        elements = 0
        for name in program.inputs:
            tensor = program.tensors[name]
            ends = [most if d is None else program.dimensions[d][1] if isinstance(d, str) else d for d in tensor.shape]
            count = LARGEST_BODY if None in ends else math.prod(d for d in ends if d is not None)
            sizes[name] = min(count * np.dtype(tensor.dtype).itemsize, LARGEST_BODY)
            elements += count
        return Limits(program, most, sizes, elements)

    def body(self, kind: str) -> int:
        """Bytes of a body."""
        if kind == JSON:
            return min(LARGEST_JSON, self.elements * DIGITS + HEADER * len(self.arrays))
        return min(LARGEST_BODY, sum(self.arrays.values()) + 2 * HEADER * len(self.arrays))


def memory(body: bytes, kind: str, limits: Limits) -> int:
    """Bytes that decoding a body takes beside it.

    Raises:
        InputError: no archive.
        TooLarge: an archive that would become larger than the program takes.
    """
    if kind != NPZ:
        return len(body) * JSON_MEMORY if kind == JSON else 0
    with opened(body, limits) as files:
        return sum(entry.file_size for entry in files.infolist())


def decode(body: bytes, kind: str, limits: Limits, dynamic: bool) -> dict[str, np.ndarray]:
    """Inputs by name, checked against the program before they share a batch with other requests'.

    Args:
        body: of the request.
        kind: its content type.
        limits: of the program.
        dynamic: whether requests are batched, so that every input has one row per sample.

    Raises:
        InputError: whatever is wrong with the body.
        TooLarge: an array, or an archive, larger than the program takes.
    """
    program = limits.program
    if kind == NPY:
        given = {program.inputs[0]: array(body)}
    elif kind == NPZ:
        given = archive(body, limits)
    elif kind == JSON:
        given = numbers(body, program)
    else:
        raise InputError(f"content-type {kind!r:.80} is not known", remedy=f"send {NPY}, {NPZ} or {JSON}")
    if set(given) != set(program.inputs):
        raise InputError(f"got inputs {sorted(given)!r:.200}", remedy=f"send {', '.join(program.inputs)}")
    sizes = {len(x) if x.ndim else 0 for x in given.values()}
    if dynamic and (len(sizes) > 1 or not 1 <= max(sizes) <= limits.most):
        raise InputError(f"got {sorted(sizes)} samples", remedy=f"send 1 to {limits.most}, of each input")
    arrays = bind(program, (), given)  # dtypes, shapes, NaN, indices outside a table
    for name, x in arrays.items():
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise InputError("holds infinity", where=name, remedy="repair the data")
    return arrays


def array(body: bytes) -> np.ndarray:
    """The array of a .npy file, which stays where it is.

    Raises:
        InputError: it is none, or not as long as its header says.
    """
    version, before = body[6:8], 12 if body[6:8] == b"\x02\x00" else 10
    if body[:6] != b"\x93NUMPY" or version not in (b"\x01\x00", b"\x02\x00"):
        raise InputError("no .npy file of version 1 or 2", remedy="write it with numpy.save")
    begin = before + int.from_bytes(body[8:before], "little")
    text = body[before:begin] if before < begin <= min(len(body), HEADER) else b""
    found = HEADER_TEXT.fullmatch(text)
    if found is None:
        raise InputError("no .npy header", remedy="write it with numpy.save")
    shape = tuple(int(size) for size in found["shape"].split(b",") if size.strip())
    try:
        dtype = np.dtype(found["descr"].decode())
    except TypeError as error:
        raise InputError("no .npy header", why=f"{error!s:.200}", remedy="write it with numpy.save") from error
    if dtype.hasobject or dtype.kind not in "biuf":
        raise InputError(f"dtype {dtype!s:.80}", why="allow_pickle is off", remedy="send numbers")
    wanted, left = math.prod(shape) * dtype.itemsize, len(body) - begin
    if not all(size <= len(body) for size in shape) or wanted != left:
        raise InputError(f"the header says {wanted} bytes, {left} follow", remedy="write it with numpy.save")
    return np.frombuffer(body, dtype, offset=begin).reshape(shape, order="F" if found["fortran"] == b"True" else "C")


def archive(body: bytes, limits: Limits) -> dict[str, np.ndarray]:
    """The arrays of an .npz file.

    Raises:
        InputError: it is none, or holds something else.
        TooLarge: an entry is larger than its input may be.
    """
    with opened(body, limits) as files:
        return {entry.filename.removesuffix(".npy"): array(_read(files, entry)) for entry in files.infolist()}


def _read(files: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with files.open(entry) as stream:
        data = stream.read(entry.file_size)  # without a number it would decompress all, and then cut it
        return data + stream.read(1)  # the end, where the checksum is compared


@contextlib.contextmanager
def opened(body: bytes, limits: Limits) -> Iterator[zipfile.ZipFile]:
    """An .npz file with an entry per input, none larger than the program takes.

    Raises:
        InputError, TooLarge: as for :func:`archive`.
    """
    largest = {f"{name}.npy": size + HEADER for name, size in limits.arrays.items()}
    _check_directory(body, len(largest))
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as files:
            names = sorted(entry.filename for entry in files.infolist())
            if names != sorted(largest):
                raise InputError(f"got inputs {names!r:.200}", remedy=f"send {', '.join(limits.arrays)}")
            for entry in files.infolist():
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise InputError("an unusual compression", remedy="write it with numpy.savez")
                if entry.file_size > largest[entry.filename]:
                    raise TooLarge(
                        f"{entry.filename} has {entry.file_size} bytes, not at most {largest[entry.filename]}"
                    )
            yield files
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise InputError("no .npz archive", why=f"{error!s:.200}", remedy="write it with numpy.savez") from error


def _check_directory(body: bytes, entries: int) -> None:
    """zipfile makes an object of every entry the directory lists, so their number is looked at first."""
    end = body[-22:]
    if len(end) < 22 or end[:4] != b"PK\x05\x06" or body[-42:-38] == b"PK\x06\x07":
        raise InputError("no .npz archive", remedy="write it with numpy.savez")
    count, size = struct.unpack("<HI", end[10:16])
    if count != entries or size > entries * HEADER:
        raise InputError(f"an archive of {count} entries", remedy=f"send {entries}")


def numbers(body: bytes, program: Program) -> dict[str, np.ndarray]:
    """The arrays of ``{"inputs": {name: nested lists}}``.

    Raises:
        InputError: of another form.
    """
    try:
        values: Any = json.loads(body)["inputs"]
        return {
            name: np.asarray(value, program.tensors[name].dtype if name in program.inputs else None)
            for name, value in values.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, IndexError) as error:
        raise InputError(
            'no JSON of the form {"inputs": {name: [...]}}', why=f"{error!s:.200}",
            remedy=f"send numbers for {', '.join(program.inputs)}",
        ) from error  # fmt: skip


def encoded(outputs: Sequence[np.ndarray], kind: str) -> tuple[bytes, str]:
    """Outputs in the form the inputs came in, and its content type; several outputs of a .npy request come as .npz."""
    if kind == JSON:
        return json.dumps({"outputs": [y.tolist() for y in outputs]}).encode(), JSON
    stream = io.BytesIO()
    if kind == NPY and len(outputs) == 1:
        np.save(stream, outputs[0], allow_pickle=False)
        return stream.getvalue(), NPY
    np.savez(stream, *outputs)
    return stream.getvalue(), NPZ
