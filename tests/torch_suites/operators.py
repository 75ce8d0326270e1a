"""Every operator of torch, with the sample inputs torch tests it with (``common_methods_invocations.op_db``)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .case import Case, Network, Unfit

LOOKED_AT = 40
"""Samples of an operator that are looked at for one that fits."""


def cases(*, alone: bool = True, in_place: bool = True) -> Iterator[Case]:
    """Operators between two linear layers, alone, and their forms that write in place.

    Args:
        alone: also without the layers.
        in_place: also in place.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if torch.float32 not in info.dtypes or ("." in info.name and info.name.split(".")[0] in ("ops", "_refs")):
            continue
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        yield Case(name, _builder(info, info.op, True))
        if alone:
            yield Case(f"{name} (alone)", _builder(info, info.op, False))
        if in_place and info.inplace_variant is not None:
            yield Case(f"{name} (in place)", _builder(info, info.inplace_variant, True))


def _builder(info: Any, function: Callable[..., Any], layers: bool) -> Callable[[], Network]:
    def build() -> Network:
        torch.manual_seed(0)
        reason, empty = "no sample has a float tensor of two dimensions or more", []
        for sample in itertools.islice(info.sample_inputs("cpu", torch.float32, requires_grad=False), LOOKED_AT):
            leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
            first = next((v for v in leaves if isinstance(v, Tensor)), None)
            if first is None or not first.is_floating_point() or first.ndim < 2 or first.numel() < 4:
                continue
            try:
                model = Applied(function, leaves, spec, _domain(info), layers)
                holds_numbers = _deterministic(model, first.shape)
            except Unfit as error:
                reason = str(error)
                continue
            except Exception as error:  # noqa: BLE001  # a sample of a failure, or one that needs these very values
                reason = f"{type(error).__name__}: {error}"
                continue
            network = Network(model, _calls(model, tuple(first.shape)), model.activations == 1)
            if holds_numbers:
                return network
            empty.append(network)
        if empty:
            return empty[0]
        raise Unfit(reason[:200])

    return build


class Drawn(TorchDispatchMode):
    """Raise Unfit where random numbers are drawn: samples of torch's own tests set the seed before."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unfit("its results are random")
        return func(*args, **(kwargs or {}))


def _deterministic(model: Applied, shape: torch.Size) -> bool:
    """Return whether every result holds numbers; raise Unfit for what is random, complex or without a tensor."""
    x = torch.randn(shape)
    with torch.no_grad(), Drawn():
        results = [pytree.tree_leaves(model(x.clone())) for _ in range(2)]
    first, second = ([t for t in found if isinstance(t, Tensor)] for found in results)
    if not first or any(t.is_complex() or t.layout != torch.strided for t in first):
        raise Unfit("no real, dense tensor comes out")
    if not all(
        (a.shape == b.shape and torch.equal(a, b)) or a.isnan().any() for a, b in zip(first, second, strict=True)
    ):
        raise Unfit("its results are random")
    return all(t.numel() for t in first)


def _domain(info: Any) -> tuple[float, float] | None:
    """Where the operator is defined, a little inside."""
    low, high = getattr(info, "domain", None) or (None, None)
    if low is None and high is None:
        return None
    start = low + 0.05 if low is not None else high - 3.0
    return start, high - 0.05 if high is not None else start + 3.0


class Applied(nn.Module):
    """An operator on an activation.

    The first tensor of the sample is the network's input, further ones of its shape come from the same input by
    another layer; the rest are buffers.
    """

    def __init__(
        self, function: Callable[..., Any], leaves: list[Any], spec: pytree.TreeSpec, domain: Any, layers: bool
    ) -> None:
        super().__init__()
        self.function, self.spec, self.domain = function, spec, domain
        self.fixed = [None if isinstance(v, Tensor) else v for v in leaves]
        tensors = {i: v for i, v in enumerate(leaves) if isinstance(v, Tensor)}
        self.first, example = next(iter(tensors.items()))
        alike = [
            i for i, v in tensors.items() if i != self.first and v.is_floating_point() and v.shape == example.shape
        ]
        self.alike = alike if layers else []
        self.activations = 1 + len(self.alike)
        self.held = [i for i in tensors if i != self.first and i not in self.alike]
        for i in self.held:
            self.register_buffer(f"held{i}", tensors[i].detach().clone())
        width = example.shape[-1]
        self.before = nn.Linear(width, width) if layers else nn.Identity()
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in self.alike)
        self.behind: nn.Module = nn.Identity()
        if layers:
            with torch.no_grad():
                result = self(torch.randn(example.shape))
            if isinstance(result, Tensor) and result.is_floating_point() and result.ndim and result.shape[-1]:
                self.behind = nn.Linear(result.shape[-1], 4)

    def inside(self, x: Tensor) -> Tensor:
        """Within the operator's domain."""
        return x if self.domain is None else self.domain[0] + (self.domain[1] - self.domain[0]) * torch.sigmoid(x)

    def forward(self, x: Tensor) -> Any:
        values = list(self.fixed)
        values[self.first] = self.inside(self.before(x))
        for i, layer in zip(self.alike, self.others, strict=True):
            values[i] = self.inside(layer(x))
        for i in self.held:
            values[i] = getattr(self, f"held{i}")
        args, kwargs = pytree.tree_unflatten(values, self.spec)
        return self.behind(self.function(*args, **kwargs))


def _calls(model: nn.Module, shape: tuple[int, ...]) -> Callable[[int], tuple[Any, ...]]:
    """Calls with any number of samples in dimension 0 where the results are per sample, of one shape otherwise."""
    if _per_sample(model, shape):
        return lambda n: (torch.randn(n, *shape[1:]),)
    return lambda n: (torch.randn(shape),)


def _per_sample(model: nn.Module, shape: tuple[int, ...]) -> bool:
    x = torch.randn(6, *shape[1:])
    try:
        with torch.no_grad():
            whole, part = (pytree.tree_leaves(model(copy.deepcopy(v))) for v in (x, x[2:]))
    except Exception:  # noqa: BLE001  # it needs the sample's own shape
        return False
    return all(
        a.ndim > 0
        and a.shape[0] == 6
        and a[2:].shape == b.shape
        and torch.allclose(a[2:].double(), b.double(), 1e-4, 1e-4, equal_nan=True)
        for a, b in zip(whole, part, strict=True)
        if isinstance(a, Tensor)
    )
