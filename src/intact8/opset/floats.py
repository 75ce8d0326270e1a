"""Float islands, element by element: arithmetic, functions, comparisons, casts.

Islands are outside the bit-for-bit promise: sums may be ordered differently here and in an engine.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.unary_functions import UNARY, unary64

from .attributes import FLOAT, FLOATS, INT, KEPT_DIMENSIONS, NUMBERS, REAL, WEIGHT
from .kind import UNKNOWN, Call, Interval, Kind, Semantics, Span, always
from .moves import infinite_value, union
from .op import Array, Op, Tensor
from .pools import reduced_shape
from .shapes import Shape, ShapeRule, axis_of, broadcasting, fits_channels, same
from .types import Signature, signature
from .values import Validator, boolean, integers, limit, limit_or_none, number, one_of, whole, whole_or
from .violation import need

SUMS = (
    *(signature(*pair, gives=FLOAT) for pair in ((FLOAT, NUMBERS), (NUMBERS, FLOAT))),
    *(signature(*pair, gives=INT) for pair in ((INT, "int64 bool uint8"), ("bool uint8", INT))),
)
"""float32 where an operand is float32, else int64 where one is int64."""

DIFFERENCES = (*SUMS[:2], *(signature(*pair, gives=INT) for pair in ((INT, "int64 uint8"), ("uint8", INT))))
SCALED = (*REAL, signature("int64 bool", gives=INT, mul=whole, add=whole))
LIMITED = (
    signature(FLOAT, gives=FLOAT),
    signature(INT, gives=INT, min=whole_or(-math.inf), max=whole_or(math.inf)),
)
REDUCED = (
    signature(FLOAT, gives=FLOAT, fn=one_of("sum", "prod", "amax", "amin")),
    signature("int64 bool uint8", gives=INT, fn=one_of("sum", "prod")),
    signature(INT, gives=INT, fn=one_of("amax", "amin")),
    signature("float32 int64 uint8", gives=INT, fn=one_of("argmax")),
)
CAST = tuple(signature(NUMBERS, gives=dtype, dtype=one_of(dtype)) for dtype in NUMBERS.split())

COMPARE = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def in_floats(function: Callable[[Call], Any]) -> Semantics:
    """Return the function with a result of the declared dtype; overflow and invalid operations give inf and NaN as IEEE
    754 says, without warnings."""

    def evaluate(call: Call) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(call)).astype(call.output.dtype, copy=False)

    return evaluate


def whole_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers as whole ones, for integers to stay exact; infinite limits are none."""
    return {k: None if v is None or (isinstance(v, float) and math.isinf(v)) else int(v) for k, v in attrs.items()}


def island(
    name: str,
    formula: str,
    types: tuple[Signature, ...],
    shape: ShapeRule,
    function: Callable[[Call], Any],
    inputs: int = 1,
    **more: Any,
) -> Kind:
    """Return a kind of float islands with a fixed number of inputs; ``more`` is what :class:`Kind` takes beside."""
    return Kind(name, formula, (inputs, inputs), types, shape, in_floats(function), domain="float", **more)


def elementwise(
    name: str,
    formula: str,
    types: tuple[Signature, ...],
    function: Callable[[Mapping[str, Any], list[Array]], Any],
    inputs: int = 1,
    shape: ShapeRule = broadcasting,
    **more: Any,
) -> Kind:
    """Return a kind whose function takes attributes, and operands that were converted to the dtype of the result."""

    def in_dtype(call: Call) -> Any:
        attrs = whole_attrs(call.attrs) if call.output.dtype == "int64" else call.attrs
        return function(attrs, [x.astype(call.output.dtype, copy=False) for x in call.x])

    return island(name, formula, types, shape, in_dtype, inputs, in_result_dtype=True, **more)


def _clamp(t: Mapping[str, Any], x: list[Array]) -> Array:
    return np.clip(x[0], t["min"], t["max"]) if t["min"] is not None or t["max"] is not None else x[0]


def _prelu_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    if op.arrays["weight"].shape != (1,):
        fits_channels(op, x[0])
    return x[0]


def _prelu(call: Call) -> Array:
    x, weight = call.x[0], call.arrays["weight"]
    slopes = weight.reshape(-1, *[1] * (x.ndim - 2)) if weight.size > 1 else weight.reshape(())
    return np.where(x >= 0, x, x * slopes)


def _leaky_relu(call: Call) -> Array:
    return np.where(call.x[0] >= 0, call.x[0], call.x[0] * np.float32(call.attrs["slope"]))


def _reduce_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    need(op.attrs["fn"] != "argmax" or len(op.attrs["dims"]) <= 1, "argmax takes one dimension, or all")
    return reduced_shape(op, x, declared)


def _reduce(call: Call) -> Array:
    x, t, axes = call.x[0], call.attrs, tuple(call.attrs["dims"]) or None
    if t["fn"] == "argmax":
        return np.asarray(np.argmax(x, axis=axes[0] if axes else None, keepdims=t["keepdim"]))
    functions: dict[str, Any] = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min}
    return np.asarray(functions[t["fn"]](x, axis=axes, keepdims=t["keepdim"]))


def _check_unary(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    for name, default in UNARY[op.attrs["fn"]].attrs.items():
        need(name in op.attrs or default is not None, f"attribute {name} is missing")


# Intervals of int64 results ---------------------------------------------------------------------------------------


def ends(values: list[int]) -> Interval:
    """Return the least and the largest of some integers."""
    return min(values), max(values)


def _clamped(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    low, high = x[0]
    least, most = (int(v) if isinstance(v, int) else None for v in (op.attrs["min"], op.attrs["max"]))
    if least is not None:
        low, high = max(low, least), max(high, least)
    return (low, high) if most is None else (min(low, most), min(high, most))


def _reduced(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    if op.attrs["fn"] == "argmax":
        size = inputs[0].shape[op.attrs["dims"][0]] if op.attrs["dims"] else None
        return (0, size - 1) if isinstance(size, int) else None
    if op.attrs["fn"] in ("amax", "amin") or (op.attrs["fn"] == "prod" and x[0] == (0, 1)):
        return x[0]
    shape = inputs[0].shape
    sizes = [shape[d] for d in op.attrs["dims"]] if op.attrs["dims"] else list(shape)
    whole = [d for d in sizes if isinstance(d, int)]
    if UNKNOWN in x or len(whole) != len(sizes) or op.attrs["fn"] == "prod":
        return None
    return math.prod(whole) * x[0][0], math.prod(whole) * x[0][1]


def _scaled(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    mul, add = op.attrs["mul"], op.attrs["add"]
    if UNKNOWN in x or not float(mul).is_integer() or not float(add).is_integer():
        return None
    return ends([v * int(mul) + int(add) for v in x[0]])


def _clamped_floats(op: Op, x: list[Span], inputs: Sequence[Tensor]) -> Span:
    (low, high), least, most = x[0], op.attrs["min"], op.attrs["max"]
    if least is not None:
        low, high = max(low, float(least)), max(high, float(least))
    return (low, high) if most is None else (min(low, float(most)), min(high, float(most)))


def _scaled_floats(op: Op, x: list[Span], inputs: Sequence[Tensor]) -> Span:
    ends = [v * float(op.attrs["mul"]) + float(op.attrs["add"]) for v in x[0]]
    return min(ends), max(ends)


def _multiplied(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    return None if UNKNOWN in x else ends([a * b for a in x[0] for b in x[1]])


def _filled(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    value = op.attrs["value"]
    return union([x[0], (int(value), int(value))]) if float(value).is_integer() else None


def _added(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    return x[0][0] + x[1][0], x[0][1] + x[1][1]


def _subtracted(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    return x[0][0] - x[1][1], x[0][1] - x[1][0]


def _positive(op: Op, x: list[Any], inputs: Sequence[Tensor]) -> Any:
    return max(x[0][0], 0), max(x[0][1], 0)


def _larger(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    return max(x[0][0], x[1][0]), max(x[0][1], x[1][1])


def _smaller(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval:
    return min(x[0][0], x[1][0]), min(x[0][1], x[1][1])


def axis_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the only input, which has the axis."""
    axis_of(op, x[0])
    return x[0]


def _mean(t: Mapping[str, Any], x: list[Array]) -> Array:
    return np.asarray(x[0].mean(axis=tuple(t["dims"]), keepdims=t["keepdim"], dtype=np.float64))


def _integer_divide(call: Call) -> Array:
    x, y = (np.asarray(v, np.int64) for v in call.x)
    divisor = np.where((y == 0) | (y == -1), 1, y)
    quotient = x // divisor
    if call.attrs["rounding"] == "trunc":
        quotient = quotient + ((quotient < 0) & (quotient * divisor != x))
    return np.where(y == 0, 0, np.where(y == -1, -x, quotient))


def _quotients(op: Op, x: list[Interval], inputs: Sequence[Tensor]) -> Interval | None:
    """Return the ends of quotients, which rise or fall with either operand, on either side of a divisor of 0."""
    (least, most), (low, high) = x
    if UNKNOWN in x[:1]:
        return None
    divisors = [*({max(low, 1), high} if high > 0 else ()), *({low, min(high, -1)} if low < 0 else ())]
    pairs = [(a, b) for a in (least, most) for b in divisors]
    floor = op.attrs["rounding"] == "floor"
    whole = [a // b if floor or (a < 0) == (b < 0) else -(-a // b) for a, b in pairs]
    return ends([*whole, *([0] if low <= 0 <= high else [])])


def _masked_fill(call: Call) -> Array:
    return np.where(call.x[1], call.x[0].dtype.type(call.attrs["value"]), call.x[0])


SLOPE = {"slope": number}
LIMITS: dict[str, Validator] = {"min": limit_or_none, "max": limit_or_none}
AFFINE = {"mul": number, "add": number}
FUNCTION_PARAMETERS: dict[str, Validator] = {
    name: one_of("none", "tanh") if name == "approximate" else number
    for function in UNARY.values()
    for name in function.attrs
}
REDUCTION: dict[str, Validator] = {
    "fn": one_of("sum", "prod", "amax", "amin", "argmax"),
    "dims": integers(0, 7, empty=True),
    "keepdim": boolean,
}
MASKED = (signature(FLOAT, "bool", gives=FLOAT), signature(INT, "bool", gives=INT, value=whole))
TRUTH = (signature(NUMBERS, gives="bool"),)

KINDS = (
    island(
        "float.relu",
        "max(x, 0)",
        FLOATS,
        same,
        lambda c: np.maximum(c.x[0], 0),
        interval=_positive,
        span=_positive,
        univariate=True,
        homogeneous=True,
    ),
    elementwise(
        "float.clamp",
        "x within min..max",
        LIMITED,
        _clamp,
        attrs=LIMITS,
        interval=_clamped,
        span=_clamped_floats,
        univariate=True,
    ),
    island(
        "float.leaky_relu",
        "x, where it is negative x·slope",
        FLOATS,
        same,
        _leaky_relu,
        attrs=SLOPE,
        univariate=True,
        homogeneous=True,
    ),
    island(
        "float.prelu",
        "the same with one slope, or one per channel",
        FLOATS,
        _prelu_shape,
        _prelu,
        arrays=WEIGHT,
        univariate=True,
        homogeneous=True,
    ),
    elementwise(
        "float.unary",
        "fn(x), of intact8.arithmetic.unary_functions",
        REAL,
        lambda t, x: unary64(t["fn"], t, x[0]),
        attrs={"fn": one_of(*UNARY)},
        optional=FUNCTION_PARAMETERS,
        check=_check_unary,
        univariate=True,
        creates_special=lambda op: UNARY[op.attrs["fn"]].creates_special,
    ),
    elementwise(
        "float.affine_scalar",
        "x·mul + add",
        SCALED,
        lambda t, x: x[0] * t["mul"] + t["add"],
        attrs=AFFINE,
        univariate=True,
        interval=_scaled,
        span=_scaled_floats,
    ),
    elementwise(
        "float.add", "x + y, broadcasting", SUMS, lambda t, x: x[0] + x[1], 2, interval=_added, homogeneous=True
    ),
    elementwise(
        "float.sub",
        "x − y, broadcasting",
        DIFFERENCES,
        lambda t, x: x[0] - x[1],
        2,
        interval=_subtracted,
        homogeneous=True,
    ),
    elementwise("float.mul", "x·y, broadcasting", SUMS, lambda t, x: x[0] * x[1], 2, interval=_multiplied),
    elementwise("float.maximum", "max(x, y), broadcasting", SUMS, lambda t, x: np.maximum(*x), 2, interval=_larger),
    elementwise("float.minimum", "min(x, y), broadcasting", SUMS, lambda t, x: np.minimum(*x), 2, interval=_smaller),
    elementwise(
        "float.div", "x / y, broadcasting", REAL, lambda t, x: np.true_divide(x[0], x[1]), 2, creates_special=always
    ),
    island(
        "float.integer_divide",
        "x / y of integers, broadcasting, rounded down (floor) or towards 0 (trunc); 0 where y is 0",
        (signature(INT, INT, gives=INT),),
        broadcasting,
        _integer_divide,
        inputs=2,
        attrs={"rounding": one_of("floor", "trunc")},
        interval=_quotients,
    ),
    elementwise(
        "float.mean",
        "mean over dims",
        FLOATS,
        _mean,
        shape=reduced_shape,
        attrs=KEPT_DIMENSIONS,
        aligned=False,
        homogeneous=True,
    ),
    island(
        "float.reduce",
        "sum, prod, amax, amin or argmax over dims, over all without dims",
        REDUCED,
        _reduce_shape,
        _reduce,
        attrs=REDUCTION,
        aligned=False,
        interval=_reduced,
    ),
    island(
        "float.masked_fill",
        "x, and value where the bool mask is true, broadcasting",
        MASKED,
        broadcasting,
        _masked_fill,
        inputs=2,
        attrs={"value": limit},
        interval=_filled,
        creates_special=infinite_value,
    ),
    island(
        "float.compare",
        "eq, ne, lt, le, gt, ge with a number",
        TRUTH,
        same,
        lambda c: COMPARE[c.attrs["fn"]](c.x[0], c.attrs["value"]),
        attrs={"fn": one_of(*COMPARE), "value": number},
    ),
    island(
        "float.cast",
        "x in another dtype",
        CAST,
        same,
        lambda c: c.x[0].astype(c.attrs["dtype"]),
        attrs={"dtype": one_of(*NUMBERS.split())},
        interval=lambda op, x, inputs: x[0],
    ),
)
