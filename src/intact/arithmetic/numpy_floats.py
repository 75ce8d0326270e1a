"""The float islands in numpy: every ``float.NAME`` kind of a program, float32 in and out.

Islands are outside the bit-for-bit promise: sums may be ordered differently here and in an engine. ``FLOAT_OPS`` maps
NAME to ``(attrs, inputs, arrays) → array``, attributes as in :mod:`intact.capture.graph`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .codes import decode
from .functions64 import UNARY, unary64
from .integer import correlate, flip_transposed, spread_transposed
from .moves import rows, upsample_nearest
from .numpy_recurrent import float_layer
from .resize import resize
from .windows import Edges, adaptive_windows, pool_windows, window_sums

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]
Arrays = Mapping[str, Array]
FloatOp = Callable[[Attrs, list[Array], Arrays], Array]


def _channels(values: Array, rank: int) -> Array:
    """(C,) shaped to broadcast along dimension 1."""
    return values.reshape(-1, *[1] * (rank - 2)) if values.size > 1 else values.reshape(())


ARITHMETIC = frozenset({"add", "sub", "mul", "div", "affine_scalar", "clamp", "unary", "mean"})
"""What works in the dtype of its result: operands of another one are converted first, on every engine."""


def whole_attrs(attrs: Attrs) -> dict[str, Any]:
    """Numbers as whole ones, for integers to stay exact; infinite limits are none."""
    return {k: None if v is None or (isinstance(v, float) and math.isinf(v)) else int(v) for k, v in attrs.items()}


def _prelu(t: Attrs, x: list[Array], p: Arrays) -> Array:
    return np.where(x[0] >= 0, x[0], x[0] * _channels(p["weight"], x[0].ndim))


def _conv(t: Attrs, x: list[Array], p: Arrays) -> Array:
    value, weight = x[0], p["weight"]
    if t["transposed"]:
        weight = flip_transposed(weight, t["groups"])
        value = spread_transposed(
            value, t["stride"], t["padding"], t["output_padding"], t["dilation"], p["weight"].shape[2:]
        )
        y = correlate(value, weight, [1] * len(t["stride"]), t["dilation"], t["groups"])
    else:
        value = np.pad(value, [(0, 0), (0, 0), *((n, n) for n in t["padding"])])
        y = correlate(value, weight, t["stride"], t["dilation"], t["groups"])
    return y + p["bias"].reshape(-1, *[1] * (y.ndim - 2)) if "bias" in p else y


def _linear(t: Attrs, x: list[Array], p: Arrays) -> Array:
    y: Array = np.matmul(x[0], p["weight"].T)
    return y + p["bias"] if "bias" in p else y


def _decoded_linear(t: Attrs, x: list[Array], p: Arrays) -> Array:
    return _linear(t, x, {**p, "weight": decode(p["weight"], p["scale"], t["bits"], t["columns"], t["group"])})


def _scale_shift(t: Attrs, x: list[Array], p: Arrays) -> Array:
    shape = (-1, *[1] * (x[0].ndim - 2))
    y = x[0] * p["weight"].reshape(shape) if "weight" in p else x[0]
    return y + p["bias"].reshape(shape) if "bias" in p else y


def _averages(x: Array, edges: Edges, divisors: Array) -> Array:
    """Of every window alone: NaN and infinity stay in the windows that hold them."""
    wide, finite = x.astype(np.float64), np.isfinite(x)
    if finite.all():
        return window_sums(wide, edges) / divisors
    y = window_sums(np.where(finite, wide, 0.0), edges) / divisors
    up, down, nan = (window_sums(m.astype(np.int64), edges) > 0 for m in (x == np.inf, x == -np.inf, np.isnan(x)))
    y = np.where(up, np.inf, np.where(down, -np.inf, y))
    return np.asarray(np.where(nan | (up & down), np.nan, y))


def _avg_pool(t: Attrs, x: list[Array], p: Arrays) -> Array:
    spatial = x[0].shape[-len(t["kernel"]) :]
    windows = pool_windows(spatial, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
    return _averages(x[0], *windows)


def _adaptive_avg_pool(t: Attrs, x: list[Array], p: Arrays) -> Array:
    return _averages(x[0], *adaptive_windows(x[0].shape[-len(t["output_size"]) :], t["output_size"]))


def _log_softmax(t: Attrs, x: list[Array], p: Arrays) -> Array:
    shifted = x[0] - x[0].max(axis=t["axis"], keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=t["axis"], keepdims=True)))


def _softmax(t: Attrs, x: list[Array], p: Arrays) -> Array:
    e = np.exp(x[0] - x[0].max(axis=t["axis"], keepdims=True))
    return np.asarray(e / e.sum(axis=t["axis"], keepdims=True))


def _normalized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axis=axes, keepdims=True)
    return np.asarray(centered / np.sqrt(np.square(centered).mean(axis=axes, keepdims=True) + eps))


def _layer_norm(t: Attrs, x: list[Array], p: Arrays) -> Array:
    y = _normalized(x[0], tuple(range(x[0].ndim - len(t["shape"]), x[0].ndim)), t["eps"])
    y = y * p["weight"] if "weight" in p else y
    return y + p["bias"] if "bias" in p else y


def _rms_norm(t: Attrs, x: list[Array], p: Arrays) -> Array:
    wide = x[0].astype(np.float64)
    axes = tuple(range(wide.ndim - len(t["shape"]), wide.ndim))
    y = wide / np.sqrt(np.square(wide).mean(axis=axes, keepdims=True) + t["eps"])
    return np.asarray(y * p["weight"] if "weight" in p else y)


def _group_norm(t: Attrs, x: list[Array], p: Arrays) -> Array:
    n, channels = x[0].shape[:2]
    grouped = x[0].reshape(n, t["groups"], channels // t["groups"], -1)
    return _scale_shift(t, [_normalized(grouped, (2, 3), t["eps"]).reshape(x[0].shape)], p)


def _reduce(t: Attrs, x: list[Array], p: Arrays) -> Array:
    axes, keep = tuple(t["dims"]) or None, t["keepdim"]
    if t["fn"] == "argmax":
        return np.asarray(np.argmax(x[0], axis=axes[0] if axes else None, keepdims=keep))
    if t["fn"] == "sum":
        return np.asarray(x[0].sum(axis=axes, keepdims=keep))
    return np.asarray((np.max if t["fn"] == "amax" else np.min)(x[0], axis=axes, keepdims=keep))


_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _upsample(t: Attrs, x: list[Array], p: Arrays) -> Array:
    mode = t["mode"]
    if mode.startswith("nearest"):
        return upsample_nearest(x[0], t["size"], mode == "nearest-exact")
    return resize(x[0], t["size"], mode == "bicubic", bool(t["align_corners"]))


def _embedding(t: Attrs, x: list[Array], p: Arrays) -> Array:
    return rows(p["weight"], x[0])


FLOAT_OPS: dict[str, FloatOp] = {
    "relu": lambda t, x, p: np.maximum(x[0], 0),
    "clamp": lambda t, x, p: (
        np.clip(x[0], t["min"], t["max"]) if t["min"] is not None or t["max"] is not None else x[0]
    ),
    "leaky_relu": lambda t, x, p: np.where(x[0] >= 0, x[0], x[0] * np.float32(t["slope"])),
    "prelu": _prelu,
    "unary": lambda t, x, p: unary64(t["fn"], t, x[0]),
    "affine_scalar": lambda t, x, p: x[0] * t["mul"] + t["add"],
    "add": lambda t, x, p: x[0] + x[1],
    "sub": lambda t, x, p: x[0] - x[1],
    "mul": lambda t, x, p: x[0] * x[1],
    "div": lambda t, x, p: np.true_divide(x[0], x[1]),
    "mean": lambda t, x, p: x[0].mean(axis=tuple(t["dims"]), keepdims=t["keepdim"], dtype=np.float64),
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "conv": _conv,
    "linear": _linear,
    "decoded_linear": _decoded_linear,
    "scale_shift": _scale_shift,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "matmul": lambda t, x, p: np.matmul(x[0], x[1]),
    "reduce": _reduce,
    "embedding": _embedding,
    "lstm": lambda t, x, p: float_layer("lstm", t, x, p),
    "gru": lambda t, x, p: float_layer("gru", t, x, p),
    "rnn": lambda t, x, p: float_layer("rnn", t, x, p),
    "masked_fill": lambda t, x, p: np.where(x[1], np.float32(t["value"]), x[0]),
    "compare": lambda t, x, p: _COMPARE[t["fn"]](x[0], t["value"]),
    "cast": lambda t, x, p: x[0].astype(t["dtype"]),
    "upsample": _upsample,
}
"""NAME → implementation."""


def run_float(name: str, attrs: Attrs, inputs: list[Array], arrays: Arrays, dtype: str = "float32") -> Array:
    """One float op; overflow and invalid operations give inf and NaN as IEEE 754 says, without warnings.

    Args:
        name: a key of FLOAT_OPS.
        attrs, arrays: of the op.
        inputs: its input arrays.
        dtype: of the output tensor.

    Example:
        >>> run_float("affine_scalar", {"mul": 2.0, "add": 1.0}, [np.float32([1, 2])], {})
        array([3., 5.], dtype=float32)
    """
    if name in ARITHMETIC:
        inputs = [x.astype(dtype, copy=False) for x in inputs]
        if dtype == "int64":
            attrs = whole_attrs(attrs)
    with np.errstate(all="ignore"):
        return np.asarray(FLOAT_OPS[name](attrs, inputs, arrays)).astype(dtype, copy=False)


__all__ = ["FLOAT_OPS", "UNARY", "run_float", "unary64"]
