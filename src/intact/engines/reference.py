"""The reference engine: the specification as code, in numpy, on exact integers. Slow, always there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from intact.arithmetic import affine, codes, dynamic, integer, moves, norms, recurrent, softmax, windows
from intact.arithmetic.numpy_floats import run_float
from intact.errors import EngineError, InputError
from intact.program.dimensions import fixed, sizes_of
from intact.program.ops import Array, Op, Tensor
from intact.program.program import Program
from intact.program.shapes import axis_of

from .binding import batch_size, outside

Rule = Callable[[Op, list[Array], list[Tensor], Tensor], Array]


class ReferenceEngine:
    """Runs any checked program, everywhere, with the integers the specification defines."""

    name = "reference"

    def available(self) -> str | None:
        """Always None: numpy is all it needs."""
        return None

    def prepare(self, program: Program, *, threads: int | None = None) -> ReferenceRunner:
        """A runner.

        Raises:
            EngineError: ``threads`` given; numpy's matrix library reads its own environment variables.
        """
        if threads is not None:
            raise EngineError(
                "the reference engine cannot set the number of threads", where=self.name,
                remedy="leave threads out, or set OPENBLAS_NUM_THREADS or MKL_NUM_THREADS before Python starts",
            )  # fmt: skip
        return ReferenceRunner(program)


class ReferenceRunner:
    """A program with the last use of each tensor, so that memory is given back early."""

    def __init__(self, program: Program) -> None:
        self.program = program
        last: dict[str, int] = {}
        for i, op in enumerate(program.ops):
            for name in op.inputs:
                last[name] = i
        keep = set(program.outputs)
        self._done: list[list[str]] = [[] for _ in program.ops]
        for name, i in last.items():
            if name not in keep:
                self._done[i].append(name)

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Flattened outputs. See ``intact.engines.base.Runner``."""
        values = self._run(inputs, {}, everything=False)
        return [np.array(values[name], order="C") for name in self.program.outputs]

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every tensor by name, inputs included. See ``intact.engines.base.Runner``."""
        return self._run(inputs, feed or {}, everything=True)

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Seconds every op took in one run, by name."""
        found: dict[str, float] = {}
        self._run(inputs, {}, everything=False, times=found)
        return found

    def _run(
        self,
        inputs: Mapping[str, Array],
        feed: Mapping[str, Array],
        everything: bool,
        times: dict[str, float] | None = None,
    ) -> dict[str, Array]:
        program = fixed(self.program, sizes_of(self.program, inputs))
        values: dict[str, Array] = {name: inputs[name] for name in program.inputs}
        batch = batch_size(program, values)
        for op, done in zip(program.ops, self._done, strict=True):
            output = program.tensors[op.name]
            start = time.perf_counter()
            if op.is_float and op.name in feed:
                values[op.name] = feed[op.name]
            else:
                args, metas = [values[n] for n in op.inputs], [program.tensors[n] for n in op.inputs]
                values[op.name] = evaluate(op, args, metas, output, batch)
            if times is not None:
                times[op.name] = time.perf_counter() - start
            if not everything:
                for name in done:
                    del values[name]
        return values


def evaluate(op: Op, args: list[Array], inputs: list[Tensor], output: Tensor, batch: int | None) -> Array:
    """One operation.

    Args:
        op: a checked op.
        args, inputs: its input arrays and their descriptions.
        output: description of its output.
        batch: what an expanded −1 stands for.

    Raises:
        InputError: an index is outside its table, or sizes do not work out for this batch.
    """
    try:
        if op.is_float:
            return run_float(op.kind.removeprefix("float."), op.attrs, args, op.arrays, output.dtype)
        if op.kind == "expand":
            return _expand(op, args[0], output, batch)
        return RULES[op.kind](op, args, inputs, output)
    except IndexError as error:
        raise outside(op.name, str(error)) from error


def _z(t: Tensor) -> int:
    assert t.zero_point is not None  # check() has seen to it
    return t.zero_point


def _quantize(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    if args[0].dtype == np.uint8:
        return args[0]  # the caller gave the integers themselves
    return affine.quantize(args[0], np.float32(y.scale), _z(y), op.attrs["lo"], op.attrs["hi"]).astype(np.uint8)


def _dequantize(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    return affine.dequantize(args[0], np.float32(inputs[0].scale), _z(inputs[0]))


def _requantize(op: Op, acc: Array, axis: int, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    p = op.arrays
    residual = args[1].astype(np.int64) - _z(inputs[1]) if len(args) == 2 else None
    return integer.requantize(
        acc, p["a"], p["b"], _z(y), op.attrs["lo"], op.attrs["hi"], axis, a_neg=p.get("a_neg"), b_neg=p.get("b_neg"),
        residual=residual, residual_a=op.attrs["residual_a"],
    )  # fmt: skip


def _conv(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t, p, x, z = op.attrs, op.arrays, args[0], _z(inputs[0])
    if t["transposed"]:
        acc = integer.conv_transpose_accumulate(
            x, z, p["weight"], p["bias"], t["stride"], t["padding"], t["output_padding"], t["dilation"], t["groups"]
        )
    else:
        acc = integer.conv_accumulate(
            x, z, p["weight"], p["bias"], t["stride"], t["padding"], t["dilation"], t["groups"]
        )
    return _requantize(op, acc, 1, args, inputs, y)


def _linear(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    acc = integer.linear_accumulate(args[0], _z(inputs[0]), op.arrays["weight"], op.arrays["bias"])
    return _requantize(op, acc, -1, args, inputs, y)


def _add(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return integer.add(args, [_z(x) for x in inputs], t["a"], t["b"], _z(y), t["lo"], t["hi"])


def _mul(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return integer.mul(args[0], _z(inputs[0]), args[1], _z(inputs[1]), t["a"], t["b"], _z(y), t["lo"], t["hi"])


def _matmul(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return integer.matmul(args[0], _z(inputs[0]), args[1], _z(inputs[1]), t["a"], t["b"], _z(y), t["lo"], t["hi"])


def _mean(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return integer.mean(args[0], _z(inputs[0]), t["dims"], t["keepdim"], t["a"], t["b"], _z(y), t["lo"], t["hi"])


def _avg_pool(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t, size = op.attrs, args[0].shape[2:]
    edges, n = windows.pool_windows(
        size, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"]
    )
    return windows.average(args[0], _z(inputs[0]), edges, n, t["multipliers"], _z(y), t["lo"], t["hi"])


def _adaptive(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    edges, n = windows.adaptive_windows(args[0].shape[2:], t["output_size"])
    return windows.average(args[0], _z(inputs[0]), edges, n, t["multipliers"], _z(y), t["lo"], t["hi"])


def _recurrent(op: Op, args: list[Array], inputs: list[Tensor], output: Tensor) -> Array:
    states = recurrent.state_count(op.kind) if op.attrs["states"] else 0
    h0, c0 = (*args[1 : 1 + states], None, None)[:2]
    lengths = args[-1] if op.attrs["lengths"] else None
    try:
        y = recurrent.run_layer(recurrent.Layer(op.kind, **op.arrays), args[0], h0, c0, lengths)
        return y[recurrent.part(op.kind, op.attrs["result"])]
    except ValueError as error:
        raise InputError(
            "NaN or infinity reached a recurrent layer", where=op.name, why=str(error), remedy="repair the data"
        ) from error


def _max_pool(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return windows.max_pool(args[0], t["kernel"], t["stride"], t["padding"], t["dilation"], t["ceil_mode"])


def _softmax(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    masked = args[1] if len(args) == 2 else None
    t, axis = op.attrs, axis_of(op, inputs[0].shape)
    return softmax.softmax(args[0], op.arrays["table"], axis, t["levels"], _z(y), t["lo"], t["hi"], masked=masked)


def _norm(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    rest = op.arrays["gain"], op.arrays["offset"], op.attrs["eps"], op.attrs["lo"], op.attrs["hi"]
    if op.kind == "layer_norm":
        return norms.layer_norm(args[0], *rest)
    return norms.rms_norm(args[0], _z(inputs[0]), *rest)


def _embedding(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    return run_float("embedding", op.attrs, args, op.arrays, "uint8")


def _dynamic_linear(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    p = op.arrays
    return dynamic.linear(args[0], p["weight"], p["scale"], p.get("bias"), op.attrs["granularity"])


def _matrix(op: Op) -> Array:
    return codes.decode(op.arrays["weight"], op.arrays["scale"], **op.attrs)


def _slice(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    t = op.attrs
    return moves.cut(args[0], t["axis"], t["start"], t["end"], t["step"])


def _reshape(op: Op, args: list[Array], inputs: list[Tensor], y: Tensor) -> Array:
    try:
        return moves.reshape(args[0], op.attrs["shape"])
    except ValueError as error:
        raise InputError(
            "this batch size does not work out", where=op.name, why=str(error), remedy="change the batch size"
        ) from error


def _expand(op: Op, x: Array, y: Tensor, batch: int | None) -> Array:
    return moves.expand(x, moves.expanded_shape(op.attrs["shape"], x.shape, y.shape, batch))


RULES: dict[str, Rule] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv": _conv,
    "linear": _linear,
    "add": _add,
    "mul": _mul,
    "matmul": _matmul,
    "mean": _mean,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive,
    "softmax": _softmax,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "embedding": _embedding,
    "dynamic_linear": _dynamic_linear,
    "decoded_embedding": lambda op, args, inputs, y: moves.rows(_matrix(op), args[0]),
    "table": lambda op, args, inputs, y: integer.table(args[0], op.arrays["table"]),
    **dict.fromkeys(recurrent.GATES, _recurrent),
    "max_pool": _max_pool,
    "cat": lambda op, args, inputs, y: np.concatenate(args, axis=op.attrs["axis"]),
    "reshape": _reshape,
    "permute": lambda op, args, inputs, y: moves.permute(args[0], op.attrs["dims"]),
    "slice": _slice,
    "pad": lambda op, args, inputs, y: moves.pad(args[0], op.attrs["pads"], op.attrs["value"]),
    "roll": lambda op, args, inputs, y: moves.roll(args[0], op.attrs["shifts"], op.attrs["dims"]),
    "upsample": lambda op, args, inputs, y: run_float("upsample", op.attrs, args, {}, y.dtype),
    "constant": lambda op, args, inputs, y: op.arrays["value"],
}
"""Kind → implementation; ``expand`` and the float kinds are handled by :func:`evaluate`."""
