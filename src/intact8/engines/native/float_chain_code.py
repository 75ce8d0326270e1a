"""Chains of elementwise operations, as ``native/engine/steps.h`` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

FLOATS, GRID, INT64, BOOL = range(4)
"""Types of results, and of operands that are read as float32: float32, uint8 on a grid, int64, bool."""

WHOLE_INT64, WHOLE_BYTES = 3, 4
"""Types of operands that are read as int64."""

MAX_OPERANDS, MAX_INSTRUCTIONS = 16, 32


@cache
def operations() -> dict[str, int]:
    """Return the number of every operation of chains. The compiled library declares them."""
    from . import _library

    return {name: number for number, name in enumerate(_library.chain_operations())}


@dataclass(frozen=True)
class Operand:
    """A tensor that a chain reads.

    Attributes:
        value: its index in the plan.
        mask: bit i: it has dimension i of the result, in the order of memory.
        type: of its elements.
        zero: its zero point.
        scale: bits of its scale as float32.
    """

    value: int
    mask: int
    type: int
    zero: int
    scale: int


Source = Operand | int
"""An operand, or the result of an instruction."""

Instruction = tuple[str, Source, Source, float, float]
"""Operation, two arguments, two numbers."""


@dataclass
class Chain:
    """Instructions and what becomes of the last result.

    Attributes:
        y: index of the value that is written.
        sizes: of its dimensions in the order of memory.
        code: the instructions.
        result: the last one, or an operand where there are none.
        fields: of the step: type, divisor, zero, low, high.
    """

    y: int
    sizes: tuple[int, ...]
    code: list[Instruction]
    result: Source
    fields: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Whether registers hold int64."""
        return self.operands()[0].type >= WHOLE_INT64

    def operands(self) -> list[Operand]:
        """Return the operands, in the order of their first use."""
        used = [s for _, a, b, _, _ in self.code for s in (a, b)] or [self.result]
        return list(dict.fromkeys(s for s in used if isinstance(s, Operand)))

    def dimensions(self, mask: int) -> list[int]:
        """Return the dimensions of more than one element that are in a mask."""
        return [i for i, size in enumerate(self.sizes) if size != 1 and mask >> i & 1]

    def reads_whole(self, operand: Operand, sizes: Sequence[int]) -> bool:
        """Return whether the operand, of these sizes in memory, has all dimensions of the result."""
        own = [self.sizes[i] for i in self.dimensions(-1)]
        return self.dimensions(operand.mask) == self.dimensions(-1) and own == [n for n in sizes if n != 1]

    def argument_of(self, function: str) -> Operand | None:
        """Return the tensor of float32 that goes through one function, where the chain does only that."""
        if [name for name, *_ in self.code] != [function] or self.fields["type"] != FLOATS:
            return None
        (operand,) = self.operands()
        return operand if operand.type == FLOATS and self.reads_whole(operand, self.sizes) else None

    def absorb(self, operand: Operand, earlier: Chain) -> bool:
        """Compute the operand by the instructions of the chain that writes it; return whether this chain can."""
        if earlier.code and not self.reads_whole(operand, earlier.sizes):
            return False
        to = self.dimensions(operand.mask)
        from_ = earlier.dimensions(-1)
        if [self.sizes[i] for i in to] != [earlier.sizes[i] for i in from_]:
            return False
        moved = {
            o: replace(o, mask=sum(1 << t for t, f in zip(to, from_, strict=True) if o.mask >> f & 1))
            for o in earlier.operands()
        }
        shift = len(earlier.code)
        result: Source = shift - 1 if shift else moved[earlier.operands()[0]]

        def own(s: Source) -> Source:
            return result if s == operand else s + shift if isinstance(s, int) else s

        def theirs(s: Source) -> Source:
            return s if isinstance(s, int) else moved[s]

        code = [(n, theirs(a), theirs(b), p, q) for n, a, b, p, q in earlier.code]
        code += [(n, own(a), own(b), p, q) for n, a, b, p, q in self.code]
        made = Chain(self.y, self.sizes, code, own(self.result), self.fields)
        if len(code) > MAX_INSTRUCTIONS or len(made.operands()) > MAX_OPERANDS:
            return False
        self.code, self.result = made.code, made.result
        return True
