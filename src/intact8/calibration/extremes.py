"""Count, smallest and largest value: what observers without a sketch keep about what they saw."""

from __future__ import annotations

import math

import numpy as np


class Extremes:
    """Mutable count and extremes; NaN while nothing was seen."""

    def __init__(self, count: int = 0, minimum: float = math.nan, maximum: float = math.nan) -> None:
        self.count, self.minimum, self.maximum = count, minimum, maximum

    def add(self, count: int, lo: float, hi: float) -> None:
        """Take in ``count`` values between ``lo`` and ``hi``."""
        self.count += count
        # fmin and fmax ignore the NaN that stands for "nothing yet".
        self.minimum, self.maximum = float(np.fmin(self.minimum, lo)), float(np.fmax(self.maximum, hi))
