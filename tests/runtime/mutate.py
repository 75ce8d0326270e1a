"""Mutations of a program file, seeded."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.program.document import FORMAT

ODD: list[Any] = [
    None, True, -1, 0, 1, 255, 256, 1 << 31, 1 << 63, 1 << 200, -0.5, 1e308, "", "x", "\ud800", [], [[]], {}, {"a": 1},
    [0] * 9, "inf", {"float": "inf"}, "../../etc/passwd", "__class__",
]  # fmt: skip


def mutations(whole: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` files: bits flipped, parts cut, doubled or overwritten, JSON values replaced under a right header.

    They are of a format without checksum: one with it is refused before what is mutated here is looked at.
    """
    whole = unsealed(whole)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        kind = int(rng.integers(8))
        end = header_length(whole) + 8
        if kind == 0:
            yield flipped(whole, rng, 0, len(whole))
        elif kind == 1:
            yield flipped(whole, rng, 0, end)
        elif kind == 2:
            yield flipped(whole, rng, end, len(whole))
        elif kind == 3:
            yield cut(whole, rng)
        elif kind == 4:
            yield flipped(rewritten(whole, rng), rng, end, len(whole))
        else:
            yield rewritten(whole, rng)


def one_bit(whole: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` files with one bit flipped: a third anywhere, a third in the first 400 bytes, a third in the header."""
    rng = np.random.default_rng(seed)
    ends = (len(whole), min(400, len(whole)), 8 + header_length(whole))
    data = bytearray(whole)
    for i in range(count):
        place, bit = int(rng.integers(ends[i % 3])), 1 << int(rng.integers(8))
        data[place] ^= bit
        yield bytes(data)
        data[place] ^= bit


def unsealed(whole: bytes, **metadata: str) -> bytes:
    """The same program as a file of format 2, which had no checksum, with other metadata where given."""
    length = header_length(whole)
    header = json.loads(whole[8 : 8 + length])
    header["__metadata__"].pop("checksum", None)
    header["__metadata__"] |= {"version": "2", **metadata}
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + whole[8 + length :]


def header_length(whole: bytes) -> int:
    return int(struct.unpack("<Q", whole[:8])[0])


def flipped(whole: bytes, rng: np.random.Generator, start: int, end: int) -> bytes:
    """Up to three bits of the bytes from ``start`` to ``end``, as far as there are any, flipped."""
    data = bytearray(whole)
    for _ in range(int(rng.integers(1, 4))):
        data[min(int(rng.integers(start, max(end, start + 1))), len(data) - 1)] ^= 1 << int(rng.integers(8))
    return bytes(data)


def cut(whole: bytes, rng: np.random.Generator) -> bytes:
    a, b = sorted(int(v) for v in rng.integers(0, len(whole), 2))
    choice = int(rng.integers(4))
    if choice == 0:
        return whole[:a]
    if choice == 1:
        return whole[:a] + whole[b:]
    if choice == 2:
        return whole[:b] + whole[a:]
    return whole[:a] + rng.bytes(min(b - a, 64)) + whole[min(b, a + 64) :]


def rewritten(whole: bytes, rng: np.random.Generator) -> bytes:
    """Values of the JSON changed, the header's length right again: what gets past the file's own checks."""
    length = header_length(whole)
    header = json.loads(whole[8 : 8 + length])
    if rng.integers(4) == 0:
        target: Any = header
        change(target, rng)
    else:
        document = json.loads(header["__metadata__"][FORMAT])
        for _ in range(int(rng.integers(1, 3))):
            # Mostly where most of a document is.
            part = ("ops", "tensors", "ops", "")[int(rng.integers(4))]
            change(document[part] if isinstance(document.get(part), list) else document, rng)
        header["__metadata__"][FORMAT] = json.dumps(document)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + whole[8 + length :]


def change(node: Any, rng: np.random.Generator) -> None:
    """Replace, remove, double or nudge one value somewhere below ``node``."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        child = node[key]
        if isinstance(child, dict | list) and child and rng.integers(5):
            node = child
            continue
        choice = int(rng.integers(6))
        if choice == 0:
            del node[key]
        elif choice in (1, 4) and isinstance(child, int | float):
            node[key] = child + int(rng.integers(-2, 3)) if choice == 1 else child * float(rng.uniform(0, 2))
        elif choice == 2 and isinstance(node, list):
            node.append(copy.deepcopy(child))
        elif choice == 5:
            # A value that stands elsewhere in the same place: of the right type, and mostly of the wrong meaning.
            node[key] = copy.deepcopy(node[keys[int(rng.integers(len(keys)))]])
        else:
            node[key] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
        return
