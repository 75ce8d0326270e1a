"""Where the samples of a batch stand in the dimension that grows with it.

Windows, heads or steps may be moved into that dimension: ``(batch · windows)``, where the rows of a sample are
neighbours, or ``(steps · batch)``, where those of a step are. Which it is decides whether a reshape takes them apart
as the samples they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intact8.arithmetic.dimensions import Dim, NoSizeError, multiplied
from intact8.capture.graph import Node

Outer = int | str | None
"""How often the batch is repeated in its dimension, as often as it has steps before it; None where that is unknown."""

MIXED = 0
"""In place of it: samples are taken apart otherwise than they were put together."""


def outer_of(op: str, inputs: Sequence[Node], known: Mapping[str, Outer], attrs: Mapping[str, object]) -> Outer:
    """Return how often the batch is repeated in the dimension of a result that grows with it.

    Args:
        op: the operation.
        inputs: its operands.
        known: the same of these, by name.
        attrs: of the operation.
    """
    if op == "input":
        return 1
    batched = [known.get(node.name) for node in inputs if None in node.shape]
    outer = next((found for found in batched if found is not None), None)
    if op != "reshape" or outer is None:
        return outer
    shape = attrs["shape"]
    assert isinstance(shape, list)
    return reshaped(inputs[0].shape, outer, [None if n == -1 else n for n in shape])


def reshaped(shape: Sequence[Dim], outer: Outer, out: Sequence[Dim]) -> Outer:
    """Return how often the batch is repeated in its dimension behind a reshape; MIXED where it cannot be.

    Example:
        >>> [reshaped((5, None), 1, (None,)), reshaped((None,), 5, (5, None)), reshaped((None, 8), 1, (2, None))]
        [5, 1, 0]
    """
    if outer is None or None not in shape or None not in out:
        return None
    try:
        before = multiplied([outer, *(n for n in shape[: shape.index(None)] if n is not None)])
        after = multiplied([n for n in out[: out.index(None)] if n is not None])
    except NoSizeError:
        return None
    if before == after:
        return 1
    if after == 1:
        return before
    if isinstance(before, str) or isinstance(after, str):
        return None
    return before // after if after and before % after == 0 else MIXED
