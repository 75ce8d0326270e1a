"""Ranges of activations as trainable parameters: LSQ+ (Bhalgat et al. 2020) and PACT (Choi et al. 2018).

Both learn where a range ends. A quantized value is s·(q − z), with q − z clamped to lo − z … hi − z. The zero point is
an integer in every forward, as in the program, so the lower end β is the nearest multiple of s, z = lo − R(β/s); the
gradient passes that rounding straight through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.train.learned_scale import LearnedScale
from intact8.train.straight_through import forward_as


class LearnedRange(LearnedScale):
    """What LSQ+ and PACT share: the lower end −β ≥ 0 as a parameter, and the zero point it gives.

    Args:
        lo, hi: ends of the integer range.
        zero_point: fixed in symmetric schemes and for values that are never negative; None where it is learned.
        factor: as for :class:`LearnedScale`, of both parameters.

    Attributes:
        below: −β, how far the range reaches below zero; None where the zero point is fixed.
    """

    def __init__(self, lo: int, hi: int, zero_point: int | None, factor: float = 1.0) -> None:
        super().__init__((), factor)
        self.lo, self.hi, self.fixed_zero_point = lo, hi, zero_point
        self.below = LearnedScale((), factor) if zero_point is None else None

    @property
    def ends_move(self) -> bool:
        """Whether the ends of the range have gradients of their own."""
        return self.below is not None

    @property
    def moved(self) -> bool:
        """Whether an end of the range has changed since it started."""
        return super().moved or (self.below is not None and self.below.moved)

    def begin(self, scale: Tensor, zero_point: int) -> None:
        """Set the range by its scale and zero point."""
        self.start(scale)
        if self.below is not None:
            # A quarter of a step rounds to zero, but a learning rate can be relative to it.
            self.below.start(scale * max(zero_point - self.lo, 0.25))

    def zero_point(self) -> int:
        """Return the integer that stands for zero now."""
        if self.fixed_zero_point is not None:
            return self.fixed_zero_point
        assert self.below is not None
        with torch.no_grad():
            return min(self.lo + int(torch.round(self.below() / self())), self.hi)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return lo − z and hi − z with the gradients of what the ends stand for, float32 ()."""
        raise TypeError(f"{type(self).__name__} must define ends")

    def _whole(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        z = self.zero_point()
        return torch.full_like(scale, self.lo - z), torch.full_like(scale, self.hi - z)


class LearnedOffset(LearnedRange):
    """LSQ+: scale s and offset β (section 3.1 there, eqs. 5 and 6).

    With v = (x − β)/s: ∂x̂/∂s = R(v) − v inside the range, 0 at its lower and hi − lo at its upper end; ∂x̂/∂β = 0
    inside, 1 at both ends. Where β is no multiple of s, ∂x̂/∂s at the ends differs by R(β/s) − β/s, at most ½.

    Example:
        >>> learner = LearnedOffset(0, 255, None)
        >>> learner.begin(torch.tensor(0.1), 10)
        >>> learner.zero_point(), [end.item() for end in learner.ends()]
        (10, [-10.0, 245.0])
    """

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return lo − z and hi − z, see :class:`LearnedRange`."""
        scale = self()
        low, high = self._whole(scale.detach())
        if self.below is None:
            return low, high
        steps = -self.below() / scale
        return forward_as(low, steps), forward_as(high, steps)


class LearnedClip(LearnedRange):
    """PACT: the clip α (eq. 1 and 3 there), and below zero, where values are, −β as another.

    ∂x̂/∂α = 1 for x ≥ α, else 0: rounding is straight-through for the scale as well, which is (α − β)/(hi − lo).
    ``value`` is α. Symmetric schemes clip at −α and α.

    Example:
        >>> learner = LearnedClip(0, 255, 0)
        >>> learner.begin(torch.tensor(2 / 255), 0)
        >>> round(learner.value.item(), 6), [end.item() for end in learner.ends()]
        (2.0, [0.0, 255.0])
    """

    def begin(self, scale: Tensor, zero_point: int) -> None:
        """Set the range by its scale and zero point."""
        super().begin(scale, zero_point)
        steps = self.hi - (self.lo if self.below is not None else zero_point)
        self.start(scale * steps - (0.0 if self.below is None else self.below.value.detach()))

    @property
    def ends_move(self) -> bool:
        """True: α is an end."""
        return True

    def clip(self) -> Tensor:
        """Return α."""
        alpha: Tensor = super().forward()
        return alpha

    def forward(self) -> Tensor:
        """Return the scale, without gradient."""
        width, steps = self.clip().detach(), self.hi - (self.fixed_zero_point or self.lo)
        if self.below is not None:
            width = width + self.below().detach()
        scale: Tensor = width / steps
        return scale

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return lo − z and hi − z, see :class:`LearnedRange`."""
        scale = self()
        low, high = self._whole(scale)
        upper = self.clip() / scale
        if self.below is not None:
            return forward_as(low, -self.below() / scale), forward_as(high, upper)
        symmetric = self.fixed_zero_point != self.lo
        return forward_as(low, -upper) if symmetric else low, forward_as(high, upper)
