"""Files made to take much more memory than they are long; each a header no program has, or one that looks like one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from intact8.program.document import FORMAT

WIDE = "\U0001f600"
"""One such character makes Python hold the whole text at four bytes per character."""


def framed(header: bytes) -> bytes:
    """A safetensors file of this header and no arrays."""
    return struct.pack("<Q", len(header)) + header


def in_header(item: str, wide: bool) -> Callable[[int], bytes]:
    """The item, again and again, in the safetensors header itself."""

    def make(size: int) -> bytes:
        start = f'{{"{WIDE if wide else "a"}":['
        return framed((start + ",".join([item] * (size // (len(item) + 1))) + "]}").encode())

    return make


def in_document(item: str, key: str, wide: bool = False) -> Callable[[int], bytes]:
    """The item, again and again, in a list of the program's JSON."""

    def make(size: int) -> bytes:
        again = size // (len(json.dumps(item)) - 1)
        text = f'{{"{WIDE if wide else "recipe"}":"","{key}":[{",".join([item] * again)}]}}'
        metadata = {"format": FORMAT, "version": "1", FORMAT: text}
        return framed(json.dumps({"__metadata__": metadata}, ensure_ascii=False).encode())

    return make


def names(size: int) -> bytes:
    """As many arrays as fit, of no element each."""
    entries = [f'"{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(size // 55)]
    return framed(("{" + ",".join(entries) + "}").encode())


def tensors(size: int) -> bytes:
    """As many tensors as a program may have, and no op."""
    entries = ",".join(f'{{"name":"{i:x}","dtype":"bool","shape":[]}}' for i in range(size // 52))
    text = f'{{"inputs":[],"outputs":[],"structure":0,"tensors":[{entries}],"ops":[]}}'
    return framed(json.dumps({"__metadata__": {"format": FORMAT, "version": "1", FORMAT: text}}).encode())


HOSTILE: dict[str, Callable[[int], bytes]] = {
    **{f"header of {item}": in_header(item, False) for item in ("[]", "{}", '{"":0}', "[0]", "1e9", '"ab"')},
    **{f"wide header of {item}": in_header(item, True) for item in ("{}", '{"":0}', "[0]", '"ab"')},
    **{f"{key} of {item}": in_document(item, key) for key in ("tensors", "ops") for item in ("{}", '{"":0}', "[0]")},
    "wide text of {}": in_document("{}", "ops", True),
    'wide text of {"":0}': in_document('{"":0}', "ops", True),
    "names of arrays": names,
    "tensors without ops": tensors,
}
"""What it is → a function of the wanted size in bytes that gives the file."""
