"""ATen → operations: Fourier transforms of real signals; complex results are kept as real and imaginary parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intact8.capture.aten_call import COMPLEX, HANDLERS, Call, Complex, Value, handles
from intact8.capture.ops_index import gather
from intact8.capture.ops_shape import permuted

MOVES = (
    "transpose",
    "permute",
    "view",
    "reshape",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "narrow",
    "expand",
    "flip",
)
"""Operators that treat both parts alike."""


def moved(c: Call) -> Complex:
    """Record for each part what an operator does to both."""
    handler = HANDLERS[c.op]
    real, imag = (handler(replace(c, args={**c.args, "self": part})) for part in c["self"])
    return Complex(real, imag)


def products(c: Call, x: Value, waves: Tensor) -> Complex:
    """Record the products of the last dimension with the real and the imaginary part of a known matrix."""
    out = (*c.shape(x)[:-1], waves.shape[1])
    real, imag = (
        c.emit("matmul", x, part.contiguous(), out=out, out_dtype="float32") for part in (waves.real, waves.imag)
    )
    return Complex(real, imag)


@handles("fft_rfft")
def rfft(c: Call) -> Complex:
    """Record the transform of a signal along its last dimension."""
    x = c.value(c["self"])
    axis = len(c.shape(x)) - 1
    (size,) = c.static(c.shape(x)[axis])
    if c.axis(c["dim"], x) != axis or c["n"] not in (None, size):
        raise c.error("a Fourier transform of another dimension or length", remedy="transform the whole last dimension")
    return products(c, x, torch.fft.rfft(torch.eye(size), norm=c["norm"]))


@handles("stft")
def stft(c: Call) -> Any:
    """Record a short-time transform: windows as a gather, and their transforms."""
    x, size = c.value(c["self"]), c["n_fft"]
    if not isinstance(c["window"], (Tensor, type(None))):
        raise c.error("a window that the network computes", remedy="use one that is known, such as torch.hann_window")
    (length,) = c.static(c.shape(x)[-1])
    hop = c["hop_length"] or size // 4
    starts = torch.arange(0, length - size + 1, hop)
    frames = gather(c, x, len(c.shape(x)) - 1, starts[:, None] + torch.arange(size))
    how = {
        "win_length": c["win_length"],
        "window": c["window"],
        "normalized": c["normalized"],
        "onesided": c["onesided"],
    }
    waves = torch.stft(torch.eye(size), size, size, center=False, return_complex=True, **how)[..., 0]
    rank = len(c.shape(frames))
    both = products(c, frames, waves)
    real, imag = (permuted(c, part, [*range(rank - 2), rank - 1, rank - 2]) for part in both)
    spectrum = Complex(real, imag)
    return spectrum if c["return_complex"] else as_real(replace(c, args={"self": spectrum}))


def as_real(c: Call) -> Value:
    """Record both parts side by side, in a new last dimension."""
    thin = (*c.out_shape[:-1], 1)
    parts = [c.reshape(part, thin) for part in c["self"]]
    return c.emit("cat", *parts, axis=len(thin) - 1)


def size(c: Call) -> Value:
    """Record the absolute value."""
    squares = [c.emit("unary", part, fn="square") for part in c["self"]]
    return c.emit("unary", c.emit("add", *squares), fn="sqrt")


COMPLEX |= {
    "view_as_real": as_real,
    "abs": size,
    "real": lambda c: c["self"].real,
    "imag": lambda c: c["self"].imag,
    **dict.fromkeys(MOVES, moved),
}
