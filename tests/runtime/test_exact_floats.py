"""Floats that an op defines to the bit are so on every engine given the same inputs of the op, behind islands too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks are made with torch")

import torch
from torch import nn

import intact8
from intact8.engines import available_engines, get_runner
from intact8.program.certify import claim_error


class Behind(nn.Module):
    """A dynamic layer behind another and a function that stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.layer_norm(self.first(x), (16,)))


def test_a_float_behind_an_island_is_exact_given_what_the_island_gave() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    program = intact8.quantize(Behind().eval(), x, intact8.recipes.dynamic())
    (output,), islands = program.outputs, [op.name for op in program.islands()]
    assert islands and output in program.exact_floats() and output not in islands
    inputs = {program.inputs[0]: x.numpy()}
    want = get_runner(program, "reference").tensors(inputs)
    # Another rounding inside of the island: the promise is about the op, not about what lies before it.
    feed = {name: np.nextafter(want[name], np.float32(np.inf)) for name in islands}
    given: dict[str, Any] = {}
    for engine in available_engines():
        if claim_error(program, engine) is not None:
            continue
        given[engine] = get_runner(program, engine).tensors(inputs, feed)[output]
        np.testing.assert_array_equal(given[engine], given["reference"], err_msg=engine)
    assert len(given) > 1 and not np.array_equal(given["reference"], want[output])
    assert "Given the same inputs of that op" in (program.exact_floats.__doc__ or "")
