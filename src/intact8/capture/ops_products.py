"""ATen → operations: matrix products, linear layers, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intact8.arithmetic.dimensions import Dim, limits_of
from intact8.capture.aten_call import Call, Prefix, Shape, Value, finite, handles
from intact8.capture.ops_pointwise import inverse
from intact8.capture.ops_shape import expanded, permuted
from intact8.capture.symbolic_constants import all_true

_ATEN = torch.ops.aten
TRANSPOSES = (_ATEN.t.default, _ATEN.numpy_T.default, _ATEN.transpose.int, _ATEN.permute.default)
"""Operators that exchange the dimensions of a matrix, or leave them as they are."""


@handles("linear")
def linear(c: Call) -> Value:
    """Record a linear layer where its weights are known, a product of two tensors otherwise; a vector is a column."""
    if len(c.shape(c["weight"])) == 1 and len(c.shape(c["input"])) > 1:
        column, bias = _matrix(c, c["weight"], (*c.shape(c["weight"]), 1)), c["bias"]
        known = isinstance(column, Tensor) and isinstance(bias, Tensor)
        within = _matrix(c, bias, (1,)) if known else None
        y = c.reshape(product(c, c["input"], column, bias=within, out=(*c.out_shape, 1)), c.out_shape)
        return y if bias is None or known else c.emit("add", y, bias)
    real = c.builder.dtype_of_meta(c.fx) == "float32"
    if real and all(isinstance(v, (Tensor, type(None))) for v in (c["weight"], c["bias"])):
        return by_known_weights(c, c.params(weight=c["weight"], bias=c["bias"]))
    rows = c.shape(c["weight"])
    if len(rows) != 2:
        raise c.error("a linear layer whose weight is not a matrix", remedy="use matmul")
    weight = c.move("permute", c["weight"], out=(rows[1], rows[0]), dims=[1, 0])
    y = c.emit("matmul", c["input"], weight) if real else whole_product(c, c["input"], weight)
    return y if c["bias"] is None else c.emit("add", y, c["bias"])


def by_known_weights(c: Call, params: dict[str, str]) -> Value:
    """Record a linear layer: once for what is the same for every sample, such as the queries of a decoder, which is
    expanded to the samples behind it. OpenVINO has no proved kernel for rows that were expanded."""
    x, outputs, permutes = c.value(c["input"]), c.out_shape[-1], []
    node = c.builder.nodes[x.name]
    while node.op == "permute" and node.attrs["dims"][-1] == len(node.shape) - 1:
        permutes.append(node)
        node = c.builder.nodes[node.inputs[0]]
    if node.op == "expand" and None in node.shape[:-1]:
        source, *like = (Value(name, x.storage) for name in node.inputs)
        shape = c.shape(source)
        if len(shape) == len(node.shape) and None not in shape and shape[-1] == node.shape[-1]:
            y = c.emit("linear", source, out=(*shape[:-1], outputs), params=params)
            y = expanded(c, y, like, (*node.shape[:-1], outputs))
            for moved in reversed(permutes):
                y = permuted(c, y, moved.attrs["dims"])
            return y
    return c.emit("linear", x, params=params)


@handles("matmul mm bmm")
def matmul(c: Call) -> Value:
    """Record a matrix product; a vector on the left is a row, one on the right a column."""
    a, b = c["self"], c.args["mat2"] if "mat2" in c.args else c["other"]
    row, column = len(c.shape(a)) == 1, len(c.shape(b)) == 1
    if not row and not column:
        return product(c, a, b)
    kept = c.out_shape
    full = (*kept, 1) if column else kept
    full = (*full[:-1], 1, full[-1]) if row else full
    a = _matrix(c, a, (1, *c.shape(a))) if row else a
    b = _matrix(c, b, (*c.shape(b), 1)) if column else b
    return c.reshape(product(c, a, b, out=full), kept)


def _matrix(c: Call, vector: Any, shape: Shape) -> Any:
    """Return a vector as a matrix of ``shape``; a constant stays a tensor that follows its parameters."""
    if not isinstance(vector, Tensor):
        return c.reshape(vector, shape)
    return _reshaped(c, vector, c.static(*shape))


def _reshaped(c: Call, tensor: Tensor, shape: list[int]) -> Tensor:
    result = tensor.reshape(shape)
    c.builder.record([tensor], _ATEN.reshape.default, [tensor, shape], {}, [result])
    return result


def product(c: Call, a: Any, b: Any, *, bias: Tensor | None = None, **more: Any) -> Value:
    """Record a matmul, or a linear layer where the second factor is one known matrix.

    The dimension that is summed over must be as long in every call. Only a linear layer takes a ``bias``.
    """
    if c.builder.dtype_of_meta(c.fx) != "float32":
        return whole_product(c, a, b, **more)
    if is_weight(c, a, b):
        return c.emit("linear", a, params=c.params(weight=transposed(c, b), bias=bias), **more)
    inner = c.shape(c.value(a))[-1:]
    if inner == (None,):
        c.static(*inner)
    return c.emit("matmul", a, b, **more)


MOST_PRODUCTS = 1 << 20
"""Integers are multiplied in a matrix product as long as one sample has at most this many products of two numbers."""


def whole_product(c: Call, a: Any, b: Any, *, out: Sequence[Dim] | None = None) -> Value:
    """Record a matrix product of integers: all products of two numbers, and their sums."""
    a, b, shape = c.value(a), c.value(b), c.out_shape if out is None else tuple(out)
    *batch, rows, columns = shape
    inner, what = c.shape(a)[-1], "a matrix product of integers"
    why = f"programs multiply integers one by one, {MOST_PRODUCTS} a sample at most"
    if inner is None:
        c.static(inner)
    sizes = [limits_of(n, c.builder.bounds)[1] or 1 for n in (*shape, inner) if n is not None]
    if math.prod(sizes) > MOST_PRODUCTS:
        raise c.error(what, why=f"{why}, and these are {math.prod(sizes)}", remedy="use x.float() @ y.float()")
    wide = c.reshape(a, (*c.shape(a), 1)), c.reshape(b, (*c.shape(b)[:-2], 1, *c.shape(b)[-2:]))
    terms = c.emit("mul", *wide, out=(*batch, rows, inner, columns), out_dtype="int64")
    y = c.emit("reduce", terms, out=shape, out_dtype="int64", fn="sum", dims=[len(shape) - 1], keepdim=False)
    return c.narrowed(y, c.builder.dtype_of_meta(c.fx))


def is_weight(c: Call, a: Any, b: Any) -> bool:
    """Return whether ``a @ b`` is a linear layer: an activation times one matrix of known numbers."""
    known = isinstance(a, Value) and isinstance(b, Tensor) and b.dtype == torch.float32
    return known and 2 <= b.ndim <= len(c.shape(a)) and b.shape[:-2].numel() == 1


def transposed(c: Call, matrix: Tensor) -> Tensor:
    """Return the transpose of a matrix: the tensor that ``matrix`` is the transpose of, or one that follows it."""
    made = c.builder.made_by(matrix)
    source = made.args[0] if made is not None and made.target in TRANSPOSES else None
    if isinstance(source, Tensor) and source.ndim == 2 == matrix.ndim and source.t().stride() == matrix.stride():
        return source
    if matrix.ndim > 2:
        matrix = _reshaped(c, matrix, list(matrix.shape[-2:]))
    result = matrix.transpose(0, 1)
    c.builder.record([matrix], _ATEN.transpose.int, [matrix, 0, 1], {}, [result])
    return result


@handles("addmm baddbmm")
def addmm(c: Call) -> Value:
    """Record bias + a @ b."""
    a, b = (c["mat1"], c["mat2"]) if "mat1" in c.args else (c["batch1"], c["batch2"])
    bias = c["self"]
    row = isinstance(bias, Tensor) and bias.shape == c.out_shape[-1:]
    if row and is_weight(c, a, b) and c["alpha"] == c["beta"] == 1:
        return product(c, a, b, bias=bias)
    y = product(c, a, b)
    if c["alpha"] != 1:
        y = c.emit("affine_scalar", y, mul=c["alpha"], add=0)
    if c["beta"] == 0:
        return y
    if c["beta"] != 1:
        bias = c.emit("affine_scalar", bias, out=c.shape(bias), mul=c["beta"], add=0)
    return c.emit("add", y, bias)


@handles("scaled_dot_product_attention")
def attention(c: Call) -> Value:
    """Record the operations of softmax(q·kᵀ·scale + mask)·v (Vaswani et al. 2017, section 3.2.1)."""
    if c["dropout_p"]:
        raise c.error("attention dropout that is active in eval mode", remedy="pass 0.0 unless self.training")
    q, k, v = (c.value(c[n]) for n in ("query", "key", "value"))
    if c.args.get("enable_gqa"):
        k, v = (of_each_head(c, x, c.shape(q)[-3]) for x in (k, v))
    rank = len(c.shape(k))
    scale = c.args.get("scale") or 1 / math.sqrt(c.static(c.shape(q)[-1])[0])
    scores = (*c.shape(q)[:-1], c.shape(k)[-2])
    s = product(c, q, permuted(c, k, [*range(rank - 2), rank - 1, rank - 2]), out=scores)
    s = c.emit("affine_scalar", s, out=scores, label="scale", mul=scale, add=0)
    mask: Any = c["attn_mask"]
    if c["is_causal"]:
        mask = causal(c, scores[-2], scores[-1])
    if mask is None or all_true(c.builder, mask):
        return product(c, c.emit("softmax", s, out=scores, axis=rank - 1), v)
    whole_rows = not c["is_causal"] and may_hide_all(c, mask)
    mask = without_expansion(c, mask)
    if c.dtype(mask) != "bool":
        s = c.emit("add", s, mask, out=scores)
        return product(c, c.emit("softmax", s, out=scores, axis=rank - 1), v)
    hidden = inverse(c, mask)
    s = c.emit("masked_fill", s, hidden, out=scores, value=finite(-math.inf))
    p = c.emit("softmax", s, out=scores, axis=rank - 1)
    if whole_rows:  # torch gives zeros there, and a softmax of equal scores the mean of the values
        p = c.emit("masked_fill", p, hidden, out=scores, value=0)
    return product(c, p, v)


def of_each_head(c: Call, x: Value, heads: Dim) -> Value:
    """Record keys or values (…, groups, length, size) repeated for every head of their group."""
    *outer, groups, length, size = c.shape(x)
    count, given = c.static(heads, groups)
    if count == given:
        return x
    thin = c.reshape(x, [*outer, given, 1, length, size])
    wide = expanded(c, thin, [], [*outer, given, count // given, length, size])
    return c.reshape(wide, [*outer, count, length, size])


def causal(c: Call, length: Dim, keys: Dim) -> Tensor | Value:
    """Return a mask that is true where a position may look: at itself and at what comes before."""
    sizes = [
        c.static(n)[0] if n is None else c.most_of(n, f"a causal mask as long as {n}", why="it has no largest size")
        for n in (length, keys)
    ]
    mask = torch.ones(sizes, dtype=torch.bool).tril()
    dims = tuple(c.builder.symbolic(n or 0) for n in (length, keys))
    return mask if all(isinstance(d, int) for d in dims) else c.builder.materialize(Prefix(mask, dims), c.fx)


def without_expansion(c: Call, mask: Any) -> Any:
    """Return a mask as it was before its repetition: what comes now broadcasts it to the shape of the scores anyway."""
    if isinstance(mask, Prefix):
        mask = c.value(mask)
    if isinstance(mask, Value):
        node = c.builder.nodes[mask.name]
        if node.op == "expand" and len(c.builder.nodes[node.inputs[0]].shape) == len(node.shape):
            return Value(node.inputs[0], mask.storage)
    return mask


def may_hide_all(c: Call, mask: Any) -> bool:
    """Return whether a mask with a row per query may hide all keys from one of them."""
    if isinstance(mask, Prefix):
        known = bool(mask.full[..., 0].all()) and (not mask.starts or mask.starts[-1] == 0)
        return not known  # the first key is seen, however long the others are
    if isinstance(mask, Tensor):
        return not bool(mask.any(-1).all())
    return c.shape(without_expansion(c, mask))[-2:-1] not in ((), (1,))


@handles(
    "_linalg_svd _linalg_eigh linalg_eig linalg_eigvals linalg_pinv linalg_lstsq lstsq linalg_ldl_factor_ex "
    "linalg_ldl_solve linalg_qr geqrf lu_unpack"
)
def iterated(c: Call) -> Value:
    """Refuse what is found by as many steps as the data need."""
    why = "its steps depend on the values in the matrix, and programs have no loops"
    raise c.error("a decomposition of a computed matrix", why=why, remedy="compute it outside of the model")


def by_groups(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Multiply each row by the matrix of its group; groups are rows up to the next of ``offs``."""
    rows = torch.arange(x.shape[0], device=x.device)
    group = (rows[:, None] >= offs[None]).long().sum(1, keepdim=True)
    y = torch.zeros(x.shape[0], weight.shape[2], device=x.device)
    for i in range(weight.shape[0]):
        y = torch.where(group == i, x @ weight[i], y)
    return y


@handles("grouped_mm_fallback")
def grouped_product(c: Call) -> Any:
    """Record the products of mixtures of experts in transformers: every expert computes all rows."""
    return c.builder.by_formula(c, by_groups)


def cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    classes: Tensor | None,
    reduction: str,
    ignored: int,
    smoothing: float,
    *_: Any,
) -> tuple[Tensor]:
    """Compute the cross entropy of a linear layer's results at once; ``classes`` are weights of classes."""
    y = F.linear(x, weight, bias)
    found = F.cross_entropy(y, target, classes, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
    return (found,)


@handles("_linear_cross_entropy_batch_chunked")
def chunked_cross_entropy(c: Call) -> Any:
    """Record a cross entropy that torch computes in parts of the batch."""
    return c.builder.by_formula(c, cross_entropy)


@handles("_linear_cross_entropy_batch_chunked_no_reduction")
def chunked_cross_entropies(c: Call) -> Any:
    """Record the same for every sample."""

    def each(x: Tensor, weight: Tensor, target: Tensor, bias: Any, classes: Any, ignored: int, *_: Any) -> Tensor:
        return cross_entropy(x, weight, target, bias, classes, "none", ignored, 0.0)[0]

    return c.builder.by_formula(c, each)
