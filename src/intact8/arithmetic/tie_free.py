"""Tie-free multipliers: rationals a/b with odd b, so that no engine's float noise can reach a rounding boundary.

With M = a/b and b odd, M·acc = k + ½ would need 2·a·acc = (2k+1)·b: even = odd. So every exact value is at least
1/(2b) away from a boundary, and an engine whose float evaluation errs by less gives the exact integer.

Units: everything below is counted in steps of the output (values divided by the output scale). An unsaturated
result lies within ±256 steps. ``bias_steps`` is |bias|·M, ``residual_steps`` is Σ 255·r_j over the other terms.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

U = 2.0**-24
"""Unit roundoff of float32."""

LARGEST = 8191
"""Denominators never exceed this: a·acc then fits int64 with room, and a·b products fit float64 exactly."""

LARGEST_NEGATIVE = (1 << 20) - 1
"""Denominators for negative sums (leaky ReLU): their results lie within the few steps below the zero point."""

STEPS = 256.0
"""Bound of an unsaturated result, in output steps."""

LARGEST_STEPS = 393216.0
"""What bias and residual steps, times their roundings, may add up to per rounding of the result: beyond, roundings of
roundings may be more than what lies between an unsaturated result and STEPS (``proofs/Contract.v``)."""


class Roundings(NamedTuple):
    """How often an engine rounds, and what: error ≤ U·(256·result + bias_steps·bias + residual_steps·residual)."""

    result: int
    bias: int
    residual: int


FORMS: dict[str, Roundings] = {
    # acc → f32, ·ws, ws stored: 3 on 256 + bias + residual; bias stored: 1 on bias; the sum: 1 on 256 + residual;
    # residual scale stored, fma: 1 on residual, 1 on 256; + z: 1 on 256. One more on all for
    # a real output scale.
    "affine": Roundings(7, 5, 6),
    # the same without residual and z, then · slope and slope stored, 1 more for + z.
    "leaky": Roundings(9, 7, 0),
    # Σ r_j·x_j with r_j stored, and the zero points gathered in one constant (ONNX Runtime's QLinearAdd).
    "sum": Roundings(4, 0, 8),
    # one exact integer times one multiplier computed from three scales, + z.
    "scaled": Roundings(6, 0, 0),
    # one exact sum, divided by an integer.
    "resize": Roundings(1, 0, 0),
}
"""Roundings of the float formulas of onednn and onnxruntime: the larger number of the two (docs/arithmetic.md)."""
# An affine operation with a residual in the same rounding, and a mean, have names of their own for OpenVINO's sake.
FORMS |= {"fused": FORMS["affine"], "mean": FORMS["scaled"]}

OPENVINO: dict[str, Roundings] = {
    # acc → f32, M stored (for the unit of the input, and times it: 2), product: 4 on 256 + bias; bias stored: 1 on
    # bias; the sum, + z: 2 on 256. The ends of the FakeQuantize are integers, its factor is 1.
    "affine": Roundings(6, 5, 0),
    # the same, then slope stored and · slope.
    "leaky": Roundings(8, 5, 0),
    # M, divided by the unit of the residual, too: 5 on 256 + bias + residual, 2 more on bias; the two sums on
    # 256 + residual each; FakeQuantize (below): ends 3, δ 1 and the product 1 on 256 + residual, γ 2, + δ 1 on 256.
    "fused": Roundings(15, 7, 12),
    # one term as the output of a FakeQuantize: ends 3, scale from them 2, product and sum 2, its shift 3: 10 on the
    # terms; their sum, and a negative unit: 2 on the terms; FakeQuantize: ends 3 and δ 1 on 256 + terms, product 1 on
    # the terms, γ 2, + δ 1 on 256.
    "sum": Roundings(7, 0, 17),
    # product of two integers 1, of their units 1; FakeQuantize: ends 3, γ 2, product 1, + δ 1. Pools: at most 7.
    "scaled": Roundings(9, 0, 0),
    # exact sum times 1/n stored: 2 on the mean; FakeQuantize as in "sum", the mean of the raw integers being the term.
    "mean": Roundings(7, 0, 7),
    # one exact sum, divided by an integer.
    "resize": Roundings(1, 0, 0),
}
"""Roundings of OpenVINO's formulas, as ``intact8.engines.openvino`` builds them (docs/arithmetic.md).

Its FakeQuantize with the ends l and h evaluates R(x·γ + δ), γ = 255/(h − l), δ = −l·γ. An error of the ends moves every
value between them by no more than itself; γ's own two roundings act on x·γ + δ, which is at most 256.
"""

ROUNDINGS: dict[str, dict[str, Roundings]] = {
    "onednn": FORMS,
    "onnxruntime": FORMS,
    "openvino": OPENVINO,
    "native": FORMS,
}
"""Engine → roundings of its formulas."""


def _counted(form: str, engines: Collection[str] | None) -> set[Roundings]:
    known = ROUNDINGS.values() if engines is None else [ROUNDINGS[name] for name in engines if name in ROUNDINGS]
    return {FORMS[form], *(roundings[form] for roundings in known if form in roundings)}


def error_bound(
    form: str,
    bias_steps: Array | float = 0.0,
    residual_steps: Array | float = 0.0,
    *,
    result_steps: Array | float = STEPS,
    engines: Collection[str] | None = None,
) -> Array:
    """Return the largest error, in output steps, of any engine's float evaluation of ``form`` (a key of FORMS).

    Args:
        form: key of FORMS.
        bias_steps, residual_steps: see above.
        result_steps: bounds the unsaturated result: less than STEPS for the negative side of a leaky ReLU.
        engines: whose evaluation is meant; None: any engine's.

    Returns:
        float64, of the broadcast shape; at least half a step beyond LARGEST_STEPS, where nothing is proved: no b has a
        margin then.

    Example:
        >>> bool(error_bound("sum", 0.0, 300.0, engines=("onednn",)) < error_bound("sum", 0.0, 300.0))
        True
    """
    bias, residual = np.asarray(bias_steps, np.float64), np.asarray(residual_steps, np.float64)
    bounds = []
    for n in _counted(form, engines):
        steps = n.bias * bias + n.residual * residual
        bound = U * (n.result * result_steps + steps)
        bounds.append(np.where(steps <= LARGEST_STEPS * n.result, bound, np.maximum(bound, 0.5)))
    return np.asarray(functools.reduce(np.maximum, bounds))


def largest_denominator(
    form: str,
    bias_steps: Array | float = 0.0,
    residual_steps: Array | float = 0.0,
    *,
    result_steps: float = STEPS,
    cap: int = LARGEST,
    engines: Collection[str] | None = None,
) -> Array:
    """Return the largest odd b ≤ cap with 1/(2b) > error_bound(…), at least 1; int64, of the broadcast shape.

    Example:
        >>> int(largest_denominator("affine"))
        4681
    """
    bound = error_bound(form, bias_steps, residual_steps, result_steps=result_steps, engines=engines)
    limit = np.ceil(1.0 / (2.0 * bound)) - 1
    b = np.minimum(limit, cap).astype(np.int64)
    return np.asarray(np.maximum(np.where(b % 2 == 0, b - 1, b), 1))


def largest_ratio(terms: int, *, engines: Collection[str] | None = None) -> float:
    """Return the largest ratio a/b that each of so many terms of a sum may have.

    All together they stay within what is proved, and with b = 1 they take at most a quarter of the tie margin.

    Example:
        >>> round(largest_ratio(2, engines=("native",)))
        386
    """
    return min(min(LARGEST_STEPS * n.result, 0.25 / U) / (255 * terms * n.residual) for n in _counted("sum", engines))


IN_CACHE = 50_000
"""Numbers, about, of an array that is worked on in several steps without leaving the cache."""


def ratios_above(m: Array, b_max: Array) -> tuple[Array, Array]:
    """Return the smallest a/b ≥ m with odd b ≤ b_max and a ≥ 1, channel by channel.

    Args:
        m: multipliers > 0, float64, shape (C,).
        b_max: odd limits, int64, shape (C,).

    Returns:
        a, b as int64, shape (C,). For m below 1/b_max that is 1/b_max: the smallest multiplier there is.
    """
    m, b_max = np.asarray(m, np.float64), np.asarray(b_max, np.int64)
    a_out, b_out = np.empty(m.shape, np.int64), np.empty(m.shape, np.int64)
    for limit in np.unique(b_max):
        rows = np.flatnonzero(b_max == limit)
        # Only the upper two thirds of the odd numbers: a smaller b has an odd multiple there, or a better neighbour.
        b = np.arange(max(1, int(limit) // 3) | 1, int(limit) + 1, 2, dtype=np.float64)
        for part in np.array_split(rows, max(1, len(rows) * len(b) // IN_CACHE)):
            a = m[part, None] * b
            a *= 1 - 1e-14
            np.maximum(1, np.ceil(a, out=a), out=a)
            best = np.argmin(a / b, axis=1)
            b_out[part] = b[best]
            a_out[part] = a[np.arange(len(part)), best]
    return a_out, b_out


def negative_steps(zero_point: int) -> float:
    """Return the bound of an unsaturated result below zero, in output steps: down to 0, and the rounding.

    A clamp above 0 makes it no smaller: engines round the sum with the zero point, too.
    """
    return zero_point + 1.0


def nearest_ratios(m: Array, b_max: Array) -> tuple[Array, Array]:
    """Return the a/b nearest to ``m`` (any sign) with odd b ≤ b_max, element by element; 0/1 where nothing is nearer
    than 0.

    Numerators are tried up to 64: beyond that the last denominators are dense enough.
    """
    m, b_max = np.asarray(m, np.float64), np.asarray(b_max, np.int64)
    size = np.maximum(np.abs(m), 1e-300)
    top = np.floor(size * b_max) + 1.0
    a = np.maximum(top[:, None] - np.arange(64), 1.0)
    b = np.rint((a / size[:, None] - 1) / 2) * 2 + 1
    b = np.clip(b, 1, b_max[:, None])
    a = np.rint(size[:, None] * b)
    best = np.argmin(np.abs(a / b - size[:, None]), axis=1)
    rows = np.arange(len(m))
    chosen_a, chosen_b = a[rows, best].astype(np.int64), b[rows, best].astype(np.int64)
    return np.where(m < 0, -chosen_a, chosen_a), np.where(chosen_a == 0, 1, chosen_b)


def best_ratios(
    ratios: Sequence[float], b_max: int, *, exact_first: bool = False, tolerance: float = 0.02
) -> tuple[list[int], int]:
    """Return the numerators and one common odd denominator for several ratios.

    Args:
        ratios: > 0 or < 0, never 0.
        b_max: odd limit.
        exact_first: the output scale may move by up to ``tolerance``, so that the first ratio is met exactly by
            whatever a₀/b is chosen; the other ratios follow the move, and only their proportions to the first matter.
        tolerance: largest relative move of the output scale.

    Returns:
        a: one int per ratio (at least 1 in magnitude), b.

    Example:
        >>> best_ratios([0.5, 0.25], 101)
        ([50, 25], 101)
    """
    r = np.abs(np.asarray(ratios, np.float64))
    b = np.arange(max(1, b_max // 2) | 1, b_max + 1, 2, dtype=np.int64)
    candidates = []
    for rounding in (np.floor, np.ceil):
        first = np.maximum(1, rounding(r[0] * b))
        move = first / (b * r[0])
        target = np.multiply.outer(r, b * move) if exact_first else np.multiply.outer(r, b)
        a = np.maximum(1, np.rint(target))
        a[0] = first if exact_first else np.maximum(1, rounding(r[0] * b))
        # What the wrong ratios cost at the ends of the range, relative to the largest term.
        error = (np.abs(a - target) / target.max(axis=0)).max(axis=0)
        if exact_first:
            error = np.where(np.abs(move - 1) <= tolerance, error, error + np.abs(move - 1))
        best = int(np.argmin(error + 1e-12 * (b[-1] - b)))
        candidates.append((float(error[best]), a[:, best].astype(int), int(b[best])))
    _, a_best, b_best = min(candidates, key=lambda c: c[0])
    return [int(v) * (1 if x > 0 else -1) for v, x in zip(a_best, ratios, strict=True)], b_best
