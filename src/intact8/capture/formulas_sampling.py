"""Formulas of sampling: images read at computed places, as gathers and products."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from .formulas import formula

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def pixels(x: Tensor, size: int, corners: bool) -> Tensor:
    """Return places in −1 … 1 as numbers of pixels."""
    return (x + 1) * ((size - 1) / 2) if corners else (x + 1) * (size / 2) - 0.5


def inside(x: Tensor, size: int, padding: int, corners: bool) -> Tensor:
    """Return pixels that lie outside at the border, or reflected there."""
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        if span == 0:
            return x * 0
        x = (x - low).abs()
        turns = torch.floor(x / span)
        rest = x - turns * span
        odd = turns - 2 * torch.floor(turns / 2)
        x = torch.where(odd > 0, span - rest, rest) + low
    return x if padding == ZEROS else x.clamp(0, size - 1)


def read(image: Tensor, places: list[Tensor], padding: int) -> Tensor:
    """Return the pixels (B, C, …) at whole places (B, …), one tensor per dimension; outside of the image zeros."""
    sizes = list(image.shape[2:])
    flat = torch.zeros_like(places[0])
    known = torch.ones_like(places[0])
    for x, size in zip(places, sizes, strict=True):
        flat = flat * size + x.clamp(0, size - 1)
        if padding == ZEROS:
            known = known * ((x >= 0) & (x <= size - 1)).to(x.dtype)
    rows = flat.long().reshape([image.shape[0], 1, -1])
    rows = rows.expand([image.shape[0], image.shape[1], rows.shape[2]])
    found = torch.gather(image.reshape([*image.shape[:2], math.prod(sizes)]), 2, rows)
    found = found.reshape([*image.shape[:2], *places[0].shape[1:]])
    return found * known[:, None] if padding == ZEROS else found


def cubic(t: Tensor) -> list[Tensor]:
    """Return the weights of four neighbours for a place t behind the second (Keys 1981, a = −0.75)."""
    a = -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


@formula("grid_sampler_2d.default grid_sampler_3d.default")
def grid_sampler(image: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
    """Sample images at the places of a grid, whose last number is for the first dimension behind the channels."""
    sizes = list(image.shape[2:])
    places = [pixels(grid[..., -1 - i], size, corners) for i, size in enumerate(sizes)]
    if mode != BICUBIC:
        places = [inside(x, size, padding, corners) for x, size in zip(places, sizes, strict=True)]
    if mode == NEAREST:
        return read(image, [torch.round(x) for x in places], padding)
    below = [torch.floor(x) for x in places]
    if mode == BILINEAR:
        steps = [[(low, low + 1 - x), (low + 1, x - low)] for x, low in zip(places, below, strict=True)]
    else:
        steps = [
            [(inside(low + i - 1, size, padding, corners), w) for i, w in enumerate(cubic(x - low))]
            for x, low, size in zip(places, below, sizes, strict=True)
        ]
    total: Any = 0
    for corner in itertools.product(*steps):
        weight = math.prod(w for _, w in corner)
        total = total + read(image, [place for place, _ in corner], padding) * weight[:, None]  # type: ignore[index]
    return total


@formula("max_pool2d_with_indices_backward.default")
def max_pool_backward(gradient: Tensor, x: Tensor, *given: Any) -> Tensor:
    """Add each number at the place of the largest element of its window."""
    indices = given[-1].flatten(-2)
    return torch.scatter_add(torch.zeros_like(x).flatten(-2), -1, indices, gradient.flatten(-2)).reshape(x.shape)


@formula("max_unpool2d.default max_unpool3d.default")
def max_unpool(x: Tensor, indices: Tensor, size: list[int], *_: Any) -> Tensor:
    """Put elements back where the largest of windows were, and zeros elsewhere."""
    rank = len(size)
    shape = [*x.shape[:-rank], math.prod(size)]
    flat = torch.zeros_like(x).reshape([*x.shape[:-rank], -1])[..., :1].expand(shape)
    found = torch.scatter(flat, len(shape) - 1, indices.flatten(-rank), x.flatten(-rank))
    return found.reshape([*x.shape[:-rank], *size])
