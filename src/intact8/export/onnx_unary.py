"""Unary functions in float32 as ONNX nodes, default arguments included (see intact8.arithmetic.unary_functions)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from intact8.export.onnx_builder import Builder

Attrs = Mapping[str, Any]
Function = Callable[[Builder, Attrs, str], str]


def _by(kind: str) -> Function:
    """Return one node without attributes."""
    return lambda b, t, x: b.node(kind, [x])


def _alpha(kind: str) -> Function:
    return lambda b, t, x: b.node(kind, [x], alpha=float(t.get("alpha", 1.0)))


def _hardsigmoid(b: Builder, t: Attrs, x: str) -> str:
    return b.node("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)


def _times(inner: Function) -> Function:
    """Build x · inner(x)."""
    return lambda b, t, x: b.node("Mul", [x, inner(b, t, x)])


def _gelu(b: Builder, t: Attrs, x: str) -> str:
    if t.get("approximate", "none") == "tanh":
        cube = b.node("Mul", [b.node("Mul", [b.node("Mul", [x, x]), x]), b.float(0.044715)])
        inner = b.node("Tanh", [b.node("Mul", [b.node("Add", [x, cube]), b.float(math.sqrt(2.0 / math.pi))])])
    else:
        inner = b.node("Erf", [b.node("Div", [x, b.float(math.sqrt(2.0))])])
    half = b.node("Mul", [x, b.float(0.5)])
    return b.node("Mul", [half, b.node("Add", [inner, b.float(1.0)])])


def _softplus(b: Builder, t: Attrs, x: str) -> str:
    beta, threshold = float(t.get("beta", 1.0)), float(t.get("threshold", 20.0))
    steep = x if beta == 1.0 else b.node("Mul", [x, b.float(beta)])
    soft = b.node("Softplus", [steep])
    soft = soft if beta == 1.0 else b.node("Div", [soft, b.float(beta)])
    return b.node("Where", [b.node("Greater", [steep, b.float(threshold)]), x, soft])


def _mish(b: Builder, t: Attrs, x: str) -> str:
    return b.node("Mul", [x, b.node("Tanh", [b.node("Softplus", [x])])])


def _shrink(soft: bool) -> Function:
    def build(b: Builder, t: Attrs, x: str) -> str:
        lambd = float(t.get("lambd", 0.5))
        return b.node("Shrink", [x], lambd=lambd, bias=lambd if soft else 0.0)

    return build


SAME_NAME = (
    *("sigmoid", "tanh", "selu", "softsign", "abs", "neg", "exp", "log", "sqrt", "reciprocal", "erf", "sign", "floor"),
    *("ceil", "round", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
)
"""Functions that ONNX has under the same name, which begins with a capital letter there."""

FUNCTIONS: dict[str, Function] = {
    **{name: _by(name.capitalize()) for name in SAME_NAME},
    "silu": _times(_by("Sigmoid")),
    "gelu": _gelu,
    "hardswish": _times(_hardsigmoid),
    "hardsigmoid": _hardsigmoid,
    "elu": _alpha("Elu"),
    "celu": _alpha("Celu"),
    "mish": _mish,
    "softplus": _softplus,
    "logsigmoid": lambda b, t, x: b.node("Neg", [b.node("Softplus", [b.node("Neg", [x])])]),
    "hardshrink": _shrink(False),
    "softshrink": _shrink(True),
    "tanhshrink": lambda b, t, x: b.node("Sub", [x, b.node("Tanh", [x])]),
    "threshold": lambda b, t, x: b.node(
        "Where", [b.node("Greater", [x, b.float(t["threshold"])]), x, b.float(t["value"])]
    ),
    "rsqrt": lambda b, t, x: b.node("Reciprocal", [b.node("Sqrt", [x])]),
    "square": lambda b, t, x: b.node("Mul", [x, x]),
    "pow": lambda b, t, x: (  # the root of −∞ is NaN, its power of a half is not
        b.node("Sqrt", [x]) if t["exponent"] == 0.5 else b.node("Pow", [x, b.float(t["exponent"])])
    ),
    "log1p": lambda b, t, x: b.node("Log", [b.node("Add", [x, b.float(1.0)])]),
    "expm1": lambda b, t, x: b.node("Sub", [b.node("Exp", [x]), b.float(1.0)]),
    "trunc": lambda b, t, x: b.node("Mul", [b.node("Sign", [x]), b.node("Floor", [b.node("Abs", [x])])]),
}
"""Function name → nodes. The keys are those of ``intact8.arithmetic.unary_functions.UNARY``."""
