"""Custom operators of ONNX Runtime from the compiled kernels (``native/onnxruntime_ops.c``), for the engine only.

============= ====================================================================================================
Table         0.025 ns per element, where ONNX's own operators look up at 0.7 ns
Multiply      a factor per channel is the same along a row, which QLinearMul does not use: 0.18 instead of 0.24 ns
Quantize,     floats become bytes, and their channels last, in one pass that also finds NaN: 28 µs per image of
QuantizeNhwc  224 × 224 instead of 75
Resize        one pass where ONNX has products with matrices
Depthwise,    see ``intact8.engines.packed_conv``
Dense
============= ====================================================================================================

Each stands between two Transpose nodes where its neighbours have channels last: ONNX Runtime moves a convolution to
channels last by the same nodes, and drops those that undo each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from intact8.arithmetic.dimensions import Dim, known
from intact8.arithmetic.resize import LARGEST_PRODUCT, linear_axis
from intact8.engines.kernels import float_bits
from intact8.engines.packed_conv import PackedConv
from intact8.export.onnx_builder import Builder, OwnRule
from intact8.opset.kind import zero_point
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

DOMAIN = "intact8"
"""Domain of the operators, as ``native/onnxruntime_ops.c`` registers it."""

_LAYOUT_FREE = frozenset(
    {"table", "add", "mul", "max_pool", "avg_pool", "adaptive_avg_pool", "mean", "cat", "upsample", "resize_linear"}
)
"""Kinds of operations that ONNX Runtime also runs with channels last."""


def images(program: Program) -> frozenset[str]:
    """Return the tensors whose channels are last in ONNX Runtime: operands and results of convolutions, and what
    follows them."""
    read = {op.inputs[0] for op in program.ops if op.kind == "conv"}
    found: set[str] = set()
    for op in program.ops:
        follows = (
            op.kind == "conv"
            or (op.kind == "quantize" and op.name in read and op.inputs[0] in program.inputs)
            or (op.kind in _LAYOUT_FREE and any(name in found for name in op.inputs))
        )
        if follows and len(program.tensors[op.name].shape) == 4:
            found.add(op.name)
    return frozenset(found)


def rules(program: Program, operators: Collection[str], last: Collection[str] = ()) -> dict[str, OwnRule]:
    """Return the rules that are tried before those of a file: kind → rule.

    Args:
        program: checked.
        operators: names of the operators that this machine has, see ``intact8.engines.kernels.operators``.
        last: inputs that are given with channels last.
    """
    own = _Rules(frozenset(operators), images(program) | frozenset(last))
    return {
        "quantize": own.quantize,
        "table": own.table,
        "mul": own.mul,
        "conv": own.conv,
        "resize_linear": own.resize_linear,
    }


@dataclass(frozen=True)
class _Rules:
    """Rules of one model.

    Attributes:
        operators: names of the operators that may be used.
        images: tensors whose channels are last.
    """

    operators: frozenset[str]
    images: frozenset[str]

    def quantize(self, b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str | None:
        """Build ``quantize`` of an image of floats; None for other tensors."""
        if "QuantizeNhwc" not in self.operators or op.name not in self.images or inputs[0].dtype == "uint8":
            return None
        z = zero_point(y)
        numbers = _numbers(b, [float_bits(y.scale or 1.0), op.attrs["lo"] - z, op.attrs["hi"] - z, z])
        if op.inputs[0] in self.images:
            return _between_transposes(b, "Quantize", x, [numbers], _nhwc(y.shape))
        return _transposed_back(b, b.node("QuantizeNhwc", [x[0], numbers], domain=DOMAIN), _nhwc(y.shape))

    def table(self, b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str | None:
        """Build table[x]; None without the operator, or where ONNX Runtime computes the entries."""
        if "Table" not in self.operators or op.name in b.forms:
            return None
        return self._node(b, op, "Table", x, b.constant(op.arrays["table"], "table"))

    def mul(self, b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str | None:
        """Build (x − z_x)·(w − z_w)·a/b of equal shapes, or with one factor per channel of an image; None for
        others."""
        (first, second), attrs = (t.shape for t in inputs), op.attrs
        if "Multiply" not in self.operators:
            return None
        if first != second and not (op.name in self.images and (_is_gate(first, second) or _is_gate(second, first))):
            return None
        order = [1, 0] if _is_gate(second, first) else [0, 1]
        z, ratio = zero_point(y), float_bits(attrs["a"] / attrs["b"])
        numbers = _numbers(b, [*(zero_point(inputs[i]) for i in order), z, ratio, attrs["lo"] - z, attrs["hi"] - z])
        return self._node(b, op, "Multiply", [x[i] for i in order], numbers)

    def conv(self, b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str | None:
        """Return a ``conv`` with its clamp; None where the kernels have no such convolution, see ``PackedConv.of``."""
        some = not self.operators.isdisjoint({"Depthwise", "Dense"})
        found = PackedConv.of(op, zero_point(inputs[0]), zero_point(y)) if some else None
        if found is None or found.kind not in self.operators:
            return None
        roles = "weight", "bias", "multiplier"
        packed = (b.constant(array, role) for array, role in zip(found.packed, roles, strict=True))
        return self._node(b, op, found.kind, x, *packed, _numbers(b, found.numbers))

    def resize_linear(self, b: Builder, op: Op, x: list[str], inputs: list[Tensor], y: Tensor) -> str | None:
        """Build ``resize_linear`` of an image; None for others."""
        t = op.attrs
        if "Resize" not in self.operators or len(y.shape) != 4 or prod(t["denominators"]) > LARGEST_PRODUCT:
            return None
        axes = zip(known(inputs[0].shape[2:]), t["size"], t["denominators"], strict=True)
        taps = [b.constant(linear_axis(n, o, t["align_corners"], d).taps, "taps") for n, o, d in axes]
        return _between_transposes(b, "Resize", x, [*taps, _numbers(b, t["denominators"])], _nhwc(y.shape))

    def _node(self, b: Builder, op: Op, kind: str, x: Sequence[str], *constants: str) -> str:
        if op.name in self.images:
            return _between_transposes(b, kind, x, constants, _nhwc(b.tensors[op.name].shape))
        return b.node(kind, [*x, *constants], domain=DOMAIN)


def _is_gate(x: Sequence[object], w: Sequence[object]) -> bool:
    return len(x) == len(w) == 4 and (*w,) == (*x[:2], 1, 1)


def _numbers(b: Builder, values: Sequence[int]) -> str:
    return b.constant(np.array(values, np.int32), "numbers")


def _between_transposes(b: Builder, kind: str, x: Sequence[str], constants: Sequence[str], shape: Sequence[Dim]) -> str:
    moved = [b.node("Transpose", [name], perm=[0, 2, 3, 1]) for name in x]
    return _transposed_back(b, b.node(kind, [*moved, *constants], domain=DOMAIN), shape)


def _transposed_back(b: Builder, x: str, shape: Sequence[Dim]) -> str:
    """Build ``x`` with channels first again. ONNX Runtime moves channels only where it knows the shape, so it is
    told."""
    b.shapes[x] = (b.scope, tuple(shape))
    return b.node("Transpose", [x], perm=[0, 3, 1, 2])


def _nhwc(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return shape[0], *shape[2:], shape[1]
