"""What rules for kinds of operations are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intact8.opset.op import Array, Op, Tensor

from .builder import PlanBuilder, Value, plain


@dataclass(frozen=True)
class OpContext:
    """An operation that is being lowered.

    Attributes:
        op: the operation, its sizes in numbers.
        builder: of the plan.
        inputs: values of its inputs.
        tensors: descriptions of its inputs.
        out: description of its output, its shape in numbers.
        image: whether operations on images read the result, so that channels should come last.
    """

    op: Op
    builder: PlanBuilder
    inputs: Sequence[Value]
    tensors: Sequence[Tensor]
    out: Tensor
    image: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the output."""
        return tuple(d for d in self.out.shape if isinstance(d, int))

    def make(self, order: Sequence[int] | None = None) -> Value:
        """Return a new value for the output, in that order of dimensions."""
        return self.builder.value(self.shape, self.out.dtype, order)

    def array(self, role: str, make: Callable[[], Array]) -> Array:
        """Return an array that is made once for all plans of the program."""
        return self.builder.constants.get(self.op.name, role, make)

    def constant(self, role: str, make: Callable[[], Array]) -> Value:
        """Return the value of an array that is made once for all plans of the program."""
        return self.builder.constant(self.array(role, make))

    def zero_point(self, which: int) -> int:
        """Return the zero point of an input."""
        return self.tensors[which].zero_point or 0

    def grid(self) -> dict[str, int]:
        """Return the fields ``zero``, ``low`` and ``high`` of the result."""
        return {"zero": self.out.zero_point or 0, "low": self.op.attrs["lo"], "high": self.op.attrs["hi"]}

    def same_order(self) -> list[Value]:
        """Return the inputs in one order of dimensions: that of the first one of the output's shape that is not plain,
        else plain. Inputs of fewer dimensions stay as they are."""
        rank = len(self.shape)
        full = [x for x in self.inputs if x.shape == self.shape]
        order = next((x.order for x in full if x.order != plain(rank)), plain(rank))
        return [self.builder.in_order(x, order) if len(x.shape) == rank else x for x in self.inputs]


Rule = Callable[[OpContext], Value | None]
"""Lowers an operation; None where this operation has no steps of its own, so that the reference computes it."""
