"""Operations that move values: the exported model gives what the reference gives, for every dtype they meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.export.models import meta, one_op, run_model

from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.export.onnx import build, export_onnx
from intact8.opset.op import Op
from intact8.program.program import Program

pytest.importorskip("onnxruntime")

POOL = {"ceil_mode": False, "dilation": [1, 1]}
CASES: list[tuple[str, str, dict[str, Any], tuple[int, ...]]] = [
    ("pool", "max_pool", {**POOL, "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}, (2, 3, 9, 8)),
    ("pool-ceil", "max_pool",
     {**POOL, "kernel": [2, 3], "stride": [2, 2], "padding": [0, 1], "ceil_mode": True}, (2, 3, 9, 8)),
    ("pool-wide-padding", "max_pool",
     {"kernel": [2, 3], "stride": [1, 2], "padding": [2, 2], "dilation": [4, 2], "ceil_mode": True}, (2, 3, 9, 8)),
    ("pool-1d", "max_pool",
     {"kernel": [3], "stride": [2], "padding": [1], "ceil_mode": False, "dilation": [1]}, (2, 3, 9)),
    ("pool-3d", "max_pool",
     {"kernel": [2, 2, 2], "stride": [2, 1, 2], "padding": [0, 1, 0], "ceil_mode": True, "dilation": [1, 1, 1]},
     (2, 3, 5, 4, 7)),
    ("reshape", "reshape", {"shape": [-1, 12]}, (2, 3, 4)),
    ("reshape-multiple-of-the-batch", "reshape", {"shape": [-1, 6]}, (2, 3, 4)),
    ("permute", "permute", {"dims": [0, 3, 1, 2]}, (2, 3, 4, 5)),
    ("slice", "slice", {"axis": 2, "start": 1, "end": 7, "step": 2}, (2, 3, 8)),
    ("pad", "pad", {"pads": [[0, 0], [0, 1], [2, 0]], "value": 7}, (2, 3, 4)),
    ("pad-crop", "pad", {"pads": [[0, 0], [-1, 1], [2, -2]], "value": 7}, (2, 3, 4)),
    ("crop", "pad", {"pads": [[0, 0], [-1, 0], [0, -2]], "value": 7}, (2, 3, 4)),
    ("expand", "expand", {"shape": [-1, 3, 4]}, (2, 1, 4)),
    ("roll", "roll", {"shifts": [1, -2, 8], "dims": [1, 2, 2]}, (2, 3, 4)),
    ("nearest", "upsample", {"size": [6, 8], "mode": "nearest", "align_corners": False}, (2, 3, 3, 4)),
    ("nearest-ragged", "upsample", {"size": [5, 3], "mode": "nearest", "align_corners": False}, (2, 3, 3, 4)),
    ("nearest-exact", "upsample", {"size": [5, 3], "mode": "nearest-exact", "align_corners": False}, (2, 3, 3, 4)),
    ("cat", "cat", {"axis": 1}, (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
@pytest.mark.parametrize(("kind", "attrs", "shape"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_equals_the_reference(kind: str, attrs: dict[str, Any], shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    names = ("x", "x") if kind == "cat" else ("x",)
    program = one_op(Op("y", kind, names, attrs), [meta("x", x, z=100)] * len(names))
    if kind == "max_pool" and dtype == "int64":
        with pytest.raises(EngineError, match=r"^y: max_pool of int64"):
            export_onnx(program)
        return
    for batch in (x, x[:1]):
        want = ReferenceEngine().prepare(program)({"x": batch})[0]
        for optimized in (False, True):
            got = run_model(export_onnx(program), {"x": batch}, optimized)["y"]
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("mode", "align", "shape", "size"), [
    ("bilinear", False, (2, 3, 4, 5), [7, 11]), ("bilinear", True, (2, 3, 4, 5), [7, 11]),
    ("bicubic", False, (2, 3, 4, 5), [9, 3]), ("linear", False, (2, 3, 5), [8]),
    ("trilinear", True, (2, 3, 4, 5, 3), [7, 2, 6]),
])  # fmt: skip
def test_resizing_floats(mode: str, align: bool, shape: tuple[int, ...], size: list[int]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    program = one_op(Op("y", "upsample", ("x",), {"size": size, "mode": mode, "align_corners": align}), [meta("x", x)])
    want = ReferenceEngine().prepare(program)({"x": x})[0]
    np.testing.assert_allclose(run_model(export_onnx(program), {"x": x}, True)["y"], want, rtol=1e-5, atol=1e-5)


def test_a_constant_expands_to_the_batch() -> None:
    x, value = np.zeros((3, 4), np.uint8), np.arange(4, dtype=np.uint8)[None]
    start = one_op(Op("k", "constant", (), {}, {"value": value}), [])
    ops = (*start.ops, Op("y", "expand", ("k",), {"shape": [-1, 4]}))
    tensors = {"x": meta("x", x, z=0), **start.tensors, "y": replace(meta("y", x, z=0), scale=None, zero_point=None)}
    program = Program(tensors, ops, ("x",), ("y", "k"))
    got = run_model(export_onnx(program), {"x": x}, True)
    np.testing.assert_array_equal(got["y"], np.broadcast_to(value, (3, 4)))
    np.testing.assert_array_equal(got["k"], value)


def test_several_unknown_dimensions_are_refused_where_a_shape_must_be_written() -> None:
    x = np.zeros((2, 3), np.uint8)
    op = Op("y", "table", ("x",), {"fn": "none"}, {"table": np.arange(256, dtype=np.uint8)})
    program = one_op(op, [replace(meta("x", x, z=0), shape=(None, None))])
    with pytest.raises(EngineError, match=r"^y: .*several unknown dimensions"):
        build(program, contrib=False)
