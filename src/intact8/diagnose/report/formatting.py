"""Texts of numbers, shapes and proofs, for page and terminal alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from intact8.arithmetic.dimensions import Dim
from intact8.display import number, percent


def shape(sizes: Sequence[Dim]) -> str:
    """Return the text of a shape, with N for the batch.

    Example:
        >>> shape((None, 64, 7, 7))
        'N×64×7×7'
    """
    return "×".join("N" if size is None else str(size) for size in sizes)


def size(count: int) -> str:
    """Return the text of a number of bytes, in the unit that suits it.

    Example:
        >>> size(999), size(25_600_000)
        ('999 B', '25.6 MB')
    """
    return _scaled(count, "B")


def amount(count: int) -> str:
    """Return the text of a large count, with the unit k, M, G or T.

    Example:
        >>> amount(4_089_184_256)
        '4.09 G'
    """
    return _scaled(count, "").strip()


def _scaled(count: int, unit: str) -> str:
    value, prefix = float(count), ""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5 or prefix == "T":
            break
        value /= 1000
    return f"{value:.3g} {prefix}{unit}".rstrip()


def decibel(value: float | None) -> str:
    """Return a number with one digit behind the point; a dash for None."""
    return "–" if value is None else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """Return a number with three significant digits; a dash for None.

    Example:
        >>> milliseconds(0.012345), milliseconds(12.345), milliseconds(1234.5)
        ('0.0123', '12.3', '1234')
    """
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def sqnr_step(sqnr: float | None) -> str:
    """Return the step of the colour scale for an SQNR: 0 below 10 dB (bad), one more for every 5 dB, 8 from 45 dB on
    (good); "" for None.

    Example:
        >>> sqnr_step(8.0), sqnr_step(10.0), sqnr_step(31.0), sqnr_step(70.0)
        ('0', '1', '5', '8')
    """
    return "" if sqnr is None else str(min(max(math.floor((sqnr - 10) / 5) + 1, 0), 8))


def proof(certificate: dict[str, Any] | None) -> str:
    """Return "exact", "exact with VNNI" or "not proved" for a certificate, "–" where there is nothing to prove."""
    if certificate is None:
        return "–"
    if not certificate.get("exact"):
        return "not proved"
    return "exact" if certificate.get("portable", True) else "exact with VNNI"


METRICS = {"sqnr": "SQNR in dB", "kl": "KL divergence in nats", "cosine": "cosine", "top1": "top-1 agreement"}


def metric(name: str) -> str:
    """Return the name of a metric of :func:`intact8.sensitivity` on an axis; a user's own keeps its name.

    Example:
        >>> metric("sqnr"), metric("accuracy")
        ('SQNR in dB', 'accuracy')
    """
    return METRICS.get(name, name)


FILTERS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (shape, size, amount, decibel, milliseconds, sqnr_step, proof, metric, number, percent)
}
"""Filters of the templates."""
