"""Float islands are exactly the operations that compute new float values; ``verify`` feeds and lists all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.program.build import q

from intact8.engines import engine_status, get_engine
from intact8.engines.reference import evaluate
from intact8.opset import KINDS
from intact8.opset.op import INTERPOLATING, Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program
from intact8.verification import verify

STATUS = engine_status()
WINDOW = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
MOVES: dict[str, tuple[str, dict[str, Any]]] = {
    "max_pool": ("max_pool", {**WINDOW, "dilation": [1, 1]}),
    "cat": ("cat", {"axis": 1}),
    "reshape": ("reshape", {"shape": [-1, 32]}),
    "permute": ("permute", {"dims": [0, 2, 1, 3]}),
    "slice": ("slice", {"axis": 2, "start": 1, "end": 4, "step": 2}),
    "pad": ("pad", {"pads": [[0, 0], [0, 1], [1, 0], [0, 0]], "value": 0.0}),
    "expand": ("expand", {"shape": [-1, 2, 4, 4]}),
    "roll": ("roll", {"shifts": [1], "dims": [3]}),
    "nearest": ("upsample", {"size": [7, 5], "mode": "nearest", "align_corners": False}),
    "nearest-exact": ("upsample", {"size": [7, 5], "mode": "nearest-exact", "align_corners": False}),
}
X = Tensor("x", "float32", (None, 2, 4, 4))


def resized(mode: str) -> tuple[Op, Tensor]:
    rank = {"linear": 1, "trilinear": 3}.get(mode, 2)
    op = Op("y", "upsample", ("x",), {"size": [7] * rank, "mode": mode, "align_corners": False})
    return op, Tensor("y", "float32", (None, 2, *[7] * rank))


def test_every_kind_that_moves_is_tried() -> None:
    assert {kind for kind, _ in MOVES.values()} | {"constant"} == {n for n, k in KINDS.items() if k.domain == "any"}


@pytest.mark.parametrize("name", MOVES)
def test_moves_give_values_they_got_and_are_no_islands(name: str) -> None:
    kind, attrs = MOVES[name]
    op = Op("y", kind, ("x", "x") if kind == "cat" else ("x",), attrs)
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    y = evaluate(op, [x] * len(op.inputs), [X] * len(op.inputs), Tensor("y", "float32", (None, 2, 4, 4)), 3)
    assert np.isin(y, [*x.ravel(), 0.0]).all()
    assert not op.is_float


@pytest.mark.parametrize("mode", INTERPOLATING)
def test_interpolation_is_an_island(mode: str) -> None:
    op, y = resized(mode)
    x = Tensor("x", "float32", (None, 2, *[4] * len(op.attrs["size"])))
    program = Program({"x": x, "y": y}, (op,), ("x",), ("y",))
    check(program)
    assert [island.name for island in program.islands()] == ["y"]
    values = np.random.default_rng(0).standard_normal((1, *(d or 0 for d in x.shape[1:]))).astype(np.float32)
    got = evaluate(op, [values], [x], y, 1)
    assert not np.isin(got, values).all()


@pytest.mark.parametrize("kind", [n for n in KINDS if n.startswith("float.")])
def test_every_float_kind_is_an_island(kind: str) -> None:
    assert KINDS[kind].domain == "float" and Op("y", kind, ("x",)).is_float


def test_verify_feeds_behind_interpolation() -> None:
    op, up = resized("bilinear")
    op, up = Op("up", "upsample", ("x",), op.attrs), Tensor("up", "float32", up.shape)
    quantize = Op("y", "quantize", ("up",), {"lo": 0, "hi": 255})
    program = Program({"x": X, "up": up, "y": q("y", None, 2, 7, 7)}, (op, quantize), ("x",), ("y",))
    x = np.random.default_rng(1).standard_normal((2, 2, 4, 4)).astype(np.float32)

    class Shifted:
        """Gives the integers of what it is fed."""

        def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Any] | None = None) -> dict[str, Any]:
            assert feed is not None
            return {"y": evaluate(quantize, [feed["up"]], [up], program.tensors["y"], 2)}

    report = verify(program, x, [name for name in ("onednn", "onnxruntime") if STATUS[name] is None], Shifted())
    assert report.islands == ["up"] and report.exact


@pytest.mark.parametrize("engine", ["onednn", "onnxruntime"])
def test_a_program_of_islands_alone_is_verified(engine: str) -> None:
    if STATUS[engine] is not None:
        pytest.skip(str(STATUS[engine]))
    op = Op("y", "float.unary", ("x",), {"fn": "tanh"})
    program = Program({"x": X, "y": Tensor("y", "float32", X.shape)}, (op,), ("x",), ("y",))
    x = {"x": np.ones((2, 2, 4, 4), np.float32)}
    want = get_engine("reference").prepare(program).tensors(x)
    assert (get_engine(engine).prepare(program).tensors(x, {"y": want["y"]})["y"] == want["y"]).all()
