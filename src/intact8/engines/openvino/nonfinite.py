"""NaN and infinity in float islands, where OpenVINO's own operations lose them or spread them.

Its maxima, minima, comparisons and exponentials (2026.4) take NaN for a number, depending on the side it stands on, and
its interpolations multiply what no tap reads with 0. So wherever a tensor may hold such values
(``intact8.program.nonfinite``), what they become is stated here by selections, which move bits; the operations
themselves decide about finite numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from openvino import opset14 as ov

from intact8.arithmetic.resize import taps
from intact8.arithmetic.unary_functions import unary64

from .lowering import Port, constant, ints, port, scalar


def is_nan(x: Port) -> Port:
    """Where a float tensor is NaN, bool."""
    return port(ov.is_nan(x))


def replaced(x: Port, value: float) -> Port:
    """Build x, with a number in place of NaN."""
    return port(ov.select(is_nan(x), scalar(value), x))


def keep_nan(x: Port, y: Port) -> Port:
    """Build y, and NaN where x is."""
    return port(ov.select(is_nan(x), x, y))


def function(attrs: Mapping[str, Any], x: Port, y: Port) -> Port:
    """Build y, a function of x alone, with its values at NaN and the infinities."""
    ends = np.array([np.nan, np.inf, -np.inf])
    nan, above, below = (scalar(v) for v in unary64(str(attrs["fn"]), attrs, ends))
    y = port(ov.select(port(ov.equal(x, scalar(np.inf))), above, y))
    y = port(ov.select(port(ov.equal(x, scalar(-np.inf))), below, y))
    return port(ov.select(is_nan(x), nan, y))


def compared(x: Port, y: Port, unequal: bool) -> Port:
    """Build y, a comparison with a number: true of NaN where it asks for inequality only."""
    nan = is_nan(x)
    return port(ov.logical_or(y, nan)) if unequal else port(ov.logical_and(y, port(ov.logical_not(nan))))


def int32_range(x: Port) -> Port:
    """Build x within −2²⁴ … 2²⁴, so that it can be converted to int32: only clamps to less read it. What no int64 is,
    NaN included, becomes the least, as on other engines of x86."""
    end = scalar(float(1 << 63))
    fits = port(ov.logical_and(port(ov.less(port(ov.abs(x)), end)), port(ov.logical_not(is_nan(x)))))
    least, most = scalar(-float(1 << 24)), scalar(float(1 << 24))
    return port(ov.select(fits, port(ov.minimum(port(ov.maximum(x, least)), most)), least))


def softmax_rows(make: Callable[[Port], Port], x: Port, axis: int) -> Port:
    """Return a softmax, or its logarithm: rows that hold NaN or +∞, or nothing but −∞, are NaN."""
    along = ints([axis])
    above = port(ov.logical_or(is_nan(x), port(ov.equal(x, scalar(np.inf)))))
    nothing = port(ov.logical_not(_any(port(ov.not_equal(x, scalar(-np.inf))), along, True)))
    lost = port(ov.logical_or(_any(above, along, True), nothing))
    return port(ov.select(lost, scalar(np.nan), make(port(ov.select(lost, scalar(0.0), x)))))


def extreme(x: Port, y: Port, dims: Port, keep: bool, worst: float) -> Port:
    """Build y, the largest or least of x along ``dims``: NaN where one of them is, and ``worst``, the infinity that
    loses to all others, where they all are."""
    better = _any(port(ov.not_equal(x, scalar(worst))), dims, keep)
    y = port(ov.select(better, y, scalar(worst)))
    return port(ov.select(_any(is_nan(x), dims, keep), scalar(np.nan), y))


def scattered_extreme(
    x: Port, source: Port, extreme: Callable[[Port, Port], Port], largest: Callable[[Port, Port], Port]
) -> Port:
    """Build what ``extreme`` scatters of source into x, the largest or least of both: NaN where one of them is, which
    ``largest`` finds by scattering marks."""
    marks = largest(_as_number(is_nan(x)), _as_number(is_nan(source)))
    y = extreme(replaced(x, 0.0), replaced(source, 0.0))
    return port(ov.select(port(ov.greater(marks, scalar(0.5))), scalar(np.nan), y))


def index_of_largest(x: Port, axis: int) -> Port:
    """Return the index of the first largest value along ``axis``, of numbers; the dimension is kept.

    Only a stable selection gives the first one: from 17 values on the plugin otherwise compares in another order.
    """
    return ov.topk(x, ov.constant(np.int64(1)), axis, "max", "value", "i64", stable=True).output(1)


def first_largest(x: Port, axis: int) -> Port:
    """Return the index of the first NaN along ``axis``, or of the first largest value; the dimension is kept."""
    nan = _as_number(is_nan(x))
    there = port(ov.greater(port(ov.reduce_max(nan, ints([axis]), True)), scalar(0.5)))
    # What NaN stands beside plays no part, but must not be NaN itself.
    clean = replaced(x, 0.0)
    of_nan, of_rest = (index_of_largest(v, axis) for v in (nan, clean))
    return port(ov.select(there, of_nan, of_rest))


def max_pool(pool: Callable[[Port], Port], x: Port) -> Port:
    """Build ``pool``, a maximum over windows, which holds NaN where a window does and −∞ where it holds nothing
    else."""
    nan = is_nan(x)
    lowest = port(ov.equal(x, scalar(-np.inf)))
    clean = port(ov.select(port(ov.logical_or(nan, lowest)), scalar(float(np.finfo(np.float32).min)), x))
    above = port(ov.greater(pool(_as_number(port(ov.logical_not(lowest)))), scalar(0.5)))
    y = port(ov.select(above, pool(clean), scalar(-np.inf)))
    lost = port(ov.greater(pool(_as_number(nan)), scalar(0.5)))
    return port(ov.select(lost, scalar(np.nan), y))


def resized(x: Port, size: Sequence[int], cubic: bool, align_corners: bool) -> Port:
    """Return the linear and cubic resizing of the trailing dimensions: every output is a sum of its own taps."""
    shape = [int(d) for d in x.get_shape()]
    for axis, out in enumerate(size, start=len(shape) - len(size)):
        along = [1] * len(shape)
        along[axis] = out
        total: Port | None = None
        for at, weight in taps(shape[axis], out, cubic, align_corners):
            part = port(ov.multiply(port(ov.gather(x, ints(at), ints(axis))), constant(weight.reshape(along))))
            total = part if total is None else port(ov.add(total, part))
        x = total
    return x


def _any(x: Port, dims: Port, keep: bool) -> Port:
    return port(ov.greater(port(ov.reduce_max(_as_number(x), dims, keep)), scalar(0.5)))


def _as_number(x: Port) -> Port:
    """Build bool as 0.0 and 1.0."""
    return port(ov.select(x, scalar(1.0), scalar(0.0)))
