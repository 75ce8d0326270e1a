"""Products of images and gates, whichever comes first and however few channels there are."""

from __future__ import annotations

import numpy as np
import pytest

from intact8.engines import get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(get_engine("native").available() is not None, reason="the library was not built")


@pytest.mark.parametrize("first", ["gate", "image"])
@pytest.mark.parametrize("channels", [1, 3, 8, 16, 24, 40, 64, 72, 100, 300, 2100])
@pytest.mark.parametrize("a", [19, 40000], ids=["small results", "large results"])
def test_integers_are_those_of_the_reference(first, channels, a):
    rng = np.random.default_rng([channels, a])
    zeros = rng.integers(0, 256, 3).tolist()
    image, gate = (None, channels, 5, 7), (None, channels, 1, 1)
    tensors = {n: Tensor(n, "uint8", s, 0.1, z) for n, s, z in zip("xgy", (image, gate, image), zeros, strict=True)}
    inputs = ("x", "g") if first == "image" else ("g", "x")
    op = Op("y", "mul", inputs, {"a": a, "b": 3569, "lo": 0, "hi": 255}, {})
    program = Program(tensors, (op,), ("x", "g"), ("y",))
    given = {n: rng.integers(0, 256, (3, *tensors[n].shape[1:])).astype(np.uint8) for n in "xg"}
    (expected,) = get_engine("reference").prepare(program)(given)
    for threads in (1, 2):
        (got,) = get_engine("native").prepare(program, threads=threads)(given)
        assert np.array_equal(got, expected)
