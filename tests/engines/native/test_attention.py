"""Products of activations and attention on the native engine: the reference's integers, on every instruction set."""

from dataclasses import replace

import numpy as np
import pytest
from tests.engines.native.random_attention import chain, product

from intact8.engines import get_engine
from intact8.engines.native.attention import FLOATS, INTEGERS, QUANTIZED, SCORES, find_attention
from intact8.program.check import check


def same(program, given):
    """Assert that every tensor, and every output of the plan as it is usually run, is the reference's."""
    check(program)
    want = get_engine("reference").prepare(program).tensors(given)
    runner = get_engine("native").prepare(program, threads=1)
    for name, found in runner.tensors(given).items():
        np.testing.assert_array_equal(found, want[name], err_msg=name)
    for name, found in zip(program.outputs, runner(given), strict=True):
        np.testing.assert_array_equal(found, want[name], err_msg=name)


SHAPES = [
    ((1, 1), (1, 1)),
    ((5, 7), (7, 3)),
    ((2, 3, 9, 32), (2, 3, 32, 70)),
    ((2, 12, 128, 32), (2, 12, 32, 128)),
    ((3, 1, 17, 13), (1, 4, 13, 65)),
    ((4, 31, 64), (64, 16)),
    ((200, 66), (3, 66, 129)),
    ((2, 1, 2, 1, 25, 4), (1, 3, 2, 2, 4, 48)),
    ((2, 3, 1, 300), (2, 3, 300, 1)),
]


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize(("x", "w"), SHAPES)
def test_products_of_activations(x, w, permuted):
    rng = np.random.default_rng([*x, *w])
    for _ in range(3):
        same(*product(rng, x, w, permuted))


SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 5, 7, 9, 4),
    (1, 2, 30, 130, 32, 33),
    (2, 2, 13, 16, 6, 64),
    (1, 1, 3, 900, 64, 100),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_of_integers(sizes, masked):
    program, given = chain(np.random.default_rng(sizes), sizes, INTEGERS, masked)
    assert find_attention(program, program.outputs)
    same(program, given)


@pytest.mark.parametrize("levels", [2.0**31, 2.0**40])
def test_probabilities_beyond_int32_saturate(levels):
    program, given = chain(np.random.default_rng(3), SIZES[1], INTEGERS, masked=True)
    ops = [replace(op, attrs=op.attrs | {"levels": levels}) if op.kind == "softmax" else op for op in program.ops]
    tensors = program.tensors | {"p": replace(program.tensors["p"], scale=1 / levels)}
    program = replace(program, ops=tuple(ops), tensors=tensors)
    assert find_attention(program, program.outputs)
    same(program, given)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", [QUANTIZED, SCORES, FLOATS])
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_with_floats(sizes, form, masked, scaled):
    program, given = chain(np.random.default_rng(sizes), sizes, form, masked, scaled)
    check(program)
    (found,) = find_attention(program, program.outputs).values()
    assert found.form == form
    want = get_engine("reference").prepare(program)(given)[0]
    y = get_engine("native").prepare(program, threads=1)(given)[0]
    if form == QUANTIZED:  # where a probability is nearly a tie, its integer may be the next one
        apart = np.abs(y.astype(int) - want)
        assert apart.max() <= 1 and (apart > 0).mean() < 0.02
    else:
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    same_tensors = get_engine("native").prepare(program, threads=1).tensors(given)
    assert same_tensors.keys() >= {op.name for op in program.ops}


def test_what_else_is_read_is_not_inside_a_chain():
    program, _ = chain(np.random.default_rng(0), SIZES[1], INTEGERS, masked=True)
    assert not find_attention(program, ("z", "s")) and not find_attention(program, ("z", "p"))
