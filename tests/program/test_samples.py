from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.cli.test_inputs import IMAGE, MASK, program

from intact8.opset.op import Op, Tensor
from intact8.program.samples import random_samples


def test_random_samples_cover_the_range_of_the_quantize_op_and_pass_its_ends() -> None:
    quantize = Op("image.quantize", "quantize", ("image",), {"lo": 0, "hi": 255})
    grid = Tensor("image.quantize", "uint8", (None, 2), scale=0.5, zero_point=55)
    samples = random_samples(program(IMAGE, ops=(quantize,), made=(grid,)), 4000, seed=1)["image"]
    assert samples.shape == (4000, 2) and samples.dtype == np.float32
    assert samples.min() < -27.5 and samples.max() > 100.0  # (0 − 55)·0.5 and (255 − 55)·0.5
    again = random_samples(program(IMAGE, ops=(quantize,), made=(grid,)), 4000, seed=1)["image"]
    assert np.array_equal(samples, again)


def test_random_indices_stay_inside_the_embedding() -> None:
    tokens = Tensor("tokens", "int64", (None, 5))
    embedding = Op("embed", "float.embedding", ("tokens",), arrays={"weight": np.zeros((7, 3), np.float32)})
    made = Tensor("embed", "float32", (None, 5, 3))
    drawn = random_samples(program(tokens, MASK, ops=(embedding,), made=(made,)), 200, seed=0)
    assert set(np.unique(drawn["tokens"])) == set(range(7)) and drawn["tokens"].dtype == np.int64
    assert drawn["mask"].dtype == np.bool_


def test_sizes_of_named_dimensions_are_those_asked_for() -> None:
    tokens = Tensor("tokens", "int64", (None, "length"))
    named = replace(program(tokens), dimensions={"length": (2, 50)})
    assert random_samples(named, 3, sizes={"length": 7})["tokens"].shape == (3, 7)
    assert random_samples(named, 3)["tokens"].shape == (3, 32)
