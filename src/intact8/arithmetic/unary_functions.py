"""The unary functions, each declared once: its float64 definition, its attributes and its properties.

Tables are computed with these definitions, and the reference engine evaluates float islands with them. They follow
torch's documentation, default arguments included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """Compute 1/(1 + e⁻ˣ), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """Compute ln(1 + e^(βx))/β, and x itself where βx exceeds the threshold."""
    return np.where(x * beta > threshold, x, np.logaddexp(0.0, x * beta) / beta)


def _gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + _erf64(x / math.sqrt(2.0)))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _celu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """A function of one number.

    Attributes:
        evaluate: the function of a float64 array, and of its attributes by keyword.
        attrs: its own attributes and their defaults; None where there is no default.
        creates_special: whether it turns finite numbers of ordinary size into NaN or infinity.
        steep: whether a small change of its argument may be a large change of its result.
        pole: whether its result is unbounded where its argument is near some number; such functions are steep.
        keeps_off_poles: whether a steep function of its result meets no number near a pole: 1 / (1 + exp(−x)).
        stretches: whether ratios of its argument grow; activation functions do not stretch.
        vanishes: whether its result is positive and as small as one likes: it makes weights of scores.
    """

    evaluate: Callable[..., Any]
    attrs: Attrs = field(default_factory=dict)
    creates_special: bool = False
    steep: bool = False
    pole: bool = False
    keeps_off_poles: bool = False
    stretches: bool = False
    vanishes: bool = False


UNARY: dict[str, Function] = {
    "sigmoid": Function(sigmoid, keeps_off_poles=True, vanishes=True),
    "tanh": Function(np.tanh, keeps_off_poles=True),
    "silu": Function(lambda x: x * sigmoid(x)),
    "gelu": Function(_gelu, {"approximate": "none"}),
    "hardswish": Function(lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0),
    "hardsigmoid": Function(lambda x: np.clip(x + 3.0, 0.0, 6.0) / 6.0, keeps_off_poles=True, vanishes=True),
    "elu": Function(_elu, {"alpha": 1.0}, vanishes=True),
    "selu": Function(lambda x: SELU_SCALE * _elu(x, SELU_ALPHA)),
    "celu": Function(_celu, {"alpha": 1.0}),
    "mish": Function(lambda x: x * np.tanh(np.logaddexp(0.0, x))),
    "softplus": Function(softplus, {"beta": 1.0, "threshold": 20.0}, keeps_off_poles=True, vanishes=True),
    "softsign": Function(lambda x: x / (1.0 + np.abs(x))),
    "logsigmoid": Function(lambda x: -np.logaddexp(0.0, -x)),
    "hardshrink": Function(lambda x, lambd: np.where(np.abs(x) <= lambd, 0.0, x), {"lambd": 0.5}),
    "softshrink": Function(lambda x, lambd: np.sign(x) * np.maximum(np.abs(x) - lambd, 0.0), {"lambd": 0.5}),
    "tanhshrink": Function(lambda x: x - np.tanh(x)),
    "threshold": Function(
        lambda x, threshold, value: np.where(x <= threshold, value, x), {"threshold": None, "value": None}
    ),
    "abs": Function(np.abs, stretches=True),
    "neg": Function(lambda x: -x),
    "exp": Function(np.exp, creates_special=True, keeps_off_poles=True, stretches=True, vanishes=True),
    "log": Function(np.log, creates_special=True, steep=True),
    "sqrt": Function(np.sqrt, creates_special=True, steep=True),
    "rsqrt": Function(lambda x: 1.0 / np.sqrt(x), creates_special=True, steep=True, pole=True),
    "square": Function(lambda x: x * x, stretches=True),
    "reciprocal": Function(lambda x: 1.0 / x, creates_special=True, steep=True, pole=True),
    "pow": Function(
        lambda x, exponent: np.power(x, exponent), {"exponent": None}, creates_special=True, stretches=True
    ),
    "sin": Function(np.sin),
    "cos": Function(np.cos),
    "erf": Function(_erf64, keeps_off_poles=True),
    "sign": Function(lambda x: np.where(np.isnan(x), 0.0, np.sign(x))),
    "floor": Function(np.floor),
    "ceil": Function(np.ceil),
    "round": Function(np.rint),
    "tan": Function(np.tan, creates_special=True, steep=True, pole=True),
    "asin": Function(np.arcsin, creates_special=True),
    "acos": Function(np.arccos, creates_special=True),
    "atan": Function(np.arctan),
    "sinh": Function(np.sinh, creates_special=True),
    "cosh": Function(np.cosh, creates_special=True),
    "asinh": Function(np.arcsinh),
    "acosh": Function(np.arccosh, creates_special=True),
    "atanh": Function(np.arctanh, creates_special=True, steep=True),
    "log1p": Function(np.log1p, creates_special=True),
    "expm1": Function(np.expm1, creates_special=True),
    "trunc": Function(np.trunc),
}
"""Function name → declaration."""


def unary64(fn: str, attrs: Attrs, x: Array) -> Array:
    """Evaluate ``fn`` of float64 values, in float64. NaN and infinities follow IEEE 754, without warnings.

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
    known = UNARY[fn].attrs
    with np.errstate(all="ignore"):
        own = {name: attrs[name] if default is None else attrs.get(name, default) for name, default in known.items()}
        return np.asarray(UNARY[fn].evaluate(np.asarray(x, np.float64), **own), np.float64)
