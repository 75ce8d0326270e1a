"""Every layer of ``torch.nn``, with the sample inputs torch tests it with (``common_modules.module_db``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from .case import Case, Network, Unfit
from .networks import statistics

MOST = 12
"""Samples of one module, at most: attention has over sixty."""


def cases() -> Iterator[Case]:
    """Every module, with up to MOST of its samples. Losses are left out: a deployed network has none."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.name.endswith("Loss"):
            continue
        torch.manual_seed(0)
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
        fit = [(i, s) for i, s in enumerate(samples) if s.forward_input is not None and s.desc != "zero_batch"]
        for k in range(min(MOST, len(fit))):
            number, sample = fit[k * len(fit) // min(MOST, len(fit))]
            yield Case(f"{info.name} {number} {sample.desc}".strip(), _builder(info, sample))


def _builder(info: Any, sample: Any) -> Callable[[], Network]:
    def build() -> Network:
        made, given = sample.constructor_input, sample.forward_input
        layer = info.module_cls(*made.args, **made.kwargs).eval()
        statistics(layer)
        leaves, spec = pytree.tree_flatten((tuple(given.args), dict(given.kwargs)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not places:
            raise Unfit("takes no tensor")
        model: nn.Module = Wrapped(layer, leaves, spec, places)
        tensors = [leaves[i] for i in places]
        if len(leaves) == 1 and tensors[0].is_floating_point() and tensors[0].ndim:
            model = Between(layer, tensors[0])
        return Network(model, _calls(model, tensors))

    return build


class Between(nn.Module):
    """A linear layer before and behind a layer of one tensor."""

    def __init__(self, layer: nn.Module, example: Tensor) -> None:
        super().__init__()
        with torch.no_grad():
            result = layer(example.clone())
        usual = isinstance(result, Tensor) and result.is_floating_point() and result.ndim and result.shape[-1]
        self.before = nn.Linear(example.shape[-1], example.shape[-1])
        self.layer = layer
        self.behind = nn.Linear(result.shape[-1], 4) if usual else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.layer(self.before(x)))


class Wrapped(nn.Module):
    """A layer whose tensors are given in a row; what else it takes is fixed."""

    def __init__(self, layer: nn.Module, leaves: list[Any], spec: pytree.TreeSpec, places: list[int]) -> None:
        super().__init__()
        self.layer = layer
        self.fixed = [None if i in places else leaf for i, leaf in enumerate(leaves)]
        self.spec, self.places = spec, places

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.layer(*args, **kwargs)


def _calls(model: nn.Module, examples: list[Tensor]) -> Callable[[int], tuple[Any, ...]]:
    """Calls of any batch size where the layer allows one in dimension 0 of everything, of the sample's otherwise."""

    def fixed(_: int) -> tuple[Any, ...]:
        return tuple(_like(t, tuple(t.shape)) for t in examples)

    def free(n: int) -> tuple[Any, ...]:
        return tuple(_like(t, (n, *t.shape[1:])) for t in examples)

    if not all(t.ndim and t.is_floating_point() for t in examples) or len({t.shape[0] for t in examples}) > 1:
        return fixed
    try:
        with torch.no_grad():
            results = [model(*copy.deepcopy(free(n))) for n in (5, 7)]
    except Exception:  # noqa: BLE001  # its dimension 0 is something else
        return fixed
    firsts = [{t.shape[0] if t.ndim else 0 for t in pytree.tree_leaves(r) if isinstance(t, Tensor)} for r in results]
    return free if firsts == [{5}, {7}] else fixed


def _like(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape) if t.is_floating_point() else t.clone()
