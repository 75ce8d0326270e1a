"""The tensors a simulation computes with, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from .tree import tensors_of


class Tensors(Mapping[str, Tensor]):
    """Live view of a module's parameters, buffers and constants by name."""

    def __init__(self, root: nn.Module, constants: Mapping[str, tuple[nn.Module, str]]) -> None:
        self._owners: dict[str, tuple[nn.Module, str]] = dict(constants)
        for name in tensors_of(root):
            path, _, leaf = name.rpartition(".")
            self._owners[name] = (root.get_submodule(path), leaf)

    def __getitem__(self, name: str) -> Tensor:
        module, leaf = self._owners[name]
        tensor: Tensor | None = module._parameters.get(leaf)
        if tensor is None:
            tensor = module._buffers[leaf]
        assert tensor is not None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)
