"""The tensors a simulation computes with, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from intact8.capture.constants import Derived
from intact8.errors import StateError
from intact8.simulation.parameters import tensors_of
from intact8.train.snapshot import Snapshot


class Tensors(Mapping[str, Tensor]):
    """The parameters, buffers and constants of a module by name, as they are now.

    Args:
        root: the module.
        constants: name → the module that holds it, and its name there.
        derived: constants that are computed from others of these tensors: always from what those are now, and with
            gradients for them.
    """

    def __init__(
        self, root: nn.Module, constants: Mapping[str, tuple[nn.Module, str]], derived: Mapping[str, Derived]
    ) -> None:
        self._owners: dict[str, tuple[nn.Module, str]] = dict(constants)
        self._derived = dict(derived)
        self._cache: dict[str, tuple[Snapshot, Tensor]] = {}
        modules = dict(root.named_modules(remove_duplicate=False))
        for name in tensors_of(root):
            path, _, leaf = name.rpartition(".")
            self._owners[name] = (modules[path], leaf)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}

    def __getitem__(self, name: str) -> Tensor:
        if name in self._derived:
            return self._computed(name)
        return self._held(name, *self._owners[name])

    def _held(self, name: str, module: nn.Module, leaf: str) -> Tensor:
        tensor: Tensor | None = module._parameters.get(leaf)
        if tensor is None:
            tensor = module._buffers.get(leaf)
        if tensor is None:
            raise StateError(
                "the simulation has no such tensor any more",
                where=name,
                why="something has replaced it: pruning, or another parametrization",
                remedy="do that to the model, before intact8.prepare",
            )
        return tensor

    def owner(self, name: str | None) -> nn.Module | None:
        """Return the module that holds a tensor; None without a name."""
        return None if name is None else self._owners[name][0]

    def _computed(self, name: str) -> Tensor:
        """Compute a derived constant; without gradients it is remembered until a source changes."""
        how = self._derived[name]
        sources = {source: self[source] for source in how.sources}
        if torch.is_grad_enabled() and any(t.requires_grad for t in sources.values()):
            return how.compute(sources)
        hit = self._cache.get(name)
        if hit is None or not hit[0].current(sources.values()):
            with torch.inference_mode(False), torch.no_grad():
                self._cache[name] = hit = (Snapshot(sources.values()), how.compute(sources))
        return hit[1]

    def stored(self) -> Iterator[Tensor]:
        """Iterate over all tensors but those that are computed from others."""
        return (self._held(name, *owner) for name, owner in self._owners.items())

    def __iter__(self) -> Iterator[str]:
        return iter((*self._owners, *self._derived))

    def __len__(self) -> int:
        return len(self._owners) + len(self._derived)
