"""Knowledge distillation: the quantized network learns from the float one's outputs (Hinton et al. 2015)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def distillation_loss(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over all but the last dimension.

    T² keeps the gradient's size independent of the temperature (section 2 there). Add the usual loss to it:
    ``cross_entropy(y, labels) + distillation_loss(y, float_model(x))``.

    Args:
        student: logits of the simulation, (…, classes), float.
        teacher: logits of the float model, of the same shape; no gradient flows into it.
        temperature: T > 0; larger ones teach more about unlikely classes.

    Returns:
        A scalar; 0 where both agree.

    Raises:
        ValueError: shapes differ, or T is not positive.

    Example:
        >>> import torch
        >>> y = torch.tensor([[1.0, 2.0, 3.0]])
        >>> distillation_loss(y, y, temperature=4.0).item()
        0.0
    """
    if student.shape != teacher.shape:
        raise ValueError(f"student {tuple(student.shape)} and teacher {tuple(teacher.shape)} differ in shape")
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} is not positive")
    log_p = F.log_softmax(student.flatten(0, -2) / temperature, dim=-1)
    log_q = F.log_softmax(teacher.detach().flatten(0, -2) / temperature, dim=-1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True) * temperature**2
