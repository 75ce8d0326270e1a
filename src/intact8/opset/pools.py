"""Means and pools: over dimensions, over windows, over adaptive windows; and the largest of windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic import integer, windows
from intact8.arithmetic.dimensions import known as known_sizes
from intact8.arithmetic.windows import adaptive_divisors, pool_divisors, sees_padding_only

from .affine import MOST_TERMS
from .attributes import AXES, CLAMP, INTEGERS, RATIO, SIZES, STRIDES, WINDOW
from .kind import Call, Kind, along_all_but_first
from .moves import check_unchanged, moved
from .op import Array, Op, Tensor
from .proof import INT32, Evaluation, Multipliers, Proof, Sums, Tensors, named, ratios_fit, reach
from .shapes import Shape, elements, known, spatial
from .shapes import windows as windows_along
from .types import QUANTIZED, signature
from .values import boolean, multipliers
from .violation import need

MOST_WINDOWS = 1 << 24

UNKNOWN = float(1 << 62)
"""Steps of a mean of an unknown number of elements."""


def pool_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a pool over windows."""
    t = op.attrs
    rank, dilation = len(t["kernel"]), t.get("dilation", [1] * len(t["kernel"]))
    need(all(len(v) == rank for v in (t["stride"], t["padding"], dilation)), "kernel, stride, padding differ in length")
    need(1 <= rank <= 3, f"{rank} spatial dimensions")
    size = spatial(x[0], rank)
    spans = [d * (k - 1) + 1 for k, d in zip(t["kernel"], dilation, strict=True)]
    need(all(2 * p <= k for p, k in zip(t["padding"], spans, strict=True)), "padding exceeds half the kernel")
    out = [
        windows_along(n, k, s, p, d, t["ceil_mode"])
        for n, k, s, p, d in zip(size, t["kernel"], t["stride"], t["padding"], dilation, strict=True)
    ]
    need(all(n >= 1 for n in out if isinstance(n, int)), f"the kernel does not fit an input of shape {x[0]}")
    return (*x[0][:2], *out)


def adaptive_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a pool over adaptive windows."""
    size = op.attrs["output_size"]
    need(len(size) <= 3, f"{len(size)} spatial dimensions")
    for d in spatial(x[0], len(size)):
        if not op.is_float:  # The divisors are part of the multipliers.
            known(d, "a pooled dimension")
    return (*x[0][:2], *size)


def reduced_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape after some dimensions became one number each; without dims after all of them did."""
    rank = len(x[0])
    dims = op.attrs["dims"] or list(range(rank))
    need(len(set(dims)) == len(dims) and max(dims, default=-1) < rank, f"dims {dims} do not fit rank {rank}")
    if not op.is_float:  # The divisor is part of the multiplier.
        for d in dims:
            known(x[0][d], "a reduced dimension")
    keep = op.attrs["keepdim"]
    return tuple(1 if i in dims else d for i, d in enumerate(x[0]) if keep or i not in dims)


def _check_mean(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    terms = math.prod(d for i, d in enumerate(inputs[0].shape) if i in op.attrs["dims"] and isinstance(d, int))
    need(terms <= MOST_TERMS, f"sums {terms} elements, more than {MOST_TERMS}")


def alike(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, count_include_pad: bool
) -> bool:
    """Return whether every window of an average pool has the same divisor, whatever the input's size is."""
    return not ceil_mode and (count_include_pad or not any(padding))


def _lacks_divisors(attrs: Mapping[str, Any], shape: Shape) -> str | None:
    if all(isinstance(d, int) for d in shape[2:]):
        return None
    window = ("kernel", "stride", "padding", "ceil_mode", "count_include_pad")
    known_divisor = "kernel" in attrs and alike(*(attrs[name] for name in window))
    return None if known_divisor else "windows whose divisors depend on a size that changes"


def _check_divisors(op: Op, output: Tensor) -> set[int]:
    """Return the divisors that have a multiplier."""
    t = op.attrs
    need(elements(output.shape[2:]) <= MOST_WINDOWS, f"more than {MOST_WINDOWS} windows")
    need(all(row[0] <= MOST_TERMS for row in t["multipliers"]), f"a window of more than {MOST_TERMS} elements")
    return {row[0] for row in t["multipliers"]}


def _same_divisors(stored: set[int], occurring: set[int] | None) -> None:
    told = "more" if occurring is None else f"{sorted(occurring)!r:.200}"
    need(occurring == stored, f"multipliers are for divisors {sorted(stored)!r:.200}, those that occur are {told}")


def _check_avg_pool(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    t, stored = op.attrs, _check_divisors(op, output)
    window = (t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
    if not all(isinstance(d, int) for d in inputs[0].shape[2:]):
        need(alike(*window), "the divisors depend on a size that is not known")
        return _same_divisors(stored, {math.prod(t["kernel"])})
    _same_divisors(stored, pool_divisors(known_sizes(inputs[0].shape[2:]), *window, len(stored)))


def _check_adaptive(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    stored = _check_divisors(op, output)
    _same_divisors(stored, adaptive_divisors(known_sizes(inputs[0].shape[2:]), op.attrs["output_size"], len(stored)))


def _check_max_pool(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_unchanged(op, inputs, output)
    t = op.attrs
    rows = zip(inputs[0].shape[2:], t["kernel"], t["stride"], t["padding"], t["dilation"], strict=True)
    empty = any(isinstance(n, int) and sees_padding_only(n, k, s, p, d, bool(t["ceil_mode"])) for n, k, s, p, d in rows)
    need(not empty, "a window holds nothing but padding: it has no maximum")


def _mean(call: Call) -> Array:
    t = call.attrs
    return integer.mean(call.x[0], call.zero_points[0], t["dims"], t["keepdim"], t["a"], t["b"], *call.grid)


def _avg_pool(call: Call) -> Array:
    t, size = call.attrs, call.x[0].shape[2:]
    edges, n = windows.pool_windows(
        size, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"]
    )
    return windows.average(call.x[0], call.zero_points[0], edges, n, t["multipliers"], *call.grid)


def _adaptive(call: Call) -> Array:
    edges, n = windows.adaptive_windows(call.x[0].shape[2:], call.attrs["output_size"])
    return windows.average(call.x[0], call.zero_points[0], edges, n, call.attrs["multipliers"], *call.grid)


def _max_pool(call: Call) -> Array:
    t = call.attrs
    return windows.max_pool(call.x[0], t["kernel"], t["stride"], t["padding"], t["dilation"], t["ceil_mode"])


def _mean_sums(op: Op, tensors: Tensors) -> Sums:
    x = tensors[op.inputs[0]]
    return Sums(reach(x) * math.prod(known_sizes(x.shape[i] for i in op.attrs["dims"])))


def _mean_multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    t, sizes = op.attrs, [tensors[op.inputs[0]].shape[d] for d in op.attrs["dims"]]
    b = np.array([t["b"]], np.int64)
    count = math.prod(d for d in sizes if isinstance(d, int)) if all(isinstance(d, int) for d in sizes) else UNKNOWN
    return [Multipliers(b, "mean", residual=255.0 * count * abs(t["a"]) / b)]


def _mean_fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    return ratios_fit(evaluation, "mean", [op.attrs["a"]], [op.attrs["b"]], sums.largest)


def _pool_sums(op: Op, tensors: Tensors) -> Sums:
    return Sums(reach(tensors[op.inputs[0]]) * int(math.prod(op.attrs["kernel"])))


def _adaptive_sums(op: Op, tensors: Tensors) -> Sums:
    x = tensors[op.inputs[0]]
    sizes = adaptive_divisors(known_sizes(x.shape[2:]), op.attrs["output_size"], 8)  # two per dimension at most
    return Sums(reach(x) * max(sizes or {1}))


def _pool_multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    return [Multipliers(np.array([b for _, _, b in op.attrs["multipliers"]], np.int64), "scaled")]


def _pool_fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    numerators, denominators = ([row[i] for row in op.attrs["multipliers"]] for i in (1, 2))
    if sums.largest >= evaluation.largest.get(op.kind, INT32):
        return False
    return ratios_fit(evaluation, "scaled", numerators, denominators, sums.largest)


POOLED = (signature(f"{QUANTIZED} float32 uint8", gives=""),)

KINDS = (
    Kind(
        "mean",
        "y = clamp(R(Σ (x − z_x)·a / b) + z_y, lo, hi) over dims; 1/n is part of a/b",
        (1, 1),
        INTEGERS,
        reduced_shape,
        _mean,
        attrs={"dims": AXES, "keepdim": boolean, **RATIO},
        check=_check_mean,
        proof=Proof(named("mean"), _mean_sums, _mean_multipliers, _mean_fits),
        aligned=False,
    ),
    Kind(
        "avg_pool",
        "the same over windows; multipliers are [n, a, b] for every divisor n that occurs. Padding adds nothing",
        (1, 1),
        INTEGERS,
        pool_shape,
        _avg_pool,
        attrs={**WINDOW, "count_include_pad": boolean, "multipliers": multipliers, **CLAMP},
        check=_check_avg_pool,
        lacks_form=_lacks_divisors,
        proof=Proof(named("scaled"), _pool_sums, _pool_multipliers, _pool_fits),
        works_along=along_all_but_first,
    ),
    Kind(
        "adaptive_avg_pool",
        "the same over adaptive windows [⌊i·H/O⌋, ⌈(i+1)·H/O⌉)",
        (1, 1),
        INTEGERS,
        adaptive_shape,
        _adaptive,
        attrs={"output_size": SIZES, "multipliers": multipliers, **CLAMP},
        check=_check_adaptive,
        lacks_form=_lacks_divisors,
        proof=Proof(named("scaled"), _adaptive_sums, _pool_multipliers, _pool_fits),
        works_along=along_all_but_first,
    ),
    Kind(
        "max_pool",
        "the largest element of every window; padding never wins",
        (1, 1),
        POOLED,
        pool_shape,
        _max_pool,
        attrs={**WINDOW, "dilation": STRIDES},
        domain="any",
        check=_check_max_pool,
        works_along=along_all_but_first,
        interval=moved,
    ),
)
