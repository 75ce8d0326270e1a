"""Training under DistributedDataParallel: what ranks must share beside gradients.

All of it happens in forwards that DistributedDataParallel runs, and nowhere else: a simulation that is trained alone on
one rank communicates with nobody. As with SyncBatchNorm, every rank must run the same number of training forwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from intact8.calibration import distributed as ranks
from intact8.calibration.distributed import Ranks
from intact8.calibration.observer import make_observer
from intact8.errors import no_simulation
from intact8.train.trainable import Trainable


def data_parallel_ranks(sim: Trainable) -> Ranks:
    """Return the ranks of the DistributedDataParallel forward that is running; this process alone where none is.

    ``sim.scale_phase.ranks`` keeps them for what happens between forwards.
    """
    wrapper = _active_wrapper() if sim.training else None
    if wrapper is None:
        return Ranks()
    phase, group = sim.scale_phase, wrapper.process_group
    if phase.wrapper is None or phase.wrapper() is not wrapper:
        phase.wrapper = weakref.ref(wrapper)
        phase.ranks = Ranks(dist.get_rank(group), dist.get_world_size(group), group=group)
        _keep_buffers(sim, wrapper)
    return phase.ranks


def _active_wrapper() -> Any:
    if not dist.is_available() or not dist.is_initialized():
        return None
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]


def _keep_buffers(sim: Trainable, wrapper: Any) -> None:
    """Take scales and multipliers out of the buffers that the wrapper copies from rank 0 before every forward.

    Their sizes differ where only one rank has evaluated; and a backward may still need what would be overwritten.
    """
    for path, module in wrapper.module.named_modules():
        if module is sim:
            prefix = f"{path}.quantizers." if path else "quantizers."
            names = [name for name, _ in wrapper.module.named_buffers() if name.startswith(prefix)]
            wrapper.parameters_to_ignore.update(names)


def in_backward() -> bool:
    """Return whether autograd runs this forward again, for a checkpoint (torch.utils.checkpoint)."""
    return bool(torch._C._current_graph_task_id() != -1)


@contextmanager
def watching(sim: Trainable) -> Iterator[None]:
    """A forward in which points show values to their observers, in training.

    On several ranks observers take in what all ranks saw, as of one batch. In a forward that is run again for a
    checkpoint, observers do not see the batch a second time.
    """
    points = {name: p for name, p in sim.points.items() if p.watching} if sim.training else {}
    ranks, again = data_parallel_ranks(sim), in_backward()
    if not points or (ranks.size == 1 and not again):
        yield
        return
    kept = {name: point.observer for name, point in points.items()}
    try:
        for point in points.values():
            point.observer = make_observer(point.observer.kind, **point.observer.args())
        yield
        seen = {name: point.observer.state() for name, point in points.items()}
    finally:
        for name, point in points.items():
            point.observer = kept[name]
    if again:
        return
    states = ranks.gather(seen)
    for observer, name in ((point.observer, name) for name, point in points.items()):
        shares = [make_observer(observer.kind, **observer.args()) for _ in states]
        for share, state in zip(shares, states, strict=True):
            share.load_state(state[name])
        observer.merge_side_by_side(shares)


class _Connected(torch.autograd.Function):
    """The first argument forward; zeros backward for all others."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(*others)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        return (grad[0], *(torch.zeros_like(p) for p in ctx.saved_tensors))


def connected(sim: Trainable, outputs: list[Tensor], parameters: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
    """Return outputs whose backward reaches all that ``parameters`` gives: those that take no part get zeros.

    DistributedDataParallel waits for the gradient of every parameter that it was built with. Learned scales have none
    while ranges are observed, and after scales were frozen.
    """
    if not (sim.training and torch.is_grad_enabled()) or _active_wrapper() is None:
        return outputs
    wanted = [p for p in parameters() if p.requires_grad]
    if not wanted:
        return outputs
    connect: Callable[..., Tensor] = _Connected.apply
    return [connect(y, *wanted) if y.requires_grad else y for y in outputs]


def unwrapped(sim: Any) -> Trainable:
    """Return the simulation inside a wrapper (DistributedDataParallel, AveragedModel, torch.compile), or itself.

    Raises:
        StateError: there is no simulation inside.
    """
    inner = sim
    while isinstance(inner, nn.Module) and not isinstance(inner, Trainable):
        children = list(inner.children())
        if len(children) != 1:
            break
        inner = children[0]
    if not isinstance(inner, Trainable):
        raise no_simulation(sim, "training")
    return inner


def synchronize(sim: nn.Module) -> bool:
    """Give every rank the batch norm statistics, ranges and scales of rank 0; call it on every rank.

    :meth:`Schedule.step` does it for a simulation trained under DistributedDataParallel. Call it yourself where you
    freeze something without a schedule, or after an evaluation on one rank only: evaluation may solve scales again.
    Parameters stay, for DistributedDataParallel keeps them alike.

    Args:
        sim: the simulation, or DistributedDataParallel around it.

    Returns:
        Whether any rank had other numbers; False without a process group.

    Raises:
        StateError: ``sim`` is not a simulation.

    Example:
        >>> import intact8, torch
        >>> synchronize(intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4)))
        False
    """
    inner = unwrapped(sim)
    if not (dist.is_available() and dist.is_initialized()):
        return False
    group = getattr(sim, "process_group", inner.scale_phase.ranks.group)
    return ranks.synchronize(inner, Ranks(dist.get_rank(group), dist.get_world_size(group), group=group))
