"""The reference for gradients at the ends of a clamp, which differ between versions of torch, and steps of training."""

from __future__ import annotations

import torch
from torch import Tensor


def clamp(v: Tensor, lo: float | Tensor, hi: float | Tensor) -> Tensor:
    """``torch.clamp`` whose gradient passes at both ends, as torch's own did up to 2.13; in 2.15 it is zero there."""
    return torch.where(v < lo, lo, torch.where(v > hi, hi, v))


def descend(
    sim: torch.nn.Module, x: Tensor, target: Tensor, optimizer: torch.optim.Optimizer, steps: int = 8
) -> list[float]:
    """Train towards a target; return the loss of every step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (sim(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
