"""The detector's example: split, it finds about what it finds in float32."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the model is torch's")


def test_split_finds_what_float32_finds() -> None:
    path = Path(__file__).parents[2] / "examples" / "detector.py"
    spec = importlib.util.spec_from_file_location("detector", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["detector"] = example
    spec.loader.exec_module(example)
    before, after = example.run(steps=60)
    assert before.recall > 0.7  # a network that finds something
    assert abs(after.recall - before.recall) < 0.05
