from __future__ import annotations

import numpy as np
import pytest

from intact.cli.data import Arrays
from intact.cli.inputs import feed_names, random_samples
from intact.errors import InputError
from intact.program.ops import Op, Tensor
from intact.program.program import Program


def program(*inputs: Tensor, ops: tuple[Op, ...] = (), made: tuple[Tensor, ...] = ()) -> Program:
    tensors = {tensor.name: tensor for tensor in (*inputs, *made)}
    return Program(tensors, ops, tuple(tensor.name for tensor in inputs), ())


IMAGE = Tensor("image", "float32", (None, 2))
MASK = Tensor("mask", "bool", (None, 3))


def test_one_entry_feeds_the_only_input() -> None:
    assert feed_names(program(IMAGE), Arrays({"": np.zeros(1)}), chosen=False) == {"image": ""}


def test_chosen_entries_feed_inputs_in_order() -> None:
    data = Arrays({"a": np.zeros(1), "b": np.zeros(1)})
    assert feed_names(program(IMAGE, MASK), data, chosen=True) == {"image": "a", "mask": "b"}


def test_entries_go_by_name_and_labels_stay_unused() -> None:
    data = Arrays({"labels": np.zeros(1), "mask": np.zeros(1), "image": np.zeros(1)})
    assert feed_names(program(IMAGE, MASK), data, chosen=False) == {"image": "image", "mask": "mask"}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="1 entries for 2 inputs"):
        feed_names(program(IMAGE, MASK), Arrays({"image": np.zeros(1)}), chosen=False)
    with pytest.raises(InputError, match=r"no entry for input 'mask'.*--key"):
        feed_names(program(IMAGE, MASK), Arrays({"image": np.zeros(1), "labels": np.zeros(1)}), chosen=False)


def test_random_samples_cover_the_range_of_the_quantize_op_and_pass_its_ends() -> None:
    quantize = Op("image.quantize", "quantize", ("image",), {"lo": 0, "hi": 255})
    grid = Tensor("image.quantize", "uint8", (None, 2), scale=0.5, zero_point=55)
    samples = random_samples(program(IMAGE, ops=(quantize,), made=(grid,)), 4000, seed=1).arrays["image"]
    assert samples.shape == (4000, 2) and samples.dtype == np.float32
    assert samples.min() < -27.5 and samples.max() > 100.0  # (0 − 55)·0.5 and (255 − 55)·0.5
    again = random_samples(program(IMAGE, ops=(quantize,), made=(grid,)), 4000, seed=1).arrays["image"]
    assert np.array_equal(samples, again)


def test_random_indices_stay_inside_the_embedding() -> None:
    tokens = Tensor("tokens", "int64", (None, 5))
    embedding = Op("embed", "float.embedding", ("tokens",), arrays={"weight": np.zeros((7, 3), np.float32)})
    made = Tensor("embed", "float32", (None, 5, 3))
    drawn = random_samples(program(tokens, MASK, ops=(embedding,), made=(made,)), 200, seed=0).arrays
    assert set(np.unique(drawn["tokens"])) == set(range(7)) and drawn["tokens"].dtype == np.int64
    assert drawn["mask"].dtype == np.bool_
