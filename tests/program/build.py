"""Small programs built by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.program import Program


def scale(value: float) -> float:
    """The nearest float32."""
    return float(np.float32(value))


def q(name: str, *shape: int | None, s: float = 0.05, z: int = 100) -> Tensor:
    """A quantized tensor."""
    return Tensor(name, "uint8", shape, scale(s), z)


def affine_arrays(*shape: int, outputs: int | None = None, seed: int = 0, a: int = 5, b: int = 1001) -> dict[str, Any]:
    """Weight, bias and multipliers of a conv or linear."""
    rng = np.random.default_rng(seed)
    n = shape[0] if outputs is None else outputs
    return {
        "weight": rng.integers(-60, 61, shape).astype(np.int8),
        "bias": rng.integers(-500, 500, n).astype(np.int32),
        "a": np.full(n, a, np.int32),
        "b": np.full(n, b, np.int32),
    }


def conv_attrs(rank: int = 2, padding: int = 1, groups: int = 1, residual_a: int = 0, **more: Any) -> dict[str, Any]:
    """Attributes of a conv."""
    ones = [1] * rank
    attrs = {"stride": ones, "padding": [padding] * rank, "dilation": ones, "output_padding": [0] * rank}
    return {**attrs, "groups": groups, "transposed": False, "lo": 0, "hi": 255, "residual_a": residual_a, **more}


POOL = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}


def network() -> Program:
    """Every integer kind and some float ones: two inputs, nested outputs, dynamic batch. Not certified."""
    table = np.minimum(np.arange(256)[::-1], 200).astype(np.uint8)
    multipliers = [[4, 251, 1003], [6, 167, 1003], [9, 111, 1001]]
    clamp = {"lo": 0, "hi": 255}
    steps: list[tuple[Op, Tensor]] = [
        (Op("xq", "quantize", ("x",), dict(clamp)), q("xq", None, 3, 8, 8, z=128)),
        (
            Op("net.c1", "conv", ("xq",), conv_attrs(lo=100), affine_arrays(4, 3, 3, 3), "net", ("c1", "bn1", "relu")),
            q("net.c1", None, 4, 8, 8),
        ),
        (
            Op(
                "net.c2",
                "conv",
                ("net.c1", "net.c1"),
                conv_attrs(groups=4, residual_a=700),
                affine_arrays(4, 1, 3, 3, seed=1),
            ),
            q("net.c2", None, 4, 8, 8, z=90),
        ),
        (
            Op(
                "leaky",
                "conv",
                ("net.c2",),
                conv_attrs(padding=0),
                affine_arrays(4, 4, 1, 1, seed=2)
                | {"a_neg": np.full(4, 1, np.int32), "b_neg": np.full(4, 1001, np.int32)},
            ),
            q("leaky", None, 4, 8, 8),
        ),
        (Op("table", "table", ("leaky",), {"fn": "upside down"}, {"table": table}), q("table", None, 4, 8, 8, z=7)),
        (Op("sum", "add", ("net.c2", "table"), {"a": [601, -302], "b": 1001, **clamp}), q("sum", None, 4, 8, 8)),
        (Op("most", "max_pool", ("sum",), {**POOL, "dilation": [1, 1]}), q("most", None, 4, 4, 4)),
        (
            Op(
                "average",
                "avg_pool",
                ("sum",),
                {**POOL, "count_include_pad": False, "multipliers": multipliers, **clamp},
            ),
            q("average", None, 4, 4, 4),
        ),
        (Op("cat", "cat", ("most", "average"), {"axis": 1}), q("cat", None, 8, 4, 4)),
        (
            Op(
                "adaptive",
                "adaptive_avg_pool",
                ("cat",),
                {"output_size": [2, 1], "multipliers": [[8, 125, 1001]], **clamp},
            ),
            q("adaptive", None, 8, 2, 1),
        ),
        (
            Op("mean", "mean", ("cat",), {"dims": [2, 3], "keepdim": True, "a": 65, "b": 1001, **clamp}),
            q("mean", None, 8, 1, 1),
        ),
        (Op("gate", "mul", ("adaptive", "mean"), {"a": 9, "b": 1001, **clamp}), q("gate", None, 8, 2, 1)),
        (
            Op(
                "up",
                "conv",
                ("gate",),
                conv_attrs(padding=0, transposed=True, stride=[2, 1]),
                affine_arrays(8, 3, 2, 2, outputs=3, seed=3),
            ),
            q("up", None, 3, 4, 2),
        ),
        (Op("flat", "reshape", ("up",), {"shape": [-1, 24]}), q("flat", None, 24)),
        (Op("head", "linear", ("flat",), {**clamp, "residual_a": 0}, affine_arrays(5, 24, seed=4)), q("head", None, 5)),
        (Op("real", "dequantize", ("head",)), Tensor("real", "float32", (None, 5))),
        (Op("shift", "float.add", ("real", "bias")), Tensor("shift", "float32", (None, 5))),
        (
            Op("softmax", "float.softmax", ("shift",), {"axis": 1}, note="no integer form yet"),
            Tensor("softmax", "float32", (None, 5)),
        ),
        (Op("again", "quantize", ("softmax",), dict(clamp)), q("again", None, 5, s=1 / 256, z=0)),
        (
            Op("part", "slice", ("again",), {"axis": 1, "start": 1, "end": 5, "step": 2}),
            q("part", None, 2, s=1 / 256, z=0),
        ),
        (Op("parted", "dequantize", ("part",)), Tensor("parted", "float32", (None, 2))),
    ]
    inputs = [Tensor("x", "float32", (None, 3, 8, 8)), Tensor("bias", "float32", (None, 5))]
    return Program(
        tensors={t.name: t for t in [*inputs, *(t for _, t in steps)]},
        ops=tuple(op for op, _ in steps),
        inputs=("x", "bias"),
        outputs=("softmax", "parted"),
        structure={"dict": {"probabilities": 0, "rest": {"tuple": [1, {"none": True}, {"list": [0]}]}}},
        recipe="portable = true\n",
        provenance={"intact8": "0", "created": "today"},
    )


def certified() -> Program:
    """:func:`network`, certified."""
    return certify(network())


def data(batch: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of :func:`network`."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(0, 3, (batch, 3, 8, 8)).astype(np.float32),
        rng.normal(0, 1, (batch, 5)).astype(np.float32),
    )


def with_op(program: Program, name: str, **changes: Any) -> Program:
    """``program`` with fields of one op replaced; dicts are merged, None removes a key."""
    ops = []
    for op in program.ops:
        if op.name == name:
            merged = {}
            for key, value in changes.items():
                old = getattr(op, key)
                if isinstance(value, dict) and isinstance(old, dict):
                    value = {k: v for k, v in {**old, **value}.items() if v is not None}
                merged[key] = value
            op = replace(op, **merged)
        ops.append(op)
    return replace(program, ops=tuple(ops))


def with_tensor(program: Program, which: str, **changes: Any) -> Program:
    """``program`` with fields of one tensor replaced."""
    return replace(program, tensors={**program.tensors, which: replace(program.tensors[which], **changes)})
