"""Convolutions and linear layers of integers whose sums become float32 instead of being rounded to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intact8.arithmetic import dynamic

from .affine import accumulate, check_rows, conv_shape, linear_shape, magnitudes, row_sums
from .attributes import CONV, FLOAT
from .kind import Call, Kind, along_all_but_first, along_none
from .op import Array, Op, Tensor
from .proof import INT32, Evaluation, Proof, Sums, Tensors, largest_pair, named, reach
from .types import QUANTIZED, signature
from .violation import need

ARRAYS = {"weight": "int8", "scale": "float32"}


def _check(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    check_rows(op, ("scale", "bias"))
    need(bool((op.arrays["scale"] > 0).all()), "scale holds a number that is not positive")


def _evaluate(call: Call) -> Array:
    return dynamic.dequantized(accumulate(call), call.arrays["scale"], call.arrays.get("bias"), _channels(call.op))


def _channels(op: Op) -> int:
    return 1 if op.kind == CONVOLUTION.name else -1


def _sums(op: Op, tensors: Tensors) -> Sums:
    magnitude = magnitudes(op)
    most = int(row_sums(magnitude).max())
    return Sums(most * reach(tensors[op.inputs[0]]), largest_pair(magnitude), most * 255)


def _fits(evaluation: Evaluation, op: Op, tensors: Tensors, sums: Sums) -> bool:
    """Return whether sums of bytes, zero points not yet taken off, stay within what holds them."""
    return sums.stored < evaluation.largest.get(op.kind, INT32)


PROOF = Proof(named("dequantized"), _sums, fits=_fits)
TYPES = (signature(QUANTIZED, gives=FLOAT),)

CONVOLUTION = Kind(
    "dequantized_conv",
    "acc = Σ (x − z_x)·w exactly, padding inserts z_x; y = fl(fl(fl(acc)·scale) + bias), see "
    "intact8.arithmetic.dynamic; weight as that of conv; scale, bias (O,)",
    (1, 1),
    TYPES,
    conv_shape,
    _evaluate,
    attrs=CONV,
    arrays=ARRAYS,
    optional_arrays={"bias": FLOAT},
    domain="dynamic",
    check=_check,
    proof=PROOF,
    since=5,
    works_along=along_all_but_first,
    multiplies_weights=True,
)

LINEAR = replace(
    CONVOLUTION,
    name="dequantized_linear",
    formula="the same on the last dimension; weight (O, I)",
    shape=linear_shape,
    attrs={},
    works_along=along_none,
)

KINDS = (CONVOLUTION, LINEAR)
