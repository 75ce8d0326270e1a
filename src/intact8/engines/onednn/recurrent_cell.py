"""One time step of a recurrent layer: hidden product in, new states and their integers out.

Gate values count in table steps (their scales hold the factor), hidden states in steps of 1/127, cell states in steps
of 1/STEPS. Every operation is one of the roundings of ``intact8.arithmetic.recurrent``, or exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intact8.arithmetic.dynamic import ZERO
from intact8.arithmetic.dynamic_torch import row_scales
from intact8.arithmetic.recurrent import HIDDEN, REACH, STEPS
from intact8.opset.op import Array

END = STEPS * REACH
"""Tables have entries for −END … END."""


@dataclass(frozen=True)
class Tables:
    """float32 entries for −END … END: of σ, and of tanh in steps of hidden states and of cell states."""

    sigmoid: Tensor
    tanh: Tensor
    cell: Tensor

    @staticmethod
    def of(tanh: Array) -> Tables:
        """Return the tables from ``tanh`` as programs hold it, for 0 … END."""
        half = torch.from_numpy(tanh.copy())
        whole = torch.cat([-half[1:].flip(0), half])
        return Tables(whole * 0.5 + 0.5, whole * HIDDEN, whole * STEPS)


@dataclass(frozen=True)
class Call:
    """One direction of a layer in one call.

    Attributes:
        kind: lstm, gru or rnn.
        input: float32 (T, B, G·H), the input products of the gates.
        h, c: float32 (B, H), the initial hidden and cell states in their steps; each new state overwrites them.
        y: float32 (T, B, H), filled with hidden states as real numbers; 0 where a step is not inside.
        inside: bool (T, B), which steps belong to the sequences; None for all.
        bias_hh: float32 (H,), GRU's second bias of gate n.
        tables: None for an rnn with rectified states, which have no bound.
        own_scales: whether hidden states have scales of their own, since an initial state may exceed 1.
    """

    kind: str
    input: Tensor
    h: Tensor
    c: Tensor
    y: Tensor
    inside: Tensor | None
    bias_hh: Tensor | None
    tables: Tables | None
    own_scales: bool


class Cell:
    """Takes time steps by torch's operations.

    Attributes:
        q: uint8 (B, H), integers of the hidden states + ZERO.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._quantize_state()

    def _quantize_state(self) -> None:
        h, n = self._call.h, self._call
        if n.tables is None:
            s = row_scales(h)
        else:
            s = h.abs().amax(-1, keepdim=True).clamp_min(HIDDEN).div(HIDDEN) if n.own_scales else h.new_ones(1)
        self._scales = s
        self.q = (h / s).round().add(ZERO).to(torch.uint8)

    def advance(self, step: int, product: Tensor | None) -> None:
        """Take time step ``step`` with the scaled hidden product of ``q``; None stands for zero."""
        n = self._call
        h, c = getattr(self, f"_{n.kind}")(n.input[step], 0.0 if product is None else product * self._scales)
        inside = None if n.inside is None else n.inside[step].unsqueeze(-1)
        if inside is not None:
            h, c = torch.where(inside, h, n.h), torch.where(inside, c, n.c)
        n.h.copy_(h)
        n.c.copy_(c)
        torch.mul(h, 1.0 if n.tables is None else 1 / HIDDEN, out=n.y[step])
        if inside is not None:
            n.y[step].masked_fill_(~inside, 0.0)
        self._quantize_state()

    def _lstm(self, v: Tensor, product: Tensor | float) -> tuple[Tensor, Tensor]:
        n, t = self._call, self._tables
        i, f, g, o = (v + product).chunk(4, -1)
        c = _read(t.sigmoid, f) * n.c + _read(t.sigmoid, i) * _read(t.cell, g)
        return _read(t.sigmoid, o) * _read(t.tanh, c), c

    def _gru(self, v: Tensor, product: Tensor | float) -> tuple[Tensor, Tensor]:
        n, t = self._call, self._tables
        size = n.h.shape[1]
        assert n.bias_hh is not None
        hidden = torch.zeros_like(v) + product
        gates = _read(t.sigmoid, v[:, : 2 * size] + hidden[:, : 2 * size])
        r, z = gates.chunk(2, -1)
        new = _read(t.tanh, v[:, 2 * size :] + (hidden[:, 2 * size :] + n.bias_hh) * r)
        return new + (n.h - new) * z, n.c

    def _rnn(self, v: Tensor, product: Tensor | float) -> tuple[Tensor, Tensor]:
        n = self._call
        return (v + product).clamp_min(0.0) if n.tables is None else _read(n.tables.tanh, v + product), n.c

    @property
    def _tables(self) -> Tables:
        assert self._call.tables is not None  # every kind but rectified states has them
        return self._call.tables


def _read(table: Tensor, v: Tensor) -> Tensor:
    """Return the entries at R(v); beyond the ends the last ones."""
    return table[v.clamp(-END, END).round().add(END).to(torch.int32)]
