"""Formulas of orthogonal polynomials: Chebyshev's in closed form, the others by recurrence up to a known degree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .formulas import formula

MOST_DEGREE = 64
"""Recurrences of more steps would become too many operations."""


def overloads(name: str) -> str:
    """Return the overloads of a polynomial of numbers and degrees, either of which may be one number."""
    return " ".join(f"special_{name}.{end}" for end in ("default", "x_scalar", "n_scalar"))


def angle(x: Tensor) -> Tensor:
    """Return t where |x| = cos t up to 1, and |x| = cosh t beyond."""
    size = x.abs()
    return torch.where(size > 1, torch.acosh(size.clamp(min=1)), torch.acos(size.clamp(max=1)))


def first(x: Tensor, n: Tensor) -> Tensor:
    """Compute cos(n·arccos x), and its continuation beyond 1."""
    t = angle(x)
    return signed(x, n, torch.where(x.abs() > 1, torch.cosh(n * t), torch.cos(n * t)))


def second(x: Tensor, n: Tensor) -> Tensor:
    """Compute sin((n + 1)·t)/sin t for x = cos t, and its continuation beyond 1."""
    t = angle(x)
    outside, at_one = x.abs() > 1, t < 1e-6
    above = torch.where(outside, torch.sinh((n + 1) * t), torch.sin((n + 1) * t))
    below = torch.where(outside, torch.sinh(t), torch.sin(t))
    return signed(x, n, torch.where(at_one, n + 1, above / torch.where(at_one, 1.0, below)))


def third(x: Tensor, n: Tensor) -> Tensor:
    """Compute cos((n + ½)·t)/cos(t/2) for x = cos t, the difference of two of the second kind."""
    return second(x, n) - torch.where(n > 0, second(x, n - 1), 0.0)


def fourth(x: Tensor, n: Tensor) -> Tensor:
    """Compute sin((n + ½)·t)/sin(t/2) for x = cos t, the sum of two of the second kind."""
    return second(x, n) + torch.where(n > 0, second(x, n - 1), 0.0)


def signed(x: Tensor, n: Tensor, y: Tensor) -> Tensor:
    """Return y with the sign that a polynomial of degree n has at negative x, and 0 for negative degrees."""
    odd = n - 2 * torch.floor(n / 2) != 0
    return torch.where(n < 0, 0.0, torch.where((x < 0) & odd, -y, y))


def of_any_degree(polynomial: Callable[[Tensor, Tensor], Tensor], shifted: bool) -> Callable[..., Tensor]:
    """Return the formula of a polynomial in closed form, of 2x − 1 where it is shifted."""

    def compute(x: Any, n: Any) -> Tensor:
        x, n = (v if isinstance(v, Tensor) else torch.full((1,), float(v)) for v in (x, n))
        return polynomial(2 * x - 1 if shifted else x, torch.trunc(n.float()))

    return compute


for _letter, _polynomial in zip("tuvw", (first, second, third, fourth), strict=True):
    formula(overloads(f"chebyshev_polynomial_{_letter}"))(of_any_degree(_polynomial, False))
    formula(overloads(f"shifted_chebyshev_polynomial_{_letter}"))(of_any_degree(_polynomial, True))


def recurring(step: Callable[[int, Tensor, Any, Any], Tensor]) -> Callable[..., Any]:
    """Return the formula of polynomials by a recurrence: (k, x, p_k, p_(k−1)) → p_(k+1)."""

    def compute(x: Tensor, n: float) -> Any:
        if isinstance(n, Tensor) or n > MOST_DEGREE:
            return NotImplemented
        present, before = torch.ones_like(x), torch.zeros_like(x)
        for k in range(int(n)):
            present, before = step(k, x, present, before), present
        return present if n >= 0 else before

    return compute


for _name, _step in {
    "hermite_polynomial_h": lambda k, x, p, q: 2 * x * p - 2 * k * q,
    "hermite_polynomial_he": lambda k, x, p, q: x * p - k * q,
    "laguerre_polynomial_l": lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1),
    "legendre_polynomial_p": lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1),
}.items():
    formula(f"special_{_name}.n_scalar")(recurring(_step))
