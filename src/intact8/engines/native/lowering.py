"""What rules for kinds of operations are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from intact8.arithmetic.bit_packing import fits_in_four, pack
from intact8.opset.op import Array, Op, Tensor

from .builder import MAX_RANK, PlanBuilder, Value, plain

T = TypeVar("T")


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
        epilogue: operations behind this one that its step computes as well, see :func:`.fuse.chains`. The value of the
            operation before each of them is not among its inputs.
        before: rows of zero points that a convolution adds in front of each axis of its first input, see
            :func:`.fuse.paddings`; what it adds behind follows from the sizes.
    """

    op: Op
    builder: PlanBuilder
    inputs: Sequence[Value]
    tensors: Sequence[Tensor]
    out: Tensor
    image: bool
    epilogue: Sequence[OpContext] = ()
    before: Sequence[int] = ()

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

    def weight(self, role: str, make: Callable[[], Array]) -> dict[str, Value | int | None]:
        """Return the fields ``weight`` and ``bits`` of int8 weights, which take 4 bits where that holds them all.

        Args:
            role: of the array among those of the operation.
            make: makes the weights in the order of the library.
        """

        def stored() -> Array:
            q = make()
            return pack(q.reshape(1, -1), 4)[0] if fits_in_four(q) else q

        value = self.constant(role, stored)
        return {"weight": value, "bits": 8 if value.dtype == "int8" else 4}

    def stored(self, role: str) -> Value | None:
        """Return the value of an array of the operation; None where it has none of that role."""
        arrays = self.op.arrays
        return self.constant(role, lambda: arrays[role]) if role in arrays else None

    def last_dimensions(self) -> Value:
        """Return the input of a norm with the dimensions that are normalized last in memory."""
        x, first = self.inputs[0], len(self.inputs[0].shape) - len(self.op.attrs["shape"])
        return self.builder.in_order(x, [*(d for d in x.order if d < first), *range(first, len(x.shape))])

    def zero_point(self, which: int) -> int:
        """Return the zero point of an input."""
        return self.tensors[which].zero_point or 0

    def grid(self) -> dict[str, int]:
        """Return the fields ``zero``, ``low`` and ``high`` of the result."""
        return {"zero": self.out.zero_point or 0, "low": self.op.attrs["lo"], "high": self.op.attrs["hi"]}

    def sizes(self, order: Sequence[int]) -> dict[str, int]:
        """Return the fields ``rank`` and ``d0`` to ``d7`` of the result in that order of dimensions."""
        sizes = [self.shape[d] for d in order]
        return {"rank": len(sizes), **{f"d{i}": sizes[i] if i < len(sizes) else 0 for i in range(MAX_RANK)}}

    def broadcast(self, order: Sequence[int]) -> tuple[list[Value], list[int]]:
        """Return the inputs in that order of dimensions, of the rank of the result; and for each a number whose bit k
        says that it has one element along dimension k in the order of memory."""
        values = [self.builder.in_order(x.of_rank(len(order)), order) for x in self.inputs]
        masks = [sum(1 << k for k, d in enumerate(order) if x.shape[d] == 1) for x in values]
        return values, masks

    def usual_order(self) -> tuple[int, ...]:
        """Return the order of the largest input that is not plain and of the rank of the result; plain without one."""
        rank = len(self.shape)
        others = [x for x in self.inputs if len(x.shape) == rank and not x.is_in(plain(rank))]
        return max(others, key=lambda x: x.size).order if others else plain(rank)


AXES = ("d", "h", "w")
"""Axes of images, as fields of steps name them."""


def image_axes(given: Sequence[T], other: T) -> list[T]:
    """Return what is given for each axis of images, for all three: ``other`` for those that there are not."""
    return [other] * (len(AXES) - len(given)) + list(given)


def image_fields(x: Value, y: Value) -> dict[str, int]:
    """Return the fields of the sizes of images and of the results on them."""
    names = ("depth", "height", "width")
    sizes = zip(names, image_axes(x.shape[2:], 1), image_axes(y.shape[2:], 1), strict=True)
    fields = {"batch": x.shape[0], "channels": x.shape[1]}
    for name, size, out in sizes:
        fields |= {name: size, f"out_{name}": out}
    return fields


Rule = Callable[[OpContext], Value | None]
"""Lowers an operation; None where this operation has no steps of its own, so that the reference computes it."""
