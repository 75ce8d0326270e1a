"""Groups whose elements are all equal are normalised to zero, whatever the mean's last bits are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact8.engines import get_engine
from intact8.opset import Op, Tensor
from intact8.program.program import Program

CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "group_norm": ("float.group_norm", {"groups": 3, "eps": 1e-5}, (6, 319)),
    "instance_norm": ("float.group_norm", {"groups": 6, "eps": 1e-5}, (6, 17, 19)),
    "layer_norm": ("float.layer_norm", {"shape": [319], "eps": 1e-5}, (6, 319)),
}


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "onnxruntime", "openvino"])
@pytest.mark.parametrize("case", CASES)
def test_equal_elements_become_zero(case: str, engine: str) -> None:
    chosen = get_engine(engine)
    if (reason := chosen.available()) is not None:
        pytest.skip(reason)
    kind, attrs, shape = CASES[case]
    tensors = {name: Tensor(name, "float32", (None, *shape)) for name in "xy"}
    runner = chosen.prepare(Program(tensors, (Op("y", kind, ("x",), attrs, {}),), ("x",), ("y",)))
    for value in (0.1, -37.21, 1234.567):
        x = np.full((2, *shape), value, np.float32)
        x[1, 0] += np.linspace(-1, 1, shape[-1], dtype=np.float32)
        (y,) = runner({"x": x})
        assert np.abs(y[0]).max() < 1e-6, (engine, value, y[0].min(), y[0].max())
        assert np.isclose(np.abs(y[1]).max(), abs(y[1].min()), rtol=0.5) and np.abs(y[1]).max() > 1
