"""Unary functions in float64: what tables are computed with, and the reference for float islands.

Definitions follow torch's documentation, default arguments included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""Klambauer et al. 2017, Self-Normalizing Neural Networks, equation 14."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf64(x: Array) -> Array:
    return np.asarray(_erf(x), np.float64) if x.size else x


def sigmoid(x: Array) -> Array:
    """1/(1 + e⁻ˣ), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """ln(1 + e^(βx))/β, and x itself where βx exceeds the threshold."""
    return np.where(x * beta > threshold, x, np.logaddexp(0.0, x * beta) / beta)


def _gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + _erf64(x / math.sqrt(2.0)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


UNARY: dict[str, Callable[[Attrs, Array], Array]] = {
    "sigmoid": lambda t, x: sigmoid(x),
    "tanh": lambda t, x: np.tanh(x),
    "silu": lambda t, x: x * sigmoid(x),
    "gelu": lambda t, x: _gelu(x, t.get("approximate", "none")),
    "hardswish": lambda t, x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "hardsigmoid": lambda t, x: np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "elu": lambda t, x: _elu(x, t.get("alpha", 1.0)),
    "selu": lambda t, x: SELU_SCALE * _elu(x, SELU_ALPHA),
    "celu": lambda t, x: np.where(x > 0, x, t.get("alpha", 1.0) * np.expm1(np.minimum(x, 0.0) / t.get("alpha", 1.0))),
    "mish": lambda t, x: x * np.tanh(np.logaddexp(0.0, x)),
    "softplus": lambda t, x: softplus(x, t.get("beta", 1.0), t.get("threshold", 20.0)),
    "softsign": lambda t, x: x / (1.0 + np.abs(x)),
    "logsigmoid": lambda t, x: -np.logaddexp(0.0, -x),
    "hardshrink": lambda t, x: np.where(np.abs(x) <= t.get("lambd", 0.5), 0.0, x),
    "softshrink": lambda t, x: np.sign(x) * np.maximum(np.abs(x) - t.get("lambd", 0.5), 0.0),
    "tanhshrink": lambda t, x: x - np.tanh(x),
    "threshold": lambda t, x: np.where(x <= t["threshold"], t["value"], x),
    "abs": lambda t, x: np.abs(x),
    "neg": lambda t, x: -x,
    "exp": lambda t, x: np.exp(x),
    "log": lambda t, x: np.log(x),
    "sqrt": lambda t, x: np.sqrt(x),
    "rsqrt": lambda t, x: 1.0 / np.sqrt(x),
    "square": lambda t, x: x * x,
    "reciprocal": lambda t, x: 1.0 / x,
    "pow": lambda t, x: np.power(x, t["exponent"]),
    "sin": lambda t, x: np.sin(x),
    "cos": lambda t, x: np.cos(x),
    "erf": lambda t, x: _erf64(x),
    "sign": lambda t, x: np.where(np.isnan(x), 0.0, np.sign(x)),
    "floor": lambda t, x: np.floor(x),
    "ceil": lambda t, x: np.ceil(x),
    "round": lambda t, x: np.rint(x),
    "tan": lambda t, x: np.tan(x),
    "asin": lambda t, x: np.arcsin(x),
    "acos": lambda t, x: np.arccos(x),
    "atan": lambda t, x: np.arctan(x),
    "sinh": lambda t, x: np.sinh(x),
    "cosh": lambda t, x: np.cosh(x),
    "asinh": lambda t, x: np.arcsinh(x),
    "acosh": lambda t, x: np.arccosh(x),
    "atanh": lambda t, x: np.arctanh(x),
    "log1p": lambda t, x: np.log1p(x),
    "expm1": lambda t, x: np.expm1(x),
    "trunc": lambda t, x: np.trunc(x),
}
"""Function name → implementation; the names are ``intact8.capture.graph.FUNCTIONS``."""


def unary64(fn: str, attrs: Attrs, x: Array) -> Array:
    """``fn`` of float64 values, in float64. NaN and infinities follow IEEE 754, without warnings.

    Args:
        fn: a key of UNARY.
        attrs: the function's own attributes (``alpha``, ``approximate`` …).
        x: any shape.

    Raises:
        KeyError: unknown function, or ``threshold``, ``value``, ``exponent`` missing where there is no default.

    Example:
        >>> unary64("hardswish", {}, np.array([-4.0, 0.0, 1.5, 6.0])).tolist()
        [-0.0, 0.0, 1.125, 6.0]
    """
    with np.errstate(all="ignore"):
        return np.asarray(UNARY[fn](attrs, np.asarray(x, np.float64)), np.float64)
