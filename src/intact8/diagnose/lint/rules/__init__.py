"""The lint rules: a rule is known when its module is imported."""

from __future__ import annotations

from ..rule import RULES, Rule
from . import (  # noqa: F401
    calibration,
    model,
    placement,
    program,
    ranges,
    torch_ao_flow,
    torch_ao_scales,
    training,
    weights,
)


def load() -> dict[str, Rule]:
    """All rules, in the order of their ids.

    Example:
        >>> load()["IQ301"].name
        'uncalibrated'
    """
    return dict(sorted(RULES.items()))


__all__ = ["load"]
