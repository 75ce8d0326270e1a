"""Quantization points: where a tensor or a weight becomes integers, with everything the user may read and set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.arithmetic.affine import choose_qparams
from intact8.calibration import Observer, make_observer
from intact8.calibration.weights import pairs_can_saturate
from intact8.errors import RecipeError, StateError
from intact8.recipe.recipe import Scheme
from intact8.text import printable
from intact8.train.extra_state import pack, unpack
from intact8.train.host_value import HostValue
from intact8.train.learned_range import LearnedRange
from intact8.train.learned_scale import LearnedScale, LearnedScales
from intact8.train.straight_through import End, forward_as, round_clamp, round_within
from intact8.train.weight_scales import live_weight_scales

if TYPE_CHECKING:
    from intact8.simulation.scales.table_range import Tables

INT32 = -(2**31), 2**31 - 1
SWITCHES = ("observing", "quantizing", "fixed", "source")

SMALLER_RATE = "load the last state that was finite, and train on with a smaller learning rate"
"""What to do where training diverged."""


class ResizableBuffers(nn.Module):
    """A module whose buffers take the shape they have in a loaded state dict (they are empty before calibration)."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if buffer is not None and saved is not None and saved.shape != buffer.shape:
                self._buffers[name] = buffer.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class LearningPoint(ResizableBuffers):
    """What has scales that may be learned: see ``source`` and ``learner`` of its subclasses.

    Attributes:
        solved_at_start: scales, and arrays of the multipliers, that unmoved scales of weights have with the weights
            that learning started with, while other weights have others; else None.
    """

    source: str
    learner: LearnedScale | LearnedScales | None
    solved_at_start: tuple[Tensor, dict[str, Any]] | None = None

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.solved_at_start = None
        super()._load_from_state_dict(*args, **kwargs)

    @property
    def unmoved(self) -> bool:
        """Whether learned scales are still where learning started: at ``scale``, which multipliers were solved for."""
        return self.source == "learned" and self.learner is not None and not self.learner.moved


class QuantPoint(LearningPoint):
    """One scale and zero point, shared by all tensors that must agree.

    Attributes:
        name: module or op whose output this is.
        scheme: what the recipe asked for.
        scale: float32 tensor, shape (); NaN before calibration.
        zero_point: int32 tensor, shape (), in the uint8 domain of the program.
        lo, hi: ends of the integer range in the uint8 domain.
        observing: whether the observer sees values in forward.
        quantizing: whether forward rounds to the grid.
        fixed: whether scale and zero point were given by the user and never move.
        source: where the scale comes from in training: ``held`` (it stays), ``observed`` or ``learned``.
        learner: the parameter, where the recipe wants scales learned.
        tables: the tables that read it; None where anything else does.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, name: str, scheme: Scheme, tensors: list[str]) -> None:
        super().__init__()
        self.name, self.scheme, self.tensors = name, scheme, tensors
        self.lo, self.hi, self.shift = scheme.stored()
        self.observer: Observer = make_observer(scheme.observer, **dict(scheme.observer_args))
        self.observing, self.quantizing, self.fixed = False, True, False
        self.source = "held"
        self.learner: LearnedScale | None = None
        self.tables: Tables | None = None
        self._scale, self._zero_point = HostValue(), HostValue()
        self.register_buffer("scale", torch.tensor(math.nan, dtype=torch.float32))
        self.register_buffer("zero_point", torch.tensor(0, dtype=torch.int32))
        if scheme.fixed is not None:
            self.set(*scheme.fixed, stored=False)

    @property
    def calibrated(self) -> bool:
        """Whether scale and zero point are known."""
        return math.isfinite(self.scale_value)

    @property
    def scale_value(self) -> float:
        """``scale`` as a Python number."""
        return float(self._scale.of(self.scale))

    @property
    def zero_point_value(self) -> int:
        """``zero_point`` as a Python number."""
        return int(self._zero_point.of(self.zero_point))

    @property
    def live_scale_value(self) -> float:
        """``live_scale`` as a Python number.

        Raises:
            StateError: the scale was trained to NaN or infinity.
        """
        value = float(self.live_scale.detach()) if self.learning else self.scale_value
        if not math.isfinite(value):
            why = "training diverged: a gradient or the learning rate was too large"
            raise StateError(f"its scale is {value}", where=self.name, why=why, remedy=SMALLER_RATE)
        return value

    @property
    def learning(self) -> bool:
        """Whether forward takes the scale from the learner."""
        return self.training and self.source == "learned" and self.learner is not None

    @property
    def active(self) -> bool:
        """Whether forward rounds here: fake quantization is on and scale and zero point are known."""
        return self.quantizing and self.calibrated

    @property
    def live_scale(self) -> Tensor:
        """The scale forward uses now: the parameter while it is learned, else ``scale``."""
        if self.learning and self.learner is not None:
            scale: Tensor = self.learner()
            return scale
        return self.scale

    @property
    def learned_zero_point(self) -> int:
        """The zero point that the learner gives; ``zero_point`` where it is not learned."""
        return self.learner.zero_point() if isinstance(self.learner, LearnedRange) else self.zero_point_value

    @property
    def learns_range(self) -> bool:
        """Whether LSQ+ or PACT learns here now: then values are clipped before they are rounded, as in the papers."""
        return self.learning and isinstance(self.learner, LearnedRange)

    @property
    def learns_ends(self) -> bool:
        """Whether the ends of the range get gradients of their own now."""
        return self.learns_range and isinstance(self.learner, LearnedRange) and self.learner.ends_move

    def rounded(self, steps: Tensor, lo: End, hi: End) -> Tensor:
        """Return ``clamp(round(steps), lo − z, hi − z)`` with straight-through gradients, also of learned ends.

        Args:
            steps: real values over the scale, float32 or float64. Without gradients it is overwritten.
            lo, hi: ends of the integer range, or what a fused clamp left of it.
        """
        z = self.zero_point_value
        if not self.learns_range:
            return round_clamp(steps, lo - z, hi - z)
        assert isinstance(self.learner, LearnedRange)
        low, high = (end.to(steps.dtype) for end in self.learner.ends())
        # What a fused clamp cuts off gives the ends of the range no gradient.
        low, high = _cut(low, lo, self.lo, z), _cut(high, hi, self.hi, z)
        return round_within(steps, low, high)

    @property
    def watching(self) -> bool:
        """Whether forward shows values to the observer: it was asked to, or scales follow observers in training."""
        return self.observing or (self.training and self.source == "observed")

    def set(self, scale: float, zero_point: int, *, stored: bool = True) -> None:
        """Fix scale and zero point, which is in the uint8 domain, or where not ``stored`` in the scheme's own dtype.

        Raises:
            RecipeError: scale not finite and positive, or zero point outside the range.
        """
        zero_point = int(zero_point) + (0 if stored else self.shift)
        if not (math.isfinite(scale) and np.float32(scale) > 0):
            what, remedy = f"scale {scale} is not a positive number", "give a finite scale > 0"
            raise RecipeError(what, where=self.name, remedy=remedy)
        if not self.lo <= zero_point <= self.hi:
            what = f"zero point {zero_point} is outside {self.lo}..{self.hi}"
            raise RecipeError(what, where=self.name, remedy="give one inside")
        self.assign(scale, zero_point)
        self.fixed, self.source = True, "held"

    def assign(self, scale: float, zero_point: int) -> None:
        """Write scale and zero point, rounded to float32, without fixing them."""
        with torch.no_grad():  # the scale may be learned
            self.scale.fill_(float(np.float32(scale)))
            self.zero_point.fill_(int(zero_point))

    def observed_qparams(self) -> tuple[float, int]:
        """Return scale and zero point from what was observed, in the uint8 domain.

        No integers are spent on what tables do not tell apart, unless the recipe fixes the range.
        """
        lo, hi = self.observer.range(self.lo, self.hi, self.scheme.symmetric)
        if self.tables and self.scheme.observer != "fixed":
            lo, hi = self.tables.useful_range(min(lo, 0.0), max(hi, 0.0), self.hi - self.lo + 1)
        scale, zero_point = choose_qparams(lo, hi, self.lo, self.hi, self.scheme.symmetric)
        return float(scale), zero_point

    def nominal_qparams(self) -> tuple[float, int]:
        """Return scale and zero point from what was observed; the present ones where they are fixed or nothing was."""
        if self.fixed or not self.observer.count:
            return self.scale_value, self.zero_point_value
        return self.observed_qparams()

    def get_extra_state(self) -> Tensor:
        """Return switches and observer statistics, for the state dict."""
        return pack({**{name: getattr(self, name) for name in SWITCHES}, "observer": self.observer.state()})

    def set_extra_state(self, packed: Tensor) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        state = unpack(packed)
        for name in SWITCHES:
            setattr(self, name, state[name])
        self.observer.load_state(state["observer"])

    def extra_repr(self) -> str:
        """Return one line for ``print(sim)``."""
        flags = "".join(", " + f for f in ("observing", "quantizing", "fixed") if getattr(self, f))
        qparams = f"scale={float(self.scale):.6g}, zero_point={int(self.zero_point)}"
        return f"{printable(self.name)}: {qparams}, {self.lo}..{self.hi}{flags}"


def _cut(end: Tensor, cut: End, whole: int, zero_point: int) -> Tensor:
    """Return the end of a learned range, or what a fused clamp left of it, minus the zero point."""
    if isinstance(cut, Tensor):
        return torch.where(cut == whole, end, (cut - zero_point).to(end.dtype))
    return end if cut == whole else end.detach().new_tensor(cut - zero_point)


class WeightPoint(LearningPoint):
    """The per-channel scales of one weight.

    Attributes:
        name: the node the weight belongs to.
        scale: float32 tensor, shape (O,); empty before calibration.
        quantizing: whether forward rounds the weight to its grid.
        portable: whether scales keep room for the pair sums of CPUs without VNNI.
        source: where the scales come from in training: ``solved`` (they stay, and every evaluation solves them anew),
            ``weights`` (computed in every step), ``learned`` or ``held`` (they stay for good).
        free: whether no multiplier depends on the scales (results are float32, as in mode dynamic):
            training then computes them from the weights in place of "solved". False where scales were given.
        learner: the parameter, where the recipe wants scales learned; a recurrent layer's parameters.
    """

    scale: Tensor

    def __init__(self, name: str, scheme: Scheme, portable: bool = True, free: bool = False) -> None:
        super().__init__()
        self.name, self.scheme, self.portable, self.free = name, scheme, portable, free
        self.source = "solved"
        self.learner: LearnedScale | LearnedScales | None = None
        self.lo, self.hi = scheme.qmin_effective, scheme.qmax_effective
        self.quantizing = True
        self.register_buffer("scale", torch.empty(0, dtype=torch.float32))

    @property
    def moving(self) -> bool:
        """Whether forward uses another scale than ``scale``."""
        return self.training and self.source in ("weights", "learned")

    @property
    def known(self) -> bool:
        """Whether there is a scale to round with."""
        return self.scale.numel() > 0 or (self.training and self.source == "weights")

    @property
    def holds_all(self) -> bool:
        """Whether scales are made large enough for all weights, so that none is clipped."""
        follows = self.source == "weights" and self.scheme.observer == "minmax"
        return self.moving and (follows or pairs_can_saturate(self.lo, self.hi, self.portable))

    @property
    def follows_rows(self) -> bool:
        """Whether forward computes scales per channel anew: learned ones, or those of a channel's largest weights."""
        learned = self.source == "learned" and self.learner is not None
        return self.moving and (learned or self.scheme.observer == "minmax") and self.scheme.granularity != "per_tensor"

    @property
    def clips_pairs(self) -> bool:
        """Whether weights are clipped to keep room for pair sums, because their scales no longer make it."""
        return self.source == "held" and self.can_saturate

    @property
    def can_saturate(self) -> bool:
        """Whether two integers of a channel could be too large for the pair sums of CPUs without VNNI."""
        return pairs_can_saturate(self.lo, self.hi, self.portable)

    def live_scale(self, rows: Tensor, factor: Tensor | None = None) -> Tensor:
        """Return the scales that forward uses now, float32 (O,), see :meth:`scales_of`."""
        if not self.moving:
            return self.scale
        return self.scales_of(rows, self.learner if self.source == "learned" else None, factor)

    def scales_of(self, rows: Tensor, learner: nn.Module | None, factor: Tensor | None = None) -> Tensor:
        """Return what ``learner`` gives, or else what the folded weight asks for: float32 (O,).

        The folded weight is ``rows``, (O, …), times ``factor``, (O,) or None.

        Learned scales stay large enough for the pair sums of CPUs without VNNI, where the recipe wants that; the
        gradient passes that bound.
        """
        flat = rows.detach().reshape(len(rows), -1)
        if learner is not None:
            scale: Tensor = learner().reshape(-1).expand(len(flat))
            if not pairs_can_saturate(self.lo, self.hi, self.portable):
                return scale
            least = live_weight_scales(flat, self.lo, self.hi, "minmax", True, factor)
            return forward_as(torch.maximum(scale.detach(), least), scale)
        scale = live_weight_scales(flat, self.lo, self.hi, self.scheme.observer, self.portable, factor)
        return scale.max().expand(len(flat)) if self.scheme.granularity == "per_tensor" else scale

    def get_extra_state(self) -> Tensor:
        """Return switch and source, for the state dict."""
        return pack({"quantizing": self.quantizing, "source": self.source})

    def set_extra_state(self, packed: Tensor) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        state = unpack(packed)
        self.quantizing, self.source = state["quantizing"], state["source"]

    def extra_repr(self) -> str:
        """Return one line for ``print(sim)``."""
        return f"{printable(self.name)}: {tuple(self.scale.shape)} scales, {self.lo}..{self.hi}"


class Requantization(ResizableBuffers):
    """The tie-free multipliers of one integer op: M = a/b (see ``intact8.arithmetic.tie_free``).

    Attributes:
        a, b: int32, one per output channel (conv, linear), one per term (add: several a, one b), or one.
        a_neg, b_neg: the same for negative sums (leaky ReLU, PReLU), else empty.
        residual_a: numerator of a fused residual's ratio over b, else empty.
        n: the divisors of an average pool, one per entry of a and b, else empty.
        table: uint8, (256,) for tables, else empty.
        gain_error: largest relative difference between a ratio here and the ratio of the nominal scales.
    """

    a: Tensor
    b: Tensor
    a_neg: Tensor
    b_neg: Tensor
    residual_a: Tensor
    n: Tensor
    table: Tensor
    gain_error: Tensor

    def __init__(self) -> None:
        super().__init__()
        for role in ("a", "b", "a_neg", "b_neg", "residual_a", "n"):
            self.register_buffer(role, torch.empty(0, dtype=torch.int32))
        self.register_buffer("table", torch.empty(0, dtype=torch.uint8))
        self.register_buffer("gain_error", torch.zeros((), dtype=torch.float64))

    def put(self, **arrays: Any) -> None:
        """Write arrays by role; roles not named become empty."""
        for role, buffer in self._buffers.items():
            if role == "gain_error" or buffer is None:
                continue
            value = np.asarray(arrays.get(role, []))
            if value.size and buffer.dtype == torch.int32:
                value = value.clip(*INT32)  # what is beyond every limit must not wrap into one
            self._buffers[role] = torch.as_tensor(value).to(buffer.device, buffer.dtype)
        self.gain_error.fill_(float(arrays.get("gain_error", 0.0)))

    def arrays(self) -> dict[str, Any]:
        """Return what :meth:`put` takes to write the present numbers."""
        return {role: buffer.tolist() for role, buffer in self.named_buffers()}

    def ratio(self, a: str = "a", b: str = "b") -> Tensor:
        """Return a/b, rounded once to float32."""
        numerator, denominator = self.get_buffer(a), self.get_buffer(b)
        return (numerator.double() / denominator.double()).float()


class Values(nn.Module):
    """A tensor that belongs to a node: equalization factors, mean inputs, what reconstruction found."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
