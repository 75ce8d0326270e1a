"""lstm, gru and rnn: one product for the inputs of all time steps, then one product and one pass per step.

The pass (``intact8.engines.onednn.recurrent_cell``) turns products into new states and integers for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from intact8.arithmetic.recurrent import GATES, HIDDEN, STEPS, part, state_count
from intact8.errors import InputError

from .dynamic_linear import Product, finish, quantizer
from .lowering import OpContext, Step
from .recurrent_cell import Call, Cell, Tables


@dataclass(frozen=True)
class _Direction:
    inputs: Product
    bias: Tensor
    hidden: Product
    bias_hh: Tensor | None


def lower_recurrent(ctx: OpContext) -> Step:
    """Return a layer whose inputs are those of ``intact8.opset.recurrent``."""
    op = ctx.op
    kind, t = op.kind, op.attrs
    states, size = state_count(kind), int(t["hidden"])
    time_steps, rows = ctx.inputs[0].shape[:2]
    directions = [
        _Direction(
            Product.of(ctx, ("ih", d), time_steps * rows, op.arrays["weight_ih"][d], op.arrays["scale_ih"][d]),
            torch.from_numpy(op.arrays["bias"][d].copy()),
            Product.of(ctx, ("hh", d), rows, op.arrays["weight_hh"][d], op.arrays["scale_hh"][d]),
            torch.from_numpy(op.arrays["bias_hh"][d].copy()) if kind == "gru" else None,
        )
        for d in range(1 + t["bidirectional"])
    ]
    tables = Tables.of(op.arrays["tanh"]) if "tanh" in op.arrays else None  # none for rectified states
    steps = 1.0 if tables is None else float(HIDDEN)
    in_rows = quantizer("per_row")
    name, width, wanted = op.name, size * len(directions), part(kind, t["result"])

    def step(x: Tensor, *rest: Tensor) -> Tensor:
        time, batch, _ = x.shape
        h0, c0 = (*rest[:states], None)[:2] if t["states"] else (None, None)
        inside = torch.arange(time).view(-1, 1) < rest[-1].view(1, -1) if t["lengths"] else None
        h0, c0 = (None if v is None else v * unit for v, unit in ((h0, steps), (c0, STEPS)))
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
                input=finish(n.inputs(u), s, n.bias).view(time, batch, GATES[kind] * size),
                h=zeros if h0 is None else h0[d].contiguous(),
                c=zeros.clone() if c0 is None else c0[d].contiguous(),
                y=own[states:],
                inside=inside,
                bias_hh=n.bias_hh,
                tables=tables,
                own_scales=h0 is not None,
            )
            cell = Cell(call)
            first = h0 is None  # nothing to multiply yet
            for i in range(time - 1, -1, -1) if d else range(time):
                cell.advance(i, None if first else n.hidden(cell.q))
                first = False
            torch.mul(call.h, 1 / steps, out=own[0])
            if kind == "lstm":
                torch.mul(call.c, 1 / STEPS, out=own[1])
        return out[wanted]

    return step
