"""Mutations of a program file, seeded; and what must hold of a mutated file that is accepted."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from intact.program.certify import recheck
from intact.program.check import check
from intact.program.document import from_document, to_document
from intact.program.file import arrays_by_name, digest
from intact.program.program import Program

ODD: list[Any] = [
    None, True, -1, 0, 1, 255, 256, 1 << 31, 1 << 63, 1 << 200, -0.5, 1e308, "", "x", "\ud800", [], [[]], {}, {"a": 1},
    [0] * 9, "inf", {"float": "inf"}, "../../etc/passwd", "__class__",
]  # fmt: skip


def mutations(whole: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` files: bits flipped, parts cut, doubled or overwritten, JSON values replaced under a right header."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        kind = int(rng.integers(6))
        if kind == 0:
            yield flipped(whole, rng, len(whole))
        elif kind == 1:
            yield flipped(whole, rng, header_length(whole) + 8)
        elif kind == 2:
            yield cut(whole, rng)
        else:
            yield rewritten(whole, rng)


def header_length(whole: bytes) -> int:
    return int(struct.unpack("<Q", whole[:8])[0])


def flipped(whole: bytes, rng: np.random.Generator, end: int) -> bytes:
    data = bytearray(whole)
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
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
        document = json.loads(header["__metadata__"]["intact"])
        for _ in range(int(rng.integers(1, 3))):
            # Mostly where most of a document is.
            part = ("ops", "tensors", "ops", "")[int(rng.integers(4))]
            change(document[part] if isinstance(document.get(part), list) else document, rng)
        header["__metadata__"]["intact"] = json.dumps(document)
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
        choice = int(rng.integers(4))
        if choice == 0:
            del node[key]
        elif choice == 1 and isinstance(child, int | float):
            node[key] = child + int(rng.integers(-2, 3))
        elif choice == 2 and isinstance(node, list):
            node.append(copy.deepcopy(child))
        else:
            node[key] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
        return


def accepted_is_sound(program: Program) -> None:
    """An accepted program passes the checks again and comes back from its own document as it is."""
    check(program)
    recheck(program)
    golden = {} if program.golden is None else program.golden.arrays()
    again = from_document(json.loads(json.dumps(to_document(program))), {**arrays_by_name(program), **golden})
    assert digest(again) == digest(program)
