"""Every kind of operation as plain torch operations on integer tensors, without intact8 at run time.

Sums of products are exact: float32 where certificates bound them below 2²⁴, float64 elsewhere. What follows is computed
in float64, in which a/b times an exact sum errs by far less than the 1/(2b) that odd denominators leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic import dynamic_torch, torch_nonlinear
from intact8.arithmetic.bit_packing import decode
from intact8.arithmetic.dimensions import resolve, size_of, telling
from intact8.arithmetic.moves import nearest_index
from intact8.arithmetic.resize import Phase, integer_phases
from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.arithmetic.torch_resize import resize_linear
from intact8.arithmetic.windows import adaptive_windows, divisor_ratios, pool_windows, window_matrix
from intact8.opset import KINDS
from intact8.opset.floats import whole_attrs
from intact8.opset.kind import zero_point
from intact8.opset.op import Array, Op
from intact8.opset.op import Tensor as Meta
from intact8.opset.proof import FLOAT32, reach
from intact8.opset.resize import times
from intact8.opset.shapes import axis_of

Sizes = Mapping[str | None, Any]
"""Size of the batch (None) and of every named dimension."""


@dataclass(frozen=True)
class Operands:
    """One operation with what it reads.

    Attributes:
        op: the operation.
        x: values of its inputs.
        inputs, output: descriptions of its inputs and of its output.
        arrays: its arrays, prepared by :func:`constants`.
        sizes: of the dimensions that change from call to call.
    """

    op: Op
    x: list[Tensor]
    inputs: list[Meta]
    output: Meta
    arrays: Mapping[str, Tensor]
    sizes: Sizes

    @property
    def attrs(self) -> dict[str, Any]:
        """Return the attributes, with sizes in place of names."""
        return resolve(self.op.attrs, {k: n for k, n in self.sizes.items() if k is not None})

    def steps(self, i: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return input ``i`` minus its zero point."""
        return self.x[i].to(dtype) - zero_point(self.inputs[i])

    def finish(self, v: Tensor) -> Tensor:
        """Return clamp(R(v) + z, lo, hi) as uint8."""
        z, lo, hi = zero_point(self.output), self.op.attrs["lo"], self.op.attrs["hi"]
        return (v.round().clamp(lo - z, hi - z) + z).to(torch.uint8)


Rule = Callable[[Operands], Tensor]


def constants(op: Op, inputs: Sequence[Meta]) -> dict[str, Array]:
    """Return the arrays that an operation needs at run time: its own, and tables of its windows and resizings."""
    changing = any(isinstance(d, str) for d in inputs[0].shape[2:]) if inputs else False
    if op.kind in ("avg_pool", "adaptive_avg_pool") and not changing:
        return _window_tables(op, [int(d or 0) for d in inputs[0].shape[2:]])
    if op.kind == "upsample" and str(op.attrs["mode"]).startswith("nearest") and not changing:
        exact, places = op.attrs["mode"] == "nearest-exact", zip(inputs[0].shape[2:], op.attrs["size"], strict=True)
        return {f"index{i}": nearest_index(int(n or 0), o, exact) for i, (n, o) in enumerate(places)}
    if op.kind in ("decoded_embedding", "float.decoded_linear"):
        weight = decode(op.arrays["weight"], op.arrays["scale"], **op.attrs)
        return {"weight": weight, **{role: a for role, a in op.arrays.items() if role == "bias"}}
    return dict(op.arrays)


def _window_tables(op: Op, size: list[int]) -> dict[str, Array]:
    t = op.attrs
    if op.kind == "avg_pool":
        geometry = (t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
        edges, divisors = pool_windows(size, *geometry)
    else:
        edges, divisors = adaptive_windows(size, t["output_size"])
    ones = [window_matrix(start, end, n) for (start, end), n in zip(edges, size, strict=True)]
    return {"ratio": divisor_ratios(t["multipliers"], divisors), **{f"window{i}": m for i, m in enumerate(ones)}}


def _quantize(o: Operands) -> Tensor:
    x = o.x[0]
    if x.dtype == torch.uint8:
        return x.clamp(o.op.attrs["lo"], o.op.attrs["hi"])
    z = zero_point(o.output)
    # The divisor is a tensor: by a number from Python, some devices multiply by its inverse.
    v = torch.div(x, x.new_tensor(o.output.scale)).round().nan_to_num(nan=float("-inf"), neginf=float("-inf"))
    return (v.clamp(o.op.attrs["lo"] - z, o.op.attrs["hi"] - z) + z).to(torch.uint8)


def _dequantize(o: Operands) -> Tensor:
    x = o.steps(0, torch.float32)
    return x * x.new_tensor(o.inputs[0].scale)


def _product(o: Operands) -> Tensor:
    """Compute a convolution or a linear layer."""
    weight = o.op.arrays["weight"].astype(np.int64)
    rows = np.abs(weight).reshape(len(weight), -1).sum(1).max() if not o.op.attrs.get("transposed") else FLOAT32
    dtype = torch.float32 if int(rows) * reach(o.inputs[0]) < FLOAT32 else torch.float64
    kind = o.op.kind.removeprefix("dequantized_")
    acc = FLOAT_OPS[kind](o.op.attrs, [o.steps(0, dtype)], {"weight": o.arrays["weight"].to(dtype)}).double()
    trailing = [1] * (acc.dim() - 2) if kind == "conv" else []
    if kind != o.op.kind:
        y = (acc + 0.0).float() * o.arrays["scale"].reshape(-1, *trailing)
        return y + o.arrays["bias"].reshape(-1, *trailing) if "bias" in o.arrays else y
    a, b, bias = (o.arrays[role].double().reshape(-1, *trailing) for role in ("a", "b", "bias"))
    acc = acc + bias
    if len(o.x) == 2:
        return o.finish((acc * a + o.steps(1) * o.op.attrs["residual_a"]) / b)
    y = acc * a / b
    if "a_neg" in o.arrays:
        a_neg, b_neg = (o.arrays[role].double().reshape(-1, *trailing) for role in ("a_neg", "b_neg"))
        y = torch.where(acc < 0, acc * a_neg / b_neg, y)
    return o.finish(y)


def _matmul(o: Operands) -> Tensor:
    acc = torch.matmul(o.steps(0), o.steps(1))
    return o.finish(acc * o.op.attrs["a"] / o.op.attrs["b"])


def _add(o: Operands) -> Tensor:
    terms = [o.steps(i) * int(a) for i, a in enumerate(o.op.attrs["a"])]
    return o.finish(sum(terms[1:], terms[0]) / o.op.attrs["b"])


def _mul(o: Operands) -> Tensor:
    return o.finish(o.steps(0) * o.steps(1) * o.op.attrs["a"] / o.op.attrs["b"])


def _table(o: Operands) -> Tensor:
    return o.arrays["table"].index_select(0, o.x[0].reshape(-1).to(torch.int32)).view(o.x[0].shape)


def _mean(o: Operands) -> Tensor:
    x, dims = o.steps(0), o.op.attrs["dims"]
    total = x.sum(dims, keepdim=o.op.attrs["keepdim"]) if dims else x
    return o.finish(total * o.op.attrs["a"] / o.op.attrs["b"])


def _average(o: Operands) -> Tensor:
    """Compute sums over windows: as products with matrices of ones, or, where the size changes and all windows have one
    divisor, as a convolution with ones."""
    v, t = o.steps(0), o.op.attrs
    if "ratio" not in o.arrays:
        [[_, a, b]] = t["multipliers"]
        channels, ones = v.shape[1], v.new_ones([v.shape[1], 1, *t["kernel"]])
        where = {"stride": t["stride"], "padding": t["padding"], "dilation": [1] * len(t["kernel"])}
        sums = FLOAT_OPS["conv"]({**where, "transposed": False, "groups": channels}, [v], {"weight": ones})
        return o.finish(sums * a / b)
    for i in range(v.dim() - 2):
        ones = o.arrays[f"window{i}"].to(v.dtype)
        v = torch.tensordot(v, ones, dims=([2 + i], [0])).movedim(-1, 2 + i)
    return o.finish(v * o.arrays["ratio"])


def _max_pool(o: Operands) -> Tensor:
    """torch has no maximum over windows of bytes of every shape: float32 holds them."""
    return FLOAT_OPS["max_pool"](o.op.attrs, [o.x[0].float()], {}).to(o.x[0].dtype)


def _softmax(o: Operands) -> Tensor:
    t, axis = o.op.attrs, axis_of(o.op, o.inputs[0].shape)
    table, levels = o.arrays["table"].float(), o.arrays["table"].new_tensor(t["levels"], dtype=torch.float32)
    limits = zero_point(o.output), t["lo"], t["hi"]
    return torch_nonlinear.softmax(o.x[0], table, axis, levels, *limits, *o.x[1:])


def _norm(o: Operands) -> Tensor:
    t = o.op.attrs
    last = (o.arrays["gain"], o.arrays["offset"], float(t["eps"]), t["lo"], t["hi"])
    if o.op.kind == "group_norm":
        return torch_nonlinear.group_norm(o.x[0], t["groups"], *last)
    if o.op.kind == "layer_norm":
        return torch_nonlinear.layer_norm(o.x[0], *last)
    return torch_nonlinear.rms_norm(o.x[0], zero_point(o.inputs[0]), *last)


def _embedding(o: Operands) -> Tensor:
    weight, index = o.arrays["weight"], o.x[0]
    return weight.index_select(0, index.reshape(-1)).view(*index.shape, weight.shape[1])


def _dynamic_linear(o: Operands) -> Tensor:
    q, s = dynamic_torch.quantize_rows(o.x[0], o.op.attrs["granularity"])
    acc = F.linear(q.double(), o.arrays["weight"].double()).float() + 0.0
    return dynamic_torch.scaled(acc, o.arrays["scale"], s, o.arrays.get("bias"))


def _factors(o: Operands) -> list[int] | None:
    """Return how many times as long images of changing size become; None for those of known sizes."""
    before, after = o.inputs[0].shape[2:], o.op.attrs["size"]
    if not any(isinstance(d, str) for d in (*before, *after)):
        return None
    return [times(n or 0, m) or 1 for n, m in zip(before, after, strict=True)]


def _by_phases(y: Tensor, axes: Sequence[Sequence[Phase]]) -> Tensor:
    """Return the sums of weighted neighbours that stand between every two elements."""
    for axis, rows in enumerate(axes, start=2):
        if len(rows) == 1:
            continue
        size = y.shape[axis]
        wide = torch.cat([y.narrow(axis, 0, 1), y, y.narrow(axis, size - 1, 1)], axis)
        parts = [
            wide.narrow(axis, 1 + left, size) * one + wide.narrow(axis, 2 + left, size) * other
            for left, one, other in rows
        ]
        y = torch.stack(parts, axis + 1).flatten(axis, axis + 1)
    return y


def _resize_linear(o: Operands) -> Tensor:
    t = o.op.attrs
    if (factors := _factors(o)) is not None:
        rows = [integer_phases(n, d) for n, d in zip(factors, t["denominators"], strict=True)]
        total = _by_phases(o.x[0].float(), rows)
        return (total / total.new_tensor(float(math.prod(t["denominators"])))).round().to(torch.uint8)
    return resize_linear(o.x[0], t["size"], t["align_corners"], t["denominators"]).to(torch.uint8)


def _expand(o: Operands) -> Tensor:
    rank = len(o.op.attrs["shape"])
    own = (1,) * (rank - len(o.inputs[0].shape)) + o.inputs[0].shape
    places = zip(o.attrs["shape"], own, o.output.shape, strict=True)
    return o.x[0].expand([o.sizes[None] if n == -1 and d == 1 and out is None else n for n, d, out in places])


def _upsample(o: Operands) -> Tensor:
    """Resize by index where sizes are known, else as torch does, in floats that hold the integers."""
    y, mode = o.x[0], str(o.op.attrs["mode"])
    if not mode.startswith("nearest") or "index0" not in o.arrays:
        return FLOAT_OPS["upsample"](o.attrs, [y.double() if y.dtype == torch.int64 else y.float()], {}).to(y.dtype)
    for i in range(y.dim() - 2):
        y = y.index_select(2 + i, o.arrays[f"index{i}"])
    return y


def _float(name: str, o: Operands) -> Tensor:
    """Compute a kind of torch's own, after operands became of the result's dtype where the kind says so."""
    x, attrs = o.x, o.attrs
    if o.op.kind in KINDS and KINDS[o.op.kind].in_result_dtype:
        attrs = whole_attrs(attrs) if o.output.dtype == "int64" else attrs
        x = [v.to(getattr(torch, o.output.dtype)) for v in x]
    return FLOAT_OPS[name](attrs, x, o.arrays)


RULES: dict[str, Rule] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv": _product,
    "linear": _product,
    "dequantized_conv": _product,
    "dequantized_linear": _product,
    "matmul": _matmul,
    "add": _add,
    "mul": _mul,
    "table": _table,
    "mean": _mean,
    "avg_pool": _average,
    "adaptive_avg_pool": _average,
    "max_pool": _max_pool,
    "softmax": _softmax,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "group_norm": _norm,
    "embedding": _embedding,
    "decoded_embedding": _embedding,
    "dynamic_linear": _dynamic_linear,
    "resize_linear": _resize_linear,
    "constant": lambda o: o.arrays["value"],
    "expand": _expand,
    "upsample": _upsample,
    "float.decoded_linear": partial(_float, "linear"),
    **{kind: partial(_float, kind) for kind in ("cat", "reshape", "permute", "slice", "pad", "roll")},
    **{
        kind: partial(_float, kind.removeprefix("float."))
        for kind in KINDS
        if kind.startswith("float.") and kind.removeprefix("float.") in FLOAT_OPS and kind != "float.decoded_linear"
    },
}
"""Kind → its torch operations; kinds that are not here have none."""


def sizes_of_call(names: Sequence[str], tensors: Mapping[str, Meta], x: Sequence[Tensor]) -> Sizes:
    """Return the sizes of the dimensions that change, from the shapes of the inputs."""
    sizes: dict[str | None, Any] = {}
    for name, value in zip(names, x, strict=True):
        for axis, dim in enumerate(tensors[name].shape):
            if dim is None and axis == 0:
                sizes.setdefault(None, value.shape[axis])
            elif (told := telling(dim, value.shape[axis])) is not None:
                sizes.setdefault(*told)
    return sizes


__all__ = ["RULES", "Operands", "constants", "size_of", "sizes_of_call"]
