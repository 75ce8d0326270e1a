"""Activations that become part of the operation before them, and how two of them combine."""

from __future__ import annotations

import math
from typing import Any

from intact8.capture.graph import Node

Act = dict[str, Any]


def clamp_act(node: Node) -> Act | None:
    """Return the ``act`` of a relu or clamp node, None for any other node.

    Example:
        >>> clamp_act(Node("r", "relu"))
        {'kind': 'clamp', 'min': 0.0, 'max': None}
    """
    if node.op == "relu":
        return {"kind": "clamp", "min": 0.0, "max": None}
    if node.op == "clamp":
        return _act(_interval(node.attrs))
    return None


def compose(inner: Act, outer: Act) -> Act:
    """Return the one clamp that equals ``outer`` after ``inner``; a clamp is monotone, so the ends of ``inner`` decide.

    Example:
        >>> relu, relu6 = {"kind": "clamp", "min": 0.0, "max": None}, {"kind": "clamp", "min": 0.0, "max": 6.0}
        >>> compose(relu, relu6) == relu6
        True
    """
    lo, hi = _interval(outer)
    a, b = _interval(inner)
    return _act((min(max(a, lo), hi), min(max(b, lo), hi)))


def never_negative(act: Act | None) -> bool:
    """Return whether values after ``act`` are at least 0, so that a leaky ReLU would leave them alone."""
    return act is not None and act["kind"] == "clamp" and act["min"] is not None and act["min"] >= 0


def _interval(bounds: dict[str, Any]) -> tuple[float, float]:
    lo = -math.inf if bounds["min"] is None else float(bounds["min"])
    hi = math.inf if bounds["max"] is None else float(bounds["max"])
    # torch computes min(max(x, lo), hi): where lo > hi everything becomes hi.
    return min(lo, hi), hi


def _act(interval: tuple[float, float]) -> Act:
    lo, hi = interval
    return {"kind": "clamp", "min": None if lo == -math.inf else lo, "max": None if hi == math.inf else hi}
