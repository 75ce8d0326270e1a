"""Programs of any size, of one kind of operation or of random ones, for measuring the memory they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.program.build import affine_arrays, conv_attrs, scale
from tests.runtime.large_sequences import FILL, LAYERS, SEQUENCES, layer, named

from intact8.arithmetic.resize import denominators
from intact8.arithmetic.softmax import softmax_table
from intact8.arithmetic.windows import adaptive_divisors, pool_divisors
from intact8.opset import output_shape
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

CLAMP = {"lo": 0, "hi": 255}
RATIO = {"a": 9, "b": 1001, **CLAMP}
Rng = np.random.Generator


class Maker:
    """A program that grows by one operation at a time; the last tensor is what the next one reads."""

    def __init__(self, rng: Rng, shape: tuple[int, ...], dtype: str = "uint8") -> None:
        self.rng = rng
        self.tensors = {"x": tensor("x", dtype, (None, *shape))}
        self.ops: list[Op] = []
        self.outputs: list[str] = []

    @property
    def last(self) -> Tensor:
        return list(self.tensors.values())[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d for d in self.last.shape[1:] if isinstance(d, int))

    def op(
        self, kind: str, attrs: dict[str, Any] | None = None, arrays: dict[str, Any] | None = None, dtype: str = "",
        inputs: tuple[str, ...] = (), rank: int = 1,
    ) -> None:  # fmt: skip
        """Append; the shape follows."""
        name, inputs = f"op{len(self.ops)}", inputs or (self.last.name,)
        op = Op(name, kind, inputs, attrs or {}, arrays or {})
        read = [self.tensors[n] for n in inputs]
        shape = output_shape(op, read[:1] if kind in ("conv", "linear") else read, (None,) * rank)
        self.tensors[name] = tensor(name, dtype or read[0].dtype, shape)
        self.ops.append(op)

    def program(self) -> Program:
        outputs = tuple(dict.fromkeys([*self.outputs, self.last.name]))
        program = Program(self.tensors, tuple(self.ops), ("x",), outputs, {"list": list(range(len(outputs)))})
        check(program)
        return program


def tensor(name: str, dtype: str, shape: tuple[Any, ...]) -> Tensor:
    return Tensor(name, dtype, shape, *((scale(0.05), 100) if dtype == "uint8" else ()))


def as_integers(m: Maker) -> None:
    if m.last.dtype != "uint8":
        m.op("quantize", dict(CLAMP), dtype="uint8")


def as_floats(m: Maker) -> None:
    if m.last.dtype != "float32":
        m.op("dequantize", dtype="float32")


def conv(m: Maker, floats: bool = False, **fixed: Any) -> None:
    """A convolution of any kind; more channels only while the result stays as large."""
    t: dict[str, Any] = {"kernel": int(m.rng.choice([1, 3, 5])), "stride": int(m.rng.choice([1, 1, 2])), "groups": 0}
    t |= {"outputs": int(m.rng.choice([8, 16, 32])), "transposed": False, "leaky": False, "residual": False} | fixed
    c = m.shape[0]
    groups = c if t["groups"] == "depthwise" else 1
    outputs = c if groups > 1 or t["residual"] else t["outputs"]
    k = t["kernel"]
    shape = (c, outputs // groups, k, k) if t["transposed"] else (outputs, c // groups, k, k)
    ones = [t["stride"]] * 2
    attrs = conv_attrs(padding=k // 2, groups=groups, residual_a=70 if t["residual"] else 0)
    attrs |= {"stride": ones, "transposed": t["transposed"]}
    if floats:
        for key in ("lo", "hi", "residual_a"):
            attrs.pop(key)
        m.op("float.conv", attrs, {"weight": np.full(shape, 1e-3, np.float32), "bias": np.zeros(outputs, np.float32)})
        return
    arrays = affine_arrays(*shape, outputs=outputs)
    if t["leaky"]:
        arrays |= {"a_neg": np.full(outputs, 1, np.int32), "b_neg": np.full(outputs, 1001, np.int32)}
    inputs = (m.last.name, m.last.name) if t["residual"] else ()
    m.op("conv", attrs, arrays, inputs=inputs)


def linear(m: Maker, floats: bool = False, outputs: int = 0, dynamic: bool = False) -> None:
    features, outputs = m.shape[-1], outputs or m.shape[-1]
    if floats:
        m.op("float.linear", {}, {"weight": np.full((outputs, features), 1e-3, np.float32)})
    elif dynamic:
        weight, scales = np.ones((outputs, features), np.int8), np.full(outputs, 1e-2, np.float32)
        m.op("dynamic_linear", {"granularity": "per_row"}, {"weight": weight, "scale": scales})
    else:
        m.op("linear", {**CLAMP, "residual_a": 0}, affine_arrays(outputs, features))


def average(m: Maker, floats: bool = False, k: int = 3, stride: int = 1, adaptive: int = 0) -> None:
    window = {"kernel": [k, k], "stride": [stride] * 2, "padding": [k // 2] * 2, "ceil_mode": False}
    size = list(m.shape[-2:])
    if adaptive:
        out = [-(-n // adaptive) for n in size]
        found, attrs = adaptive_divisors(size, out, 99), {"output_size": out}
    else:
        found = pool_divisors(size, *(window[n] for n in ("kernel", "stride", "padding")), False, False, 99)
        attrs = {**window, "count_include_pad": False}
    kind = "adaptive_avg_pool" if adaptive else "avg_pool"
    if floats:
        m.op(f"float.{kind}", attrs)
    else:
        m.op(kind, {**attrs, "multipliers": [[n, 1000 // n, 1001] for n in sorted(found or ())], **CLAMP})


def norm(m: Maker, kind: str) -> None:
    shape = m.shape[-1:]
    ones = np.ones(shape, np.float32)
    if kind.startswith("float."):
        m.op(kind, {"shape": list(shape), "eps": 1e-5}, {"weight": ones})
    else:
        m.op(kind, {"shape": list(shape), "eps": 1.0, **CLAMP}, {"gain": ones, "offset": ones})


def attention(m: Maker, kind: str = "matmul") -> None:
    """Rows times themselves."""
    first, rank = m.last.name, len(m.last.shape)
    dims = [*range(rank - 2), rank - 1, rank - 2]
    m.op("permute", {"dims": dims})
    m.op(kind, {**RATIO} if kind == "matmul" else {}, inputs=(first, m.last.name))


def twice(m: Maker, kind: str, attrs: dict[str, Any]) -> None:
    m.op(kind, attrs, inputs=(m.last.name, m.last.name))


def upsample(m: Maker, mode: str) -> None:
    m.op("upsample", {"size": [2 * n for n in m.shape[-2:]], "mode": mode, "align_corners": False})


def resize(m: Maker, numerator: int, denominator: int = 1) -> None:
    size = [max(1, numerator * n // denominator) for n in m.shape[-2:]]
    weights = denominators(m.shape[-2:], size, False)
    m.op("resize_linear", {"size": size, "align_corners": False, "denominators": weights})


def table(m: Maker) -> None:
    m.op("table", {"fn": "t"}, {"table": np.arange(255, -1, -1, dtype=np.uint8)})


def softmax(m: Maker, axis: int) -> None:
    m.op("softmax", {"axis": axis, "levels": 256.0, **CLAMP}, {"table": softmax_table(0.05)})


def pads(m: Maker) -> list[list[int]]:
    return [[0, 0], *([0, 0] for _ in m.shape[:-2]), [1, 1], [1, 1]]


INTEGERS: dict[str, Callable[[Maker], None]] = {
    "conv": conv,
    "conv 1x1": lambda m: conv(m, kernel=1, stride=1, outputs=m.shape[0]),
    "conv depthwise": lambda m: conv(m, groups="depthwise", kernel=3, stride=1),
    "conv leaky": lambda m: conv(m, leaky=True, kernel=3, stride=1, outputs=m.shape[0]),
    "conv residual": lambda m: conv(m, residual=True, kernel=3, stride=1),
    "conv transposed": lambda m: conv(m, transposed=True, kernel=2, stride=2, outputs=max(m.shape[0] // 4, 1)),
    "linear": linear,
    "add": lambda m: twice(m, "add", {"a": [300, 500], "b": 1001, **CLAMP}),
    "mul": lambda m: twice(m, "mul", RATIO),
    "mean": lambda m: m.op("mean", {"dims": [len(m.shape)], "keepdim": True, **RATIO}),
    "avg_pool": average,
    "adaptive_avg_pool": lambda m: average(m, adaptive=2),
    "table": table,
    "softmax": lambda m: softmax(m, len(m.shape)),
    "layer_norm": lambda m: norm(m, "layer_norm"),
    "rms_norm": lambda m: norm(m, "rms_norm"),
    "resize_linear up": lambda m: resize(m, 2),
    "resize_linear down": lambda m: resize(m, 2, 3),
    "max_pool": lambda m: m.op(
        "max_pool", {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    ),
}  # fmt: skip
MOVES: dict[str, Callable[[Maker], None]] = {
    "cat": lambda m: twice(m, "cat", {"axis": 1}),
    "reshape": lambda m: m.op("reshape", {"shape": [-1, *m.shape[::-1]]}),
    "permute": lambda m: m.op("permute", {"dims": [0, 1, *range(len(m.shape), 1, -1)]}),
    "slice": lambda m: m.op("slice", {"axis": len(m.shape), "start": 0, "end": m.shape[-1], "step": 2}),
    "pad": lambda m: m.op("pad", {"pads": pads(m), "value": 3}),
    "roll": lambda m: m.op("roll", {"shifts": [3], "dims": [len(m.shape)]}),
    "upsample nearest": lambda m: upsample(m, "nearest"),
}  # fmt: skip
UNARY = ("sigmoid", "gelu", "silu", "hardswish")
FLOATS: dict[str, Callable[[Maker], None]] = {
    "float.relu": lambda m: m.op("float.relu"),
    "float.clamp": lambda m: m.op("float.clamp", {"min": 0.0, "max": 6.0}),
    "float.leaky_relu": lambda m: m.op("float.leaky_relu", {"slope": 0.1}),
    "float.prelu": lambda m: m.op("float.prelu", {}, {"weight": np.full(m.shape[0], 0.2, np.float32)}),
    **{f"float.unary {fn}": lambda m, fn=fn: m.op("float.unary", {"fn": fn}) for fn in UNARY},  # type: ignore[misc]
    "float.affine_scalar": lambda m: m.op("float.affine_scalar", {"mul": 2.0, "add": 1.0}),
    **{f"float.{k}": lambda m, k=k: twice(m, f"float.{k}", {}) for k in ("add", "sub", "mul", "div")},  # type: ignore[misc]
    "float.mean": lambda m: m.op("float.mean", {"dims": [len(m.shape)], "keepdim": True}),
    "float.avg_pool": lambda m: average(m, floats=True),
    "float.adaptive_avg_pool": lambda m: average(m, floats=True, adaptive=2),
    "float.conv": lambda m: conv(m, floats=True, kernel=3, stride=1, outputs=m.shape[0]),
    "float.linear": lambda m: linear(m, floats=True),
    "float.scale_shift": lambda m: m.op("float.scale_shift", {}, {"weight": np.ones(m.shape[0], np.float32)}),
    "float.softmax": lambda m: m.op("float.softmax", {"axis": -1}),
    "float.log_softmax": lambda m: m.op("float.log_softmax", {"axis": -1}),
    "float.layer_norm": lambda m: norm(m, "float.layer_norm"),
    "float.rms_norm": lambda m: norm(m, "float.rms_norm"),
    "float.group_norm": lambda m: m.op("float.group_norm", {"groups": 2, "eps": 1e-5}),
    "float.reduce": lambda m: m.op("float.reduce", {"fn": "amax", "dims": [len(m.shape)], "keepdim": True}),
    "float.upsample bilinear": lambda m: upsample(m, "bilinear"),
    "dynamic_linear": lambda m: linear(m, dynamic=True),
}  # fmt: skip
ATTENTION: dict[str, Callable[[Maker], None]] = {
    "matmul": attention, "matmul of columns": attention,
    "float.matmul": lambda m: attention(m, "float.matmul"),
}  # fmt: skip
KINDS = {**INTEGERS, **MOVES, **FLOATS, **ATTENTION, "quantize": as_integers, "dequantize": as_floats}
NAMES = (*KINDS, *SEQUENCES)


def filled(m: Maker) -> None:
    """Numbers where others are large: what ``where`` becomes."""
    x = m.last.name
    m.op(FILL[0][0], dict(FILL[0][1]), dtype="bool")
    m.op(FILL[1][0], dict(FILL[1][1]), dtype="float32", inputs=(x, m.last.name))


def cast(m: Maker, dtype: str) -> None:
    """To another dtype and back."""
    m.op("float.cast", {"dtype": dtype}, dtype=dtype)
    m.op("float.cast", {"dtype": "float32"}, dtype="float32")


def scaled_rows(m: Maker) -> None:
    """Products with the mean of every row, expanded."""
    x, shape = m.last.name, [-1, *m.shape]
    m.op("float.mean", {"dims": [len(m.shape)], "keepdim": True})
    m.op("expand", {"shape": shape}, rank=len(shape))
    m.op("float.mul", {}, inputs=(x, m.last.name))


def recurrent(m: Maker, kind: str) -> None:
    """Rows as steps, of a batch behind them."""
    attrs, arrays = layer(kind, m.shape[-1], hidden=m.shape[-1] // 4, both=bool(m.rng.random() < 0.5))
    m.op("permute", {"dims": [1, 0, 2]})
    m.op(kind, attrs, arrays)
    m.op("permute", {"dims": [1, 0, 2]})


FLOATS |= {
    "float.masked_fill": filled, "float.cast int64": lambda m: cast(m, "int64"), "expand": scaled_rows,
    **{kind: lambda m, kind=kind: recurrent(m, kind) for kind in LAYERS},  # type: ignore[misc]
}  # fmt: skip


def alone(kind: str, elements: int) -> Program:
    """One operation (and a movement before a product) on an input of about so many elements."""
    if kind in SEQUENCES:
        return SEQUENCES[kind](elements)
    floats = kind in FLOATS or kind in ("float.matmul", "quantize")
    features = 512 if kind in ATTENTION or kind.split(".")[-1] in ("linear", "dynamic_linear") else 0
    shape = (
        (elements // features, features) if features else (16, math.isqrt(elements // 16), math.isqrt(elements // 16))
    )
    if kind in ATTENTION:
        shape = (elements // features // 256, 256, features)
    if kind == "matmul of columns":  # a result much larger than what it is made from
        shape = (math.isqrt(elements), 1)
    m = Maker(np.random.default_rng(0), shape, "float32" if floats else "uint8")
    KINDS[kind](m)
    return m.program()


def drawn(seed: int, elements: int) -> Program:
    """Up to a dozen operations drawn at random, on images or on rows, some of their results outputs."""
    rng = np.random.default_rng(seed)
    rows = bool(rng.random() < 0.4)
    most = elements * int(rng.integers(1, 5)) // 4
    shape = (most // 512, 512) if rows else (16, math.isqrt(most // 16), math.isqrt(most // 16))
    m = Maker(rng, shape, "float32" if rng.random() < 0.5 else "uint8")
    for _ in range(int(rng.integers(1, 12))):
        before = dict(m.tensors), list(m.ops)
        floats = rng.random() < 0.4
        (as_floats if floats else as_integers)(m)
        kinds = {**MOVES, **(FLOATS if floats else INTEGERS)}
        usable = [k for k in kinds if fits(k, m.shape)]
        kinds[str(rng.choice(usable))](m)
        if math.prod(m.shape) > elements or math.prod(m.shape) < elements // 16:
            m.tensors, m.ops = before
            continue
        if rng.random() < 0.2:
            m.outputs.append(m.last.name)
    if not m.ops:
        table(m) if m.last.dtype == "uint8" else as_integers(m)
    return named(m.program(), shape[0]) if rows and rng.random() < 0.5 else m.program()


IMAGES = ("conv", "pool", "upsample", "resize_linear", "prelu", "scale_shift", "group_norm")


def fits(kind: str, shape: tuple[int, ...]) -> bool:
    """Whether an operation takes a tensor of this shape."""
    if any(word in kind for word in IMAGES):
        return len(shape) == 3 and shape[0] <= 64 and min(shape[1:]) >= 8 and shape[0] % 2 == 0
    if "linear" in kind:
        return shape[-1] <= 1024
    if kind in LAYERS:
        return len(shape) == 2 and 64 <= shape[-1] <= 512
    if kind in ("layer_norm", "rms_norm"):
        return shape[-1] <= 1 << 15
    return kind not in ("permute", "pad") or len(shape) >= 2


def inputs(program: Program, batch: int = 1) -> dict[str, Any]:
    """Zeros, whose memory is there."""
    found = {}
    for name in program.inputs:
        t = program.tensors[name]
        sizes = {None: batch, **{name: least for name, (least, _) in program.dimensions.items()}}
        x = np.empty([d if isinstance(d, int) else sizes[d] for d in t.shape], t.dtype)
        x.fill(1)
        found[name] = x
    return found


__all__ = ["NAMES", "alone", "drawn", "inputs"]
