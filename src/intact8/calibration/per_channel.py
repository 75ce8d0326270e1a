"""Per-channel min-max: one range per index of an axis. For weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from intact8.calibration.observer import Observer, finite_extent, register
from intact8.errors import CalibrationError


@register
class PerChannelObserver(Observer):
    """Range of channel c = smallest and largest value seen at index c of ``axis``.

    ``range`` and ``calculate_qparams`` return arrays of one entry per channel.

    Args:
        axis: the channel dimension.

    Example:
        >>> observer = PerChannelObserver(axis=0)
        >>> observer.observe(torch.tensor([[-1.0, 2.0], [0.0, 127.0]]))
        >>> observer.calculate_qparams(-127, 127, symmetric=True)[0]
        array([0.01574803, 1.        ], dtype=float32)
    """

    kind = "per_channel"
    count = 0

    def __init__(self, axis: int = 0) -> None:
        self.axis = int(axis)
        self.reset()

    def reset(self) -> None:
        """Forget everything observed."""
        self.count = 0
        self._low = self._high = torch.empty(0)

    @property
    def minimum(self) -> float:
        """Smallest value seen in any channel; NaN when nothing was."""
        return float(self._low.min()) if self.count else math.nan

    @property
    def maximum(self) -> float:
        """Largest value seen in any channel; NaN when nothing was."""
        return float(self._high.max()) if self.count else math.nan

    def args(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"axis": self.axis}

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`; CalibrationError also for another number of channels."""
        if not x.numel():
            return
        if not x.is_floating_point():
            raise CalibrationError(f"cannot observe a tensor of dtype {x.dtype}", remedy="give floating point values")
        if not -x.dim() <= self.axis < x.dim():
            raise CalibrationError(
                f"a tensor of shape {tuple(x.shape)} has no axis {self.axis}", remedy="choose an axis it has"
            )
        rows = x.detach().float().movedim(self.axis, 0).flatten(1) if x.dim() > 1 else x.detach().float()[:, None]
        low, high = torch.aminmax(rows, dim=1)
        finite_extent(torch.cat([low, high]), self)
        self._take(low.cpu(), high.cpu(), x.numel())

    def _take(self, low: Tensor, high: Tensor, count: int) -> None:
        if self.count and len(low) != len(self._low):
            raise CalibrationError(
                f"{len(low)} channels after {len(self._low)}", remedy="observe tensors with one number of channels"
            )
        self._low = torch.minimum(self._low, low) if self.count else low
        self._high = torch.maximum(self._high, high) if self.count else high
        self.count += count

    def merge(self, other: Observer) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_mergeable(other)
        assert isinstance(other, PerChannelObserver)
        if other.count:
            self._take(other._low, other._high, other.count)

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[Any, Any]:
        """Return float64 arrays (channels,)."""
        if not self.count:
            raise self.nothing_observed()
        return self._low.double().numpy(), self._high.double().numpy()

    def state(self) -> dict[str, Any]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return {"kind": self.kind, "count": self.count, "low": self._low, "high": self._high}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.check_state(state, {"count", "low", "high"})
        self.count, self._low, self._high = state["count"], state["low"].cpu(), state["high"].cpu()
