"""Which attributes and arrays every kind of operation takes: the table behind :func:`intact.program.check.check`."""

from __future__ import annotations

from dataclasses import dataclass, field

from intact.arithmetic.dynamic import GRANULARITIES
from intact.arithmetic.functions64 import UNARY

from .ops import INTERPOLATING
from .recurrent import ARRAYS
from .values import (
    LARGEST_A,
    LARGEST_SIZE,
    Validator,
    boolean,
    epsilon,
    integer,
    integers,
    limit,
    limit_or_none,
    multipliers,
    number,
    numerators,
    odd,
    one_of,
    paddings,
    positive,
    text,
)


@dataclass(frozen=True)
class Kind:
    """What an operation looks like.

    Attributes:
        inputs: fewest and most inputs.
        attrs: required attributes.
        optional: attributes that may be absent.
        arrays: required arrays, role → dtype name ("" for any).
        optional_arrays: arrays that may be absent.
        domain: "integer" (uint8 in, uint8 out), "float" (no quantized tensors), "dynamic" (no quantized tensors, and
            float32 results that are the same bits everywhere), "any" (moves: scale and zero point unchanged), or the
            kind itself.
    """

    inputs: tuple[int, int]
    attrs: dict[str, Validator] = field(default_factory=dict)
    optional: dict[str, Validator] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    optional_arrays: dict[str, str] = field(default_factory=dict)
    domain: str = "integer"


BYTE = integer(0, 255)
SMALL = 1 << 16
STRIDES, PADDINGS = integers(1, SMALL), integers(0, SMALL)
SIZES = integers(1, LARGEST_SIZE)
SHAPE = integers(-1, LARGEST_SIZE, empty=True, names=True)
AXIS, POSITION = integer(0, 7), integer(0, LARGEST_SIZE)
END = integer(0, LARGEST_SIZE, name=True)
AXES = integers(0, 7)
NUMERATOR = integer(0, LARGEST_A)
CLAMP: dict[str, Validator] = {"lo": BYTE, "hi": BYTE}
RATIO: dict[str, Validator] = {"a": NUMERATOR, "b": odd, **CLAMP}
WINDOW: dict[str, Validator] = {"kernel": STRIDES, "stride": STRIDES, "padding": PADDINGS, "ceil_mode": boolean}
CONV: dict[str, Validator] = {
    "stride": STRIDES, "padding": PADDINGS, "dilation": STRIDES, "output_padding": PADDINGS,
    "groups": integer(1, SMALL), "transposed": boolean,
}  # fmt: skip
NORM: dict[str, Validator] = {"shape": SIZES, "eps": epsilon, **CLAMP}
NORM_ARRAYS = {"gain": "float32", "offset": "float32"}
AFFINE_ARRAYS = {"weight": "int8", "bias": "int32", "a": "int32", "b": "int32"}
NEGATIVE = {"a_neg": "int32", "b_neg": "int32"}
CODES: dict[str, Validator] = {
    "bits": integer(4, 8), "columns": integer(1, LARGEST_SIZE), "group": integer(0, LARGEST_SIZE),
}  # fmt: skip
CODE_ARRAYS = {"weight": "uint8", "scale": "float32"}
UPSAMPLE: dict[str, Validator] = {
    "size": SIZES,
    "mode": one_of("nearest", "nearest-exact", *INTERPOLATING),
    "align_corners": boolean,
}


def _any(most: int = 1, **attrs: Validator) -> Kind:
    """A move of one input, or of up to ``most``."""
    return Kind((1, most), attrs, domain="any")


def _float(count: int = 1, arrays: tuple[str, ...] = (), maybe: tuple[str, ...] = (), **attrs: Validator) -> Kind:
    """A float op of ``count`` inputs, with float32 arrays that must or may be there."""
    required, optional = dict.fromkeys(arrays, "float32"), dict.fromkeys(maybe, "float32")
    return Kind((count, count), attrs, arrays=required, optional_arrays=optional, domain="float")


RECURRENT: dict[str, Validator] = {
    "hidden": integer(1, SMALL), "bidirectional": boolean, "states": boolean, "lengths": boolean,
    "result": one_of("all", "states", "steps"),
}  # fmt: skip
NONLINEARITY = one_of("tanh", "relu")


def _recurrent(domain: str, **attrs: Validator) -> Kind:
    """A layer of LSTM, GRU or RNN: its input, initial states, lengths."""
    if domain == "dynamic":
        return Kind((1, 4), attrs, {}, ARRAYS, {"bias_hh": "float32", "tanh": "float32"}, domain)
    roles = [role + d for d in ("", ".reverse") for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    required, optional = dict.fromkeys(roles[:2], "float32"), dict.fromkeys(roles[2:], "float32")
    return Kind((1, 4), attrs, arrays=required, optional_arrays=optional, domain=domain)


WEIGHT, BIAS, BOTH = ("weight",), ("bias",), ("weight", "bias")

KINDS: dict[str, Kind] = {
    "quantize": Kind((1, 1), dict(CLAMP), domain="quantize"),
    "dequantize": Kind((1, 1), domain="dequantize"),
    "conv": Kind((1, 2), {**CONV, **CLAMP, "residual_a": NUMERATOR}, {}, AFFINE_ARRAYS, NEGATIVE),
    "linear": Kind((1, 2), {**CLAMP, "residual_a": NUMERATOR}, {}, AFFINE_ARRAYS, NEGATIVE),
    "add": Kind((1, 64), {"a": numerators, "b": odd, **CLAMP}),
    "mul": Kind((2, 2), dict(RATIO)),
    "matmul": Kind((2, 2), dict(RATIO)),
    "mean": Kind((1, 1), {"dims": AXES, "keepdim": boolean, **RATIO}),
    "avg_pool": Kind((1, 1), {**WINDOW, "count_include_pad": boolean, "multipliers": multipliers, **CLAMP}),
    "adaptive_avg_pool": Kind((1, 1), {"output_size": SIZES, "multipliers": multipliers, **CLAMP}),
    "table": Kind((1, 1), {"fn": text}, {}, {"table": "uint8"}),
    "softmax": Kind((1, 2), {"axis": AXIS, "levels": positive, **CLAMP}, {}, {"table": "int32"}),
    "layer_norm": Kind((1, 1), dict(NORM), {}, dict(NORM_ARRAYS)),
    "rms_norm": Kind((1, 1), dict(NORM), {}, dict(NORM_ARRAYS)),
    "embedding": Kind((1, 1), {}, {}, {"weight": "uint8"}),
    "dynamic_linear": Kind(
        (1, 1), {"granularity": one_of(*GRANULARITIES)}, {}, {"weight": "int8", "scale": "float32"},
        {"bias": "float32"}, domain="dynamic",
    ),
    "decoded_embedding": Kind((1, 1), dict(CODES), {}, dict(CODE_ARRAYS), domain="dynamic"),
    "lstm": _recurrent("dynamic", **RECURRENT),
    "gru": _recurrent("dynamic", **RECURRENT),
    "rnn": _recurrent("dynamic", **RECURRENT, nonlinearity=NONLINEARITY),
    "max_pool": Kind((1, 1), {**WINDOW, "dilation": STRIDES}, domain="any"),
    "cat": _any(4096, axis=AXIS),
    "reshape": _any(shape=SHAPE),
    "permute": _any(dims=AXES),
    "slice": _any(axis=AXIS, start=POSITION, end=END, step=integer(1, LARGEST_SIZE)),
    "pad": _any(pads=paddings, value=limit),
    "expand": _any(shape=SHAPE),
    "roll": _any(shifts=integers(-LARGEST_SIZE, LARGEST_SIZE), dims=AXES),
    "upsample": Kind((1, 1), UPSAMPLE, domain="any"),
    "constant": Kind((0, 0), arrays={"value": ""}, domain="any"),
    "float.relu": _float(),
    "float.clamp": _float(min=limit_or_none, max=limit_or_none),
    "float.leaky_relu": _float(slope=number),
    "float.prelu": _float(arrays=WEIGHT),
    "float.unary": Kind(
        (1, 1), {"fn": one_of(*UNARY)},
        {"approximate": one_of("none", "tanh"),
         **dict.fromkeys(("alpha", "beta", "threshold", "lambd", "value", "exponent"), number)}, domain="float",
    ),
    "float.affine_scalar": _float(mul=number, add=number),
    "float.add": _float(2),
    "float.sub": _float(2),
    "float.mul": _float(2),
    "float.div": _float(2),
    "float.mean": _float(dims=AXES, keepdim=boolean),
    "float.avg_pool": Kind((1, 1), {**WINDOW, "count_include_pad": boolean}, domain="float"),
    "float.adaptive_avg_pool": _float(output_size=SIZES),
    "float.conv": Kind(
        (1, 1), CONV, arrays={"weight": "float32"}, optional_arrays={"bias": "float32"}, domain="float"
    ),
    "float.linear": _float(arrays=WEIGHT, maybe=BIAS),
    "float.scale_shift": _float(maybe=BOTH),
    "float.softmax": _float(axis=integer(-8, 7)),
    "float.log_softmax": _float(axis=integer(-8, 7)),
    "float.layer_norm": _float(maybe=BOTH, shape=SIZES, eps=number),
    "float.rms_norm": _float(maybe=WEIGHT, shape=SIZES, eps=number),
    "float.group_norm": _float(maybe=BOTH, groups=integer(1, SMALL), eps=number),
    "float.matmul": _float(2),
    "float.reduce": _float(
        fn=one_of("sum", "amax", "amin", "argmax"), dims=integers(0, 7, empty=True), keepdim=boolean
    ),
    "float.embedding": _float(arrays=WEIGHT),
    "float.decoded_linear": Kind((1, 1), dict(CODES), {}, dict(CODE_ARRAYS), {"bias": "float32"}, domain="float"),
    "float.lstm": _recurrent("float", **RECURRENT),
    "float.gru": _recurrent("float", **RECURRENT),
    "float.rnn": _recurrent("float", **RECURRENT, nonlinearity=NONLINEARITY),
    "float.masked_fill": _float(2, value=limit),
    "float.compare": _float(fn=one_of("eq", "ne", "lt", "le", "gt", "ge"), value=number),
    "float.cast": _float(dtype=one_of("float32", "int64", "bool", "uint8")),
}  # fmt: skip
"""Kind name → what it takes."""

EXACT_FLOATS = frozenset(name for name, kind in KINDS.items() if kind.domain == "dynamic")
"""Kinds that give float32 results, the same bits on every engine."""
