"""Per-channel scales of weights."""

from __future__ import annotations

import difflib
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic.affine import SMALLEST_SCALE, choose_qparams
from intact8.errors import CalibrationError, RecipeError

Array = npt.NDArray[Any]

WEIGHT_OBSERVERS = ("minmax", "mse")

PAIR_LIMIT = 126
"""What the two largest weights of a channel may add up to, in steps, before rounding.

Rounding adds at most 1, and (126 + 1)·255 ≤ 32767: no x86 kernel that adds pairs of products in int16 saturates
(docs/arithmetic.md, section 5)."""

DEAD = 2.0**-16
"""Smallest scale of a channel, relative to the largest of its tensor.

Channels of zeros, or of what weight decay left behind (1e-33), would ask for scales on which their int32 bias
overflows; 16 bits below its neighbors a channel contributes nothing that 8 bits could show."""


def pairs_can_saturate(qmin: int, qmax: int, portable: bool) -> bool:
    """Return whether scales must keep room for sums of two products in int16, which two integers can exceed."""
    return portable and qmax - qmin > PAIR_LIMIT + 2


_FOUND: dict[bytes, Array] = {}
"""Scales that were searched for, by a digest of the weights and all else that decides them.

Calibration solves for multipliers several times, for several recipes, with the same weights."""

_MOST_FOUND = 1024
"""Layers whose scales are remembered."""

_SHRINK = np.linspace(0.5, 1.0, 11)
_GROW = np.linspace(1.0, 1.1, 9)
_BLOCK = 1 << 16


def weight_scales(w: Array, qmin: int, qmax: int, observer: str = "minmax", portable: bool = True) -> Array:
    """Return a scale per output channel; the zero point is 0.

    - minmax: s = max|w| / max(|qmin|, qmax) (``intact8.arithmetic.affine.choose_qparams``).
    - mse: the s that minimizes Σ (w − s·clamp(R(w/s), qmin, qmax))², searched between half of that and 1.1 times it.
    - portable, 8 bits only: s ≥ max(max|w|/qmax, (|w₁| + |w₂|)/126) for the two largest weights of the channel, so
      that no x86 CPU saturates. Narrower integers satisfy that by themselves.

    Every scale is at least DEAD times the largest one of the tensor, and at least SMALLEST_SCALE.

    Args:
        w: (O, …), O channels first; any float dtype.
        qmin, qmax: ends of the integer range, qmin < 0 < qmax.
        observer: ``minmax`` or ``mse``.
        portable: see above.

    Returns:
        float32 (O,).

    Raises:
        RecipeError: unknown observer, or an integer range that does not contain 0 inside.
        CalibrationError: ``w`` holds NaN or infinity, or has no channel dimension.

    Example:
        >>> weight_scales(np.array([[127.0, 3.0], [126.0, 126.0]]), -127, 127)
        array([1.031746, 2.      ], dtype=float32)
        >>> weight_scales(np.array([[127.0, 3.0], [126.0, 126.0]]), -127, 127, portable=False)
        array([1.      , 0.992126], dtype=float32)
    """
    if observer not in WEIGHT_OBSERVERS:
        near = difflib.get_close_matches(observer, WEIGHT_OBSERVERS, 1)
        raise RecipeError(
            f"there is no weight observer {observer!r}",
            why="weights are ranged per channel by minmax or mse",
            remedy=f"did you mean {near[0]!r}?" if near else "choose minmax or mse",
        )
    if not qmin < 0 < qmax:
        raise RecipeError(f"weights need integers of both signs, not {qmin}..{qmax}", remedy="use -127..127")
    if w.ndim < 1:
        raise CalibrationError("a weight needs a channel dimension", remedy="give an array (O, …)")
    rows = np.ascontiguousarray(w, np.float32).reshape(len(w), -1)
    if not np.isfinite(rows).all():
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        raise CalibrationError(
            f"weights hold NaN or infinity in {len(bad)} of {len(rows)} output channels, first in {bad[0]}",
            why="no integer stands for them",
            remedy="retrain or repair the model",
        )
    if rows.size == 0:
        return np.full(len(rows), SMALLEST_SCALE, np.float32)
    largest, two = _largest(rows)
    scale, _ = choose_qparams(-largest, largest, qmin, qmax, True)
    # choose_qparams gives a channel of zeros the scale 1, which would make its bias coarse.
    scale = np.where(largest == 0, 0.0, scale.astype(np.float64))
    lower = np.zeros(len(rows))
    if pairs_can_saturate(qmin, qmax, portable):
        lower = np.maximum(largest / qmax, two / PAIR_LIMIT)
        scale = np.maximum(scale, lower)
    # The floor comes before the search, which could move it otherwise.
    floor = max(DEAD * float(scale.max()), SMALLEST_SCALE)
    scale = np.maximum(scale, floor)
    if observer == "mse":
        scale = _remembered_smallest_error(rows, scale, np.maximum(lower, floor), qmin, qmax)
    result: Array = scale.astype(np.float32)
    return result


def _largest(rows: Array) -> tuple[Array, Array]:
    """Return the largest magnitude of every channel, and the sum of its two largest ones, in float64."""
    count, block = min(2, rows.shape[1]), max(1, _BLOCK // rows.shape[1])
    two = np.empty((len(rows), count), np.float64)
    for i in range(0, len(rows), block):
        two[i : i + block] = np.partition(np.abs(rows[i : i + block]), -count, axis=1)[:, -count:]
    return two.max(axis=1), two.sum(axis=1)


def _remembered_smallest_error(rows: Array, start: Array, lower: Array, qmin: int, qmax: int) -> Array:
    """Return what :func:`_smallest_error` does, from memory where it is asked again."""
    digest = hashlib.blake2b(repr((rows.shape, qmin, qmax)).encode())
    for part in (rows, start, lower):
        digest.update(part.data)
    key = digest.digest()
    if (found := _FOUND.get(key)) is None:
        found = _FOUND[key] = _smallest_error(rows, start, lower, qmin, qmax)
        for oldest in list(_FOUND)[:-_MOST_FOUND]:
            _FOUND.pop(oldest, None)
    return found


def _smallest_error(rows: Array, start: Array, lower: Array, qmin: int, qmax: int) -> Array:
    """Return the candidate of least squared error per channel, and the start among equals."""
    best = start.copy()
    block = max(1, _BLOCK // rows.shape[1])
    for i in range(0, len(rows), block):
        part, least, scale = rows[i : i + block], lower[i : i + block], start[i : i + block]
        error = _errors(part, scale, qmin, qmax)
        for factors in (np.concatenate([_SHRINK, _GROW]), np.linspace(0.98, 1.02, 5)):
            center = best[i : i + block].copy()
            for factor in factors:
                candidate = np.maximum(center * factor, least)
                other = _errors(part, candidate, qmin, qmax)
                better = other < error
                best[i : i + block][better], error[better] = candidate[better], other[better]
    return best


def _errors(rows: Array, scale: Array, qmin: int, qmax: int) -> Array:
    s = scale.astype(np.float32)[:, None]
    q = rows / s
    np.rint(q, out=q)
    np.clip(q, qmin, qmax, out=q)
    q *= s
    q -= rows
    error: Array = np.einsum("oi,oi->o", q, q, dtype=np.float64)
    return error
