"""Dtypes of operands and results: how the table of kinds declares them, and whether an operation keeps to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .op import Op, Tensor
from .values import Validator
from .violation import need

QUANTIZED = "quantized"
PLAIN = ("float32", "int64", "bool", "uint8")
"""Dtypes of tensors without a scale. A quantized tensor is uint8 with one."""


@dataclass(frozen=True, eq=False, repr=False)
class Signature:
    """One combination of types that a kind of operation takes and gives.

    Attributes:
        operands: types that each operand may have; the last entry also stands for the operands behind it.
        result: type of the result; "" where it is that of the operands, which then all have one.
        last: types of the last operand where it is none of ``operands``; empty otherwise.
        when: attribute → validator that it must pass for this combination.
    """

    operands: tuple[frozenset[str], ...]
    result: str
    last: frozenset[str] = frozenset()
    when: Mapping[str, Validator] = field(default_factory=dict)

    def of(self, count: int) -> tuple[frozenset[str], ...]:
        """Return the types of each of ``count`` operands."""
        front = count - 1 if self.last else count
        padded = [self.operands[min(i, len(self.operands) - 1)] for i in range(front)]
        return (*padded, self.last) if self.last else tuple(padded)

    def fits(self, operands: Sequence[str], result: str, attrs: Mapping[str, Any]) -> bool:
        """Return whether operands of these types give a result of that type under these attributes."""
        if not self.result and len({*operands, result}) > 1:
            return False
        if self.result not in ("", result) or any(check(attrs.get(name)) for name, check in self.when.items()):
            return False
        return all(a in allowed for a, allowed in zip(operands, self.of(len(operands)), strict=True))

    def __str__(self) -> str:
        operands = [" or ".join(sorted(types)) for types in (*self.operands, *([self.last] if self.last else []))]
        return f"({', '.join(operands)}) → {self.result or 'the same'}"


def signature(*operands: str, gives: str, last: str = "", **when: Validator) -> Signature:
    """Return a :class:`Signature`; each operand's types are separated by blanks.

    Example:
        >>> print(signature("float32", "bool", gives="float32"))
        (float32, bool) → float32
    """
    return Signature(tuple(frozenset(o.split()) for o in operands), gives, frozenset(last.split()), when)


def type_of(t: Tensor) -> str:
    """Return the type of a tensor: its dtype, or ``quantized``."""
    return QUANTIZED if t.quantized else t.dtype


def check_types(op: Op, signatures: Iterable[Signature], inputs: Sequence[Tensor], output: Tensor) -> None:
    """Whether the tensors of ``op`` are one of the combinations declared for its kind.

    Raises:
        Violation: they are not.
    """
    operands, result = [type_of(t) for t in inputs], type_of(output)
    fits = any(s.fits(operands, result, op.attrs) for s in signatures)
    if not fits:
        allowed = "; ".join(dict.fromkeys(map(str, signatures)))
        need(False, f"{op.kind} takes {allowed} and not ({', '.join(operands[:8])}) → {result}")


def result_types(op: Op, signatures: Iterable[Signature], inputs: Sequence[Tensor]) -> list[str]:
    """Return the types that ``op`` may give from ``inputs``, in the order of their declaration.

    Example:
        >>> x = Tensor("x", "int64", (2,))
        >>> result_types(Op("y", "float.add", ("x", "x")), [signature("int64", gives="int64")], [x, x])
        ['int64']
    """
    operands = [type_of(t) for t in inputs]
    found = [r for s in signatures for r in (s.result or operands[0],) if s.fits(operands, r, op.attrs)]
    return list(dict.fromkeys(found))
