"""Products of activations and attention on the native engine: the reference's integers, on every instruction set."""

from dataclasses import replace

import numpy as np
import pytest

from intact8.arithmetic.softmax import softmax_table
from intact8.engines import get_engine
from intact8.engines.native.attention import FLOATS, INTEGERS, QUANTIZED, SCORES, find_attention
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

SCALE = 0.125


def uint8(name, shape, zero=128, scale=SCALE):
    return Tensor(name, "uint8", shape, scale, zero)


def same(program, given):
    """Assert that every tensor, and every output of the plan as it is usually run, is the reference's."""
    check(program)
    want = get_engine("reference").prepare(program).tensors(given)
    runner = get_engine("native").prepare(program, threads=1)
    for name, found in runner.tensors(given).items():
        np.testing.assert_array_equal(found, want[name], err_msg=name)
    for name, found in zip(program.outputs, runner(given), strict=True):
        np.testing.assert_array_equal(found, want[name], err_msg=name)


def product(rng, x_shape, w_shape, permuted):
    """Return a product of activations, read in another order of dimensions where ``permuted``, and inputs."""
    zeros = rng.integers(0, 256, 3).tolist()
    shapes, ops, tensors, names = (x_shape, w_shape), [], {}, []
    for i, shape in enumerate(shapes):
        dims = list(range(len(shape)))
        if permuted:
            dims = rng.permutation(len(shape)).tolist()
            given = [0] * len(shape)
            for d, size in zip(dims, shape, strict=True):
                given[d] = size
            shape = given
        tensors[f"x{i}"] = uint8(f"x{i}", tuple(shape), zeros[i])
        tensors[f"t{i}"] = uint8(f"t{i}", shapes[i], zeros[i])
        ops.append(Op(f"t{i}", "permute", (f"x{i}",), {"dims": dims}))
        names.append(f"t{i}")
    leading = np.broadcast_shapes(x_shape[:-2], w_shape[:-2])
    depth = x_shape[-1]
    a = max(1, int(8191 / (255 * 20 * depth**0.5)))
    lo, hi = sorted(rng.integers(0, 256, 2).tolist()) if rng.random() < 0.3 else (0, 255)
    tensors["y"] = uint8("y", (*leading, x_shape[-2], w_shape[-1]), zeros[2], SCALE * 8191 / a)
    ops.append(Op("y", "matmul", tuple(names), {"a": a, "b": 8191, "lo": lo, "hi": hi}))
    program = Program(tensors, tuple(ops), ("x0", "x1"), ("y",))
    return program, {n: rng.integers(0, 256, tensors[n].shape).astype(np.uint8) for n in program.inputs}


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


def chain(rng, sizes, form, masked):
    """Return an attention of (samples, positions, heads, width) tensors, and inputs.

    Args:
        rng: random numbers.
        sizes: samples, heads, queries, keys, depth, width.
        form: of the chain, see intact8.engines.native.attention.
        masked: whether scores are masked.
    """
    n, heads, queries, keys, depth, width = sizes
    zeros = dict(zip("qkvsy", rng.integers(60, 200, 5).tolist(), strict=True))
    dtype, tensors, ops, given = "float32" if form == FLOATS else "uint8", {}, [], {}

    def add(name, kind, inputs, shape, **attrs):
        arrays = {"table": softmax_table(0.0625)} if kind == "softmax" else {}
        integer = not kind.startswith(("float.", "dequantize")) and dtype == "uint8"
        zero, scale = {"p": (0, 2.0**-8), "s": (zeros["s"], 0.0625)}.get(name, (zeros.get(name[0]), SCALE))
        tensors[name] = uint8(name, shape, zero, scale) if integer else Tensor(name, "float32", shape)
        ops.append(Op(name, kind, tuple(inputs), attrs, arrays))

    for name, count, size in (("q", queries, depth), ("k", keys, depth), ("v", keys, width)):
        shape = (n, count, heads, size)
        tensors[f"{name}i"] = (
            uint8(f"{name}i", shape, zeros[name]) if form != FLOATS else Tensor(f"{name}i", dtype, shape)
        )
        given[f"{name}i"] = (rng.integers(0, 256, shape) if form != FLOATS else rng.standard_normal(shape)).astype(
            dtype
        )
        add(f"{name}p", "permute", [f"{name}i"], (n, heads, count, size), dims=[0, 2, 1, 3])
    add("kt", "permute", ["kp"], (n, heads, depth, keys), dims=[0, 1, 3, 2])
    if masked:
        mask = rng.random((n, 1, 1, keys)) < 0.3
        given["m"] = mask if form == INTEGERS else np.where(mask, np.float32(-10000), np.float32(0))
        tensors["m"] = Tensor("m", given["m"].dtype.name, mask.shape)
    scores, read = (n, heads, queries, keys), ["qp", "kt", "vp"]
    ratio = {"a": max(1, int(8191 * 0.002 / depth**0.5)), "b": 8191, "lo": 0, "hi": 255}
    if form in (INTEGERS, QUANTIZED):
        add("s", "matmul", read[:2], scores, **ratio)
        tensors["s"] = uint8("s", scores, zeros["s"], float(np.float32(SCALE**2 * 8191 / ratio["a"])))
    elif form == SCORES:
        for name in read:
            add(f"f{name}", "dequantize", [name], tensors[name].shape)
        read = [f"f{name}" for name in read]
    if form == INTEGERS:
        add("p", "softmax", ["s", "m"] if masked else ["s"], scores, axis=3, levels=256.0, lo=0, hi=255)
    else:
        if form == QUANTIZED:
            add("fs", "dequantize", ["s"], scores)
        else:
            add(
                "fq",
                "float.affine_scalar",
                [read[0]],
                tensors[read[0]].shape,
                mul=0.02 if form == SCORES else 0.5,
                add=0.0,
            )
            add("fs", "float.matmul", ["fq", read[1]], scores)
        if masked:
            add("fm", "float.add", ["fs", "m"], scores)
        add("fp", "float.softmax", ["fm" if masked else "fs"], scores, axis=3)
        if form == QUANTIZED:
            add("p", "quantize", ["fp"], scores, lo=0, hi=255)
    if form in (INTEGERS, QUANTIZED):
        b = 2047
        add("y", "matmul", ["p", "vp"], (n, heads, queries, width), a=8, b=b, lo=0, hi=255)
        tensors["y"] = uint8("y", (n, heads, queries, width), zeros["y"], float(np.float32(2.0**-8 * SCALE * b / 8)))
    else:
        add("y", "float.matmul", ["fp", read[2]], (n, heads, queries, width))
    tensors["z"] = replace(tensors["y"], name="z", shape=(n, queries, heads, width))
    ops.append(Op("z", "permute", ("y",), {"dims": [0, 2, 1, 3]}))
    return Program(tensors, tuple(ops), tuple(given), ("z",)), given


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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", [QUANTIZED, SCORES, FLOATS])
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_with_floats(sizes, form, masked):
    program, given = chain(np.random.default_rng(sizes), sizes, form, masked)
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
