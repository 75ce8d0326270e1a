"""Terms for the loss: the penalty of PACT (Choi et al. 2018) and distillation (Hinton et al. 2015)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intact8.errors import InputError, StateError

from .distributed import unwrapped
from .learned_range import LearnedClip


def clipping_penalty(sim: nn.Module) -> Tensor:
    """Return Σ α² over all learned clips; add it to the loss with the weight you use for weight decay.

    Where values may be negative, the lower end of the range counts alike.

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
        why, remedy = f"the recipe says scales = {inner.recipe.scales!r}", 'prepare with intact8.recipes.qat("pact")'
        raise StateError("no clip is learned", why=why, remedy=remedy)
    ends = [end for c in clips for end in (c.clip(), None if c.below is None else c.below()) if end is not None]
    return torch.stack(ends).square().sum()


def distillation_loss(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over all but the last dimension.

    T² keeps the gradient's size independent of the temperature (Hinton et al. 2015, section 2). Add the usual loss:
    ``cross_entropy(y, labels) + distillation_loss(y, float_model(x))``.

    Args:
        student: logits of the simulation, (…, classes), float.
        teacher: logits of the float model, of the same shape; no gradient flows into it.
        temperature: T > 0; larger ones teach more about unlikely classes.

    Returns:
        A scalar; 0 where both agree.

    Raises:
        InputError: shapes differ, or T is not positive.

    Example:
        >>> import torch
        >>> y = torch.tensor([[1.0, 2.0, 3.0]])
        >>> distillation_loss(y, y, temperature=4.0).item()
        0.0
    """
    if student.shape != teacher.shape:
        what = f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ in shape"
        raise InputError(what, where="distillation_loss", remedy="give outputs of the same samples and classes")
    if not temperature > 0:
        remedy = "give a number above 0; 1 leaves the outputs as they are"
        raise InputError(f"temperature {temperature} is not positive", where="distillation_loss", remedy=remedy)
    log_p = F.log_softmax(student.flatten(0, -2) / temperature, dim=-1)
    log_q = F.log_softmax(teacher.detach().flatten(0, -2) / temperature, dim=-1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True) * temperature**2
