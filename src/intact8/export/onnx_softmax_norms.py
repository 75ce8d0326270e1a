"""Integer softmax, layer norm, RMS norm and embedding as standard ONNX nodes.

Every node of float32 or float64 is one IEEE operation, so results are the bits of ``intact8.arithmetic.softmax`` and
``intact8.arithmetic.norms``. No sequence here is one that runtimes know and replace by a kernel of their own.
"""

from __future__ import annotations

import math

import numpy as np

from intact8.arithmetic.norms import MIDDLE
from intact8.arithmetic.softmax import FLOAT32_TERMS
from intact8.export.onnx_builder import Builder, Rule
from intact8.opset.kind import zero_point
from intact8.opset.op import Op, Tensor
from intact8.opset.shapes import axis_of

EXACT = 1 << 24
"""float32 adds integers exactly below this."""


def _softmax(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Return the table by Gather, the distances from the largest score as int32."""
    axis = axis_of(op, inputs[0].shape)
    size = inputs[0].shape[axis]
    short = isinstance(size, int) and size <= FLOAT32_TERMS
    scores = b.cast(x[0], "int32")
    if len(x) == 2:
        scores = b.node("Where", [x[1], b.constant(np.int32(0), "lowest"), scores])
    distance = b.node("Sub", [b.node("ReduceMax", [scores], axes=[axis], keepdims=1), scores])
    t = b.node("Gather", [b.constant(op.arrays["table"].astype(np.float32), "table"), distance], axis=0)
    if len(x) == 2:
        t = b.node("Where", [x[1], b.float(0.0, "nothing"), t])
    total = _sum(b, t, [axis], short)
    if len(x) == 2:
        total = b.node("Max", [total, b.float(1.0, "one")])
    rate = b.node("Div", [b.float(op.attrs["levels"], "levels"), total])
    return b.result(op, b.node("Mul", [t, rate]), y)


def _sum(b: Builder, value: str, axes: list[int], narrow: bool) -> str:
    """Return the exact sum as float32, computed in float64 where float32 might round."""
    if narrow:
        return b.node("ReduceSum", [value, b.ints(axes, "axes")], keepdims=1)
    wide = b.node("ReduceSum", [b.cast(value, "float64"), b.ints(axes, "axes")], keepdims=1)
    return b.cast(wide, "float32")


def _norm(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    """Statistics of rows are float64, elements float32."""
    t, meta = op.attrs, inputs[0]
    grouped, centered = op.kind == "group_norm", op.kind != "rms_norm"
    shift, rank = MIDDLE if centered else zero_point(meta), len(meta.shape)
    u, gain, offset = b.steps(x[0], shift), op.arrays["gain"], op.arrays["offset"]
    if grouped:
        channels = len(gain)
        n, axes = math.prod(d for d in meta.shape[1:] if isinstance(d, int)) // t["groups"], [2]
        u = b.shaped(u, (meta.shape[0], t["groups"], n))
        gain, offset = gain.reshape(-1, 1), offset.reshape(-1, 1)
    else:
        n, axes = math.prod(t["shape"]), list(range(rank - len(t["shape"]), rank))
    reach = max(shift, 255 - shift)
    squares = b.node("Mul", [u, u])
    if n * reach * reach >= EXACT:
        squares = b.cast(squares, "float64")
        spread = b.node("ReduceSum", [squares, b.ints(axes, "axes")], keepdims=1)
    else:
        spread = b.cast(b.node("ReduceSum", [squares, b.ints(axes, "axes")], keepdims=1), "float64")
    count = b.constant(np.float64(n), "count")
    spread = b.node("Mul", [spread, count])
    if centered:
        total = b.node("ReduceSum", [u, b.ints(axes, "axes")], keepdims=1)
        wide = b.cast(total, "float64")
        spread = b.node("Sub", [spread, b.node("Mul", [wide, wide])])
        u = b.node("Sub", [u, b.node("Div", [total, b.float(n, "count")])])
    root = b.node("Sqrt", [b.node("Add", [spread, b.constant(np.float64(t["eps"]), "eps")])])
    rate = b.cast(b.node("Div", [count, root]), "float32")
    v = b.node("Mul", [u, rate])
    if grouped:
        v = b.shaped(v, (meta.shape[0], channels, n * t["groups"] // channels))
    v = b.node("Add", [b.node("Mul", [v, b.constant(gain, "gain")]), b.constant(offset, "offset")])
    result = b.quantized(v, 0, t["lo"], t["hi"])
    return b.shaped(result, meta.shape) if grouped else result


def _embedding(b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str:
    return b.node("Gather", [b.constant(op.arrays["weight"], "weight"), b.index(op, x[0])], axis=0)


RULES: dict[str, Rule] = {
    "softmax": _softmax,
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _norm),
    "embedding": _embedding,
}
"""Kind → rule."""
