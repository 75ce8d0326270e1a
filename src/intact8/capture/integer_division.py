"""Division of integers: one operator from torch's many forms of it to one operation of graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.torch_float_ops import integer_divide
from intact8.capture.aten_call import Call, Value, handles


@torch.library.custom_op("intact8::integer_divide", mutates_args=())
def whole_quotient(x: Tensor, y: Tensor, rounding: str) -> Tensor:
    """Return int64 quotients; see :func:`intact8.arithmetic.torch_float_ops.integer_divide`."""
    return integer_divide(x, y, rounding)


@whole_quotient.register_fake
def _(x: Tensor, y: Tensor, rounding: str) -> Tensor:
    return x + y


@handles("integer_divide")
def record(c: Call) -> Value:
    """Record a quotient of integers."""
    return c.emit("integer_divide", c["x"], c["y"], rounding=c["rounding"])


def operands(x: Any, y: Any) -> tuple[Tensor, Tensor, torch.dtype] | None:
    """Return two operands, of which one may be a number, in int64, and the dtype of results; None where one is real."""
    if any(v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, (float, torch.SymFloat)) for v in (x, y)):
        return None
    like = x if isinstance(x, Tensor) else y
    wide = like.long()
    one, other = (v.long() if isinstance(v, Tensor) else wide.new_full([1] * like.dim(), v) for v in (x, y))
    return one, other, torch.result_type(x, y)
