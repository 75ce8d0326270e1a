"""Re-estimation of batch norm statistics from data, after weights or their rounding changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intact8.calibration.data import batches, device_of
from intact8.errors import CalibrationError
from intact8.train.trainable import Trainable

BATCH_NORM = nn.modules.batchnorm._BatchNorm


class _Statistics:
    """Sums of batch means and unbiased batch variances, as ``momentum=None`` averages them."""

    def __init__(self) -> None:
        self.mean = self.var = torch.zeros((), dtype=torch.float64)
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().double().transpose(0, 1).flatten(1)
        self.mean = self.mean.to(x.device) + x.mean(1)
        self.var = self.var.to(x.device) + x.var(1, unbiased=x.shape[1] > 1)
        self.calls += 1


def reestimate_batch_norm(sim: Trainable, data: Any, *, max_batches: int | None = None) -> int:
    """Replace running statistics by the averages over ``data`` of what the quantized network computes.

    Batch norm normalizes by each batch while this runs, dropout is off, nothing observes, and weights stay. Afterwards
    modes are what they were. Frozen scales stay, except where the new statistics break a proof.

    Args:
        sim: calibrated or not.
        data: as for :func:`intact8.calibrate`.
        max_batches: stop after so many.

    Returns:
        How many batch norms there are; with 0 nothing ran.

    Raises:
        CalibrationError: no data, or data that do not fit.
    """
    norms = {m: _Statistics() for m in sim.modules() if isinstance(m, BATCH_NORM) and m.track_running_stats}
    if not norms:
        return 0
    calls = itertools.islice(batches(data, sim.input_specs, device_of(sim)), max_batches)
    with _normalizing_by_batch(sim, list(norms)), torch.no_grad():
        hooks = [module.register_forward_pre_hook(statistics) for module, statistics in norms.items()]
        try:
            for args, kwargs in calls:
                sim(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        if all(statistics.calls == 0 for statistics in norms.values()):
            raise CalibrationError("no batch norm saw any data", remedy="give batches that reach it")
        for module, seen in norms.items():
            if seen.calls and module.running_mean is not None and module.running_var is not None:
                module.running_mean.copy_(seen.mean / seen.calls)
                module.running_var.copy_(seen.var / seen.calls)
    return len(norms)


@contextmanager
def _normalizing_by_batch(sim: Trainable, norms: list[Any]) -> Iterator[None]:
    """Keep batch norms live with momentum 0, dropout off and no point observing; restore everything afterwards."""
    training = [(module, module.training) for module in sim.modules()]
    counts = [None if m.num_batches_tracked is None else m.num_batches_tracked.clone() for m in norms]
    momenta = [(m, m.momentum, count) for m, count in zip(norms, counts, strict=True)]
    frozen, points = sim.scale_phase.batch_norm_frozen, [(p, p.source, p.observing) for p in sim.points.values()]
    try:
        sim.train()
        sim.freeze_batch_norm(False)
        for point, source, _ in points:
            point.observing, point.source = False, "held" if source == "observed" else source
        for module in sim.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        for module in norms:
            module.momentum = 0.0
        yield
    finally:
        for module, flag in training:
            module.training = flag
        for module, momentum, count in momenta:
            module.momentum = momentum
            if count is not None:
                module.num_batches_tracked.copy_(count)
        for point, source, observing in points:
            point.source, point.observing = source, observing
        sim.freeze_batch_norm(frozen)
