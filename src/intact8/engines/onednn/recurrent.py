"""lstm, gru and rnn: one product for the inputs of all time steps, then one product and one pass per step.

The pass (``intact8.engines.onednn.recurrent_cell``) turns products into new states and integers for the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.dynamic import ZERO
from intact8.arithmetic.recurrent import GATES, HIDDEN, STEPS, part, state_count
from intact8.errors import InputError
from intact8.opset.op import Array

from . import torch_native
from .dynamic_linear import Product, quantizer, scaler
from .lowering import OpContext, Step
from .recurrent_cell import Call, CompiledCell, Tables, TorchCell


@dataclass(frozen=True)
class _Hidden:
    """The product of hidden states q + zero (B, H): int32 sums with their ``scale``, or scaled float32 without one."""

    multiply: Callable[[Tensor], Tensor]
    scale: Tensor | None
    zero: int


@dataclass(frozen=True)
class _Direction:
    inputs: Product
    bias: Tensor
    hidden: _Hidden
    bias_hh: Tensor | None


def lower_recurrent(ctx: OpContext) -> Step:
    """Return a layer whose inputs are those of ``intact8.opset.recurrent``."""
    op = ctx.op
    kind, t = op.kind, op.attrs
    states, size = state_count(kind), int(t["hidden"])
    time_steps, rows = ctx.inputs[0].shape[:2]
    compiled = torch_native.load()
    directions = [
        _Direction(
            Product.of(ctx, ("ih", d), time_steps * rows, op.arrays["weight_ih"][d], op.arrays["scale_ih"][d]),
            torch.from_numpy(op.arrays["bias"][d].copy()),
            _hidden(ctx, d, rows, compiled is not None),
            torch.from_numpy(op.arrays["bias_hh"][d].copy()) if kind == "gru" else None,
        )
        for d in range(1 + t["bidirectional"])
    ]
    tables = Tables.of(op.arrays["tanh"]) if "tanh" in op.arrays else None  # none for rectified states
    steps = 1.0 if tables is None else float(HIDDEN)
    in_rows, scale_rows = quantizer("per_row"), scaler("per_row")
    name, width, wanted = op.name, size * len(directions), part(kind, t["result"])

    def step(x: Tensor, *rest: Tensor) -> Tensor:
        time, batch, _ = x.shape
        h0, c0 = (*rest[:states], None)[:2] if t["states"] else (None, None)
        inside = torch.arange(time).view(-1, 1) < rest[-1].view(1, -1) if t["lengths"] else None
        u, s = in_rows(x.reshape(time * batch, -1))
        given = [s, *(v for v in (h0, c0) if v is not None)]
        if not all(bool(torch.isfinite(v).all()) for v in given):
            raise InputError("NaN or infinity reached a recurrent layer", where=name, remedy="repair the data")
        out = torch.empty(states + time, batch, width, dtype=torch.float32)
        for d, n in enumerate(directions):
            own = out[:, :, d * size : (d + 1) * size]
            zeros = torch.zeros(batch, size, dtype=torch.float32)
            call = Call(
                kind=kind,
                input=scale_rows(n.inputs(u), s, n.bias).view(time, batch, GATES[kind] * size),
                h=zeros if h0 is None else (h0[d] * steps).contiguous(),
                c=zeros.clone() if c0 is None else (c0[d] * STEPS).contiguous(),
                y=own[states:],
                inside=inside,
                bias_hh=n.bias_hh,
                tables=tables,
                own_scales=h0 is not None,
                zero=n.hidden.zero,
                scale=n.hidden.scale,
            )
            cell = TorchCell(call) if compiled is None else CompiledCell(compiled, call)
            first = h0 is None  # nothing to multiply yet
            for i in range(time - 1, -1, -1) if d else range(time):
                cell.advance(i, None if first else n.hidden.multiply(cell.q))
                first = False
            torch.mul(call.h, 1 / steps, out=own[0])
            if kind == "lstm":
                torch.mul(call.c, 1 / STEPS, out=own[1])
        return out[wanted]

    return step


def _hidden(ctx: OpContext, d: int, rows: int, compiled: bool) -> _Hidden:
    weight, scale = ctx.op.arrays["weight_hh"][d], ctx.op.arrays["scale_hh"][d]
    if rows == 1 and compiled and _exact_for_one(weight):
        columns = torch.from_numpy(weight.copy()).t()
        return _Hidden(lambda q: torch._int_mm(q, columns), torch.from_numpy(scale.copy()), 0)
    return _Hidden(Product.of(ctx, ("hh", d), rows, weight, scale), None, ZERO)


def _exact_for_one(weight: Array) -> bool:
    """Return whether torch's product of int8 matrices, which takes a third of the time for one row, gives the exact
    sums.

    It does not for a weight of one column (torch 2.13), so a few rows are tried.
    """
    multiply, columns = getattr(torch, "_int_mm", None), torch.from_numpy(weight.copy()).t()
    rng = np.random.default_rng(0)
    rows = [np.full((1, len(columns)), 127, np.int8), rng.integers(-127, 128, (1, len(columns)), np.int8)]
    return multiply is not None and all(
        (multiply(torch.from_numpy(q), columns).numpy() == q.astype(np.int64) @ weight.T.astype(np.int64)).all()
        for q in rows
    )
