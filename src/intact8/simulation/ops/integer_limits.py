"""Fused activations as limits of the integer range."""

from __future__ import annotations

from typing import Any

import numpy as np


def integer_limits(act: dict[str, Any] | None, scale: float, zero_point: int, lo: int, hi: int) -> tuple[int, int]:
    """The clamp of an op: the point's range, cut by a fused clamp (ReLU, ReLU6, hardtanh).

    Args:
        act: a node's ``act`` attr.
        scale, zero_point: of the output.
        lo, hi: the output point's integer range.

    Example:
        >>> integer_limits({"kind": "clamp", "min": 0.0, "max": 6.0}, 0.05, 10, 0, 255)
        (10, 130)
    """
    if act is None or act["kind"] != "clamp":
        return lo, hi
    low, high = lo, hi
    if act.get("min") is not None:
        low = int(np.clip(np.rint(act["min"] / np.float64(scale)) + zero_point, lo, hi))
    if act.get("max") is not None:
        high = int(np.clip(np.rint(act["max"] / np.float64(scale)) + zero_point, low, hi))
    return low, high
