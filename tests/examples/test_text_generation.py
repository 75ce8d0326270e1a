"""The decoder's example, with little training and a short text."""

from __future__ import annotations

import pytest
from tests.examples.conftest import Load

pytest.importorskip("torch", reason="quantization needs torch")


@pytest.mark.filterwarnings("ignore")
def test_text_generation(load_example: Load) -> None:
    example = load_example("text_generation")
    result = example.run(steps=80, length=16, prompt="the rain")
    assert result.mismatches == 0 and result.loss < 2.5
    floats, integers = result.texts
    assert len(floats) == len(integers) == 16
    assert floats[:10] == integers[:10]  # more differs where training was this short
