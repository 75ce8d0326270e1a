"""Operations of graphs. Each has the name of the opset's kind that computes it, and that kind declares what it is.

In floats ``conv`` is the kind ``float.conv``, and ``reshape``, which moves values of any dtype, is ``reshape``: inputs,
attributes and the roles of params are those of the kind (docs/opset.md). On integers ``conv`` is the kind ``conv``.
"""

from __future__ import annotations

from intact8.opset import KINDS
from intact8.opset.kind import Kind

GRAPH_ONLY = frozenset({"input", "batch_norm", "dropout", "table", "requantize"})
"""Operations of graphs that no kind computes in floats; :mod:`intact8.capture.graph` says what they are."""

FLOAT_KINDS: dict[str, Kind] = {
    name.removeprefix("float."): kind for name, kind in KINDS.items() if kind.domain in ("float", "any")
}
"""Operation → the kind that computes it in floats, or moves its values."""

_RENAMED = {"scale_shift": "conv", "sub": "add", "requantize": "table"}

INTEGER_KINDS: dict[str, Kind] = {
    op: KINDS[name] for op, name in ({n: n for n in KINDS} | _RENAMED).items() if KINDS[name].domain == "integer"
}
"""Operation → the kind that computes it on integers, for those that have one."""

TRANSITIONS = frozenset({"quantize", "dequantize", "requantize"})
"""Operations that take values from one grid, or from float32, to another one."""

FUSED = ("pre", "bn", "act")
"""Attributes of what is fused into a layer: batch norms before and behind it, and its activation."""

HEAVY = frozenset(op for op, kind in INTEGER_KINDS.items() if kind.multiplies_weights) - {"scale_shift"}
"""Operations worth a conversion: they run as integers wherever their inputs come from."""

NONLINEAR = frozenset(op for op, kind in KINDS.items() if kind.nonlinear)
"""Operations that run as integers where the recipe says ``nonlinear = "integer"`` and an input is quantized."""

LIGHT = frozenset(INTEGER_KINDS) - HEAVY - NONLINEAR
"""Operations that run as integers where an input is quantized already."""

UNIVARIATE = frozenset(op for op, kind in FLOAT_KINDS.items() if kind.univariate)
"""Functions of one number."""

PER_CHANNEL = frozenset({"scale_shift", "prelu"})
"""Operations on single numbers whose parameters are numbers per channel."""

LAYERS = frozenset(op for op, kind in FLOAT_KINDS.items() if kind.has_weights) - PER_CHANNEL | {"batch_norm"}
"""Operations with weights of their own, norms included."""
