"""Unary functions as OpenVINO operations; definitions as in ``intact8.arithmetic.unary_functions``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openvino import opset14 as ov

from .lowering import Port, port, scalar, times

Attrs = Mapping[str, Any]


def unary(attrs: Attrs, x: Port) -> Port:
    """Build attrs["fn"] of float32 x."""
    return port(UNARY[attrs["fn"]](attrs, x))


def _softplus(t: Attrs, x: Port) -> Any:
    beta, threshold = float(t.get("beta", 1.0)), float(t.get("threshold", 20.0))
    scaled = times(x, beta)
    soft = times(port(ov.softplus(scaled)), 1.0 / beta)
    return ov.select(port(ov.greater(scaled, scalar(threshold))), x, soft)


def _celu(t: Attrs, x: Port) -> Any:
    alpha = float(t.get("alpha", 1.0))
    below = ov.multiply(port(ov.elu(times(x, 1.0 / alpha), 1.0)), scalar(alpha))
    return ov.select(port(ov.greater(x, scalar(0.0))), x, port(below))


def _select(t: Attrs, x: Port) -> Any:
    return ov.select(port(ov.greater(x, scalar(t["threshold"]))), x, scalar(t["value"]))


def _hardshrink(t: Attrs, x: Port) -> Any:
    return ov.select(port(ov.greater(port(ov.abs(x)), scalar(t.get("lambd", 0.5)))), x, scalar(0.0))


def _softshrink(t: Attrs, x: Port) -> Any:
    size = port(ov.relu(port(ov.subtract(port(ov.abs(x)), scalar(t.get("lambd", 0.5))))))
    return ov.multiply(port(ov.sign(x)), size)


SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""α and λ of Klambauer et al. 2017, equation 14."""

UNARY: dict[str, Callable[[Attrs, Port], Any]] = {
    "sigmoid": lambda t, x: ov.sigmoid(x),
    "tanh": lambda t, x: ov.tanh(x),
    "silu": lambda t, x: ov.swish(x),
    "gelu": lambda t, x: ov.gelu(x, "TANH" if t.get("approximate") == "tanh" else "ERF"),
    "hardswish": lambda t, x: ov.hswish(x),
    "hardsigmoid": lambda t, x: ov.hsigmoid(x),
    "elu": lambda t, x: ov.elu(x, float(t.get("alpha", 1.0))),
    "selu": lambda t, x: ov.selu(x, scalar(SELU[0]), scalar(SELU[1])),
    "celu": _celu,
    "mish": lambda t, x: ov.mish(x),
    "softplus": _softplus,
    "softsign": lambda t, x: ov.softsign(x),
    "logsigmoid": lambda t, x: ov.negative(port(ov.softplus(port(ov.negative(x))))),
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "tanhshrink": lambda t, x: ov.subtract(x, port(ov.tanh(x))),
    "threshold": _select,
    "abs": lambda t, x: ov.abs(x),
    "neg": lambda t, x: ov.negative(x),
    "exp": lambda t, x: ov.exp(x),
    "log": lambda t, x: ov.log(x),
    "sqrt": lambda t, x: ov.sqrt(x),
    "rsqrt": lambda t, x: ov.divide(scalar(1.0), port(ov.sqrt(x))),
    "square": lambda t, x: ov.multiply(x, x),
    "reciprocal": lambda t, x: ov.divide(scalar(1.0), x),
    "pow": lambda t, x: ov.power(x, scalar(t["exponent"])),
    "sin": lambda t, x: ov.sin(x),
    "cos": lambda t, x: ov.cos(x),
    "erf": lambda t, x: ov.erf(x),
    "sign": lambda t, x: ov.sign(x),
    "floor": lambda t, x: ov.floor(x),
    "ceil": lambda t, x: ov.ceiling(x),
    "round": lambda t, x: ov.round(x, "half_to_even"),
    "tan": lambda t, x: ov.tan(x),
    "asin": lambda t, x: ov.asin(x),
    "acos": lambda t, x: ov.acos(x),
    "atan": lambda t, x: ov.atan(x),
    "sinh": lambda t, x: ov.sinh(x),
    "cosh": lambda t, x: ov.cosh(x),
    "asinh": lambda t, x: ov.asinh(x),
    "acosh": lambda t, x: ov.acosh(x),
    "atanh": lambda t, x: ov.atanh(x),
    "log1p": lambda t, x: ov.log(port(ov.add(x, scalar(1.0)))),
    "expm1": lambda t, x: ov.subtract(port(ov.exp(x)), scalar(1.0)),
    "trunc": lambda t, x: ov.multiply(port(ov.sign(x)), port(ov.floor(port(ov.abs(x))))),
}
"""fn → node; the names are ``intact8.arithmetic.unary_functions.UNARY``."""
