"""The ramp through every engine: all 256 levels, in order, and no engine differs from the simulation."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch", reason="the simulation needs torch")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "ramp.py"
    spec = importlib.util.spec_from_file_location("ramp", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ramp"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("k", [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 0.7])
def test_intact_keeps_every_level_in_simulation_and_engines(example: ModuleType, k: float) -> None:
    results = example.with_intact(k)
    assert {"intact8 simulation", "intact8 reference"} <= {result.runner for result in results}
    for result in results:
        assert np.array_equal(result.row, np.arange(256)), result.runner
        assert result.uniform and result.floats_agree, result.runner
        assert result.levels == 256 and result.first is None


@pytest.mark.parametrize("k", [0.5, 1.0, 3.0])
def test_torch_ao_loses_level_128_between_simulation_and_int8(example: ModuleType, k: float) -> None:
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no fbgemm, so torch.ao cannot be compared with")
    faked, converted = example.with_torch_ao(k)
    assert faked.levels == 256 and faked.first is None
    assert converted.levels == 255 and converted.first == 128
    assert converted.row[126:130].tolist() == [126, 127, 127, 128]
    assert converted.uniform
