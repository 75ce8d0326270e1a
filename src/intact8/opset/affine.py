"""Convolutions and linear layers of integers, with a residual or a negative slope in the same rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intact8.arithmetic import integer
from intact8.arithmetic.dimensions import added, multiplied
from intact8.arithmetic.tie_free import STEPS as UNSATURATED
from intact8.arithmetic.tie_free import negative_steps

from .attributes import CLAMP, CONV, INTEGERS, NUMERATOR
from .kind import Call, Kind, along_all_but_first, along_none
from .op import Array, Op, Tensor
from .proof import INT32, STEPS, Evaluation, Multipliers, Proof, Sums, Tensors, largest_pair, reach
from .shapes import Shape, fits_outputs, spatial, windows
from .values import LARGEST_A, LARGEST_B, LARGEST_B_NEGATIVE
from .violation import need

MOST_TERMS = 1 << 20
"""A sum of this many products, times the largest numerator, still fits int64."""

ARRAYS = {"weight": "int8", "bias": "int32", "a": "int32", "b": "int32"}
NEGATIVE = {"a_neg": "int32", "b_neg": "int32"}


def conv_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a convolution's output, transposed or not."""
    t, weight = op.attrs, op.arrays["weight"].shape
    rank = len(weight) - 2
    need(1 <= rank <= 3, f"weight has shape {weight}: {rank} spatial dimensions, not 1, 2 or 3")
    for name in ("stride", "padding", "dilation", "output_padding"):
        need(len(t[name]) == rank, f"{name} {t[name]} does not have {rank} entries")
    size, groups, kernel = spatial(x[0], rank), t["groups"], weight[2:]
    inputs = weight[0] if t["transposed"] else weight[1] * groups
    outputs = weight[1] * groups if t["transposed"] else weight[0]
    fits_outputs(op, outputs)
    need(x[0][1] == inputs, f"input has {x[0][1]} channels, weight of shape {weight} takes {inputs}")
    need(
        inputs % groups == 0 and outputs % groups == 0, f"{groups} groups do not divide {inputs} and {outputs} channels"
    )
    geometry = zip(size, kernel, t["stride"], t["padding"], t["dilation"], t["output_padding"], strict=True)
    if t["transposed"]:
        out = [added([multiplied([n, s]), d * (k - 1) + o + 1 - 2 * p - s]) for n, k, s, p, d, o in geometry]
        fits = all(o < max(s, d) for o, s, d in zip(t["output_padding"], t["stride"], t["dilation"], strict=True))
        need(fits, "output_padding must be smaller than stride or dilation")
    else:
        need(not any(t["output_padding"]), "output_padding belongs to transposed convolutions")
        out = [windows(n, k, s, p, d) for n, k, s, p, d, _ in geometry]
    need(all(n >= 1 for n in out if isinstance(n, int)), f"the kernel does not fit an input of shape {x[0]}")
    return (x[0][0], outputs, *out)


def linear_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a linear layer's output."""
    weight = op.arrays["weight"].shape
    need(len(weight) == 2, f"weight of shape {weight} is not a matrix")
    need(bool(x[0]) and x[0][-1] == weight[1], f"input of shape {x[0]} does not end in {weight[1]}")
    fits_outputs(op, weight[0])
    return (*x[0][:-1], weight[0])


def check_rows(op: Op, roles: Sequence[str]) -> None:
    """Demand sums of no more products than int64 holds, and one number per output in the arrays of these roles."""
    weight = op.arrays["weight"]
    need(weight.size // min(weight.shape[:2]) <= MOST_TERMS, f"weight of shape {weight.shape} sums too many products")
    outputs = weight.shape[1] * op.attrs["groups"] if op.attrs.get("transposed") else weight.shape[0]
    for role in roles:
        if role in op.arrays:
            need(op.arrays[role].shape == (outputs,), f"{role} has shape {op.arrays[role].shape}, not ({outputs},)")


def check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    """Demand one number per output in every array, and numerators, denominators and a residual within their ranges."""
    check_rows(op, ("bias", "a", "b", "a_neg", "b_neg"))
    need(("a_neg" in op.arrays) == ("b_neg" in op.arrays), "a_neg and b_neg come together")
    a, b = op.arrays["a"], op.arrays["b"]
    need(bool((a >= 0).all() and (a <= LARGEST_A).all()), f"a must be within 0..{LARGEST_A}")
    if "a_neg" in op.arrays:
        need(
            bool((np.abs(op.arrays["a_neg"].astype(np.int64)) <= LARGEST_A).all()), f"a_neg must be within ±{LARGEST_A}"
        )
    for role, limit in (("b", LARGEST_B), ("b_neg", LARGEST_B_NEGATIVE)):
        if role in op.arrays:
            v = op.arrays[role]
            need(bool(((v >= 1) & (v <= limit) & (v % 2 == 1)).all()), f"{role} must be odd and within 1..{limit}")
    if len(op.inputs) == 2:
        need(op.attrs["residual_a"] >= 1, "residual_a is 0, but there is a residual")
        need(bool((b == b[0]).all()), "with a residual all b must be equal")
        need("a_neg" not in op.arrays, "a residual does not go with a_neg")
        need(inputs[1].shape == output.shape, f"residual of shape {inputs[1].shape} is not {output.shape}")
    else:
        need(op.attrs["residual_a"] == 0, "residual_a without a residual")


def _requantized(call: Call, acc: Array, axis: int) -> Array:
    p = call.arrays
    residual = call.x[1].astype(np.int64) - call.zero_points[1] if len(call.x) == 2 else None
    return integer.requantize(
        acc,
        p["a"],
        p["b"],
        *call.grid,
        axis,
        a_neg=p.get("a_neg"),
        b_neg=p.get("b_neg"),
        residual=residual,
        residual_a=call.attrs["residual_a"],
    )


def accumulate(call: Call) -> Array:
    """Return Σ (x − z)·w + bias, int64, of a convolution or linear layer; the bias counts where it is an integer."""
    t, p, x, z = call.attrs, call.arrays, call.x[0], call.zero_points[0]
    bias = p["bias"] if "a" in p else None
    if "transposed" not in t:
        return integer.linear_accumulate(x, z, p["weight"], bias)
    if t["transposed"]:
        return integer.conv_transpose_accumulate(
            x, z, p["weight"], bias, t["stride"], t["padding"], t["output_padding"], t["dilation"], t["groups"]
        )
    return integer.conv_accumulate(x, z, p["weight"], bias, t["stride"], t["padding"], t["dilation"], t["groups"])


def _conv(call: Call) -> Array:
    return _requantized(call, accumulate(call), 1)


def _linear(call: Call) -> Array:
    return _requantized(call, accumulate(call), -1)


def _rows(op: Op) -> Array:
    w = op.arrays["weight"]
    if op.attrs.get("transposed"):
        groups = op.attrs["groups"]
        w = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1).swapaxes(1, 2)
        return w.reshape(groups * w.shape[1], -1)
    return w.reshape(w.shape[0], -1)


def by_output(op: Op) -> Array:
    """Return the weight as (O, products per output), int64."""
    return _rows(op).astype(np.int64)


def magnitudes(op: Op) -> Array:
    """Return |w| as (O, products per output) in bytes, where |−128| is 128, too: every load does this to every
    weight."""
    return np.abs(_rows(op)).view(np.uint8)


def row_sums(magnitude: Array) -> Array:
    """Return Σ|w| per output, int64, of at most 2²⁰ products."""
    return np.asarray(magnitude.sum(axis=1, dtype=np.uint32).astype(np.int64))


def bounds(op: Op, rows: Array, largest: int) -> Array:
    """Return the largest |Σ (x − z)·w + bias| per output, int64, for |x − z| ≤ ``largest``."""
    return np.asarray(rows * largest + np.abs(op.arrays["bias"].astype(np.int64)))


def _sums(op: Op, tensors: Tensors) -> Sums:
    magnitude = magnitudes(op)
    rows = row_sums(magnitude)
    largest, stored = (bounds(op, rows, most) for most in (reach(tensors[op.inputs[0]]), 255))
    (a, b), reached = op.multipliers(), largest.astype(np.float64)
    steps = reached * a / b + 255.0 * op.attrs["residual_a"] / b
    if "a_neg" in op.arrays:
        steps = np.maximum(steps, reached * np.abs(op.arrays["a_neg"].astype(np.float64)) / op.arrays["b_neg"])
    return Sums(int(largest.max()), largest_pair(magnitude), int(stored.max()), float(steps.max()))


def _form(op: Op) -> str:
    return "leaky" if "a_neg" in op.arrays else "fused" if op.attrs["residual_a"] else "affine"


def _multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    bias = np.abs(op.arrays["bias"].astype(np.float64))
    a, b = op.multipliers()
    if "a_neg" not in op.arrays:
        return [Multipliers(b, _form(op), bias * a / b, 255.0 * op.attrs["residual_a"] / b)]
    a_neg, b_neg = op.arrays["a_neg"].astype(np.int64), op.arrays["b_neg"].astype(np.int64)
    below = negative_steps(tensors[op.name].zero_point or 0)
    # A negative slope turns negative sums into results above the zero point.
    result = np.where(a_neg < 0, UNSATURATED, below)
    return [
        Multipliers(b, "leaky", bias * a / b),
        Multipliers(b_neg, "leaky", bias * np.abs(a_neg) / b_neg, result=result),
    ]


def fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    """Return whether sums, with zero points taken off or not, and results stay within what holds them."""
    z = tensors[op.inputs[0]].zero_point or 0
    if sums.stored >= INT32 or (z and sums.stored >= evaluation.largest.get(op.kind, INT32)):
        return False
    if _form(op) in evaluation.without_zero and not op.multipliers()[0].all():
        return False
    return sums.steps < STEPS


PROOF = Proof(_form, _sums, _multipliers, fits)

CONVOLUTION = Kind(
    "conv",
    "acc = Σ (x − z_x)·w + bias, padding inserts z_x; y = clamp(R(M_c·acc + r·(res − z_r)) + z_y, lo, hi); where a_neg "
    "and b_neg are given, M_c is a_neg/b_neg for acc < 0 (leaky ReLU, PReLU; no residual then; b_neg < 2²⁰). "
    "r = residual_a/b, 0 without residual; with a residual all b are equal. weight (O, I/groups, …), transposed "
    "(I, O/groups, …); bias, a, b, a_neg, b_neg (O,)",
    (1, 2),
    INTEGERS,
    conv_shape,
    _conv,
    attrs={**CONV, **CLAMP, "residual_a": NUMERATOR},
    arrays=ARRAYS,
    optional_arrays=NEGATIVE,
    check=check,
    proof=PROOF,
    works_along=along_all_but_first,
    multiplies_weights=True,
)

LINEAR = Kind(
    "linear",
    "the same on the last dimension; weight (O, I)",
    (1, 2),
    INTEGERS,
    linear_shape,
    _linear,
    attrs={**CLAMP, "residual_a": NUMERATOR},
    arrays=ARRAYS,
    optional_arrays=NEGATIVE,
    check=check,
    proof=PROOF,
    works_along=along_none,
    multiplies_weights=True,
)

KINDS = (CONVOLUTION, LINEAR)
