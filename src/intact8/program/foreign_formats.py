"""What a file is that is no safetensors file, told from its first bytes."""

from __future__ import annotations

OPENING = 512
"""Bytes from the beginning that are looked at."""

MAGIC = (
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"GGUF", "a GGUF model"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"\x7fELF", "a program for this machine"),
    (0, b"\x1f\x8b\x08", "a gzip archive"),
)
"""Position, bytes, and what has them there."""

ENTRIES = ((b"/data.pkl", "a PyTorch file (torch.save)"), (b".npy", "a NumPy .npz archive"))
"""Names of entries of zip archives, and what has them."""


def foreign_format(start: bytes) -> str | None:
    """Return what the file is whose first bytes are these; None where it may be a safetensors file, or is nothing
    known.

    Example:
        >>> foreign_format(b"PK\\x03\\x04" + bytes(26) + b"net/data.pkl"), foreign_format(bytes(8) + b"{}")
        ('a PyTorch file (torch.save)', None)
    """
    if not start:
        return "an empty file (0 bytes)"
    if start[8:9] == b"{":
        return None
    for place, magic, what in MAGIC:
        if start.startswith(magic, place):
            return what
    if start.startswith(b"PK\x03\x04"):
        return next((what for name, what in ENTRIES if name in start), "a zip archive")
    if start[4:8] == bytes(4) and start[2:3] != b"\x95":
        return None  # the length of a header, and damage behind it
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle (an old torch.save)"
    if start[:1] == b"\x08" and b"\x01" <= start[1:2] <= b"\x20" and start[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x42"):
        return "an ONNX model"
    return _text(start)


def _text(start: bytes) -> str | None:
    try:
        words = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(start) < OPENING or error.start < OPENING - 3:  # else a character is cut off there
            return None
        words = start[: error.start].decode("utf-8")
    words = words.removeprefix("\ufeff")
    if not all(c.isprintable() or c in "\t\r\n\f" for c in words):
        return None
    if words.lstrip(" \r\n\t").startswith("<"):
        return "an XML or HTML file (OpenVINO's models are XML)"
    return "a text file"
