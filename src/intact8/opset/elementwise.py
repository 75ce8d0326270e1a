"""Sums and products of two or more tensors of integers, and tables of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from intact8.arithmetic import integer

from .attributes import CLAMP, INTEGERS, RATIO
from .kind import Call, Kind
from .op import Array, Op, Tensor
from .proof import INT32, Evaluation, Multipliers, Proof, Sums, Tensors, named, ratios_fit, reach
from .shapes import Shape, broadcast, broadcasting, same
from .values import numerators, odd, text
from .violation import need


def _add(call: Call) -> Array:
    return integer.add(call.x, call.zero_points, call.attrs["a"], call.attrs["b"], *call.grid)


def _check_add(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    need(len(op.attrs["a"]) == len(op.inputs), f"{len(op.attrs['a'])} numerators for {len(op.inputs)} inputs")


def _terms(op: Op, tensors: Tensors) -> Sums:
    return Sums(max(reach(tensors[name]) for name in op.inputs))


def _add_multipliers(op: Op, tensors: Tensors) -> list[Multipliers]:
    b = np.array([op.attrs["b"]], np.int64)
    return [Multipliers(b, "sum", residual=255.0 * sum(abs(a) for a in op.attrs["a"]) / b)]


def _add_fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    if evaluation.terms is not None and len(op.inputs) not in evaluation.terms:
        return False
    return ratios_fit(evaluation, "sum", [sum(abs(a) for a in op.attrs["a"])], [op.attrs["b"]], sums.largest)


def _mul(call: Call) -> Array:
    (x, w), (zx, zw) = call.x, call.zero_points
    return integer.mul(x, zx, w, zw, call.attrs["a"], call.attrs["b"], *call.grid)


def _matmul(call: Call) -> Array:
    (x, w), (zx, zw) = call.x, call.zero_points
    return integer.matmul(x, zx, w, zw, call.attrs["a"], call.attrs["b"], *call.grid)


def matmul_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of a matrix product of the last two dimensions; those before them broadcast."""
    left, right = x
    need(len(left) >= 2 and len(right) >= 2, f"{left} and {right} are no matrices")
    need(left[-1] == right[-2] and left[-1] is not None, f"{left} and {right} do not multiply")
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def _product(op: Op, tensors: Tensors) -> Sums:
    return Sums(math.prod(reach(tensors[name]) for name in op.inputs))


def _products(op: Op, tensors: Tensors) -> Sums:
    terms = tensors[op.inputs[0]].shape[-1]  # a sum over the batch is not proved
    return Sums(_product(op, tensors).largest * terms if isinstance(terms, int) else INT32)


def scaled(op: Op, tensors: Tensors) -> list[Multipliers]:
    """Return the only multiplier a/b of an exact integer."""
    return [Multipliers(np.array([op.attrs["b"]], np.int64), "scaled")]


def scaled_fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    """Return whether the product of the only multiplier with the largest integer fits."""
    return ratios_fit(evaluation, "scaled", [op.attrs["a"]], [op.attrs["b"]], sums.largest)


def _matmul_fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    terms = tensors[op.inputs[0]].shape[-1]
    stored = 255 * 255 * terms if isinstance(terms, int) else math.inf
    return stored < evaluation.largest.get("matmul", INT32) and scaled_fits(evaluation, op, tensors, sums)


def _check_table(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    need(op.arrays["table"].shape == (256,), f"table has shape {op.arrays['table'].shape}, not (256,)")


def _table(call: Call) -> Array:
    return integer.table(call.x[0], call.arrays["table"])


KINDS = (
    Kind(
        "add",
        "y = clamp(R(Σ_j a_j·(x_j − z_j) / b) + z_y, lo, hi), broadcasting; a is a list (negative for subtraction)",
        (1, 64),
        INTEGERS,
        broadcasting,
        _add,
        attrs={"a": numerators, "b": odd, **CLAMP},
        check=_check_add,
        proof=Proof(named("sum"), _terms, _add_multipliers, _add_fits),
    ),
    Kind(
        "mul",
        "y = clamp(R((x − z_x)·(w − z_w)·a / b) + z_y, lo, hi), broadcasting",
        (2, 2),
        INTEGERS,
        broadcasting,
        _mul,
        attrs=RATIO,
        proof=Proof(named("scaled"), _product, scaled, scaled_fits),
    ),
    Kind(
        "matmul",
        "y = clamp(R(Σ_k (x_ik − z_x)·(w_kj − z_w)·a / b) + z_y, lo, hi): a matrix product of the last two dimensions, "
        "those before them broadcast",
        (2, 2),
        INTEGERS,
        matmul_shape,
        _matmul,
        attrs=RATIO,
        since=2,
        proof=Proof(named("scaled"), _products, scaled, _matmul_fits),
        multiplies_activations=True,
    ),
    Kind(
        "table",
        'y = table[x], 256 entries; fn says what it stands for (a function, or "requantize")',
        (1, 1),
        INTEGERS,
        same,
        _table,
        attrs={"fn": text},
        arrays={"table": "uint8"},
        check=_check_table,
        proof=Proof(named("table"), _terms),
    ),
)
