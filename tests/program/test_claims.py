"""Every claim of a stored certificate, in each form it may have and in those it may not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import network, with_op

from intact8.arithmetic.tie_free import largest_denominator
from intact8.errors import ProgramError
from intact8.program.certify import ENGINES, certify
from intact8.program.program import Program
from intact8.program.recheck import FACTS, LONGEST_REASON, recheck

LIMIT = int(largest_denominator("affine"))


def made(b: int) -> Program:
    arrays = {"b": np.full(4, b, np.int32), "bias": np.zeros(4, np.int32)}
    return certify(with_op(network(), "net.c1", arrays=arrays), ENGINES)


EXACT, OPEN = made(LIMIT), made(LIMIT + 2)


def stands(program: Program, name: str, *without: str, **claims: Any) -> bool:
    """Whether a certificate with these claims is taken."""
    ops = []
    for op in program.ops:
        if op.name == name:
            stored = {k: v for k, v in (op.certificate or {}).items() if k not in without} | claims
            op = replace(op, certificate=stored)
        ops.append(op)
    try:
        recheck(replace(program, ops=tuple(ops)))
    except ProgramError as error:
        assert error.where == name
        return False
    return True


def certificate(program: Program, name: str) -> dict[str, Any]:
    return next(op.certificate for op in program.ops if op.name == name) or {}


def test_margins() -> None:
    margin = certificate(EXACT, "net.c1")["margin"]
    assert margin > 0 > certificate(OPEN, "net.c1")["margin"]
    for claimed, fits in (
        (margin, True), (margin * (1 + 5e-10), True), (margin * (1 + 2e-9), False), (margin / 9, True), (0.0, False),
        (-1e-9, False), (math.nan, False), (math.inf, False), (0, False), (None, False), (True, False), ("1", False),
    ):  # fmt: skip
        assert stands(EXACT, "net.c1", margin=claimed) is fits, claimed
    for claimed, fits in ((0.0, True), (-1.0, True), (margin, True), (2 * margin, False)):
        assert stands(EXACT, "net.c1", exact=False, reason="old", margin=claimed) is fits, claimed
    assert certificate(EXACT, "table")["margin"] is None
    for claimed, fits in ((None, True), (0.1, False), (0.0, False), (-1.0, False)):
        assert stands(EXACT, "table", margin=claimed) is fits
    assert not stands(EXACT, "table", "margin") and not stands(EXACT, "net.c1", "margin")


def test_exactness_and_its_reasons() -> None:
    for claims, fits in (
        ({"exact": True}, True), ({"exact": 1}, False), ({"exact": "true"}, False), ({"exact": None}, False),
        ({"exact": False}, False), ({"exact": False, "reason": "why"}, True), ({"exact": True, "reason": "why"}, False),
        ({"exact": False, "reason": "w" * LONGEST_REASON}, True), ({"exact": False, "reason": ""}, True),
        ({"exact": False, "reason": "w" * (LONGEST_REASON + 1)}, False), ({"exact": False, "reason": 1}, False),
        ({"exact": False, "reason": None}, False),
    ):  # fmt: skip
        assert stands(EXACT, "net.c1", **claims) is fits, claims
    assert stands(OPEN, "net.c1") and not stands(OPEN, "net.c1", "reason")
    assert not stands(OPEN, "net.c1", "reason", exact=True)
    assert not stands(OPEN, "net.c1", "reason", exact=True, margin=1e-12)
    assert LONGEST_REASON == 1000


def test_gain_errors() -> None:
    for gain, fits in ((0.0, True), (5e-5, True), (1e300, True), (-1e-9, False), (math.inf, False), (math.nan, False),
                       (0, False), (None, False), ("0", False)):  # fmt: skip
        assert stands(EXACT, "sum", gain_error=gain) is fits, gain


@pytest.mark.parametrize("name", ["net.c1", "sum", "mean", "gate", "average", "head"])
def test_facts_have_one_value(name: str) -> None:
    stored = certificate(EXACT, name)
    for key in FACTS:
        value = stored[key]
        assert stands(EXACT, name, **{key: value}) and not stands(EXACT, name, key)
        other: list[Any] = [None, str(value), [value]]
        other += [not value, int(value)] if isinstance(value, bool) else []
        other += [value + 1, value - 1, float(value)] if type(value) is int else []
        for wrong in other:
            assert not stands(EXACT, name, **{key: wrong}), (key, wrong)
    assert not stands(EXACT, name, more=1)
    fewer = [e for e in stored["engines"] if e != "onednn"]
    if "openvino" not in fewer:  # then nothing but the engines depends on who is claimed
        assert stands(EXACT, name, engines=fewer) or stored["margin"] is not None
    assert not stands(EXACT, name, engines=[*stored["engines"], "tpu"])


def test_what_a_program_needs() -> None:
    weight = np.full((4, 3, 3, 3), 127, np.int8)
    needy = certify(with_op(network(), "net.c1", arrays={"weight": weight}))
    assert needy.needs == ("vnni",) and certify(network()).needs == ()
    recheck(needy)
    recheck(replace(certify(network()), needs=("vnni",)))  # to need more is no lie
    with pytest.raises(ProgramError, match="VNNI"):
        recheck(replace(needy, needs=()))
    bare = tuple(replace(op, certificate=None) for op in needy.ops)
    with pytest.raises(ProgramError, match="VNNI"):  # the weights say so without a certificate, too
        recheck(replace(needy, ops=bare, needs=()))
