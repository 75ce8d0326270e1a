"""Proving the certificates of a file again, with the error bounds of the version that reads it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from intact8.errors import ProgramError
from intact8.opset import KINDS, Op

from .certify import EVALUATIONS, certifiable, known_engines, needs_of, note_proved, numbers_of, prove, proved_on
from .dimensions import largest
from .program import Program

FACTS = ("b_min", "b_max", "accumulator", "float32_exact", "saturation", "portable", "engines")
"""Entries of a certificate that no better proof could change."""

LONGEST_REASON = 1000


def recheck(program: Program) -> None:
    """Prove the stored certificates again. They may claim less than is proved here, never more.

    So a file stays readable when error bounds are tightened: its margins are then smaller than those proved. What
    follows from the weights alone (``FACTS``) has one value in every version, and must have it.

    Raises:
        ProgramError: a stored certificate claims what does not hold, or ``needs`` is not what the weights need, with
            a certificate or without.
    """
    tensors = largest(program).tensors
    own = {name for name, evaluation in EVALUATIONS.items() if evaluation.own}
    for op in program.ops:
        if op.certificate is None:
            own = set() if certifiable(op) else own
            continue
        if not certifiable(op):
            raise ProgramError(f"{op.kind} takes no certificate", where=op.name, remedy="convert the model again")
        engines = op.certificate.get("engines")
        if not isinstance(engines, list) or not all(e in known_engines() for e in engines):
            raise ProgramError("the certificate names unknown engines", where=op.name, remedy="upgrade intact8")
        numbers = numbers_of(op, tensors)
        proved = prove(op, tensors, tuple(engines), numbers)
        key = _overclaimed(op.certificate, proved)
        if key is not None:
            raise ProgramError(
                f"the certificate does not hold: {key} is stored as {op.certificate.get(key)!r:.60}",
                where=op.name,
                why=f"{proved.get(key)!r:.60} is what the op's numbers give",
                remedy="the file was altered, or made with error bounds that were too narrow; convert the model again",
            )
        claimed = op.certificate["engines"] if op.certificate["exact"] else ()
        own = {name for name in own if name in claimed or (claimed and proved_on(op, tensors, name, numbers))}
    note_proved(program, own)
    if set(needs_of(_certified(program))) - set(program.needs):
        raise ProgramError(
            "the program does not state that it needs VNNI",
            where="needs",
            remedy="the file was altered; convert the model again",
        )


def _certified(program: Program) -> tuple[Op, ...]:
    """Return the operations, those of weights that came without a certificate with one that claims nothing."""
    tensors = largest(program).tensors
    bare = {op.name for op in program.ops if op.certificate is None and KINDS[op.kind].stores_integers}
    return tuple(
        replace(op, certificate=prove(op, tensors, ("reference",))) if op.name in bare else op for op in program.ops
    )


def _overclaimed(stored: dict[str, Any], proved: dict[str, Any]) -> str | None:
    """Return the first entry that claims more than is proved, or contradicts another one; None where there is none."""
    for key in FACTS:
        if key not in stored or stored[key] != proved[key] or type(stored[key]) is not type(proved[key]):
            return key
    margin, exact, reason = stored.get("margin"), stored.get("exact"), stored.get("reason")
    most = proved["margin"]
    if most is None:
        fits = "margin" in stored and margin is None
    else:  # another machine's float64 may differ in the last bits
        fits = isinstance(margin, float) and margin <= most + 1e-9 * abs(most)
    if not fits or (exact is True and margin is not None and margin <= 0):
        return "margin"
    if not isinstance(exact, bool) or (exact and not proved["exact"]):
        return "exact"
    told = isinstance(reason, str) and len(reason) <= LONGEST_REASON
    if ("reason" in stored) if exact else not told:
        return "reason"
    gain = stored.get("gain_error", 0.0)
    if not isinstance(gain, float) or not 0.0 <= gain < math.inf:
        return "gain_error"
    return min(set(stored) - {*FACTS, "margin", "exact", "reason", "gain_error"}, default=None)
