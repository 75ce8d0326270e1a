"""Wherever a certificate claims an engine, it gives the reference's integers: at the ends of all numbers, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from intact8.engines import engine_status, get_engine
from intact8.program.certify import claim_error

from .extremes import KINDS, draw
from .suite import PROVED

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(STATUS[name] is not None, reason=str(STATUS[name]))) for name in PROVED
]
DRAWN = {"native": 12, "onednn": 6, "onnxruntime": 3, "openvino": 1}
"""Per kind: by how long an engine takes to prepare one."""


def compare(engine: str, kind: str, count: int, seed: int) -> Counter[str]:
    """How many were claimed; asserts that all of those agree."""
    found: Counter[str] = Counter()
    for i in range(count):
        program, inputs = draw(kind, np.random.default_rng((seed, i)))
        certificate: dict[str, Any] | None = program.ops[0].certificate
        assert certificate is not None
        if not certificate["exact"] or claim_error(program, engine) is not None or program.needs:
            found["not claimed"] += 1
            continue
        want = get_engine("reference").prepare(program)(inputs)[0]
        got = get_engine(engine).prepare(program)(inputs)[0]
        differ = int((got != want).sum())
        assert differ == 0, f"{engine}, {kind} {seed}, {i}: {differ} of {want.size} differ: {program.ops[0].attrs}"
        found["claimed"] += 1
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_claims_hold_at_the_ends(engine: str, kind: str) -> None:
    compare(engine, kind, DRAWN[engine], 0)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_claims_hold_at_the_ends_many(engine: str, kind: str) -> None:
    assert compare(engine, kind, 100 * DRAWN[engine], 1)["claimed"] or engine == "openvino"


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_is_claimed(kind: str) -> None:
    """The comparison compares: extreme numbers are drawn, but not only such that nothing is claimed for."""
    claims = [
        engine
        for i in range(40)
        for c in [draw(kind, np.random.default_rng((0, i)))[0].ops[0].certificate or {}]
        if c["exact"]
        for engine in c["engines"]
    ]
    assert claims.count("onednn") > 4 and claims.count("onnxruntime") > 4
