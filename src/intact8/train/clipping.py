"""The penalty of PACT (Choi et al. 2018, section 3): clips that cost something come down to where values are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intact8.errors import StateError
from intact8.train.learned_range import LearnedClip

from .distributed import unwrapped


def clipping_penalty(sim: nn.Module) -> Tensor:
    """Σ α² over all learned clips; add it to the loss with the weight you use for weight decay.

    Where values are negative, too, the lower end of the range counts alike.

    Args:
        sim: prepared with ``intact8.recipes.qat("pact")``, calibrated.

    Returns:
        A scalar, float32, with gradient.

    Raises:
        StateError: no clip is learned.

    Example:
        >>> import intact8, torch
        >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4), intact8.recipes.qat("pact"))
        >>> _ = intact8.calibrate(sim, torch.linspace(-2, 2, 256).reshape(64, 4))
        >>> bool(clipping_penalty(sim) > 0)
        True
    """
    inner = unwrapped(sim)
    clips = [m for m in inner.modules() if isinstance(m, LearnedClip)]
    if not clips:
        raise StateError(
            "no clip is learned", why=f"the recipe says scales = {inner.recipe.scales!r}",
            remedy='prepare with intact8.recipes.qat("pact")',
        )  # fmt: skip
    ends = [end for c in clips for end in (c.clip(), None if c.below is None else c.below()) if end is not None]
    return torch.stack(ends).square().sum()
