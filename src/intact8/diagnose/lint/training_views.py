"""What the rules of training ask about a simulation and a torch.ao model alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intact8.diagnose.lint.rule import SIMULATION

if TYPE_CHECKING:
    from torch import nn


def batch_norms(subject: Any) -> list[tuple[str, Any]]:
    """Path and module of every batch norm with running statistics."""
    return [
        (name, m)
        for name, m in subject.module.named_modules()
        if any(cls.__name__ == "_BatchNorm" for cls in type(m).__mro__) and m.track_running_stats
    ]


def live_batch_norms(subject: Any) -> list[str]:
    """Batch norms that follow the batches although scales stay; none outside training."""
    if not subject.module.training:
        return []
    if subject.kind == SIMULATION:
        sim = subject.sim
        if sim.phase != "frozen" or sim.scale_phase.batch_norm_frozen:
            return []
    elif not subject.fake_quantizers or any(p.observing for p in subject.points):
        return []
    return [name for name, m in batch_norms(subject) if m.training]


def scale_parameters(subject: Any) -> list[tuple[str, nn.Parameter]]:
    """Name and parameter of every scale (and zero point) that can be learned."""
    if subject.kind == SIMULATION:
        from intact8.train.scale_phase import learned_scales

        return learned_scales(subject.sim)
    learners = {id(p) for _, m in subject.fake_quantizers for p in m.parameters()}
    return [(name, p) for name, p in subject.module.named_parameters() if id(p) in learners]


def weights_of(subject: Any) -> list[tuple[str, nn.Parameter]]:
    """Name and parameter of everything else that can be trained."""
    scales = {id(p) for _, p in scale_parameters(subject)}
    return [(name, p) for name, p in subject.module.named_parameters() if id(p) not in scales]


def trained(subject: Any) -> bool:
    """Whether some weight has a gradient."""
    return any(p.grad is not None for _, p in weights_of(subject))
