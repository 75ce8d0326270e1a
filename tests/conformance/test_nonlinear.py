"""Integer softmax, norms and embeddings: every engine that takes them gives the ideal bits, in every extreme."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact8.engines import engine_status, get_engine
from intact8.errors import EngineError

from .nonlinear import CASES
from .suite import op_mismatches

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(STATUS[name] is not None, reason=str(STATUS[name])))
    for name in ("native", "onednn", "onnxruntime")
]
EXAMPLES = {"native": 40, "onednn": 40, "onnxruntime": 15}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_random_rows(engine: str, kind: str) -> None:
    @settings(max_examples=EXAMPLES[engine], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def compare(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(5):
            case = CASES[kind](rng, False)
            bad = op_mismatches(engine, case)
            assert bad == 0, f"{engine}: {bad} of {2 * case.expected.size} integers differ: {case.text}"

    compare()


@pytest.mark.skipif(STATUS["openvino"] is not None, reason=str(STATUS["openvino"]))
def test_openvino_says_that_it_cannot() -> None:
    case = CASES["softmax"](np.random.default_rng(0), False)
    with pytest.raises(EngineError, match="softmax"):
        get_engine("openvino").prepare(case.program)
