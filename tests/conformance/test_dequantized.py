"""Convolutions and linear layers with float32 results: the same bits on every engine that claims them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intact8.engines import engine_status, get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Tensor
from intact8.program.certify import certify, unclaimed
from intact8.program.program import Program

from .build import draw as draw_case
from .suite import wide

STATUS = engine_status()
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(STATUS[name] is not None, reason=str(STATUS[name])))
    for name in ("native", "onednn", "onnxruntime")
]


def draw(rng: np.random.Generator, all_weights: bool) -> tuple[Program, dict[str, np.ndarray]]:
    """One such layer, certified, and its inputs."""
    case = draw_case("conv" if rng.random() < 0.75 else "linear", rng, all_weights)
    *before, last = case.program.ops
    weight, outputs = last.arrays["weight"], len(last.arrays["bias"])
    arrays = {"weight": weight, "scale": (rng.random(outputs) * 10.0 ** rng.integers(-6, 1) + 1e-9).astype(np.float32)}
    if rng.random() < 0.7:
        arrays["bias"] = rng.standard_normal(outputs).astype(np.float32)
    attrs = {k: v for k, v in last.attrs.items() if k not in ("lo", "hi", "residual_a")}
    op = replace(last, kind=f"dequantized_{last.kind}", inputs=last.inputs[:1], attrs=attrs, arrays=arrays)
    tensors = dict(case.program.tensors) | {"y": Tensor("y", "float32", case.program.tensors["y"].shape)}
    inputs = tuple(n for n in case.program.inputs if n == op.inputs[0].removesuffix(".table"))
    ops = (*(o for o in before if o.name == op.inputs[0]), op)
    tensors = {n: tensors[n] for n in (*inputs, *(o.name for o in ops))}
    return Program(tensors, ops, inputs, ("y",), structure=0), {n: case.inputs[n] for n in inputs}


@pytest.mark.parametrize("engine", ENGINES)
def test_bits(engine: str) -> None:
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**63))
    def check(seed: int) -> None:
        program, inputs = draw(np.random.default_rng(seed), wide(engine))
        program = certify(program, ("reference", engine))
        assert unclaimed(program, engine) is None
        (want,) = ReferenceEngine().prepare(program)(inputs)
        runner = get_engine(engine).prepare(program, threads=1 + seed % 2)
        for got in (runner(inputs)[0], runner.tensors(inputs)["y"]):
            differ = int((got.view(np.int32) != want.view(np.int32)).sum())
            assert not differ, f"{differ} of {want.size}: {program.ops[-1]}"

    check()
