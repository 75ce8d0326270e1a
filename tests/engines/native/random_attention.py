"""Random products of activations and attention, for tests and fuzzing of the native engine."""

from dataclasses import replace

import numpy as np

from intact8.arithmetic.softmax import softmax_table
from intact8.engines.native.attention import FLOATS, INTEGERS, QUANTIZED, SCORES
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

SCALE = 0.125


def uint8(name, shape, zero=128, scale=SCALE):
    return Tensor(name, "uint8", shape, scale, zero)


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


def chain(rng, sizes, form, masked, scaled=False):
    """Return an attention of (samples, positions, heads, width) tensors, and inputs.

    Args:
        rng: random numbers.
        sizes: samples, heads, queries, keys, depth, width.
        form: of the chain, see intact8.engines.native.attention.
        masked: whether scores are masked.
        scaled: whether scores of floats are multiplied by a number behind their product.
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
        last = "fs"
        if scaled:
            add("fc", "float.affine_scalar", [last], scores, mul=0.25, add=0.0)
            last = "fc"
        if masked:
            add("fm", "float.add", [last, "m"], scores)
            last = "fm"
        add("fp", "float.softmax", [last], scores, axis=3)
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


def draw(rng):
    """Return an attention of any form, small sizes and maybe a mask, and inputs."""
    sizes = [int(rng.integers(1, high + 1)) for high in (2, 3, 30, 70, 40, 40)]
    return chain(rng, sizes, int(rng.integers(FLOATS + 1)), masked=rng.random() < 0.5, scaled=rng.random() < 0.5)
