"""Float islands of layers: convolutions, linear layers, norms, pools, softmax, matrix products."""

from __future__ import annotations

import numpy as np

from intact8.arithmetic.integer import correlate, flip_transposed, spread_transposed
from intact8.arithmetic.windows import Edges, adaptive_windows, pool_windows, window_sums

from .affine import conv_shape, linear_shape
from .attributes import BIAS, CONV, FLOATS, SIZES, SMALL, WEIGHT, WINDOW
from .elementwise import matmul_shape
from .floats import island
from .kind import Call, along_all_but_first, along_none
from .norms import grouped, last_dimensions
from .op import Array, Op
from .pools import adaptive_shape, pool_shape
from .shapes import Shape, fits_channels
from .softmax import shape as axis_shape
from .values import Validator, boolean, integer, number


def _conv(call: Call) -> Array:
    t, p, x, weight = call.attrs, call.arrays, call.x[0], call.arrays["weight"]
    if t["transposed"]:
        x = spread_transposed(x, t["stride"], t["padding"], t["output_padding"], t["dilation"], weight.shape[2:])
        y = correlate(x, flip_transposed(weight, t["groups"]), [1] * len(t["stride"]), t["dilation"], t["groups"])
    else:
        x = np.pad(x, [(0, 0), (0, 0), *((n, n) for n in t["padding"])])
        y = correlate(x, weight, t["stride"], t["dilation"], t["groups"])
    return y + p["bias"].reshape(-1, *[1] * (y.ndim - 2)) if "bias" in p else y


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return x·weightᵀ + bias in float32."""
    y: Array = np.matmul(x, weight.T)
    return y if bias is None else y + bias


def _linear(call: Call) -> Array:
    return linear(call.x[0], call.arrays["weight"], call.arrays.get("bias"))


def _channels_shape(op: Op, x: list[Shape], declared: Shape) -> Shape:
    fits_channels(op, x[0])
    return x[0]


def _by_channel(x: Array, call: Call) -> Array:
    """Return x·weight + bias, each where it is there, by channel."""
    shape, p = (-1, *[1] * (x.ndim - 2)), call.arrays
    y = x * p["weight"].reshape(shape) if "weight" in p else x
    return y + p["bias"].reshape(shape) if "bias" in p else y


def _averages(x: Array, edges: Edges, divisors: Array) -> Array:
    """Return the mean of every window; NaN and infinity stay in the windows that hold them."""
    wide, finite = x.astype(np.float64), np.isfinite(x)
    if finite.all():
        return window_sums(wide, edges) / divisors
    y = window_sums(np.where(finite, wide, 0.0), edges) / divisors
    up, down, nan = (window_sums(m.astype(np.int64), edges) > 0 for m in (x == np.inf, x == -np.inf, np.isnan(x)))
    y = np.where(up, np.inf, np.where(down, -np.inf, y))
    return np.asarray(np.where(nan | (up & down), np.nan, y))


def _avg_pool(call: Call) -> Array:
    t, x = call.attrs, call.x[0]
    spatial = x.shape[-len(t["kernel"]) :]
    windows = pool_windows(spatial, t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
    return _averages(x, *windows)


def _adaptive_avg_pool(call: Call) -> Array:
    x, size = call.x[0], call.attrs["output_size"]
    return _averages(x, *adaptive_windows(x.shape[-len(size) :], size))


def _log_softmax(call: Call) -> Array:
    axis, x = call.attrs["axis"], call.x[0]
    shifted = x - x.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _softmax(call: Call) -> Array:
    axis, x = call.attrs["axis"], call.x[0]
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _normalized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axis=axes, keepdims=True)
    return np.asarray(centered / np.sqrt(np.square(centered).mean(axis=axes, keepdims=True) + eps))


def _layer_norm(call: Call) -> Array:
    t, p, x = call.attrs, call.arrays, call.x[0]
    y = _normalized(x, tuple(range(x.ndim - len(t["shape"]), x.ndim)), t["eps"])
    y = y * p["weight"] if "weight" in p else y
    return y + p["bias"] if "bias" in p else y


def _rms_norm(call: Call) -> Array:
    t, p, wide = call.attrs, call.arrays, call.x[0].astype(np.float64)
    axes = tuple(range(wide.ndim - len(t["shape"]), wide.ndim))
    y = wide / np.sqrt(np.square(wide).mean(axis=axes, keepdims=True) + t["eps"])
    return np.asarray(y * p["weight"] if "weight" in p else y)


def _group_norm(call: Call) -> Array:
    t, x = call.attrs, call.x[0]
    grouped = x.reshape(len(x), t["groups"], x.shape[1] // t["groups"], -1)
    return _by_channel(_normalized(grouped, (2, 3), t["eps"]).reshape(x.shape), call)


EPS = {"eps": number}
SHAPE_AND_EPS: dict[str, Validator] = {"shape": SIZES, **EPS}
AXIS = {"axis": integer(-8, 7)}

KINDS = (
    island(
        "float.conv",
        "a convolution, transposed or not",
        FLOATS,
        conv_shape,
        _conv,
        attrs=CONV,
        arrays=WEIGHT,
        optional_arrays=BIAS,
        works_along=along_all_but_first,
    ),
    island(
        "float.linear",
        "x·weightᵀ + bias",
        FLOATS,
        linear_shape,
        _linear,
        arrays=WEIGHT,
        optional_arrays=BIAS,
        works_along=along_none,
    ),
    island(
        "float.scale_shift",
        "x·weight + bias by channel",
        FLOATS,
        _channels_shape,
        lambda c: _by_channel(c.x[0], c),
        optional_arrays={**WEIGHT, **BIAS},
        infinite=frozenset({"weight", "bias"}),
    ),
    island(
        "float.matmul",
        "a matrix product of the last two dimensions, those before them broadcast",
        FLOATS,
        matmul_shape,
        lambda c: np.matmul(c.x[0], c.x[1]),
        inputs=2,
    ),
    island(
        "float.avg_pool",
        "means over windows",
        FLOATS,
        pool_shape,
        _avg_pool,
        attrs={**WINDOW, "count_include_pad": boolean},
        works_along=along_all_but_first,
    ),
    island(
        "float.adaptive_avg_pool",
        "means over adaptive windows",
        FLOATS,
        adaptive_shape,
        _adaptive_avg_pool,
        attrs={"output_size": SIZES},
        works_along=along_all_but_first,
    ),
    island("float.softmax", "softmax along axis", FLOATS, axis_shape, _softmax, attrs=AXIS),
    island("float.log_softmax", "log(softmax) along axis", FLOATS, axis_shape, _log_softmax, attrs=AXIS),
    island(
        "float.layer_norm",
        "layer norm over the last dimensions",
        FLOATS,
        last_dimensions,
        _layer_norm,
        attrs=SHAPE_AND_EPS,
        optional_arrays={**WEIGHT, **BIAS},
        works_along=along_none,
    ),
    island(
        "float.rms_norm",
        "the same without the mean",
        FLOATS,
        last_dimensions,
        _rms_norm,
        attrs=SHAPE_AND_EPS,
        optional_arrays=WEIGHT,
        since=2,
        works_along=along_none,
    ),
    island(
        "float.group_norm",
        "group norm over channels and images",
        FLOATS,
        grouped,
        _group_norm,
        attrs={"groups": integer(1, SMALL), **EPS},
        optional_arrays={**WEIGHT, **BIAS},
        works_along=along_all_but_first,
    ),
)
