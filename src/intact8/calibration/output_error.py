"""Output: the range that moves the network's outputs least, once gradients are known; until then that of ``mse``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from intact8.calibration.mse import MSEObserver
from intact8.calibration.observer import Observer, register


@register
class OutputObserver(MSEObserver):
    """Range that :func:`intact8.reconstruction.ranges.choose_ranges` chose at the end of calibration.

    Attributes:
        chosen: the ends; None before, and for new observations: then the range is that of ``mse``.

    Example:
        >>> import torch
        >>> observer = OutputObserver()
        >>> observer.observe(torch.arange(256.0))
        >>> observer.chosen = (0.0, 127.5)
        >>> observer.range(0, 255, symmetric=False)
        (0.0, 127.5)
    """

    kind = "output"

    def __init__(self) -> None:
        super().__init__()
        self.chosen: tuple[float, float] | None = None

    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[float, float]:
        """See :class:`~intact8.calibration.observer.Observer`."""
        return super().range(qmin, qmax, symmetric) if self.chosen is None else self.chosen

    def observe(self, x: Tensor) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.chosen = None
        super().observe(x)

    def merge(self, other: Observer) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.chosen = None
        super().merge(other)

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`~intact8.calibration.observer.Observer`."""
        self.chosen = None
        super().load_state(state)

    def reset(self) -> None:
        """Forget everything observed."""
        self.chosen = None
        super().reset()
