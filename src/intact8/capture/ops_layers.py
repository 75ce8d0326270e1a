"""ATen → canonical: layers with weights, normalization, pooling, resampling, dropout, embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intact8.capture.aten_call import Call, Handler, Value

HANDLERS: dict[str, Handler] = {}


def spatial(value: Any, n: int) -> list[int]:
    """One int per spatial dimension; torch's one-element lists are for all of them."""
    items = [value] if isinstance(value, int) else list(value)
    return [int(v) for v in (items * n if len(items) == 1 else items)]


def batched(c: Call, x: Any, rank: int) -> Value:
    """``x`` with a batch dimension; torch also takes samples without one, which no engine does."""
    v = c.value(x)
    if len(c.shape(v)) != rank:
        raise c.error(
            f"an input of {len(c.shape(v))} dimensions where {rank} are expected",
            why="layers take a batch of samples",
            remedy="give the example inputs a batch dimension",
        )
    return v


def conv(c: Call) -> Value:
    """conv1d, conv2d, conv3d, convolution, conv_transpose*."""
    params = c.params(weight=c["weight"], bias=c["bias"])
    n = len(c["weight"].shape) - 2
    x: Any = batched(c, c["input"], n + 2)
    transposed = bool(c.args.get("transposed", "transpose" in c.op))
    stride, dilation = spatial(c["stride"], n), spatial(c["dilation"], n)
    padding: Any = c["padding"]
    if isinstance(padding, str):
        padding, x = named_padding(c, x, padding, dilation)
    return c.emit(
        "conv",
        x,
        params=params,
        stride=stride,
        padding=spatial(padding, n),
        dilation=dilation,
        output_padding=spatial(c.args.get("output_padding", 0), n),
        groups=int(c["groups"]),
        transposed=transposed,
    )


def named_padding(c: Call, x: Value, padding: str, dilation: list[int]) -> tuple[list[int], Value]:
    """``same`` and ``valid`` in numbers; an uneven ``same`` pads explicitly, as torch does."""
    if padding == "valid":
        return [0] * len(dilation), x
    total = [d * (k - 1) for d, k in zip(dilation, c["weight"].shape[2:], strict=True)]
    if all(t % 2 == 0 for t in total):
        return [t // 2 for t in total], x
    pads = [[0, 0], [0, 0], *([t // 2, t - t // 2] for t in total)]
    shape = [n if n is None else n + sum(p) for n, p in zip(c.shape(x), pads, strict=True)]
    return [0] * len(dilation), c.move("pad", x, shape, pads=pads, value=0.0)


def linear(c: Call) -> Value:
    """linear with known weights; otherwise a product of two tensors."""
    if not all(isinstance(v, (Tensor, type(None))) for v in (c["weight"], c["bias"])):
        if len(c.shape(c["weight"])) != 2:
            raise c.error("a linear layer whose weight is no matrix", remedy="use matmul")
        rows = c.shape(c["weight"])
        w = c.move("permute", c["weight"], (rows[1], rows[0]), dims=[1, 0])
        y = c.emit("matmul", c["input"], w)
        return y if c["bias"] is None else c.emit("add", y, c["bias"])
    return c.emit("linear", c["input"], params=c.params(weight=c["weight"], bias=c["bias"]))


def batch_norm(c: Call) -> Any:
    """All forms of batch norm, in evaluation."""
    mean, var = c["running_mean"], c["running_var"]
    if c.args.get("training", False) or mean is None:
        raise c.error(
            "batch norm that computes statistics from the batch",
            why="it has no running statistics, or is called with training=True",
            remedy="use track_running_stats=True and F.batch_norm(..., training=self.training)",
        )
    y = c.emit(
        "batch_norm",
        c["input"],
        params=c.params(weight=c["weight"], bias=c["bias"], running_mean=mean, running_var=var),
        eps=float(c["eps"]),
        momentum=float(c["momentum"]),
    )
    return [y, None, None] if "native" in c.op or "no_update" in c.op else y


def instance_norm(c: Call) -> Value:
    """Statistics per sample and channel: a group norm with one channel per group."""
    if not c["use_input_stats"]:
        c.args["training"] = False
        value = batch_norm(c)
        return value  # type: ignore[no-any-return]
    channels = c.static(c.shape(c["input"])[1])[0]
    params = c.params(weight=c["weight"], bias=c["bias"])
    return c.emit("group_norm", c["input"], params=params, groups=channels, eps=float(c["eps"]))


def layer_norm(c: Call) -> Any:
    """layer_norm, native_layer_norm."""
    params = c.params(weight=c["weight"], bias=c["bias"])
    shape = [int(n) for n in c["normalized_shape"]]
    y = c.emit("layer_norm", c["input"], params=params, shape=shape, eps=float(c["eps"]))
    return [y, None, None] if c.op.startswith("native") else y


def rms_norm(c: Call) -> Value:
    """rms_norm; eps is the smallest difference of float32 to 1 where none is given, as in torch."""
    eps = c.args.get("eps")
    return c.emit(
        "rms_norm",
        c["input"],
        params=c.params(weight=c.args.get("weight")),
        shape=[int(n) for n in c["normalized_shape"]],
        eps=float(torch.finfo(torch.float32).eps if eps is None else eps),
    )


def group_norm(c: Call) -> Any:
    """group_norm, native_group_norm."""
    params = c.params(weight=c["weight"], bias=c["bias"])
    groups = c.args.get("num_groups", c.args.get("group"))
    y = c.emit("group_norm", c["input"], params=params, groups=groups, eps=float(c["eps"]))
    return [y, None, None] if c.op.startswith("native") else y


def dropout(c: Call) -> Value:
    """dropout and feature_dropout; the identity until training switches it on."""
    if c["train"]:
        raise c.error(
            "dropout that is active in eval mode",
            why="it is called with training=True, and a program is deterministic",
            remedy="use nn.Dropout or F.dropout(..., training=self.training)",
        )
    x = c.value(c.args["input"] if "input" in c.args else c["self"])
    if "alpha" in c.op:
        c.builder.notes.append(f"{c.builder.nodes[x.name].module or 'the model'}: alpha dropout is left out")
        return x
    return c.emit("dropout", x, p=float(c["p"]), feature="feature" in c.op)


def embedding(c: Call) -> Value:
    """Rows of a table."""
    return c.emit("embedding", c["indices"], params=c.params(weight=c["weight"]))


def max_pool(c: Call) -> Any:
    """max_pool1d, 2d, 3d. Indices have no canonical form."""
    n = int(c.op[8])
    kernel = spatial(c["kernel_size"], n)
    y = c.emit(
        "max_pool",
        batched(c, c["self"], n + 2),
        kernel=kernel,
        stride=spatial(c["stride"], n) if c["stride"] else kernel,
        padding=spatial(c["padding"], n),
        dilation=spatial(c["dilation"], n),
        ceil_mode=bool(c["ceil_mode"]),
    )
    return [y, None] if c.op.endswith("with_indices") else y


def avg_pool(c: Call) -> Value:
    """avg_pool1d, 2d, 3d."""
    n = int(c.op[8])
    kernel = spatial(c["kernel_size"], n)
    if c.args.get("divisor_override") is not None:
        raise c.error("average pooling with divisor_override", remedy="multiply after an ordinary average pooling")
    return c.emit(
        "avg_pool",
        batched(c, c["self"], n + 2),
        kernel=kernel,
        stride=spatial(c["stride"], n) if c["stride"] else kernel,
        padding=spatial(c["padding"], n),
        ceil_mode=bool(c["ceil_mode"]),
        count_include_pad=bool(c["count_include_pad"]),
    )


def adaptive_avg_pool(c: Call) -> Value:
    """A mean where the output is 1 everywhere, the identity where the sizes agree."""
    x = c.value(c["self"])
    size = list(c.out_shape[2:])
    n = len(c.shape(x)) - 2
    batched(c, x, int(c.op.removeprefix("_")[17]) + 2)
    if size == [1] * n:
        return c.emit("mean", x, dims=list(range(2, n + 2)), keepdim=True)
    if size == list(c.shape(x)[2:]):
        return x
    return c.emit("adaptive_avg_pool", x, output_size=c.static(*size))


def adaptive_max_pool(c: Call) -> Any:
    """A maximum where the output is 1 everywhere, max pooling where the windows are even."""
    x = batched(c, c["self"], int(c.op[17]) + 2)
    size, given = c.static(*c.out_shape[2:]), c.static(*c.shape(x)[2:])
    if all(s == 1 for s in size):
        return [c.emit("reduce", x, fn="amax", dims=list(range(2, len(size) + 2)), keepdim=True), None]
    if any(g % s for g, s in zip(given, size, strict=True)):
        raise c.error(f"adaptive max pooling from {given} to {size}", why="the windows overlap unevenly")
    kernel = [g // s for g, s in zip(given, size, strict=True)]
    ones, zeros = [1] * len(size), [0] * len(size)
    y = c.emit("max_pool", x, kernel=kernel, stride=kernel, padding=zeros, dilation=ones, ceil_mode=False)
    return [y, None]


MODES = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest-exact",
    "_upsample_nearest_exact2d": "nearest-exact",
    "_upsample_nearest_exact3d": "nearest-exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_trilinear3d": "trilinear",
    "upsample_bicubic2d": "bicubic",
}


def upsample(c: Call) -> Value:
    """Interpolation to a size; a scale that does not give a whole size is refused, because it moves the grid."""
    x = c.value(c.args["input"] if "input" in c.args else c["self"])
    size, given = c.static(*c.out_shape[2:]), c.static(*c.shape(x)[2:])
    corners = bool(c.args.get("align_corners") or False)
    factors = c.args.get("scale_factors") or [c.args.get(k) for k in ("scales_d", "scales_h", "scales_w", "scales")]
    factors = [f for f in factors if f is not None]
    if factors and not corners:
        for factor, before, after in zip(factors, given, size, strict=False):
            if abs(factor * before - after) > 1e-6:
                raise c.error(
                    f"interpolation of {before} by {factor}",
                    why="the size is not whole, so the scale and the ratio of sizes differ",
                    remedy="pass size= instead of scale_factor=, or recompute_scale_factor=True",
                )
    return c.emit("upsample", x, size=size, mode=MODES[c.op], align_corners=corners)


def register(names: str, handler: Handler) -> None:
    """Enter ``handler`` for the space-separated operator names."""
    HANDLERS.update(dict.fromkeys(names.split(), handler))


register("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d", conv)
register("linear", linear)
register("batch_norm native_batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update", batch_norm)
register("instance_norm", instance_norm)
register("layer_norm native_layer_norm", layer_norm)
register("rms_norm", rms_norm)
register("group_norm native_group_norm", group_norm)
register("dropout feature_dropout alpha_dropout feature_alpha_dropout", dropout)
register("embedding", embedding)
register("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices", max_pool)
register("avg_pool1d avg_pool2d avg_pool3d", avg_pool)
register("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", adaptive_avg_pool)
register("_adaptive_avg_pool2d _adaptive_avg_pool3d", adaptive_avg_pool)
register("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", adaptive_max_pool)
register(" ".join(MODES), upsample)
