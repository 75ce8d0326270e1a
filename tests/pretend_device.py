"""A second device on a machine without one: tensors that are moved to it are told apart and must not be mixed.

The numbers stay in the memory of the CPU. What is checked is what a GPU checks: every operation finds all its tensors
on one device (a scalar tensor of the CPU may join), and a tensor is moved to the CPU before numpy reads it. So a buffer
that was made on the wrong device, which only a machine with a GPU would find, fails a test everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

DEVICE = torch.device("cuda", 0)
"""What tensors on the pretend device call their device."""

_WIDENING = {getattr(getattr(torch.ops.aten, name), "dtype", None): getattr(torch, name) for name in ("mm", "bmm")}
"""Products of float16 with results of float32, which GPUs alone compute, and the same in float32."""

_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class _Placed:
    """The storages that lie on the pretend device."""

    def __init__(self) -> None:
        self.refs: dict[int, StorageWeakRef] = {}

    def add(self, value: Tensor) -> None:
        """Note that ``value`` lies on the pretend device."""
        if value.layout == torch._mkldnn:  # type: ignore[attr-defined]
            return
        storage = value.untyped_storage()
        self.refs[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, value: Tensor) -> bool:
        if value.layout == torch._mkldnn:  # type: ignore[attr-defined]
            return False  # oneDNN's own layout has no storage, and is the CPU's
        ref = self.refs.get(value.untyped_storage()._cdata)
        return ref is not None and not ref.expired()


_PLACED = _Placed()
"""Caches of the product outlive one test, so what lies on the pretend device is remembered for the whole process."""


class _Checks(TorchDispatchMode):
    """Every operation finds its tensors on one device, and its results lie there."""

    def __init__(self, placed: _Placed) -> None:
        super().__init__()
        self.placed = placed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        there = [t in self.placed for t in tensors]
        strangers = [t for t, here in zip(tensors, there, strict=True) if not here and t.ndim]
        index = func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
        if any(there) and strangers and func not in _COPIES and not (index and there[0]):
            shapes = [(tuple(t.shape), "pretend" if here else "cpu") for t, here in zip(tensors, there, strict=True)]
            raise RuntimeError(f"{func}: tensors on two devices: {shapes}")
        if func is torch.ops.aten.copy_.default:
            return func(*args, **kwargs)
        if func in _WIDENING and any(there):
            result = _WIDENING[func](*(t.float() for t in tensors))
        else:
            result = func(*args, **kwargs)
        if any(there):
            for leaf in tree_flatten(result)[0]:
                if isinstance(leaf, Tensor):
                    self.placed.add(leaf)
        return result


class _Names(TorchFunctionMode):
    """Tensors say where they lie, and calls that name a device are carried out on the CPU."""

    def __init__(self, placed: _Placed) -> None:
        super().__init__()
        self.placed = placed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == Tensor.device.__get__:
            return DEVICE if args[0] in self.placed else func(*args)
        if func == Tensor.is_cuda.__get__:
            return args[0] in self.placed
        if func == Tensor.is_cpu.__get__:
            return args[0] not in self.placed
        if func in (Tensor.numpy, Tensor.__array__) and args[0] in self.placed:
            raise TypeError("can't convert a tensor of the pretend device to numpy: use Tensor.cpu() first")
        # Within a call that torch hands to a mode, the mode is off, and this one asks for devices.
        if func is torch.unravel_index:
            found = func(self._moved(Tensor.cpu, args[:1], {}), *args[1:], **kwargs)
            return tuple(self._moved(Tensor.cuda, (t,), {}) for t in found) if args[0] in self.placed else found
        if func in (Tensor.cpu, Tensor.cuda, Tensor.to):
            return self._moved(func, args, kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
            result = func(*args, **kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                self.placed.add(result)
            return result
        if device is None and name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
            result = func(*args, **kwargs)
            if args[0] in self.placed:
                self.placed.add(result)
            return result
        return func(*args, **kwargs)

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        value, there = args[0], args[0] in self.placed
        if func in (Tensor.cpu, Tensor.cuda):
            device, dtype = func.__name__, None
        elif isinstance(args[1] if len(args) > 1 else None, Tensor):
            device, dtype = "cuda" if args[1] in self.placed else "cpu", args[1].dtype
        else:
            kwargs.pop("copy", None)
            device, dtype = torch._C._nn._parse_to(*args[1:], **kwargs)[:2]
        result: Tensor = value if dtype is None else value.to(dtype=dtype)
        wanted = there if device is None else torch.device(device).type == "cuda"
        if wanted == there:
            return result
        # A copy is made in any case: the memory is one, and a storage lies on one device.
        result = result.clone() if wanted else _Leave.apply(result, self.placed)  # type: ignore[no-untyped-call]
        if wanted:
            self.placed.add(result)
        return result


class _Leave(torch.autograd.Function):
    """A copy of a tensor, on the CPU."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, placed: _Placed) -> Tensor:
        ctx.placed = placed
        result = value.clone()
        placed.refs.pop(result.untyped_storage()._cdata, None)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        result = grads[0].clone()
        ctx.placed.add(result)
        return result, None


@contextmanager
def pretend_device() -> Iterator[None]:
    """Let ``.cuda()`` and ``.to("cuda")`` move tensors to a device that is the CPU's memory, with a GPU's rules."""
    with _Names(_PLACED), _Checks(_PLACED), torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def real_device() -> Iterator[None]:
    """Leave the pretence within :func:`pretend_device`: torch.export traces with modes of its own."""
    with _pop_mode_temporarily(), _disable_current_modes():
        yield
