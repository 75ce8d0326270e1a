"""Certificates: what is proved about every integer op, so that engines of float arithmetic give its exact integers.

1. Tie margin: 1/(2b) exceeds the largest error of any claimed engine's float formula (``intact8.arithmetic.tie_free``).
   OpenVINO's errors are larger where terms are added; an op it has no bound for, or no margin, does not claim it.
2. Accumulator: Σ|w|·max|x − z| + |bias| < 2³¹; below 2²⁴ a float32 evaluation of the sum is exact, too.
3. Saturation: (|w₁| + |w₂|)·255 ≤ 32767 for the two largest weights of every channel, so that x86 kernels without
   VNNI, which add pairs of products in int16, cannot saturate.
4. Range: every number of a claimed engine's formula fits the type that holds it.

What is proved of a kind is declared with the kind (``intact8.opset.proof``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intact8.arithmetic.tie_free import FORMS, OPENVINO, ROUNDINGS, error_bound
from intact8.errors import EngineError, ProgramError
from intact8.opset import KINDS, Array, Op, Tensor
from intact8.opset.proof import FLOAT32, INT16, INT32, Evaluation, Multipliers, Sums

from .dimensions import largest
from .indices import bounded_inputs
from .program import Program

EVALUATIONS: dict[str, Evaluation] = {
    # Matrix products multiply differences, in parts that float32 holds; a negative slope is computed as M'/M.
    "onednn": Evaluation(FORMS, without_zero=("leaky",), largest={"matmul": math.inf}),
    "onnxruntime": Evaluation(FORMS),
    # Tables are indexed. Windows are summed in float32; multipliers are divided by (docs/arithmetic.md).
    "openvino": Evaluation(
        OPENVINO,
        exactly=("table",),
        without_zero=tuple(OPENVINO),
        largest_input=1 << 22,
        largest=dict.fromkeys(("avg_pool", "adaptive_avg_pool"), FLOAT32),
        terms=(1, 2),
        by_margin=True,
    ),
    # Exact int32 sums, differences taken before products, one float32 formula per kind (docs/arithmetic.md).
    "native": Evaluation(FORMS, own=True),
}
"""Engine → how it evaluates integer operations. The reference computes integers, and is always claimed."""

ENGINES = ("reference", *EVALUATIONS)
"""Engines of this package that a certificate can claim."""


def register(engine: str, evaluation: Evaluation) -> None:
    """Let certificates claim an engine of another package.

    Args:
        engine: its name.
        evaluation: how it evaluates integer operations: what it claims follows from it.

    Raises:
        ProgramError: the name is that of an engine of this package.
    """
    if engine in ENGINES:
        raise ProgramError(
            f"{engine} is an engine of intact8", where="certify.register", remedy="give the engine another name"
        )
    EVALUATIONS[engine] = evaluation
    ROUNDINGS[engine] = dict(evaluation.forms)


def known_engines() -> tuple[str, ...]:
    """Return the engines that a certificate can claim: those of this package, and those that were registered."""
    return ("reference", *EVALUATIONS)


def certifiable(op: Op) -> bool:
    """Return whether operations of this kind take a certificate."""
    return KINDS[op.kind].proof is not None


def certify(program: Program, engines: Sequence[str] = ("reference", "onednn")) -> Program:
    """Prove every integer op: return the program with their certificates, and ``needs`` set.

    A certificate is a JSON object: ``exact`` (all proved), ``margin`` (smallest 1/(2b) − error bound, null without
    multipliers), ``b_min``, ``b_max``, ``accumulator`` (largest possible |sum|), ``float32_exact``, ``saturation``
    (largest sum of two products), ``portable``, ``engines``, ``reason`` (where not exact); ``gain_error`` is kept.

    Args:
        program: checked.
        engines: names from ENGINES the certificates claim.

    Raises:
        ProgramError: an unknown engine.
    """
    unknown = set(engines) - set(known_engines())
    if unknown:
        raise ProgramError(
            f"unknown engine {min(unknown)!r}", where="certify", remedy=f"choose from {', '.join(known_engines())}"
        )
    tensors = largest(program).tensors
    ops = tuple(
        replace(op, certificate=prove(op, tensors, tuple(engines))) if certifiable(op) else op for op in program.ops
    )
    return replace(program, ops=ops, needs=needs_of(ops))


def uncertified(program: Program) -> list[tuple[Op, str]]:
    """Return the integer ops that are not proved exact, each with the reason."""
    out = []
    for op in program.ops:
        if not certifiable(op):
            continue
        if op.certificate is None:
            out.append((op, "no certificate"))
        elif not op.certificate.get("exact"):
            out.append((op, str(op.certificate.get("reason", "not exact"))))
    return out


def unclaimed(program: Program, engine: str) -> Op | None:
    """Return the first integer op that is not proved on the engine; None where all are.

    An engine of this package's own code that a certificate does not name is proved here: files do not know engines
    that came after them. Without a certificate, or with one that is not exact, nothing is claimed.
    """
    known: dict[str, Op | None] = vars(program).setdefault("_unclaimed", {})
    if engine not in known:
        known[engine] = _first_unclaimed(program, engine)
    return known[engine]


def _first_unclaimed(program: Program, engine: str) -> Op | None:
    tensors: dict[str, Tensor] | None = None
    for op in program.ops:
        c = op.certificate or {}
        if not certifiable(op) or (c.get("exact") and engine in c.get("engines", ())):
            continue
        if not c.get("exact") or not (engine in EVALUATIONS and EVALUATIONS[engine].own):
            return op
        tensors = largest(program).tensors if tensors is None else tensors
        if not proved_on(op, tensors, engine):
            return op
    return None


def proved_on(op: Op, tensors: dict[str, Tensor], engine: str, numbers: Numbers | None = None) -> bool:
    """Return whether an op is proved exact on the engine; see :func:`prove`."""
    proved = prove(op, tensors, (engine,), numbers)
    return proved["exact"] and engine in proved["engines"]


def note_proved(program: Program, engines: Iterable[str]) -> None:
    """Remember that every op is proved exact on these engines, which nothing has to prove again."""
    vars(program).setdefault("_unclaimed", {}).update(dict.fromkeys(engines))
    vars(program).setdefault("_proved", set()).update(engines)


def with_proofs(program: Program, other: Program) -> Program:
    """Return ``program``, which computes what ``other`` does, with what was proved of that and its file's checksum."""
    known = ("_unclaimed", "_proved", "_identity")
    vars(program).update({key: vars(other)[key] for key in known if key in vars(other)})
    return program


def claim_error(program: Program, engine: str) -> EngineError | None:
    """Return the refusal of an engine that a certificate of the program leaves out and that cannot be proved there.

    This is the one rule for every engine and every way to run a program. An operation without a certificate, one whose
    certificate is not exact on any engine, and one whose certificate only was not asked to claim the engine are no
    reason to refuse: they are told of as remarks.
    """
    proved: set[str] = vars(program).setdefault("_proved", set())
    if engine not in EVALUATIONS or engine in proved:
        return None  # without an entry it computes integers, or is an engine of which nothing is known
    tensors: dict[str, Tensor] | None = None
    for op in program.ops:
        if not certifiable(op) or op.certificate is None or engine in op.certificate.get("engines", ()):
            continue
        tensors = largest(program).tensors if tensors is None else tensors
        reason = _gap(engine, op, tensors, numbers_of(op, tensors))
        if reason:
            return EngineError(
                f"{engine} is not proved to give the integers of this {op.kind}",
                where=op.name,
                why=reason,
                remedy="use engine='auto', which takes an engine that is proved, or engine='reference'",
            )
    proved.add(engine)
    return None


def by_claim(program: Program, engines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the engines in the order in which "auto" looks at them: those that every certificate claims, the others,
    the reference, and last those that may refuse an input which the reference takes.

    Example:
        >>> by_claim(Program({}, (), (), ()), ("onednn", "reference"))
        (('onednn',), (), ('reference',), ())
    """
    fast = [name for name in engines if name != "reference"]
    partial = tuple(name for name in fast if _may_refuse_inputs(program, name))
    claimed = tuple(name for name in fast if name not in partial and unclaimed(program, name) is None)
    rest = tuple(name for name in fast if name not in (*partial, *claimed))
    return claimed, rest, tuple(name for name in engines if name == "reference"), partial


def _may_refuse_inputs(program: Program, engine: str) -> bool:
    """Return whether an int64 input may hold more than the engine takes; every engine checks indices of tables."""
    limit = EVALUATIONS[engine].largest_input if engine in EVALUATIONS else None
    rows = bounded_inputs(program) if limit is not None else {}
    return limit is not None and any(
        program.tensors[name].dtype == "int64" and rows.get(name, limit + 2) > limit + 1 for name in program.inputs
    )


def in_order(program: Program, engines: Sequence[str]) -> list[str]:
    """Return the engines in the order of :func:`by_claim`."""
    return [name for group in by_claim(program, engines) for name in group]


def needs_of(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return what certified ops need of a CPU: ``("vnni",)`` or nothing."""
    return ("vnni",) if any(op.certificate and not op.certificate.get("portable", True) for op in ops) else ()


@dataclass(frozen=True, eq=False, repr=False)
class Numbers:
    """The numbers of an op that proofs for all engines begin with.

    Attributes:
        sums: what engines add up, which takes a look at every weight.
        multipliers: what engines multiply by.
    """

    sums: Sums
    multipliers: list[Multipliers]


def numbers_of(op: Op, tensors: dict[str, Tensor]) -> Numbers:
    """Return the numbers of an op that is :func:`certifiable`."""
    proof = KINDS[op.kind].proof
    assert proof is not None
    return Numbers(proof.sums(op, tensors), proof.multipliers(op, tensors))


def prove(
    op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...], numbers: Numbers | None = None
) -> dict[str, Any]:
    """Return the certificate of an op that is :func:`certifiable`, see :func:`certify`.

    Args:
        op, tensors, engines: what is proved.
        numbers: what :func:`numbers_of` gives; None: it is asked.
    """
    numbers = numbers_of(op, tensors) if numbers is None else numbers
    sums = numbers.sums
    b, margins = _margins(numbers.multipliers, engines)
    together = bool(margins.min(initial=1.0) > 0)  # then every engine has a margin
    able = tuple(name for name in engines if name == "reference" or not _gap(name, op, tensors, numbers, together))
    if able != engines:
        engines, (b, margins) = able, _margins(numbers.multipliers, able)
    margin = float(margins.min()) if len(b) else None
    reasons = []
    if sums.largest >= INT32:
        reasons.append(f"sums up to {sums.largest} do not fit int32")
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
        "accumulator": sums.largest,
        "float32_exact": sums.largest < FLOAT32,
        "saturation": sums.pair,
        "portable": sums.pair <= INT16,
        "engines": list(engines),
    }
    if reasons:
        out["reason"] = "; ".join(reasons)
    if op.certificate is not None and "gain_error" in op.certificate:
        out["gain_error"] = op.certificate["gain_error"]
    return out


def _margins(parts: Sequence[Multipliers], engines: tuple[str, ...]) -> tuple[Array, Array]:
    """Every denominator, and how far 1/(2b) is above the error bound."""
    floats = tuple(name for name in engines if name != "reference")
    if not parts:
        return np.array([], np.int64), np.array([])
    b = np.concatenate([part.b for part in parts])
    bounds = [
        np.broadcast_to(
            error_bound(part.form, part.bias, part.residual, result_steps=part.result, engines=floats), part.b.shape
        )
        for part in parts
    ]
    return b, 1.0 / (2.0 * b) - (np.concatenate(bounds) if floats else 0.0)


def _gap(engine: str, op: Op, tensors: dict[str, Tensor], numbers: Numbers, has_margin: bool = False) -> str:
    """Return what the proof of the engine's formula lacks for these numbers; "" where it is whole.

    Args:
        engine, op, tensors, numbers: what is proved.
        has_margin: whether the engine is known to round by less than the tie margin.
    """
    evaluation, proof = EVALUATIONS[engine], KINDS[op.kind].proof
    assert proof is not None
    form = proof.form(op)
    if form not in evaluation.exactly and form not in evaluation.forms:
        return f"nothing bounds the rounding errors of {engine} for a {op.kind} of the form {form!r}"
    if not proof.fits(evaluation, op, tensors, numbers.sums):
        return f"a number of {engine}'s formula may leave what float32 or int32 holds"
    if evaluation.by_margin and not has_margin and _margins(numbers.multipliers, (engine,))[1].min(initial=1.0) <= 0:
        return f"the rounding errors of {engine} may be larger than the tie margin"
    return ""


def _limit(margins: Array, b: Array) -> int:
    """Return the b at which the entry with the smallest margin would have none."""
    worst = int(np.argmin(margins))
    bound = 1.0 / (2.0 * b[worst]) - margins[worst]
    return int(1.0 / (2.0 * bound))
