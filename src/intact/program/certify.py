"""Certificates: what is proved about every integer op, so that engines of float arithmetic give its exact integers.

1. Tie margin: 1/(2b) exceeds the largest error of any claimed engine's float formula (``intact.arithmetic.tie_free``).
2. Accumulator: Σ|w|·max|x − z| + |bias| < 2³¹; below 2²⁴ a float32 evaluation of the sum is exact, too.
3. Saturation: (|w₁| + |w₂|)·255 ≤ 32767 for the two largest weights of every channel, so that x86 kernels without
   VNNI, which add pairs of products in int16, cannot saturate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from intact.arithmetic.tie_free import error_bound, negative_steps
from intact.arithmetic.windows import adaptive_windows
from intact.errors import ProgramError

from .ops import Array, Op, Tensor
from .program import Program

ENGINES = ("reference", "onednn", "onnxruntime", "openvino")
"""Engines a certificate can claim. All but the reference, which computes integers, have the margin's error bound."""

CERTIFIED = frozenset({"conv", "linear", "add", "mul", "mean", "avg_pool", "adaptive_avg_pool", "table"})
INT32, FLOAT32, INT16 = 1 << 31, 1 << 24, 32767


def certify(program: Program, engines: Sequence[str] = ("reference", "onednn")) -> Program:
    """The program with a certificate on every integer op, and ``needs`` set.

    A certificate is a JSON object: ``exact`` (all proved), ``margin`` (smallest 1/(2b) − error bound, null without
    multipliers), ``b_min``, ``b_max``, ``accumulator`` (largest possible |sum|), ``float32_exact``, ``saturation``
    (largest sum of two products), ``portable``, ``engines``, ``reason`` (where not exact); ``gain_error`` is kept.

    Args:
        program: checked.
        engines: names from ENGINES the certificates claim.

    Raises:
        ProgramError: an unknown engine.
    """
    unknown = set(engines) - set(ENGINES)
    if unknown:
        raise ProgramError(
            f"unknown engine {min(unknown)!r}", where="certify", remedy=f"choose from {', '.join(ENGINES)}"
        )
    ops = tuple(
        replace(op, certificate=_certificate(op, program.tensors, tuple(engines))) if op.kind in CERTIFIED else op
        for op in program.ops
    )
    return replace(program, ops=ops, needs=_needs(ops))


def recheck(program: Program) -> None:
    """Prove the stored certificates again.

    Raises:
        ProgramError: a stored certificate claims what does not hold, or ``needs`` is not what the weights need.
    """
    for op in program.ops:
        if op.certificate is None:
            continue
        if op.kind not in CERTIFIED:
            raise ProgramError(f"{op.kind} takes no certificate", where=op.name, remedy="convert the model again")
        engines = op.certificate.get("engines")
        if not isinstance(engines, list) or not all(e in ENGINES for e in engines):
            raise ProgramError("the certificate names unknown engines", where=op.name, remedy="upgrade intact")
        proved = _certificate(op, program.tensors, tuple(engines))
        for key in sorted(set(proved) | set(op.certificate)):
            if not _agree(op.certificate.get(key), proved.get(key)):
                raise ProgramError(
                    f"the certificate does not hold: {key} is stored as {op.certificate.get(key)!r:.60}",
                    where=op.name, why=f"{proved.get(key)!r:.60} is what the op's numbers give",
                    remedy="the file was altered; convert the model again",
                )  # fmt: skip
    certified = any(op.certificate for op in program.ops)
    if certified and set(_needs(program.ops)) - set(program.needs):
        raise ProgramError(
            "the program does not state that it needs VNNI", where="needs",
            remedy="the file was altered; convert the model again",
        )  # fmt: skip


def uncertified(program: Program) -> list[tuple[Op, str]]:
    """Integer ops that are not proved exact, each with the reason."""
    out = []
    for op in program.ops:
        if op.kind not in CERTIFIED:
            continue
        if op.certificate is None:
            out.append((op, "no certificate"))
        elif not op.certificate.get("exact"):
            out.append((op, str(op.certificate.get("reason", "not exact"))))
    return out


def _agree(stored: Any, proved: Any) -> bool:
    if isinstance(stored, float) and isinstance(proved, float):
        return math.isclose(stored, proved, rel_tol=1e-9, abs_tol=1e-12)
    return bool(stored == proved and type(stored) is type(proved))


def _needs(ops: Sequence[Op]) -> tuple[str, ...]:
    return ("vnni",) if any(op.certificate and not op.certificate.get("portable", True) for op in ops) else ()


def _certificate(op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...]) -> dict[str, Any]:
    reach = [_reach(tensors[name]) for name in op.inputs]
    float_engines = any(name != "reference" for name in engines)
    if op.kind in ("conv", "linear"):
        accumulator, saturation = _affine_bounds(op, reach[0])
        parts = _affine_parts(op, tensors[op.name])
    else:
        accumulator, saturation = _sum_bound(op, tensors, reach), 0
        parts = _parts(op)
    b = np.concatenate([np.atleast_1d(part[0]) for part in parts]) if parts else np.array([], np.int64)
    bound = [np.broadcast_to(part[1], np.shape(part[0])).ravel() for part in parts]
    margins = 1.0 / (2.0 * b) - (np.concatenate(bound) if float_engines and parts else 0.0)
    margin = float(margins.min()) if parts else None
    reasons = []
    if accumulator >= INT32:
        reasons.append(f"sums up to {accumulator} do not fit int32")
    if margin is not None and margin <= 0:
        worst = int(np.argmin(margins))
        reasons.append(
            f"b = {b[worst]} of entry {worst} leaves no margin over float rounding (needs b below {_limit(margins, b)})"
        )
    out: dict[str, Any] = {
        "exact": not reasons,
        "margin": margin,
        "b_min": int(b.min()) if parts else None,
        "b_max": int(b.max()) if parts else None,
        "accumulator": accumulator,
        "float32_exact": accumulator < FLOAT32,
        "saturation": saturation,
        "portable": saturation <= INT16,
        "engines": list(engines),
    }
    if reasons:
        out["reason"] = "; ".join(reasons)
    if op.certificate is not None and "gain_error" in op.certificate:
        out["gain_error"] = op.certificate["gain_error"]
    return out


def _limit(margins: Array, b: Array) -> int:
    """The b at which the entry with the smallest margin would have none."""
    worst = int(np.argmin(margins))
    bound = 1.0 / (2.0 * b[worst]) - margins[worst]
    return int(1.0 / (2.0 * bound))


def _reach(t: Tensor) -> int:
    """Largest |x − z|."""
    z = t.zero_point or 0
    return max(z, 255 - z)


def by_output(op: Op) -> Array:
    """The weight as (O, products per output), int64."""
    w = op.arrays["weight"].astype(np.int64)
    if op.kind == "conv" and op.attrs["transposed"]:
        groups = op.attrs["groups"]
        w = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1).swapaxes(1, 2)
        return w.reshape(groups * w.shape[1], -1)
    return w.reshape(w.shape[0], -1)


def _affine_bounds(op: Op, reach: int) -> tuple[int, int]:
    magnitude = np.abs(by_output(op))
    accumulator = magnitude.sum(axis=1) * reach + np.abs(op.arrays["bias"].astype(np.int64))
    top = np.partition(magnitude, -2, axis=1)[:, -2:] if magnitude.shape[1] > 1 else magnitude
    return int(accumulator.max()), int(top.sum(axis=1).max()) * 255


Part = tuple[Array, Array]
"""Denominators, and the error bound of each."""


def _affine_parts(op: Op, y: Tensor) -> list[Part]:
    bias = np.abs(op.arrays["bias"].astype(np.float64))
    a, b = op.multipliers()
    residual = 255.0 * op.attrs["residual_a"] / b
    if "a_neg" not in op.arrays:
        return [(b, error_bound("affine", bias * a / b, residual))]
    a_neg, b_neg = op.arrays["a_neg"].astype(np.int64), op.arrays["b_neg"].astype(np.int64)
    below = negative_steps(y.zero_point or 0, op.attrs["lo"])
    negative = error_bound("leaky", bias * np.abs(a_neg) / b_neg, result_steps=below)
    # A negative slope turns negative sums into results above the zero point.
    negative = np.where(a_neg < 0, error_bound("leaky", bias * np.abs(a_neg) / b_neg), negative)
    return [(b, error_bound("leaky", bias * a / b)), (b_neg, negative)]


def _parts(op: Op) -> list[Part]:
    t = op.attrs
    if op.kind == "table":
        return []
    if op.kind == "add":
        b = np.array([t["b"]], np.int64)
        return [(b, error_bound("sum", 0.0, 255.0 * sum(abs(a) for a in t["a"]) / b))]
    denominators = [row[2] for row in t["multipliers"]] if "multipliers" in t else [t["b"]]
    return [(np.array(denominators, np.int64), error_bound("scaled"))]


def _sum_bound(op: Op, tensors: dict[str, Tensor], reach: list[int]) -> int:
    """Largest |integer| an engine has to hold before it multiplies."""
    t, shape = op.attrs, tensors[op.inputs[0]].shape
    if op.kind == "mul":
        return reach[0] * reach[1]
    if op.kind == "mean":
        return reach[0] * math.prod(d for i, d in enumerate(shape) if i in t["dims"] and d is not None)
    if op.kind == "avg_pool":
        return reach[0] * int(math.prod(t["kernel"]))
    if op.kind == "adaptive_avg_pool":
        size = [d for d in shape[2:] if d is not None]
        return reach[0] * int(adaptive_windows(size, t["output_size"])[1].max())
    return max(reach)


__all__ = ["CERTIFIED", "ENGINES", "by_output", "certify", "recheck", "uncertified"]
