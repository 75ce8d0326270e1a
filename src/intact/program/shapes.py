"""Shape of every operation's output, from its inputs. ``None`` is an unknown (batch) dimension, a name one
whose size is known when the program runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from intact.arithmetic.codes import group_count
from intact.arithmetic.dimensions import Dim
from intact.arithmetic.windows import pool_size

from .ops import Op, Tensor
from .recurrent import float_shape, layer_shape
from .values import LARGEST_SIZE
from .violation import Violation, need

Shape = tuple[Dim, ...]


def known(dim: Dim, what: str) -> int:
    """``dim``, which must not change from call to call."""
    if not isinstance(dim, int):
        raise Violation(f"{what} depends on the {'batch size' if dim is None else f'size of {dim}'}")
    return dim


def elements(shape: Shape) -> int:
    """Product of the known dimensions."""
    return math.prod(d for d in shape if isinstance(d, int))


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape elementwise operations give."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = {d for d in dims if d != 1}
        need(len(sizes) <= 1, f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def _fits_outputs(op: Op, outputs: int) -> None:
    """One number per output channel, where there is a bias."""
    if "bias" in op.arrays:
        need(op.arrays["bias"].shape == (outputs,), f"bias has shape {op.arrays['bias'].shape}, not ({outputs},)")


def _same(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return x[0]


def _broadcast(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return broadcast(x)


def spatial(op: Op, shape: Shape, rank: int) -> list[int]:
    """The trailing ``rank`` dimensions, after batch and channels."""
    need(len(shape) == rank + 2, f"input of shape {shape} does not have {rank} spatial dimensions")
    return [known(d, "a spatial dimension") for d in shape[2:]]


def _conv(op: Op, x: list[Shape], declared: Shape) -> Shape:
    t, weight = op.attrs, op.arrays["weight"].shape
    rank = len(weight) - 2
    need(1 <= rank <= 3, f"weight of shape {weight} has {rank} spatial dimensions, not 1, 2 or 3")
    for name in ("stride", "padding", "dilation", "output_padding"):
        need(len(t[name]) == rank, f"{name} {t[name]} does not have {rank} entries")
    size, groups, kernel = spatial(op, x[0], rank), t["groups"], weight[2:]
    inputs = weight[0] if t["transposed"] else weight[1] * groups
    outputs = weight[1] * groups if t["transposed"] else weight[0]
    _fits_outputs(op, outputs)
    need(x[0][1] == inputs, f"input has {x[0][1]} channels, weight of shape {weight} takes {inputs}")
    need(
        inputs % groups == 0 and outputs % groups == 0, f"{groups} groups do not divide {inputs} and {outputs} channels"
    )
    geometry = zip(size, kernel, t["stride"], t["padding"], t["dilation"], t["output_padding"], strict=True)
    if t["transposed"]:
        out = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in geometry]
        fits = all(o < max(s, d) for o, s, d in zip(t["output_padding"], t["stride"], t["dilation"], strict=True))
        need(fits, "output_padding must be smaller than stride or dilation")
    else:
        need(not any(t["output_padding"]), "output_padding belongs to transposed convolutions")
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in geometry]
    need(min(out) >= 1, f"the kernel does not fit an input of shape {x[0]}")
    return (x[0][0], outputs, *out)


def _linear(op: Op, x: list[Shape], declared: Shape) -> Shape:
    weight = op.arrays["weight"].shape
    need(len(weight) == 2, f"weight of shape {weight} is not a matrix")
    need(bool(x[0]) and x[0][-1] == weight[1], f"input of shape {x[0]} does not end in {weight[1]}")
    _fits_outputs(op, weight[0])
    return (*x[0][:-1], weight[0])


def _pool(op: Op, x: list[Shape], declared: Shape) -> Shape:
    t = op.attrs
    rank, dilation = len(t["kernel"]), t.get("dilation", [1] * len(t["kernel"]))
    need(all(len(v) == rank for v in (t["stride"], t["padding"], dilation)), "kernel, stride, padding differ in length")
    need(1 <= rank <= 3, f"{rank} spatial dimensions")
    size = spatial(op, x[0], rank)
    spans = [d * (k - 1) + 1 for k, d in zip(t["kernel"], dilation, strict=True)]
    need(all(2 * p <= k for p, k in zip(t["padding"], spans, strict=True)), "padding exceeds half the kernel")
    out = [
        pool_size(n, k, s, p, d, t["ceil_mode"])
        for n, k, s, p, d in zip(size, t["kernel"], t["stride"], t["padding"], dilation, strict=True)
    ]
    need(min(out) >= 1, f"the kernel does not fit an input of shape {x[0]}")
    return (*x[0][:2], *out)


def _adaptive(op: Op, x: list[Shape], declared: Shape) -> Shape:
    size = op.attrs["output_size"]
    need(len(size) <= 3, f"{len(size)} spatial dimensions")
    spatial(op, x[0], len(size))
    return (*x[0][:2], *size)


def _reduced(op: Op, x: list[Shape], declared: Shape) -> Shape:
    rank = len(x[0])
    dims = op.attrs["dims"] or list(range(rank))
    need(len(set(dims)) == len(dims) and max(dims, default=-1) < rank, f"dims {dims} do not fit rank {rank}")
    if not op.is_float:  # The divisor is part of the multiplier.
        for d in dims:
            known(x[0][d], "a reduced dimension")
    keep = op.attrs["keepdim"]
    return tuple(1 if i in dims else d for i, d in enumerate(x[0]) if keep or i not in dims)


def _reduce(op: Op, x: list[Shape], declared: Shape) -> Shape:
    need(op.attrs["fn"] != "argmax" or len(op.attrs["dims"]) <= 1, "argmax takes one dimension, or all")
    return _reduced(op, x, declared)


def axis_of(op: Op, shape: Shape) -> int:
    """The attribute ``axis``, counted from the front."""
    axis: int = op.attrs["axis"]
    need(-len(shape) <= axis < len(shape), f"axis {axis} does not fit shape {shape}")
    return axis % len(shape)


def _axis(op: Op, x: list[Shape], declared: Shape) -> Shape:
    axis_of(op, x[0])
    if len(x) == 2:
        need(broadcast(x) == x[0], f"a mask of shape {x[1]} does not fit scores of shape {x[0]}")
    return x[0]


def _cat(op: Op, x: list[Shape], declared: Shape) -> Shape:
    axis = axis_of(op, x[0])
    for s in x[1:]:
        same = len(s) == len(x[0]) and all(a == b for i, (a, b) in enumerate(zip(s, x[0], strict=True)) if i != axis)
        need(same, f"shapes {x[0]} and {s} differ outside axis {axis}")
    total = sum(known(s[axis], "the axis of a cat") for s in x)
    return (*x[0][:axis], total, *x[0][axis + 1 :])


def _reshape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = op.attrs["shape"]
    need(shape.count(-1) <= 1, f"shape {shape} has more than one -1")
    fixed = math.prod(d for d in shape if isinstance(d, int) and d != -1)
    if None in x[0]:
        # A dimension may be a multiple of the batch size (windows of images), so sizes are compared when running.
        need(-1 in shape, f"shape {shape} leaves no room for the batch dimension of {x[0]}")
        need(fixed > 0, f"shape {shape} has no elements")
        return tuple(None if d == -1 else d for d in shape)
    named = [sorted(d for d in s if isinstance(d, str)) for s in (x[0], shape)]
    need(named[0] == named[1], f"{x[0]} cannot become {shape}: sizes that are not known differ")
    total = elements(x[0])
    need(total % max(fixed, 1) == 0 and (-1 in shape or fixed == total), f"{x[0]} cannot become {shape}")
    return tuple(total // max(fixed, 1) if d == -1 else d for d in shape)


def _permute(op: Op, x: list[Shape], declared: Shape) -> Shape:
    dims = op.attrs["dims"]
    need(sorted(dims) == list(range(len(x[0]))), f"dims {dims} are no permutation of rank {len(x[0])}")
    return tuple(x[0][d] for d in dims)


def _slice(op: Op, x: list[Shape], declared: Shape) -> Shape:
    axis, start, end = axis_of(op, x[0]), op.attrs["start"], op.attrs["end"]
    if isinstance(end, str):
        known(x[0][axis], "a dimension cut to a length")
        need(
            start == 0 and op.attrs["step"] == 1, f"{start}:{end}:{op.attrs['step']} does not begin at 0 in steps of 1"
        )
        return (*x[0][:axis], end, *x[0][axis + 1 :])
    if isinstance(x[0][axis], str):  # how long it is at least, the checker knows
        need(start < end, f"{start}:{end} is empty")
        return (*x[0][:axis], len(range(start, end, op.attrs["step"])), *x[0][axis + 1 :])
    size = known(x[0][axis], "a sliced dimension")
    need(start < end <= size, f"{start}:{end} is empty or beyond {size}")
    return (*x[0][:axis], len(range(start, end, op.attrs["step"])), *x[0][axis + 1 :])


def _pad(op: Op, x: list[Shape], declared: Shape) -> Shape:
    pads = op.attrs["pads"]
    need(len(pads) == len(x[0]), f"pads {pads} do not have one entry per dimension of {x[0]}")
    out = tuple(
        d if not any(row) else known(d, "a padded dimension") + sum(row) for d, row in zip(x[0], pads, strict=True)
    )
    need(all(not isinstance(d, int) or d >= 1 for d in out), f"pads {pads} leave nothing of {x[0]}")
    return out


def _expand(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = op.attrs["shape"]
    need(len(shape) >= len(x[0]) and len(shape) == len(declared), f"{x[0]} cannot expand to {shape}")
    padded = (1,) * (len(shape) - len(x[0])) + x[0]
    out: list[Dim] = []
    for wanted, dim, stated in zip(shape, padded, declared, strict=True):
        # −1 is the batch dimension; a static program writes it for "as it is", too.
        result = (stated if dim == 1 and stated is None else dim) if wanted == -1 else wanted
        need(dim in (1, result), f"{x[0]} cannot expand to {shape}")
        out.append(result)
    return tuple(out)


def _roll(op: Op, x: list[Shape], declared: Shape) -> Shape:
    dims = op.attrs["dims"]
    need(len(dims) == len(op.attrs["shifts"]) and max(dims) < len(x[0]), f"dims {dims} do not fit {x[0]}")
    for d in dims:
        known(x[0][d], "a rolled dimension")
    return x[0]


def _upsample(op: Op, x: list[Shape], declared: Shape) -> Shape:
    size, mode = op.attrs["size"], op.attrs["mode"]
    ranks = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
    need(len(size) <= 3 and ranks.get(mode, len(size)) == len(size), f"mode {mode} does not take size {size}")
    spatial(op, x[0], len(size))
    return (*x[0][:2], *size)


def _constant(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return tuple(op.arrays["value"].shape)


def _channels(op: Op, x: list[Shape], declared: Shape) -> Shape:
    need(len(x[0]) >= 2, f"input of shape {x[0]} has no channels")
    for role, array in op.arrays.items():
        one = op.kind == "float.prelu" and array.shape == (1,)
        need(one or array.shape == (x[0][1],), f"{role} of shape {array.shape} does not fit {x[0][1]} channels")
    return x[0]


def _prelu(op: Op, x: list[Shape], declared: Shape) -> Shape:
    return x[0] if op.arrays["weight"].size == 1 else _channels(op, x, declared)


def _layer_norm(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = tuple(op.attrs["shape"])
    need(len(shape) <= len(x[0]) and x[0][-len(shape) :] == shape, f"input of shape {x[0]} does not end in {shape}")
    for role, array in op.arrays.items():
        need(array.shape == shape, f"{role} has shape {array.shape}, not {shape}")
    return x[0]


def _group_norm(op: Op, x: list[Shape], declared: Shape) -> Shape:
    _channels(op, x, declared)
    need(known(x[0][1], "the channel dimension") % op.attrs["groups"] == 0, "groups do not divide the channels")
    return x[0]


def _matmul(op: Op, x: list[Shape], declared: Shape) -> Shape:
    left, right = x
    need(len(left) >= 2 and len(right) >= 2, f"{left} and {right} are no matrices")
    need(left[-1] == right[-2] and left[-1] is not None, f"{left} and {right} do not multiply")
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def _dynamic_linear(op: Op, x: list[Shape], declared: Shape) -> Shape:
    shape = _linear(op, x, declared)
    for role in ("scale", "bias"):
        if role in op.arrays:
            array = op.arrays[role]
            need(array.shape == shape[-1:], f"{role} has shape {array.shape}, not {shape[-1:]}")
    need(bool((op.arrays["scale"] > 0).all()), "scale holds a number that is not positive")
    return shape


def _decoded(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """A matrix of codes: what a linear layer multiplies by, or the rows of an embedding."""
    t, weight, scale = op.attrs, op.arrays["weight"], op.arrays["scale"]
    need(t["bits"] in (4, 8), f"{t['bits']} bits, not 4 or 8")
    need(weight.ndim == 2, f"weight of shape {weight.shape} is not a matrix")
    columns, rows = t["columns"], weight.shape[0]
    wanted = (rows, columns if t["bits"] == 8 else -(-columns // 2))
    need(weight.shape == wanted, f"weight has shape {weight.shape}, not {wanted}")
    need(t["group"] < columns, f"groups of {t['group']} among {columns} columns")
    wanted = (rows, group_count(columns, t["group"]))
    need(scale.shape == wanted, f"scale has shape {scale.shape}, not {wanted}")
    need(bool((scale > 0).all()), "scale holds a number that is not positive")
    if op.kind == "decoded_embedding":
        return (*x[0], columns)
    if "bias" in op.arrays:
        need(op.arrays["bias"].shape == (rows,), f"bias has shape {op.arrays['bias'].shape}, not {(rows,)}")
    need(bool(x[0]) and x[0][-1] == columns, f"input of shape {x[0]} does not end in {columns}")
    return (*x[0][:-1], rows)


def _embedding(op: Op, x: list[Shape], declared: Shape) -> Shape:
    weight = op.arrays["weight"].shape
    need(len(weight) == 2, f"weight of shape {weight} is not a matrix")
    return (*x[0], weight[1])


Rule = Callable[[Op, list[Shape], Shape], Shape]

SHAPES: dict[str, Rule] = {
    "conv": _conv, "linear": _linear, "matmul": _matmul, "add": _broadcast, "mul": _broadcast, "mean": _reduced,
    "avg_pool": _pool, "adaptive_avg_pool": _adaptive, "max_pool": _pool, "cat": _cat, "reshape": _reshape,
    "permute": _permute, "slice": _slice, "pad": _pad, "expand": _expand, "roll": _roll, "upsample": _upsample,
    "constant": _constant,
    "dynamic_linear": _dynamic_linear, "decoded_embedding": _decoded, "float.decoded_linear": _decoded,
    "softmax": _axis, "layer_norm": _layer_norm, "rms_norm": _layer_norm, "embedding": _embedding,
    "float.rms_norm": _layer_norm,
    "float.add": _broadcast, "float.sub": _broadcast, "float.mul": _broadcast,
    "float.div": _broadcast,
    "float.mean": _reduced, "float.avg_pool": _pool, "float.adaptive_avg_pool": _adaptive, "float.conv": _conv,
    "float.linear": _linear, "float.scale_shift": _channels, "float.softmax": _axis, "float.log_softmax": _axis,
    "float.layer_norm": _layer_norm, "float.group_norm": _group_norm, "float.matmul": _matmul, "float.reduce": _reduce,
    "float.embedding": _embedding, "float.masked_fill": _broadcast,
    "lstm": layer_shape, "gru": layer_shape, "rnn": layer_shape,
    "float.lstm": float_shape, "float.gru": float_shape, "float.rnn": float_shape, "float.prelu": _prelu,
    **dict.fromkeys(
        ("quantize", "dequantize", "table", "float.relu", "float.clamp", "float.leaky_relu", "float.unary",
         "float.affine_scalar", "float.compare", "float.cast"), _same,
    ),
}  # fmt: skip
"""Kind → shape of its output, and what it demands of the shapes of its inputs and arrays."""


def output_shape(op: Op, inputs: Sequence[Tensor], declared: Shape) -> Shape:
    """The shape ``op`` gives. ``declared`` decides only what an expanded −1 stands for.

    Raises:
        Violation: the inputs do not fit the op.
    """
    shape = SHAPES[op.kind](op, [t.shape for t in inputs], declared)
    need(len(shape) <= 8 and elements(shape) <= LARGEST_SIZE, f"output of shape {shape} is too large")
    return shape
