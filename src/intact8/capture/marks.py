"""Marks: a tensor of a model gets a number, by which the node that makes it is found in the captured graph.

Models of other tools say in their code where a tensor is quantized. A mark in that place is the identity, leaves no
operation in the graph, and survives whatever export and capture do to the code around it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from intact8.capture.aten_call import Call, Value, handles


@torch.library.custom_op("intact8::mark", mutates_args=())
def mark(x: Tensor, number: int) -> Tensor:
    """Return a copy of ``x``; :attr:`Captured.marks` has ``number`` beside the name of the node that makes ``x``."""
    return x.clone()


@mark.register_fake
def _(x: Tensor, number: int) -> Tensor:
    return torch.empty_like(x)


@handles("mark")
def record(c: Call) -> Value:
    """Note the number of a mark, and leave the mark out."""
    v = c.value(c["x"])
    c.builder.marks.append((v.name, int(c["number"])))
    return replace(v, storage=c.builder.new_storage())
