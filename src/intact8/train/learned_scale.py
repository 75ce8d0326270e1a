"""A scale as a trainable parameter: learned step size quantization (LSQ, Esser et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.affine import SMALLEST_SCALE

FLOOR = 2.0**-8
"""A learned scale never falls below this share of what it started from, where a tensor would be dead."""


class _Bounded(torch.autograd.Function):
    """max(value, smallest) forward; backward the gradient times a factor, also below the bound, so that it can return.

    The backward pass tells the owner that a gradient arrived.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, smallest: Tensor, owner: LearnedScale) -> Tensor:
        ctx.owner = owner
        return torch.maximum(value, smallest)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        ctx.owner.reached = True
        return grad[0] * ctx.owner.factor, None, None


class LearnedScale(nn.Module):
    """One scale, or one per channel, that an optimizer moves.

    Calling it gives the scale: positive, at least FLOOR times what it started from, differentiable.

    Args:
        shape: () or (O,).
        factor: what its gradient is multiplied by: 1, or LSQ's 1/√(n·Q) (section 2.2 there) for n elements that share
            the scale and Q positive steps.

    Attributes:
        value: the parameter, float32; NaN before :meth:`start`.
        smallest: the bound.
        reached: whether a gradient arrived since this was last set to False.

    Example:
        >>> scale = LearnedScale((), 0.5)
        >>> scale.start(torch.tensor(0.1))
        >>> (3 * scale()).backward()
        >>> scale.value.grad.item()
        1.5
    """

    smallest: Tensor
    _now: Tensor | None = None

    def __init__(self, shape: tuple[int, ...], factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.reached = float(factor), False
        self.value = nn.Parameter(torch.full(shape, math.nan))
        self.register_buffer("smallest", torch.full(shape, math.nan))

    @property
    def moved(self) -> bool:
        """Whether the scale has changed since it started."""
        return not torch.equal(_bound(self.value.detach()), self.smallest)

    def start(self, scale: Tensor) -> None:
        """Set the scale and its bound."""
        with torch.no_grad():
            self.value.copy_(scale)
            self.smallest.copy_(_bound(self.value))

    def forward(self) -> Tensor:
        """Return the scale."""
        if self._now is not None:
            return self._now
        scale: Tensor = _Bounded.apply(self.value, self.smallest, self)  # type: ignore[no-untyped-call]
        return scale


def _bound(scale: Tensor) -> Tensor:
    """Return the least that scales which start here may become, exact but for the tiniest: FLOOR is a power of two."""
    return (scale * FLOOR).clamp(min=SMALLEST_SCALE)


@contextmanager
def computed_once(scales: Iterable[LearnedScale]) -> Iterator[None]:
    """Compute each of these scales once, for all that read it in this forward."""
    given = list(scales)
    try:
        for scale in given:
            scale._now = LearnedScale.forward(scale)
        yield
    finally:
        for scale in given:
            scale._now = None


class LearnedScales(nn.Module):
    """Learned scales of the weights of a recurrent layer: matrices of equally many rows, their scales joined.

    Args:
        parts: one for every matrix, in order, each of one scale per row or of one.
        rows: of every matrix.

    Example:
        >>> scales = LearnedScales([LearnedScale((2,)), LearnedScale((1,))], 2)
        >>> scales.start(torch.tensor([0.5, 1.0, 2.0, 2.0]))
        >>> scales().tolist(), scales.value.tolist()
        ([0.5, 1.0, 2.0, 2.0], [0.5, 1.0, 2.0])
    """

    def __init__(self, parts: Iterable[LearnedScale], rows: int) -> None:
        super().__init__()
        self.parts, self.rows = nn.ModuleList(parts), rows

    def __iter__(self) -> Iterator[LearnedScale]:
        """Iterate over the scales of each matrix."""
        return iter(self.parts)  # type: ignore[arg-type]

    @property
    def moved(self) -> bool:
        """Whether a scale has changed since it started."""
        return any(part.moved for part in self)

    @property
    def value(self) -> Tensor:
        """The parameters, joined."""
        return torch.cat([part.value for part in self])

    def start(self, scale: Tensor) -> None:
        """Set the scales, one per row of every matrix."""
        for part, own in zip(self, torch.split(scale, self.rows), strict=True):
            part.start(own if part.value.numel() == self.rows else own.max().reshape(1))

    def forward(self) -> Tensor:
        """Return the scales, one per row of every matrix."""
        return torch.cat([part().expand(self.rows) for part in self])


def lsq_factor(elements: int, steps: int) -> float:
    """Return 1/√(n·Q).

    Example:
        >>> lsq_factor(100, 4)
        0.05
    """
    return 1.0 / math.sqrt(max(elements, 1) * max(steps, 1))
