"""Limits of the bytes of a file, from both sides, and what files of others are called."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from intact8.errors import ProgramError
from intact8.program import read as reading
from intact8.program.foreign_formats import OPENING, foreign_format
from intact8.program.read import DEEPEST, LARGEST_HEADER, SIZES, bounded_json, check_header, read

PLACE = Path("x.safetensors")


def whole(header: Any, content: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(content)


def taken(data: bytes, size: int | None = None) -> bool:
    try:
        check_header(data, len(data) if size is None else size, PLACE)
    except ProgramError:
        return False
    return True


def test_the_limits_themselves() -> None:
    assert (LARGEST_HEADER, reading.LARGEST_FILE, DEEPEST, OPENING) == (100_000_000, 1 << 36, 200, 512)
    widths = {name: int(name.strip("UIFBOL") or 8) // 8 for name in SIZES}
    assert widths == SIZES and len(SIZES) == 12


def test_headers_describe_exactly_their_file() -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert taken(whole({"a": entry}, 24)) and taken(whole({})) and taken(whole({"__metadata__": {"k": "v"}}))
    for size in (23, 25):
        assert not taken(whole({"a": entry}, size))
    for key, value in (
        ("dtype", "F31"), ("dtype", 1), ("shape", [2, 4]), ("shape", [6, True]), ("shape", [-2, -3]), ("shape", 6),
        ("shape", [6.0]), ("shape", [1] * 7 + [2, 3]), ("data_offsets", [0, 25]), ("data_offsets", [0]),
        ("data_offsets", [0, 24, 24]), ("data_offsets", [-1, 23]), ("data_offsets", "ab"),
    ):  # fmt: skip
        assert not taken(whole({"a": {**entry, key: value}}, 24)), (key, value)
    assert taken(whole({"a": {**entry, "shape": [1] * 6 + [2, 3]}}, 24))
    assert not taken(whole({"a": {**entry, "more": 1}}, 24)) and not taken(whole({"a": 1}, 24))
    second = {"dtype": "U8", "shape": [], "data_offsets": [24, 25]}
    assert taken(whole({"b": second, "a": entry}, 25)) and not taken(whole({"b": second, "a": entry}, 24))
    for metadata in ([], {"k": 1}, {"k": "v", "n": None}, "text"):
        assert not taken(whole({"__metadata__": metadata}))
    for header in (b"[]", b"{", b"{}x", b"", b'{"a": NaN}', b"\xff{}", b'{"__metadata__": {}, "__metadata__": {}}'):
        assert not taken(whole(header))
    for dtype, size in SIZES.items():
        assert taken(whole({"a": {"dtype": dtype, "shape": [5], "data_offsets": [0, 5 * size]}}, 5 * size))


def test_lengths_of_headers() -> None:
    data = whole({})
    for length in (0, 1, 3, len(data), 1 << 62, LARGEST_HEADER + 1):
        assert not taken(struct.pack("<Q", length) + data[8:])
    for size in (0, 7):
        assert not taken(data[:size])
    for length, size in ((LARGEST_HEADER + 1, 1 << 30), (100, 107)):
        with pytest.raises(ProgramError):
            reading._header_length(struct.pack("<Q", length) + b"{}", size, PLACE)
    for length, size in ((LARGEST_HEADER, 1 << 30), (100, 108), (2, 10)):
        assert reading._header_length(struct.pack("<Q", length) + b"{}", size, PLACE) == length


def test_files_are_read_whole_and_at_the_size_they_must_have(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for data in (whole({}), whole({"a": {"dtype": "U8", "shape": [900], "data_offsets": [0, 900]}}, 900),
                 whole({"__metadata__": {"k": "v" * 2000}})):  # fmt: skip
        path.write_bytes(data)
        assert read(path) == data == read(path, len(data))
        for size in (len(data) - 1, len(data) + 1):
            with pytest.raises(ProgramError, match=f"and had {size} when it was signed"):
                read(path, size)
    path.write_bytes(b"anything")
    assert read(path, 8) == b"anything"


def nested(depth: int, kind: str = "list") -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("kind", ["list", "object"])
def test_nesting(kind: str) -> None:
    assert bounded_json(nested(DEEPEST, kind)) is not None
    with pytest.raises(ValueError, match=f"nested {DEEPEST + 1} deep, more than {DEEPEST}"):
        bounded_json(nested(DEEPEST + 1, kind))


def depth(text: str) -> int:
    deepest = level = 0
    quoted = escaped = False
    for c in text:
        if quoted:
            quoted, escaped = c != '"' or escaped, c == "\\" and not escaped
        elif c in "[{":
            level += 1
        elif c in "]}":
            level -= 1
        else:
            quoted = c == '"'
        deepest = max(deepest, level)
    return deepest


def test_depth_is_counted_outside_of_strings() -> None:
    rng = random.Random(0)
    for _ in range(400):
        value: Any = rng.choice([1, "[[", 'a"]', "\\", '\\"[', "{}\\\\", "é[", []])
        for _ in range(rng.randrange(6)):
            value = rng.choice([[value], {rng.choice(["[", '"', "\\"]): value}, [value, "]", []]])
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        assert reading._depth(text) == depth(text), text
        assert bounded_json(text) == value


def test_integers_of_64_bits() -> None:
    for fits in (0, -1, 10**18, (1 << 63) - 1, -(1 << 63), 1234567890123456789):
        assert bounded_json(f"[{fits}]") == [fits]
    for beyond in (1 << 63, -(1 << 63) - 1, 10**19, 10**25, -(10**300)):
        with pytest.raises(ValueError, match="beyond 64 bits"):
            bounded_json(f'{{"a": {beyond}}}')
    for text in ("0.1234567890123456789012", '"12345678901234567890123"', "1.5", "1e5", "12345678901234567.5"):
        assert bounded_json(text) == json.loads(text)
    for digits in range(1, 25):
        run = "9" * digits
        for text, told in (
            (run, digits >= 19),
            (f"0.{run}", False),
            (f"1.{run}e1", False),
            (f"[1.5,{run}]", digits >= 19),
        ):
            assert reading._long_integers(text) is told, text


def test_json_that_is_none() -> None:
    for bad in ("NaN", "[Infinity]", '"\\ud800"', '{"a": "\\udfff"}', "[1,]", ""):
        with pytest.raises(ValueError):
            bounded_json(bad)
    assert bounded_json('"\\ud83d\\ude00"') == "😀" and bounded_json('"\\u00e9"') == "é"
    assert bounded_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="twice"):
        bounded_json('[{"a": 1, "a": 2}]', unique=True)
    assert bounded_json('{"a": 1, "b": {"a": 2}}', unique=True) == {"a": 1, "b": {"a": 2}}


STRANGERS: list[tuple[bytes, str | None]] = [
    (b"", "an empty file"), (bytes(8) + b"{}", None), (b"\x93NUMPY\x01", "NumPy array"), (b"\x89PNG\r\n", "PNG"),
    (b"\xff\xd8\xff\xe0", "JPEG"), (b"\x89HDF\r\n", "HDF5"), (b"GGUF\x03", "GGUF"), (b"abcdTFL3", "TensorFlow Lite"),
    (b"TFL3abcd", "text"), (b"\x7fELF\x02", "program for this machine"), (b"\x1f\x8b\x08\x00", "gzip"),
    (b"PK\x03\x04" + bytes(26) + b"net/data.pkl", "torch.save"), (b"PK\x03\x04" + bytes(26) + b"a.npy", "npz"),
    (b"PK\x03\x04" + bytes(26) + b"a.txt", "zip archive"), (b"PK\x05\x06", None),
    *((b"\x80" + bytes([n]) + b"}q\x00\x81\x82", "pickle" if 2 <= n <= 5 else None) for n in range(1, 7)),
    (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00", "pickle"), (b"\x80\x02\x00\x00\x00\x00\x00\x00\x7d", None),
    *((b"\x08" + bytes([n]) + b"\x12\x07", "ONNX" if 1 <= n <= 32 else None) for n in (0, 1, 8, 32, 33)),
    *((b"\x08\x08" + bytes([n]) + b"\x07", "ONNX") for n in (0x12, 0x1A, 0x3A, 0x42)), (b"\x08\x08\x13\x07", None),
    (b"hello\n", "a text file"), ("größe".encode(), "a text file"), (b"<xml>", "XML"), (b"\xef\xbb\xbf \n<a>", "XML"),
    (b"hello\x00", None), (b"\xff\xfe", None), (b"h\xff" + b"x" * 600, None), (b"a" * 511 + b"\xc3", "a text file"),
    (b"a" * 508 + b"\xf0\x9f\x98", None), (b"a" * 509 + b"\xf0\x9f\x98", "a text file"), (b"a" * 510 + b"\xff", None),
    (b"a\t\r\n\fb", "a text file"), (b"a\x0bb", None),
]  # fmt: skip


@pytest.mark.parametrize(("start", "what"), STRANGERS, ids=lambda v: repr(v)[:24])
def test_files_of_others(start: bytes, what: str | None) -> None:
    found = foreign_format(start[:OPENING])
    assert found is None if what is None else found is not None and what in found


def test_files_of_one_byte_are_told_without_an_error() -> None:
    for value in range(256):
        foreign_format(bytes([value]))
    assert foreign_format(b"\x08\x08\x12") == "an ONNX model" and foreign_format(b"\x08\x21\x12") != "an ONNX model"
