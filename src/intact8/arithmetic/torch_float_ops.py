"""The float operations in torch: what each node of an ``intact8.capture.graph`` computes.

Every entry of :data:`FLOAT_OPS` has the signature ``(attrs, inputs, params) -> Tensor``: JSON attributes, the input
tensors in order, and the parameters by role. All are differentiable. ``dropout`` and ``batch_norm`` are in their
evaluation form unless ``attrs["training"]`` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.bit_packing import decode
from intact8.arithmetic.recurrent import GATES
from intact8.arithmetic.torch_recurrent import float_layer
from intact8.arithmetic.unary_functions import UNARY
from intact8.arithmetic.windows import sees_padding_only

Attrs = Mapping[str, Any]
Params = Mapping[str, Tensor]
FloatOp = Callable[[Attrs, Sequence[Tensor], Params], Tensor]


def unary(fn: str, x: Tensor, attrs: Attrs) -> Tensor:
    """Return the function ``fn`` of ``intact8.arithmetic.unary_functions``: torch has each under the same name."""
    function = getattr(torch, fn, None) or getattr(F, fn)
    y: Tensor = function(x, **{name: attrs[name] for name in UNARY[fn].attrs if name in attrs})
    return y


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return the shape one value per channel so that it broadcasts along dimension 1 of ``x``."""
    return values.reshape([1, -1] + [1] * (x.ndim - 2))


def apply_act(x: Tensor, act: Attrs | None, params: Params) -> Tensor:
    """Apply a fused activation: ``{"kind": "clamp" | "leaky_relu" | "prelu", …}``, or None for none.

    Example:
        >>> apply_act(torch.tensor([-2.0, 9.0]), {"kind": "clamp", "min": 0.0, "max": 6.0}, {})
        tensor([0., 6.])
    """
    if act is None:
        return x
    if act["kind"] == "clamp":
        return _clamp(act, [x], params)
    if act["kind"] == "leaky_relu":
        return F.leaky_relu(x, act["slope"])
    if act["kind"] == "prelu":
        return F.prelu(x, params["act.weight"])
    raise ValueError(f"unknown fused activation {act['kind']!r}")


def _finish(y: Tensor, attrs: Attrs, inputs: Sequence[Tensor], params: Params, arity: int) -> Tensor:
    """Apply the fused batch norm, residual (the input behind the op's own ``arity`` inputs) and activation."""
    bn = attrs.get("bn")
    if bn is not None:
        roles = {k[3:]: v for k, v in params.items() if k.startswith("bn.")}
        y = _batch_norm({**bn, "training": attrs.get("training", False)}, [y], roles)
    for residual in inputs[arity:]:
        y = y + residual
    return apply_act(y, attrs.get("act"), params)


def _begin(a: Attrs, x: Sequence[Tensor], p: Params) -> list[Tensor]:
    """Apply the batch norm folded into an operation (``pre``) to its first input."""
    if "pre" not in a:
        return list(x)
    roles = {k[4:]: v for k, v in p.items() if k.startswith("pre.")}
    return [_batch_norm({**a["pre"], "training": a.get("training", False)}, [x[0]], roles), *x[1:]]


def _spatial(name: str, rank: int) -> Callable[..., Tensor]:
    """Return torch's function for so many spatial dimensions: ``conv2d``."""
    function: Callable[..., Tensor] = getattr(F, f"{name}{rank}d")
    return function


def _may_see_padding_only(length: Any, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Return whether a window may have every tap in the padding; of a size that is a symbol nothing is asked."""
    if isinstance(length, torch.SymInt):
        return padding > 0 and (dilation > 1 or padding > kernel - 1)
    return sees_padding_only(length, kernel, stride, padding, dilation)


def _conv(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    x, weights, rank = _begin(a, x, p), (p["weight"], p.get("bias")), len(a["stride"])
    given, padding = x[0], a["padding"]
    if a["transposed"]:
        rest = a["stride"], padding, a["output_padding"], a["groups"], a["dilation"]
        return _finish(_spatial("conv_transpose", rank)(given, *weights, *rest), a, x, p, 1)
    sizes = zip(given.shape[2:], p["weight"].shape[2:], a["stride"], padding, a["dilation"], strict=True)
    if any(_may_see_padding_only(*size) for size in sizes):  # oneDNN 3.12 reads address 0 where channels lie last
        given, padding = F.pad(given, [n for size in reversed(padding) for n in (size, size)]), [0] * rank
    return _finish(
        _spatial("conv", rank)(given, *weights, a["stride"], padding, a["dilation"], a["groups"]), a, x, p, 1
    )


def _linear(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    x = _begin(a, x, p)
    return _finish(F.linear(x[0], p["weight"], p.get("bias")), a, x, p, 1)


def _decoded_linear(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    codes, scale = (p[role].cpu().numpy() for role in ("weight", "scale"))
    weight = decode(codes, scale, a["bits"], a["columns"], a["group"])
    return F.linear(x[0], torch.from_numpy(weight).to(x[0].device), p.get("bias"))


def _batch_norm(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    statistics, affine = (p["running_mean"], p["running_var"]), (p.get("weight"), p.get("bias"))
    return F.batch_norm(x[0], *statistics, *affine, bool(a.get("training", False)), a.get("momentum") or 0.0, a["eps"])


def _dropout(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    if not a.get("training", False):
        return x[0]
    return (_spatial("dropout", x[0].ndim - 2) if a.get("feature", False) else F.dropout)(x[0], a["p"], True)


def _clamp(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    limits = a.get("min"), a.get("max")
    return x[0] if limits == (None, None) else torch.clamp(x[0], *limits)


def _affine_scalar(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    # Multiplying by 1 or adding 0 would turn integer tensors into float ones.
    y = x[0] if a["mul"] == 1 else x[0] * a["mul"]
    return y if a["add"] == 0 else y + a["add"]


def _scale_shift(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    y = x[0]
    if "weight" in p:
        y = y * per_channel(p["weight"], y)
    if "bias" in p:
        y = y + per_channel(p["bias"], y)
    return _finish(y, a, x, p, 1)


def _table(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    # A table stands for a chain of functions of one number, applied in order; PReLU slopes are parameters of a step.
    y = x[0]
    for i, step in enumerate(a["chain"]):
        slope = p.get(f"chain.{i}.weight")
        y = FLOAT_OPS[step["op"]](step["attrs"], [y], {} if slope is None else {"weight": slope})
    return y


def _max_pool(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    pool = _spatial("max_pool", len(a["kernel"]))
    return pool(x[0], a["kernel"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"])


def _avg_pool(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    pool = _spatial("avg_pool", len(a["kernel"]))
    y = pool(x[0], a["kernel"], a["stride"], a["padding"], a["ceil_mode"], a["count_include_pad"])
    return apply_act(y, a.get("act"), p)


def _adaptive_avg_pool(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    pool = _spatial("adaptive_avg_pool", len(a["output_size"]))
    return apply_act(pool(x[0], a["output_size"]), a.get("act"), p)


def _mean(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    # torch reads an empty list of dimensions as "all of them".
    y = torch.mean(x[0], a["dims"], a["keepdim"]) if a["dims"] else x[0]
    return apply_act(y, a.get("act"), p)


def _reduce(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    dims, keepdim = a["dims"], a["keepdim"]
    if a["fn"] == "argmax":
        return torch.argmax(x[0], dims[0] if dims else None, keepdim)
    y = x[0]
    if a["fn"] == "prod":
        for dim in sorted(dims or range(y.ndim), reverse=True):
            y = torch.prod(y, dim, keepdim)
        return y
    if a["fn"] not in ("sum", "amax", "amin"):
        raise ValueError(f"unknown reduction {a['fn']!r}")
    return getattr(torch, a["fn"])(y, dims, keepdim)  # type: ignore[no-any-return]


def _compare(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    """Compare with a number, which torch rounds to float32 beside integers."""
    whole = isinstance(a["value"], int) and abs(a["value"]) < 1 << 63
    numbers = x[0] if x[0].is_floating_point() or whole else x[0].double()
    return getattr(torch, a["fn"])(numbers, a["value"])  # type: ignore[no-any-return]


def integer_divide(x: Tensor, y: Tensor, rounding: str) -> Tensor:
    """Return int64 quotients of two int64 tensors, rounded down (floor) or towards 0 (trunc); 0 where y is 0.

    Example:
        >>> integer_divide(torch.tensor([-7, 7, 1]), torch.tensor([2, -1, 0]), "floor")
        tensor([-4, -7,  0])
    """
    exact = (y == 0) | (y == -1)  # processors end a process that divides by 0, or the least number by −1
    quotient = torch.div(x, y.masked_fill(exact, 1), rounding_mode=rounding)
    return torch.where(y == 0, 0, torch.where(y == -1, -x, quotient))


def _scatter(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    index = x[1].clamp(0, x[0].shape[a["axis"]] - 1)
    if a["reduce"] == "none":
        return torch.scatter(x[0], a["axis"], index, x[2])
    return torch.scatter_reduce(x[0], a["axis"], index, x[2], a["reduce"], include_self=True)


def _slice(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    index = [slice(None)] * x[0].ndim
    index[a["axis"]] = slice(a["start"], a["end"], a["step"])
    return x[0][tuple(index)]


def _pad(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    return F.pad(x[0], [int(n) for pair in reversed(a["pads"]) for n in pair], value=a["value"])


def _expand(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    # A constant has no batch of its own to keep: there, -1 is the length of dimension 0 of the second input.
    like = x[1].shape[0] if len(x) > 1 else -1
    return x[0].expand([like if n == -1 else n for n in a["shape"]])


def _softmax(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    if len(x) == 1:
        return torch.softmax(x[0], a["axis"])
    # A second input is true where a position counts nothing; a row of such positions alone may be zero.
    y = torch.softmax(x[0].masked_fill(x[1], torch.finfo(x[0].dtype).min), a["axis"])
    return y.masked_fill(x[1], 0.0) if a.get("zero_rows") else y


def _matmul(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    y = torch.matmul(x[0], x[1])
    return y if "mul" not in a else y * a["mul"]


def _upsample(a: Attrs, x: Sequence[Tensor], p: Params) -> Tensor:
    corners = a["align_corners"] if not a["mode"].startswith("nearest") else None
    return F.interpolate(x[0], size=list(a["size"]), mode=a["mode"], align_corners=corners)


FLOAT_OPS: dict[str, FloatOp] = {
    "constant": lambda a, x, p: p["value"],
    "conv": _conv,
    "linear": _linear,
    "decoded_linear": _decoded_linear,
    "batch_norm": _batch_norm,
    "scale_shift": _scale_shift,
    "table": _table,
    "dropout": _dropout,
    "relu": lambda a, x, p: F.relu(x[0]),
    "clamp": _clamp,
    "leaky_relu": lambda a, x, p: F.leaky_relu(x[0], a["slope"]),
    "prelu": lambda a, x, p: F.prelu(x[0], p["weight"]),
    "unary": lambda a, x, p: unary(a["fn"], x[0], a),
    "affine_scalar": _affine_scalar,
    "add": lambda a, x, p: apply_act(sum(x[1:], x[0]), a.get("act"), p),
    "sub": lambda a, x, p: apply_act(x[0] - x[1], a.get("act"), p),
    "mul": lambda a, x, p: apply_act(x[0] * x[1], a.get("act"), p),
    "div": lambda a, x, p: x[0] / x[1],
    "integer_divide": lambda a, x, p: integer_divide(x[0], x[1], a["rounding"]),
    "maximum": lambda a, x, p: torch.maximum(x[0], x[1]),
    "minimum": lambda a, x, p: torch.minimum(x[0], x[1]),
    "cumsum": lambda a, x, p: torch.cumsum(x[0], a["axis"]),
    "gather": lambda a, x, p: torch.gather(x[0], a["axis"], x[1].clamp(0, x[0].shape[a["axis"]] - 1)),
    "scatter": _scatter,
    "argsort": lambda a, x, p: torch.sort(x[0], dim=a["axis"], descending=a["descending"], stable=True)[1],
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "mean": _mean,
    "cat": lambda a, x, p: torch.cat(list(x), a["axis"]),
    "reshape": lambda a, x, p: x[0].reshape(a["shape"]),
    "permute": lambda a, x, p: x[0].permute(a["dims"]),
    "slice": _slice,
    "pad": _pad,
    "expand": _expand,
    "roll": lambda a, x, p: torch.roll(x[0], a["shifts"], a["dims"]),
    "upsample": _upsample,
    "softmax": _softmax,
    "log_softmax": lambda a, x, p: torch.log_softmax(x[0], a["axis"]),
    "layer_norm": lambda a, x, p: F.layer_norm(x[0], a["shape"], p.get("weight"), p.get("bias"), a["eps"]),
    "rms_norm": lambda a, x, p: F.rms_norm(x[0], a["shape"], p.get("weight"), a["eps"]),
    "group_norm": lambda a, x, p: torch.group_norm(x[0], a["groups"], p.get("weight"), p.get("bias"), a["eps"]),
    "matmul": _matmul,
    "reduce": _reduce,
    "embedding": lambda a, x, p: F.embedding(x[0], p["weight"]),
    **{kind: partial(float_layer, kind) for kind in GATES},
    "masked_fill": lambda a, x, p: x[0].masked_fill(x[1].bool(), a["value"]),
    "compare": _compare,
    "cast": lambda a, x, p: x[0].to(getattr(torch, a["dtype"])),
}
"""Operation → implementation, for every operation of graphs that computes floats."""
