"""Which tensors a result was computed from, and whether they have changed since."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Snapshot:
    """Tensors at one moment: the objects themselves, and how often each had been written to.

    The objects are kept alive, so that another one never takes their place in memory unnoticed.

    Args:
        tensors: to remember.
        values: remember values, too: for small tensors that are written to or replaced without being changed
            (DistributedDataParallel copies buffers of rank 0 over themselves before every forward; a module that moves
            to another device has new ones).

    Example:
        >>> import torch
        >>> x = torch.zeros(2)
        >>> snapshot = Snapshot([x])
        >>> snapshot.current([x]), snapshot.current([x.clone()])
        (True, False)
        >>> _ = x.add_(1)
        >>> snapshot.current([x])
        False
    """

    def __init__(self, tensors: Iterable[Tensor], *, values: bool = False) -> None:
        self._seen = [(t, _version(t)) for t in tensors]
        self._values = [t.detach().clone() for t, _ in self._seen] if values else None

    def current(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether these are the same tensors, and none has been written to, or with ``values`` none differs."""
        now = list(tensors)
        if len(now) != len(self._seen):
            return False
        for t, (old, version) in zip(now, self._seen, strict=True):
            if t is not old or version is None or t._version != version:
                break
        else:
            return True
        if self._values is None or not all(_equal(t, v) for t, v in zip(now, self._values, strict=True)):
            return False
        self._seen = [(t, _version(t)) for t in now]
        return True


SMALL = 1024
"""Elements up to which a tensor is remembered as it is, not by sums."""


class Sums:
    """What tells that tensors were written to where torch does not count it: through ``weight.data``, as averages of
    weights are swapped in. Small tensors are kept, of others the sum of every row, which another order of rows changes.

    Args:
        tensors: to remember.

    Example:
        >>> import torch
        >>> x = torch.nn.Parameter(torch.ones(2))
        >>> sums, version = Sums([x]), x._version
        >>> x.data.mul_(2), x._version == version
        (tensor([2., 2.]), True)
        >>> sums.counted([x]), x._version == version
        (True, False)
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._seen = [(t, t._version, _sums(t)) for t in tensors if not t.is_inference()]

    @torch.no_grad()
    def counted(self, tensors: Iterable[Tensor]) -> bool:
        """Let torch count writes that it has not, and return whether there were any."""
        known, found = {id(t): (version, sums) for t, version, sums in self._seen}, False
        for t in tensors:
            version, sums = known.get(id(t), (None, None))
            if sums is None or t.is_inference() or t._version != version or torch.equal(_sums(t), sums.to(t.device)):
                continue
            t.mul_(1)
            found = True
        return found


def _sums(t: Tensor) -> Tensor:
    values = t.detach()
    if values.numel() <= SMALL or not values.is_floating_point():
        return values.clone()
    return values.sum() if values.dim() < 2 else values.flatten(1).sum(1)


class Verified:
    """What was found unchanged once, so that what was computed from parts of it need not look at them again.

    Attributes:
        state: snapshots of all that it consists of, by identity; None where nothing is known.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: tuple[Snapshot, ...] | None = None

    def __reduce__(self) -> tuple[type[Verified], tuple[()]]:
        return Verified, ()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.to(b.device), b)


def _version(tensor: Tensor) -> int | None:
    """Return None for a tensor made in inference mode: torch does not count writes to it."""
    return None if tensor.is_inference() else tensor._version
