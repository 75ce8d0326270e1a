"""conv, transposed conv and linear: one oneDNN call each, activation, residual and requantization included.

The call gets x_scale = output_scale = 1, the multiplier a/b as the weight scale of its channel and bias·a/b as float32
bias. Float32 roundings of one result, with k = 8 allowed: acc → float32, a/b stored, their product, bias·a/b stored,
the sum, + z: six; a fused residual stores its ratio and adds with one fused multiply-add: eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.windows import sees_padding_only
from intact8.engines.onednn.depthwise_ones import CONV, CONV_SUM, PACK
from intact8.engines.onednn.lowering import OpContext, Rule, Step, is_nhwc, to_nhwc
from intact8.engines.onednn.quantize_passes import make_quantize
from intact8.engines.strided_pointwise import overruns
from intact8.opset.kind import zero_point

CONV3D = torch.ops.onednn.qconv3d_pointwise.default
LINEAR = torch.ops.onednn.qlinear_pointwise.default
LINEAR_SUM = torch.ops.onednn.qlinear_pointwise.binary
LINEAR_PACK = torch.ops.onednn.qlinear_prepack.default


@dataclass(frozen=True)
class Post:
    """A clamp [lo, hi] as a post-op of the call, or as one more pass over the uint8 result."""

    name: str
    scalars: list[float]
    clamp: tuple[int, int] | None

    @staticmethod
    def of(ctx: OpContext, *, relu_only: bool = False) -> Post:
        """Return the clamp of an operation. The post-op works before z is added; conversion to uint8 saturates by
        itself.

        With ``relu_only`` the call has no other post-op, as calls with a fused residual.
        """
        lo, hi, z = ctx.lo, ctx.hi, ctx.z
        if lo in (0, z) and hi == 255:
            return Post("relu" if lo else "none", [], None)
        if relu_only:
            return Post("relu" if lo == z else "none", [], (lo, hi))
        return Post("hardtanh", [float(lo - z), float(hi - z)], None)

    def after(self, step: Step) -> Step:
        """Return ``step`` and the clamp, where the call does not do it."""
        if self.clamp is None:
            return step
        lo, hi = self.clamp
        return lambda *tensors: step(*tensors).clamp_(lo, hi)


@dataclass(frozen=True)
class Weights:
    """The arrays of a convolution or linear layer as the operators take them.

    Attributes:
        weight, scales, bias, zeros: what the operators take; no bias where results are float32.
        slopes: those of a leaky ReLU.
        residual: the ratio of a residual.
        floats: whether results are float32.
        offset: what is added to these behind the call, since operators add biases before they scale.
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None
    zeros: Tensor
    slopes: Tensor | None = None
    residual: float = 0.0
    floats: bool = False
    offset: Tensor | None = None

    @staticmethod
    def of(ctx: OpContext) -> Weights:
        """Every float here is an exact rational rounded once."""
        op, arrays, slopes = ctx.op, ctx.op.arrays, None
        weight = torch.from_numpy(np.array(arrays["weight"], np.int8))
        if ctx.out.dtype == "float32":
            scales, zeros = _float32(arrays["scale"]), torch.zeros(len(arrays["scale"]), dtype=torch.int32)
            offset = _float32(arrays["bias"]) if "bias" in arrays else None
            return Weights(weight, scales, None, zeros, floats=True, offset=offset)
        a, b = op.multipliers()
        m = a / b
        if "a_neg" in arrays:
            negative = arrays["a_neg"].astype(np.float64) / arrays["b_neg"]
            slopes = _float32(np.divide(negative, m, out=np.zeros_like(negative), where=m != 0))
        return Weights(
            weight,
            _float32(m),
            _float32(np.asarray(arrays["bias"], np.float64) * a / b + arrays.get("shift", 0)),
            torch.zeros(len(a), dtype=torch.int32),
            slopes,
            float(np.float32(op.attrs.get("residual_a", 0) / int(b[0]))) if len(op.inputs) == 2 else 0.0,
        )

    def head(self, ctx: OpContext, packed: Tensor) -> tuple[Any, ...]:
        """Return what every operator takes behind the input: its scale and zero point, the packed weight and its
        scales."""
        return 1.0, ctx.z_x, packed, self.scales, self.zeros

    def residual_tail(self, ctx: OpContext, post: Post) -> tuple[Any, ...]:
        """Return what an operator takes behind everything else for a fused residual."""
        return 1.0, ctx.z, torch.uint8, self.residual, zero_point(ctx.metas[1]), "sum", 1.0, post.name, [], ""


TO_FLOAT: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
"""What an operator takes behind everything else for a float32 result without post-op."""


@dataclass(frozen=True)
class Geometry:
    """Where windows lie in an image, per spatial dimension."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def _float32(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(values, np.float64).astype(np.float32)))


def _after(prepare: Callable[[Tensor], Tensor], step: Step) -> Step:
    """Return ``step`` on an input that goes through ``prepare`` first."""
    return lambda x, *residual: step(prepare(x), *residual)


def _plus(y: Tensor, offset: Tensor | None) -> Tensor:
    """Return fl(y + offset) in the memory of y."""
    return y if offset is None else y.add_(offset)


def lower_linear(ctx: OpContext) -> Step:
    """Lower ``linear`` on the last dimension of a tensor of any rank."""
    x = ctx.inputs[0]
    call = _linear_call(ctx, Weights.of(ctx), [x.numel() // x.shape[-1], x.shape[-1]])
    return call if x.is_contiguous() else _after(Tensor.contiguous, call)


def _linear_call(ctx: OpContext, n: Weights, shape: list[int]) -> Step:
    """Return a call on (…, K) contiguous memory; a residual has the layout of the result."""
    pack = ctx.pack(("linear", shape[-1]), lambda: LINEAR_PACK(n.weight.flatten(1).contiguous(), shape))
    weights = n.head(ctx, pack.weight)
    head = (*weights, n.bias)
    if n.floats:
        return lambda x: _plus(LINEAR(x, *head, *TO_FLOAT), n.offset)
    if len(ctx.op.inputs) == 2:
        post, own = Post.of(ctx, relu_only=True), _writable_residual(ctx, Tensor.is_contiguous, Tensor.contiguous)
        tail = (n.bias, *n.residual_tail(ctx, post))
        return post.after(lambda x, residual: LINEAR_SUM(x, *weights, own(residual), *tail))
    if n.slopes is not None:
        finish, channels = _leaky_relu(ctx, n.slopes), len(n.scales)

        def leaky(x: Tensor) -> Tensor:
            v = LINEAR(x, *head, *TO_FLOAT)
            return finish(v.view(-1, channels)).view(v.shape)

        return leaky
    post = Post.of(ctx)
    fixed = (*head, 1.0, ctx.z, torch.uint8, post.name, post.scalars, "")
    return lambda x: LINEAR(x, *fixed)


def lower_conv(ctx: OpContext) -> Step:
    """Lower ``conv`` with one, two or three spatial dimensions, transposed or not."""
    attrs, x, n = ctx.op.attrs, ctx.inputs[0], Weights.of(ctx)
    stride, padding, dilation = ctx.ints("stride", "padding", "dilation")
    geometry = Geometry(stride, padding, dilation, int(attrs["groups"]))
    if not attrs["transposed"]:
        return _conv(ctx, n, x, geometry)
    spread, ones = _spread_input(ctx, geometry), [1] * len(geometry.stride)
    flipped = replace(n, weight=_flip(n.weight, geometry.groups))
    plain = replace(geometry, stride=ones, padding=[0] * len(ones))
    return _after(spread, _conv(ctx, flipped, spread(x), plain))


def _conv(ctx: OpContext, n: Weights, x: Tensor, g: Geometry) -> Step:
    if g.groups == 1 and all(v == 1 for v in (*n.weight.shape[2:], *g.stride)) and not any(g.padding):
        step = _pointwise(ctx, n, x)
    elif x.dim() == 3:
        step = _conv_1d(ctx, n, x, g)
    else:
        step = _conv_nd(ctx, n, list(x.shape), g)
    return step if is_nhwc(x) else _after(to_nhwc, step)


def _conv_1d(ctx: OpContext, n: Weights, x: Tensor, g: Geometry) -> Step:
    """Return a convolution of images of height 1."""
    flat = Geometry([1, *g.stride], [0, *g.padding], [1, *g.dilation], g.groups)
    call = _conv_nd(ctx, replace(n, weight=n.weight.unsqueeze(2)), [*x.shape[:2], 1, x.shape[2]], flat)
    return lambda *tensors: call(*(t.unsqueeze(2) for t in tensors)).squeeze(2)


def _pointwise(ctx: OpContext, n: Weights, x: Tensor) -> Step:
    """A 1×1 convolution is ``linear`` on the same memory, whose operator costs 7 µs less per call."""
    rank = x.dim()
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    call = _linear_call(ctx, n, [x.numel() // x.shape[1], x.shape[1]])
    if len(ctx.op.inputs) == 2:
        return lambda x, residual: call(x.permute(last), residual.permute(last)).permute(first)
    return lambda x: call(x.permute(last)).permute(first)


def _conv_nd(ctx: OpContext, n: Weights, shape: list[int], g: Geometry) -> Step:
    """Return the call, and ways round three bugs of oneDNN 3.12.

    Where some output sees nothing but padding, oneDNN computes it from memory that is not the input's, or crashes: the
    input is then padded before the call. One input channel per group (and no depthwise convolution) gives wrong
    numbers where the output is one column wide with a column stride, and in volumes one slice deep. A second channel
    with zero weights takes another path through oneDNN. For the third see :mod:`intact8.engines.strided_pointwise`.
    """
    sizes = zip(shape[2:], n.weight.shape[2:], g.stride, g.padding, g.dilation, strict=True)
    if any(sees_padding_only(*size) for size in sizes):
        around = [v for p in reversed(g.padding) for v in (p, p)]
        full = [*shape[:2], *(length + 2 * p for length, p in zip(shape[2:], g.padding, strict=True))]
        padded = _conv_nd(ctx, n, full, replace(g, padding=[0] * len(g.padding)))
        z_x = ctx.z_x
        return _after(lambda x: to_nhwc(F.pad(x, around, value=z_x)), padded)
    if overruns(n.weight.shape[2:], g.stride, n.weight.shape[1]) and not any(g.padding):
        kept: tuple[Any, ...] = (..., *(slice(None, None, step) for step in g.stride))
        few = [*shape[:2], *(-(-length // step) for length, step in zip(shape[2:], g.stride, strict=True))]
        dense = _conv_nd(ctx, n, few, replace(g, stride=[1] * len(g.stride)))
        return _after(lambda x: to_nhwc(x[kept]), dense)
    lone = n.weight.shape[1] == 1 and (g.groups == 1 or n.weight.shape[0] > g.groups)
    span = g.dilation[-1] * (n.weight.shape[-1] - 1) + 1
    one_column = g.stride[-1] > 1 and shape[-1] + 2 * g.padding[-1] - span < g.stride[-1]
    if not lone or not (len(shape) == 5 or one_column):
        return _conv_call(ctx, n, shape, g)
    wide = replace(n, weight=torch.cat([n.weight, torch.zeros_like(n.weight)], 1))
    call = _conv_call(ctx, wide, [shape[0], 2 * shape[1], *shape[2:]], g)
    return _after(lambda x: to_nhwc(x.repeat_interleave(2, 1)), call)


def _conv_call(ctx: OpContext, n: Weights, shape: list[int], g: Geometry) -> Step:
    """Return one operator call on channels-last memory."""
    images, where = len(shape) == 4, (g.stride, g.padding, g.dilation, g.groups)
    plain = CONV if images else CONV3D
    pack = ctx.pack(("conv", *shape[1:]), lambda: PACK(n.weight, n.scales, 1.0, ctx.z_x, *where, shape))
    head, middle = n.head(ctx, pack.weight), (n.bias, *where)

    def to_float(x: Tensor) -> Tensor:
        result: Tensor = plain(x, *head, *middle, *TO_FLOAT)
        return result

    if n.floats:
        offset = None if n.offset is None else n.offset.view(-1, *[1] * len(g.stride))
        return lambda x: _plus(to_float(x), offset)
    if n.slopes is not None:
        finish = _leaky_relu(ctx, n.slopes)
        return lambda x: finish(to_float(x))
    if len(ctx.op.inputs) == 2:
        # oneDNN has no fused sum for volumes, and 3.12 writes wrong columns for depthwise + dilation + sum on CPUs with
        # AVX-VNNI but not AVX512. In both cases the sum is added outside the call, with the same two roundings.
        if not images or (ctx.isa == "avx2_vnni" and g.groups > 1 and max(g.dilation) > 1):
            end, z_r, r = make_quantize(ctx.z, ctx.lo, ctx.hi), zero_point(ctx.metas[1]), n.residual
            return lambda x, residual: end(to_float(x).add_(residual.float().sub_(z_r).mul_(r)))
        post, own = Post.of(ctx, relu_only=True), _writable_residual(ctx, is_nhwc, to_nhwc)
        tail = (*middle, *n.residual_tail(ctx, post))
        return post.after(lambda x, residual: CONV_SUM(x, *head, own(residual), *tail))
    post = Post.of(ctx) if images else Post("none", [], (ctx.lo, ctx.hi))  # operators of volumes have no post-op
    fixed = (*head, *middle, 1.0, ctx.z, torch.uint8, post.name, post.scalars, "")
    return post.after(lambda x: plain(x, *fixed))


def _leaky_relu(ctx: OpContext, slopes: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the negative values times the slope of their channel (dimension 1), then uint8.

    Roundings: five of the product above, the slope stored and its product: seven. The sign needs no care: acc + bias is
    an integer, and where its sign is in doubt, both results round to 0.
    """
    end = make_quantize(ctx.z, ctx.lo, ctx.hi)
    return lambda v: end(torch.prelu(v, slopes))


def _writable_residual(
    ctx: OpContext, fits: Callable[[Tensor], bool], convert: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the residual in memory that the call may overwrite: its own when nobody reads it later, otherwise a
    copy."""
    copy = partial(torch.clone, memory_format=torch.preserve_format)
    own: Callable[[Tensor], Tensor] = (lambda x: x) if ctx.may_overwrite[1] else copy
    return lambda residual: own(residual) if fits(residual) else convert(residual)


def _flip(w: Tensor, groups: int) -> Tensor:
    """Return the weights (I, O/groups, …) of a transposed convolution as those of the ordinary one on the spread
    input."""
    size = w.shape[2:]
    w = w.reshape(groups, w.shape[0] // groups, w.shape[1], *size).transpose(1, 2)
    return w.reshape(-1, w.shape[2], *size).flip(tuple(range(2, 2 + len(size)))).contiguous()


def _spread_input(ctx: OpContext, g: Geometry) -> Callable[[Tensor], Tensor]:
    """Return the input of a transposed convolution with z_x between its elements and around it, so that an ordinary
    convolution of stride 1 without padding gives the result. Exact in int32 for any size; oneDNN has no int8 transposed
    convolution in torch."""
    z_x, shape, size, keep, places = ctx.z_x, ctx.inputs[0].shape, list[int](), list[slice](), list[slice]()
    kernel, extra = ctx.op.arrays["weight"].shape[2:], ctx.op.attrs["output_padding"]
    for length, k, s, p, d, more in zip(shape[2:], kernel, g.stride, g.padding, g.dilation, extra, strict=True):
        before = d * (k - 1) - p
        full = before + (length - 1) * s + 1 + before + int(more)
        skip = max(0, -(before // s))  # elements that a padding wider than the kernel cuts away
        start = before + skip * s
        count = max(0, min(length - skip, (full - 1 - start) // s + 1))
        size.append(full)
        keep.append(slice(skip, skip + count))
        places.append(slice(start, start + (count - 1) * s + 1 if count else start, s))

    def spread(x: Tensor) -> Tensor:
        board = torch.full((x.shape[0], *size, x.shape[1]), z_x, dtype=torch.uint8)
        board[(slice(None), *places)] = x.movedim(1, -1)[(slice(None), *keep)]
        return board.movedim(-1, 1)

    return spread


RULES: dict[str, Rule] = {
    "conv": lower_conv,
    "linear": lower_linear,
    "dequantized_conv": lower_conv,
    "dequantized_linear": lower_linear,
}
"""Kind → rule."""
