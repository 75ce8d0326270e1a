"""Work shared among the ranks of torch.distributed; one process is the only rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, which are 0 and 1 without a process group.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gathered(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of all ranks, on every rank."""
    size = rank_and_size()[1]
    if size == 1:
        return dict(mine)
    parts: list[Any] = [None] * size
    torch.distributed.all_gather_object(parts, dict(mine))
    return {key: value for part in parts for key, value in part.items()}
