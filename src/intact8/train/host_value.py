"""Numbers of scalar tensors as Python numbers, without waiting for a GPU at every look."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class HostValue:
    """The number in a scalar tensor, which is read again only after the tensor was replaced or written to.

    Reading a number from a GPU waits until the GPU has done all it was given, so a training step must not do it for
    every layer. A copy of this object remembers nothing.

    Example:
        >>> import torch
        >>> scale, value = torch.tensor(0.5), HostValue()
        >>> value.of(scale)
        0.5
        >>> _ = scale.fill_(2.0)
        >>> value.of(scale)
        2.0
    """

    __slots__ = ("_seen", "_value", "_version")

    def __init__(self) -> None:
        self._seen: Tensor | None = None
        self._version = -1
        self._value: Any = None

    def __reduce__(self) -> Any:
        return HostValue, ()

    def knows(self, tensor: Tensor) -> bool:
        """Return whether :meth:`of` returns without reading the tensor."""
        return self._seen is tensor and not tensor.is_inference() and self._version == tensor._version

    def note(self, tensor: Tensor, value: Any) -> None:
        """Remember that ``value`` is what the tensor holds now."""
        self._seen, self._value = tensor, value
        self._version = -1 if tensor.is_inference() else tensor._version  # torch counts no writes in inference mode

    def of(self, tensor: Tensor) -> Any:
        """Return the number in ``tensor``, of shape (): an int for an integer dtype, else a float."""
        if not self.knows(tensor):
            self.note(tensor, tensor.item())
        return self._value
