"""The onednn engine gives the ideal integers, for thousands of random shapes of every kind of op."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact.engines import cpu
from intact.engines.onednn import OnednnEngine

from .build import Case, draw

ENGINE = OnednnEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

PER_EXAMPLE = 50
EXAMPLES = {"conv": 60, "linear": 12, "add": 14, "mul": 10, "mean": 8, "pool": 14, "table": 6}
SHAPES: Counter[str] = Counter()
ELEMENTS: Counter[str] = Counter()


def mismatches(case: Case) -> int:
    """Integers of the result that differ from the ideal, over both ways to run."""
    runner = ENGINE.prepare(case.program, threads=1 + case.expected.size % 2)
    before = {name: x.copy() for name, x in case.inputs.items()}
    seen = runner.tensors(case.inputs)["y"]
    (out,) = runner(case.inputs)
    assert out.dtype == seen.dtype == np.uint8
    assert out.shape == seen.shape == case.expected.shape, case.text
    assert all((case.inputs[name] == x).all() for name, x in before.items()), f"an input was overwritten: {case.text}"
    return int((out != case.expected).sum() + (seen != case.expected).sum())


@pytest.mark.parametrize("kind", EXAMPLES)
def test_random_shapes(kind: str) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(PER_EXAMPLE):
            case = draw(kind, rng, cpu.has_vnni(cpu.isa()))
            bad = mismatches(case)
            assert bad == 0, f"{bad} of {2 * case.expected.size} integers differ: {case.text}"
            SHAPES[kind] += 1
            ELEMENTS[kind] += case.expected.size

    check()


def test_enough_shapes_were_seen() -> None:
    """Counts what the tests above compared; alone, it has nothing to count."""
    if set(SHAPES) != set(EXAMPLES):
        pytest.skip("runs after test_random_shapes of every kind")
    assert sum(SHAPES.values()) >= 5000, SHAPES
    assert sum(ELEMENTS.values()) >= 5_000_000, ELEMENTS


def test_a_wrong_multiplier_is_noticed() -> None:
    """The comparison can fail: numerators a twentieth too large give other integers."""
    rng, bad = np.random.default_rng(3), 0
    for _ in range(5):
        case = draw("linear", rng, False)
        a = case.program.ops[-1].arrays["a"]
        a += np.maximum(1, a // 20)
        bad += mismatches(case)
    assert bad > 0
