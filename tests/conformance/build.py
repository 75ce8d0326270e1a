"""One-op programs with certified multipliers, their inputs, and the result exact integers give.

The ideal comes from ``intact8.arithmetic`` (int64 and proved-exact products, no torch): nothing of it runs in an engine
under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic import integer, windows
from intact8.arithmetic.resize import denominators
from intact8.arithmetic.tie_free import best_ratios, error_bound, largest_denominator, ratios_above
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

Array = npt.NDArray[Any]
Rng = np.random.Generator


class Unusable(Exception):
    """The numbers drawn make no certified op; draw others."""


@dataclass
class Case:
    """A program, what goes in, and the exact result of its last op."""

    program: Program
    inputs: dict[str, Array]
    expected: Array
    text: str


def beside(cases: Sequence[Case]) -> tuple[Program, dict[str, Array]]:
    """One program of unconnected ops, with its inputs: the results of the cases are its outputs, in their order."""
    if len(cases) == 1:
        return cases[0].program, cases[0].inputs
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    inputs: dict[str, Array] = {}
    for i, case in enumerate(cases):
        own = {name: f"{i}.{name}" for name in case.program.tensors}
        tensors |= {own[name]: replace(t, name=own[name]) for name, t in case.program.tensors.items()}
        ops += [replace(op, name=own[op.name], inputs=tuple(own[n] for n in op.inputs)) for op in case.program.ops]
        inputs |= {own[name]: x for name, x in case.inputs.items()}
    outputs = tuple(f"{i}.{name}" for i, case in enumerate(cases) for name in case.program.outputs)
    return Program(tensors, tuple(ops), tuple(inputs), outputs, structure=0), inputs


@dataclass
class Draft:
    """A program in the making: inputs, optional helper ops, the op under test."""

    rng: Rng
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)

    def integers(self, shape: tuple[int, ...]) -> Array:
        """uint8: uniform, or only a few values near the ends (which drive sums to their extremes)."""
        if self.rng.random() < 0.2:
            return self.rng.choice(np.array([0, 1, 254, 255], np.uint8), shape)
        return self.rng.integers(0, 256, shape, dtype=np.uint8)

    def input(self, name: str, shape: tuple[int, ...], *, computed: bool | None = None) -> tuple[str, Array, int]:
        """A uint8 tensor with a random zero point: an input, or half of the time the result of a table, whose memory
        an engine may overwrite. Returns its name, value and zero point."""
        z = int(self.rng.choice([0, 255, 128, int(self.rng.integers(0, 256))]))
        q = self.integers(shape)
        self._declare(name, shape, z)
        self.inputs[name] = q
        if computed is None:
            computed = bool(self.rng.random() < 0.5)
        if not computed:
            return name, q, z
        table = self.rng.permutation(256).astype(np.uint8)
        inner = f"{name}.table"
        self._declare(inner, shape, z)
        self.ops.append(Op(inner, "table", (name,), {"fn": "shuffle"}, {"table": table}))
        return inner, table[q], z

    def _declare(self, name: str, shape: tuple[int, ...], z: int) -> None:
        self.tensors[name] = Tensor(name, "uint8", (None, *shape[1:]), 0.05, z)

    def finish(self, op: Op, z: int, expected: Array, text: str) -> Case:
        self.tensors[op.name] = Tensor(op.name, "uint8", (None, *expected.shape[1:]), 0.07, z)
        order = [*self.inputs, *(o.name for o in self.ops), op.name]
        program = Program(
            {n: self.tensors[n] for n in order}, (*self.ops, op), tuple(self.inputs), (op.name,), structure=0
        )
        return Case(program, self.inputs, expected, f"{text} z={z} attrs={op.attrs}")


def clamp(rng: Rng) -> tuple[int, int, int]:
    """z, lo, hi: no activation, relu, relu6-like, or any."""
    z = int(rng.choice([0, 255, 128, int(rng.integers(0, 256))]))
    kind = rng.integers(0, 4)
    if kind == 0:
        return z, 0, 255
    if kind == 1:
        return z, z, 255
    if kind == 2:
        return z, z, int(rng.integers(z, 256))
    lo, hi = sorted(int(v) for v in rng.integers(0, 256, 2))
    return z, lo, hi


def multiplier(rng: Rng, acc: Array, form: str, bias: Array | int = 0, count: int = 1) -> tuple[Array, Array]:
    """Certified a, b (count,) that spread ``acc`` over about the range, sometimes far more or less of it."""
    spread = max(1.0, float(np.abs(acc).max()))
    m = rng.uniform(20, 300) / spread * np.exp(rng.normal(0, 0.3, count))
    b_max = largest_denominator(form, np.abs(bias) * m * 1.5 + 1)
    a, b = ratios_above(m, b_max if np.ndim(b_max) else np.full(count, b_max))
    return certified(form, a, b, bias)


def certified(form: str, a: Array, b: Array, bias: Array | int = 0, residual_steps: float = 0.0) -> tuple[Array, Array]:
    """The same numbers, after the proof that no engine may miss."""
    assert (b % 2 == 1).all()
    if not (error_bound(form, np.abs(bias) * a / b, residual_steps) < 1 / (2 * b)).all():
        raise Unusable
    return a, b


def conv(rng: Rng, wide: bool, samples: int) -> Case:
    """Any convolution: 1 to 3 dimensions, groups, depthwise, transposed, dilation, residual, leaky."""
    d = Draft(rng)
    dims = int(rng.choice([1, 2, 2, 2, 2, 3]))
    layout = rng.integers(0, 4)
    groups = 1 if layout < 2 else int(rng.integers(1, 20))
    per_in, per_out = (1, 1) if layout == 3 else (int(rng.integers(1, 20)), int(rng.integers(1, 20)))
    if layout == 3 and rng.random() < 0.15:
        per_out = 2
    if layout == 2:
        groups, per_in, per_out = int(rng.integers(1, 5)), int(rng.integers(1, 9)), int(rng.integers(1, 9))
    kernel = [int(rng.choice([1, 2, 3, 3, 5])) for _ in range(dims)]
    if rng.random() < 0.25:
        kernel = [1] * dims
    big = rng.random() < 0.1  # more channels than a block or two of the kernels
    if big and layout < 2:
        per_in, per_out = int(rng.integers(20, 200)), int(rng.integers(20, 200))
    stride = [int(rng.integers(1, 4)) if rng.random() < 0.4 else 1 for _ in range(dims)]
    dilation = [int(rng.integers(1, 4)) if rng.random() < 0.3 else 1 for _ in range(dims)]
    padding = [
        int(rng.integers(0, (k - 1) * dl + 1)) if rng.random() < 0.7 else 0
        for k, dl in zip(kernel, dilation, strict=True)
    ]
    transposed = bool(rng.random() < 0.15)
    extra = [int(rng.integers(0, max(s, dl))) if transposed else 0 for s, dl in zip(stride, dilation, strict=True)]
    top = {1: 40, 2: 14, 3: 6}[dims] // (2 if big else 1)
    size = [
        int(rng.integers(max(1, (k - 1) * dl + 1 - 2 * p), top + (k - 1) * dl))
        for k, dl, p in zip(kernel, dilation, padding, strict=True)
    ]
    if transposed:
        size = [max(s, 3) for s in size]
    elif rng.random() < 0.05:  # an axis so short, and padded so far, that some outputs see nothing but padding
        k, dl = kernel[-1], dilation[-1]
        size[-1], padding[-1] = int(rng.integers(1, 4)), (k - 1) * dl + int(rng.integers(0, 3))
    i, o = groups * per_in, groups * per_out
    x, xq, zx = d.input("x", (samples, i, *size))
    limit = 127 if wide and rng.random() < 0.5 else 63
    w = rng.integers(-limit, limit + 1, ((i, per_out) if transposed else (o, per_in)) + tuple(kernel), dtype=np.int8)
    where = {"stride": stride, "padding": padding, "dilation": dilation}
    if transposed:
        out = [
            (s - 1) * st - 2 * p + dl * (k - 1) + e + 1
            for s, st, p, dl, k, e in zip(size, stride, padding, dilation, kernel, extra, strict=True)
        ]
        if min(out) < 1:
            raise Unusable
        acc = integer.conv_transpose_accumulate(xq, zx, w, None, stride, padding, extra, dilation, groups)
    else:
        acc = integer.conv_accumulate(xq, zx, w, None, stride, padding, dilation, groups)
    attrs: dict[str, Any] = where | {"groups": groups, "transposed": transposed, "output_padding": extra}
    return _product(d, "conv", x, xq, w, acc, attrs, axis=1, text=f"conv{dims}d x={xq.shape} w={w.shape}")


def linear(rng: Rng, wide: bool, samples: int) -> Case:
    """On two to four dimensions."""
    d = Draft(rng)
    shape = (
        samples,
        *(int(v) for v in rng.integers(1, 9, rng.integers(0, 3))),
        int(rng.integers(1, 200)),
    )
    x, xq, zx = d.input("x", shape)
    limit = 127 if wide and rng.random() < 0.5 else 63
    w = rng.integers(-limit, limit + 1, (int(rng.integers(1, 70)), shape[-1]), dtype=np.int8)
    acc = integer.linear_accumulate(xq, zx, w, None)
    return _product(d, "linear", x, xq, w, acc, {}, axis=acc.ndim - 1, text=f"linear x={xq.shape} w={w.shape}")


def _product(
    d: Draft, kind: str, x: str, xq: Array, w: Array, acc: Array, attrs: dict[str, Any], axis: int, text: str
) -> Case:
    """Bias, multipliers, clamp and one of: nothing more, a residual, a negative slope."""
    rng, channels = d.rng, acc.shape[axis]
    reach = max(1, int(np.abs(acc).max()))
    bias = (
        rng.integers(-reach, reach + 1, channels).astype(np.int32)
        if rng.random() < 0.8
        else np.zeros(channels, np.int32)
    )
    shape = [1] * acc.ndim
    shape[axis] = -1
    acc = acc + bias.reshape(shape)
    z, lo, hi = clamp(rng)
    arrays: dict[str, Array] = {"weight": w, "bias": bias}
    inputs: tuple[str, ...] = (x,)
    extra = rng.random()
    if extra < 0.3:
        same = bool(rng.random() < 0.2) and d.tensors[x].shape[1:] == acc.shape[1:]
        if same:
            name, res, zr = x, xq, int(d.tensors[x].zero_point or 0)
        else:
            name, res, zr = d.input("residual", acc.shape)
        r = float(rng.uniform(0.05, 1.2))
        m = np.full(channels, rng.uniform(20, 200) / max(1.0, float(np.abs(acc).max()))) * np.exp(
            rng.normal(0, 0.3, channels)
        )
        b_max = int(np.min(largest_denominator("affine", np.abs(bias) * m * 1.5 + 1, 255 * r + 1)))
        a = np.maximum(1, np.rint(m * b_max)).astype(np.int64)
        b = np.full(channels, b_max, np.int64)
        ra = max(1, int(r * b_max))
        certified("affine", a, b, bias, 255 * ra / b_max)
        expected = integer.requantize(acc, a, b, z, lo, hi, axis, residual=res.astype(np.int64) - zr, residual_a=ra)
        attrs = attrs | {"residual_a": ra}
        inputs = (x, name)
        text += " residual" + (" = x" if same else "")
    elif extra < 0.5:
        form = "leaky"
        a, b = multiplier(rng, acc, form, bias, channels)
        an, bn = multiplier(rng, acc, form, bias, channels)
        if rng.random() < 0.7:
            m = a / b * float(rng.uniform(0.01, 0.5))
            an, bn = ratios_above(m, largest_denominator(form, np.abs(bias) * m * 1.5 + 1))
            certified(form, an, bn, bias)
        arrays |= {"a_neg": an.astype(np.int32), "b_neg": bn.astype(np.int32)}
        expected = integer.requantize(acc, a, b, z, lo, hi, axis, a_neg=an, b_neg=bn)
        text += " leaky"
    else:
        a, b = multiplier(rng, acc, "affine", bias, channels)
        expected = integer.requantize(acc, a, b, z, lo, hi, axis)
    arrays |= {"a": a.astype(np.int32), "b": b.astype(np.int32)}
    attrs = {"residual_a": 0} | attrs | {"lo": lo, "hi": hi}
    return d.finish(Op("y", kind, inputs, attrs, arrays), z, expected, text)


def add(rng: Rng, wide: bool, samples: int) -> Case:
    """Two to five terms, signs, broadcasting, any rank."""
    d, count = Draft(rng), int(rng.choice([2, 2, 2, 3, 5]))
    shape = (samples, *(int(v) for v in rng.integers(1, 24, rng.integers(1, 5))))
    if len(shape) == 5:
        shape = (shape[0], *(min(v, 8) for v in shape[1:]))
    names, values, zeros = [], [], []
    for j in range(count):
        own = shape
        if j and rng.random() < 0.25:
            own = (shape[0], *(v if rng.random() < 0.5 else 1 for v in shape[1:]))
        if j == 1 and rng.random() < 0.1:
            names, values, zeros = names * 2, values * 2, zeros * 2
            continue
        name, q, z = d.input(f"x{j}", own)
        names, values, zeros = [*names, name], [*values, q], [*zeros, z]
    ratios = [float(v) for v in rng.uniform(0.1, 1.3, count) * rng.choice([1, 1, 1, -1], count)]
    b_max = int(largest_denominator("sum", 0.0, 255 * sum(map(abs, ratios)) * 1.05 + 8))
    a, b = best_ratios(ratios, b_max)
    if not error_bound("sum", 0.0, 255 * sum(map(abs, a)) / b) < 1 / (2 * b):
        raise Unusable
    z, lo, hi = clamp(rng)
    expected = integer.add(values, zeros, a, b, z, lo, hi)
    op = Op("y", "add", tuple(names), {"a": a, "b": b, "lo": lo, "hi": hi})
    return d.finish(op, z, expected, f"add {[v.shape for v in values]} zeros={zeros}")


def mul(rng: Rng, wide: bool, samples: int) -> Case:
    """Same shapes, a gate per channel, or broadcasting."""
    d, kind = Draft(rng), rng.integers(0, 3)
    rank = 4 if kind == 1 else int(rng.integers(2, 5))
    shape = (samples, *(int(v) for v in rng.integers(1, 20, rank - 1)))
    if kind == 1 and rng.random() < 0.2:
        shape = (samples, 64, 24, 24)  # large enough for one call per sample
    other = shape if kind == 0 else (*shape[:2], *(1,) * (rank - 2)) if kind == 1 else tuple(
        v if i == 0 or rng.random() < 0.5 else 1 for i, v in enumerate(shape)
    )  # fmt: skip
    (x, xq, zx), (w, wq, zw) = d.input("x", shape), d.input("w", other)
    if rng.random() < 0.3:
        (x, xq, zx), (w, wq, zw) = (w, wq, zw), (x, xq, zx)
    z, lo, hi = clamp(rng)
    product = (xq.astype(np.int64) - zx) * (wq.astype(np.int64) - zw)
    a, b = (int(v[0]) for v in multiplier(rng, product, "scaled"))
    expected = integer.mul(xq, zx, wq, zw, a, b, z, lo, hi)
    op = Op("y", "mul", (x, w), {"a": a, "b": b, "lo": lo, "hi": hi})
    return d.finish(op, z, expected, f"mul {xq.shape} {wq.shape} zeros={zx},{zw}")


def matmul(rng: Rng, wide: bool, samples: int) -> Case:
    """Two activations, leading dimensions that broadcast, sums that pass 2²⁴; operands as attention permutes them."""
    d, rank = Draft(rng), int(rng.integers(3, 5))
    i, j = (int(v) for v in rng.integers(1, 24, 2))
    k = int(rng.integers(1, 1200 if rng.random() < 0.3 else 80))
    lead = [samples, *(int(v) for v in rng.integers(1, 5, rank - 3))]
    other = [v if p == 0 or rng.random() < 0.7 else 1 for p, v in enumerate(lead)]
    if rng.random() < 0.2:
        lead, other = other, lead
    permuted = bool(rng.random() < 0.5)
    (x, xq, zx), (w, wq, zw) = d.input("x", (*lead, i, k)), d.input("w", (*other, j, k) if permuted else (*other, k, j))
    if permuted:
        dims = [*range(rank - 2), rank - 1, rank - 2]
        wq = np.transpose(wq, dims)
        d.tensors["w.t"] = Tensor("w.t", "uint8", (None, *wq.shape[1:]), 0.05, zw)
        d.ops.append(Op("w.t", "permute", (w,), {"dims": dims}))
        w = "w.t"
    z, lo, hi = clamp(rng)
    acc = np.matmul(xq.astype(np.int64) - zx, wq.astype(np.int64) - zw)
    a, b = (int(v[0]) for v in multiplier(rng, acc, "scaled"))
    expected = integer.requantize(acc, a, b, z, lo, hi)
    op = Op("y", "matmul", (x, w), {"a": a, "b": b, "lo": lo, "hi": hi})
    return d.finish(op, z, expected, f"matmul {xq.shape} {wq.shape} zeros={zx},{zw}")


def mean(rng: Rng, wide: bool, samples: int) -> Case:
    """Over the image, or over any dimensions but the batch."""
    d, rank = Draft(rng), int(rng.integers(2, 6))
    shape = (samples, *(int(v) for v in rng.integers(1, {2: 60, 3: 30, 4: 20, 5: 7}[rank], rank - 1)))
    x, q, zx = d.input("x", shape)
    dims = [i for i in range(1, rank) if rng.random() < 0.5] or [rank - 1]
    if rank == 4 and rng.random() < 0.7:
        dims = [2, 3]
    keep = bool(rng.random() < 0.5)
    z, lo, hi = clamp(rng)
    acc = q.astype(np.int64).sum(tuple(dims)) - zx * int(np.prod([shape[i] for i in dims]))
    a, b = (int(v[0]) for v in multiplier(rng, acc, "scaled"))
    expected = integer.mean(q, zx, dims, keep, a, b, z, lo, hi)
    op = Op("y", "mean", (x,), {"dims": dims, "keepdim": keep, "a": a, "b": b, "lo": lo, "hi": hi})
    return d.finish(op, z, expected, f"mean {shape} zero={zx}")


def pool(rng: Rng, wide: bool, samples: int) -> Case:
    """Average, adaptive average and max pools of one to three dimensions."""
    d, dims, kind = Draft(rng), int(rng.choice([1, 2, 2, 2, 3])), rng.integers(0, 3)
    top = {1: 40, 2: 20, 3: 8}[dims]
    shape = (samples, int(rng.integers(1, 40)), *(int(v) for v in rng.integers(3, top, dims)))
    x, q, zx = d.input("x", shape)
    size = list(shape[2:])
    kernel = [int(rng.integers(1, min(5, s) + 1)) for s in size]
    stride, padding = [int(v) for v in rng.integers(1, 4, dims)], [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    ceil = bool(rng.random() < 0.5)
    attrs: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
    if kind == 0:
        dilation = [
            int(rng.integers(1, 1 + max(1, (s + 2 * p - 1) // max(1, k - 1)))) if k > 1 else 1
            for s, p, k in zip(size, padding, kernel, strict=True)
        ]
        dilation = [min(v, 3) for v in dilation]
        expected = windows.max_pool(q, kernel, stride, padding, dilation, ceil)
        return d.finish(Op("y", "max_pool", (x,), attrs | {"dilation": dilation}), zx, expected, f"max_pool {shape}")
    if kind == 1:
        include = bool(rng.random() < 0.5)
        edges, n = windows.pool_windows(size, kernel, stride, padding, ceil, include)
        attrs |= {"count_include_pad": include}
        name = "avg_pool"
    else:
        out = [int(rng.integers(1, s + 1)) for s in size]
        if rng.random() < 0.5:
            out = [s // k if s % k == 0 else 1 for s, k in zip(size, kernel, strict=True)]
        edges, n = windows.adaptive_windows(size, out)
        attrs, name = {"output_size": out}, "adaptive_avg_pool"
    if (n < 1).any():
        raise Unusable
    gain = float(rng.uniform(0.3, 3))
    limit = int(largest_denominator("scaled"))
    a, b = ratios_above(np.array([gain / int(v) for v in np.unique(n)]), np.full(len(np.unique(n)), limit))
    certified("scaled", a, b)
    attrs["multipliers"] = [[int(v), int(p), int(r)] for v, p, r in zip(np.unique(n), a, b, strict=True)]
    z, lo, hi = clamp(rng)
    expected = windows.average(q, zx, edges, n, attrs["multipliers"], z, lo, hi)
    return d.finish(Op("y", name, (x,), attrs | {"lo": lo, "hi": hi}), z, expected, f"{name} {shape} zero={zx}")


def table(rng: Rng, wide: bool, samples: int) -> Case:
    """Random tables, clamps, and the activations an engine may have as an operator of its own."""
    d = Draft(rng)
    shape = (samples, *(int(v) for v in rng.integers(1, 30, rng.integers(1, 4))))
    x, q, _ = d.input("x", shape)
    z, meta = int(rng.integers(0, 256)), d.tensors[x]
    every = np.arange(256)
    fn = str(rng.choice(["random", "clamp", "hardswish", "silu"]))
    v = (every - int(meta.zero_point or 0)) * float(np.float32(meta.scale or 1))
    values = {
        "random": rng.integers(0, 256, 256),
        "clamp": np.clip(every, 17, 230),
        "hardswish": np.clip(np.rint(v * np.clip(v + 3, 0, 6) / 6 / float(np.float32(0.07))) + z, 0, 255),
        "silu": np.clip(np.rint(v / (1 + np.exp(-v)) / float(np.float32(0.07))) + z, 0, 255),
    }[fn].astype(np.uint8)
    return d.finish(Op("y", "table", (x,), {"fn": fn}, {"table": values}), z, values[q], f"table {fn} {shape}")


def resize(rng: Rng, wide: bool, samples: int) -> Case:
    """Linear resizing of one to three dimensions, up and down, by the weights that conversion takes and by others."""
    d, dims = Draft(rng), int(rng.choice([1, 2, 2, 2, 3]))
    size = [int(v) for v in rng.choice([1, 2, 3, 5, 8] if dims == 3 else [1, 2, 3, 4, 5, 7, 8, 16, 31], dims)]
    x, q, z = d.input("x", (samples, int(rng.choice([1, 3, 16, 40])), *size))
    out = [int(rng.choice([1, n, 2 * n, 3 * n, n + 1, -(-n // 2), 19])) for n in size]
    corners = bool(rng.random() < 0.5)
    chosen = [int(2 * v + 1) for v in rng.integers(0, 20, dims)]
    if rng.random() < 0.7:
        chosen = denominators(size, out, corners)
    attrs = {"size": out, "align_corners": corners, "denominators": chosen}
    op = Op("y", "resize_linear", (x,), attrs)
    return d.finish(op, z, _resized(q, out, corners, chosen), f"resize_linear {q.shape}")


def _resized(q: Array, out: Sequence[int], corners: bool, denominators: Sequence[int]) -> Array:
    """The definition, axis by axis with the whole matrix of its weights in fractions."""
    total = q.astype(np.int64)
    for axis, (m, d) in enumerate(zip(out, denominators, strict=True), start=2):
        n = q.shape[axis]
        weights = np.zeros((m, n), np.int64)
        for i in range(m):
            at = Fraction(i * (n - 1), max(m - 1, 1)) if corners else Fraction((2 * i + 1) * n, 2 * m) - Fraction(1, 2)
            left = math.floor(max(at, 0))
            share = math.floor((max(at, 0) - left) * d + Fraction(1, 2)) if left + 1 < n else 0
            weights[i, left] += d - share
            weights[i, min(left + 1, n - 1)] += share
        total = np.moveaxis(np.tensordot(total, weights, (axis, 1)), -1, axis)
    return integer.requantize(total, 1, math.prod(denominators), 0)


KINDS: dict[str, Callable[[Rng, bool, int], Case]] = {
    "conv": conv, "linear": linear, "add": add, "mul": mul, "matmul": matmul, "mean": mean, "pool": pool,
    "table": table, "resize": resize,
}  # fmt: skip


def draw_samples(rng: Rng) -> int:
    """How many samples there are: mostly few, which are quick, sometimes more, which engines may divide otherwise."""
    return int(rng.choice([1, 2, 3, 1, 2, 3, 1, 2, 3, 5, 8]))


def draw(kind: str, rng: Rng, wide: bool, samples: int | None = None) -> Case:
    """One certified case of a kind, with any number of samples unless it is given. ``wide`` allows weights that need
    VNNI."""
    samples = draw_samples(rng) if samples is None else samples
    while True:
        try:
            return KINDS[kind](rng, wide, samples)
        except Unusable:
            continue
