"""Scales of weights that move: computed on the weights' device in every training step.

The numbers that ship come from ``intact8.calibration.weights`` in float64 and are then made tie-free; these are the
same formulas in float32, and serve only while weights still move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intact8.arithmetic.affine import SMALLEST_SCALE
from intact8.calibration.weights import DEAD, PAIR_LIMIT, pairs_can_saturate, weight_scales

from .grid import two_largest


def live_weight_scales(rows: Tensor, lo: int, hi: int, observer: str = "minmax", portable: bool = True) -> Tensor:
    """Scale per output channel, as ``intact8.calibration.weights.weight_scales`` gives it.

    Args:
        rows: (O, K), without gradient.
        lo, hi: ends of the integer range.
        observer: ``minmax``; any other goes through the CPU and takes its time.
        portable: keep room for pair sums.

    Returns:
        float32 (O,) on the device of ``rows``.

    Example:
        >>> live_weight_scales(torch.tensor([[127.0, 3.0], [126.0, 126.0]]), -127, 127).tolist()
        [1.0317460298538208, 2.0]
    """
    if observer != "minmax":
        return torch.from_numpy(weight_scales(rows.cpu().numpy(), lo, hi, observer, portable)).to(rows.device)
    magnitude = rows.float().abs()
    top = two_largest(magnitude)
    scale = top[:, 0] / max(-lo, hi)
    if pairs_can_saturate(lo, hi, portable):
        scale = torch.maximum(top[:, 0] / hi, top.sum(1) / PAIR_LIMIT)
    return torch.clamp(scale, min=max(DEAD * float(scale.max()), SMALLEST_SCALE))
