"""One rule for every engine: what a certificate leaves out, and what cannot be proved there, is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact8.engines import available_engines
from intact8.errors import EngineError
from intact8.opset.op import Op, Tensor
from intact8.program.certify import ENGINES, by_claim, certify, claim_error
from intact8.program.check import check
from intact8.program.program import Program
from intact8.verification import verify

HERE = pytest.mark.skipif("openvino" not in available_engines(), reason="the openvino engine cannot run here")


def three_terms(engines: tuple[str, ...] = ENGINES) -> Program:
    """A sum of three tensors, which OpenVINO's formula has no bound for."""
    tensors = {n: Tensor(n, "uint8", (None, 4), 1 / 16, 100) for n in ("x", "v", "w", "y")}
    op = Op("y", "add", ("x", "v", "w"), {"a": [3, 5, 7], "b": 19, "lo": 0, "hi": 255})
    program = Program(tensors, (op,), ("x", "v", "w"), ("y",))
    check(program)
    return certify(program, engines)


X = [np.arange(8, dtype=np.uint8).reshape(2, 4)] * 3


def test_who_is_refused() -> None:
    for program in (three_terms(), three_terms(("reference",))):
        error = claim_error(program, "openvino")
        assert error is not None and error.where == "y" and "engine='auto'" in error.remedy
        # Not asked about is not left out: these are proved when they are asked for.
        assert all(claim_error(program, name) is None for name in ("reference", "onednn", "onnxruntime", "theirs"))
    bare = three_terms()
    assert claim_error(replace(bare, ops=(replace(bare.ops[0], certificate=None),)), "openvino") is None


@HERE
def test_every_way_to_run_refuses() -> None:
    program = three_terms()
    with pytest.raises(EngineError, match="y: openvino is not proved to give the integers of this add"):
        program.run(*X, engine="openvino")
    assert "openvino" not in available_engines(program) and "reference" in available_engines(program)
    np.testing.assert_array_equal(program.run(*X), program.run(*X, engine="reference"))
    report = verify(program, tuple(X), engines=("openvino",))
    assert not report.exact and "is not proved" in report.refused["openvino"] and not report.by_engine


@pytest.mark.parametrize(("dtype", "groups"), [("int64", ((), ("reference",), ("openvino",))), ("float32", None)])
def test_engines_that_may_refuse_an_input_come_last(dtype: str, groups: tuple[tuple[str, ...], ...] | None) -> None:
    tensors = {"x": Tensor("x", dtype, (None, 4)), "y": Tensor("y", dtype, (None, 4))}
    program = Program(tensors, (Op("y", "roll", ("x",), {"shifts": [1], "dims": [1]}),), ("x",), ("y",))
    found = by_claim(program, ("openvino", "reference"))
    assert found == (((), *groups) if groups else (("openvino",), (), ("reference",), ()))
