"""One float operation by its name, without a program around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intact8.opset import KINDS, Array, Call, Op, Tensor


def run_float(
    name: str, attrs: Mapping[str, Any], inputs: Sequence[Array], arrays: Mapping[str, Array], dtype: str = "float32"
) -> Array:
    """What the kind ``float.NAME``, or ``upsample``, gives in numpy."""
    kind = KINDS.get(f"float.{name}") or KINDS[name]
    op = Op("y", kind.name, tuple(f"x{i}" for i in range(len(inputs))), dict(attrs), dict(arrays))
    metas = [Tensor(n, str(x.dtype), x.shape) for n, x in zip(op.inputs, inputs, strict=True)]
    return kind.evaluate(Call(op, list(inputs), metas, Tensor("y", dtype, ())))


FLOAT_OPS = frozenset(name.removeprefix("float.") for name, kind in KINDS.items() if kind.domain == "float")
"""NAMEs of the kinds of float islands; ``upsample`` moves values, too."""

__all__ = ["FLOAT_OPS", "run_float"]
