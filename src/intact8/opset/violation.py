"""What is wrong with an op."""

from __future__ import annotations


class Violation(ValueError):
    """What is wrong with an op; the checker adds the op's name."""


def need(condition: bool, reason: str) -> None:
    """Raise Violation with ``reason`` unless ``condition``."""
    if not condition:
        raise Violation(reason)
