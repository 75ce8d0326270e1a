"""Which dtypes, attributes and arrays every kind of operation takes and gives: the table behind
:func:`intact.program.check.check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from intact.arithmetic.dynamic import GRANULARITIES
from intact.arithmetic.functions64 import UNARY

from .ops import INTERPOLATING, Op, Tensor
from .recurrent import ARRAYS
from .types import PLAIN, QUANTIZED, Signature, result_types, signature
from .values import (
    LARGEST_A,
    LARGEST_SIZE,
    Validator,
    boolean,
    epsilon,
    exactly,
    integer,
    integers,
    inverse_scale,
    limit,
    limit_or_none,
    multipliers,
    number,
    numerators,
    odd,
    one_of,
    paddings,
    text,
    whole,
    whole_or_none,
)


@dataclass(frozen=True)
class Kind:
    """What an operation looks like.

    Attributes:
        inputs: fewest and most inputs.
        types: the dtypes of its operands and of its result, every combination that is allowed and no other.
        attrs: required attributes.
        optional: attributes that may be absent.
        arrays: required arrays, role → dtype name ("" for any).
        optional_arrays: arrays that may be absent.
        infinite: float arrays that may hold infinities, for what they hold is a value or is added to one (masks); no
            other may, and none may hold NaN.
        domain: "integer", "float" (a float island), "dynamic" (float32 results that are the same bits everywhere),
            "any" (moves: scale and zero point unchanged), or the kind itself.
    """

    inputs: tuple[int, int]
    types: tuple[Signature, ...]
    attrs: dict[str, Validator] = field(default_factory=dict)
    optional: dict[str, Validator] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    optional_arrays: dict[str, str] = field(default_factory=dict)
    domain: str = "integer"
    infinite: frozenset[str] = frozenset()


FLOAT, INT = "float32", "int64"
NUMBERS = " ".join(PLAIN)
MOVED = (signature(f"{NUMBERS} {QUANTIZED}", gives=""),)
POOLED = (signature(f"{QUANTIZED} float32 uint8", gives=""),)
CONSTANT = tuple(signature(gives=result) for result in (QUANTIZED, *NUMBERS.split()))
MASKED = (signature(QUANTIZED, "bool", gives=QUANTIZED),)
INTEGERS = (signature(QUANTIZED, gives=QUANTIZED),)
FLOATS = (signature(FLOAT, gives=FLOAT),)
ROWS = (signature(INT, gives=FLOAT),)
REAL = (signature(NUMBERS, gives=FLOAT),)
"""Integers become float32 first."""

SUMS = (
    *(signature(*pair, gives=FLOAT) for pair in ((FLOAT, NUMBERS), (NUMBERS, FLOAT))),
    *(signature(*pair, gives=INT) for pair in ((INT, "int64 bool uint8"), ("bool uint8", INT))),
)
"""float32 where an operand is float32, else int64 where one is int64."""

DIFFERENCES = (*SUMS[:2], *(signature(*pair, gives=INT) for pair in ((INT, "int64 uint8"), ("uint8", INT))))
SCALED = (*REAL, signature("int64 bool", gives=INT, mul=whole, add=whole))
LIMITED = (signature(FLOAT, gives=FLOAT), signature(INT, gives=INT, min=whole_or_none, max=whole_or_none))
REDUCED = (
    signature(FLOAT, gives=FLOAT, fn=one_of("sum", "amax", "amin")),
    signature("int64 bool uint8", gives=INT, fn=one_of("sum")),
    signature(INT, gives=INT, fn=one_of("amax", "amin")),
    signature("float32 int64 uint8", gives=INT, fn=one_of("argmax")),
)
COMPARED = (signature(NUMBERS, gives="bool"),)
CAST = tuple(signature(NUMBERS, gives=dtype, dtype=one_of(dtype)) for dtype in NUMBERS.split())
LAYERS = (
    signature(FLOAT, gives=FLOAT, lengths=exactly(False)),
    signature(FLOAT, gives=FLOAT, last=INT, lengths=exactly(True)),
)

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
    return Kind((1, most), MOVED, attrs, domain="any")


def _float(
    types: tuple[Signature, ...],
    count: int = 1,
    arrays: tuple[str, ...] = (),
    maybe: tuple[str, ...] = (),
    infinite: tuple[str, ...] = (),
    **attrs: Validator,
) -> Kind:
    """A float op of ``count`` inputs of these types, with float32 arrays that must or may be there."""
    required, optional = dict.fromkeys(arrays, "float32"), dict.fromkeys(maybe, "float32")
    return Kind(
        (count, count), types, attrs, arrays=required, optional_arrays=optional, domain="float",
        infinite=frozenset(infinite),
    )  # fmt: skip


RECURRENT: dict[str, Validator] = {
    "hidden": integer(1, SMALL), "bidirectional": boolean, "states": boolean, "lengths": boolean,
    "result": one_of("all", "states", "steps"),
}  # fmt: skip
NONLINEARITY = one_of("tanh", "relu")


def _recurrent(domain: str, **attrs: Validator) -> Kind:
    """A layer of LSTM, GRU or RNN: its input, initial states, lengths."""
    if domain == "dynamic":
        return Kind((1, 4), LAYERS, attrs, {}, ARRAYS, {"bias_hh": "float32", "tanh": "float32"}, domain)
    roles = [role + d for d in ("", ".reverse") for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    required, optional = dict.fromkeys(roles[:2], "float32"), dict.fromkeys(roles[2:], "float32")
    return Kind((1, 4), LAYERS, attrs, arrays=required, optional_arrays=optional, domain=domain)


WEIGHT, BIAS, BOTH = ("weight",), ("bias",), ("weight", "bias")

KINDS: dict[str, Kind] = {
    "quantize": Kind((1, 1), (signature(FLOAT, gives=QUANTIZED),), dict(CLAMP), domain="quantize"),
    "dequantize": Kind((1, 1), (signature(QUANTIZED, gives=FLOAT),), domain="dequantize"),
    "conv": Kind((1, 2), INTEGERS, {**CONV, **CLAMP, "residual_a": NUMERATOR}, {}, AFFINE_ARRAYS, NEGATIVE),
    "linear": Kind((1, 2), INTEGERS, {**CLAMP, "residual_a": NUMERATOR}, {}, AFFINE_ARRAYS, NEGATIVE),
    "add": Kind((1, 64), INTEGERS, {"a": numerators, "b": odd, **CLAMP}),
    "mul": Kind((2, 2), INTEGERS, dict(RATIO)),
    "matmul": Kind((2, 2), INTEGERS, dict(RATIO)),
    "mean": Kind((1, 1), INTEGERS, {"dims": AXES, "keepdim": boolean, **RATIO}),
    "avg_pool": Kind((1, 1), INTEGERS, {**WINDOW, "count_include_pad": boolean, "multipliers": multipliers, **CLAMP}),
    "adaptive_avg_pool": Kind((1, 1), INTEGERS, {"output_size": SIZES, "multipliers": multipliers, **CLAMP}),
    "table": Kind((1, 1), INTEGERS, {"fn": text}, {}, {"table": "uint8"}),
    "softmax": Kind((1, 2), MASKED, {"axis": AXIS, "levels": inverse_scale, **CLAMP}, {}, {"table": "int32"}),
    "layer_norm": Kind((1, 1), INTEGERS, dict(NORM), {}, dict(NORM_ARRAYS)),
    "rms_norm": Kind((1, 1), INTEGERS, dict(NORM), {}, dict(NORM_ARRAYS)),
    "embedding": Kind((1, 1), (signature(INT, gives=QUANTIZED),), {}, {}, {"weight": "uint8"}),
    "dynamic_linear": Kind(
        (1, 1), FLOATS, {"granularity": one_of(*GRANULARITIES)}, {}, {"weight": "int8", "scale": "float32"},
        {"bias": "float32"}, domain="dynamic",
    ),
    "decoded_embedding": Kind((1, 1), ROWS, dict(CODES), {}, dict(CODE_ARRAYS), domain="dynamic"),
    "lstm": _recurrent("dynamic", **RECURRENT),
    "gru": _recurrent("dynamic", **RECURRENT),
    "rnn": _recurrent("dynamic", **RECURRENT, nonlinearity=NONLINEARITY),
    "max_pool": Kind((1, 1), POOLED, {**WINDOW, "dilation": STRIDES}, domain="any"),
    "cat": _any(4096, axis=AXIS),
    "reshape": _any(shape=SHAPE),
    "permute": _any(dims=AXES),
    "slice": _any(axis=AXIS, start=POSITION, end=END, step=integer(1, LARGEST_SIZE)),
    "pad": _any(pads=paddings, value=limit),
    "expand": _any(shape=SHAPE),
    "roll": _any(shifts=integers(-LARGEST_SIZE, LARGEST_SIZE), dims=AXES),
    "upsample": Kind((1, 1), MOVED, UPSAMPLE, domain="any"),
    "constant": Kind((0, 0), CONSTANT, arrays={"value": ""}, domain="any", infinite=frozenset({"value"})),
    "float.relu": _float(FLOATS),
    "float.clamp": _float(LIMITED, min=limit_or_none, max=limit_or_none),
    "float.leaky_relu": _float(FLOATS, slope=number),
    "float.prelu": _float(FLOATS, arrays=WEIGHT),
    "float.unary": Kind(
        (1, 1), REAL, {"fn": one_of(*UNARY)},
        {"approximate": one_of("none", "tanh"),
         **dict.fromkeys(("alpha", "beta", "threshold", "lambd", "value", "exponent"), number)}, domain="float",
    ),
    "float.affine_scalar": _float(SCALED, mul=number, add=number),
    "float.add": _float(SUMS, 2),
    "float.sub": _float(DIFFERENCES, 2),
    "float.mul": _float(SUMS, 2),
    "float.div": _float(REAL, 2),
    "float.mean": _float(FLOATS, dims=AXES, keepdim=boolean),
    "float.avg_pool": Kind((1, 1), FLOATS, {**WINDOW, "count_include_pad": boolean}, domain="float"),
    "float.adaptive_avg_pool": _float(FLOATS, output_size=SIZES),
    "float.conv": Kind(
        (1, 1), FLOATS, CONV, arrays={"weight": "float32"}, optional_arrays={"bias": "float32"}, domain="float"
    ),
    "float.linear": _float(FLOATS, arrays=WEIGHT, maybe=BIAS),
    "float.scale_shift": _float(FLOATS, maybe=BOTH, infinite=BOTH),
    "float.softmax": _float(FLOATS, axis=integer(-8, 7)),
    "float.log_softmax": _float(FLOATS, axis=integer(-8, 7)),
    "float.layer_norm": _float(FLOATS, maybe=BOTH, shape=SIZES, eps=number),
    "float.rms_norm": _float(FLOATS, maybe=WEIGHT, shape=SIZES, eps=number),
    "float.group_norm": _float(FLOATS, maybe=BOTH, groups=integer(1, SMALL), eps=number),
    "float.matmul": _float(FLOATS, 2),
    "float.reduce": _float(
        REDUCED, fn=one_of("sum", "amax", "amin", "argmax"), dims=integers(0, 7, empty=True), keepdim=boolean
    ),
    "float.embedding": _float(ROWS, arrays=WEIGHT, infinite=WEIGHT),
    "float.decoded_linear": Kind(
        (1, 1), FLOATS, dict(CODES), {}, dict(CODE_ARRAYS), {"bias": "float32"}, domain="float"
    ),
    "float.lstm": _recurrent("float", **RECURRENT),
    "float.gru": _recurrent("float", **RECURRENT),
    "float.rnn": _recurrent("float", **RECURRENT, nonlinearity=NONLINEARITY),
    "float.masked_fill": _float((signature(FLOAT, "bool", gives=FLOAT),), 2, value=limit),
    "float.compare": _float(COMPARED, fn=one_of("eq", "ne", "lt", "le", "gt", "ge"), value=number),
    "float.cast": _float(CAST, dtype=one_of("float32", "int64", "bool", "uint8")),
}  # fmt: skip
"""Kind name → what it takes."""


def output_dtypes(op: Op, inputs: Sequence[Tensor]) -> list[str]:
    """The dtypes that ``op`` may give from ``inputs``; "quantized" stands for uint8 with a scale."""
    return result_types(op, KINDS[op.kind].types, inputs)


EXACT_FLOATS = frozenset(name for name, kind in KINDS.items() if kind.domain == "dynamic")
"""Kinds that give float32 results, the same bits on every engine."""
