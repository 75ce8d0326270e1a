"""NaN and infinity in float islands: where torch gives them, all engines do, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact8.engines import engine_status, get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.nonfinite import nonfinite_tensors
from intact8.program.program import Program

STATUS = engine_status()
NAN, INF = np.nan, np.inf
IMAGE = np.arange(128, dtype=np.float32).reshape(1, 2, 8, 8) / 7
IMAGE[0, 0, 2, 3], IMAGE[0, 0, 6, 6], IMAGE[0, 1, 1, 1], IMAGE[0, 1, 4:, 4:] = NAN, INF, -INF, -INF
IMAGE[0, 1, 0] = (NAN, INF, -INF, 0.0, -0.0, 0.3, -2.5, 1e30)
SHAPE = (None, 2, 8, 8)
POOL = {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "ceil_mode": False}
CEIL = {"kernel": [3, 3], "stride": [2, 2], "padding": [0, 0], "ceil_mode": True, "count_include_pad": True}


def _unary(fn: str, **more: float) -> tuple[str, dict[str, Any], tuple[int | None, ...], str]:
    return "float.unary", {"fn": fn, **more}, SHAPE, "float32"


def _reduce(
    fn: str, dims: list[int], dtype: str = "float32"
) -> tuple[str, dict[str, Any], tuple[int | None, ...], str]:
    shape = tuple(d for i, d in enumerate(SHAPE) if i not in dims)
    return "float.reduce", {"fn": fn, "dims": dims, "keepdim": False}, shape, dtype


def _resize(mode: str, size: int, corners: bool) -> tuple[str, dict[str, Any], tuple[int | None, ...], str]:
    return "upsample", {"mode": mode, "size": [size] * 2, "align_corners": corners}, (None, 2, size, size), "float32"


CASES = {
    "relu": ("float.relu", {}, SHAPE, "float32"),
    "clamp": ("float.clamp", {"min": -1.0, "max": 6.0}, SHAPE, "float32"),
    "softmax": ("float.softmax", {"axis": -1}, SHAPE, "float32"),
    "hardshrink": _unary("hardshrink"),
    "softshrink": _unary("softshrink"),
    "threshold": _unary("threshold", threshold=1.0, value=20.0),
    "sign": _unary("sign"),
    "root": _unary("pow", exponent=0.5),
    "exp": _unary("exp"),
    "hardsigmoid": _unary("hardsigmoid"),
    "log_softmax": ("float.log_softmax", {"axis": 1}, SHAPE, "float32"),
    "cast to bool": ("float.cast", {"dtype": "bool"}, SHAPE, "bool"),
    "above": ("float.compare", {"fn": "ge", "value": 0.3}, SHAPE, "bool"),
    "unequal": ("float.compare", {"fn": "ne", "value": 0.3}, SHAPE, "bool"),
    "amax": _reduce("amax", [3]),
    "amax of two": _reduce("amax", [2, 3]),
    "amin": _reduce("amin", [2]),
    "argmax": _reduce("argmax", [3], "int64"),
    "max_pool": ("max_pool", {**POOL, "dilation": [1, 1]}, SHAPE, "float32"),
    "avg_pool": ("float.avg_pool", {**POOL, "count_include_pad": True}, SHAPE, "float32"),
    "avg_pool ceil": ("float.avg_pool", CEIL, (None, 2, 4, 4), "float32"),
    "adaptive": ("float.adaptive_avg_pool", {"output_size": [3, 3]}, (None, 2, 3, 3), "float32"),
    "bilinear": _resize("bilinear", 12, False),
    "bilinear, same size": _resize("bilinear", 8, True),
    "bicubic": _resize("bicubic", 4, True),
}


def kinds(x: np.ndarray) -> np.ndarray:
    """NaN, ±∞ and finite numbers as numbers; integers as they are."""
    if x.dtype != np.float32:
        return x
    return np.select([np.isnan(x), x == INF, x == -INF], [2, 1, -1], 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["native", "onednn", "onnxruntime", "openvino"])
def test_special_values_lie_where_torch_has_them(engine: str, name: str) -> None:
    if STATUS[engine] is not None:
        pytest.skip(str(STATUS[engine]))
    kind, attrs, shape, dtype = CASES[name]
    inner, y = Tensor("i", "float32", SHAPE), Tensor("y", dtype, shape)
    ops = (Op("i", "float.unary", ("x",), {"fn": "neg"}), Op("y", kind, ("i",), attrs))
    program = Program({"x": Tensor("x", "float32", SHAPE), "i": inner, "y": y}, ops, ("x",), ("y",))
    check(program)
    reference, runner = get_engine("reference").prepare(program), get_engine(engine).prepare(program)
    for image in (IMAGE, np.full_like(IMAGE, -INF), np.full_like(IMAGE, INF)):
        want = reference({"x": -image})[0]
        np.testing.assert_array_equal(kinds(runner({"x": -image})[0]), kinds(want))


def test_what_comes_from_integers_needs_no_look() -> None:
    grid = ("uint8", SHAPE, 0.1, 3)
    tensors = [Tensor("x", *grid), *(Tensor(n, "float32", SHAPE) for n in ("d", "r", "l", "s"))]
    ops = (Op("d", "dequantize", ("x",)), Op("r", "float.relu", ("d",)),
           Op("l", "float.unary", ("r",), {"fn": "log"}), Op("s", "float.add", ("l", "d")))  # fmt: skip
    slopes = Op("r", "float.prelu", ("d",), {}, {"weight": np.array([0.5], np.float32)})
    finite = Program({t.name: t for t in tensors[:3]}, (ops[0], slopes), ("x",), ("r",))
    assert not nonfinite_tensors(finite)
    assert nonfinite_tensors(Program({t.name: t for t in tensors}, ops, ("x",), ("s",))) == {"l", "s"}
