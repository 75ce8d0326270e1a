"""What OpenVINO executes is compared with what the bounds were derived for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine, execution_graph, infer_requests
from intact8.engines.openvino.execution_graph import Node, unknown
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

FUSED = Node("Subgraph", "jit_avx512_I8", "u8", ("op0", "op0.end"), 0)
MEAN = Node("Reduce", "jit_avx512_I8", "u8", ("ReduceMean_7",), 0)


@pytest.mark.parametrize(
    ("nodes", "kind", "lost"),
    [
        ([FUSED], "add", []),
        ([replace(FUSED, kind="Pooling")], "add", ["op0", "op0.end"]),
        ([replace(FUSED, precision="bf16")], "mul", ["op0", "op0.end"]),
        ([replace(FUSED, names=("op0",))], "add", ["op0.end"]),
        ([replace(FUSED, kind="Reduce")], "mean", []),
        ([replace(FUSED, kind="Reduce")], "mul", ["op0", "op0.end"]),
        ([replace(FUSED, kind="Convolution", kernel="jit_avx512_winograd_f32")], "add", ["op0", "op0.end"]),
        ([MEAN, Node("Transpose", "unknown_f32", "f32", ("op0.end",), 0)], "mean", []),
        ([replace(MEAN, kind="Pooling"), Node("Transpose", "", "f32", ("op0.end",), 0)], "mean", ["op0", "op0.end"]),
    ],
    ids=["fused", "pooled", "bf16", "no rounding", "mean", "no sum", "winograd", "permuted mean", "pooled mean"],
)
def test_what_is_known(nodes: list[Node], kind: str, lost: list[str]) -> None:
    assert unknown(nodes, {"op0": kind, "op0.end": kind}) == lost


def _mean() -> Program:
    tensors = (
        Tensor("x", "uint8", (None, 9, 9, 7), 0.5, 128),
        Tensor("t", "uint8", (None, 7, 9, 9), 0.5, 128),
        Tensor("y", "uint8", (None, 7, 9), 0.5, 3),
    )
    ops = (
        Op("t", "permute", ("x",), {"dims": [0, 3, 2, 1]}),
        Op("y", "mean", ("t",), {"dims": [3], "keepdim": False, "a": 911, "b": 8191, "lo": 0, "hi": 255}),
    )
    return Program({t.name: t for t in tensors}, ops, ("x",), ("y",))


def test_a_mean_behind_a_permutation_runs() -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 7)).astype(np.uint8)
    program = _mean()
    (want,) = ReferenceEngine().prepare(program)({"x": x})
    np.testing.assert_array_equal(ENGINE.prepare(program)({"x": x})[0], want)


def test_what_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def pooled(model: Any) -> list[Node]:
        return [replace(n, kind="Pooling") if n.kind == "Reduce" else n for n in execution_graph.executed(model)]

    monkeypatch.setattr(infer_requests, "executed", pooled)
    with pytest.raises(EngineError, match="y: OpenVINO executes this mean in a way that is not proved"):
        ENGINE.prepare(_mean())
