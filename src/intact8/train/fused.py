"""Passes of the training step in C: what torch does in several passes over a tensor, each of these does in one.

What they return lies in memory that is kept for the next step. An allocator that gives it back to the system gets it
again page by page in every step, which took 8 % of one of ResNet18.

They take contiguous float32 tensors of the CPU where the compiled module is there, which :func:`usable` tells. Where
not, the caller computes the same with torch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.utils.dlpack
from torch import Tensor, nn

try:
    from intact8.engines.native import _library
except ImportError:  # the package was installed without a compiler
    _library = None  # type: ignore[assignment]


def _team() -> int:
    """Return the address of OpenMP's ``GOMP_parallel`` where torch's threads are its; else 0.

    Between passes torch computes on these threads, and they look for work for milliseconds after that: other threads
    would share processors with them.
    """
    try:
        return ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):  # torch was built with other threads
        return 0


if _library is not None:
    _library.use_team(_team())

RUN = 4096
"""Elements whose products are added as floats (``RUN`` in ``native/engine/training.c``)."""

PLACES = 256
"""Places in a window, at most, whose number is a uint8 (``PLACES`` there)."""

SMALL = 1 << 16
"""Bytes below which a tensor gets its memory from torch."""

DIMENSIONS = 8
"""Dimensions, at most, of a tensor whose memory is kept (``TENSOR_DIMENSIONS`` in ``tensor_memory.h`` there)."""

CODES = {torch.float32: (2, 32), torch.int8: (0, 8), torch.uint8: (1, 8)}
"""Types of such tensors: DLPack's code of their kind, and bits."""

Pair = tuple[int, int]

PLAIN = (Tensor, nn.Parameter)
"""Types of tensors whose memory can be read: others stand for something else, as those of a tracer do."""


def usable(*tensors: Tensor) -> bool:
    """Return whether the passes take these tensors.

    Example:
        >>> usable(torch.zeros(2, dtype=torch.float64)), usable(torch.zeros(2, 3).T)
        (False, False)
    """
    return _library is not None and all(
        type(t) in PLAIN and t.dtype is torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors
    )


class Shape(NamedTuple):
    """The shape of (N, C, …) as three sizes."""

    outer: int
    channels: int
    inner: int


def shape_of(z: Tensor) -> Shape:
    """Return the sizes before, of and behind the channels.

    Example:
        >>> tuple(shape_of(torch.zeros(2, 3, 4, 5)))
        (2, 3, 20)
    """
    return Shape(z.shape[0], z.shape[1], math.prod(z.shape[2:]))


_kept = False


def _empty(shape: torch.Size, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of undefined values; when it is freed, its memory is kept for the next one of about its size."""
    code, bits = CODES[dtype]
    if not _kept or math.prod(shape) * bits < 8 * SMALL or len(shape) > DIMENSIONS:
        return torch.empty(shape, dtype=dtype, device="cpu")
    found: Tensor = torch.utils.dlpack.from_dlpack(_library.tensor(code, bits, *shape))
    return found


def _empty_like(t: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of undefined values of the same shape, in the same order in memory."""
    return _empty(t.shape, dtype) if t.is_contiguous() else torch.empty_like(t, dtype=dtype)


def _floats(*shape: int) -> Tensor:
    """Return a small tensor of undefined values that C may write to, whatever torch makes by default."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def keep_memory(keep: bool) -> None:
    """Set whether tensors of at least SMALL bytes lie in memory that is kept, as a forward pass in training does.

    Example:
        >>> keep_memory(False)
    """
    global _kept
    _kept = keep and _library is not None


def release_memory() -> None:
    """Free the memory that is kept for tensors of the next step, as :meth:`Simulation.eval` does.

    Example:
        >>> release_memory()
    """
    if _library is not None:
        _library.release_tensors()


def _run(name: str, *words: Tensor | float | None) -> None:
    given = (word.data_ptr() if isinstance(word, Tensor) else 0 if word is None else word for word in words)
    _library.train(name, torch.get_num_threads(), *given)


class Gains(NamedTuple):
    """What a batch norm multiplies by and adds, (C,), None for 1 and 0, and the step of the result, (C,) or ()."""

    weight: Tensor | None
    bias: Tensor | None
    step: Tensor

    @property
    def known(self) -> list[Tensor]:
        """Those that are not None."""
        return [t for t in self if t is not None]


def normalize(
    z: Tensor,
    gains: Gains,
    running: tuple[Tensor | None, Tensor | None, float, float],
    lo: int | Tensor,
    hi: int | Tensor,
    ends: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``clamp(round((γ·(z − µ)/√(σ² + ε) + β) / s), lo, hi)``, µ and 1/√(σ² + ε) of the batch.

    It is torch's batch norm, in steps s of the result. ``z`` is (N, C, …) with more than one value per channel;
    ``running`` are mean, variance, momentum and ε. The smallest and the largest value of every channel before it is
    rounded are written to ``ends``, (C, 2).
    """
    shape = shape_of(z)
    q, mean, invstd = _empty_like(z), _floats(shape.channels), _floats(shape.channels)
    running_mean, running_var, momentum, eps = running
    words = z, *gains, q, mean, invstd, running_mean, running_var, ends, gains.step.numel(), *shape, momentum, eps
    _run("normalize", *words, float(lo), float(hi))
    return q, mean, invstd


def normalize_backward(
    grad: Tensor, z: Tensor, gains: Gains, batch: Sequence[Tensor], limits: tuple[float, float], *, wants_input: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return gradients of z, γ, β and the step; ``batch`` are µ and 1/√(σ² + ε).

    Gradients pass where the value before rounding lies between the limits.
    """
    shape = shape_of(z)
    grad_z = _empty_like(z) if wants_input else None
    grads = [_floats(shape.channels) for _ in range(3)]
    _run("normalize_backward", grad, z, *gains, *batch, grad_z, *grads, gains.step.numel(), *shape, *limits)
    weight, bias, step = grads
    return grad_z, weight, bias, step if gains.step.numel() > 1 else step.sum().reshape(gains.step.shape)


def two_largest(rows: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return the two largest |w·f| of every row of (O, K) in descending order: (O, 2), or (O, 1) where K is 1."""
    count, columns = rows.shape
    top = _floats(count, min(columns, 2))
    _run("two_largest", rows, factor, top, count, columns)
    return top


class Rows(NamedTuple):
    """A weight (O, …) whose rows are rounded: numbers per row, (O,), by which they are multiplied, divided and clipped.

    Attributes:
        weight, factor, scale: integers are ``round(w·f / s)``; the factor may be None.
        bounds: integers are clipped to ±bounds; None where ``lo`` and ``hi`` are the same for all rows.
        lo, hi: may be infinite.
    """

    weight: Tensor
    factor: Tensor | None
    scale: Tensor
    bounds: Tensor | None = None
    lo: float = -math.inf
    hi: float = math.inf

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of rows, and of weights in each."""
        return len(self.weight), self.weight.numel() // len(self.weight)


def round_rows(rows: Rows) -> Tensor:
    """Return the integers, float32."""
    q = _empty_like(rows.weight)
    _run("round_rows", rows.weight, rows.factor, rows.scale, rows.bounds, q, *rows.sizes, rows.lo, rows.hi)
    return q


def multiply_rows(rows: Rows, m: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers, of 8 bits, times numbers per row, and the integers as int8."""
    product, compact = _empty_like(rows.weight), _empty_like(rows.weight, torch.int8)
    given = rows.weight, rows.factor, rows.scale, rows.bounds, m, product, compact
    _run("multiply_rows", *given, *rows.sizes, rows.lo, rows.hi)
    return product, compact


class Fold(NamedTuple):
    """How a weight (O, …) is rounded where a batch norm is folded in: ``round(w·f / s)``, f = γ/√(σ² + ε)/shrink.

    Attributes:
        gamma, variance, shrink: numbers per row, (O,); gamma and shrink may be None.
        learned: scales s; None where they follow from the largest weights of a row.
        eps: ε.
        largest: integer of the largest weight.
        pairs: what the two largest integers of a row may add up to; 0 where that is anything.
        lo, hi: integers are clipped to these; infinite where the scales hold all.
    """

    gamma: Tensor | None
    variance: Tensor
    shrink: Tensor | None
    learned: Tensor | None
    eps: float
    largest: float
    pairs: float
    lo: float
    hi: float


class Folded(NamedTuple):
    """Integers q (int8) times m = s/f, times the scale of the input; and f, its derivative to γ, s and m, all (O,)."""

    product: Tensor
    q: Tensor
    factor: Tensor
    slope: Tensor
    scale: Tensor
    m: Tensor


def fold(weight: Tensor, how: Fold, input_scale: Tensor | None, dead: float, smallest: float) -> Folded:
    """Fold, scale and round a weight. Scales are at least ``dead`` times the largest one, and ``smallest``."""
    made = Folded(_empty_like(weight), _empty_like(weight, torch.int8), *(_floats(len(weight)) for _ in range(4)))
    given = weight, how.gamma, how.variance, how.shrink, how.learned, input_scale
    sizes = len(weight), weight.numel() // len(weight)
    numbers = map(float, (how.eps, how.largest, how.pairs, dead, smallest, how.lo, how.hi))
    _run("fold", *given, made.factor, made.slope, made.scale, made.m, made.product, made.q, *sizes, *numbers)
    return made


def fold_backward(
    grad: Tensor, weight: Tensor, made: Folded, limits: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of the weight, γ, s and the input's scale from that of ``product``, which is overwritten."""
    rows = [_floats(len(grad)) for _ in range(3)]
    words = grad, weight, made.factor, made.slope, made.scale, made.m, made.q, grad, *rows
    _run("fold_backward", *words, len(grad), grad.numel() // len(grad), *map(float, limits))
    return grad, rows[0], rows[1], rows[2].sum()


def expand_rows(q: Tensor, m: Tensor) -> Tensor:
    """Return int8 times numbers per row, float32."""
    weight = _empty_like(q)
    _run("expand_rows", q, m, weight, len(q), q.numel() // len(q))
    return weight


def rows_backward(grad: Tensor, q: Tensor, rows: Rows, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``g·step``, Σ grad·q and Σ g·w per row, where g is ``grad`` where nothing was clipped, and 0 elsewhere.

    ``grad`` is overwritten by the first; ``q`` is int8.
    """
    dot_q, dot_weight = _floats(len(grad)), _floats(len(grad))
    words = grad, rows.weight, rows.factor, rows.scale, rows.bounds, step, q, grad, dot_q, dot_weight
    _run("rows_backward", *words, *rows.sizes, rows.lo, rows.hi)
    return grad, dot_q, dot_weight


class Terms(NamedTuple):
    """The zero points and the ratios of the two terms of a sum."""

    zero_points: tuple[int, int]
    ratios: tuple[float, float]


def add(
    a: Tensor, b: Tensor, of: Terms, lo: int | Tensor, hi: int | Tensor, ends: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``clamp(round(a·r_a + b·r_b), lo, hi)`` of integers minus zero points, and the integers as uint8.

    The least and the largest sums before they are rounded are written to ``ends``, see :func:`blocks_of`.
    """
    packed = _empty_like(a, torch.uint8), _empty_like(b, torch.uint8)
    return _add(a, b, packed, of, lo, hi, ends), *packed


def add_only(a: Tensor, b: Tensor, of: Terms, lo: int | Tensor, hi: int | Tensor, ends: Tensor | None = None) -> Tensor:
    """Return the first of what :func:`add` does."""
    return _add(a, b, (None, None), of, lo, hi, ends)


def blocks_of(t: Tensor) -> int:
    """Return the rows of ``ends`` that :func:`add` writes for terms like this; they have two columns."""
    return -(-t.numel() // RUN)


def _add(
    a: Tensor,
    b: Tensor,
    packed: Sequence[Tensor | None],
    of: Terms,
    lo: int | Tensor,
    hi: int | Tensor,
    ends: Tensor | None,
) -> Tensor:
    q = _empty_like(a)
    _run("add", a, b, q, *packed, ends, a.numel(), *of.zero_points, *of.ratios, float(lo), float(hi))
    return q


def add_backward(
    grad: Tensor, packed: tuple[Tensor, Tensor], of: Terms, limits: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of both terms, and of both ratios as one tensor of two; see :func:`add`."""
    to_a, to_b = _empty_like(grad), _empty_like(grad)
    dots = torch.empty(blocks_of(grad), 2, dtype=torch.float64, device="cpu")
    _run("add_backward", grad, *packed, to_a, to_b, dots, grad.numel(), *of.zero_points, *of.ratios, *limits)
    return to_a, to_b, dots.sum(0).float()


class Windows(NamedTuple):
    """The windows of a pool over planes of (height, width), with at most PLACES places; pairs are (height, width)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair

    def words(self, shape: torch.Size) -> tuple[int, ...]:
        """Return planes, height, width, rows, columns and the rest, as the passes take them."""
        geometry = *self.kernel, *self.stride, *self.padding, *self.dilation
        return math.prod(shape[:-2]), *shape[-2:], *self.size, *geometry


def max_pool(x: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Return the largest of every window of (…, height, width), and the first place in it that has that, uint8."""
    shape = torch.Size((*x.shape[:-2], *windows.size))
    y, places = _empty(shape), _empty(shape, torch.uint8)
    _run("max_pool", x, y, places, *windows.words(x.shape))
    return y, places


def max_pool_backward(grad: Tensor, places: Tensor, shape: torch.Size, windows: Windows) -> Tensor:
    """Return the gradient of what :func:`max_pool` was given, which had this shape."""
    grad_x = _empty(shape)
    _run("max_pool_backward", grad, places, grad_x, *windows.words(shape))
    return grad_x


class Multipliers(NamedTuple):
    """What turns exact sums of a layer into integers of its result, (O,) each.

    Attributes:
        bias: int32 numbers that are added to the sums, float32.
        m: what the result is multiplied by.
        below: what negative ones are multiplied by instead; None where that is the same.
        ratio: of a residual that is added then.
        lo, hi: ends of the range, and of a fused clamp, minus the zero point.
    """

    bias: Tensor
    m: Tensor
    below: Tensor | None
    ratio: float
    lo: float
    hi: float


def requantize(sums: Tensor, of: Multipliers, axis: int, residual: Tensor | None = None) -> Tensor | None:
    """Return ``clamp(round((v + b)·m + r·ratio), lo, hi)`` in place of exact sums v; None where no pass takes them.

    Args:
        sums: float32, overwritten; channels are along ``axis``.
        of: numbers per channel; with ``below`` there is no residual.
        axis: 1, or the last one.
        residual: of the same shape and order in memory.
    """
    if axis == 1 and sums.dim() > 2 and not sums.is_contiguous():  # channels may be last in memory
        residual = None if residual is None else residual.movedim(1, -1)
        found = requantize(sums.movedim(1, -1), of, sums.dim() - 1, residual)
        return None if found is None else found.movedim(-1, 1)
    known = [t for t in (sums, of.bias, of.m, of.below, residual) if t is not None]
    if not usable(*known) or not sums.numel():
        return None
    channels = sums.shape[-1]
    shape = shape_of(sums) if axis == 1 else Shape(sums.numel() // channels, channels, 1)
    _run("requantize", sums, of.bias, of.m, of.below, residual, *shape, of.ratio, of.lo, of.hi)
    return sums


def round_clamp(v: Tensor, lo: int | Tensor, hi: int | Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``clamp(round(v), lo, hi)``; ``out`` may be ``v`` itself."""
    q = _empty_like(v) if out is None else out
    _run("round_clamp", v, q, v.numel(), float(lo), float(hi))
    return q
