"""Quantization-aware training: your own loop and optimizer, the deployed integers in its forward pass.

Example:
    >>> import intact8, intact8.train, torch
    >>> _ = torch.manual_seed(0)
    >>> data, labels = torch.randn(256, 8), torch.randint(0, 3, (256,))
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> sim = intact8.prepare(model, data[:2], intact8.recipes.qat("learned"))
    >>> _ = intact8.calibrate(sim, data)
    >>> optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=1e-3, scale_lr=1e-4))
    >>> schedule = intact8.train.Schedule(freeze_batchnorm=2, freeze_scales=3)
    >>> for epoch in range(4):
    ...     for x, y in zip(data.split(64), labels.split(64)):
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(sim.train()(x), y).backward()
    ...         optimizer.step()
    ...     _ = schedule.step(sim)
    >>> program = intact8.convert(sim.eval())
    >>> intact8.verify(program, data[:16], sim=sim).exact
    True
"""

from __future__ import annotations

from intact8 import missing_torch

try:
    import torch  # noqa: F401 - every file of this room needs it
except ImportError as error:
    raise missing_torch(__name__, error) from error

from intact8.train.scale_phase import ScaleWarning

from .batch_norm import reestimate_batch_norm
from .cuda_graphs import CudaGraphs, CudaGraphWarning
from .distributed import synchronize
from .losses import clipping_penalty, distillation_loss
from .optimizer import check_optimizer, parameter_groups
from .schedule import Schedule

__all__ = [
    "CudaGraphWarning",
    "CudaGraphs",
    "Schedule",
    "ScaleWarning",
    "check_optimizer",
    "clipping_penalty",
    "distillation_loss",
    "parameter_groups",
    "reestimate_batch_norm",
    "synchronize",
]
