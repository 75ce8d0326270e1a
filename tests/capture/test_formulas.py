"""Operators that are captured as formulas of others, as gathers and as scatters, compared with torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture import formulas

from .helpers import check
from .test_operators import Function

WAVES = torch.randn(4, 6, 4, dtype=torch.cfloat, generator=torch.Generator().manual_seed(2))
LU = torch.linalg.lu_factor(torch.randn(6, 6, generator=torch.Generator().manual_seed(3)))


def modes(x: Tensor) -> Tensor:
    """The lowest frequencies, written into zeros, as Fourier neural operators do."""
    spectrum, y = torch.fft.rfft2(x), torch.zeros(x.shape[0], 4, 6, 4, dtype=torch.cfloat)
    y[:, :, :2, :2] = spectrum[:, :, :2, :2] * (1 + 2j)
    y[:, :, -2:, :2] = spectrum[:, :, -2:, :2]
    return y


def written(x: Tensor) -> Tensor:
    """Parts written into new tensors, through views of copies, and one after another."""
    y, z = torch.zeros(x.shape[0], 4, 6, 6), torch.empty_like(x)
    y[:, 1:3] = x[:, :2] * 2
    z[:, ::2], z[:, 1::2] = x[:, :2], x[:, 2:]
    w = x * 2
    w.view(x.shape[0], -1)[:, 3:7] = -1
    w.transpose(1, 2)[:, 0] += 1
    for i in range(1, 6):
        w[..., i] = w[..., i] + w[..., i - 1]
    return y + z + w


IMAGE = {
    "sort": lambda x, m: x.sort(1, descending=True).values + x.argsort(3).float() + (x > 0).sort(2).values,
    "topk_of_many": lambda x, m: x.flatten(1).topk(40).values,
    "medians": lambda x, m: x.median(1).values + x.kthvalue(2, 2)[0].mean((1, 2))[:, None, None] + x.nanmedian(1)[0],
    "quantile": lambda x, m: x.quantile(0.3, 1),
    "quantiles": lambda x, m: (
        x.quantile(torch.tensor([0.1, 0.8]), 2).sum(0) + (x + 1).log().nanquantile(0.7, -1, interpolation="midpoint")
    ),
    "prod": lambda x, m: x.prod(1) + x.cumprod(2).sum(1),
    "running": lambda x, m: x.cummax(3).values + x.cummin(2)[1] + x.logcumsumexp(1),
    "scatter": lambda x, m: (
        x.scatter(2, x.argmax(2, keepdim=True), 3.0) + torch.zeros_like(x).scatter(1, x.argsort(1), x)
    ),
    "scatter_add": lambda x, m: x.scatter_add(3, x.argsort(3) // 2, x).scatter_add(2, x.argsort(2)[:, :2, :3, :5], x),
    "scatter_reduce": lambda x, m: torch.cat(
        [
            x.scatter_reduce(3, x.argsort(3) // 2, x * 2, how, include_self=own)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        ],
        1,
    ),
    "index_writes": lambda x, m: (
        x.index_add(2, m.index, x[:, :, :4], alpha=0.5)
        + x.index_copy(1, m.index, x.roll(1, 1))
        + x.index_fill(3, m.index, 0.25)
        + x.index_reduce(2, m.index, x[:, :, :4], "amax")
    ),
    "index_put_mask": lambda x, m: x.index_put((x > 0.5,), torch.tensor(-1.0)),
    "index_put_rows": lambda x, m: x.index_put((torch.arange(x.shape[0]), x.mean((2, 3)).argmax(1)), x[:, 0]),
    "diagonals": lambda x, m: x.diagonal(0, 2, 3) + torch.diagonal_scatter(x, x[..., 0], 0, 2, 3).sum((1, 2))[:, None],
    "written_slices": lambda x, m: (
        torch.slice_scatter(x, x[:, :2], 1, 0, 4, 2) + torch.select_scatter(x, x[:, 0, :4], 2, 1)[:, :1]
    ),
    "strided": lambda x, m: x.as_strided((x.shape[0], 4, 3), (144, 7, 2), 1),
    "in_place_constants": lambda x, m: (x * 1).zero_() + (x * 1).fill_(0.5) + (x * 1).copy_(m.mean),
    "remainders": lambda x, m: (
        torch.fmod(x, x.roll(1, 1).abs() + 1) + x % 0.3 + torch.div(x, 0.7, rounding_mode="floor")
    ),
    "whole": lambda x, m: x.argmax(1) // 3 + (-x).argmax(1) % 2 + torch.div(-x.argmax(1), 2, rounding_mode="trunc"),
    "angles": lambda x, m: torch.atan2(x, x.roll(1, 1)) + torch.hypot(x, m.mean) + torch.copysign(x, m.mean - 1),
    "nan_aware": lambda x, m: torch.fmax(x, x.log()) + torch.fmin(m.mean, x.sqrt()),
    "powers": lambda x, m: (x.abs() ** x) + 2.0**x + torch.exp2(x) + torch.ldexp(x, m.index.float().reshape(4, 1, 1)),
    "log_sums": lambda x, m: torch.logaddexp(x, x.roll(1, 1)) + torch.logaddexp2(x, m.mean) + torch.xlogy(x, m.mean),
    "gammas": lambda x, m: torch.lgamma(x) + torch.digamma(x + 9) + torch.erfinv(x.tanh()),
    "steps": lambda x, m: torch.heaviside(x, m.mean) + torch.isclose(x, x.roll(1, 1), 0.5) + torch.signbit(x).float(),
    "buckets": lambda x, m: (
        torch.bucketize(x, m.index.float().sort()[0]) + torch.searchsorted(m.mean[:, 0, 0].sort()[0], x)
    ),
    "antialiased": lambda x, m: (
        F.interpolate(x, (3, 4), mode="bilinear", antialias=True)
        + F.interpolate(x, (3, 4), mode="bicubic", antialias=True)
    ),
    "places_of_the_largest": lambda x, m: (
        F.max_pool2d(x, (3, 2), 2, 1, return_indices=True)[1],
        F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    ),
    "norms": lambda x, m: (
        torch.linalg.vector_norm(x, 3, 1)
        + torch.linalg.vector_norm(x, -math.inf, 1)
        + torch.cdist(x, x.roll(1, 1)).mean(1)
    ),
    "equations": lambda x, m: (
        torch.linalg.inv(x + 4 * torch.eye(6)) + torch.linalg.solve(x + 4 * torch.eye(6), x) + x.det()[..., None, None]
    ),
    "sampled": lambda x, m: torch.cat(
        [
            F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), mode, padding, corners)
            for mode, padding, corners in (
                ("bilinear", "zeros", False),
                ("nearest", "border", True),
                ("bicubic", "reflection", False),
            )
        ],
        1,
    ),
    "sampled_volumes": lambda x, m: F.grid_sample(
        x[:, None], x[:, :3, None].permute(0, 2, 3, 4, 1), align_corners=True
    ),
    "spectra": lambda x, m: (
        torch.stft(x.flatten(1), 16, 8, window=torch.hann_window(16), return_complex=True).abs(),
        torch.view_as_real(
            torch.stft(x[:, 0].flatten(1), 8, 3, 6, torch.hann_window(6), center=False, return_complex=True)
        ),
        torch.fft.rfft(x).unsqueeze(1).imag,
    ),
    "transforms": lambda x, m: (
        torch.fft.fft2(x, norm="ortho").imag
        + torch.fft.ifftn(torch.fft.fftn(x, dim=(1, 2, 3)), dim=(1, 2, 3)).real
        + torch.fft.hfftn(x, dim=(1, 3), norm="ortho").narrow(1, 0, 4).narrow(3, 0, 6)
        + torch.fft.ihfft(x, n=10, dim=2).abs()
    ),
    "spectral_filter": lambda x, m: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho") * WAVES, (6, 6), norm="ortho"),
    "spectral_products": lambda x, m: torch.fft.irfft(
        torch.einsum("bixy,oixy->boxy", torch.fft.rfft(x), WAVES[None]), 6
    ),
    "complex_arithmetic": lambda x, m: (
        (torch.cat([torch.fft.fft(x) / (torch.complex(x, x) + 3), torch.complex(x, x.roll(1, 1))], 1) - 1j * m.mean[0])
        .conj()
        .exp()
        .abs(),
        torch.polar(torch.fft.rfft(x).abs(), torch.fft.rfft(x).angle()).real,
        torch.fft.ifftshift(torch.fft.fftshift(torch.fft.fft(x), 3) * 0.5, 3).real,
    ),
    "rotary": lambda x, m: torch.view_as_real(torch.view_as_complex(x.unflatten(3, (3, 2))) * WAVES[0, :, :3]).flatten(
        3
    ),
    "back_to_signals": lambda x, m: torch.istft(
        torch.stft(x.flatten(1), 16, 4, window=torch.hann_window(16), return_complex=True),
        16,
        4,
        window=torch.hann_window(16),
        length=144,
    ),
    "written_modes": lambda x, m: torch.fft.irfft2(modes(x), (6, 6)),
    "written_parts": lambda x, m: written(x),
    "polynomials": lambda x, m: (
        torch.special.chebyshev_polynomial_t(x, m.mean.floor())
        + torch.special.chebyshev_polynomial_u(x, 3)
        + torch.special.chebyshev_polynomial_v(x, 2)
        + torch.special.shifted_chebyshev_polynomial_w(x, 4)
        + torch.special.hermite_polynomial_h(x, 3)
        + torch.special.hermite_polynomial_he(x, 1)
        + torch.special.laguerre_polynomial_l(x, 2)
        + torch.special.legendre_polynomial_p(x, 4)
    ),
    "decomposed_equations": lambda x, m: (
        torch.linalg.lu_solve(*LU, x) + torch.linalg.lu_solve(*LU, x, adjoint=True) + torch.matrix_exp(x)
    ),
    "reflections": lambda x, m: torch.ormqr(x, x[..., 0], x.roll(1, 1)),
    "log_determinant": lambda x, m: torch.logdet(x @ x.mT + torch.eye(6)),
    "pools_that_stand_out": lambda x, m: (
        F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)[1],
        F.max_pool2d(x, (2, 3), 4, 0, ceil_mode=True, return_indices=True)[1],
        F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, divisor_override=5),
    ),
    "pools_without_a_batch": lambda x, m: (
        F.adaptive_avg_pool1d(x[:, 0, 0], 4)
        + F.max_pool1d(x[:, 0, 0], 3, 1)
        + F.avg_pool1d(x[:, 1, 0], 3, 1)
        + F.adaptive_max_pool1d(x[:, 1, 0], 4)
    ),
    "pooling_backwards": lambda x, m: torch.ops.aten.max_pool2d_with_indices_backward(
        x[..., ::2, ::2], x, [2, 2], [2, 2], [0, 0], [1, 1], False, F.max_pool2d(x, 2, return_indices=True)[1]
    ),
    "dropout_of_nothing": lambda x, m: F.dropout2d(F.dropout(x, 0.0, True), 0.0, True) * 2,
    "infinite_limits": lambda x, m: (x / x.relu() == math.inf).float() + (x < math.inf) + (x.log() != -math.inf),
}


@pytest.mark.parametrize("name", IMAGE)
def test_function_of_an_image(name: str) -> None:
    if name.startswith("quantile") and torch.__version__.startswith("2.8."):
        pytest.skip("torch 2.8 does not export quantiles")
    torch.manual_seed(1)
    check(Function(IMAGE[name]), torch.randn(2, 4, 6, 6))


BATCH = {
    "index_put_known": lambda x, m: x.index_put((m.index[:2, None] % 2, m.index[:2]), x[0, 0].sum(), accumulate=True),
    "computed_indices": lambda x, m: x[:, x[0, 0].argmax(0) % 4, 1:] + x.flatten(0, 1)[x[0, 0].argmax(0), 1:],
    "index_select": lambda x, m: x.index_select(2, x[0, 0].argmax(0)),
    "masked_scatter": lambda x, m: x.masked_scatter(x > 0, x * 2),
    "resize": lambda x, m: x.clone().resize_(2, 4, 36) * 2,
    "nonzero_static": lambda x, m: x.relu().nonzero_static(size=9) + x[:, 0].relu().nonzero_static(size=99).sum(),
    "computed_weights": lambda x, m: F.layer_norm(x, (6,), x[0, 0, 0], x[0, 0, 1]) + F.embedding(m.index, x[0, 0])[0],
}


@pytest.mark.parametrize("name", BATCH)
def test_function_of_a_whole_batch(name: str) -> None:
    torch.manual_seed(1)
    check(Function(BATCH[name]), torch.randn(2, 4, 6, 6), batches=(2,))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy_in_parts(reduction: str) -> None:
    reason = "this torch has no linear_cross_entropy"
    linear_cross_entropy = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options", reason=reason)
    weight, target = torch.randn(7, 5), torch.tensor([1, 0, 6])
    options = linear_cross_entropy.LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(x: Tensor, m: Any) -> Tensor:
        return F.linear_cross_entropy(x, weight, target, reduction=reduction, options=options)

    check(Function(loss), torch.randn(3, 5), batches=(3,))


@pytest.mark.parametrize("number", [0, 1, 37, 255, 2**40 + 5, -1, -4, -300])
def test_bits_of_whole_numbers_and_a_fixed_one(number: int) -> None:
    x = torch.cat([torch.arange(-300, 300), torch.tensor([2**41 + 77, -(2**41) + 3])])
    assert torch.equal(formulas.bits(x, number), x & number)
    assert torch.equal(formulas.any_bits(x, number), x | number)
    assert torch.equal(formulas.other_bits(x, number), x ^ number)


def test_indices_by_bits_are_exact_on_every_engine() -> None:
    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, 4)

        def forward(self, i: Tensor) -> Tensor:
            y: Tensor = self.out(self.table(((i * 73) ^ 21) & 63).mean(1) + self.table((i | 8) >> 2 & 15).amax(1))
            return y

    torch.manual_seed(0)
    ids = torch.randint(0, 1000, (64, 5))
    program = intact8.quantize(Hashed().eval(), [ids])
    assert intact8.verify(program, [ids]).mismatches == 0
