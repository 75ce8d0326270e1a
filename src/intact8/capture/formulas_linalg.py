"""Formulas of linear algebra: distances, products of several tensors, systems of equations of a few unknowns."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .formulas import formula

MOST_UNKNOWNS = 16
"""Systems of more unknowns would become too many operations."""


def norm(x: Tensor, p: float, dims: list[int], keepdim: bool = False) -> Tensor:
    """Return the norm of order p over dimensions."""
    size = x.abs()
    if math.isinf(p):
        return (torch.amax if p > 0 else torch.amin)(size, dims, keepdim)
    if p == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim)
    if p == 1:
        return size.sum(dims, keepdim)
    if p == 2:
        return torch.sqrt((x * x).sum(dims, keepdim))
    return torch.pow(torch.pow(size, p).sum(dims, keepdim), 1 / p)


@formula("linalg_vector_norm.default")
def vector_norm(
    x: Tensor, ord: float = 2, dim: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Compute a vector norm of any order."""
    return norm(x, ord, list(range(x.ndim)) if dim is None else list(dim), keepdim)


@formula("dist.default")
def dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """Compute the norm of a difference."""
    difference = x - y
    return norm(difference, p, list(range(difference.ndim)))


@formula("_cdist_forward.default")
def cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Tensor:
    """Compute the distances of all rows of x to all rows of y."""
    return norm(x[..., :, None, :] - y[..., None, :, :], p, [-1])


@formula("_euclidean_dist.default")
def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Compute the distances of all rows of x to all rows of y."""
    return cdist(x, y, 2.0, None)


@formula("_pdist_forward.default pdist.default")
def pdist(x: Tensor, p: float = 2) -> Tensor:
    """Compute the distances of all pairs of rows."""
    count = x.shape[0]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    left, right = (torch.stack([x[pair[side]] for pair in pairs]) for side in (0, 1))
    return norm(left - right, p, [-1])


@formula("addbmm.default")
def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Add the sum of matrix products."""
    return beta * x + alpha * torch.matmul(a, b).sum(0)


@formula("_trilinear.default")
def trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    dims: list[int],
    _: int = 1,
) -> Tensor:
    """Compute the sum over dimensions of products of three tensors that broadcast."""
    parts = []
    for x, places in ((a, expand1), (b, expand2), (c, expand3)):
        for place in places:
            x = x.unsqueeze(place)
        parts.append(x)
    return (parts[0] * parts[1] * parts[2]).sum(dims)


def eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solution of a @ x = b by Gauss and Jordan with the largest pivots, and the determinant of a."""
    count = a.shape[-1]
    rows = torch.cat([a, b], -1)
    index = torch.arange(count, device=a.device)
    determinant = torch.ones_like(a[..., 0, 0])
    for k in range(count):
        size = torch.where(index >= k, rows[..., k].abs(), -1.0)
        largest = size.argmax(-1, keepdim=True)
        at, here = (index == largest).to(a.dtype)[..., None], (index == k).to(a.dtype)[:, None]
        pivot, present = (rows * at).sum(-2, keepdim=True), rows[..., k : k + 1, :]
        swapped = rows + (at - here) * (present - pivot)
        determinant = determinant * pivot[..., 0, k] * torch.where(largest[..., 0] == k, 1.0, -1.0)
        pivot = pivot / pivot[..., k : k + 1]
        rows = (swapped - swapped[..., k : k + 1] * pivot) * (1 - here) + pivot * here
    return rows[..., count:], determinant


def few(a: Tensor) -> bool:
    """Return whether a system is small enough."""
    return isinstance(a.shape[-1], int) and a.shape[-1] <= MOST_UNKNOWNS


def identity(a: Tensor) -> Tensor:
    """Return the identity in the shape of matrices."""
    return torch.eye(a.shape[-1], device=a.device) + torch.zeros_like(a)


@formula("linalg_inv_ex.default")
def inverse(a: Tensor, *, check_errors: bool = False) -> Any:
    """Compute the inverse of small matrices."""
    if not few(a):
        return NotImplemented
    x, determinant = eliminated(a, identity(a))
    return x, (determinant * 0).int()


@formula("_linalg_solve_ex.default")
def solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """Solve small systems of equations."""
    if not few(a):
        return NotImplemented
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and tuple(b.shape) == tuple(a.shape[:-1]))
    right = b[..., None] if vector else b if left else b.mT
    shape = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    a, right = a.expand([*shape, *a.shape[-2:]]), right.expand([*shape, *right.shape[-2:]])
    x, determinant = eliminated(a if left else a.mT, right)
    whole = (determinant * 0).int()
    return (x[..., 0] if vector else x if left else x.mT), a, whole, whole


@formula("_linalg_det.default")
def det(a: Tensor) -> Any:
    """Compute the determinant of small matrices."""
    return (eliminated(a, a)[1], a, a) if few(a) else NotImplemented


@formula("_linalg_slogdet.default")
def slogdet(a: Tensor) -> Any:
    """Compute sign and logarithm of the determinant of small matrices."""
    if not few(a):
        return NotImplemented
    determinant = eliminated(a, a)[1]
    return torch.sign(determinant), torch.log(determinant.abs()), a, a


@formula("linalg_solve_triangular.default")
def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """Solve small systems of which one triangle is known."""
    if not few(a):
        return NotImplemented
    a = a.triu() if upper else a.tril()
    if unitriangular:
        eye = identity(a)
        a = a * (1 - eye) + eye
    return solve(a, b, left=left)[0]


@formula("cholesky_inverse.default")
def cholesky_inverse(a: Tensor, upper: bool = False) -> Any:
    """Compute the inverse of a @ aᵀ for a triangle a."""
    if not few(a):
        return NotImplemented
    a = a.triu() if upper else a.tril()
    return eliminated(a.mT @ a if upper else a @ a.mT, identity(a))[0]


@formula("cholesky_solve.default")
def cholesky_solve(b: Tensor, a: Tensor, upper: bool = False) -> Any:
    """Solve a @ aᵀ @ x = b for a triangle a."""
    if not few(a):
        return NotImplemented
    a = a.triu() if upper else a.tril()
    return solve(a.mT @ a if upper else a @ a.mT, b)[0]


@formula("linalg_householder_product.default")
def householder_product(a: Tensor, tau: Tensor) -> Any:
    """Compute the product of reflections I − τ·v·vᵀ."""
    rows, columns = a.shape[-2:]
    index = torch.arange(rows, device=a.device)
    eye = torch.eye(rows, columns, device=a.device) + torch.zeros_like(a)
    y = eye
    for k in reversed(range(tau.shape[-1])):
        v = torch.where(index > k, a[..., k], (index == k).to(a.dtype))[..., None]
        y = y - tau[..., k, None, None] * v @ (v.mT @ y)
    return y


@formula("ormqr.default")
def times_reflections(a: Tensor, tau: Tensor, b: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Compute the product of a matrix with all reflections of a QR decomposition."""
    square = F.pad(a, [0, a.shape[-2] - a.shape[-1]])
    q: Tensor = householder_product(square, tau)
    q = q.mT if transpose else q
    return q @ b if left else b @ q


@formula("linalg_lu_solve.default")
def lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Any:
    """Solve small systems of a known decomposition P·L·U, from their product."""
    if not few(lu):
        return NotImplemented
    count, index = lu.shape[-1], torch.arange(lu.shape[-1], device=lu.device)
    a = (lu.tril(-1) + identity(lu)) @ lu.triu()
    for k in reversed(range(count)):
        at, here = ((index == place).to(a.dtype)[..., None] for place in (pivots[..., k : k + 1].long() - 1, k))
        pivot, present = (a * at).sum(-2, keepdim=True), a[..., k : k + 1, :]
        a = a + (at - here) * (present - pivot)
    return solve(a.mT if adjoint else a, b, left=left)[0]


@formula("linalg_matrix_exp.default")
def matrix_exp(a: Tensor) -> Tensor:
    """Compute e^a by Taylor's series of a/2⁸, squared eight times."""
    part = a * 2.0**-8
    total = eye = identity(a)
    for k in range(8, 0, -1):
        total = eye + part @ total / k
    for _ in range(8):
        total = total @ total
    return total


@formula("logdet.default")
def logdet(a: Tensor) -> Any:
    """Compute the logarithm of the determinant of small matrices."""
    return torch.log(eliminated(a, a)[1]) if few(a) else NotImplemented
