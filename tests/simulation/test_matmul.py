"""Matrix products of two activations: exact sums of any length, and the gradients of the real product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intact8.recipe.scheme import Scheme
from intact8.simulation.ops.matmul import matrix_product
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.scales.quant_points import QuantPoint


def quantized(q: Tensor, scale: float = 0.1, zero_point: int = 128) -> Quantized:
    point = QuantPoint("x", Scheme(), ["x"])
    point.assign(scale, zero_point)
    return Quantized(q, point)


def integers(*shape: int, zero_point: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator).float() - zero_point


@pytest.mark.parametrize("terms", [3, 258, 259, 5000])
def test_sums_of_any_length_are_exact(terms: int) -> None:
    x, w = integers(2, 3, 4, terms, zero_point=0, seed=0), integers(2, 1, terms, 5, zero_point=0, seed=1)
    x[0, 0, 0], w[0, 0, :, 0] = 255, 255
    y = matrix_product(quantized(x, zero_point=0), quantized(w, zero_point=0), torch.tensor(1.0))
    assert torch.equal(y.double(), torch.matmul(x.double(), w.double()))
    assert y[0, 0, 0, 0] == 255 * 255 * terms


@pytest.mark.parametrize("shape", [(2, 3, 7, 4), (1, 3, 7, 4), (3, 7, 4)], ids=str)
def test_gradients_are_those_of_the_product(shape: tuple[int, ...]) -> None:
    x = integers(2, 3, 5, 7, zero_point=128, seed=0).requires_grad_()
    w, ratio = integers(*shape, zero_point=100, seed=1).requires_grad_(), torch.tensor(0.01, requires_grad=True)
    y = matrix_product(quantized(x), quantized(w, zero_point=100), ratio)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((y * weight).sum(), [x, w, ratio])
    expected = torch.autograd.grad((torch.matmul(x, w) * ratio * weight).sum(), [x, w, ratio])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_only_what_is_wanted_is_computed() -> None:
    x, w = integers(5, 7, zero_point=128, seed=0), integers(7, 2, zero_point=128, seed=1).requires_grad_()
    matrix_product(quantized(x), quantized(w), torch.tensor(0.01)).sum().backward()
    assert w.grad is not None and x.grad is None
