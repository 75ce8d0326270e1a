"""Attention as one step: scores, softmax and context of a head without leaving the cache.

A chain of operations of the program is one step where nothing else reads what lies inside. Integers are those of the
separate operations; float islands may round differently from them, as they may everywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

from .builder import Value, float_bits
from .lowering import OpContext

INTEGERS, QUANTIZED, SCORES, FLOATS = range(4)
"""Forms of the library: what is uint8. All; all but the softmax; queries, keys and values; nothing."""


@dataclass(frozen=True)
class Attention:
    """A chain of operations.

    Attributes:
        form: INTEGERS, QUANTIZED or FLOATS; SCORES where the inputs of FLOATS turn out to be dequantized.
        product: the product of queries and keys.
        softmax: the softmax, and the quantization of its results.
        context: the product of probabilities and values.
        reads: queries, transposed keys, values, and the mask if there is one.
        scale: what scores, as real numbers, are multiplied by.
        value_scale: scale of dequantized values.
        inner: names of the operations that have no steps of their own.
    """

    form: int
    product: Op
    softmax: tuple[Op, ...]
    context: Op
    reads: tuple[str, ...]
    scale: float
    value_scale: float
    inner: frozenset[str]


class _Readers(NamedTuple):
    """Operations by the tensor they read, and the tensors that must be there whoever reads them."""

    program: Program
    found: dict[str, list[Op]]
    wanted: Collection[str]

    def only(self, op: Op, *kinds: str) -> Op | None:
        """Return the only operation that reads the result of ``op``, where it is of one of these kinds."""
        found = self.found.get(op.name, [])
        return found[0] if len(found) == 1 and op.name not in self.wanted and found[0].kind in kinds else None


def find_attention(program: Program, wanted: Collection[str]) -> dict[str, Attention]:
    """Return the chains of a program by the name of their last operation.

    Args:
        program: every shape in numbers.
        wanted: tensors that are outputs or given.
    """
    found: dict[str, list[Op]] = {}
    for op in program.ops:
        for name in set(op.inputs):
            found.setdefault(name, []).append(op)
    readers = _Readers(program, found, wanted)
    chains = [
        _integers(readers, op) or _islands(readers, op) if op.kind == "matmul" else _floats(readers, op)
        for op in program.ops
        if op.kind in ("matmul", "float.matmul")
    ]
    return {c.context.name: c for c in chains if c is not None and _fits(program, c)}


def _last_axis(readers: _Readers, op: Op) -> bool:
    return bool(op.attrs["axis"] in (-1, len(readers.program.tensors[op.name].shape) - 1))


def _integers(readers: _Readers, product: Op) -> Attention | None:
    softmax = readers.only(product, "softmax")
    context = readers.only(softmax, "matmul") if softmax and softmax.inputs[0] == product.name else None
    if softmax is None or context is None or not _last_axis(readers, softmax) or context.inputs[0] != softmax.name:
        return None
    reads = (*product.inputs, context.inputs[1], *softmax.inputs[1:])
    return Attention(INTEGERS, product, (softmax,), context, reads, 1.0, 1.0, frozenset((product.name, softmax.name)))


def _float_softmax(readers: _Readers, op: Op) -> tuple[Op, tuple[str, ...], float, list[str]] | None:
    """Return the softmax of the results of ``op``, scaled and masked; its masks, the factor, and what lies between."""
    scale, masks, inner = 1.0, tuple[str, ...](), [op.name]
    after = readers.only(op, "float.affine_scalar", "float.add", "float.softmax")
    while after is not None and after.kind == "float.affine_scalar" and not after.attrs["add"] and not masks:
        scale, op = scale * after.attrs["mul"], after
        inner.append(op.name)
        after = readers.only(op, "float.affine_scalar", "float.add", "float.softmax")
    if after is not None and after.kind == "float.add" and len(after.inputs) == 2:
        masks = tuple(name for name in after.inputs if name != op.name)
        inner.append(after.name)
        after = readers.only(after, "float.softmax")
    if after is None or after.kind != "float.softmax" or len(masks) > 1 or not _last_axis(readers, after):
        return None
    if len(after.inputs) != 1:
        return None
    return after, masks, scale, inner


def _islands(readers: _Readers, product: Op) -> Attention | None:
    """Return a chain whose scores and probabilities are integers around a softmax of floats."""
    real = readers.only(product, "dequantize")
    found = _float_softmax(readers, real) if real is not None else None
    quantize = readers.only(found[0], "quantize") if found is not None else None
    context = readers.only(quantize, "matmul") if quantize is not None else None
    if found is None or quantize is None or context is None or context.inputs[0] != quantize.name:
        return None
    softmax, masks, scale, inner = found
    scale *= readers.program.tensors[product.name].scale or 1.0
    names = frozenset((product.name, *inner, softmax.name, quantize.name))
    reads = (*product.inputs, context.inputs[1], *masks)
    return Attention(QUANTIZED, product, (softmax, quantize), context, reads, scale, 1.0, names)


def _floats(readers: _Readers, product: Op) -> Attention | None:
    """Return a chain of floats, whose inputs may be dequantized integers."""
    found = _float_softmax(readers, product)
    context = readers.only(found[0], "float.matmul") if found is not None else None
    if found is None or context is None or context.inputs[0] != found[0].name:
        return None
    softmax, masks, scale, inner = found
    makers = {op.name: op for op in readers.program.ops}
    sources, tensors = [], readers.program.tensors
    for name in (*product.inputs, context.inputs[1]):
        names, factor = [], 1.0
        op = makers.get(name)
        while op is not None and op.kind == "float.affine_scalar" and not op.attrs["add"] and name != context.inputs[1]:
            names.append(op.name)
            factor *= op.attrs["mul"]
            op = makers.get(op.inputs[0])
        source = op.name if op is not None else name if not names else makers[names[-1]].inputs[0]
        sources.append((source, factor, names, op if op is not None and op.kind == "dequantize" else None))
    integers = all(op is not None for *_, op in sources)
    reads, value_scale = [], 1.0
    for i, (source, factor, names, op) in enumerate(sources):
        scale *= factor
        if integers and op is not None:
            names, source = [*names, op.name], op.inputs[0]
            if i == 2:
                value_scale = tensors[source].scale or 1.0
            else:
                scale *= tensors[source].scale or 1.0
        # What only this chain reads needs no step.
        inner += [n for n in names if len(readers.found[n]) == 1 and n not in readers.wanted]
        reads.append(source)
    form = SCORES if integers else FLOATS
    return Attention(
        form, product, (softmax,), context, (*reads, *masks), scale, value_scale, frozenset((*inner, softmax.name))
    )


def _fits(program: Program, chain: Attention) -> bool:
    """Return whether the library takes these shapes: matrices of samples and heads, the same for all inputs."""
    q, k, v, *mask = (program.tensors[name].shape for name in chain.reads)
    scores = (*q[:-1], k[-1])
    broadcast = len(mask) == 1 and (len(mask[0]) > len(scores) or mask[0][-1] != k[-1])
    wide = any(m not in (1, s) for m, s in zip(mask[0][::-1], scores[::-1], strict=False)) if mask else False
    kinds = {program.tensors[name].dtype for name in chain.reads[:3]}
    masks = {program.tensors[name].dtype for name in chain.reads[3:]}
    return (
        len(q) in (3, 4)
        and 0 not in (*q, *k, *v)
        and q[:-2] == k[:-2] == v[:-2]
        and not broadcast
        and not wide
        and kinds == {"float32" if chain.form == FLOATS else "uint8"}
        and masks <= {"bool" if chain.form == INTEGERS else "float32"}
    )


def _strides(x: Value, rank: int) -> list[int]:
    """Return the strides of samples, heads, rows and columns of a tensor that broadcasts to that rank."""
    strides = [0 if n == 1 else s for n, s in zip(x.shape, x.strides(), strict=True)]
    strides = [0] * (rank - len(strides)) + strides
    return strides if rank == 4 else [strides[0], 0, *strides[1:]]


def lower_attention(ctx: OpContext, chain: Attention, values: dict[str, Value], tensors: dict[str, Tensor]) -> Value:
    """Lower a chain; ``ctx`` is that of its last operation."""
    rank, b = len(ctx.shape), ctx.builder
    q, k, v, *masks = (values[name] for name in chain.reads)
    q, v, *masks = (x if x.order[-1] == len(x.shape) - 1 else b.plain(x) for x in (q, v, *masks))
    # The heads of a position lie side by side, since the next operation joins them.
    y = ctx.make((0, 2, 1, 3) if rank == 4 else None)
    fields: dict[str, Value | int | None] = {}
    names = ("sample", "head", "row")
    for letter, x in (("q", q), ("v", v), ("y", y), ("mask", masks[0] if masks else None)):
        strides = _strides(x, rank)[:3] if x is not None else [0, 0, 0]
        fields |= {f"{letter}_{name}": s for name, s in zip(names, strides, strict=True)}
    fields |= dict(zip(("k_sample", "k_head", "k_depth", "k_row"), _strides(k, rank), strict=True))
    fields |= _arithmetic(ctx, chain, tensors)
    heads = q.shape[1] if rank == 4 else 1
    b.step(
        "attention",
        q=q,
        k=k,
        v=v,
        mask=masks[0] if masks else None,
        y=y,
        form=chain.form,
        samples=q.shape[0],
        heads=heads,
        queries=q.shape[-2],
        keys=k.shape[-1],
        depth=q.shape[-1],
        width=v.shape[-1],
        **fields,
    )
    return y


def _arithmetic(ctx: OpContext, chain: Attention, tensors: dict[str, Tensor]) -> dict[str, Value | int | None]:
    """Return the fields that are not sizes."""
    zero_q, zero_k, zero_v = (tensors[name].zero_point or 0 for name in chain.reads[:3])
    fields: dict[str, Value | int | None] = dict.fromkeys(
        (
            "score_ratio",
            "score_zero",
            "score_low",
            "score_high",
            "probability",
            "zero_p",
            "low_p",
            "high_p",
            "ratio",
            "zero",
            "low",
            "high",
        ),
        0,
    )
    fields |= {"zero_q": zero_q, "zero_k": zero_k, "zero_v": zero_v, "table": None}
    fields |= {"score_scale": float_bits(chain.scale), "value_scale": float_bits(chain.value_scale)}
    if chain.form in (SCORES, FLOATS):
        return fields
    scores, last, t = chain.product.attrs, chain.softmax[-1], ctx.op.attrs
    probability = tensors[last.name]
    fields |= {
        "score_ratio": float_bits(scores["a"] / scores["b"]),
        "score_zero": tensors[chain.product.name].zero_point,
    }
    fields |= {"score_low": scores["lo"], "score_high": scores["hi"]}
    fields |= {"zero_p": probability.zero_point, "low_p": last.attrs["lo"], "high_p": last.attrs["hi"]}
    fields |= {"ratio": float_bits(t["a"] / t["b"]), **ctx.grid()}
    if chain.form == INTEGERS:
        table = ctx.constant("table", lambda: last.arrays["table"])
        return fields | {"table": table, "probability": float_bits(last.attrs["levels"])}
    return fields | {"probability": float_bits(probability.scale or 1.0)}
