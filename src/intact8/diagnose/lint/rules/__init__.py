"""The lint rules: importing a module of this package registers its rules."""

from __future__ import annotations

from ..rule import RULES, Rule
from . import (  # noqa: F401
    calibration,
    model,
    placement,
    program,
    ranges,
    torch_ao_dataflow,
    torch_ao_scales,
    training,
    weights,
)


def load() -> dict[str, Rule]:
    """Return all rules in the order of their ids.

    Example:
        >>> load()["IQ301"].name
        'uncalibrated'
    """
    return dict(sorted(RULES.items()))
