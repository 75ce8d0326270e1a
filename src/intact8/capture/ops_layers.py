"""ATen → operations: layers with weights, normalization, pooling, resampling, dropout, embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, divided, multiplied, names_of
from intact8.capture.aten_call import Call, Value, handles
from intact8.capture.ops_index import MAX_PIECES, gather, places_of_largest
from intact8.capture.ops_shape import cut, grown, permuted, spatial


def batched(c: Call, x: Any, rank: int) -> Value:
    """Return ``x``, which must have a batch dimension: torch also takes samples without one, which no engine does."""
    v = c.value(x)
    if len(c.shape(v)) != rank:
        what = f"an input of {len(c.shape(v))} dimensions where {rank} are expected"
        raise c.error(what, why="layers take a batch of samples", remedy="give the example inputs a batch dimension")
    return v


@handles("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d")
def conv(c: Call) -> Any:
    """Record a convolution; one of rows or images whose weight the network computes by a formula."""
    transposed = bool(c.args.get("transposed", "transpose" in c.op))
    if isinstance(c["weight"], Value) and len(c.shape(c["weight"])) < 5:
        transpose = "transpose" in c.op
        if transpose or not transposed:
            return c.builder.by_formula(c, transposed_with_computed_weight if transpose else with_computed_weight)
    params = c.params(weight=c["weight"], bias=c["bias"])
    n = len(c["weight"].shape) - 2
    x, padding = batched(c, c["input"], n + 2), c["padding"]
    c.at_least(*c.out_shape[2:])
    attrs: dict[str, Any] = {name: spatial(c[name], n) for name in ("stride", "dilation")}
    if isinstance(padding, str):
        padding, x = named_padding(c, x, padding, attrs["dilation"])
    attrs |= {"padding": spatial(padding, n), "output_padding": spatial(c.args.get("output_padding", 0), n)}
    return c.emit("conv", x, params=params, groups=int(c["groups"]), transposed=transposed, **attrs)


def with_computed_weight(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *rest: Any,
) -> Any:
    """Compute a convolution of rows or images as the product of the weight and the windows of the input."""
    groups, kernel = (rest[-1] if rest else 1), weight.shape[2:]
    if isinstance(padding, str):
        return NotImplemented
    if len(kernel) == 1:
        high = ([one, *spatial(given, 1)] for one, given in ((1, stride), (0, padding), (1, dilation)))
        return with_computed_weight(x.unsqueeze(2), weight.unsqueeze(2), bias, *high, groups).squeeze(2)
    if isinstance(groups, torch.SymInt):
        return each_with_its_own(x, weight, bias, groups, (stride, padding, dilation))
    (sh, sw), (ph, pw), (dh, dw) = (spatial(v, 2) for v in (stride, padding, dilation))
    rows = (x.shape[2] + 2 * ph - dh * (kernel[0] - 1) - 1) // sh + 1
    columns = F.unfold(x, kernel, (dh, dw), (ph, pw), (sh, sw))
    columns = columns.reshape(x.shape[0], groups, columns.shape[1] // groups, columns.shape[2])
    y = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, -1), columns)
    y = y.reshape(x.shape[0], weight.shape[0], rows, -1)
    return y if bias is None else y + bias[:, None, None]


def of_each_group(channels: Any, groups: Any) -> int:
    """Return how many of the channels are in each group, a number also where there are as many groups as samples."""
    one, other = (n.node.hint if isinstance(n, torch.SymInt) else n for n in (channels, groups))
    return int(one // other)


def each_with_its_own(x: Tensor, weight: Tensor, bias: Tensor | None, groups: torch.SymInt, how: Any) -> Any:
    """Compute a convolution in as many groups as there are samples, which stand side by side as the channels of one:
    every sample has weights of its own, and biases."""
    of_each = of_each_group(weight.shape[0], groups)
    if x.shape[0] != 1:
        return NotImplemented
    count = x.shape[1] // weight.shape[1]
    (sh, sw), (ph, pw), (dh, dw) = (spatial(v, 2) for v in how)
    height = (x.shape[2] + 2 * ph - dh * (weight.shape[2] - 1) - 1) // sh + 1
    samples = x.reshape(count, weight.shape[1], *x.shape[2:])
    columns = F.unfold(samples, weight.shape[2:], (dh, dw), (ph, pw), (sh, sw))
    y = torch.matmul(weight.reshape(count, of_each, -1), columns)
    y = y if bias is None else y + bias.reshape(count, of_each, 1)
    return y.reshape(1, count * of_each, height, -1)


def transposed_with_computed_weight(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Compute a transposed convolution as one of the input with zeros between its elements, the weight turned round."""
    n = weight.dim() - 2
    given = (spatial(v, n) for v in (stride, padding, output_padding, dilation))
    for dim, (step, cut_off, more, apart) in enumerate(zip(*given, strict=True), start=2):
        if step > 1:
            size = x.shape[dim]
            spread = F.pad(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, step - 1])
            x = spread.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * step + 1)
        edge = apart * (weight.shape[dim] - 1) - cut_off
        x = F.pad(x, [0, 0] * (x.dim() - dim - 1) + [edge, edge + more])
    inputs = of_each_group(weight.shape[0], groups)
    turned = weight.flip(*range(2, weight.dim())).reshape(-1, inputs, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    return with_computed_weight(x, turned, bias, 1, 0, dilation, groups)


def named_padding(c: Call, x: Value, padding: str, dilation: list[int]) -> tuple[list[int], Value]:
    """Return ``same`` and ``valid`` in numbers; an uneven ``same`` pads explicitly, as torch does."""
    if padding == "valid":
        return [0] * len(dilation), x
    total = [d * (k - 1) for d, k in zip(dilation, c["weight"].shape[2:], strict=True)]
    if all(t % 2 == 0 for t in total):
        return [t // 2 for t in total], x
    pads = [[0, 0], [0, 0], *([t // 2, t - t // 2] for t in total)]
    return [0] * len(dilation), c.move("pad", x, out=grown(c, x, pads), pads=pads, value=0.0)


@handles("batch_norm native_batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update")
def batch_norm(c: Call) -> Any:
    """Record a batch norm in evaluation."""
    mean, var = c["running_mean"], c["running_var"]
    if c.args.get("training", False) or mean is None:
        what = "batch norm that computes statistics from the batch"
        remedy = "use track_running_stats=True and F.batch_norm(..., training=self.training)"
        raise c.error(what, why="it has no running statistics, or is called with training=True", remedy=remedy)
    params = c.params(weight=c["weight"], bias=c["bias"], running_mean=mean, running_var=var)
    y = c.emit("batch_norm", c["input"], params=params, eps=float(c["eps"]), momentum=float(c["momentum"]))
    return [y, None, None] if "native" in c.op or "no_update" in c.op else y


@handles("instance_norm")
def instance_norm(c: Call) -> Any:
    """Record statistics per sample and channel: a group norm with one channel per group."""
    if not c["use_input_stats"]:
        c.args["training"] = False
        return batch_norm(c)
    return norm(c, "group_norm", groups=c.static(c.shape(c["input"])[1])[0])


def scaled(c: Call, y: Value, dim: int) -> Value:
    """Record what the weight and bias of a norm do, which begin at a dimension; the network computes them."""
    for op, value in (("mul", c["weight"]), ("add", c.args.get("bias"))):
        if value is not None:
            shape = c.shape(value)
            y = c.emit(op, y, c.reshape(value, (*shape, *[1] * (len(c.out_shape) - dim - len(shape)))))
    return y


def norm(c: Call, op: str, **attrs: Any) -> Any:
    """Record a norm with weight and bias."""
    computed = isinstance(c["weight"], Value) or isinstance(c["bias"], Value)
    params = {} if computed else c.params(weight=c["weight"], bias=c["bias"])
    y = c.emit(op, c["input"], params=params, **attrs, eps=float(c["eps"]))
    if computed:
        y = scaled(c, y, len(c.out_shape) - len(attrs["shape"]) if "shape" in attrs else 1)
    return [y, None, None] if c.op.startswith("native") else y


@handles("layer_norm native_layer_norm")
def layer_norm(c: Call) -> Any:
    """Record a layer norm."""
    return norm(c, "layer_norm", shape=normalized(c))


def normalized(c: Call) -> list[int]:
    """Return the sizes of the dimensions that a norm is over, which are the last ones."""
    return c.static(*c.out_shape[-len(c["normalized_shape"]) :])


@handles("group_norm native_group_norm")
def group_norm(c: Call) -> Any:
    """Record a group norm."""
    return norm(c, "group_norm", groups=c.args.get("num_groups", c.args.get("group")))


@handles("rms_norm")
def rms_norm(c: Call) -> Value:
    """Record an RMS norm; eps is the smallest difference of float32 to 1 where none is given, as in torch."""
    eps, shape = c.args.get("eps"), normalized(c)
    eps = float(torch.finfo(torch.float32).eps if eps is None else eps)
    if isinstance(c.args.get("weight"), Value):
        return scaled(c, c.emit("rms_norm", c["input"], shape=shape, eps=eps), len(c.out_shape) - len(shape))
    return c.emit("rms_norm", c["input"], params=c.params(weight=c.args.get("weight")), shape=shape, eps=eps)


@handles("dropout feature_dropout alpha_dropout feature_alpha_dropout")
def dropout(c: Call) -> Value:
    """Record a dropout, which is the identity until training switches it on."""
    if c["train"] and c["p"] > 0:
        what = "dropout that is active in eval mode"
        why = "it is called with training=True, and a program is deterministic"
        raise c.error(what, why=why, remedy="use nn.Dropout or F.dropout(..., training=self.training)")
    x = c.value(c.args["input"] if "input" in c.args else c["self"])
    if "alpha" in c.op:
        c.builder.notes.append(f"{c.builder.nodes[x.name].module or 'the model'}: alpha dropout is left out")
        return x
    return c.emit("dropout", x, p=float(c["p"]), feature="feature" in c.op)


@handles("embedding")
def embedding(c: Call) -> Any:
    """Record rows of a table."""
    if isinstance(c["weight"], Value):
        return c.builder.by_formula(c)
    return c.emit("embedding", c["indices"], params=c.params(weight=c["weight"]))


def pool(c: Call, op: str, **attrs: Any) -> Value:
    """Record a pool over windows: max_pool2d and the like."""
    n = int(c.op[8])
    kernel = spatial(c["kernel_size"], n)
    attrs |= {"kernel": kernel, "stride": spatial(c["stride"], n) if c["stride"] else kernel}
    attrs |= {"padding": spatial(c["padding"], n), "ceil_mode": bool(c["ceil_mode"])}
    x = c.value(c["self"])
    if any(isinstance(size, str) for size in c.shape(x)[-n:]):
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, attrs.get("dilation", [1] * n), strict=True)]
        rows = zip(attrs["padding"], attrs["stride"], spans, strict=True)
        if attrs["ceil_mode"] and any(p + s > span for p, s, span in rows):
            c.static(*c.shape(x)[-n:])
        c.at_least(*c.out_shape[-n:])
    if len(c.shape(x)) == n + 1:  # without a batch: rows of one channel each are the same
        out = c.out_shape
        y = c.emit(op, alone(c, x), out=(out[0], 1, *out[1:]), **attrs)
        return c.reshape(y)
    return c.emit(op, batched(c, x, n + 2), **attrs)


def alone(c: Call, x: Value) -> Value:
    """Record a channel dimension of one behind the first dimension."""
    return c.reshape(x, (c.shape(x)[0], 1, *c.shape(x)[1:]))


@handles("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(c: Call) -> Any:
    """Record max pooling, and where the largest elements of images lie if that is used."""
    y = pool(c, "max_pool", dilation=spatial(c["dilation"], int(c.op[8])))
    if not c.op.endswith("with_indices"):
        return y
    used = any(user.args[1] == 1 and user.users for user in c.fx.users)
    c.args["stride"] = c["stride"] or c["kernel_size"]
    return [y, places_of_largest(c, c.value(c["self"])) if used and "2d" in c.op else None]


@handles("avg_pool1d avg_pool2d avg_pool3d")
def avg_pool(c: Call) -> Value:
    """Record average pooling, and a factor behind it where windows are divided by another number."""
    divisor = c.args.get("divisor_override")
    if divisor is None:
        return pool(c, "avg_pool", count_include_pad=bool(c["count_include_pad"]))
    n = int(c.op[8])
    kernel, padding = spatial(c["kernel_size"], n), spatial(c["padding"], n)
    size = math.prod(kernel)
    if c["ceil_mode"]:  # the zeros that the last windows stand out by are padding, too
        x = batched(c, c["self"], n + 2)
        stride = spatial(c["stride"], n) if c["stride"] else kernel
        given, found = c.static(*c.shape(x)[2:]), c.static(*c.out_shape[2:])
        ends = [(o - 1) * s + k - i - p for o, s, k, i, p in zip(found, stride, kernel, given, padding, strict=True)]
        pads = [[0, 0], [0, 0], *([p, max(end, 0)] for p, end in zip(padding, ends, strict=True))]
        shape = [*c.shape(x)[:2], *(i + sum(p) for i, p in zip(given, pads[2:], strict=True))]
        padded = c.move("pad", x, out=shape, pads=pads, value=0.0)
        c.args |= {"self": padded, "padding": [0] * n, "ceil_mode": False}
    mean = pool(c, "avg_pool", count_include_pad=True)
    return c.emit("affine_scalar", mean, mul=size / divisor, add=0)


@handles("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d")
def adaptive_avg_pool(c: Call) -> Value:
    """Record a mean over the dimensions that become 1 where all others stay as they are, nothing where all do."""
    n, x = int(c.op.removeprefix("_")[17]), c.value(c["self"])
    if len(c.shape(x)) == n + 1:
        wanted = c.static(*c.out_shape[1:])
        y = c.emit("adaptive_avg_pool", alone(c, x), out=(c.out_shape[0], 1, *wanted), output_size=wanted)
        return c.reshape(y)
    x = batched(c, x, n + 2)
    size, before = list(c.out_shape[2:]), list(c.shape(x)[2:])
    if size == before:
        return x
    if (dims := made_one(before, size)) is not None:
        return c.emit("mean", x, dims=dims, keepdim=True)
    return c.emit("adaptive_avg_pool", x, output_size=c.static(*size))


def made_one(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """Return the dimensions of images that pooling reduces to one element; None where it divides others."""
    if any(size not in (1, known) for known, size in zip(before, after, strict=True)):
        return None
    return [axis for axis, size in enumerate(after, start=2) if size == 1]


@handles("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d")
def adaptive_max_pool(c: Call) -> Any:
    """Record max pooling, dimension by dimension where windows are uneven: each of them is a slice of its own."""
    n, x = int(c.op[17]), c.value(c["self"])
    x = alone(c, x) if len(c.shape(x)) == n + 1 else batched(c, x, n + 2)
    dims = made_one(c.shape(x)[2:], c.out_shape[-n:])
    if dims is not None and any(isinstance(size, str) for size in c.shape(x)[2:]):
        thin = (*c.shape(x)[:2], *c.out_shape[-n:])
        y = c.emit("reduce", x, out=thin, out_dtype=c.dtype(x), fn="amax", dims=dims, keepdim=True)
        return [c.reshape(y), None]
    size, given = c.static(*c.out_shape[-n:]), c.static(*c.shape(x)[2:])
    y = largest(c, x, [g // s if g % s == 0 else 1 for g, s in zip(given, size, strict=True)])
    for axis, (length, wanted) in enumerate(zip(given, size, strict=True), start=2):
        if length % wanted == 0:
            continue
        if wanted > MAX_PIECES:
            raise c.error(f"adaptive max pooling to {wanted} windows", why=f"uneven ones are {MAX_PIECES} at most")
        ends = [(i * length // wanted, -(-(i + 1) * length // wanted)) for i in range(wanted)]
        kernels = [[b - a if d == axis else 1 for d in range(2, len(size) + 2)] for a, b in ends]
        parts = [largest(c, cut(c, y, axis, a, b), k) for (a, b), k in zip(ends, kernels, strict=True)]
        shape = [*c.shape(y)[:axis], wanted, *c.shape(y)[axis + 1 :]]
        y = c.emit("cat", *parts, out=shape, out_dtype=c.dtype(y), axis=axis)
    return [c.reshape(y), None]


def largest(c: Call, x: Value, kernel: list[int]) -> Value:
    """Record the largest of windows that lie side by side; return x itself where they hold one element."""
    if math.prod(kernel) == 1:
        return x
    shape = c.shape(x)
    out = [*shape[:2], *(n // k for n, k in zip(c.static(*shape[2:]), kernel, strict=True))]
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    return c.emit("max_pool", x, out=out, kernel=kernel, stride=kernel, padding=zeros, dilation=ones, ceil_mode=False)


UPSAMPLE = "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
EXACT = "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"


@handles(f"{UPSAMPLE} upsample_trilinear3d upsample_bicubic2d {EXACT}")
def upsample(c: Call) -> Value:
    """Record a resize to a size; where a scale is given that is not the ratio of sizes, by what that scale reads."""
    x = c.value(c.args["input"] if "input" in c.args else c["self"])
    size = list(c.out_shape[2:])
    c.at_least(*size)
    corners = bool(c.args.get("align_corners") or False)
    mode = c.op.removeprefix("_").removeprefix("upsample_")[:-2].replace("_", "-")
    factors = c.args.get("scale_factors") or [c.args.get(k) for k in ("scales_d", "scales_h", "scales_w", "scales")]
    factors = [f for f in factors if f is not None]
    reduced: dict[int, int] = {}
    for axis, factor, before, after in zip(range(2, 5), () if corners else factors, c.shape(x)[2:], size, strict=False):
        if isinstance(before, int) and isinstance(after, int):
            if abs(factor * before - after) > 1e-6:
                x = rescaled(c, x, axis, after, mode, factor)
        elif before is not None and factor < 1 and mode != "bicubic" and abs(1 / factor - round(1 / factor)) < 1e-9:
            reduced[axis] = round(1 / factor)
        elif before is None:
            c.static(before)
        elif after != multiplied([before, round(factor)]) or factor != round(factor):
            names = " and ".join(dict.fromkeys(names_of(before)))
            why = "what it reads lies elsewhere between two elements for every size"
            remedy = f"leave {names} out of dynamic_shapes, or take a whole factor, or 1/2, 1/3 … of the size"
            raise c.error(f"{mode} interpolation of {before} by {factor:.6g}", why=why, remedy=remedy)
    if reduced:
        x = downscaled(c, x, reduced, mode)
    if list(c.shape(x)[2:]) == size:
        return x
    return c.emit("upsample", x, size=size, mode=mode, align_corners=corners)


def rescaled(c: Call, x: Value, axis: int, size: int, mode: str, factor: float) -> Value:
    """Record a resize along one dimension by a scale that does not give a whole size: what is read lies where the scale
    says, not where the ratio of sizes does."""
    before = c.static(c.shape(x)[axis])[0]
    if mode.startswith("nearest"):
        resize = torch.ops.aten._upsample_nearest_exact1d if "exact" in mode else torch.ops.aten.upsample_nearest1d
        index = resize.default(torch.arange(before, dtype=torch.float32)[None, None], [size], factor)
        return gather(c, x, axis, index.flatten().long())
    image = torch.eye(before)[None]  # its rows, resized, are the columns of the weights
    if mode == "bicubic":
        matrix = torch.ops.aten.upsample_bicubic2d.default(image[None], [before, size], False, None, factor)[0, 0]
    else:
        matrix = torch.ops.aten.upsample_linear1d.default(image, [size], False, factor)[0]
    return by_matrix(c, x, axis, matrix)


def by_matrix(c: Call, x: Value, axis: int, matrix: Tensor) -> Value:
    """Record a product of a matrix (size, new size) with one dimension of images."""
    shape = c.shape(x)
    order = list(range(len(shape)))
    order[axis], order[-1] = order[-1], order[axis]
    y = permuted(c, x, order) if axis != len(shape) - 1 else x
    y = c.emit("matmul", y, matrix, out=[*c.shape(y)[:-1], matrix.shape[1]])
    return permuted(c, y, order) if axis != len(shape) - 1 else y


def downscaled(c: Call, x: Value, reduced: Mapping[int, int], mode: str) -> Value:
    """Record a resize to one k-th of the size, rounded down: of every k elements one, or the mean of the middle two.

    Args:
        x: images.
        reduced: dimension → k, at least 2.
        mode: nearest, nearest-exact, linear, bilinear or trilinear.
    """
    rank = len(c.shape(x))
    kernel, stride = [1] * (rank - 2), [1] * (rank - 2)
    for axis, k in reduced.items():
        length = c.shape(x)[axis]
        assert length is not None
        pair = mode.endswith("linear") and k % 2 == 0
        start = 0 if mode == "nearest" else k // 2 - 1 if pair else k // 2
        end = multiplied([k, divided(length, k)])
        if pair:
            kernel[axis - 2], stride[axis - 2] = 2, k
            x = cut(c, x, axis, start, end) if start else x
        else:
            x = cut(c, x, axis, start, end, k)
    if max(kernel) == 1:
        return x
    shape = [*c.shape(x)[:2], *(c.out_shape[i + 2] if kernel[i] > 1 else c.shape(x)[i + 2] for i in range(rank - 2))]
    window: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": [0] * (rank - 2)}
    return c.emit("avg_pool", x, out=shape, **window, ceil_mode=False, count_include_pad=True)


@handles("_upsample_bilinear2d_aa _upsample_bicubic2d_aa")
def antialiased(c: Call) -> Value:
    """Record a resize whose windows grow with the reduction: a product with one matrix of weights per dimension."""
    y = c.value(c.args["input"] if "input" in c.args else c["self"])
    resize: Any = getattr(torch.ops.aten, c.op).default
    for axis, scale in ((2, "scales_h"), (3, "scales_w")):
        size, out = c.static(c.shape(y)[axis], c.out_shape[axis])
        image = torch.eye(size)[None, None]  # its rows, resized, are the columns of the weights
        matrix = resize(image, [size, out], bool(c["align_corners"]), None, c.args.get(scale))[0, 0]
        y = by_matrix(c, y, axis, matrix)
    return y
