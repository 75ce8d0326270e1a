"""The parameters of a captured model under their original names, with real batch norm and dropout modules."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from intact8.errors import CaptureWarning, warn
from intact8.train.branch import Branch


class Namespace(Branch):
    """A branch of the original module tree: it holds parameters and children, and computes nothing.

    Registering a hook warns that it is never called.
    """

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Register what is never called."""
        return self._warned(super().register_forward_pre_hook(*args, **kwargs))

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Register what is never called."""
        return self._warned(super().register_forward_hook(*args, **kwargs))

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Register what is never called."""
        return self._warned(super().register_full_backward_pre_hook(*args, **kwargs))

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Register what is never called."""
        return self._warned(super().register_full_backward_hook(*args, **kwargs))

    @staticmethod
    def _warned(handle: RemovableHandle) -> RemovableHandle:
        what = "a hook is registered on a module of a simulation, and will not be called"
        why = "the simulation computes the graph that was captured, not its modules one after the other"
        remedy = (
            "register it on the simulation itself, or, where it changes what the model computes, on the model before "
            "intact8.prepare; intact8.compare shows what layers compute"
        )
        warn(CaptureWarning(f"{what}. Reason: {why}. Remedy: {remedy}"))
        return handle


def copy_parameters(root: nn.Module, model: nn.Module, leave_out: frozenset[str] = frozenset()) -> None:
    """Copy every parameter and buffer of ``model`` into ``root`` under its name, but for those of some children.

    Batch norm and dropout modules are copied as what they are, so that ``.train()``, ``.eval()`` and code that looks
    for ``nn.BatchNorm2d`` go on working. Shared parameters stay shared. Sparse buffers, which no graph has, are left.
    """
    memo: dict[int, object] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path.partition(".")[0] in leave_out:
            continue
        if path == "":
            target: nn.Module = root
        elif isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)):
            target = copy.deepcopy(module, memo)
        else:
            target = memo.setdefault(id(module), Namespace())  # type: ignore[assignment]
            assert isinstance(target, nn.Module)
        for name, parameter in module._parameters.items():
            target._parameters[name] = copy.deepcopy(parameter, memo)
        for name, buffer in module._buffers.items():
            if buffer is None or buffer.layout == torch.strided:
                target._buffers[name] = _whole(copy.deepcopy(buffer, memo))
        target._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
        target.training = module.training
        if path:
            parent, _, leaf = path.rpartition(".")
            root.get_submodule(parent)._modules[leaf] = target


def _whole(buffer: Tensor | None) -> Tensor | None:
    """Return a buffer with memory for every element; those of a view, as of a mesh grid, cannot be loaded into."""
    repeats = buffer is not None and any(s == 0 and n > 1 for s, n in zip(buffer.stride(), buffer.shape, strict=True))
    return buffer.contiguous() if buffer is not None and repeats else buffer


def tensors_of(root: nn.Module) -> Mapping[str, Tensor]:
    """Return every parameter and buffer by name, duplicates included."""
    found: dict[str, Tensor] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        prefix = path + "." if path else ""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                found[prefix + name] = tensor
    return found
