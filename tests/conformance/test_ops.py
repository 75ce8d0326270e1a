"""Every engine gives the ideal integers, for thousands of random shapes of every kind of op."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact8.engines import engine_status

from .build import KINDS, draw
from .suite import PROVED, check_ops, op_mismatches, wide

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(STATUS[name] is not None, reason=str(STATUS[name]))) for name in PROVED
]
SHARE = {"conv": 60, "linear": 12, "add": 14, "mul": 10, "matmul": 5, "mean": 8, "pool": 14, "table": 6, "resize": 10}
"""How many of each kind, in the proportion of what can go wrong in it."""

PER_EXAMPLE = {"native": 30, "onednn": 30, "onnxruntime": 10, "openvino": 3}
"""Ops per example of hypothesis: by how long an engine takes to prepare one."""

SHAPES: Counter[tuple[str, str]] = Counter()
ELEMENTS: Counter[str] = Counter()


def test_every_kind_is_drawn() -> None:
    assert set(SHARE) == set(KINDS)


@pytest.mark.parametrize("kind", SHARE)
@pytest.mark.parametrize("engine", ENGINES)
def test_random_shapes(engine: str, kind: str) -> None:
    compare(engine, kind, SHARE[kind])


@pytest.mark.long
@pytest.mark.parametrize("kind", SHARE)
@pytest.mark.parametrize("engine", ENGINES)
def test_random_shapes_many(engine: str, kind: str) -> None:
    compare(engine, kind, 10 * SHARE[kind])


def compare(engine: str, kind: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        cases = check_ops(engine, kind, np.random.default_rng(seed), wide(engine), PER_EXAMPLE[engine])
        SHAPES[engine, kind] += len(cases)
        ELEMENTS[engine] += sum(case.expected.size for case in cases)

    check()


@pytest.mark.parametrize("engine", ENGINES)
def test_enough_shapes_were_seen(engine: str) -> None:
    """Counts what the tests above compared; alone, it has nothing to count."""
    if {kind for name, kind in SHAPES if name == engine} != set(SHARE):
        pytest.skip("runs after test_random_shapes of every kind, in the same process")
    seen = sum(count for (name, _), count in SHAPES.items() if name == engine)
    assert seen >= 100 * PER_EXAMPLE[engine], SHAPES
    assert ELEMENTS[engine] >= 1000 * seen, ELEMENTS


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wrong_multiplier_is_noticed(engine: str) -> None:
    """The comparison can fail: numerators a twentieth too large give other integers."""
    rng, bad = np.random.default_rng(3), 0
    for _ in range(5):
        case = draw("linear", rng, False)
        a = case.program.ops[-1].arrays["a"]
        a += np.maximum(1, a // 20)
        bad += op_mismatches(engine, case)
    assert bad > 0
