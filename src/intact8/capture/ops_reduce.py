"""ATen → operations: means, sums, extremes, variances and norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from intact8.capture.aten_call import Call, Handler, Shape, Value, handles
from intact8.capture.formulas_index import scan
from intact8.capture.ops_pointwise import clamp, in_place


def dims_of(c: Call, x: Value) -> list[int]:
    """Return non-negative dimensions; none given means all."""
    dim = c.args.get("dim")
    if dim is None or dim == []:
        return list(range(len(c.shape(x))))
    return sorted(c.axis(d, x) for d in ([dim] if isinstance(dim, int) else dim))


def keeps(c: Call) -> bool:
    """Return whether reduced dimensions stay, with length 1."""
    return bool(c.args.get("keepdim", False))


def kept(shape: Shape, dims: list[int]) -> Shape:
    """Return ``shape`` with length 1 in ``dims``."""
    return tuple(1 if i in dims else n for i, n in enumerate(shape))


@handles("mean")
def mean(c: Call) -> Value:
    """Record a mean over dimensions."""
    x = c.value(c["self"])
    return c.emit("mean", x, dims=dims_of(c, x), keepdim=keeps(c))


def reduce(fn: str) -> Handler:
    """Return a handler of sum, amax, amin, argmax or argmin."""

    def handler(c: Call) -> Any:
        x = c.value(c["self"])
        if c.args.get("dtype") is not None and c.dtype(x) == "float32":
            x = c.cast(x, c.builder.dtype_of_meta(c.fx))
        keep, dims = keeps(c), dims_of(c, x)
        if fn.startswith("arg") and c.args.get("dim") is None:
            x, dims = c.reshape(x, (math.prod(c.static(*c.shape(x))),)), [0]
        pair = isinstance(c.fx.meta.get("val"), (list, tuple))
        out = kept(c.shape(x), dims) if keep else tuple(n for i, n in enumerate(c.shape(x)) if i not in dims)
        if fn == "argmin":
            return argument(c, x, out, dims, keep, least=True)
        y = c.emit("reduce", x, out=out, fn=fn, dims=dims, keepdim=keep)
        return [y, argument(c, x, out, dims, keep, least=fn == "amin")] if pair else y

    return handler


for _fn in ("sum", "prod", "amax", "amin", "argmax", "argmin"):
    handles(_fn)(reduce(_fn))


def argument(c: Call, x: Value, out: Shape, dims: list[int], keepdim: bool, *, least: bool) -> Value:
    """Record where the largest or least value is: the first of several."""
    if c.dtype(x) in ("bool", "uint8"):
        x = c.cast(x, "int64")
    if least:
        x = c.move("affine_scalar", x, out=c.shape(x), label="neg", mul=-1, add=0)
    return c.emit("reduce", x, out=out, out_dtype="int64", fn="argmax", dims=dims, keepdim=keepdim)


@handles("max min")
def other(c: Call) -> Any:
    """Record a maximum or minimum; with a second tensor it is not a reduction."""
    if "other" in c.args:
        c.op = "maximum" if c.op == "max" else "minimum"
        return clamp(c)
    return reduce("amax" if c.op == "max" else "amin")(c)


@handles("any all")
def any_or_all(c: Call) -> Value:
    """Record the largest or the least of zeros and ones."""
    x = c.value(c["self"])
    shape = c.shape(x)
    if c.dtype(x) != "bool":
        x = c.emit("compare", x, out=shape, out_dtype="bool", fn="ne", value=0)
    counts = c.emit("cast", x, out=shape, out_dtype="int64", dtype="int64")
    extreme = "amax" if c.op == "any" else "amin"
    found = c.emit("reduce", counts, out_dtype="int64", fn=extreme, dims=dims_of(c, x), keepdim=keeps(c))
    return in_place(c, c.emit("compare", found, out_dtype="bool", fn="ne", value=0))


@handles("cumprod")
def cumprod(c: Call) -> Any:
    """Record products up to every element, in the dtype that is asked for: of integers and booleans mostly int64."""
    dtype = c.fx.meta["val"].dtype
    return c.builder.by_formula(c, lambda x, dim, **_: scan(x.to(dtype), dim, torch.mul))


@handles("cumsum")
def cumsum(c: Call) -> Value:
    """Record sums up to every element, in the dtype that is asked for: of integers and booleans mostly int64."""
    x, dtype = c.value(c["self"]), c.builder.dtype_of_meta(c.fx)
    if "float32" in (dtype, c.dtype(x)) and dtype != c.dtype(x):
        x = c.emit("cast", x, out=c.shape(x), dtype=dtype)
    return c.emit("cumsum", x, axis=c.axis(c["dim"], x))


@handles("var std")
def variance(c: Call) -> Value:
    """Record a variance or deviation as the mean of the squared distance to the mean."""
    x = c.value(c["self"])
    shape = c.shape(x)
    dims = dims_of(c, x)
    correction = c.args.get("correction")
    if correction is None:
        correction = 1 if c.args.get("unbiased", True) else 0
    named = any(isinstance(shape[d], str) for d in dims) and None not in [shape[d] for d in dims]
    count = 0 if named else math.prod(c.static(*[shape[d] for d in dims]))
    centre = c.emit("mean", x, out=kept(shape, dims), dims=dims, keepdim=True)
    squared = c.emit("unary", c.emit("sub", x, centre, out=shape), out=shape, fn="square")
    y = c.emit("mean", squared, dims=dims, keepdim=keeps(c))
    if correction and named:
        y = c.emit("mul", y, corrected(c, shape, dims, correction))
    elif correction:
        y = c.emit("affine_scalar", y, mul=count / (count - correction), add=0)
    return c.emit("unary", y, fn="sqrt") if c.op == "std" else y


def corrected(c: Call, shape: Shape, dims: list[int], correction: float) -> Value:
    """Record n / (n − correction), for n elements along dimensions that change: they are counted."""
    rank = len(shape)
    wide, thin = [n if d in dims else 1 for d, n in enumerate(shape)], [1] * rank
    ones = c.move("expand", torch.ones(thin), out=wide, shape=wide)
    count = c.emit("reduce", ones, out=thin, fn="sum", dims=dims, keepdim=True)
    fewer = c.emit("affine_scalar", count, out=thin, mul=1, add=-correction)
    factor = c.emit("div", count, fewer, out=thin)
    return factor if keeps(c) else c.reshape(factor, [1] * (rank - len(dims)))


@handles("logsumexp")
def logsumexp(c: Call) -> Value:
    """Record log(sum(exp(x))), with the largest value taken out so that nothing overflows."""
    x = c.value(c["self"])
    shape, dims, keep = c.shape(x), dims_of(c, x), keeps(c)
    top = c.emit("reduce", x, out=kept(shape, dims), fn="amax", dims=dims, keepdim=True)
    powers = c.emit("unary", c.emit("sub", x, top, out=shape), out=shape, fn="exp")
    total = c.emit("reduce", powers, out=kept(shape, dims), fn="sum", dims=dims, keepdim=True)
    y = c.emit("add", c.emit("unary", total, out=kept(shape, dims), fn="log"), top, out=kept(shape, dims))
    return y if keep else c.reshape(y)


@handles("var_mean std_mean")
def moments(c: Call) -> list[Value]:
    """Record a variance or deviation, and the mean."""
    op, c.op = c.op, c.op.removesuffix("_mean")
    x = c.value(c["self"])
    dims, keep = dims_of(c, x), keeps(c)
    spread = variance(c)
    c.op = op
    return [spread, c.emit("mean", x, dims=dims, keepdim=keep)]


@handles("linalg_vector_norm norm")
def norm(c: Call) -> Any:
    """Record a vector norm, of other orders than 1, 2 and infinity by a formula."""
    x = c.value(c["self"])
    order = c.args.get("ord", c.args.get("p", 2))
    order = 2 if order is None else order
    if order not in (1, 2, math.inf):
        return c.builder.by_formula(c)
    inner = c.emit("unary", x, out=c.shape(x), fn="square" if order == 2 else "abs")
    y = c.emit("reduce", inner, fn="amax" if order == math.inf else "sum", dims=dims_of(c, x), keepdim=keeps(c))
    return c.emit("unary", y, fn="sqrt") if order == 2 else y
