"""Operators without an operation of their own as formulas of others, in torch: capture traces them.

A formula has the arguments of its operator and gives what that gives. It takes precedence over torch's decompositions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from intact8.capture.integer_division import operands, whole_quotient

Formula = TypeVar("Formula", bound=Callable[..., Any])

FORMULAS: dict[Any, Callable[..., Any]] = {}
"""Operator overload → formula."""

TINY = torch.finfo(torch.float32).tiny


def formula(names: str) -> Callable[[Formula], Formula]:
    """Enter the decorated function for these overloads of ATen operators (``fmod.Tensor``), separated by blanks."""

    def register(function: Formula) -> Formula:
        for name in names.split():
            packet, overload = name.split(".")
            operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            if operator is not None:  # not every release of torch has every operator
                FORMULAS[operator] = function
        return function

    return register


def real(x: Any) -> Any:
    """Return a tensor in float32; numbers as they are."""
    return x if not isinstance(x, Tensor) or x.is_floating_point() else x.float()


@formula("atan2.default")
def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Compute the angle of (x, y) from that in the first eighth of the circle."""
    y, x = torch.broadcast_tensors(real(y), real(x))  # type: ignore[no-untyped-call]
    height, width = y.abs(), x.abs()
    angle = torch.atan(torch.minimum(height, width) / torch.maximum(height, width).clamp(min=TINY))
    angle = torch.where(height > width, math.pi / 2 - angle, angle)
    angle = torch.where(x < 0, math.pi - angle, angle)
    return torch.where(y < 0, -angle, angle)


def quotient(x: Any, y: Any, rounding: str) -> Tensor:
    """Return x / y, rounded down or towards 0, in the dtype that torch gives."""
    whole = operands(x, y)
    if whole is not None:
        found: Tensor = whole_quotient(*whole[:2], rounding)
        return found.to(whole[2])
    return _rounded(_ratio(x, y), rounding)


def rest(x: Any, y: Any, rounding: str) -> Tensor:
    """Return what a rounded quotient leaves: of floats y times the fraction, which no large number is part of."""
    whole = operands(x, y)
    if whole is not None:
        one, other, dtype = whole
        found: Tensor = one - whole_quotient(one, other, rounding) * other
        return found.to(dtype)
    x = x if isinstance(x, Tensor) else torch.full_like(y, x)
    ratio = _ratio(x, y)
    left: Tensor = (ratio - _rounded(ratio, rounding)) * y
    return left


def _ratio(x: Any, y: Any) -> Tensor:
    return torch.true_divide(real(x), y if isinstance(y, Tensor) else real(x).new_full([1], y))


def _rounded(ratio: Tensor, rounding: str) -> Tensor:
    return torch.floor(ratio) if rounding == "floor" else torch.trunc(ratio)


@formula("fmod.Tensor fmod.Scalar")
def fmod(x: Tensor, y: Any) -> Tensor:
    """Compute the remainder that has the sign of x."""
    return rest(x, y, "trunc")


@formula("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor")
def remainder(x: Any, y: Any) -> Tensor:
    """Compute the remainder that has the sign of y."""
    return rest(x, y, "floor")


@formula("div.Tensor_mode div.Scalar_mode")
def divide(x: Tensor, y: Any, *, rounding_mode: str | None) -> Tensor:
    """Compute a rounded quotient."""
    return torch.true_divide(x, y) if rounding_mode is None else quotient(x, y, rounding_mode)


@formula("floor_divide.default floor_divide.Scalar")
def floor_divide(x: Tensor, y: Any) -> Tensor:
    """Compute a quotient rounded down."""
    return quotient(x, y, "floor")


@formula("__rshift__.Scalar bitwise_right_shift.Tensor_Scalar")
def right_shift(x: Tensor, y: int) -> Tensor:
    """Compute x / 2^y, rounded down."""
    return floor_divide(x, 2**y)


@formula("__lshift__.Scalar bitwise_left_shift.Tensor_Scalar")
def left_shift(x: Tensor, y: int) -> Tensor:
    """Compute x · 2^y."""
    return x * int(2**y)


@formula("__and__.Scalar bitwise_and.Scalar")
def bits(x: Tensor, y: int) -> Tensor:
    """Compute the bits of whole numbers that y has, which of a negative y is all but those of ~y: run by run."""
    x = x.long() if x.dtype == torch.bool else x
    if y < 0:
        return x - bits(x, ~y)
    found, low = torch.zeros_like(x), 0
    while y >> low:
        low += ((y >> low) & -(y >> low)).bit_length() - 1  # the next one that is set
        high = low + ((~(y >> low)) & -(~(y >> low))).bit_length() - 1  # the next one behind it that is not
        found = found + left_shift(remainder(right_shift(x, low), 2 ** (high - low)), low)
        low = high
    return found


@formula("__or__.Scalar bitwise_or.Scalar")
def any_bits(x: Tensor, y: int) -> Tensor:
    """Compute the bits that whole numbers or y have."""
    return x + y - bits(x, y)


@formula("__xor__.Scalar bitwise_xor.Scalar")
def other_bits(x: Tensor, y: int) -> Tensor:
    """Compute the bits that either whole numbers or y have."""
    return x + y - 2 * bits(x, y)


@formula("copysign.Tensor copysign.Scalar")
def copysign(x: Tensor, y: Any) -> Tensor:
    """Compute |x| with the sign of y; zeros count as positive."""
    y = y if isinstance(y, Tensor) else torch.full_like(x, y)
    return torch.where(y < 0, -x.abs(), x.abs())


@formula("signbit.default")
def signbit(x: Tensor) -> Tensor:
    """Compute whether numbers are negative; zeros count as positive."""
    return x < 0


@formula("fmax.default")
def fmax(x: Tensor, y: Tensor) -> Tensor:
    """Compute the larger of two numbers, the other where one is NaN."""
    return torch.maximum(torch.where(torch.isnan(x), y, x), torch.where(torch.isnan(y), x, y))


@formula("fmin.default")
def fmin(x: Tensor, y: Tensor) -> Tensor:
    """Compute the smaller of two numbers, the other where one is NaN."""
    return torch.minimum(torch.where(torch.isnan(x), y, x), torch.where(torch.isnan(y), x, y))


@formula("exp2.default special_exp2.default")
def exp2(x: Tensor) -> Tensor:
    """Compute 2^x."""
    return torch.exp(real(x) * math.log(2))


@formula("log10.default")
def log10(x: Tensor) -> Tensor:
    """Compute the logarithm to base 10."""
    return torch.log(real(x)) / math.log(10)


@formula("log2.default")
def log2(x: Tensor) -> Tensor:
    """Compute the logarithm to base 2."""
    return torch.log(real(x)) / math.log(2)


@formula("ldexp.Tensor")
def ldexp(x: Tensor, power: Tensor) -> Tensor:
    """Compute x · 2^power."""
    return x * exp2(power)


@formula("logaddexp.default")
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Compute log(e^x + e^y) without overflow."""
    distance = (x - y).abs()
    return torch.maximum(x, y) + torch.log1p(torch.exp(-torch.where(torch.isnan(distance), 0.0, distance)))


@formula("logaddexp2.default")
def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    """Compute log₂(2^x + 2^y) without overflow."""
    return logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


@formula("xlogy.Tensor special_xlogy.default")
def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """Compute x · log(y), and 0 where x is 0."""
    return torch.where(x == 0, 0.0, x * torch.log(real(y)))


@formula("special_xlog1py.default")
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """Compute x · log(1 + y), and 0 where x is 0."""
    return torch.where(x == 0, 0.0, x * torch.log1p(real(y)))


@formula("hypot.default")
def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Compute the length of (x, y)."""
    return torch.sqrt(x * x + y * y)


@formula("pow.Tensor_Tensor float_power.Tensor_Tensor")
def power(x: Tensor, y: Tensor) -> Tensor:
    """Compute x^y; of a negative number there are whole powers only, and 0 has powers above 0, or 0⁰ = 1."""
    whole = torch.floor(y)
    # Of what is computed from parameters numbers follow these, and conditions would not.
    nothing = torch.where(x < 0, y - whole, 0.0) != 0  # whose logarithm is NaN, too
    size = torch.exp(y * torch.log(torch.where(nothing, x, x.abs().clamp(min=TINY))))
    size = torch.where(torch.where(x == 0, y, 0.0) > 0, 0.0, size)
    sign = torch.where(whole - 2 * torch.floor(whole / 2) != 0, -1.0, 1.0)
    return torch.where(x < 0, sign * size, size)


@formula("pow.Scalar")
def power_of(x: float, y: Tensor) -> Tensor:
    """Compute the power of a number."""
    return torch.exp(y * math.log(x)) if x > 0 else power(torch.full_like(y, x), y)


@formula("heaviside.default")
def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """Compute 1 where x is positive, ``values`` where it is 0."""
    return torch.where(x == 0, values, (x > 0).to(values.dtype))


@formula("isclose.default")
def isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Compute whether numbers lie within a distance."""
    near = (x - y).abs() <= atol + rtol * y.abs()
    return near | (torch.isnan(x) & torch.isnan(y)) if equal_nan else near


@formula("angle.default")
def angle(x: Tensor) -> Tensor:
    """Compute the angle of real numbers: π where they are negative."""
    return torch.where(x < 0, math.pi, 0.0 * real(x))


@formula("resize.default")
def resize(x: Tensor, size: list[int], *, memory_format: Any = None) -> Any:
    """Give a tensor another shape of as many elements."""
    return x.reshape(size) if x.numel() == math.prod(size) else NotImplemented


@formula("erfinv.default")
def erfinv(x: Tensor) -> Tensor:
    """Compute the inverse of erf (M. Giles, Approximating the erfinv function, 2010, single precision)."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = w - 2.5, torch.sqrt(w.clamp(min=0)) - 3
    inner = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
             -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
    outer = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
             0.00943887047, 1.00167406, 2.83297682)  # fmt: skip
    return x * torch.where(w < 5, polynomial(inner, near.clamp(max=2.5)), polynomial(outer, far.clamp(min=-1.0)))


def polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Compute a polynomial by Horner's rule, the highest power first."""
    y = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        y = y * x + coefficient
    return y


LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Coefficients for g = 7 (C. Lanczos, A precision approximation of the gamma function, 1964)."""


@formula("lgamma.default special_gammaln.default")
def lgamma(x: Tensor) -> Tensor:
    """Compute log |Γ(x)|, of numbers below 1/2 by the reflection Γ(x)·Γ(1 − x) = π/sin(πx)."""
    x = real(x)
    small = x < 0.5
    z = torch.where(small, -x, x - 1)
    total = torch.full_like(z, LANCZOS[0])
    for i, coefficient in enumerate(LANCZOS[1:], 1):
        total = total + coefficient / (z + i)
    t = z + 7.5
    y = 0.5 * math.log(2 * math.pi) + (z + 0.5) * torch.log(t) - t + torch.log(total)
    reflected = math.log(math.pi) - torch.log(torch.sin(math.pi * x).abs()) - y
    return torch.where(small, torch.where(small, reflected, 0.0), y)


@formula("digamma.default special_psi.default special_digamma.default")
def digamma(x: Tensor) -> Tensor:
    """Compute Γ'/Γ: six steps up, then the asymptotic series; of numbers below 0 by reflection."""
    x = real(x)
    z = torch.where(x < 0, 1 - x, x)
    y = torch.zeros_like(z)
    for i in range(6):
        y = y - 1 / (z + i)
    z = z + 6
    w = 1 / (z * z)
    y = y + torch.log(z) - 0.5 / z - w * (1 / 12 - w * (1 / 120 - w / 252))
    return torch.where(x < 0, y - math.pi / torch.tan(math.pi * x), y)


@formula("polygamma.default special_polygamma.default")
def polygamma(n: int, x: Tensor) -> Any:
    """Compute derivatives of digamma, the first at most."""
    if n == 0:
        return digamma(x)
    if n > 1:
        return NotImplemented
    z = torch.where(x < 0, 1 - x, x)
    y = torch.zeros_like(z)
    for i in range(6):
        y = y + 1 / ((z + i) * (z + i))
    z = z + 6
    w = 1 / (z * z)
    y = y + 1 / z + w / 2 + w / z * (1 / 6 - w * (1 / 30 - w / 42))
    sine = torch.sin(math.pi * x) / math.pi
    return torch.where(x < 0, 1 / (sine * sine) - y, y)
