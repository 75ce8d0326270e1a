"""What the certificates of a kind prove: bounds of sums, tie margins, and that no number of an engine's formula leaves
the type that holds it.

The tie margin bounds what float32 rounds (``intact8.arithmetic.tie_free``). It says nothing where a number leaves the
type that holds it:

- A result is turned into an int32, by some kernels before it is clamped to a byte: what M·acc and the residual come to
  must stay below ``STEPS`` output steps.
- Kernels that read uint8 add up Σ x·w and take z·Σw off later: both must fit int32, as must a product of two
  activations.
- M = 0 (a = 0, which no conversion makes) cannot be divided by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from intact8.arithmetic.tie_free import Roundings

from .op import Array, Op, Tensor

STEPS = float(1 << 30)
"""Output steps that any evaluation holds before it clamps."""

INT32, FLOAT32, INT16 = 1 << 31, 1 << 24, int(np.iinfo(np.int16).max)
"""Where int32 ends, up to where float32 holds every integer, and the largest int16."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Sums:
    """What engines add up before they multiply.

    Attributes:
        largest: largest |integer| whatever the inputs hold.
        pair: largest |sum of two products| that lie side by side, 0 without stored weights.
        stored: the same of a convolution or linear layer that takes the zero point off afterwards.
        steps: its largest |result| in steps of the output, before it is clamped.
    """

    largest: int
    pair: int = 0
    stored: int = 0
    steps: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Multipliers:
    """Denominators b of multipliers a/b, and what their rounding errors depend on.

    Attributes:
        b: int64, (N,).
        form: error form, a key of ``intact8.arithmetic.tie_free.FORMS``.
        bias, residual: steps of the output that errors of the bias and of the other terms are relative to.
        result: bounds the unsaturated result in steps of the output.
    """

    b: Array
    form: str
    bias: Array | float = 0.0
    residual: Array | float = 0.0
    result: Array | float = 256.0


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How an engine evaluates integer operations: what a certificate has to know of it.

    Attributes:
        forms: error form → how often the engine rounds. An operation whose form is not among them is not claimed.
        exactly: forms without multipliers that the engine evaluates with the reference's numbers ("table", "softmax",
            "norm", "dynamic", "dequantized").
        without_zero: forms whose multiplier must not be 0.
        largest: kind → what sums of stored integers, zero points not yet taken off, must stay below; 2³¹ where a kind
            is not named.
        terms: numbers of operands of ``add`` that are claimed; None: any.
        largest_input: |integer| that int64 inputs may hold at most, which the engine checks in every call; None: any.
        by_margin: whether the engine is left out of a certificate where its own margin fails. Else the certificate
            says that the operation is not exact.
        own: whether the formulas are this package's own code, so that what is proved holds without having been asked
            for when the certificate was made.
    """

    forms: Mapping[str, Roundings]
    exactly: Collection[str] = ("table", "softmax", "norm", "dynamic", "dequantized")
    without_zero: Collection[str] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    terms: Collection[int] | None = None
    largest_input: int | None = None
    by_margin: bool = False
    own: bool = False


def no_multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    """Return no multipliers: nothing depends on how an engine rounds."""
    return []


def always(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    """Return True: no number of the formula can leave its type."""
    return True


@dataclass(frozen=True, eq=False, repr=False)
class Proof:
    """What the certificates of a kind prove.

    Attributes:
        form: the error form of an operation.
        sums: bounds of what engines add up.
        multipliers: every multiplier of an operation.
        fits: whether every number of an engine's formula fits the type that holds it.
    """

    form: Callable[[Op], str]
    sums: Callable[[Op, Tensors], Sums]
    multipliers: Callable[[Op, Tensors], list[Multipliers]] = no_multipliers
    fits: Callable[[Evaluation, Op, Tensors, Sums], bool] = always


def reach(t: Tensor) -> int:
    """Return the largest |x − z| of a quantized tensor."""
    z = t.zero_point or 0
    return max(z, 255 - z)


def largest_pair(magnitudes: Array) -> int:
    """Return the largest sum of two products of a row of weights with bytes.

    Args:
        magnitudes: |w|, uint8, (rows, products). Its largest entries are overwritten.
    """
    rows, first = np.arange(len(magnitudes)), magnitudes.argmax(axis=1)
    largest = magnitudes[rows, first].astype(np.int64)
    magnitudes[rows, first] = 0
    return int((largest + magnitudes.max(axis=1)).max()) * 255


def ratios_fit(
    evaluation: Evaluation, form: str, numerators: Sequence[int], denominators: Sequence[int], largest: int
) -> bool:
    """Return whether M·acc stays below what any evaluation holds, for the largest of these multipliers, and none is 0
    where the evaluation of this form divides by it."""
    zero = form in evaluation.without_zero and not all(numerators)
    return not zero and max(numerators) * largest < STEPS * min(denominators)


def named(form: str) -> Callable[[Op], str]:
    """Return the same error form for every operation of a kind."""
    return lambda op: form
