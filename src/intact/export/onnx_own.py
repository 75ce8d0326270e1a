"""Operators that the compiled passes bring to ONNX Runtime (``native/ort.c``): for the engine here, never for a file.

============ =====================================================================================================
Table        0.025 ns per element, where ONNX's own operators look up at 0.7 ns
Multiply     a factor per channel is the same along a row, which QLinearMul does not use: 0.18 instead of 0.24 ns
Quantize,    floats become bytes, and their channels last, in one pass that also finds NaN: 28 µs per image of
Interleave   224 × 224 instead of 75
Depthwise,   see ``intact.engines.convolutions``
Dense
============ =====================================================================================================

They stand between two moves of the channels where they are last for the convolutions around: ONNX Runtime turns a
convolution to channels last by the same moves, and drops those that undo each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intact.arithmetic.dimensions import Dim
from intact.engines.convolutions import Convolution
from intact.engines.native import float_bits
from intact.opset.op import Op, Tensor
from intact.program.program import Program

from .onnx_build import OWN, Builder, zero

_KEPT = frozenset({"table", "add", "mul", "max_pool", "avg_pool", "adaptive_avg_pool", "mean", "cat", "upsample"})
"""Kinds of operations that ONNX Runtime lets run on channels last as well."""


def images(program: Program) -> frozenset[str]:
    """Tensors whose channels are last in ONNX Runtime: what convolutions read and give, and what follows from it."""
    read = {op.inputs[0] for op in program.ops if op.kind == "conv"}
    found: set[str] = set()
    for op in program.ops:
        follows = (
            op.kind == "conv"
            or (op.kind == "quantize" and op.name in read and op.inputs[0] in program.inputs)
            or (op.kind in _KEPT and any(name in found for name in op.inputs))
        )
        if follows and len(program.tensors[op.name].shape) == 4:
            found.add(op.name)
    return frozenset(found)


def quantize(b: Builder, op: Op, x: str, y: Tensor) -> str | None:
    """``quantize`` of an image; None for other tensors."""
    if "Interleave" not in b.own or op.name not in b.images:
        return None
    z = zero(y)
    numbers = _numbers(b, [float_bits(y.scale or 1.0), op.attrs["lo"] - z, op.attrs["hi"] - z, z])
    if op.inputs[0] in b.images:
        return _between_moves(b, "Quantize", [x], [numbers], _last(y.shape))
    return _moved_back(b, b.node("Interleave", [x, numbers], domain=OWN), _last(y.shape))


def table(b: Builder, op: Op, x: str) -> str | None:
    """entries[x]; None without the operator."""
    if "Table" not in b.own:
        return None
    return _own(b, op, "Table", [x], b.constant(op.arrays["table"], "table"))


def mul(b: Builder, op: Op, x: Sequence[str], inputs: Sequence[Tensor], y: Tensor) -> str | None:
    """(x − z_x)·(w − z_w)·a/b of equal shapes, or with one factor per channel of an image; None for others."""
    (first, second), attrs = (t.shape for t in inputs), op.attrs
    if "Multiply" not in b.own:
        return None
    if first != second and not (op.name in b.images and (_is_gate(first, second) or _is_gate(second, first))):
        return None
    order = [1, 0] if _is_gate(second, first) else [0, 1]
    z, ratio = zero(y), float_bits(attrs["a"] / attrs["b"])
    numbers = _numbers(b, [*(zero(inputs[i]) for i in order), z, ratio, attrs["lo"] - z, attrs["hi"] - z])
    return _own(b, op, "Multiply", [x[i] for i in order], numbers)


def conv(b: Builder, op: Op, x: Sequence[str], inputs: Sequence[Tensor], y: Tensor) -> str | None:
    """A ``conv`` with its clamp; None for those the passes do not do, see ``intact.engines.convolutions``."""
    found = Convolution.of(op, zero(inputs[0]), zero(y)) if {"Depthwise", "Dense"} & set(b.own) else None
    if found is None or found.kind not in b.own:
        return None
    return _own(b, op, found.kind, x, *_packed(b, found), _numbers(b, found.numbers))


def _packed(b: Builder, found: Convolution) -> list[str]:
    roles = "weight", "bias", "multiplier"
    return [b.constant(array, role) for array, role in zip(found.packed, roles, strict=True)]


def _is_gate(x: Sequence[object], w: Sequence[object]) -> bool:
    return len(x) == len(w) == 4 and (*w,) == (*x[:2], 1, 1)


def _numbers(b: Builder, values: Sequence[int]) -> str:
    return b.constant(np.array(values, np.int32), "numbers")


def _own(b: Builder, op: Op, kind: str, x: Sequence[str], *constants: str) -> str:
    if op.name in b.images:
        return _between_moves(b, kind, x, constants, _last(b.tensors[op.name].shape))
    return b.node(kind, [*x, *constants], domain=OWN)


def _between_moves(b: Builder, kind: str, x: Sequence[str], constants: Sequence[str], shape: Sequence[Dim]) -> str:
    moved = [b.node("Transpose", [name], perm=[0, 2, 3, 1]) for name in x]
    return _moved_back(b, b.node(kind, [*moved, *constants], domain=OWN), shape)


def _moved_back(b: Builder, x: str, shape: Sequence[Dim]) -> str:
    """``x`` of a shape that ONNX Runtime cannot find out itself, and moves no channels without knowing it."""
    b.shapes[x] = (b.scope, tuple(shape))
    return b.node("Transpose", [x], perm=[0, 3, 1, 2])


def _last(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return shape[0], *shape[2:], shape[1]
