"""Rounding and clamping with the gradients quantization-aware training needs.

Every function keeps for the backward pass what it was given, and nothing it computed: which values were clipped is
found again there, which costs less than storing it. Of float64 values a byte each tells that, which is less to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from intact8.errors import StateError
from intact8.train import fused

Watch = Callable[[Tensor], None]
"""Called with values before they are rounded."""

End = int | Tensor
"""An end of a range of integers; float32 () on the values' device where it depends on a scale that is learned there."""


class Rounding(NamedTuple):
    """Limits of the integers, what is called with numbers before they are rounded, and where gradients are clipped.

    ``first``: the gradient is that of clamping first, see :func:`clipped`. ``ends`` is called in place of ``watch``
    with the smallest and the largest number, (2,), and their count, where they suffice; it says whether it took them.
    """

    lo: End
    hi: End
    watch: Watch | None = None
    first: bool = False
    ends: Callable[[Tensor, int], bool] | None = None

    @property
    def ends_suffice(self) -> bool:
        """Whether nobody has to be shown all the numbers."""
        return self.watch is None or self.ends is not None

    def room_for_ends(self, parts: int) -> Tensor | None:
        """Return room for the ends of so many parts of the numbers, (parts, 2); None where nobody is told of them."""
        return None if self.ends is None else torch.empty(parts, 2, dtype=torch.float32, device="cpu")

    def tell_ends(self, ends: Tensor | None, q: Tensor) -> None:
        """Tell what was written to this room; where it is not finite, show what was rounded."""
        if ends is None or self.ends is None:
            return
        seen = torch.stack([ends[:, 0].min(), ends[:, 1].max()])
        if not self.ends(seen, q.numel()) and self.watch is not None:
            self.watch(q)  # which finds a NaN


def first_order(outputs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the outputs, whose backward refuses to be differentiated itself: its gradients have no graph.

    Raises (in that backward):
        StateError: it was asked for with ``create_graph=True``.
    """
    for y in outputs if torch.is_grad_enabled() else ():
        if y.grad_fn is not None and not any(y is x for x in inputs):
            y.grad_fn.register_prehook(_refuse_second)
    return outputs


def _refuse_second(_gradients: tuple[Tensor, ...]) -> None:
    if torch.is_grad_enabled():
        raise StateError(
            "gradients of a simulation cannot be differentiated again (create_graph=True)",
            where="Simulation",
            why="straight through rounding there is a gradient, but no second derivative",
            remedy="leave out what needs it (a gradient penalty, say), or compute that with the float model",
        )


def rounding_to(lo: int, hi: int) -> tuple[float, float]:
    """Return the float32 numbers just outside of those that round (half to even) into lo..hi.

    Example:
        >>> low, high = rounding_to(0, 255)
        >>> low < -0.5, high  # a tie goes to the even 0, but not down to 255
        (True, 255.5)
    """
    low, high = np.float32(lo - 0.5), np.float32(hi + 0.5)
    if lo % 2 == 0:
        low = np.nextafter(low, np.float32(-np.inf))
    if hi % 2 == 0:
        high = np.nextafter(high, np.float32(np.inf))
    return float(low), float(high)


def within(lo: float, hi: float) -> tuple[float, float]:
    """Return the float32 numbers just outside of lo..hi."""
    infinity = np.float32(np.inf)
    return float(np.nextafter(np.float32(lo), -infinity)), float(np.nextafter(np.float32(hi), infinity))


def clipping_ends(lo: int, hi: int, *, first: bool = False) -> tuple[float, float]:
    """Return the numbers just outside of those whose gradient passes, see :func:`clipped`."""
    return within(lo, hi) if first else rounding_to(lo, hi)


def clipped(grad: Tensor, v: Tensor, lo: End, hi: End, out: Tensor | None = None, *, first: bool = False) -> Tensor:
    """Return ``grad`` where ``v`` rounds into lo..hi, or with ``first`` lies there before it is rounded; elsewhere 0.

    float32; ``out`` may be ``v`` itself, to save memory.
    """
    if isinstance(lo, Tensor) or isinstance(hi, Tensor):
        values = v if first else torch.round(v)
        return torch.where((values >= lo) & (values <= hi), grad, 0.0)
    low, high = clipping_ends(lo, hi, first=first)
    if out is None:
        out = torch.empty_like(v)
    # The derivative of a hardtanh does this in one pass.
    torch.ops.aten.hardtanh_backward.grad_input(grad, v, low, high, grad_input=out)
    return out


def clamp_(v: Tensor, lo: End, hi: End) -> Tensor:
    """Clamp in place, at numbers or tensors.

    Example:
        >>> clamp_(torch.tensor([-1.0, 2.0, 9.0]), 0, torch.tensor(5.0)).tolist()
        [0.0, 2.0, 5.0]
    """
    return v.clamp_(min=lo).clamp_(max=hi) if isinstance(lo, Tensor) or isinstance(hi, Tensor) else v.clamp_(lo, hi)


class _Round(torch.autograd.Function):
    """clamp(round(v), lo, hi); identity backward where round(v) lies inside (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, lo: End, hi: End) -> Tensor:
        ctx.limits, ctx.dtype = (lo, hi), v.dtype
        if v.dtype == torch.float64:
            rounded = torch.round(v).float()  # that moves nothing into lo..hi
            ctx.save_for_backward((rounded >= lo) & (rounded <= hi))  # one byte instead of eight
            return clamp_(rounded, lo, hi)
        ctx.save_for_backward(v)
        return fused.round_clamp(v, lo, hi) if fused.usable(v) else clamp_(torch.round(v), lo, hi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        (v,) = ctx.saved_tensors
        if ctx.dtype == torch.float64:
            return torch.where(v, grads[0], 0.0).double(), None, None
        return clipped(grads[0], v, *ctx.limits), None, None


class _Quantize(torch.autograd.Function):
    """clamp(round(x / scale), lo, hi); see :func:`quantize_ste`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, lo: int, hi: int) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.limits = (lo, hi)
        return (x / scale).round_().clamp_(lo, hi).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        x, scale = ctx.saved_tensors
        v = (x / scale).float()
        wants_scale = ctx.needs_input_grad[1]
        lo, hi = ctx.limits
        grad = clipped(grads[0], v, lo, hi, out=None if wants_scale else v)
        grad_scale = None if not wants_scale else -(torch.dot(grad.flatten(), v.flatten()) / scale).reshape(scale.shape)
        return grad.div_(scale).to(x.dtype), grad_scale, None, None


class _RoundWithin(torch.autograd.Function):
    """round(clamp(v, low, high)); see :func:`round_within`."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward(v, low, high)
        return torch.clamp(v, low, high).round_().float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        v, low, high = ctx.saved_tensors
        grad = grads[0].to(v.dtype)
        below, above = (v < low if ctx.needs_input_grad[1] else None), (v > high if ctx.needs_input_grad[2] else None)
        grad_ends = (None if out is None else torch.where(out, grad, 0.0).sum() for out in (below, above))
        if v.device.type != "cpu":  # there the ends are not read
            return torch.where((v >= low) & (v <= high), grad, 0.0), *grad_ends
        # The interval of a hardtanh's derivative is open at both ends; this one is closed.
        ends = low.nextafter(low - 1).item(), high.nextafter(high + 1).item()
        return torch.ops.aten.hardtanh_backward(grad, v, *ends), *grad_ends


class _ForwardAs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradient: Tensor) -> Tensor:
        return value.expand(gradient.shape).clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        return None, grad[0]


def differentiable(*tensors: Tensor | None) -> bool:
    """Return whether anything will ask for a gradient with respect to one of these."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def round_ste(x: Tensor) -> Tensor:
    """Round half to even; the gradient passes straight through.

    Example:
        >>> import torch
        >>> round_ste(torch.tensor([0.5, 1.5, -0.7])).tolist()
        [0.0, 2.0, -1.0]
    """
    return forward_as(torch.round(x.detach()), x)


def round_clamp(v: Tensor, lo: End, hi: End) -> Tensor:
    """Return ``clamp(round(v), lo, hi)`` in float32 with the straight-through gradient, clipped at lo and hi.

    ``v`` is float32 or float64; without gradients it is overwritten.

    Example:
        >>> import torch
        >>> v = torch.tensor([-3.2, 0.5, 1.5, 9.4], requires_grad=True)
        >>> q = round_clamp(v, 0, 9)
        >>> q.sum().backward()
        >>> q.tolist(), v.grad.tolist()
        ([0.0, 0.0, 2.0, 9.0], [0.0, 1.0, 1.0, 1.0])
    """
    if not differentiable(v):
        if fused.usable(v):
            return fused.round_clamp(v, lo, hi, out=v)
        return clamp_(v.round_(), lo, hi).float()
    q: Tensor = _Round.apply(v, lo, hi)  # type: ignore[no-untyped-call]
    return q


def round_within(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ``round(clamp(v, low, high))`` in float32; ends that are learned get the gradient of what they cut off.

    ``low`` and ``high`` are integers, () of the dtype of ``v``.

    Example:
        >>> import torch
        >>> v, high = torch.tensor([-3.2, 1.5, 9.4], requires_grad=True), torch.tensor(9.0, requires_grad=True)
        >>> q = round_within(v, torch.tensor(0.0), high)
        >>> q.sum().backward()
        >>> q.tolist(), v.grad.tolist(), high.grad.item()
        ([0.0, 2.0, 9.0], [0.0, 1.0, 0.0], 1.0)
    """
    if not differentiable(v, low, high):
        return torch.clamp(v, low, high).round_().float()
    q: Tensor = _RoundWithin.apply(v, low, high)  # type: ignore[no-untyped-call]
    return q


def quantize_ste(x: Tensor, scale: Tensor, zero_point: int, lo: int, hi: int) -> Tensor:
    """Return ``clamp(round(x / scale) + z, lo, hi) − z`` as a float32 tensor of integers.

    The gradient is the straight-through estimator clipped at the range ends; with respect to ``scale`` it is
    LSQ's (Esser et al. 2020, eq. 3) once the result is multiplied by ``scale`` again.
    """
    lo, hi = lo - zero_point, hi - zero_point
    if not differentiable(x, scale):
        return (x / scale).round_().clamp_(lo, hi).float()
    q: Tensor = _Quantize.apply(x, scale, lo, hi)  # type: ignore[no-untyped-call]
    return q


def forward_as(value: Tensor, gradient: Tensor) -> Tensor:
    """Return ``value``, to the bit, with the gradient of ``gradient``, a tensor of the same shape.

    Example:
        >>> import torch
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> y = forward_as(torch.tensor(7.0), x * x)
        >>> y.backward()
        >>> y.item(), x.grad.item()
        (7.0, 6.0)
    """
    if not (torch.is_grad_enabled() and gradient.requires_grad):
        return value
    return _ForwardAs.apply(value, gradient)  # type: ignore[no-untyped-call, no-any-return]
