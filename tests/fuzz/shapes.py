"""Attributes, arrays and shapes of operands for operations of every kind: tiny, and mostly such that they fit.

A builder gets the random source, the kind and the shape of the first operand (None: the batch), and returns shapes of
the other operands, attributes and arrays. Kinds without a builder of their own take :func:`anything`, which knows
nothing but their declaration in ``intact8.opset``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from intact8.arithmetic.bit_packing import group_count
from intact8.arithmetic.dynamic import GRANULARITIES
from intact8.arithmetic.recurrent import GATES, REACH, STEPS, state_count
from intact8.arithmetic.resize import denominators
from intact8.arithmetic.windows import adaptive_windows, pool_windows
from intact8.opset import KINDS
from intact8.opset.values import Validator

Shape = tuple[int | None, ...]
Built = tuple[list[Shape], dict[str, Any], dict[str, Any]]
Builder = Callable[["Source", str, Shape], Built]

POOL: list[Any] = [
    0, 1, 2, 3, 4, 5, 7, 8, 100, 255, 256, 8191, 65536, 1 << 24, 1 << 31, -1, -2, 0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e30,
    -1e38, float("inf"), float("-inf"), None, True, False, "", "x", "relu", "none", "tanh", "all", "states", "steps",
    "float32", "int64", "bool", "uint8", "nearest", "linear", "sum", "eq", "per_row", "per_tensor", [0], [1], [2], [3],
    [0, 0], [1, 1], [2, 2], [1, 2], [3, 1], [0, 1], [1, 1, 1], [2, 1, 3], [-1], [-1, 1], [-1, 4], [], [[0, 0], [1, 1]],
    [[0, 0], [0, 2], [-1, 1]], [[1, 1, 1]], [[4, 1, 3]], [1] * 8,
]  # fmt: skip
"""What attributes are tried with whose meaning is not known here."""


class Source:
    """Random numbers in the forms that programs are made of."""

    def __init__(self, seed: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def size(self) -> int:
        return int(self.pick(1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33))

    def sizes(self, count: int, largest: int = 17) -> list[int]:
        return [min(self.size(), largest) for _ in range(count)]

    def floats(self, *shape: int) -> Any:
        scale = self.pick(1.0, 1.0, 1.0, 0.1, 30.0, 1e20)
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def positive(self, *shape: int) -> Any:
        return (self.rng.random(shape) * self.pick(1.0, 1e-3, 1e3) + 1e-6).astype(np.float32)

    def bytes(self, *shape: int) -> Any:
        return self.rng.integers(0, 256, shape).astype(np.uint8)

    def signed(self, *shape: int) -> Any:
        low = -128 if self.chance(0.05) else -127
        return self.rng.integers(low, 128, shape).astype(np.int8)

    def maybe(self, role: str, value: Any) -> dict[str, Any]:
        return {role: value} if self.chance(0.5) else {}

    def clamp(self) -> dict[str, int]:
        if self.chance(0.6):
            return {"lo": 0, "hi": 255}
        lo, hi = sorted(int(v) for v in self.rng.integers(0, 256, 2))
        return {"lo": lo, "hi": hi}

    def flag(self) -> bool:
        return self.chance(0.5)


def known(shape: Shape) -> list[int]:
    return [1 if d is None else d for d in shape]


@cache
def allowed(check: Validator) -> tuple[Any, ...]:
    """What of POOL a validator takes."""
    return tuple(value for value in POOL if check(value) is None)


def anything(s: Source, kind: str, x: Shape) -> Built:
    """By the declaration alone."""
    entry, sizes = KINDS[kind], [*known(x), 1, 2, 4, 256]
    count = s.whole(entry.inputs[0], min(entry.inputs[1], 4))
    attrs = {}
    for name, check in {**entry.attrs, **entry.optional}.items():
        options = allowed(check) or (0,)
        if name in entry.attrs or s.chance(0.3):
            attrs[name] = options[int(s.rng.integers(len(options)))]
    if "lo" in attrs:
        attrs |= s.clamp()
    if attrs.get("fn") in ("threshold", "pow"):
        attrs |= {"threshold": 0.5, "value": 1.0, "exponent": float(s.pick(2, 3, 0.5, -1))}
    arrays = {}
    for role, dtype in {**entry.arrays, **entry.optional_arrays}.items():
        if role in entry.arrays or s.chance(0.5):
            rank = s.pick(1, 1, 2)
            shape = (256,) if role == "table" else [s.pick(*sizes) for _ in range(rank)]
            arrays[role] = s.rng.integers(0, 100, shape).astype(dtype or "float32")
    return [x] * max(0, count - 1), attrs, arrays


def conv(s: Source, kind: str, x: Shape) -> Built:
    rank = len(x) - 2
    if not 1 <= rank <= 3:
        raise ValueError(rank)
    channels, transposed = known(x)[1], s.chance(0.2)
    groups = s.pick(1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0))
    kernel, per = [s.pick(1, 1, 2, 3, 3, 5) for _ in range(rank)], s.pick(1, 2, 4, 8, 16, 17)
    each = 1 if groups == channels and s.flag() else per
    attrs: dict[str, Any] = {
        "stride": [s.pick(1, 1, 2, 3) for _ in range(rank)], "padding": [s.pick(0, 1, 1, 2, 3) for _ in range(rank)],
        "dilation": [s.pick(1, 1, 1, 2) for _ in range(rank)], "output_padding": [0] * rank, "groups": groups,
        "transposed": transposed,
    }  # fmt: skip
    results = groups * each
    weight = (channels, each, *kernel) if transposed else (results, channels // groups, *kernel)
    if kind == "dequantized_conv":
        return (
            [],
            attrs,
            {"weight": s.signed(*weight), "scale": s.positive(results), **s.maybe("bias", s.floats(results))},
        )
    if kind == "float.conv":
        return [], attrs, {"weight": s.floats(*weight), **s.maybe("bias", s.floats(results))}
    more, own, arrays = affine(s, weight, results, x, None)
    return more, attrs | own, arrays


def affine(s: Source, weight: tuple[int, ...], results: int, x: Shape, out: Shape | None) -> Built:
    """What conv and linear share; with a residual where ``out`` is known."""
    b = np.full(results, s.pick(1, 101, 1001, 8191), np.int32)
    a = np.maximum(1, b * s.pick(0.001, 0.003, 0.05)).astype(np.int32)
    if s.chance(0.1):
        a = s.rng.integers(0, s.pick(2, 1 << 24), results).astype(np.int32)
    bias = s.rng.integers(-1000, 1000, results) if s.chance(0.9) else s.rng.integers(-(2**31), 2**31, results)
    arrays = {"weight": s.signed(*weight), "bias": bias.astype(np.int32), "a": a, "b": b}
    attrs: dict[str, Any] = {**s.clamp(), "residual_a": 0}
    if out is not None and s.chance(0.3):
        return [out], attrs | {"residual_a": s.pick(1, 50, 1 << 24)}, arrays
    if s.chance(0.2):
        arrays |= {"a_neg": s.rng.integers(-99, 99, results).astype(np.int32), "b_neg": b}
    return [], attrs, arrays


def linear(s: Source, kind: str, x: Shape) -> Built:
    width, results = known(x)[-1], s.size()
    if kind == "linear":
        return affine(s, (results, width), results, x, (*x[:-1], results))
    bias = s.maybe("bias", s.floats(results))
    if kind == "dequantized_linear":
        return [], {}, {"weight": s.signed(results, width), "scale": s.positive(results), **bias}
    if kind == "dynamic_linear":
        arrays = {"weight": s.signed(results, width), "scale": s.positive(results), **bias}
        return [], {"granularity": s.pick(*GRANULARITIES)}, arrays
    if kind == "float.decoded_linear":
        attrs, arrays = codes(s, results, width)
        return [], attrs, arrays | bias
    return [], {}, {"weight": s.floats(results, width), **bias}


def codes(s: Source, rows: int, columns: int) -> tuple[dict[str, Any], dict[str, Any]]:
    bits, group = s.pick(4, 8), s.pick(0, 0, s.whole(0, columns - 1))
    weight = s.bytes(rows, columns if bits == 8 else -(-columns // 2))
    attrs = {"bits": bits, "columns": columns, "group": group}
    return attrs, {"weight": weight, "scale": s.positive(rows, group_count(columns, group))}


def embedding(s: Source, kind: str, x: Shape) -> Built:
    rows, width = s.pick(1, 2, 8, 33), s.size()
    if kind == "decoded_embedding":
        attrs, arrays = codes(s, rows, width)
        return [], attrs, arrays
    return [], {}, {"weight": s.bytes(rows, width) if kind == "embedding" else s.floats(rows, width)}


def pool(s: Source, kind: str, x: Shape) -> Built:
    size = known(x)[2:]
    kernel = [s.pick(1, 2, 3, min(n, 5)) for n in size]
    attrs: dict[str, Any] = {
        "kernel": kernel, "stride": [s.pick(1, 1, 2, 3) for _ in size],
        "padding": [s.whole(0, k // 2) for k in kernel], "ceil_mode": s.flag(),
    }  # fmt: skip
    if kind == "max_pool":
        return [], attrs | {"dilation": [s.pick(1, 1, 2) for _ in size]}, {}
    attrs["count_include_pad"] = s.flag()
    if kind == "avg_pool":
        _, found = pool_windows(size, *(attrs[k] for k in ("kernel", "stride", "padding", "ceil_mode")), s.flag())
        attrs |= multipliers(s, found)
    return [], attrs, {}


def multipliers(s: Source, divisors: Any) -> dict[str, Any]:
    rows = [[int(n), s.pick(1, 30, 1000), s.pick(101, 8191)] for n in np.unique(divisors)]
    return {"multipliers": rows, **s.clamp()}


def adaptive(s: Source, kind: str, x: Shape) -> Built:
    size = known(x)[2:]
    out = [s.pick(1, 2, 3, n) for n in size]
    more = multipliers(s, adaptive_windows(size, out)[1]) if kind == "adaptive_avg_pool" else {}
    return [], {"output_size": out, **more}, {}


def norm(s: Source, kind: str, x: Shape) -> Built:
    tail = known(x)[-s.whole(1, max(1, len(x) - 1)) :]
    attrs: dict[str, Any] = {"shape": tail, "eps": s.pick(1e-5, 1e-12, 1.0)}
    if not kind.startswith("float."):
        return [], attrs | s.clamp(), {"gain": s.floats(*tail), "offset": s.floats(*tail)}
    bias = s.maybe("bias", s.floats(*tail)) if kind == "float.layer_norm" else {}
    return [], attrs, {**s.maybe("weight", s.floats(*tail)), **bias}


def channels(s: Source, kind: str, x: Shape) -> Built:
    count = known(x)[1]
    if kind == "float.prelu":
        return [], {}, {"weight": s.floats(s.pick(1, count))}
    arrays = {**s.maybe("weight", s.floats(count)), **s.maybe("bias", s.floats(count))}
    if kind == "float.scale_shift":
        return [], {}, arrays
    groups = s.pick(*(g for g in range(1, count + 1) if count % g == 0))
    if kind == "group_norm":
        arrays = {"gain": s.floats(count), "offset": s.floats(count)}
        return [], {"groups": groups, "eps": s.pick(1e-5, 1e-12, 1.0), **s.clamp()}, arrays
    return [], {"groups": groups, "eps": 1e-5}, arrays


def matmul(s: Source, kind: str, x: Shape) -> Built:
    lead: Shape = tuple(d if s.chance(0.7) else 1 for d in x[:-2])
    attrs: dict[str, Any] = {} if kind == "float.matmul" else {"a": s.pick(0, 1, 30), "b": 8191, **s.clamp()}
    return [(*lead, known(x)[-1], s.size())], attrs, {}


def pairs(s: Source, kind: str, x: Shape) -> Built:
    """Elementwise operations of two operands or more, which broadcast."""
    count = s.pick(1, 2, 2, 3, 5) if kind == "add" else 2
    others: list[Shape] = [tuple(d if s.chance(0.75) else 1 for d in x) for _ in range(count - 1)]
    if s.chance(0.2):
        others = [o[s.whole(0, len(o)) :] for o in others]
    attrs: dict[str, Any] = {}
    if kind == "add":
        attrs = {"a": [s.pick(-500, 77, 101, 1 << 24) for _ in range(count)], "b": s.pick(101, 8191), **s.clamp()}
    if kind == "mul":
        attrs = {"a": s.pick(0, 1, 30, 1 << 24), "b": s.pick(101, 8191), **s.clamp()}
    if kind == "float.integer_divide":
        attrs = {"rounding": s.pick("floor", "trunc")}
    if kind == "float.masked_fill":
        attrs = {"value": s.pick(0.0, float("-inf"), -3e38)}
    return others, attrs, {}


def gathered(s: Source, kind: str, x: Shape) -> Built:
    axis = s.whole(0, len(x) - 1)
    index = [s.pick(1, 3, 7) if d == axis and n is not None else n for d, n in enumerate(x)]
    if kind == "float.scatter":
        return [tuple(index)] * 2, {"axis": axis, "reduce": s.pick("none", "sum", "prod", "amax", "amin")}, {}
    return [tuple(index)], {"axis": axis}, {}


def softmax(s: Source, kind: str, x: Shape) -> Built:
    if kind != "softmax":
        return [], {"axis": s.whole(-len(x), len(x) - 1)}, {}
    masks: list[Shape] = [tuple(d if s.chance(0.7) else 1 for d in x)] if s.flag() else []
    table = -np.sort(-s.rng.integers(0, s.pick(2, 256, 1 << 20), 256))
    table[0] = max(table[0], 1)
    axis, levels = s.whole(0, len(x) - 1), float(np.float32(s.pick(255.0, 256.0)))
    return masks, {"axis": axis, "levels": levels, **s.clamp()}, {"table": table.astype(np.int32)}


def reduced(s: Source, kind: str, x: Shape) -> Built:
    dims = sorted({s.whole(0 if x[0] is not None else min(1, len(x) - 1), len(x) - 1) for _ in range(s.whole(1, 3))})
    attrs: dict[str, Any] = {"dims": dims, "keepdim": s.flag()}
    if kind == "float.reduce":
        fn = s.pick("sum", "amax", "amin", "argmax")
        attrs |= {"fn": fn, "dims": s.pick(dims[:1], []) if fn == "argmax" else dims}
    if kind == "mean":
        attrs |= {"a": s.pick(0, 1, 500), "b": 8191, **s.clamp()}
    return [], attrs, {}


def cat(s: Source, kind: str, x: Shape) -> Built:
    axis, others = s.whole(0 if x[0] is not None else min(1, len(x) - 1), len(x) - 1), list[Shape]()
    for _ in range(s.pick(0, 1, 1, 2, 6)):
        others.append((*x[:axis], s.size() if s.flag() else x[axis], *x[axis + 1 :]))
    return others, {"axis": axis}, {}


def moved(s: Source, kind: str, x: Shape) -> Built:
    rank, sizes = len(x), known(x)
    if kind == "reshape":
        rest = s.pick([prod(sizes[1:])], sizes[:0:-1], [1, *sizes[1:]])
        return [], {"shape": [-1 if x[0] is None else sizes[0], *rest]}, {}
    if kind == "permute":
        return [], {"dims": [int(d) for d in s.rng.permutation(rank)]}, {}
    if kind == "expand":
        return [], {"shape": [-1 if d is None else s.size() if d == 1 else d for d in x]}, {}
    axis = s.whole(0, rank - 1)
    if kind == "slice":
        start = s.whole(0, sizes[axis] - 1)
        return [], {"axis": axis, "start": start, "end": s.whole(start + 1, sizes[axis]), "step": s.pick(1, 2, 3)}, {}
    if kind == "roll":
        return [], {"shifts": [s.pick(0, 1, -1, 5, 1 << 31)], "dims": [axis]}, {}
    pads = [[0, 0] if d is None else [s.pick(0, 1, -1, 3), s.pick(0, 2, -1)] for d in x]
    return [], {"pads": pads, "value": s.pick(0, 1, 0.0)}, {}


def upsample(s: Source, kind: str, x: Shape) -> Built:
    size = known(x)[2:]
    fitting = {1: "linear", 2: s.pick("bilinear", "bicubic"), 3: "trilinear"}.get(len(size), "nearest")
    attrs = {"size": [s.pick(1, n, 2 * n, n + 3) for n in size], "mode": s.pick("nearest", "nearest-exact", fitting)}
    return [], attrs | {"align_corners": s.flag()}, {}


def resize(s: Source, kind: str, x: Shape) -> Built:
    size = known(x)[2:]
    out, corners = [s.pick(1, n, 2 * n, n + 3) for n in size], s.flag()
    chosen = s.pick([1] * len(size), [35] * len(size), denominators(size, out, corners))
    return [], {"size": out, "align_corners": corners, "denominators": chosen}, {}


def constant(s: Source, kind: str, x: Shape) -> Built:
    dtype = s.pick("float32", "int64", "bool", "uint8")
    return [], {}, {"value": s.rng.integers(0, 2 if dtype == "bool" else 100, known(x)).astype(dtype)}


def recurrent(s: Source, kind: str, x: Shape) -> Built:
    name = kind.removeprefix("float.")
    batch, inputs = x[1], known(x)[2]
    hidden, both, states, lengths = s.pick(1, 2, 5, 16, 130), s.flag(), s.flag(), s.flag()
    d, rows = 1 + both, GATES[name] * hidden
    others: list[Shape] = [(d, batch, hidden)] * (state_count(name) * states)
    attrs: dict[str, Any] = {
        "hidden": hidden, "bidirectional": both, "states": states, "lengths": lengths,
        "result": s.pick("all", "states", "steps"),
    }  # fmt: skip
    if name == "rnn":
        attrs["nonlinearity"] = s.pick("tanh", "relu")
    if lengths:
        others.append((batch,))
    if kind != name:
        roles = {"weight_ih": (rows, inputs), "weight_hh": (rows, hidden)}
        roles |= {"bias_ih": (rows,), "bias_hh": (rows,)} if s.flag() else {}
        ends = ("", ".reverse") if both else ("",)
        return others, attrs, {role + end: s.floats(*shape) for role, shape in roles.items() for end in ends}
    arrays = {
        "weight_ih": s.signed(d, rows, inputs), "weight_hh": s.signed(d, rows, hidden),
        "scale_ih": s.positive(d, rows), "scale_hh": s.positive(d, rows), "bias": s.floats(d, rows),
    }  # fmt: skip
    if name == "gru":
        arrays["bias_hh"] = s.floats(d, hidden)
    if attrs.get("nonlinearity") != "relu":
        arrays["tanh"] = np.tanh(np.arange(STEPS * REACH + 1) / STEPS).astype(np.float32)
    return others, attrs, arrays


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("conv", "dequantized_conv", "float.conv"), conv),
    **dict.fromkeys(("linear", "dequantized_linear", "float.linear", "dynamic_linear", "float.decoded_linear"), linear),
    **dict.fromkeys(("embedding", "float.embedding", "decoded_embedding"), embedding),
    **dict.fromkeys(("avg_pool", "max_pool", "float.avg_pool"), pool),
    **dict.fromkeys(("adaptive_avg_pool", "float.adaptive_avg_pool"), adaptive),
    **dict.fromkeys(("layer_norm", "rms_norm", "float.layer_norm", "float.rms_norm"), norm),
    **dict.fromkeys(("float.prelu", "float.scale_shift", "float.group_norm", "group_norm"), channels),
    **dict.fromkeys(("matmul", "float.matmul"), matmul),
    **dict.fromkeys(("add", "mul", "float.add", "float.sub", "float.mul", "float.div", "float.masked_fill"), pairs),
    **dict.fromkeys(("float.maximum", "float.minimum", "float.integer_divide"), pairs),
    **dict.fromkeys(("softmax", "float.softmax", "float.log_softmax"), softmax),
    **dict.fromkeys(("mean", "float.mean", "float.reduce"), reduced),
    **dict.fromkeys(("reshape", "permute", "expand", "slice", "roll", "pad"), moved),
    **dict.fromkeys([name for name in KINDS if name.removeprefix("float.") in GATES], recurrent),
    "cat": cat,
    **dict.fromkeys(("float.gather", "float.scatter"), gathered),
    "upsample": upsample,
    "resize_linear": resize,
    "constant": constant,
}
"""Kind → builder; other kinds are built by :func:`anything`."""

RANKS: dict[Builder, tuple[int, ...]] = {
    conv: (3, 4, 4, 5), pool: (3, 4, 4, 5), adaptive: (3, 4, 5), upsample: (3, 4, 4, 5), resize: (3, 4, 4, 5),
    matmul: (2, 3, 4), channels: (2, 3, 4), recurrent: (3,), embedding: (1, 2, 3), norm: (2, 3, 4),
}  # fmt: skip
"""Dimensions that the first operand of a builder must have; others take any."""
