"""Softmax, norms and embeddings of integers in a program: what the checker accepts and refuses, and the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact8.arithmetic.softmax import softmax_table
from intact8.errors import ProgramError
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify, uncertified
from intact8.program.check import check
from intact8.program.program import Program

from .build import q

CLAMP = {"lo": 0, "hi": 255}


def softmax() -> tuple[Op, list[Tensor]]:
    arrays = {"table": softmax_table(0.1)}
    op = Op("y", "softmax", ("x", "m"), {"axis": 2, "levels": 255.0, **CLAMP}, arrays)
    return op, [q("x", None, 4, 6), Tensor("m", "bool", (None, 1, 6)), q("y", None, 4, 6)]


def norm(kind: str) -> tuple[Op, list[Tensor]]:
    arrays = {"gain": np.ones(6, np.float32), "offset": np.zeros(6, np.float32)}
    op = Op("y", kind, ("x",), {"shape": [6], "eps": 0.5, **CLAMP}, arrays)
    return op, [q("x", None, 4, 6), q("y", None, 4, 6)]


def embedding() -> tuple[Op, list[Tensor]]:
    op = Op("y", "embedding", ("x",), {}, {"weight": np.zeros((9, 6), np.uint8)})
    return op, [Tensor("x", "int64", (None, 4)), q("y", None, 4, 6)]


def program(op: Op, tensors: list[Tensor]) -> Program:
    return Program({t.name: t for t in tensors}, (op,), op.inputs, ("y",))


MADE: dict[str, Callable[[], tuple[Op, list[Tensor]]]] = {
    "softmax": softmax,
    "layer_norm": lambda: norm("layer_norm"),
    "rms_norm": lambda: norm("rms_norm"),
    "embedding": embedding,
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_right_is_certified_and_saved(kind: str, tmp_path: Path) -> None:
    made = program(*MADE[kind]())
    check(made)
    certified = certify(made, ("reference", "onednn", "onnxruntime"))
    assert uncertified(certified) == []
    back = Program.load(certified.save(tmp_path / "p.safetensors"))
    assert back.ops[0].attrs == made.ops[0].attrs
    for role, array in made.ops[0].arrays.items():
        np.testing.assert_array_equal(back.ops[0].arrays[role], array)


def changed(op: Op, **attrs: Any) -> Op:
    return replace(op, attrs={**op.attrs, **attrs})


def put(op: Op, **arrays: Any) -> Op:
    return replace(op, arrays={**op.arrays, **arrays})


WRONG: dict[str, tuple[str, Callable[[Op], Op], str]] = {
    "levels 0": ("softmax", lambda op: changed(op, levels=0.0), "levels must be a positive float32"),
    "levels no float32": ("softmax", lambda op: changed(op, levels=0.1), "levels must be a positive float32"),
    "axis": ("softmax", lambda op: changed(op, axis=3), "does not fit shape"),
    "rising table": ("softmax", lambda op: put(op, table=softmax_table(0.1)[::-1].copy()), "does not fall"),
    "negative table": ("softmax", lambda op: put(op, table=softmax_table(0.1) - 5), "does not fall"),
    "large table": ("softmax", lambda op: put(op, table=softmax_table(0.1) * 2), "does not fall"),
    "short table": ("softmax", lambda op: put(op, table=softmax_table(0.1)[:9]), "not (256,)"),
    "eps 0": ("layer_norm", lambda op: changed(op, eps=0.0), "eps must be a number within"),
    "eps inf": ("rms_norm", lambda op: changed(op, eps=float("inf")), "eps must be a number within"),
    "other shape": ("layer_norm", lambda op: changed(op, shape=[5]), "does not end in"),
    "nan": ("rms_norm", lambda op: put(op, gain=np.full(6, np.nan, np.float32)), "gain holds nan at index (0,)"),
    "float rows": ("embedding", lambda op: put(op, weight=np.zeros((9, 6), np.float32)), "dtype"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(case: str) -> None:
    kind, breaker, reason = WRONG[case]
    op, tensors = MADE[kind]()
    with pytest.raises(ProgramError) as caught:
        check(program(breaker(op), tensors))
    assert reason in caught.value.what


def test_inputs_are_of_the_right_kind() -> None:
    op, (x, m, y) = softmax()
    for tensors, reason in (
        ([x, replace(m, dtype="int64"), y], r"takes \(quantized, bool\) → quantized and not \(quantized, int64\)"),
        ([x, replace(m, shape=(None, 3, 6)), y], "do not broadcast"),
        ([Tensor("x", "float32", x.shape), m, y], r"not \(float32, bool\)"),
    ):
        with pytest.raises(ProgramError, match=reason):
            check(program(op, tensors))
    op, (index, rows) = embedding()
    with pytest.raises(ProgramError, match=r"takes \(int64\) → quantized and not \(float32\)"):
        check(program(op, [replace(index, dtype="float32"), rows]))
