"""The operations of an integer program: the written specification, as a table the checker reads.

Notation: ``q`` integers, ``z`` zero point, ``s`` scale, ``R`` round half to even (never meets a tie except in
``quantize``), ``M = a/b`` with odd ``b``. Activations are uint8 with one scale and zero point per tensor; ``lo`` and
``hi`` (0 ≤ lo ≤ hi ≤ 255) are the clamp of the op, activation included. All sums are exact integers. ``fl`` is one
IEEE float32 operation.

================= ========= ===================================================================================
kind              inputs    meaning; attrs; arrays
================= ========= ===================================================================================
quantize          f         clamp(R(x / s) + z, lo, hi), IEEE float32 division, then integers; lo, hi
dequantize        q         (q − z)·s in float32, one multiplication
conv              q [, q]   acc = Σ (x − z_x)·w + bias, padding inserts z_x;
                            y = clamp(R(M_c·acc + r·(res − z_r)) + z_y, lo, hi); where ``a_neg`` and ``b_neg`` are
                            given, M_c is a_neg/b_neg for acc < 0 (leaky ReLU, PReLU; no residual then; b_neg < 2²⁰);
                            attrs stride, padding, dilation, output_padding: one int per spatial dimension (1, 2 or 3),
                            groups, transposed, lo, hi, residual_a (r = residual_a/b; 0 without residual; with a
                            residual all b are equal); arrays weight int8 (O, I/groups, …;
                            transposed: I, O/groups, …), bias int32 (O,), a int32 (O,), b int32 (O,),
                            a_neg?, b_neg? int32 (O,)
linear            q [, q]   the same on the last dimension; lo, hi, residual_a; weight int8 (O, I), bias, a, b,
                            a_neg?, b_neg?
add               q, …      y = clamp(R(Σ_j a_j·(x_j − z_j) / b) + z_y, lo, hi), broadcasting; a: list[int] (negative
                            for subtraction), b, lo, hi
mul               q, q      y = clamp(R((x − z_x)·(w − z_w)·a / b) + z_y, lo, hi), broadcasting; a, b, lo, hi
matmul            q, q      y = clamp(R(Σ_k (x_ik − z_x)·(w_kj − z_w)·a / b) + z_y, lo, hi): a matrix product of the
                            last two dimensions, those before them broadcast; a, b, lo, hi
mean              q         y = clamp(R(Σ (x − z_x)·a / b) + z_y, lo, hi) over dims; dims, keepdim, a, b (1/n is in
                            a/b), lo, hi
avg_pool          q         the same over windows; kernel, stride, padding, ceil_mode, count_include_pad,
                            multipliers: [[n, a, b], …] for every divisor n that occurs, lo, hi. Padding adds nothing
adaptive_avg_pool q         the same over adaptive windows [⌊i·H/O⌋, ⌈(i+1)·H/O⌉); output_size, multipliers, lo, hi
table             q         y = table[x]; array table uint8 (256,); attr fn: what it stands for
requantize        q         a table, too (kind table, fn "requantize")
softmax           q [, m]   y = clamp(R(fl(t·fl(levels/fl(Σ t)))) + z_y, lo, hi) along axis, t = table[max(x) − x];
                            where the bool m (broadcast) is true, a position counts nothing: t = 0; axis, levels
                            (1/s_y), lo, hi; table int32 (256,), see ``intact.arithmetic.softmax``
layer_norm        q         over the last dimensions, exact sums and a fixed sequence of IEEE operations, see
                            ``intact.arithmetic.norms``; shape, eps (in squared steps), lo, hi; gain, offset float32
                            of that shape
rms_norm          q         the same without the mean
embedding         i         y = weight[i], i int64; weight uint8 (rows, features) on the grid of y
dynamic_linear    f         acc = Σ q·w exactly, with q and s of x quantized row by row;
                            y = fl(fl(fl(fl(acc)·scale)·s) + bias), float32, see ``intact.arithmetic.dynamic``;
                            granularity; weight int8 (O, I), scale float32 (O,), bias? float32 (O,)
decoded_embedding i         y = fl(q·s) of row i, float32; weight uint8: codes of q, scale float32 (rows, groups), see
                            ``intact.arithmetic.codes``; bits, columns, group
lstm gru rnn      f [, f] [, f] [, i]  one layer, float32: the input (T, B, I), initial states (D, B, H) where attr
                            states says so (h0, lstm: and c0), lengths int64 (B,) where attr lengths does; formulas and
                            result (S + T, B, D·H) are those of ``intact.arithmetic.recurrent``; hidden (H),
                            bidirectional (D = 2), states, lengths, result (all, or only the states, or only the steps),
                            rnn: nonlinearity (tanh, relu); weight_ih int8
                            (D, G·H, I), weight_hh int8 (D, G·H, H), scale_ih, scale_hh, bias float32 (D, G·H), gru:
                            bias_hh float32 (D, H), tanh float32 (4097,) but for relu
max_pool          any       kernel, stride, padding, dilation, ceil_mode; padding never wins
cat               any, …    axis; all inputs share scale and zero point with the output
reshape           any       shape (−1 for the batch dimension)
permute           any       dims
slice             any       axis, start, end, step
pad               any       pads: [[before, after], …] per dimension, value (uint8 integer, or float)
expand            any       shape
roll              any       shifts, dims
upsample          any       size, mode, align_corners; integers only in mode nearest, the other modes are float
                            islands
constant          –         array value (uint8 or float32)
float kinds       f, …      relu clamp leaky_relu prelu unary affine_scalar add sub mul div mean avg_pool
                            adaptive_avg_pool conv linear scale_shift softmax log_softmax layer_norm rms_norm group_norm
                            matmul reduce embedding masked_fill compare cast, written "float.NAME": the float island,
                            attrs as in ``intact.capture.graph``, arrays float32 under the roles of its params;
                            decoded_linear: linear whose weight is decoded as in decoded_embedding; lstm, gru, rnn: with
                            float weights
================= ========= ===================================================================================

"any" ops move values of any dtype and leave scale and zero point as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.arithmetic.dimensions import Dim

Array = npt.NDArray[Any]


EMBEDDINGS = ("embedding", "float.embedding", "decoded_embedding")
"""Kinds that read rows of a table by int64 indices."""

INTERPOLATING = ("linear", "bilinear", "trilinear", "bicubic")
"""Modes of ``upsample`` that compute new values, which only float tensors can hold; the others move values."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program.

    Attributes:
        name: unique; the name of the op that makes it.
        dtype: numpy dtype name: uint8 for quantized tensors, float32, int64, bool otherwise.
        shape: ``None`` stands for the batch dimension, a name for another that changes from call to call.
        scale: step size of a quantized tensor, float32 value > 0; None where the tensor is not quantized.
        zero_point: the integer that stands for 0.0.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    scale: float | None = None
    zero_point: int | None = None

    @property
    def quantized(self) -> bool:
        """Whether the integers of this tensor carry a scale and a zero point."""
        return self.scale is not None


@dataclass(frozen=True)
class Op:
    """One operation; its output tensor has the op's name.

    Attributes:
        name: name of the op and of its output tensor.
        kind: see the table in this module.
        inputs: names of input tensors.
        attrs: JSON values.
        arrays: role → array.
        module: path of the module it came from.
        source: what was fused into it, for people to read (["conv1", "bn1", "relu"]).
        certificate: what was proved, a JSON object (see ``intact.program.certify``); None for float and moving ops.
        note: why it stayed float, or anything else worth a line in the report.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    module: str = ""
    source: tuple[str, ...] = ()
    certificate: dict[str, Any] | None = None
    note: str = ""

    @property
    def is_float(self) -> bool:
        """Whether this op belongs to a float island: it computes float32 values, and engines may round differently."""
        return self.kind.startswith("float.") or (self.kind == "upsample" and self.attrs.get("mode") in INTERPOLATING)

    def multipliers(self) -> tuple[Array, Array]:
        """``a`` and ``b`` as int64 arrays (conv, linear)."""
        return np.asarray(self.arrays["a"], np.int64), np.asarray(self.arrays["b"], np.int64)
