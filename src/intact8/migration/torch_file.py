"""Files of ``torch.save`` and TorchScript, read without torch: nothing in them is executed.

Quantized tensors are read as integers with scales, zero points and an axis: this needs no quantized dtypes, and works
after torch has dropped them.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from intact8.migration.pickle_machine import Maker, Name, Object, PickleError, PickleMachine, refuse
from intact8.regular_file import bytes_of

Array = npt.NDArray[Any]

STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "QInt8Storage": "i1",
    "QUInt8Storage": "u1",
    "QInt32Storage": "i4",
}
"""Class of a storage → numpy's name of its elements."""

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")

VALUES = (
    *(f"torch.{name}" for name in (*STORAGES, *DTYPES, "qint8", "quint8", "qint32")),
    *(f"torch.{name}" for name in ("strided", "contiguous_format", "preserve_format", "channels_last")),
    *(f"torch.per_{kind}_{form}" for kind in ("tensor", "channel") for form in ("affine", "symmetric")),
    "torch.per_channel_affine_float_qparams",
    "torch.nn.parameter.Parameter",
    "torch.Tensor",
)
"""Names that stand for themselves."""

MOST_DIMENSIONS = 16

LONGEST_TEXT = 1 << 24
"""Bytes of an entry of text."""


class Storage:
    """The memory of tensors; ``data`` may come later than the tensors."""

    def __init__(self, kind: str, count: int, order: Literal["<", ">"]) -> None:
        self.kind, self.count, self.order = kind, count, order
        self.data: memoryview | None = None

    @property
    def bytes(self) -> int:
        """Size of an element."""
        return 2 if self.kind == "bfloat16" else np.dtype(self.kind).itemsize


class StoredTensor:
    """A tensor of a file; its numbers are copied when they are asked for."""

    def __init__(self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    def array(self) -> Array:
        """Return the numbers.

        Raises:
            PickleError: the storage is too small, or is not in the file.
        """
        s, count = self.storage, math.prod(self.shape)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if s.data is None or len(s.data) // s.bytes < s.count:
            raise PickleError("a storage is shorter than it says")
        if count and last >= s.count:
            raise PickleError("a tensor goes beyond the end of its storage")
        kind = np.dtype("u2" if s.kind == "bfloat16" else s.kind).newbyteorder(s.order)
        flat = np.frombuffer(s.data, kind, s.count)
        steps = tuple(step * s.bytes for step in self.strides)
        view = np.lib.stride_tricks.as_strided(flat[self.offset :] if count else flat[:0], self.shape, steps)
        if s.kind == "bfloat16":
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(kind.newbyteorder("="))


class QuantizedTensor(StoredTensor):
    """A tensor of integers with scales and zero points, numbers or tensors, and the axis they belong to."""

    scale: Any
    zero_point: Any
    axis: int

    def parameters(self) -> tuple[Array, Array]:
        """Return scales and zero points, one dimension."""
        pair = [v.array() if isinstance(v, StoredTensor) else np.asarray(v) for v in (self.scale, self.zero_point)]
        return pair[0].astype(np.float64).reshape(-1), pair[1].astype(np.int64).reshape(-1)


def read_torch_file(path: str | Path) -> Any:
    """Return what a file of ``torch.save`` holds: dicts, lists, numbers, texts and stored tensors.

    Raises:
        InputError: it cannot be read: damaged, of another format, or it holds something else.
    """
    return read_torch_bytes(bytes_of(path), str(path))


def read_torch_bytes(content: bytes, where: str) -> Any:
    """Return what :func:`read_torch_file` does, from the content of a file."""
    try:
        if content[:4] == b"PK\x03\x04":
            return Archive(content).read("data.pkl")
        return _read_legacy(content)
    except PickleError as error:
        raise refuse(where, error) from error


# --- zip archives ------------------------------------------------------------------------------------------------
class Archive:
    """A zip archive whose entries are stored as they are, as torch writes them.

    Args:
        content: of the file.
        marker: the entry that is in the archive's folder.

    Raises:
        PickleError: it is damaged, or an entry is compressed.
    """

    def __init__(self, content: bytes, marker: str = "data.pkl") -> None:
        self.content = memoryview(content)
        self.entries = self._directory()
        names = sorted((n for n in self.entries if n.endswith(f"/{marker}")), key=len)
        if not names:
            raise PickleError(f"it is a zip archive without {marker}")
        self.prefix = names[0].removesuffix(marker)
        order = bytes(self.entry("byteorder")) if self.prefix + "byteorder" in self.entries else b"little"
        self.order: Literal["<", ">"] = ">" if order == b"big" else "<"
        self.storages: dict[str, Storage] = {}

    def read(self, name: str, objects: str = "") -> Any:
        """Return the value of a pickle of the archive; ``objects`` as for the machine."""
        machine = PickleMachine(NAMES, lambda key: self._storage(name, key), objects)
        return machine.read(self.entry(name))[0]

    def entry(self, name: str) -> memoryview:
        """Return the bytes of an entry, by its name in the archive's folder."""
        place = self.entries.get(self.prefix + name)
        if place is None:
            raise PickleError(f"the archive has no {name[:100]}")
        if place[0]:
            raise PickleError(f"{name[:100]} is compressed, which torch never does to tensors")
        return self._stored(name, place[1], place[2])

    def text(self, name: str) -> str | None:
        """Return an entry that is text, which may be compressed; None where there is none."""
        method, size, header, packed = self.entries.get(self.prefix + name, (-1, 0, 0, 0))
        if method not in (0, 8) or size > LONGEST_TEXT:
            return None
        raw = bytes(self._stored(name, packed if method else size, header))
        if method:
            try:
                raw = zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, LONGEST_TEXT)
            except zlib.error as error:
                raise PickleError(f"{name[:100]} is damaged: {error}") from error
        return raw.decode("utf-8", "replace")

    def _stored(self, name: str, size: int, header: int) -> memoryview:
        """Return the bytes of an entry as they are in the file."""
        fixed = _unpack("<4s22xHH", self.content, header)
        begin = header + 30 + fixed[1] + fixed[2]
        if fixed[0] != b"PK\x03\x04" or begin + size > len(self.content):
            raise PickleError(f"{name[:100]} is not where the archive says")
        return self.content[begin : begin + size]

    def _storage(self, pickle: str, key: Any) -> Storage:
        kind, number, count = _persistent(key)
        # constants.pkl has storages of its own.
        folder = {"data.pkl": "data", "constants.pkl": "constants"}[pickle]
        full = f"{folder}/{number}"
        if full not in self.storages:
            self.storages[full] = Storage(kind, count, self.order)
            self.storages[full].data = self.entry(full)
        found = self.storages[full]
        if (found.kind, found.count) != (kind, count):
            raise PickleError(f"storage {full[:100]} has two dtypes or sizes")
        return found

    def _directory(self) -> dict[str, tuple[int, int, int, int]]:
        """Return the compression method, size, place and compressed size of every entry."""
        end = bytes(self.content[-65557:]).rfind(b"PK\x05\x06")
        if end < 0:
            raise PickleError("it is a zip archive without a directory: the file is cut off")
        end += max(0, len(self.content) - 65557)
        count, size, start = _unpack("<10xHII", self.content, end)
        if 0xFFFF in (count,) or 0xFFFFFFFF in (size, start):
            (far,) = _unpack("<8xQ", self.content, end - 20)
            count, size, start = _unpack("<32xQQQ", self.content, far)
        found = {}
        at = start
        for _ in range(min(count, len(self.content) // 46)):
            head = _unpack("<4s6xH8xIIHHH8xI", self.content, at)
            magic, method, packed, size, length, extra, comment, header = head
            if magic != b"PK\x01\x02":
                raise PickleError("the directory of the archive is damaged")
            name = bytes(self.content[at + 46 : at + 46 + length]).decode("utf-8", "replace")
            fields = self.content[at + 46 + length : at + 46 + length + extra]
            size, header = _wide(fields, packed, size, header)
            found[name] = (method, size, header, packed)
            at += 46 + length + extra + comment
        return found


def _wide(fields: memoryview, packed: int, size: int, header: int) -> tuple[int, int]:
    """Return size and place of an entry, from its extra fields where they need more than 32 bits."""
    at = 0
    while at + 4 <= len(fields):
        kind, length = _unpack("<HH", fields, at)
        if kind == 1:
            wide = [size == 0xFFFFFFFF, packed == 0xFFFFFFFF, header == 0xFFFFFFFF]
            numbers = iter(_unpack(f"<{sum(wide)}Q", fields, at + 4))
            size, _, header = (next(numbers) if w else v for w, v in zip(wide, (size, packed, header), strict=True))
        at += 4 + length
    return size, header


def _unpack(form: str, data: memoryview, at: int) -> tuple[Any, ...]:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise PickleError("the file is cut off")
    return struct.unpack_from(form, data, at)


# --- the format before zip ---------------------------------------------------------------------------------------
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def _read_legacy(content: bytes) -> Any:
    """Read torch's format of before 1.6: pickles one behind the other, then storages."""
    storages: dict[str, Storage] = {}

    def persistent(key: Any) -> Storage:
        kind, number, count = _persistent(key)
        return storages.setdefault(number, Storage(kind, count, "<"))

    def never(key: Any) -> Any:
        raise PickleError("a storage where none may be")

    header = PickleMachine(NAMES, never)
    magic, at = header.read(content)
    if magic != LEGACY_MAGIC:
        raise PickleError("it is not a file of torch.save")
    _, at = header.read(content, at)
    _, at = header.read(content, at)
    value, at = PickleMachine(NAMES, persistent).read(content, at)
    keys, at = header.read(content, at)
    for key in keys if isinstance(keys, list) else ():
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None:
            raise PickleError("a storage that no tensor names")
        (count,) = _unpack("<q", memoryview(content), at)
        size = count * storage.bytes
        if count != storage.count or at + 8 + size > len(content):
            raise PickleError("a storage has another size than its tensors say")
        storage.data = memoryview(content)[at + 8 : at + 8 + size]
        at += 8 + size
    return value


def _persistent(key: Any) -> tuple[str, str, int]:
    """Return dtype, key and number of elements that a persistent id names."""
    if not (isinstance(key, tuple) and 5 <= len(key) <= 6 and _text(key[0]) == "storage" and isinstance(key[1], Name)):
        raise PickleError("a persistent id that is not a storage")
    kind = STORAGES.get(key[1].text.removeprefix("torch."))
    if kind is None or not isinstance(key[2], (str, bytes)) or not _is_size(key[4]):
        raise PickleError("a storage of an unknown kind")
    if len(key) == 6 and key[5] is not None:
        raise PickleError("a storage that is a view of another one")
    return kind, _text(key[2]), key[4]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


# --- what files name ---------------------------------------------------------------------------------------------
def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > MOST_DIMENSIONS or not all(_is_size(v) for v in value):
        raise PickleError("a shape that is none")
    return value


def _tensor(kind: Callable[..., StoredTensor], arguments: tuple[Any, ...]) -> Any:
    storage, offset, shape, strides = (*arguments, *(None,) * 4)[:4]
    shape, strides = _sizes(shape), _sizes(strides)
    if not isinstance(storage, Storage) or not _is_size(offset) or len(shape) != len(strides):
        raise PickleError("a tensor without storage, shape or strides")
    if math.prod(shape) > storage.count:
        raise PickleError("a tensor has more elements than its storage")
    return kind(storage, offset, shape, strides)


def _rebuild_tensor(arguments: tuple[Any, ...]) -> Any:
    return _tensor(StoredTensor, arguments)


def _rebuild_qtensor(arguments: tuple[Any, ...]) -> Any:
    made: QuantizedTensor = _tensor(QuantizedTensor, arguments[:4])
    how = arguments[4] if len(arguments) > 4 else None
    if not isinstance(how, tuple) or len(how) < 3 or not isinstance(how[0], Name):
        raise PickleError("a quantized tensor without scales")
    per_channel = "per_channel" in how[0].text
    numbers = all(isinstance(v, StoredTensor if per_channel else (int, float)) for v in how[1:3])
    axis = how[3] if per_channel and len(how) > 3 else 0
    if not numbers or type(axis) is not int or not 0 <= axis < max(1, len(made.shape)):
        raise PickleError("a quantized tensor whose scales are none")
    made.scale, made.zero_point, made.axis = how[1], how[2], axis
    return made


def _first(arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], StoredTensor):
        raise PickleError("a parameter without tensor")
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> Any:
    function = arguments[0] if arguments else None
    make = NAMES.get(function.text) if isinstance(function, Name) else None
    if make is None or make is _rebuild_from_type or len(arguments) < 3 or not isinstance(arguments[2], tuple):
        raise PickleError("a tensor of an unknown class")
    return make(arguments[2])


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    pairs = arguments[0] if arguments else []
    if not isinstance(pairs, list):
        raise PickleError("a dict made of what are no pairs")
    found = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise PickleError("a dict made of what are no pairs")
        found[pair[0]] = pair[1]
    return found


def _shape(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    return _sizes(tuple(arguments[0]) if arguments and isinstance(arguments[0], (list, tuple)) else None)


def _nothing(arguments: tuple[Any, ...]) -> None:
    return None


def _list(arguments: tuple[Any, ...]) -> list[Any]:
    if not arguments or not isinstance(arguments[0], list):
        raise PickleError("a list made of what is none")
    return arguments[0]


NAMES: Mapping[str, Maker | None] = {
    **dict.fromkeys(VALUES),
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_qtensor": _rebuild_qtensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.ScriptObject": lambda arguments: Object("torch.ScriptObject"),
    "torch.Size": _shape,
    "torch.device": _nothing,
    "torch.jit._pickle.build_intlist": _list,
    "torch.jit._pickle.build_doublelist": _list,
    "torch.jit._pickle.build_boollist": _list,
    "torch.jit._pickle.build_tensorlist": _list,
    "torch.jit._pickle.restore_type_tag": lambda arguments: arguments[0] if arguments else None,
}
"""Everything a file may name."""

__all__ = ["Archive", "Object", "QuantizedTensor", "StoredTensor", "read_torch_bytes", "read_torch_file"]
