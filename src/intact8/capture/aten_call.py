"""One ATen call while it is translated: its arguments, and the means to record nodes for it."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, limits_of, names_of
from intact8.capture.model_code import is_models
from intact8.capture.names import full_name, module_of, operator_name
from intact8.capture.operations import FLOAT_KINDS
from intact8.capture.sample_order import MIXED, reshaped
from intact8.errors import CaptureError

if TYPE_CHECKING:
    from intact8.capture.interpreter import Builder

Shape = tuple[Dim, ...]
REPORT = "report it as an issue with this message"
ELSEWHERE = (
    "rewrite it with other operations, or leave its module in torch: intact8.split(model, data) converts the others"
)
SHORT = ("int8", "int16")
"""Integers that a model may take, and programs compute as int64."""

WIDER = {
    "bool": ("int64", "float32"),
    "uint8": ("int64", "float32"),
    "int64": ("float32",),
}
"""Dtype → those that its numbers are converted to where an operation does not take them as they are."""

KEEPING = frozenset({"clamp", "gather", "masked_fill", "maximum", "minimum"})
"""Operations whose results are among the numbers that they are given, so that bytes remain bytes; and so are those of
reductions by EXTREMES."""

EXTREMES = frozenset({"amax", "amin", "none"})

OVER_PLACES = frozenset({"conv", "max_pool", "avg_pool", "adaptive_avg_pool", "upsample", "resize_linear"})
"""Operations that work along the dimensions behind batch and channels."""

PER_SAMPLE = (
    "rewrite it to work on each sample alone, with samples along dimension 0 of every input; where dimension 0 is no "
    'batch, as the nodes of a graph, name it: dynamic_shapes={"x": {0: "nodes"}}'
)
"""Remedies that many refusals have."""


class BatchError(CaptureError):
    """The model mixes samples, or uses their number: it can be captured for one batch size only."""


class LimitError(CaptureError):
    """A constant is as long as a dimension that changes, and nobody has said how long that can be.

    Attributes:
        name: that of the dimension.
        most: how long it can be; 0 where that is for the user to say.
    """

    name = ""
    most = 0


class NotFunctional(CaptureError):
    """The export has writes into memory that is read in another way later, or transforms of functions.

    Capture tries again with an export that has neither.
    """


@dataclass(frozen=True)
class Missing:
    """In place of an output that capture cannot record: an error where it is used, not before."""

    error: CaptureError


@dataclass(frozen=True)
class Value:
    """An activation: the node that makes it, and which memory it lives in.

    ``region`` is the path of (split, part) that leads to it; values whose paths part at one split are disjoint.
    """

    name: str
    storage: int
    region: tuple[tuple[int, int], ...] = ()

    def disjoint(self, other: Value) -> bool:
        """Return whether the two are different parts of one split."""
        for mine, theirs in zip(self.region, other.region, strict=False):
            if mine != theirs:
                return mine[0] == theirs[0]
        return False


@dataclass(frozen=True)
class Prefix:
    """The beginning of a constant, or a window of it.

    Attributes:
        full: the constant, at the largest sizes.
        dims: per dimension its size: an int, or the export's expression of dimensions that change.
        starts: per dimension where the window begins, in the same form; nothing where it is the beginning.
    """

    full: Tensor
    dims: tuple[Any, ...]
    starts: tuple[Any, ...] = ()

    def counts(self, axis: int, *, repeated: bool = False) -> Any:
        """Return the size up to which it counts 0, 1, 2 … along ``axis`` and nothing else; None where it does not.

        ``repeated``: it may be the same along other dimensions, in place of having none.
        """
        if self.starts:
            return None
        row = self.full.movedim(axis, -1).reshape(-1, self.full.shape[axis])
        counting = torch.arange(self.full.shape[axis], device=self.full.device)
        counts = self.full.dtype == torch.int64 and (repeated or len(row) == 1) and bool((row == counting).all())
        return self.dims[axis] if counts else None


@dataclass
class Call:
    """One ATen call with its arguments resolved and named after the operator's schema."""

    builder: Builder
    fx: torch.fx.Node
    op: str
    args: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def out_shape(self) -> Shape:
        """Shape of the (first) output."""
        return self.builder.shape_of_meta(self.fx.meta.get("val"), self.fx)

    def shape(self, value: Any) -> Shape:
        """Return the shape of an activation or a constant."""
        if isinstance(value, Value):
            return self.builder.nodes[value.name].shape
        return tuple(value.shape)

    def dtype(self, value: Value | Tensor) -> str:
        """Return the dtype of an activation or a constant."""
        if isinstance(value, Value):
            return self.builder.nodes[value.name].dtype
        return str(value.dtype).removeprefix("torch.")

    def axis(self, dim: int, value: Any) -> int:
        """Return a dimension of a tensor, counted from the front."""
        rank = value.full.ndim if isinstance(value, Prefix) else len(self.shape(value))
        return dim % max(rank, 1)

    def value(self, value: Any) -> Value:
        """Return ``value`` as an activation; constants become constant nodes, and their beginnings slices."""
        if isinstance(value, Value):
            return value
        if isinstance(value, Tensor):
            short = str(value.dtype).removeprefix("torch.") in SHORT
            return self.builder.constant(value.long() if short else value, self.fx)
        if isinstance(value, Prefix):
            return self.builder.materialize(value, self.fx)
        raise self.error(f"a tensor was expected, not {type(value).__name__}")

    def param(self, value: Any, role: str) -> str:
        """Return the name of the weight ``value``; computed weights become constants."""
        if not isinstance(value, Tensor):
            what = f"{role} is computed from the network's input"
            raise self.error(what, why="weights must be known when the model is quantized")
        return self.builder.tensor_name(value, self.fx, role)

    def params(self, **roles: Any) -> dict[str, str]:
        """Return names by role, without those that are None."""
        return {role: self.param(value, role) for role, value in roles.items() if value is not None}

    def emit(
        self,
        op: str,
        *inputs: Any,
        out: Sequence[Dim] | None = None,
        params: dict[str, str] | None = None,
        out_dtype: str | None = None,
        label: str | None = None,
        **attrs: Any,
    ) -> Value:
        """Append a node. ``out`` (its shape) and ``out_dtype`` default to those of the ATen call.

        Operands are converted to a dtype that the operation takes. Results that it does not give, of bytes and truth
        values, are made of its integers: modulo 256, and true where they are not 0.
        """
        for key, value in attrs.items():
            if isinstance(value, float) and not math.isfinite(value):
                what = f"the number {value}"
                why = f"programs hold finite numbers ({key} of {attrs.get('fn') or op})"
                remedy = "use a finite number, such as torch.finfo(torch.float32).max"
                if math.isnan(value):
                    remedy = "keep a mask in its place: (x * mask).sum(1) / mask.sum(1) is the mean of what is chosen"
                raise self.error(what, why=why, remedy=remedy)
            if isinstance(value, int) and abs(value) >= 1 << 63:
                why = f"programs hold integers below 2⁶³ in size ({key} of {attrs.get('fn') or op})"
                raise self.error(f"the number {value}", why=why, remedy="use torch.iinfo(torch.int64).min + 1")
        shape = self.out_shape if out is None else tuple(out)
        kind = out_dtype or self.builder.dtype_of_meta(self.fx)
        if kind in SHORT:
            why = "its results wrap around where those of int64 do not, and programs hold int64"
            raise self.error(f"arithmetic in {kind}", why=why, remedy="convert first: x.long() or x.float()")
        given = [self.value(v) for v in inputs]
        if op in OVER_PLACES and None in self.shape(given[0])[2:]:
            raise self.mixes(f"{op} over several samples", why="the batch is where its input has places")
        dtypes = [self.dtype(v) for v in given]
        found = taken_as(op, dtypes, kind, attrs)
        if found is None:
            name, known = attrs.get("fn") or op, sorted({s.result for s in FLOAT_KINDS[op].types})
            what = f"{name} of {' and '.join(dict.fromkeys(dtypes))} with a result of {kind}"
            remedy = "convert first: x.float()"
            raise self.error(what, why=f"programs compute it with results of {' and '.join(known)}", remedy=remedy)
        names = [self.cast(v, dtype).name for v, dtype in zip(given, found[0], strict=True)]
        y = self.builder.add_node(op, names, attrs, params or {}, shape, found[1], self.fx, label)
        keeps = op in KEEPING or attrs.get("fn", attrs.get("reduce")) in EXTREMES
        return self.narrowed(y, kind, wraps=not keeps)

    def cast(self, x: Any, dtype: str) -> Value:
        """Return a tensor in another dtype; it is the tensor itself where that is its own."""
        v = self.value(x)
        if self.dtype(v) == dtype:
            return v
        return self.emit("cast", v, out=self.shape(v), out_dtype=dtype, dtype=dtype)

    def narrowed(self, x: Value, dtype: str, *, wraps: bool = True) -> Value:
        """Return integers as bytes or truth values where that is the dtype; ``wraps``: they may lie outside 0..255."""
        shape = self.shape(x)
        if dtype == self.dtype(x):
            return x
        if dtype == "bool":
            return self.emit("compare", x, out=shape, out_dtype="bool", fn="ne", value=0)
        if dtype == "uint8" and wraps:
            x = self.emit("sub", x, self.whole_turns(x, 256), out=shape, out_dtype="int64")
        return self.cast(x, dtype)

    def whole_turns(self, x: Value, turn: int) -> Value:
        """Return the largest multiples of ``turn`` that are no larger than int64 numbers: what wrapping takes away."""
        shape = self.shape(x)
        count = torch.full([1] * len(shape), turn)
        times = self.emit("integer_divide", x, count, out=shape, out_dtype="int64", rounding="floor")
        return self.emit("affine_scalar", times, out=shape, out_dtype="int64", mul=turn, add=0)

    def move(self, op: str, *inputs: Any, out: Sequence[Dim], **attrs: Any) -> Value:
        """Append a node that keeps the dtype of its first input."""
        first, *rest = inputs
        v = self.value(first)
        return self.emit(op, v, *rest, out=out, out_dtype=self.dtype(v), **attrs)

    def reshape(self, x: Any, shape: Sequence[Dim] | None = None) -> Value:
        """Append a reshape, unless the shape already is the one asked for."""
        out = self.out_shape if shape is None else tuple(shape)
        v = self.value(x)
        if self.shape(v) == out and out.count(None) < 2:
            return v
        if out.count(None) > 1:
            raise self.mixes("reshape with the batch size in two dimensions", why=f"the output shape is {out}")
        if reshaped(self.shape(v), self.builder.outer[v.name], out) == MIXED:
            why = "what comes before the batch in the result is made of several samples"
            raise self.mixes("a reshape divides the samples of a batch into groups", why=why)
        return self.move("reshape", v, out=out, shape=[-1 if n is None else n for n in out])

    def static(self, *dims: Dim) -> list[int]:
        """Return the dimensions as ints; an error where one changes from call to call."""
        names = [d for d in dims if isinstance(d, str)]
        if names:
            what = f"this operation needs a fixed size of {names[0]}"
            free = " and ".join(dict.fromkeys(n for name in names for n in names_of(name)))
            remedy = f"leave {free} out of dynamic_shapes, or rewrite it to work on any size"
            raise self.error(what, why="it depends on a size that is only known when the program runs", remedy=remedy)
        if any(d is None for d in dims):
            raise self.mixes("this operation needs a fixed batch size", why="it depends on the number of samples")
        return [d for d in dims if isinstance(d, int)]

    def at_least(self, *dims: Dim, least: int = 1) -> None:
        """Raise the least sizes of named dimensions until each of ``dims``, which grow with them, is ``least`` long."""
        for dim in dims:
            if isinstance(dim, str):
                self.builder.raise_least(dim, least)

    @property
    def operator(self) -> str:
        """The name that errors give, with its namespace: that of what the model calls, also for parts of a formula."""
        if "operator" in self.fx.meta:
            return str(self.fx.meta["operator"])
        return full_name(self.fx) if operator_name(self.fx) == self.op else f"aten.{self.op}"

    def error(self, what: str, *, why: str = "", remedy: str = ELSEWHERE) -> CaptureError:
        """Return a CaptureError that names the module, the ATen operator and the user's line of code."""
        return CaptureError(f"{what} (operator {self.operator})", where=self.where(), why=why, remedy=remedy)

    def mixes(self, what: str, *, why: str = "its size is only known when the program runs") -> BatchError:
        """Return the error for what mixes samples of one batch: capture goes on with a fixed batch size, or says so."""
        return BatchError(f"{what} (operator {self.operator})", where=self.where(), why=why, remedy=PER_SAMPLE)

    def unlimited(self, what: str, name: Any, *, why: str, most: int | None = None) -> LimitError:
        """Return the error for a dimension that needs a largest size, or one of ``most``, 0 where that is unknown."""
        number = "512" if most is None else most or "…"
        remedy = f'say how long it can be: torch.export.Dim("{name}", max={number})'
        error = LimitError(f"{what} (operator {self.operator})", where=self.where(), why=why, remedy=remedy)
        error.name, error.most = str(name), most or 0
        return error

    def most_of(self, size: int | str, what: str, *, why: str) -> int:
        """Return the largest of a size; raise LimitError, with the dimension that has no limit, where it has none."""
        most = limits_of(size, self.builder.bounds)[1]
        if most is None:
            free = next(name for name in names_of(size) if self.builder.bounds[name][1] is None)
            raise self.unlimited(what, free, why=why)
        return most

    def in_place(self, into: str) -> NotFunctional:
        """Return the error for a write that cannot be followed."""
        what = f"an in-place operation writes into {into} (operator {self.operator})"
        remedy = "build the changed tensor with torch.cat, torch.where or arithmetic instead"
        return NotFunctional(what, where=self.where(), why="the graph has no shared memory", remedy=remedy)

    def where(self) -> str:
        """Return the module the call is in, and the line of code, where the export knows it."""
        path, kind, _ = module_of(self.fx)
        place = f"{path or 'the model itself'} ({kind})" if kind else path or "the model itself"
        line = line_of(self.fx)
        return f"{place}, {line}" if line else place


def taken_as(op: str, dtypes: Sequence[str], result: str, attrs: dict[str, Any]) -> tuple[Sequence[str], str] | None:
    """Return the dtypes in which an operation takes its operands, and that of its result; None where it has none.

    What it does not take as it is becomes wider, and bytes and truth values that it does not give are given as int64.

    Example:
        >>> taken_as("masked_fill", ["uint8", "bool"], "uint8", {"value": 3})
        (['int64', 'bool'], 'int64')
    """
    kind = FLOAT_KINDS.get(op)
    if kind is None:
        return dtypes, result
    own, more = dtypes[: kind.inputs[1]], dtypes[kind.inputs[1] :]
    for given in (result, "int64") if result in ("bool", "uint8") else (result,):
        found = list[list[str]]()
        for signature in kind.types:
            operands = [
                next((d for d in (have, *WIDER.get(have, ())) if d in allowed and (signature.result or d == given)), "")
                for have, allowed in zip(own, signature.of(len(own)), strict=True)
            ]
            if signature.fits(operands, given, attrs):
                found.append(operands)
        if found:
            return [*min(found, key=lambda operands: sum(map(operator.ne, operands, own))), *more], given
    return None


def held(value: float, dtype: str) -> float:
    """Return a number as a tensor of this dtype holds it, and the largest float32 in the place of infinity.

    Example:
        >>> held(2.7, "int64"), held(-1, "uint8"), held(3, "bool")
        (2, 255, 1)
    """
    if dtype == "bool":
        return int(bool(value))
    if dtype == "float32":
        return finite(value)
    return int(value) % 256 if dtype == "uint8" else int(value)


def line_of(fx: torch.fx.Node) -> str:
    """Return file and line of the user's code that made a node, innermost outside torch; "" where it is not known."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', fx.meta.get("stack_trace") or "")
    own = [(path, line) for path, line in frames if is_models(path)]
    return f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""


Handler = Callable[[Call], Any]

HANDLERS: dict[str, Handler] = {}
"""ATen operator, without overload and trailing underscore → the function that records nodes for it."""


def handles(names: str) -> Callable[[Handler], Handler]:
    """Enter the decorated function for these operators, separated by blanks."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names.split(), handler))
        return handler

    return register


def finite(value: float) -> float:
    """Put the largest float32 in the place of infinity, which JSON does not have, and of larger numbers of float64."""
    most = torch.finfo(torch.float32).max
    return math.copysign(most, value) if abs(value) > most else value
