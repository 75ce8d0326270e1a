"""Scales of weights that are trained, computed on the weights' device in every step.

Deployed scales come from ``intact8.calibration.weights`` in float64 and are then made tie-free; these are the same
formulas in float32, and serve only while weights still move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.calibration.weights import DEAD, PAIR_LIMIT, pairs_can_saturate, weight_scales
from intact8.train import fused


def live_weight_scales(
    rows: Tensor, lo: int, hi: int, observer: str = "minmax", portable: bool = True, factor: Tensor | None = None
) -> Tensor:
    """Return the scale per output channel of (O, K), float32, as ``intact8.calibration.weights.weight_scales`` does.

    An observer other than ``minmax`` is computed on the CPU and slow; ``portable`` keeps room for pair sums. Rows are
    multiplied by ``factor``, (O,), first.

    Example:
        >>> live_weight_scales(torch.tensor([[127.0, 3.0], [126.0, 126.0]]), -127, 127).tolist()
        [1.0317460298538208, 2.0]
    """
    if observer != "minmax":
        rows = rows if factor is None else rows * factor[:, None]
        return torch.from_numpy(weight_scales(rows.cpu().numpy(), lo, hi, observer, portable)).to(rows.device)
    top = largest_magnitudes(rows.float(), factor)
    scale = top[:, 0] / max(-lo, hi)
    if pairs_can_saturate(lo, hi, portable):
        scale = torch.maximum(top[:, 0] / hi, top.sum(1) / PAIR_LIMIT)
    return torch.maximum(scale, (DEAD * scale.max()).clamp(min=SMALLEST_SCALE))


def largest_magnitudes(rows: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return the two largest |w·f| of every row of (O, K), w, with f (O,), as :func:`two_largest` does.

    Example:
        >>> largest_magnitudes(torch.tensor([[1.0, -5.0, 3.0]]), torch.tensor([2.0])).tolist()
        [[10.0, 6.0]]
    """
    if fused.usable(rows, *(() if factor is None else (factor,))):
        return fused.two_largest(rows, factor)
    return two_largest((rows if factor is None else rows * factor[:, None]).abs())


def two_largest(rows: Tensor) -> Tensor:
    """Return the two largest values of every row of (O, K) in descending order: (O, 2), or (O, 1) where K is 1.

    Example:
        >>> two_largest(torch.tensor([[1.0, 5.0, 3.0]])).tolist()
        [[5.0, 3.0]]
    """
    count, blocks = rows.shape[1], rows.shape[1] // BLOCK
    if count < LONG:
        return rows.topk(min(2, count), dim=1).values
    # topk is slow on long rows, so the largest of every block is found first. A block has columns that are ``blocks``
    # apart, so that maxima are taken of whole rows at once. The second largest is in the block of the largest, or the
    # largest of another block, or among the columns left over.
    head = rows[:, : blocks * BLOCK].reshape(len(rows), BLOCK, blocks)
    first, where = head.amax(1).topk(2, dim=1)
    inside = head.gather(2, where[:, None, :1].expand(-1, BLOCK, 1)).squeeze(2)
    return torch.cat([inside, first[:, 1:], rows[:, blocks * BLOCK :]], 1).topk(2, dim=1).values


BLOCK, LONG = 16, 1024
"""Values per block of :func:`two_largest`, and the length of rows from which blocks pay."""
