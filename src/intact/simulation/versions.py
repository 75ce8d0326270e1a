"""Which tensors a remembered result was made from, and whether they still are what they were."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Snapshot:
    """Tensors at one moment: the objects themselves, and how often each had been written to.

    The objects are kept alive, so that another one never takes their place in memory unnoticed.

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

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._seen = [(t, _version(t)) for t in tensors]

    def current(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these are the same tensors, and none has been written to."""
        now = list(tensors)
        return len(now) == len(self._seen) and all(
            t is old and version is not None and _version(t) == version
            for t, (old, version) in zip(now, self._seen, strict=True)
        )


def _version(tensor: Tensor) -> int | None:
    """None for a tensor made in inference mode: writes to it are not counted."""
    return None if tensor.is_inference() else tensor._version
