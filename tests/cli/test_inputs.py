from __future__ import annotations

import numpy as np
import pytest

from intact8.cli.data import Arrays
from intact8.cli.inputs import feed_names
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program


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
