"""Every engine gives the ideal integers of whole networks: random ones, and trained ones on real images."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import benchmark

import intact8
from intact8.engines import available_engines

from .suite import check_network
from .test_ops import ENGINES

EXAMPLES = {"native": 40, "onednn": 40, "onnxruntime": 40, "openvino": 40}


@pytest.mark.parametrize("engine", ENGINES)
def test_random_networks(engine: str) -> None:
    @settings(max_examples=EXAMPLES[engine], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        check_network(engine, seed)

    check()


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
@pytest.mark.parametrize("name", ["cnn", "dw", "mobilenetv1"])
def test_trained_networks(assets: Path, name: str) -> None:
    if name == "mobilenetv1":
        pytest.importorskip("PIL")
    task = benchmark("assets").mobilenet(assets) if name == "mobilenetv1" else benchmark("assets").fashion(assets, name)
    sim = intact8.prepare(task.model, task.calibration[:2])
    intact8.calibrate(sim, task.calibration[:32].split(16))
    report = intact8.verify(intact8.convert(sim), task.held_out[:24], engines=tuple(available_engines()), sim=sim)
    assert report.exact, (report.first, report.by_engine)
