"""ATen → operations: arithmetic, activations, comparisons, products of tensors, attention."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from intact8.arithmetic.unary_functions import UNARY
from intact8.capture.aten_call import HANDLERS, Call, Handler, Shape, Value, finite, handles
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
    if isinstance(value, Tensor) and value.ndim == 0 and not isinstance(value, nn.Parameter):
        number = value.item()
        return int(number) if isinstance(number, bool) else number
    return None


def affine(c: Call, x: Any, mul: float, add: float) -> Value:
    """Record x·mul + add under the name of the ATen operator."""
    op = c.op.removesuffix("_")
    label = op if op in ("add", "sub", "mul", "div", "neg", "rsub") else None
    return c.emit("affine_scalar", x, label=label, mul=mul, add=add)


@handles("add sub rsub")
def add(c: Call) -> Value:
    """Record a sum or difference, with alpha."""
    x, y, alpha = c["self"], c["other"], c.args.get("alpha", 1)
    if c.op == "rsub":
        x, y = y, x
    sign = 1 if c.op.startswith("add") else -1
    a, b = scalar(c, x), scalar(c, y)
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
    a, b = scalar(c, c["self"]), scalar(c, c["other"])
    if b is not None:
        return affine(c, c["self"], b, 0)
    if a is not None:
        return affine(c, c["other"], a, 0)
    return both(c) if c.builder.dtype_of_meta(c.fx) == "bool" else c.emit("mul", c["self"], c["other"])


@handles("div divide true_divide")
def div(c: Call) -> Any:
    """Record a quotient; constants become factors."""
    if c.args.get("rounding_mode") is not None:
        return c.builder.by_formula(c)
    x, y = c["self"], c["other"]
    a, b = scalar(c, x), scalar(c, y)
    if b is not None:
        return affine(c, x, 1 / b, 0)
    if a is not None:
        inverse = c.emit("unary", y, fn="reciprocal")
        return inverse if a == 1 else c.emit("affine_scalar", inverse, mul=a, add=0)
    if isinstance(y, Tensor) and not isinstance(y, nn.Parameter):
        return c.emit("mul", x, (1 / y.double()).float())
    return c.emit("div", x, y)


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
    of_integers = dtype == "int64"
    unbounded = (-math.inf, math.inf)
    low, high = (None if n == end else v for v, n, end in zip((low, high), limits, unbounded, strict=True))
    limits = [None if v is None else n for v, n in zip((low, high), limits, strict=True)]
    if any(v is not None and n is None for v, n in zip((low, high), limits, strict=True)):
        kind = int if of_integers else float
        for extreme, limit, n in (("maximum", low, limits[0]), ("minimum", high, limits[1])):
            if n is not None:
                x = c.emit("clamp", x, min=kind(n) if limit is low else None, max=kind(n) if limit is high else None)
            elif limit is not None:
                cast = c.dtype(c.value(limit)) != dtype
                x = c.emit(extreme, x, c.emit("cast", limit, out=c.shape(limit), dtype=dtype) if cast else limit)
        return c.value(x)
    if limits == [0, None] and not of_integers:
        return c.emit("relu", x)
    lo, hi = (None if v is None else int(v) if of_integers else float(v) for v in limits)
    if lo is None and hi is None:
        return c.value(x)
    return c.emit("clamp", x, min=lo, max=hi)


@handles("prelu _prelu_kernel")
def prelu(c: Call) -> Value:
    """Record a PReLU with known slopes."""
    return c.emit("prelu", c["self"], params=c.params(weight=c["weight"]))


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
    """Record a constant power."""
    exponent = scalar(c, c["exponent"])
    if exponent is None or not isinstance(c["self"], Value):
        return c.builder.by_formula(c)
    special = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in special:
        return c.emit("unary", c["self"], fn=special[exponent])
    return c.emit("unary", c["self"], fn="pow", exponent=float(exponent))


@handles("glu")
def glu(c: Call) -> Value:
    """Record the first half times the sigmoid of the second."""
    x = c.value(c["self"])
    axis = c.axis(c["dim"], x)
    full = c.static(c.shape(x)[axis])[0]
    a, b = cut(c, x, axis, 0, full // 2), cut(c, x, axis, full // 2, full)
    return c.emit("mul", a, c.emit("unary", b, fn="sigmoid"))


@handles("eq ne lt le gt ge")
def compare(c: Call) -> Value:
    """Record a comparison with a number; two tensors are compared through their difference."""
    fn = c.op.removesuffix("_")
    number = scalar(c, c["other"])
    if number is not None and math.isinf(number):  # programs hold finite numbers, and infinity is beyond the largest
        above, most = number > 0, finite(number)
        if fn == "ne":
            return in_place(
                c, inverse(c, c.emit("compare", c["self"], out_dtype="bool", fn="gt" if above else "lt", value=most))
            )
        inner = {True: {"eq": "gt", "ge": "gt", "lt": "le"}, False: {"eq": "lt", "le": "lt", "gt": "ge"}}[above]
        if fn in inner:
            return truth(c, c["self"], inner[fn], most)
    if number is not None:
        return truth(c, c["self"], fn, number)
    return truth(c, c.emit("sub", c["self"], c["other"], out_dtype=c.dtype(c.value(c["self"]))), fn)


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
    """Record ``and`` of booleans; a constant that is true everywhere changes nothing."""
    x, y = c["self"], c["other"]
    for mine, other in ((x, y), (y, x)):
        if isinstance(mine, Value) and all_true(c.builder, other) and c.dtype(mine) == "bool":
            same = c.shape(mine) == c.out_shape
            extra = [batch_of(c)] if None in c.out_shape and None not in c.shape(mine) else []
            return mine if same else expanded(c, mine, extra)
    return truth(c, c.emit("mul", *_counts(c, x, y), out_dtype="int64"), "ne")


@handles("__or__ bitwise_or logical_or")
def either(c: Call) -> Value:
    """Record ``or`` of booleans."""
    return truth(c, c.emit("add", *_counts(c, c["self"], c["other"]), out_dtype="int64"), "ne")


@handles("abs")
def absolute(c: Call) -> Value:
    """Record the absolute value, of integers as the larger of x and −x."""
    x = c.value(c["self"])
    if c.dtype(x) != "int64":
        return c.emit("unary", x, fn="abs")
    return c.emit("maximum", x, affine(c, x, -1, 0))


@handles("__xor__ bitwise_xor logical_xor")
def exclusive(c: Call) -> Value:
    """Record that one of two booleans holds and not the other."""
    return truth(c, c.emit("add", *_counts(c, c["self"], c["other"]), out_dtype="int64"), "eq", 1)


@handles("isnan isinf isfinite")
def special(c: Call) -> Value:
    """Record comparisons with the largest number, of which NaN passes none."""
    x, most = c.value(c["self"]), torch.finfo(torch.float32).max
    if c.op == "isnan":
        below, above = (c.emit("compare", x, out_dtype="bool", fn=fn, value=most) for fn in ("le", "gt"))
        return truth(c, c.emit("add", *_counts(c, below, above), out_dtype="int64"), "eq")
    size = c.emit("unary", x, out_dtype="float32", fn="abs")
    return truth(c, size, "gt" if c.op == "isinf" else "le", most)


def broadcast(c: Call, x: Any, y: Any) -> Shape:
    """Return the shape that two tensors have together."""
    shapes = c.shape(x), c.shape(y)
    rank = max(map(len, shapes))
    a, b = ((1,) * (rank - len(shape)) + shape for shape in shapes)
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def _counts(c: Call, *values: Any) -> list[Value]:
    """Return booleans as 0 and 1; of numbers, logical operators take what is not 0 for true."""
    out = []
    for given in values:
        x = c.value(c.builder.made(given, c.fx))
        if c.dtype(x) != "bool" and c.op.startswith("logical"):
            x = c.emit("compare", x, out=c.shape(x), out_dtype="bool", fn="ne", value=0)
        if c.dtype(x) != "bool":
            raise c.error("bitwise arithmetic on integers", why="programs know it for booleans only")
        out.append(c.emit("cast", x, out=c.shape(x), out_dtype="int64", dtype="int64"))
    return out


@handles("logical_not bitwise_not")
def logical_not(c: Call) -> Value:
    """Record what is true where a tensor is 0."""
    x = c.value(c["self"])
    if "bitwise" in c.op and c.dtype(x) != "bool":
        raise c.error("bitwise arithmetic on integers", why="programs know it for booleans only")
    return truth(c, x, "eq")


@handles("masked_fill")
def masked_fill(c: Call) -> Value:
    """Record a number in the places where the mask is true."""
    value = scalar(c, c["value"])
    if value is None:
        raise c.error("masked_fill with a tensor as value")
    if c.builder.dtype_of_meta(c.fx) == "bool":
        return _choice(c, torch.tensor(bool(value)), c["self"], c["mask"])
    return c.emit("masked_fill", c["self"], c["mask"], value=finite(value))


def _choice(c: Call, a: Any, b: Any, condition: Any) -> Value:
    """Record truth values that are a where the condition is true, and b elsewhere, as counts of 0 and 1."""
    taken = condition if isinstance(condition, (Value, Tensor)) else c.value(condition)
    masks = _counts(c, taken, inverse(c, taken))
    a, b = (torch.tensor(side) if isinstance(side, bool) else side for side in (a, b))
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
        raise c.error(what, why=why, remedy="use the mask itself: x[mask] = 0 in the place of x[torch.where(mask)] = 0")
    if c.builder.dtype_of_meta(c.fx) == "bool":
        return _choice(c, c["self"], c["other"], condition)
    a, b = scalar(c, c["self"]), scalar(c, c["other"])
    if a is not None and b is None:
        return c.emit("masked_fill", c["other"], condition, value=finite(a))
    if a is not None and b is not None and isinstance(condition, Value):
        dtype = getattr(torch, c.builder.dtype_of_meta(c.fx))
        one = torch.full([1] * len(c.shape(condition)), b, dtype=dtype)
        return c.emit("masked_fill", one, condition, value=finite(a))
    if b is not None and a is None:
        return c.emit("masked_fill", c["self"], inverse(c, condition), value=finite(b))
    taken = condition if isinstance(condition, (Value, Tensor)) else c.value(condition)
    dtype = c.builder.dtype_of_meta(c.fx)
    sides = {name: c.value(c[name]) for name in ("self", "other")}
    for name, x in sides.items():
        if c.dtype(x) != dtype:
            sides[name] = c.emit("cast", x, out=c.shape(x), dtype=dtype)
    parts = [
        c.emit("masked_fill", sides[name], mask, out=broadcast(c, sides[name], taken), value=0)
        for name, mask in (("self", inverse(c, taken)), ("other", taken))
    ]
    return c.emit("add", *parts)


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


@handles("round")
def rounded(c: Call) -> Value:
    """Record rounding to whole numbers, or to some decimals."""
    factor = 10.0 ** (c.args.get("decimals") or 0)
    if factor == 1:
        return c.emit("unary", c["self"], fn="round")
    return affine(c, c.emit("unary", affine(c, c["self"], factor, 0), fn="round"), 1 / factor, 0)


handles("relu")(lambda c: c.emit("relu", c["self"]))
handles("neg")(lambda c: affine(c, c["self"], -1, 0))
for _name, _function in UNARY.items():
    HANDLERS.setdefault({"logsigmoid": "log_sigmoid"}.get(_name, _name), unary(_name, _function.attrs))
