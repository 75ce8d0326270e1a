"""Layers of LSTM, GRU and RNN in float32 with torch: the operations ``lstm``, ``gru`` and ``rnn``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .recurrent import part, state_count


def float_layer(kind: str, attrs: Mapping[str, Any], inputs: Sequence[Tensor], params: Mapping[str, Tensor]) -> Tensor:
    """Run one layer; the opset's kinds declare its inputs, attributes and parameters.

    Args:
        kind: lstm, gru or rnn.

    Returns:
        float32 (S + T, B, D·H): last states, then every step; or one of the two, as attribute ``result`` says.

    Example:
        >>> attrs = {"hidden": 3, "bidirectional": False, "states": False, "lengths": False, "result": "all"}
        >>> params = {"weight_ih": torch.ones(12, 2), "weight_hh": torch.ones(12, 3)}
        >>> float_layer("lstm", attrs, [torch.ones(5, 4, 2)], params).shape
        torch.Size([7, 4, 3])
    """
    x, names = inputs[0], ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    bias, two = "bias_ih" in params, bool(attrs["bidirectional"])
    weights = [params[n + d] for d in ("", ".reverse")[: 1 + two] for n in names if n + d in params]
    zero = x.new_zeros(1 + two, x.shape[1], attrs["hidden"])
    count = state_count(kind)
    states = tuple(inputs[1 : 1 + count]) if attrs["states"] else (zero,) * count
    name = kind if kind != "rnn" else f"rnn_{attrs['nonlinearity']}"
    function, hx = getattr(torch._VF, name), states if kind == "lstm" else states[0]
    if not attrs["lengths"]:
        y, *last = function(x, hx, weights, bias, 1, 0.0, False, two, False)
    else:
        y, last = _packed(function, x, inputs[-1], states, weights, bias, two)
    width = y.shape[2]
    return torch.cat([*(s.transpose(0, 1).reshape(1, -1, width) for s in last), y])[part(kind, attrs["result"])]


def _packed(
    function: Any, x: Tensor, lengths: Tensor, states: tuple[Tensor, ...], weights: list[Tensor], bias: bool, two: bool
) -> tuple[Tensor, list[Tensor]]:
    """Run sequences of different lengths; torch takes none of length 0, which keep their state."""
    steps = lengths.clamp(0, x.shape[0])
    packed = pack_padded_sequence(x, steps.clamp(min=1).cpu(), enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    assert order is not None and back is not None  # they are there unless lengths are said to be sorted
    hx = tuple(s.index_select(1, order) for s in states)
    data, *last = function(
        packed.data, packed.batch_sizes, hx if len(hx) == 2 else hx[0], weights, bias, 1, 0.0, False, two
    )
    y, _ = pad_packed_sequence(packed._replace(data=data), total_length=x.shape[0])
    some = (steps > 0).view(1, -1, 1)
    ends = [s.index_select(1, back) for s in last]
    return y * some, [torch.where(some, end, state) for end, state in zip(ends, states, strict=True)]
