"""ATen → operations: arithmetic, activations, comparisons, products of tensors, attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv

from intact8.arithmetic.unary_functions import UNARY
from intact8.capture.aten_call import HANDLERS, Call, Handler, Shape, Value, finite, handles, held
from intact8.capture.layer_scale import into_weight
from intact8.capture.masked_rows import undefined
from intact8.capture.symbolic_constants import all_true

from .ops_shape import batch_of, cut, expanded


def scalar(c: Call, value: Any) -> float | int | None:
    """Return the number ``value`` stands for; None for tensors (and for trainable or stateful scalars)."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, torch.SymInt):
        c.static(c.builder.dim(value, c.fx))
    if isinstance(value, torch.SymFloat):
        return number_of_sizes(c, value)
    if isinstance(value, Tensor) and value.ndim == 0 and not isinstance(value, nn.Parameter):
        number = value.item()
        return int(number) if isinstance(number, bool) else number
    return None


def constant(c: Call, value: Any) -> float | int | None:
    """Return the number ``value`` stands for; None for tensors, and for numbers that are computed from parameters: they
    follow these."""
    made = c.builder.made_by(value) if isinstance(value, Tensor) else None
    if made is not None and made.parameters and value.is_floating_point():
        return None
    return scalar(c, value)


def number_of_sizes(c: Call, value: torch.SymFloat) -> float:
    """Return a quotient of sizes that is the same for all of them, as ``x.numel() / x.shape[0]`` is."""
    expr = c.builder.expression(value)
    quotient = expr.replace(lambda e: isinstance(e, (IntTrueDiv, FloatTrueDiv)), lambda e: e.args[0] / e.args[1])
    if quotient.is_number:
        return float(quotient)
    what, why = "a number that is computed from sizes", "it differs from call to call"
    if quotient.free_symbols & c.builder.batch_symbols:
        raise c.mixes(what, why=why)
    names = " and ".join(sorted(str(c.builder.symbols.get(symbol)) for symbol in quotient.free_symbols))
    raise c.error(what, why=why, remedy=f"leave {names} out of dynamic_shapes")


def affine(c: Call, x: Any, mul: float, add: float) -> Value:
    """Record x·mul + add under the name of the ATen operator."""
    op = c.op.removesuffix("_")
    if c.builder.dtype_of_meta(c.fx) == "float32" != c.dtype(x):
        x, mul, add = c.cast(x, "float32") if (mul, add) == (1, 0) else x, float(mul), float(add)
    label = op if op in ("add", "sub", "mul", "div", "neg", "rsub") else None
    return c.emit("affine_scalar", x, label=label, mul=mul, add=add)


@handles("add sub rsub")
def add(c: Call) -> Value:
    """Record a sum or difference, with alpha."""
    x, y, alpha = c["self"], c["other"], c.args.get("alpha", 1)
    if c.op == "rsub":
        x, y = y, x
    sign = 1 if c.op.startswith("add") else -1
    a, b = constant(c, x), constant(c, y)
    # rsub scales the tensor that is subtracted, which after the swap is y; so do add and sub.
    if b is not None:
        return affine(c, x, 1, sign * alpha * b)
    if a is not None:
        return affine(c, y, sign * alpha, a)
    if alpha != 1:
        y = c.emit("affine_scalar", y, out=c.shape(y), mul=alpha, add=0)
    return c.emit("add" if sign > 0 else "sub", x, y)


@handles("mul multiply")
def mul(c: Call) -> Any:
    """Record a product with a tensor or a number."""
    a, b = constant(c, c["self"]), constant(c, c["other"])
    if b is not None:
        return affine(c, c["self"], b, 0)
    if a is not None:
        return affine(c, c["other"], a, 0)
    if c.builder.dtype_of_meta(c.fx) == "bool":
        return both(c)
    scaled = into_weight(c)
    return c.emit("mul", c["self"], c["other"]) if scaled is None else scaled


@handles("div divide true_divide")
def div(c: Call) -> Any:
    """Record a quotient; constants become factors."""
    if c.args.get("rounding_mode") is not None:
        return c.builder.by_formula(c)
    x, y = c["self"], c["other"]
    a, b = constant(c, x), constant(c, y)
    known = torch.tensor(b) if b is not None else y
    if isinstance(known, Tensor) and not isinstance(known, nn.Parameter):
        refuse_subnormal(c, known)
    if b == 0:
        return c.emit("div", x, torch.full([1] * len(c.shape(x)), b, dtype=torch.float32))
    if b is not None:
        return affine(c, x, 1 / b, 0)
    if a is not None:
        inverse = c.emit("unary", y, fn="reciprocal")
        return inverse if a == 1 else c.emit("affine_scalar", inverse, mul=a, add=0)
    if isinstance(y, Tensor) and not isinstance(y, nn.Parameter):
        made = c.builder.made_by(y)
        if made is None or not made.parameters:
            return c.emit("mul", x, (1 / y.double()).float())
        factor = torch.reciprocal(y)
        c.builder.record([y], torch.ops.aten.reciprocal.default, [y], {}, [factor])
        return c.emit("mul", x, factor)
    return c.emit("div", x, y)


def refuse_subnormal(c: Call, divisor: Tensor) -> None:
    """Raise CaptureError where a divisor is so small that float32 has no reciprocal of it."""
    small = (divisor != 0) & (1 / divisor.double()).float().isinf()
    if bool(small.any()):
        what, why = f"a division by {float(divisor[small][0]):.3g}", "programs multiply by reciprocals in float32"
        raise c.error(what, why=why, remedy="divide by it in two steps, such as x / 1e-20 / 1e-20")


@handles("clamp clamp_min clamp_max clip hardtanh relu6 maximum minimum")
def clamp(c: Call) -> Value:
    """Record limits that are numbers as a clamp, others as maximum and minimum."""
    op = c.op.removesuffix("_")
    x = c["self"]
    low: Any = c.args.get("min", c.args.get("min_val"))
    high: Any = c.args.get("max", c.args.get("max_val"))
    if op == "relu6":
        low, high = 0.0, 6.0
    if op in ("maximum", "minimum"):
        x, bound = (c["self"], c["other"]) if isinstance(c["self"], Value) else (c["other"], c["self"])
        low, high = (bound, None) if op == "maximum" else (None, bound)
    limits = [None if v is None else scalar(c, v) for v in (low, high)]
    dtype = c.builder.dtype_of_meta(c.fx)
    x = c.cast(x, "float32") if dtype == "float32" else x
    unbounded = (-math.inf, math.inf)
    low, high = (None if n == end else v for v, n, end in zip((low, high), limits, unbounded, strict=True))
    limits = _limits([None if v is None else n for v, n in zip((low, high), limits, strict=True)], dtype)
    if any(v is not None and n is None for v, n in zip((low, high), limits, strict=True)):
        for extreme, limit, n in (("maximum", low, limits[0]), ("minimum", high, limits[1])):
            if n is not None:
                x = c.emit("clamp", x, min=n if limit is low else None, max=n if limit is high else None)
            elif limit is not None:
                x = c.emit(extreme, x, c.cast(limit, dtype))
        return c.value(x)
    if limits == [0, None] and dtype == "float32":
        return c.emit("relu", x)
    if limits == [None, None]:
        return c.value(x)
    return c.emit("clamp", x, min=limits[0], max=limits[1])


def _limits(limits: Sequence[float | None], dtype: str) -> list[float | None]:
    """Return limits as numbers of the dtype; those of bytes as torch has them, which took -1 for 255 before 2.15."""
    if dtype == "uint8" and any(n is not None for n in limits):
        ends = torch.clamp(torch.tensor([0, 255], dtype=torch.uint8), *limits).tolist()
        return [None if n is None else end for n, end in zip(limits, ends, strict=True)]
    return [None if n is None else float(n) if dtype == "float32" else held(n, dtype) for n in limits]


@handles("prelu _prelu_kernel")
def prelu(c: Call) -> Value:
    """Record a PReLU with known slopes, one for each channel or one for all."""
    slopes = c["weight"]
    if isinstance(slopes, Tensor) and not slopes.ndim:
        slopes = slopes.reshape(1)
    return c.emit("prelu", c["self"], params=c.params(weight=slopes))


@handles("leaky_relu rrelu")
def leaky_relu(c: Call) -> Value:
    """Record a leaky ReLU; rrelu has the mean slope in evaluation."""
    if "rrelu" not in c.op:
        return c.emit("leaky_relu", c["self"], slope=float(c["negative_slope"]))
    if c.args.get("training"):
        raise c.error("rrelu with training=True is random", remedy="pass training=self.training")
    return c.emit("leaky_relu", c["self"], slope=(float(c["lower"]) + float(c["upper"])) / 2)


@handles("elu")
def elu(c: Call) -> Value:
    """Record an ELU; scaled forms are an ELU between two products."""
    alpha, scale, inner = float(c["alpha"]), float(c["scale"]), float(c["input_scale"])
    x = c.value(c["self"])
    if inner != 1:
        x = c.emit("affine_scalar", x, mul=inner, add=0)
    y = c.emit("unary", x, fn="elu", alpha=alpha)
    return y if scale == 1 else c.emit("affine_scalar", y, mul=scale, add=0)


@handles("pow")
def power(c: Call) -> Any:
    """Record a constant power, of integers as products, or powers of a number."""
    x, exponent = c["self"], scalar(c, c["exponent"])
    if c.builder.dtype_of_meta(c.fx) != "float32":
        return whole_power(c)
    if exponent is None or not isinstance(x, Value):
        return c.builder.by_formula(c)
    special = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    x = c.cast(x, "float32")
    if exponent in special:
        return c.emit("unary", x, fn=special[exponent])
    return c.emit("unary", x, fn="pow", exponent=float(exponent))


@handles("square")
def square(c: Call) -> Value:
    """Record a square, of integers as a product."""
    if c.builder.dtype_of_meta(c.fx) == "float32":
        return c.emit("unary", c["self"], fn="square")
    return repeated_product(c, c["self"], 2)


def whole_power(c: Call) -> Value:
    """Record a power of integers that is an integer."""
    base, exponent = scalar(c, c["self"]), scalar(c, c["exponent"])
    if exponent is not None:
        return repeated_product(c, c["self"], int(exponent))
    if base is not None and base % 2 == 0:
        return power_of_even(c, int(base), c["exponent"])
    what = "a power with a computed exponent that is an integer"
    why = "programs compute it of even numbers, as 2**i"
    raise c.error(what, why=why, remedy="convert first: x.float() ** y, and .long() behind it where it is exact")


def repeated_product(c: Call, x: Any, exponent: int) -> Value:
    """Record a power of integers as the product of those squares of squares that the exponent is the sum of."""
    y, x = None, c.cast(x, "int64")
    while exponent:
        if exponent % 2:
            y = x if y is None else c.emit("mul", y, x, out_dtype="int64")
        exponent //= 2
        x = c.emit("mul", x, x, out_dtype="int64") if exponent else x
    if y is None:
        y = c.emit("affine_scalar", x, out_dtype="int64", mul=0, add=1)
    return c.narrowed(y, c.builder.dtype_of_meta(c.fx))


def power_of_even(c: Call, base: int, exponent: Any) -> Value:
    """Record a power of an even number: a factor for every digit of a binary exponent of 0..63, and 0 of others, whose
    power is a multiple of 2⁶⁴ or a fraction."""
    i = c.cast(exponent, "int64")
    shape = c.shape(i)

    def made(op: str, *inputs: Any, **attrs: Any) -> Value:
        return c.emit(op, *inputs, out=shape, out_dtype="int64", **attrs)

    within = made("clamp", i, min=0, max=63)
    inside = made("cast", c.emit("compare", made("sub", i, within), out_dtype="bool", fn="eq", value=0), dtype="int64")
    y, rest, two = inside, within, torch.full([1] * len(shape), 2)
    for digit in range(6):
        half = made("integer_divide", rest, two, rounding="floor")
        bit = made("sub", rest, made("affine_scalar", half, mul=2, add=0))
        factor = (base ** (2**digit) + (1 << 63)) % (1 << 64) - (1 << 63)
        y = made("mul", y, made("affine_scalar", bit, mul=factor - 1, add=1))
        rest = half
    return c.narrowed(y, c.builder.dtype_of_meta(c.fx))


@handles("glu")
def glu(c: Call) -> Value:
    """Record the first half times the sigmoid of the second."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    full = c.static(c.shape(x)[axis])[0]
    a, b = cut(c, x, axis, 0, full // 2), cut(c, x, axis, full // 2, full)
    return c.emit("mul", a, c.emit("unary", b, fn="sigmoid"))


EXACT = 1 << 24
"""Integers below this are float32 numbers, and comparing others with a number below this gives the same in float32."""


@handles("eq ne lt le gt ge")
def compare(c: Call) -> Value:
    """Record a comparison with a number; two tensors are compared through their difference."""
    fn, x = c.op.removesuffix("_"), c["self"]
    number, dtypes = scalar(c, c["other"]), {c.dtype(c.value(x))}
    if isinstance(number, int) and dtypes == {"uint8"}:
        number = held(number, "uint8")
    if isinstance(number, float) and dtypes != {"float32"}:
        number = torch.tensor(number).item()
        x = x if abs(number) < EXACT else c.cast(x, "float32")
    if number is not None and math.isinf(number):  # programs hold the largest number where infinity is written
        above, most = number > 0, finite(number)
        if fn == "ne":
            return in_place(
                c, inverse(c, c.emit("compare", x, out_dtype="bool", fn="ge" if above else "le", value=most))
            )
        inner = {True: {"eq": "ge", "ge": "ge", "lt": "lt"}, False: {"eq": "le", "le": "le", "gt": "gt"}}[above]
        if fn in inner:
            return truth(c, x, inner[fn], most)
    if number is not None:
        return truth(c, x, fn, number)
    dtypes.add(c.dtype(c.value(c["other"])))
    return truth(c, c.emit("sub", x, c["other"], out_dtype="float32" if "float32" in dtypes else "int64"), fn)


def truth(c: Call, x: Any, fn: str, value: float = 0) -> Value:
    """Record a comparison with a number as the result of the call."""
    return in_place(c, c.emit("compare", x, out_dtype="bool", fn=fn, value=value))


def inverse(c: Call, mask: Any) -> Any:
    """Return what is true where a boolean is false."""
    if isinstance(mask, Tensor):
        return ~mask
    return c.emit("compare", mask, out=c.shape(mask), out_dtype="bool", fn="eq", value=0)


def in_place(c: Call, found: Value) -> Value:
    """Return what ``x.gt_(0)`` leaves in x: a truth value in the dtype of x, not bool."""
    dtype = c.builder.dtype_of_meta(c.fx)
    return found if dtype == "bool" else c.emit("cast", found, dtype=dtype)


@handles("__and__ bitwise_and logical_and")
def both(c: Call) -> Any:
    """Record ``and`` of booleans; a constant that is true everywhere changes nothing. Of numbers it takes bits."""
    if _of_numbers(c):
        return c.builder.by_formula(c)
    x, y = (torch.tensor(v) if isinstance(v, (bool, int)) else v for v in (c["self"], c["other"]))
    for mine, other in ((x, y), (y, x)):
        if isinstance(mine, Value) and all_true(c.builder, other) and c.dtype(mine) == "bool":
            same = c.shape(mine) == c.out_shape
            extra = [batch_of(c)] if None in c.out_shape and None not in c.shape(mine) else []
            return mine if same else expanded(c, mine, extra)
    return truth(c, c.emit("mul", *_counts(c, x, y), out_dtype="int64"), "ne")


@handles("__or__ bitwise_or logical_or")
def either(c: Call) -> Any:
    """Record ``or`` of booleans, or of the bits of numbers."""
    if _of_numbers(c):
        return c.builder.by_formula(c)
    return truth(c, c.emit("add", *_counts(c, c["self"], c["other"]), out_dtype="int64"), "ne")


@handles("abs")
def absolute(c: Call) -> Value:
    """Record the absolute value, of integers as the larger of x and −x."""
    x = c.value(c["self"])
    if c.dtype(x) == "uint8":
        return x
    if c.dtype(x) != "int64":
        return c.emit("unary", x, fn="abs")
    return c.emit("maximum", x, affine(c, x, -1, 0))


@handles("__xor__ bitwise_xor logical_xor")
def exclusive(c: Call) -> Any:
    """Record that one of two booleans holds and not the other, or the bits that one of two numbers has."""
    if _of_numbers(c):
        return c.builder.by_formula(c)
    return truth(c, c.emit("add", *_counts(c, c["self"], c["other"]), out_dtype="int64"), "eq", 1)


@handles("isnan isinf isfinite")
def special(c: Call) -> Value:
    """Record comparisons with the largest number, of which NaN passes none."""
    x, most = c.cast(c["self"], "float32"), torch.finfo(torch.float32).max
    if c.op == "isnan" and (masked := undefined(c, x.name)) is not None:
        return masked
    if c.op == "isnan":
        below, above = (c.emit("compare", x, out_dtype="bool", fn=fn, value=most) for fn in ("le", "gt"))
        return truth(c, c.emit("add", *_counts(c, below, above), out_dtype="int64"), "eq")
    size = c.emit("unary", x, out_dtype="float32", fn="abs")
    return truth(c, size, "ge" if c.op == "isinf" else "lt", most)


def broadcast(c: Call, x: Any, y: Any) -> Shape:
    """Return the shape that two tensors have together."""
    shapes = c.shape(x), c.shape(y)
    rank = max(map(len, shapes))
    a, b = ((1,) * (rank - len(shape)) + shape for shape in shapes)
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def _of_numbers(c: Call) -> bool:
    """Return whether the bits of whole numbers are asked for, by those of one fixed number."""
    fixed = isinstance(c["other"], int) and not isinstance(c["other"], bool)
    return fixed and isinstance(c["self"], Value) and not c.op.startswith("logical")


def _counts(c: Call, *values: Any) -> list[Value]:
    """Return booleans as 0 and 1; of numbers, logical operators take what is not 0 for true."""
    out = []
    for given in values:
        x = c.value(torch.tensor(given) if isinstance(given, (bool, int)) else c.builder.made(given, c.fx))
        if c.dtype(x) != "bool" and c.op.startswith("logical"):
            x = c.emit("compare", x, out=c.shape(x), out_dtype="bool", fn="ne", value=0)
        if c.dtype(x) != "bool":
            what, why = "bitwise arithmetic of two integers", "programs know it of booleans, and by one fixed number"
            raise c.error(what, why=why, remedy="compute the indices outside the model")
        out.append(c.emit("cast", x, out=c.shape(x), out_dtype="int64", dtype="int64"))
    return out


@handles("logical_not bitwise_not")
def logical_not(c: Call) -> Value:
    """Record what is true where a tensor is 0; the bits of an integer x are those of −1 − x turned round."""
    x = c.value(c["self"])
    if "bitwise" in c.op and c.dtype(x) != "bool":
        return affine(c, x, -1, -1)
    return truth(c, x, "eq")


@handles("masked_fill")
def masked_fill(c: Call) -> Value:
    """Record a number in the places where the mask is true."""
    value = scalar(c, c["value"])
    if value is None:
        raise c.error("masked_fill with a tensor as value")
    dtype = c.builder.dtype_of_meta(c.fx)
    if dtype == "bool":
        return _choice(c, torch.tensor(bool(value)), c["self"], c["mask"])
    return filled(c, c["self"], c["mask"], value, dtype)


def filled(c: Call, x: Any, mask: Any, value: float, dtype: str) -> Value:
    """Record a number in the places where a mask is true; -inf is noted, of which a softmax may be NaN."""
    y = c.emit("masked_fill", x, mask, value=held(value, dtype))
    if value == -math.inf:
        c.builder.minus_infinite.add(y.name)
    return y


def _choice(c: Call, a: Any, b: Any, condition: Any) -> Value:
    """Record truth values that are a where the condition is true, and b elsewhere, as counts of 0 and 1."""
    taken = condition if isinstance(condition, (Value, Tensor)) else c.value(condition)
    masks = _counts(c, taken, inverse(c, taken))
    sides = [
        c.emit("mul", side, mask, out=broadcast(c, side, mask), out_dtype="int64")
        for side, mask in zip(_counts(c, a, b), masks, strict=True)
    ]
    both = c.emit("add", *sides, out=broadcast(c, *sides), out_dtype="int64")
    return truth(c, both, "ne")


@handles("where")
def where(c: Call) -> Value:
    """Record a choice as masked fills: one of a tensor and a number, the sum of two for two tensors."""
    condition = c["condition"]
    if "self" not in c.args:
        what = "the size of a tensor depends on the data"
        why = "how many places are true is only known when the model runs, and programs have tensors of known sizes"
        remedy = (
            "keep all rows and a mask: y + mask[:, None] * f(x) in place of y[i] += f(x[i]) with i = torch.where(mask)"
        )
        raise c.error(what, why=why, remedy=remedy)
    dtype = c.builder.dtype_of_meta(c.fx)
    if dtype == "bool":
        return _choice(c, c["self"], c["other"], condition)
    a, b = scalar(c, c["self"]), scalar(c, c["other"])
    if a is not None and b is None:
        return filled(c, c["other"], condition, a, dtype)
    if a is not None and b == -math.inf and isinstance(condition, Value):
        a, b, condition = b, a, inverse(c, condition)
    if a is not None and b is not None and isinstance(condition, Value):
        one = torch.full([1] * len(c.shape(condition)), held(b, dtype), dtype=getattr(torch, dtype))
        return filled(c, one, condition, a, dtype)
    if b is not None and a is None:
        return filled(c, c["self"], inverse(c, condition), b, dtype)
    taken = condition if isinstance(condition, (Value, Tensor)) else c.value(condition)
    work = "int64" if dtype == "uint8" else dtype
    sides = {name: c.cast(c[name], work) for name in ("self", "other")}
    parts = [
        c.emit("masked_fill", sides[name], mask, out=broadcast(c, sides[name], taken), out_dtype=work, value=0)
        for name, mask in (("self", inverse(c, taken)), ("other", taken))
    ]
    return c.narrowed(c.emit("add", *parts, out_dtype=work), dtype, wraps=False)


@handles("softmax _softmax log_softmax _log_softmax")
def softmax(c: Call) -> Value:
    """Record a softmax or log_softmax."""
    x = c.value(c["self"])
    kind, shape = "log_softmax" if "log" in c.op else "softmax", c.shape(x)
    if not shape:  # of a number torch takes the softmax as of a vector with one entry
        return c.reshape(c.emit(kind, c.reshape(x, (1,)), out=(1,), axis=0), ())
    return c.emit(kind, x, axis=c.axis(c["dim"], x))


def unary(fn: str, attrs: Iterable[str]) -> Handler:
    """Return a handler of a function of one number; its attributes have the names of torch's arguments."""

    def handler(c: Call) -> Value:
        own: dict[str, Any] = {name: c[name] if isinstance(c[name], str) else float(c[name]) for name in attrs}
        return c.emit("unary", next(iter(c.args.values())), fn=fn, **own)

    return handler


def entropy(x: Tensor) -> Tensor:
    """Compute −x · log(x), 0 of 0; logarithms see positive numbers only."""
    x, positive = x.float(), x > 0
    inside = -x * torch.log(torch.where(positive, x, 1.0))
    return torch.where(positive, inside, torch.where(x < 0, -math.inf, x))


@handles("special_entr")
def entr(c: Call) -> Any:
    """Record the entropy of each element."""
    return c.builder.by_formula(c, entropy)


def whole(c: Call) -> Value:
    """Record nothing: integers are whole numbers."""
    return c.value(c["self"])


def rounding(fn: str) -> Handler:
    """Return a handler of a function that gives whole numbers, which integers are."""
    return lambda c: c.emit("unary", c["self"], fn=fn) if c.builder.dtype_of_meta(c.fx) == "float32" else whole(c)


for _name, _fn in {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc"}.items():
    handles(_name)(rounding(_fn))


@handles("sign sgn")
def sign(c: Call) -> Value:
    """Record a sign, of integers as a clamp."""
    if c.builder.dtype_of_meta(c.fx) == "float32":
        return c.emit("unary", c["self"], fn="sign")
    return c.emit("clamp", c["self"], min=-1, max=1)


@handles("relu")
def relu(c: Call) -> Value:
    """Record a ReLU, of integers as a clamp."""
    if c.builder.dtype_of_meta(c.fx) == "float32":
        return c.emit("relu", c["self"])
    return c.emit("clamp", c["self"], min=0, max=None)


@handles("round")
def rounded(c: Call) -> Value:
    """Record rounding to whole numbers, or to some decimals."""
    if c.builder.dtype_of_meta(c.fx) != "float32":
        return whole(c)
    factor = 10.0 ** (c.args.get("decimals") or 0)
    if factor == 1:
        return c.emit("unary", c["self"], fn="round")
    return affine(c, c.emit("unary", affine(c, c["self"], factor, 0), fn="round"), 1 / factor, 0)


handles("neg")(lambda c: affine(c, c["self"], -1, 0))
for _name, _function in UNARY.items():
    HANDLERS.setdefault({"logsigmoid": "log_sigmoid"}.get(_name, _name), unary(_name, _function.attrs))
