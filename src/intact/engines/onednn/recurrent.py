"""lstm, gru and rnn: one product for the inputs of all time steps, then one product and a few small calls per step.

A step costs as many microseconds as it makes calls, so that everything that can be is done once: gate values come in
table steps (their scales hold the factor), the tables of all gates are one and are read by one call, hidden states are
kept in steps of 1/127, and the hidden product is added to the input's by oneDNN itself. Every call is one of the
roundings of ``intact.arithmetic.recurrent``, or exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intact.arithmetic.dynamic import ZERO
from intact.arithmetic.recurrent import GATES, HIDDEN, REACH, STEPS, part, state_count
from intact.errors import InputError
from intact.program.ops import Array

from .dynamic import quantizer
from .products import LINEAR, LINEAR_PACK, LINEAR_SUM
from .site import Packed, Site, Step

END = STEPS * REACH
"""The table has entries for −END … END."""

PLAIN: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
SUMMED: tuple[Any, ...] = (None, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], "")

Hidden = Callable[[Tensor, Tensor], Tensor]
"""(input part of the gates, hidden state) → gates; the first is overwritten."""


@dataclass(frozen=True)
class _Product:
    """Packed weights with their scales."""

    pack: Packed
    scale: Tensor
    zeros: Tensor

    @staticmethod
    def of(site: Site, name: str, d: int) -> _Product:
        """Weights ``ih`` or ``hh`` of direction ``d``."""
        weight, scale = site.op.arrays[f"weight_{name}"][d], site.op.arrays[f"scale_{name}"][d]
        shape = [site.inputs[0].shape[1], weight.shape[1]]
        pack = site.pack((name, d), lambda: LINEAR_PACK(torch.from_numpy(weight.copy()), shape))
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        return _Product(pack, torch.from_numpy(scale.copy()), zeros)

    def __call__(self, u: Tensor) -> Tensor:
        """fl(fl(acc)·scale), u (rows, K) uint8."""
        y: Tensor = LINEAR(u, 1.0, ZERO, self.pack.weight, self.scale, self.zeros, None, *PLAIN)
        return y

    def add_to(self, v: Tensor, u: Tensor) -> Tensor:
        """``v`` plus that, in the memory of ``v``."""
        y: Tensor = LINEAR_SUM(u, 1.0, ZERO, self.pack.weight, self.scale, self.zeros, v, *SUMMED)
        return y


@dataclass(frozen=True)
class _Lookup:
    """Tables side by side, and where the middle of each gate's lies: (gates, 1, 1) float32."""

    table: Tensor
    middle: Tensor

    def __call__(self, v: Tensor, index: _Index, out: Tensor) -> None:
        """Table entries of ``v``, steps within the table, (gates, B, H), overwritten; ``out`` is flat."""
        index.whole.copy_(v.round_().add_(self.middle))
        torch.index_select(self.table, 0, index.flat, out=out)


class _Index:
    """Memory for the places in a table, in two shapes: a view costs as much as an addition."""

    def __init__(self, *shape: int) -> None:
        self.whole = torch.empty(shape, dtype=torch.int32)
        self.flat = self.whole.view(-1)


@dataclass(frozen=True)
class _Direction:
    """What one direction needs."""

    inputs: _Product
    hidden: _Product
    bias: Tensor
    bias_hh: Tensor | None


def lower_recurrent(site: Site) -> Step:
    """A layer; inputs as in ``intact.program.ops``."""
    op = site.op
    kind, t, relu = op.kind, op.attrs, op.attrs.get("nonlinearity") == "relu"
    gates, states, size = GATES[kind], state_count(kind), int(t["hidden"])
    directions = [
        _Direction(
            _Product.of(site, "ih", d),
            _Product.of(site, "hh", d),
            torch.from_numpy(op.arrays["bias"][d].copy()),
            torch.from_numpy(op.arrays["bias_hh"][d].copy()) if kind == "gru" else None,
        )
        for d in range(1 + t["bidirectional"])
    ]
    loop: _Loop = {"lstm": _lstm, "gru": _gru, "rnn": _relu if relu else _rnn}[kind]
    tables = () if relu else _tables(op.arrays["tanh"], kind)
    unit = torch.tensor(1.0 if relu else 1 / HIDDEN, dtype=torch.float32)
    alone = site.inputs[0].shape[1] == 1
    plain = [
        _single(n.hidden, w) if alone else _plain(n.hidden)
        for n, w in zip(directions, op.arrays["weight_hh"], strict=True)
    ]
    rows = quantizer("per_row")
    name, width, wanted = op.name, size * len(directions), part(kind, t["result"])

    def step(x: Tensor, *rest: Tensor) -> Tensor:
        time, batch, _ = x.shape
        h0, c0 = (*rest[:states], None)[:2] if t["states"] else (None, None)
        inside = _inside(rest[-1], time) if t["lengths"] else None
        u, s = rows(x.reshape(time * batch, -1))
        given = [s, *(v for v in (h0, c0) if v is not None)]
        if not all(bool(torch.isfinite(v).all()) for v in given):
            raise InputError("NaN or infinity reached a recurrent layer", where=name, remedy="repair the data")
        out = torch.empty(states + time, batch, width)
        for d, direction in enumerate(directions):
            p = direction.inputs(u).mul_(s).add_(direction.bias).view(time, batch, gates * size)
            h = torch.empty(time, batch, size)
            first = None if h0 is None else h0[d] if relu else h0[d] * HIDDEN
            cell = torch.zeros(batch, size) if c0 is None else c0[d] * STEPS
            order = range(time - 1, -1, -1) if d else range(time)
            scaled = h0 is not None and (kind == "gru" or inside is not None)
            hidden = _scaled(direction.hidden) if scaled else plain[d]
            last = loop(direction, tables, p, h, order, first, cell, inside, hidden)
            if inside is not None:
                h.masked_fill_(~inside, 0.0)
            own = out[:, :, d * size : (d + 1) * size]
            torch.mul(h, unit, out=own[states:])
            torch.mul(last, unit, out=own[0])
            if kind == "lstm":
                torch.mul(cell, 1 / STEPS, out=own[1])
        return out[wanted]

    return step


def _inside(lengths: Tensor, time: int) -> Tensor:
    """Which steps belong to the sequences, (T, B, 1)."""
    return (torch.arange(time).view(-1, 1) < lengths.view(1, -1)).unsqueeze(-1)


def _tables(tanh: Array, kind: str) -> tuple[_Lookup, ...]:
    """For the gates read together, and for the one read after them."""
    half = torch.from_numpy(tanh.copy())
    whole = torch.cat([-half[1:].flip(0), half])
    sigmoid, hidden = whole * 0.5 + 0.5, whole * HIDDEN
    single = _Lookup(hidden, torch.full((1, 1, 1), float(END)))
    if kind == "rnn":
        return (single,)
    if kind == "gru":
        return _Lookup(sigmoid, torch.full((2, 1, 1), float(END))), single
    middle = torch.tensor([END, END, END + len(whole), END], dtype=torch.float32).view(4, 1, 1)
    return _Lookup(torch.cat([sigmoid, whole * STEPS]), middle), single


def _plain(product: _Product) -> Hidden:
    """Rows within −127 … 127."""
    return lambda v, h: product.add_to(v, h.round().add_(ZERO).to(torch.uint8))


def _single(product: _Product, weight: Array) -> Hidden:
    """One such row, by torch's product of int8 matrices: a third of the time, where it gives the exact sums.

    It does not for a weight of one column (torch 2.13), so a few rows are tried first.
    """
    multiply, columns = getattr(torch, "_int_mm", None), torch.from_numpy(weight.copy()).t()
    rng = np.random.default_rng(0)
    rows = [np.full((1, len(columns)), 127, np.int8), rng.integers(-127, 128, (1, len(columns)), np.int8)]
    if multiply is None or any(
        (multiply(torch.from_numpy(q), columns).numpy() != q.astype(np.int64) @ weight.T.astype(np.int64)).any()
        for q in rows
    ):
        return _plain(product)
    return lambda v, h: v.add_(multiply(h.round().to(torch.int8), columns).mul(product.scale))


def _scaled(product: _Product) -> Hidden:
    """Rows with a scale of their own."""

    def general(v: Tensor, h: Tensor) -> Tensor:
        s = h.abs().amax(-1, keepdim=True).clamp_min_(HIDDEN).div_(HIDDEN)
        return v.add_(product((h / s).round_().add_(ZERO).to(torch.uint8)).mul_(s))

    return general


_Loop = Callable[
    [
        _Direction,
        Sequence[_Lookup],
        Tensor,
        Tensor,
        Sequence[int],
        Tensor | None,
        Tensor,
        Tensor | None,
        Hidden,
    ],
    Tensor,
]
"""direction, tables, input parts (T, B, G·H), hidden states to be written (T, B, H), order of the steps, first hidden
state, cell state (overwritten with the last one), which steps are inside, hidden product → last hidden state."""


def _lstm(
    n: _Direction,
    tables: Sequence[_Lookup],
    p: Tensor,
    out: Tensor,
    order: Sequence[int],
    h: Tensor | None,
    c: Tensor,
    inside: Tensor | None,
    hidden: Hidden,
) -> Tensor:
    time, batch, size = out.shape
    gates, index, place = torch.empty(4, batch, size), _Index(4, batch, size), _Index(1, batch, size)
    (i, f, g, o), steps = gates.unbind(0), torch.empty(1, batch, size)
    flat, cell = gates.view(-1), steps[0]
    parts, by_gate, written = p.unbind(0), p.view(time, batch, 4, size).transpose(1, 2).unbind(0), out.unbind(0)
    read, read_cell = tables
    tanh, old = torch.empty(batch, size), torch.empty(0)
    tanh_flat = tanh.view(-1)
    first = _scaled(n.hidden)
    for t in order:
        if h is not None:
            (hidden if t != order[0] else first)(parts[t], h)
        read(by_gate[t].clamp_(-END, END), index, flat)
        if inside is not None:
            old = c.clone()
        c.mul_(f).add_(g.mul_(i))
        torch.clamp(c, -END, END, out=cell)
        read_cell(steps, place, tanh_flat)
        new = torch.mul(o, tanh, out=written[t])
        if inside is None:
            h = new
            continue
        torch.where(inside[t], c, old, out=c)
        h = torch.where(inside[t], new, torch.zeros_like(new) if h is None else h)
    return _last(h)


def _gru(
    n: _Direction,
    tables: Sequence[_Lookup],
    p: Tensor,
    out: Tensor,
    order: Sequence[int],
    h: Tensor | None,
    c: Tensor,
    inside: Tensor | None,
    hidden: Hidden,
) -> Tensor:
    time, batch, size = out.shape
    split = p.view(time, batch, 3, size).transpose(1, 2)
    candidates, parts, written = split[:, 2:].clone().unbind(0), p.unbind(0), out.unbind(0)
    assert n.bias_hh is not None
    split[:, 2] = n.bias_hh  # the hidden product of gate n is added to its own bias
    resets, products = split[:, :2].unbind(0), split[:, 2:].unbind(0)
    gates, index, place = torch.empty(2, batch, size), _Index(2, batch, size), _Index(1, batch, size)
    r, z, new, flat = gates[:1], gates[1], torch.empty(batch, size), gates.view(-1)
    new_flat = new.view(-1)
    read, read_new = tables
    for t in order:
        if h is not None:
            hidden(parts[t], h)
        read(resets[t].clamp_(-END, END), index, flat)
        read_new(candidates[t].add_(products[t].mul_(r)).clamp_(-END, END), place, new_flat)
        before = torch.zeros_like(out[0]) if h is None else h
        state = torch.add(new, (before - new).mul_(z), out=written[t])
        h = state if inside is None else torch.where(inside[t], state, before)
    return _last(h)


def _rnn(
    n: _Direction,
    tables: Sequence[_Lookup],
    p: Tensor,
    out: Tensor,
    order: Sequence[int],
    h: Tensor | None,
    c: Tensor,
    inside: Tensor | None,
    hidden: Hidden,
) -> Tensor:
    (read,), parts, written, flat = tables, p.unsqueeze(1).unbind(0), out.unbind(0), out.view(len(out), -1).unbind(0)
    index = _Index(1, *out.shape[1:])
    first = _scaled(n.hidden)
    for t in order:
        if h is not None:
            (hidden if t != order[0] else first)(parts[t][0], h)
        read(parts[t].clamp_(-END, END), index, flat[t])
        state = written[t]
        h = state if inside is None else torch.where(inside[t], state, torch.zeros_like(state) if h is None else h)
    return _last(h)


def _relu(
    n: _Direction,
    tables: Sequence[_Lookup],
    p: Tensor,
    out: Tensor,
    order: Sequence[int],
    h: Tensor | None,
    c: Tensor,
    inside: Tensor | None,
    hidden: Hidden,
) -> Tensor:
    """Hidden states without bound, quantized row by row at every step."""
    parts, written, rows = p.unbind(0), out.unbind(0), quantizer("per_row")
    for t in order:
        if h is not None:
            u, s = rows(h)
            parts[t].add_(n.hidden(u).mul_(s))
        state = torch.clamp_min(parts[t], 0.0, out=written[t])
        h = state if inside is None else torch.where(inside[t], state, torch.zeros_like(state) if h is None else h)
    return _last(h)


def _last(h: Tensor | None) -> Tensor:
    assert h is not None  # programs have no empty sequences
    return h
