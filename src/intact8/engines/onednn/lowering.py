"""What a lowering rule gets: one operation, its real input tensors of the first run, and what it may overwrite."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact8.opset.kind import zero_point
from intact8.opset.op import Op
from intact8.opset.op import Tensor as Meta

Step = Callable[..., Tensor]
"""A prepared operation: tensors in, one tensor out. It overwrites an input only where the context allows it."""


class Packed:
    """Prepacked weights; a class of its own so that plans of several batch sizes can share it by weak reference."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight


@dataclass(frozen=True)
class OpContext:
    """One op, at the moment its step is built.

    Attributes:
        op: the operation.
        inputs: its real input tensors; later runs have the same shapes, dtypes and strides.
        metas: the program's descriptions of these tensors.
        out: the program's description of the result.
        may_overwrite: per input, whether its memory may be overwritten because nothing reads it later.
        packs: prepacked weights by op and input shape without batch: weights packed for one batch size serve all at
            full speed (measured), weights packed for no or a wrong image size do not.
        isa: see ``cpu.isa``.
        used_packs: filled with the packs used, so that the plan keeps them alive.
        spatial: whether an operation on images reads the result, directly or after others that keep its dimensions.
        batch: size of the dynamic dimension; None where the program has none.
    """

    op: Op
    inputs: list[Tensor]
    metas: list[Meta]
    out: Meta
    may_overwrite: tuple[bool, ...]
    packs: MutableMapping[tuple[Any, ...], Packed]
    isa: str
    used_packs: list[Packed]
    spatial: bool = True
    batch: int | None = None

    @property
    def lo(self) -> int:
        """Lower clamp of the output."""
        return int(self.op.attrs.get("lo", 0))

    @property
    def hi(self) -> int:
        """Upper clamp of the output."""
        return int(self.op.attrs.get("hi", 255))

    @property
    def z(self) -> int:
        """Zero point of the output, which is quantized."""
        return zero_point(self.out)

    @property
    def z_x(self) -> int:
        """Zero point of the first input, which is quantized."""
        return zero_point(self.metas[0])

    def ints(self, *names: str) -> tuple[list[int], ...]:
        """Return the attributes of these names, which are lists of integers."""
        return tuple([int(v) for v in self.op.attrs[name]] for name in names)

    def array(self, role: str) -> Tensor:
        """Return an array of the op, copied once for all plans: the table of an embedding may be most of the
        program."""
        return self.pack(("array", role), lambda: torch.from_numpy(np.array(self.op.arrays[role]))).weight

    def pack(self, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Packed:
        """Return the shared prepacked weights of ``key``, made at the first request."""
        key = (self.op.name, *key)
        found = self.packs.get(key)
        if found is None:
            found = self.packs[key] = Packed(make())
        self.used_packs.append(found)
        return found


Rule = Callable[[OpContext], Step]
"""Makes the step of one operation."""


def step_size(meta: Meta) -> float:
    """Return the scale of a quantized tensor, as the double that equals its float32 value."""
    return float(np.float32(1.0 if meta.scale is None else meta.scale))


def is_nhwc(x: Tensor) -> bool:
    """Return whether the memory of an (N, C, spatial…) tensor is dense with channels last."""
    return x.movedim(1, -1).is_contiguous()


def to_nhwc(x: Tensor) -> Tensor:
    """Return the same tensor with channels-last memory, copied where needed."""
    last = x.movedim(1, -1)
    return x if last.is_contiguous() else last.contiguous().movedim(-1, 1)
