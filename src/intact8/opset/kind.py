"""What a kind of operation declares. Everything else that depends on the kind follows from this declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .op import Array, Op, Tensor
from .proof import Proof
from .shapes import Shape, ShapeRule
from .types import Signature
from .values import Validator

Interval = tuple[int, int]
"""The least and the largest of some integers."""

Span = tuple[float, float]
"""The ends of a range of float32 numbers, none of them NaN."""

UNKNOWN: Interval = (-(1 << 62), 1 << 62)
"""Integers of which nothing is known. What reaches so far is not followed: int64 might wrap around."""

Check = Callable[[Op, Sequence[Tensor], Tensor], None]
"""(operation, its inputs, its output): raises Violation where the operation breaks a rule of its kind.

It runs when dtypes, attributes and the dtypes and shapes of arrays are known to be as declared.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Call:
    """One operation with the values of its operands.

    Attributes:
        op: a checked operation.
        x: arrays of its inputs.
        inputs, output: descriptions of its inputs and of its output.
        batch: size of the batch, which an expanded −1 stands for; None where the program has none.
    """

    op: Op
    x: Sequence[Array]
    inputs: Sequence[Tensor]
    output: Tensor
    batch: int | None = None

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the operation."""
        return self.op.attrs

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays of the operation, by role."""
        return self.op.arrays

    @property
    def zero_points(self) -> list[int]:
        """Zero points of the inputs, which are quantized."""
        return [zero_point(t) for t in self.inputs]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Zero point of the output, and the limits ``lo`` and ``hi`` of its integers."""
        return zero_point(self.output), self.op.attrs["lo"], self.op.attrs["hi"]


def zero_point(t: Tensor) -> int:
    """Return the zero point of a quantized tensor."""
    assert t.zero_point is not None, f"{t.name} is not quantized"
    return t.zero_point


Semantics = Callable[[Call], Array]
"""The result of one operation in numpy, exact for integers: the specification of the kind.

Raises IndexError where an index is outside of its table, InputError where sizes do not work out for this batch.
"""


def along_axes(op: Op, t: Tensor, dim: int) -> bool:
    """Return whether dimension ``dim`` of the input ``t`` is one that the attributes ``axis`` or ``dims`` name."""
    axes = [*op.attrs.get("dims", ()), *([op.attrs["axis"]] if "axis" in op.attrs else [])]
    return any(axis % len(t.shape) == dim for axis in axes)


def along_all_but_first(op: Op, t: Tensor, dim: int) -> bool:
    """Return whether ``dim`` is not the first dimension: kinds that read images treat these one by one."""
    return dim != 0


def along_none(op: Op, t: Tensor, dim: int) -> bool:
    """Return False: no elements meet or move along any dimension."""
    return False


def never(op: Op) -> bool:
    """Return False: no operation of the kind has the property."""
    return False


def always(op: Op) -> bool:
    """Return True: every operation of the kind has the property."""
    return True


def nothing_lacks(attrs: Mapping[str, Any], shape: Shape) -> None:
    """Return None: every node of the kind has an integer form."""


def unknown(op: Op, ends: list[Any], inputs: Sequence[Tensor]) -> None:
    """Return None: nothing is known of the numbers that the operation gives."""


@dataclass(frozen=True, eq=False, repr=False)
class Kind:
    """A kind of operation.

    Attributes:
        name: as programs, engines and messages call it.
        formula: one line of documentation: what it computes.
        inputs: fewest and most inputs.
        types: dtypes of its operands and of its result: every combination that is allowed, and no other.
        shape: shape of its output, and what it demands of the shapes of its inputs and arrays.
        evaluate: its result in numpy.
        attrs: required attributes and what each must hold.
        optional: attributes that may be absent.
        arrays: required arrays, role → dtype name ("" for any).
        optional_arrays: arrays that may be absent.
        infinite: float arrays that may hold infinities, for what they hold is a value or is added to one (masks); no
            other may, and none may hold NaN.
        domain: "integer"; "float" (a float island, whose results engines may round differently); "dynamic" (float32
            results that are the same bits everywhere); "any" (a move: values, scale and zero point are unchanged);
            "quantize"; "dequantize".
        check: rules beyond dtypes, attributes and shapes; None where there are none.
        proof: what a certificate of such an operation proves; None where there is nothing to prove.
        since: version of the file format that knows the kind.
        works_along: (operation, one of its inputs, a dimension of that): whether elements that differ in this
            dimension meet in the result, or move along it. Where none do along the batch, a batch may be cut in parts.
        aligned: whether the dimensions of inputs and result correspond, counted from the last one.
        interval: (operation, intervals of its inputs, inputs): least and largest integer of an int64 result.
        span: the same of a float32 result.
        creates_special: whether it can make NaN or infinity of finite numbers of ordinary size.
        in_result_dtype: whether operands of another dtype are converted to that of the result first, on every engine.
        nonlinear: whether recipes decide by ``nonlinear`` if it computes integers or stays float.
        lacks_form: (attributes of a node of the graph, shape of its input): why it has no integer form; None where it
            has one.
        keeps_elements: whether every element of its inputs is in its result: a move that leaves none out.
        rows_by_index: whether its first operand are int64 indices of the rows of the array ``weight``.
        multiplies_weights: whether it multiplies by an array ``weight``, once per place of its result.
        multiplies_activations: whether it is a matrix product of its two inputs.
        univariate: whether it is a function of one number, so that a table of 256 entries can stand for it.
        homogeneous: whether it commutes with a positive factor of all its operands.
        shares_grid: whether its result has the scale and zero point of its inputs, though it computes values.
    """

    name: str
    formula: str
    inputs: tuple[int, int]
    types: tuple[Signature, ...]
    shape: ShapeRule
    evaluate: Semantics
    attrs: Mapping[str, Validator] = field(default_factory=dict)
    optional: Mapping[str, Validator] = field(default_factory=dict)
    arrays: Mapping[str, str] = field(default_factory=dict)
    optional_arrays: Mapping[str, str] = field(default_factory=dict)
    infinite: frozenset[str] = frozenset()
    domain: str = "integer"
    check: Check | None = None
    proof: Proof | None = None
    since: int = 1
    works_along: Callable[[Op, Tensor, int], bool] = along_axes
    aligned: bool = True
    interval: Callable[[Op, list[Interval], Sequence[Tensor]], Interval | None] = unknown
    span: Callable[[Op, list[Span], Sequence[Tensor]], Span | None] = unknown
    creates_special: Callable[[Op], bool] = never
    in_result_dtype: bool = False
    nonlinear: bool = False
    lacks_form: Callable[[Mapping[str, Any], Shape], str | None] = nothing_lacks
    keeps_elements: bool = False
    rows_by_index: bool = False
    multiplies_weights: bool = False
    multiplies_activations: bool = False
    univariate: bool = False
    homogeneous: bool = False
    shares_grid: bool = False

    @property
    def moves(self) -> bool:
        """Whether it moves values without computing any."""
        return self.domain == "any"

    @property
    def has_weights(self) -> bool:
        """Whether it has an array ``weight``, or several for parts of a layer."""
        return any(role.startswith("weight") for role in (*self.arrays, *self.optional_arrays))

    @property
    def stores_integers(self) -> bool:
        """Whether it multiplies by stored int8 weights."""
        return "int8" in self.arrays.values()
