"""Certificates: what is proved about every integer op, so that engines of float arithmetic give its exact integers.

1. Tie margin: 1/(2b) exceeds the largest error of any claimed engine's float formula (``intact.arithmetic.tie_free``).
   OpenVINO's errors are larger where terms are added; an op it has no bound for, or no margin, does not claim it.
2. Accumulator: Σ|w|·max|x − z| + |bias| < 2³¹; below 2²⁴ a float32 evaluation of the sum is exact, too.
3. Saturation: (|w₁| + |w₂|)·255 ≤ 32767 for the two largest weights of every channel, so that x86 kernels without
   VNNI, which add pairs of products in int16, cannot saturate.
4. Range: every number of a claimed engine's formula fits the type that holds it (``intact.program.holds``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from intact.arithmetic.dimensions import known
from intact.arithmetic.dynamic import sum_bound
from intact.arithmetic.norms import MIDDLE
from intact.arithmetic.tie_free import error_bound, negative_steps
from intact.arithmetic.windows import adaptive_divisors
from intact.errors import ProgramError

from .dimensions import largest
from .holds import affine_sums, by_output, holds, magnitudes, row_sums
from .ops import Array, Op, Tensor
from .program import Program
from .shapes import axis_of

ENGINES = ("reference", "onednn", "onnxruntime", "openvino")
"""Engines a certificate can claim. All but the reference, which computes integers, have the margin's error bound."""

CERTIFIED = frozenset({
    "conv", "linear", "add", "mul", "matmul", "mean", "avg_pool", "adaptive_avg_pool", "table", "softmax", "layer_norm",
    "rms_norm", "dynamic_linear", "lstm", "gru", "rnn",
})  # fmt: skip
DYNAMIC = frozenset({"dynamic_linear", "lstm", "gru", "rnn"})
"""Certified kinds with float32 results: exact integer sums, then IEEE operations without any margin to prove."""

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
    tensors = largest(program).tensors
    ops = tuple(
        replace(op, certificate=prove(op, tensors, tuple(engines))) if op.kind in CERTIFIED else op
        for op in program.ops
    )
    return replace(program, ops=ops, needs=needs_of(ops))


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


def unclaimed(program: Program, engine: str) -> Op | None:
    """The first integer op whose certificate does not claim the engine; None where all do.

    Without a certificate, or with one that is not exact, nothing is claimed.
    """
    for op in program.ops:
        c = op.certificate or {}
        if op.kind in CERTIFIED and not (c.get("exact") and engine in c.get("engines", ())):
            return op
    return None


def by_claim(program: Program, engines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The engines in the order in which "auto" looks at them: those that every certificate claims, the others, the
    reference.

    Example:
        >>> by_claim(Program({}, (), (), ()), ("onednn", "reference"))
        (('onednn',), (), ('reference',))
    """
    claimed = tuple(name for name in engines if name != "reference" and unclaimed(program, name) is None)
    rest = tuple(name for name in engines if name != "reference" and name not in claimed)
    return claimed, rest, tuple(name for name in engines if name == "reference")


def needs_of(ops: Sequence[Op]) -> tuple[str, ...]:
    """What certified ops need of a CPU: ``("vnni",)`` or nothing."""
    return ("vnni",) if any(op.certificate and not op.certificate.get("portable", True) for op in ops) else ()


def prove(op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...]) -> dict[str, Any]:
    """The certificate of an op of a kind in CERTIFIED, see :func:`certify`."""
    reach = [_reach(tensors[name]) for name in op.inputs]
    rows: Array | None = None
    if op.kind in DYNAMIC:
        weights = [a.reshape(-1, a.shape[-1]) for role, a in op.arrays.items() if role.startswith("weight")]
        accumulator, saturation = max(map(sum_bound, weights)), max(map(_largest_pair, weights))
    elif op.kind in ("conv", "linear"):
        magnitude = magnitudes(op)
        rows, saturation = row_sums(magnitude), _pair_of(magnitude)
        accumulator = int(affine_sums(op, rows, reach[0]).max())
    else:
        accumulator, saturation = _sum_bound(op, tensors, reach), 0
    engines = tuple(name for name in engines if _claimed(name, op, tensors, accumulator, rows))
    b, margins = _margins(op, tensors, engines)
    margin = float(margins.min()) if len(b) else None
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
        "b_min": int(b.min()) if len(b) else None,
        "b_max": int(b.max()) if len(b) else None,
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


def _margins(op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...]) -> tuple[Array, Array]:
    """Every denominator, and how far 1/(2b) is above the error bound."""
    floats = tuple(name for name in engines if name != "reference")
    parts: list[Part] = []
    if op.kind in ("conv", "linear"):
        parts = _affine_parts(op, tensors[op.name], floats)
    elif op.kind not in DYNAMIC:
        parts = _parts(op, tensors, floats)
    if not parts:
        return np.array([], np.int64), np.array([])
    b = np.concatenate([np.atleast_1d(part[0]) for part in parts])
    bound = np.concatenate([np.broadcast_to(part[1], np.shape(part[0])).ravel() for part in parts])
    return b, 1.0 / (2.0 * b) - (bound if floats else 0.0)


def _claimed(engine: str, op: Op, tensors: dict[str, Tensor], accumulator: int, rows: Array | None) -> bool:
    """Whether the engine's formula can be proved for these numbers. The reference computes integers."""
    if engine == "reference" or op.kind in DYNAMIC:
        return engine != "openvino"
    bounded = engine != "openvino" or _bounded_in_openvino(op, tensors, accumulator, rows)
    return bounded and holds(engine, op, tensors, accumulator, rows)


OPENVINO = frozenset({"conv", "linear", "add", "mul", "matmul", "mean", "avg_pool", "adaptive_avg_pool"})
"""Kinds whose evaluation by OpenVINO has an error bound. Tables have none: they may be evaluated as the functions they
were made from, and although all 256 entries are compared when a program is prepared, another kernel does that."""


def _bounded_in_openvino(op: Op, tensors: dict[str, Tensor], accumulator: int, rows: Array | None) -> bool:
    """Whether the error of OpenVINO's evaluation has a bound, and one below 1/(2b): not for sums of one term
    or more than two, nor for means of sums that float32 cannot hold or of a size that depends on the input. Of linear
    layers z_x·Σw is subtracted in float32, which must hold the sums before, too, and so may be what the zero points of
    a product of two activations make of its sums."""
    if op.kind not in OPENVINO or (op.kind == "add" and len(op.inputs) != 2):
        return False
    if op.kind in ("avg_pool", "adaptive_avg_pool") and accumulator >= FLOAT32:  # so long a mean has no margin
        return False
    if op.kind == "mean" and _count(op, tensors) is None:
        return False
    if op.kind == "matmul":
        terms = tensors[op.inputs[0]].shape[-1]
        return isinstance(terms, int) and 255 * 255 * terms < FLOAT32 and _has_margin(op, tensors)
    if op.kind == "linear" and tensors[op.inputs[0]].zero_point and rows is not None:
        return int(affine_sums(op, rows, 255).max()) < FLOAT32 and _has_margin(op, tensors)
    return _has_margin(op, tensors)


def _has_margin(op: Op, tensors: dict[str, Tensor]) -> bool:
    return bool(_margins(op, tensors, ("openvino",))[1].min() > 0)


def _limit(margins: Array, b: Array) -> int:
    """The b at which the entry with the smallest margin would have none."""
    worst = int(np.argmin(margins))
    bound = 1.0 / (2.0 * b[worst]) - margins[worst]
    return int(1.0 / (2.0 * bound))


def _reach(t: Tensor) -> int:
    """Largest |x − z|."""
    z = t.zero_point or 0
    return max(z, 255 - z)


def _pair_of(magnitude: Array) -> int:
    """Largest sum of two products of an output with bytes; overwrites ``magnitude``."""
    rows, largest = np.arange(len(magnitude)), magnitude.argmax(axis=1)
    first = magnitude[rows, largest].astype(np.int64)
    magnitude[rows, largest] = 0
    return int((first + magnitude.max(axis=1)).max()) * 255


def _largest_pair(rows: Array) -> int:
    """Largest sum of two products of a row with bytes."""
    magnitude = np.sort(np.abs(rows).view(np.uint8), axis=1)[:, -2:]
    return 255 * int(magnitude.sum(axis=1, dtype=np.int64).max())


Part = tuple[Array, Array]
"""Denominators, and the error bound of each."""


def _affine_parts(op: Op, y: Tensor, engines: tuple[str, ...]) -> list[Part]:
    bias = np.abs(op.arrays["bias"].astype(np.float64))
    a, b = op.multipliers()
    residual = 255.0 * op.attrs["residual_a"] / b
    if "a_neg" not in op.arrays:
        form = "fused" if op.attrs["residual_a"] else "affine"
        return [(b, error_bound(form, bias * a / b, residual, engines=engines))]
    a_neg, b_neg = op.arrays["a_neg"].astype(np.int64), op.arrays["b_neg"].astype(np.int64)
    steps = bias * np.abs(a_neg) / b_neg
    below = negative_steps(y.zero_point or 0, op.attrs["lo"])
    negative = error_bound("leaky", steps, result_steps=below, engines=engines)
    # A negative slope turns negative sums into results above the zero point.
    negative = np.where(a_neg < 0, error_bound("leaky", steps, engines=engines), negative)
    return [(b, error_bound("leaky", bias * a / b, engines=engines)), (b_neg, negative)]


def _parts(op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...]) -> list[Part]:
    t = op.attrs
    if op.kind in ("table", "softmax", "layer_norm", "rms_norm"):  # nothing depends on how an engine rounds
        return []
    if op.kind == "add":
        b = np.array([t["b"]], np.int64)
        return [(b, error_bound("sum", 0.0, 255.0 * sum(abs(a) for a in t["a"]) / b, engines=engines))]
    if op.kind == "mean":
        b = np.array([t["b"]], np.int64)
        terms = 255.0 * (_count(op, tensors) or 0) * abs(t["a"]) / b
        return [(b, error_bound("mean", 0.0, terms, engines=engines))]
    denominators = [row[2] for row in t["multipliers"]] if "multipliers" in t else [t["b"]]
    return [(np.array(denominators, np.int64), error_bound("scaled", engines=engines))]


def _count(op: Op, tensors: dict[str, Tensor]) -> int | None:
    """Elements of a mean, None where that depends on the input."""
    sizes = [tensors[op.inputs[0]].shape[d] for d in op.attrs["dims"]]
    return math.prod(d for d in sizes if isinstance(d, int)) if all(isinstance(d, int) for d in sizes) else None


def _sum_bound(op: Op, tensors: dict[str, Tensor], reach: list[int]) -> int:
    """Largest |integer| an engine has to hold before it multiplies."""
    t, shape = op.attrs, tensors[op.inputs[0]].shape
    if op.kind == "mul":
        return reach[0] * reach[1]
    if op.kind == "matmul":
        terms = shape[-1]
        return reach[0] * reach[1] * terms if isinstance(terms, int) else INT32  # a sum over the batch: not proved
    if op.kind == "softmax":
        length = shape[axis_of(op, shape)]
        return int(op.arrays["table"][0]) * length if isinstance(length, int) else INT32
    if op.kind in ("layer_norm", "rms_norm"):
        least = MIDDLE if op.kind == "layer_norm" else reach[0]
        return int(math.prod(op.attrs["shape"])) * least * least
    if op.kind == "mean":
        return reach[0] * math.prod(known(shape[i] for i in t["dims"]))
    if op.kind == "avg_pool":
        return reach[0] * int(math.prod(t["kernel"]))
    if op.kind == "adaptive_avg_pool":
        sizes = adaptive_divisors(known(shape[2:]), t["output_size"], 8)  # two per dimension at most
        return reach[0] * max(sizes or {1})
    return max(reach)


__all__ = [
    "CERTIFIED",
    "ENGINES",
    "by_claim",
    "by_output",
    "certify",
    "needs_of",
    "prove",
    "unclaimed",
    "uncertified",
]
