"""Layers that quantize their inputs while they run: linear and recurrent ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from intact8.arithmetic.recurrent import GATES, state_count

from .builder import Value
from .lowering import OpContext, Rule

Fields = dict[str, Value | int | None]

KINDS = {"lstm": 0, "gru": 1, "rnn": 2}
"""Kind → its number in the library; an RNN with ReLU has the next one."""


def quantized_rows(ctx: OpContext, x: Value, together: bool) -> tuple[Value, ...]:
    """Return the rows of ``x`` as bytes, and their scales or one of all ``together``; made once for all readers.

    Rows of a GELU are made from its input; nobody may need its results any more.
    """
    b = ctx.builder
    rows, width = x.size // x.shape[-1], x.shape[-1]
    writer = next((c for c in b.chains.values() if c.y == x.index and not together), None)
    inner = writer.argument_of("gelu") if writer is not None else None

    def make() -> tuple[Value, ...]:
        q = b.value((rows, -(-width // 4) * 4), "uint8")
        scales = b.value((1 if together else rows,), "float32")
        b.step(
            "quantize_rows",
            x=x if inner is None else replace(x, index=inner.value),
            q=q,
            scales=scales,
            rows=rows,
            width=width,
            together=int(together),
            gelu=int(inner is not None),
        )
        return q, scales

    return b.once(("quantize_rows", x.index, width, together), make)


def product(
    ctx: OpContext, rows: tuple[Value, ...], depth: int, weight: Fields, scale: Value, bias: Value | None, y: Value
) -> None:
    """Add the product of quantized rows with the weights (columns, depth) of some fields."""
    q, scales = rows
    ctx.builder.step(
        "dynamic_linear",
        q=q,
        scales=scales,
        scale=scale,
        bias=bias,
        y=y,
        rows=q.shape[0],
        depth=depth,
        columns=scale.size,
        single=int(scales.size == 1),
        **weight,
    )


def dynamic_linear(ctx: OpContext) -> Value:
    """Lower a linear layer whose input is quantized while it runs."""
    x, p = ctx.builder.plain(ctx.inputs[0]), ctx.op.arrays
    y = ctx.make()
    if y.size:
        weight, scale = ctx.weight("weight", lambda: p["weight"]), ctx.constant("scale", lambda: p["scale"])
        rows = quantized_rows(ctx, x, ctx.op.attrs["granularity"] == "per_tensor")
        product(ctx, rows, x.shape[-1], weight, scale, ctx.stored("bias"), y)
    return y


def recurrent(ctx: OpContext) -> Value | None:
    """Lower a recurrent layer: per direction the products of all inputs, then all time steps in one step."""
    b, kind, t, p = ctx.builder, ctx.op.kind, ctx.op.attrs, ctx.op.arrays
    inputs = [b.plain(x) for x in ctx.inputs]
    x, hidden, directions = inputs[0], t["hidden"], 1 + t["bidirectional"]
    time, batch, width = x.shape
    if not time or not batch:
        return None
    states = inputs[1 : 1 + state_count(kind)] if t["states"] else []
    rows, y = quantized_rows(ctx, x, together=False), ctx.make()
    for d in range(directions):

        def part(role: str, d: int = d) -> Value:
            return ctx.constant(f"{role} {d}", lambda: np.ascontiguousarray(p[role][d]))

        def weight(role: str, d: int = d) -> Fields:
            return ctx.weight(f"{role} {d}", lambda: np.ascontiguousarray(p[role][d]))

        products = b.value((time, batch, GATES[kind] * hidden), "float32")
        product(ctx, rows, width, weight("weight_ih"), part("scale_ih"), part("bias"), products)
        b.step(
            "recurrent",
            input=products,
            row_scales=rows[1],
            scale=part("scale_hh"),
            bias=part("bias_hh") if kind == "gru" else None,
            tanh=ctx.stored("tanh"),
            h0=states[0] if states else None,
            c0=states[1] if len(states) == 2 else None,
            lengths=inputs[-1] if t["lengths"] else None,
            y=y,
            kind=KINDS[kind] + (kind == "rnn" and "tanh" not in p),
            time=time,
            batch=batch,
            size=hidden,
            reverse=d,
            states=int(t["result"] != "steps"),
            steps=int(t["result"] != "states"),
            h0_offset=d * batch * hidden,
            y_offset=d * hidden,
            y_row=directions * hidden,
            **weight("weight_hh"),
        )
    return y


RULES: dict[str, Rule] = {"dynamic_linear": dynamic_linear, **dict.fromkeys(KINDS, recurrent)}
