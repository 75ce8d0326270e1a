"""Rows of a table by index: integers, and floats decoded from integers."""

from __future__ import annotations

from intact8.arithmetic import bit_packing, moves
from intact8.arithmetic.bit_packing import group_count

from .attributes import CODE_ARRAYS, CODES, FLOATS, INT, ROWS
from .float_layers import linear as float_linear
from .kind import Call, Kind
from .op import Array, Op
from .shapes import Shape
from .types import QUANTIZED, signature
from .violation import need


def row_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the indices, and then the columns of the table."""
    weight = op.arrays["weight"].shape
    need(len(weight) == 2, f"weight of shape {weight} is not a matrix")
    return (*x[0], weight[1])


def rows(call: Call) -> Array:
    """Return the rows themselves."""
    return moves.rows(call.arrays["weight"], call.x[0])


def _coded(op: Op) -> tuple[int, int]:
    """Return the rows and columns of a matrix of codes, whose arrays fit each other."""
    t, weight, scale = op.attrs, op.arrays["weight"], op.arrays["scale"]
    need(t["bits"] in (4, 8), f"{t['bits']} bits, not 4 or 8")
    need(weight.ndim == 2, f"weight of shape {weight.shape} is not a matrix")
    columns, count = t["columns"], weight.shape[0]
    wanted = (count, columns if t["bits"] == 8 else -(-columns // 2))
    need(weight.shape == wanted, f"weight has shape {weight.shape}, not {wanted}")
    need(t["group"] < columns, f"groups of {t['group']} among {columns} columns")
    wanted = (count, group_count(columns, t["group"]))
    need(scale.shape == wanted, f"scale has shape {scale.shape}, not {wanted}")
    need(bool((scale > 0).all()), "scale holds a number that is not positive")
    return count, columns


def _decoded_row_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return (*x[0], _coded(op)[1])


def _decoded_linear_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    count, columns = _coded(op)
    if "bias" in op.arrays:
        need(op.arrays["bias"].shape == (count,), f"bias has shape {op.arrays['bias'].shape}, not {(count,)}")
    need(bool(x[0]) and x[0][-1] == columns, f"input of shape {x[0]} does not end in {columns}")
    return (*x[0][:-1], count)


def _decoded(call: Call) -> Array:
    return bit_packing.decode(call.arrays["weight"], call.arrays["scale"], **call.attrs)


def _decoded_rows(call: Call) -> Array:
    return moves.rows(_decoded(call), call.x[0])


def _decoded_linear(call: Call) -> Array:
    return float_linear(call.x[0], _decoded(call), call.arrays.get("bias"))


KINDS = (
    Kind(
        "embedding",
        "y = weight[i]; weight (rows, features) on the grid of y",
        (1, 1),
        (signature(INT, gives=QUANTIZED),),
        row_shape,
        rows,
        arrays={"weight": "uint8"},
        since=2,
        aligned=False,
        rows_by_index=True,
        nonlinear=True,
    ),
    Kind(
        "float.embedding",
        "y = weight[i] in float32",
        (1, 1),
        ROWS,
        row_shape,
        rows,
        arrays={"weight": "float32"},
        infinite=frozenset({"weight"}),
        domain="float",
        aligned=False,
        rows_by_index=True,
    ),
    Kind(
        "decoded_embedding",
        "y = fl(q·s) of row i; weight: codes of q, scale (rows, groups), see intact8.arithmetic.bit_packing",
        (1, 1),
        ROWS,
        _decoded_row_shape,
        _decoded_rows,
        attrs=CODES,
        arrays=CODE_ARRAYS,
        domain="dynamic",
        since=2,
        rows_by_index=True,
    ),
    Kind(
        "float.decoded_linear",
        "a linear layer whose weight is decoded as in decoded_embedding",
        (1, 1),
        FLOATS,
        _decoded_linear_shape,
        _decoded_linear,
        attrs=CODES,
        arrays=CODE_ARRAYS,
        optional_arrays={"bias": "float32"},
        domain="float",
        since=2,
    ),
)
