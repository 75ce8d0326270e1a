"""Formulas of indexing, sorting and running extremes by gather, scatter and sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .formulas import formula, logaddexp

LEAST = torch.finfo(torch.float32).min


def along(index: Tensor, dim: int, like: Tensor) -> Tensor:
    """Return indices of one dimension, for gather and scatter, in the shape of ``like``."""
    shape = [1] * like.ndim
    shape[dim] = index.numel()
    return index.reshape(shape).expand(like.shape)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Compute ``torch.take_along_dim`` for any number of samples: torch's own is exported for the example's."""
    if dim is None:
        return torch.gather(input.reshape(-1), 0, indices.reshape(-1))
    dim %= input.ndim
    sizes = [a if b == 1 else b for a, b in zip(input.shape, indices.shape, strict=True)]
    before, behind = sizes[:dim], sizes[dim + 1 :]
    values = input.expand([*before, input.shape[dim], *behind])
    return torch.gather(values, dim, indices.expand([*before, indices.shape[dim], *behind]))


@formula("index_add.default")
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Add slices to those of the indices."""
    return torch.scatter_add(x, dim, along(index, dim, source), source if alpha == 1 else source * alpha)


@formula("index_copy.default")
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Overwrite the slices of the indices."""
    return torch.scatter(x, dim, along(index, dim, source), source)


@formula("index_fill.int_Scalar index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Fill the slices of the indices."""
    places = torch.arange(x.shape[dim], device=x.device)
    filled = (places[:, None] == index.reshape(1, -1)).any(1)
    return torch.where(along(filled, dim, x), value, x)


@formula("index_reduce.default")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Reduce slices with those of the indices."""
    return torch.scatter_reduce(x, dim, along(index, dim, source), source, reduce, include_self=include_self)


@formula("put.default")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Overwrite elements, or add to them, by their places in the flattened tensor."""
    write = torch.scatter_add if accumulate else torch.scatter
    return write(x.reshape(-1), 0, index.reshape(-1), source.reshape(-1)).reshape(x.shape)


def flattened(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, list[int], tuple[int, ...], int]:
    """Return what indexing some dimensions with integers is along one.

    Returns:
        x with the indexed dimensions in front and merged; places along those, flat; the order of dimensions that was
        made; the shape of the indices; where their dimensions stand in the result.
    """
    dims = [d for d, i in enumerate(indices) if i is not None]
    places = torch.broadcast_tensors(*[i for i in indices if i is not None])  # type: ignore[no-untyped-call]
    order = [*dims, *(d for d in range(x.ndim) if d not in dims)]
    flat = torch.zeros_like(places[0])
    for d, place in zip(dims, places, strict=True):
        flat = flat * x.shape[d] + torch.where(place < 0, place + x.shape[d], place)
    merged = x.permute(order)
    merged = merged.reshape([-1, *merged.shape[len(dims) :]])
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    return merged, flat.reshape(-1), order, tuple(places[0].shape), dims[0] if neighbours else 0


@formula("index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Index with integers that the network computes."""
    merged, flat, _, shape, at = flattened(x, indices)
    found = torch.gather(merged, 0, along(flat, 0, merged[:1].expand(flat.shape[0], *merged.shape[1:])))
    found = found.reshape([*shape, *merged.shape[1:]])
    rank = len(shape)
    return found.permute([*range(rank, rank + at), *range(rank), *range(rank + at, found.ndim)])


@formula("embedding.default")
def embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    """Return rows of a table that the network computes."""
    return index(weight, [indices])


@formula("index_put.default _unsafe_index_put.default")
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Overwrite elements, or add to them, where indices or a mask say so."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and given[0][1].dtype == torch.bool:
        first, mask = given[0]
        behind = x.ndim - first - mask.ndim
        mask = mask.reshape([*[1] * first, *mask.shape, *[1] * behind])
        if values.ndim <= behind or values.numel() == 1:
            return torch.where(mask, x + values if accumulate else values, x)
        return masked_scatter(x, mask, values)
    merged, flat, order, shape, at = flattened(x, indices)
    rank = len(shape)
    rest = list(merged.shape[1:])
    values = values.expand([*rest[:at], *shape, *rest[at:]])
    values = values.permute([*range(at, at + rank), *range(at), *range(at + rank, values.ndim)]).reshape([-1, *rest])
    write = torch.scatter_add if accumulate else torch.scatter
    y = write(merged, 0, along(flat, 0, values), values)
    y = y.reshape([x.shape[d] for d in order])
    return y.permute([order.index(d) for d in range(x.ndim)])


@formula("masked_scatter.default")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write elements of ``source``, in order, where the mask is true."""
    mask = mask.expand(x.shape)
    places = torch.cumsum(mask.reshape(-1).long(), 0) - 1
    found = torch.gather(source.reshape(-1), 0, places.clamp(0, source.numel() - 1))
    return torch.where(mask, found.reshape(x.shape), x)


@formula("nonzero_static.default")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Find the first places that are not 0, as many as said, and fill up with a number."""
    chosen = (x != 0).reshape(-1)
    rank = torch.cumsum(chosen.long(), 0) - 1
    target = torch.where(chosen & (rank < size), rank, size)
    places = torch.arange(chosen.shape[0], device=x.device)
    flat = torch.scatter(torch.full((size + 1,), -1, device=x.device), 0, target, places)[:size]
    coordinates = []
    for length in reversed(x.shape):
        coordinates.append(flat % length)
        flat = torch.where(flat < 0, flat, torch.div(flat, length, rounding_mode="floor"))
    return torch.where(flat[:, None] < 0, fill_value, torch.stack(coordinates[::-1], 1))


def renormed(weight: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Return a table whose rows are no longer than ``max_norm``, as torch makes those that are looked up."""
    norm = torch.linalg.vector_norm(weight, norm_type, dim=1, keepdim=True)
    return torch.where(norm > max_norm, weight * (max_norm / (norm + 1e-7)), weight)


def bags_of_one_length(
    indices: Tensor, weight: Tensor, mode: str, per_sample_weights: Tensor | None, padding_idx: int | None
) -> Tensor:
    """Compute ``embedding_bag`` of one bag per sample, indices (N, L), for any number of samples.

    torch's own is exported with the places where the example's bags begin.
    """
    rows = F.embedding(indices, weight)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[..., None]
    if padding_idx is None:
        if mode == "max":
            return rows.amax(1)
        return rows.mean(1) if mode == "mean" else rows.sum(1)
    counted = (indices != padding_idx % weight.shape[0])[..., None]
    counts = counted.sum(1)
    if mode == "max":
        return torch.where(counts == 0, 0.0, torch.where(counted, rows, LEAST).amax(1))
    y = torch.where(counted, rows, 0.0).sum(1)
    return y / counts.clamp(min=1) if mode == "mean" else y


@formula("_embedding_bag_forward_only.default _embedding_bag.default")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Reduce the rows of every bag: bags begin at the offsets."""
    offsets = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(indices.shape[0], device=indices.device)
    bags = (places[:, None] >= offsets[None]).long().sum(1) - 1
    rows = torch.ops.aten.embedding.default(weight, indices)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    counted = (indices != padding_idx)[:, None]
    target, where = torch.zeros(offsets.shape[0], weight.shape[1], device=weight.device), along(bags, 0, rows)
    counts = torch.scatter_add(target, 0, where, counted.to(rows.dtype).expand(rows.shape))
    if mode == 2:
        y = torch.scatter_reduce(target + LEAST, 0, where, torch.where(counted, rows, LEAST), "amax")
        y = torch.where(counts == 0, 0.0, y)
    else:
        y = torch.scatter_add(target, 0, where, torch.where(counted, rows, 0.0))
        y = y / counts.clamp(min=1) if mode == 1 else y
    return y, bags, bags, bags


# Sorting --------------------------------------------------------------------------------------------------------------


@formula("kthvalue.default")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, ...]:
    """Find the k-th smallest element, and its place."""
    values, places = torch.sort(x, dim=dim, stable=True)
    return tuple(v.narrow(dim, k - 1, 1) if keepdim else v.select(dim, k - 1) for v in (values, places))


@formula("median.dim")
def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    """Find the element in the middle, the smaller of two."""
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


@formula("median.default")
def median_of_all(x: Tensor) -> Tensor:
    """Find the element in the middle of all."""
    return median(x.reshape(-1), 0)[0]


@formula("nanmedian.dim")
def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    """Find the element in the middle of those that are not NaN; sorted, these come first."""
    values, places = torch.sort(x, dim=dim, stable=True)
    count = (~torch.isnan(x)).long().sum(dim, keepdim=True)
    at = ((count - 1).clamp(min=0).float() / 2).floor().long()
    found = [torch.gather(v, dim, at) for v in (values, places)]
    return tuple(v if keepdim else v.squeeze(dim) for v in found)


@formula("nanmedian.default")
def nanmedian_of_all(x: Tensor) -> Tensor:
    """Find the element in the middle of all that are not NaN."""
    return nanmedian(x.reshape(-1), 0)[0]


@formula("nanquantile.scalar nanquantile.default")
def nanquantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Find quantiles of what is not NaN, between the two neighbours in order; torch 2.14 and later rank in float64."""
    q = q if isinstance(q, Tensor) else torch.full((), q)
    ordered = torch.sort(x.reshape(-1) if dim is None else x.movedim(dim, -1), dim=-1).values
    last = ((~torch.isnan(ordered)).long().sum(-1, keepdim=True) - 1).clamp(min=0)
    rank: Tensor = last.float() * q.reshape(-1)
    below, above = rank.floor(), rank.ceil()
    low, high = ordered.gather(-1, below.long()), ordered.gather(-1, above.long())
    step = {"linear": rank, "lower": below, "higher": above, "nearest": rank.round(), "midpoint": (below + above) / 2}
    found: Tensor = (low + (high - low) * (step[interpolation] - below)).movedim(-1, 0)
    if keepdim:
        found = found.reshape(-1, *[1] * x.ndim) if dim is None else found.unsqueeze(dim % x.ndim + 1)
    return found if q.ndim else found[0]


@formula("quantile.scalar quantile.default")
def quantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Find quantiles; where NaN is among the numbers, they are NaN."""
    found = nanquantile(x, q, dim, keepdim, interpolation=interpolation)
    dims = list(range(x.ndim)) if dim is None else [dim]
    count = torch.isnan(x).long().sum(dims, keepdim)
    return torch.where(count > 0, x.sum(dims, keepdim), found)


@formula("bucketize.Tensor")
def buckets(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Count the boundaries below every number, or not above it."""
    x = x[..., None]
    return (boundaries <= x if right else boundaries < x).long().sum(-1)


@formula("searchsorted.Tensor")
def searchsorted(
    boundaries: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Count the boundaries below every number, or not above it; rows of boundaries are for rows of numbers."""
    if sorter is not None:
        return NotImplemented
    return buckets(x, boundaries[..., None, :] if boundaries.ndim > 1 else boundaries, right=right or side == "right")


# Running results ------------------------------------------------------------------------------------------------------


def scan(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine every element with all before it, in steps that double (Hillis and Steele 1986)."""
    dim, size, step = dim % max(x.ndim, 1), x.shape[dim], 1
    while step < size:
        later = combine(x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step))
        x = torch.cat([x.narrow(dim, 0, step), later], dim)
        step *= 2
    return x


@formula("cumprod.default")
def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Compute products up to every element."""
    x = x if dtype is None else x.to(dtype)
    return scan(x, dim, torch.mul)


@formula("logcumsumexp.default")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Compute log(Σ e^x) up to every element."""
    return scan(x, dim, logaddexp)


def running(x: Tensor, dim: int, sign: int) -> Any:
    """Compute the largest element up to every one, and the last place that has it."""
    values = scan(sign * x, dim, torch.maximum)
    shape = [1] * x.ndim
    shape[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape).expand(x.shape)
    marked = torch.where(sign * x >= values, places, 0)
    return sign * values, scan(marked, dim, torch.maximum)


@formula("cummax.default")
def cummax(x: Tensor, dim: int) -> Any:
    """Compute the largest element up to every one, and its place."""
    return running(x, dim, 1)


@formula("cummin.default")
def cummin(x: Tensor, dim: int) -> Any:
    """Compute the smallest element up to every one, and its place."""
    return running(x, dim, -1)


@formula("linalg_vander.default")
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Compute powers 0, 1, 2 … side by side."""
    powers = [torch.ones_like(x)]
    while len(powers) < (x.shape[-1] if N is None else N):
        powers.append(powers[-1] * x)
    return torch.stack(powers, -1)


@formula("histc.default")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count the elements of every bin; those outside of all count nothing."""
    x = x.reshape(-1)
    low, high = (x.amin(), x.amax()) if min == max else (torch.full_like(x[0], min), torch.full_like(x[0], max))
    place = torch.floor((x - low) / (high - low) * bins)
    place = torch.where(x == high, bins - 1.0, place)
    every = torch.arange(bins, device=x.device)
    return (place[:, None] == every).to(x.dtype).sum(0)
