"""Which function builds the nodes of an operation; what has none is refused."""

from __future__ import annotations

from collections.abc import Callable

from intact8.opset.op import Op

from . import elementwise, moves, pools, products
from .floats import FLOATS, island
from .lowering import OpContext, Value

LOWERINGS: dict[str, Callable[[OpContext], Value]] = {
    "conv": products.conv,
    "linear": products.linear,
    "matmul": products.matmul,
    "add": elementwise.add,
    "mul": elementwise.mul,
    "mean": pools.mean,
    "avg_pool": pools.avg_pool,
    "adaptive_avg_pool": pools.adaptive_avg_pool,
    "table": elementwise.table,
    "resize_linear": moves.resize_linear,
    "constant": moves.constant,
    "quantize": elementwise.quantize,
    "dequantize": elementwise.dequantize,
    **dict.fromkeys(moves.MOVES, moves.move),
}
"""Kind → what builds it."""


def lowering(op: Op) -> Callable[[OpContext], Value] | None:
    """Return what builds an op; None where nothing does. Interpolations are float ops of a moving kind."""
    if op.is_float:
        return island if op.kind.removeprefix("float.") in FLOATS else None
    return LOWERINGS.get(op.kind)
