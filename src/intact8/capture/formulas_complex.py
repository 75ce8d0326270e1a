"""Formulas of complex numbers, as pairs of real tensors: products, Fourier transforms, and moves of both parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .formulas import Formula


class Complex(NamedTuple):
    """Complex numbers: activations while a graph is built, tensors inside of formulas."""

    real: Any
    imag: Any


ComplexFormula = Callable[..., Any]

COMPLEX: dict[str, ComplexFormula] = {}
"""Operator, without overload and trailing underscore → its formula; complex tensors among its arguments are pairs."""

MOVES = (
    "transpose permute t movedim swapaxes view reshape _unsafe_view flatten unflatten unsqueeze squeeze slice select "
    "narrow expand expand_as repeat flip roll chunk split split_with_sizes unbind index_select gather clone contiguous "
    "detach alias fft_fftshift fft_ifftshift sum mean neg diagonal constant_pad_nd pad index slice_scatter "
    "select_scatter copy"
)
"""Operators that do to both parts what they do to a real tensor."""


ZEROS = "zeros zeros_like new_zeros empty empty_like new_empty"
"""Operators that make complex numbers that are 0."""


def complex_formula(names: str) -> Callable[[Formula], Formula]:
    """Enter the decorated function for these ATen operators, separated by blanks."""

    def register(function: Formula) -> Formula:
        COMPLEX.update(dict.fromkeys(names.split(), function))
        return function

    return register


def pair(x: Any) -> Complex:
    """Return a number or a tensor as a pair."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    return Complex(x, torch.zeros_like(x) if isinstance(x, Tensor) else 0.0)


def moved(target: Any) -> ComplexFormula:
    """Return the formula of an operator that treats both parts alike."""

    def part(side: int, args: Any) -> Any:
        return [a[side] if isinstance(a, Complex) else a for a in args]

    def formula(*args: Any, **kwargs: Any) -> Any:
        real, imag = (target(*part(side, args), **kwargs) for side in (0, 1))
        several = isinstance(real, (list, tuple))
        return [Complex(*both) for both in zip(real, imag, strict=True)] if several else Complex(real, imag)

    return formula


@complex_formula("cat concat concatenate")
def cat(tensors: Sequence[Any], dim: int = 0) -> Complex:
    """Join both parts along a dimension."""
    return Complex(*(torch.cat(parts, dim) for parts in zip(*map(pair, tensors), strict=True)))


@complex_formula("stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Complex:
    """Join both parts along a new dimension."""
    return Complex(*(torch.stack(parts, dim) for parts in zip(*map(pair, tensors), strict=True)))


@complex_formula("view_as_real")
def view_as_real(x: Complex) -> Tensor:
    """Put both parts side by side in a new last dimension."""
    return torch.stack(tuple(x), -1)


@complex_formula("view_as_complex")
def view_as_complex(x: Tensor) -> Complex:
    """Take the numbers of the last dimension for both parts."""
    return Complex(x[..., 0], x[..., 1])


@complex_formula("complex")
def both(real: Tensor, imag: Tensor) -> Complex:
    """Join two parts."""
    return Complex(real, imag)


@complex_formula("polar")
def polar(size: Tensor, angle: Tensor) -> Complex:
    """Make complex numbers of absolute value and angle."""
    return Complex(size * torch.cos(angle), size * torch.sin(angle))


@complex_formula("to _to_copy")
def to(x: Any, *_: Any, **__: Any) -> Complex:
    """Take real numbers for complex ones."""
    return x if isinstance(x, Complex) else pair(x.float())


@complex_formula("real")
def real(x: Complex) -> Any:
    """Return the real part."""
    return x.real


@complex_formula("imag")
def imag(x: Complex) -> Any:
    """Return the imaginary part."""
    return x.imag


@complex_formula("abs")
def absolute(x: Complex) -> Tensor:
    """Compute the absolute value."""
    return torch.sqrt(x.real * x.real + x.imag * x.imag)


@complex_formula("angle")
def angle(x: Complex) -> Tensor:
    """Compute the angle."""
    return torch.atan2(x.imag, x.real)


@complex_formula("conj _conj conj_physical _conj_physical")
def conjugate(x: Complex) -> Complex:
    """Negate the imaginary part."""
    return Complex(x.real, -x.imag)


@complex_formula("resolve_conj resolve_neg")
def same(x: Any) -> Any:
    """Return what is given: pairs are resolved always."""
    return x


@complex_formula("exp")
def exponential(x: Complex) -> Complex:
    """Compute e^x."""
    return polar(torch.exp(x.real), x.imag)


@complex_formula("add")
def add(x: Any, y: Any, *, alpha: float = 1) -> Complex:
    """Compute x + alpha · y."""
    x, y = pair(x), pair(y)
    return Complex(*(a + (b if alpha == 1 else b * alpha) for a, b in zip(x, y, strict=True)))


@complex_formula("sub subtract")
def subtract(x: Any, y: Any, *, alpha: float = 1) -> Complex:
    """Compute x − alpha · y."""
    return add(x, y, alpha=-alpha)


def bilinear(product: Callable[[Any, Any], Any]) -> ComplexFormula:
    """Return the product of complex numbers made of a product of real ones."""

    def formula(x: Any, y: Any) -> Complex:
        if not isinstance(y, (Complex, complex)):
            return Complex(product(x.real, y), product(x.imag, y))
        if not isinstance(x, (Complex, complex)):
            return Complex(product(x, y.real), product(x, y.imag))
        x, y = pair(x), pair(y)
        return Complex(
            product(x.real, y.real) - product(x.imag, y.imag), product(x.real, y.imag) + product(x.imag, y.real)
        )

    return formula


multiply = complex_formula("mul multiply")(bilinear(lambda x, y: x * y))
complex_formula("matmul mm bmm")(bilinear(torch.matmul))


@complex_formula("einsum")
def einsum(equation: str, tensors: Sequence[Any], **_: Any) -> Any:
    """Compute a sum of products of two tensors."""
    if len(tensors) != 2:
        return NotImplemented
    return bilinear(lambda x, y: torch.einsum(equation, x, y))(*tensors)


@complex_formula("div divide true_divide")
def divide(x: Any, y: Any) -> Complex:
    """Compute a quotient."""
    if not isinstance(y, (Complex, complex)):
        return Complex(x.real / y, x.imag / y)
    y = pair(y)
    size = y.real * y.real + y.imag * y.imag
    return divide(pair(multiply(x, conjugate(y))), size)


# Fourier transforms ---------------------------------------------------------------------------------------------------


def waves(size: int, rows: int, columns: int, sign: int = -1) -> Complex:
    """Return e^(±2πi·row·column/size), computed in float64, or when the network runs where the size changes."""
    if isinstance(size, torch.SymInt):
        places = (torch.arange(rows)[:, None] * torch.arange(columns)).float()
        angles = (places - torch.floor(places / size) * size) * (2 * math.pi) / size
        return Complex(torch.cos(angles), sign * torch.sin(angles))
    turns = (torch.arange(rows)[:, None] * torch.arange(columns)).double() / size
    angles = (turns - torch.floor(turns)) * (2 * math.pi)
    return Complex(torch.cos(angles).float(), (sign * torch.sin(angles)).float())


def scale(size: int, norm: str | None, inverse: bool) -> float:
    """Return the factor of a transform under a normalization."""
    if norm == "ortho":
        return float(size**-0.5)
    return 1 / size if (norm == "forward") != inverse else 1.0


def resized(x: Any, dim: int, size: int | None) -> Any:
    """Return a signal cut to a length, or with zeros behind it."""
    if isinstance(x, Complex):
        return Complex(*(resized(part, dim, size) for part in x))
    have = x.shape[dim]
    if size is None or size == have:
        return x
    return x.narrow(dim, 0, size) if size < have else F.pad(x, [0, 0] * (x.ndim - 1 - dim % x.ndim) + [0, size - have])


def along(x: Any, dim: int, matrix: Complex, factor: float) -> Complex:
    """Return the products of one dimension with a matrix."""
    matrix = Complex(*(part * factor for part in matrix))
    parts = [part.movedim(dim, -1) for part in (x if isinstance(x, Complex) else [x])]
    found = multiplied(Complex(*parts) if len(parts) == 2 else parts[0], matrix)
    return Complex(*(part.movedim(-1, dim) for part in found))


multiplied = COMPLEX["matmul"]


def transform(x: Any, n: int | None, dim: int, norm: str | None, inverse: bool) -> Complex:
    """Compute the transform of real or complex numbers along one dimension."""
    x = resized(x, dim, n)
    size = (x.real if isinstance(x, Complex) else x).shape[dim]
    return along(x, dim, waves(size, size, size, 1 if inverse else -1), scale(size, norm, inverse))


def halved(x: Tensor, n: int | None, dim: int, norm: str | None, inverse: bool) -> Complex:
    """Compute the first half of the transform of real numbers, of which the second is the mirror image."""
    x = resized(x, dim, n)
    size = x.shape[dim]
    return along(x, dim, waves(size, size, size // 2 + 1, 1 if inverse else -1), scale(size, norm, inverse))


def mirrored(x: Any, n: int | None, dim: int, norm: str | None, inverse: bool) -> Any:
    """Compute the real transform of the first half of what is its own mirror image."""
    x = pair(x)
    size = n if n is not None else 2 * (x.real.shape[dim] - 1)
    bins = size // 2 + 1
    x = resized(x, dim, bins)
    real, imag = waves(size, bins, size, 1 if inverse else -1)
    index = torch.arange(bins)
    twice = torch.where((index == 0) | (2 * index == size), 1.0, 2.0)[:, None] * scale(size, norm, inverse)
    parts = [part.movedim(dim, -1) for part in x]
    return (parts[0] @ (real * twice) - parts[1] @ (imag * twice)).movedim(-1, dim)


ONE = {"fft": (transform, False), "ifft": (transform, True), "rfft": (halved, False), "ihfft": (halved, True),
       "irfft": (mirrored, True), "hfft": (mirrored, False)}  # fmt: skip
"""Name of a transform of one dimension → its function, and whether it is an inverse."""


def of_one(function: Callable[..., Any], inverse: bool) -> ComplexFormula:
    """Return the formula of a transform of one dimension."""

    def formula(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        return function(x, n, dim, norm, inverse)

    return formula


def of_several(function: Callable[..., Any], inverse: bool, default: list[int] | None) -> ComplexFormula:
    """Return the formula of a transform of several dimensions, of which the last is the one that is halved."""

    def formula(x: Any, s: Any = None, dim: Any = default, norm: str | None = None) -> Any:
        rank = (x.real if isinstance(x, Complex) else x).ndim
        dims = list(dim) if dim is not None else list(range(rank - len(s) if s is not None else 0, rank))
        sizes = [None if size == -1 else size for size in (s if s is not None else [-1] * len(dims))]
        others = list(zip(dims[:-1], sizes[:-1], strict=True))
        last = (sizes[-1], dims[-1], norm, inverse)
        if function is not mirrored:
            x = function(x, *last)
        for axis, size in others:
            x = transform(x, size, axis, norm, inverse)
        return mirrored(x, *last) if function is mirrored else x

    return formula


for _name, (_function, _inverse) in ONE.items():
    complex_formula(f"fft_{_name}")(of_one(_function, _inverse))
    complex_formula(f"fft_{_name}2")(of_several(_function, _inverse, [-2, -1]))
    complex_formula(f"fft_{_name}n")(of_several(_function, _inverse, None))


@complex_formula("istft istft_of_length")
def istft(
    input: Complex,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Add up the inverse transforms of windows that overlap, and divide by the sum of the squared windows."""
    if onesided is False or return_complex:
        return NotImplemented
    hop, window = hop_length or n_fft // 4, windowed(n_fft, win_length, window)
    frames = mirrored(input, n_fft, -2, "ortho" if normalized else None, True) * window[:, None]
    count = frames.shape[-1]
    total = n_fft + hop * (count - 1)

    def overlapped(parts: Tensor) -> Tensor:
        return F.fold(parts, (1, total), (1, n_fft), stride=(1, hop))[:, 0, 0]

    batch = frames if frames.ndim == 3 else frames[None]
    weights = overlapped((window * window)[None, :, None].expand(1, n_fft, count))
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    y = overlapped(batch)[:, start:end] / weights[:, start:end]
    y = y if length is None or end - start == length else F.pad(y, [0, length - (end - start)])
    return y if frames.ndim == 3 else y[0]


@complex_formula("stft")
def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Compute the transforms of windows that overlap."""
    hop, weights = hop_length or n_fft // 4, windowed(n_fft, win_length, window)
    starts = torch.arange(0, x.shape[-1] - n_fft + 1, hop)
    frames = x[..., starts[:, None] + torch.arange(n_fft)]
    matrix = waves(n_fft, n_fft, n_fft if onesided is False else n_fft // 2 + 1)
    matrix = Complex(*(part * weights[:, None] for part in matrix))
    spectrum = Complex(*(part.mT for part in along(frames, -1, matrix, n_fft**-0.5 if normalized else 1.0)))
    return spectrum if return_complex else view_as_real(spectrum)


def windowed(size: int, width: int | None, window: Tensor | None) -> Tensor:
    """Return the weights of a window, with zeros on both sides up to a size."""
    width = width or size
    window = torch.ones(width) if window is None else window
    return F.pad(window, [(size - width) // 2, size - width - (size - width) // 2])
