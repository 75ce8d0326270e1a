"""Examples with other people's libraries, each run where the library is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.examples.conftest import Load

import intact8

torch = pytest.importorskip("torch", reason="quantization needs torch")


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_runs_the_program(load_example: Load, tmp_path: Path) -> None:
    example = load_example("transformers_pipeline")
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    result = example.run(*example.small_classifier(), tmp_path / "classifier.safetensors")
    assert len(result.int8) == len(example.TEXTS)
    for before, after in zip(*result, strict=True):
        assert before["label"] == after["label"]
        assert after["score"] == pytest.approx(before["score"], abs=0.05)
    assert result.int8 != result.float32


@pytest.mark.filterwarnings("ignore")
def test_sentence_transformers_takes_a_program(load_example: Load, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="could not import 'sentence_transformers'")
    example = load_example("sentence_transformer")
    result = example.run(*example.small_encoder(), tmp_path / "encoder.safetensors")
    assert result.float32.shape == result.int8.shape == (len(example.TEXTS), 32)
    assert np.linalg.norm(result.int8, axis=1) == pytest.approx(np.ones(len(example.TEXTS)), abs=1e-5)
    assert (result.float32 * result.int8).sum(axis=1).min() > 0.98
    assert (result.float32 != result.int8).any()


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_timm(load_example: Load, tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="could not import 'timm'")
    result = load_example("timm_model").run("resnet10t", tmp_path / "timm.safetensors", size=32)
    assert result.mismatches == 0 and result.compared > 10_000 and result.cosine > 0.97


def test_ray_scores_with_a_runner_per_worker() -> None:
    """As a script: workers find the class of a main module, not one of a module that a test has loaded."""
    pytest.importorskip("ray", reason="could not import 'ray'")
    script = Path(__file__).parents[2] / "examples" / "ray_scoring.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(intact8.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert "200 samples on 2 workers: the same bits" in done.stdout, done.stderr
