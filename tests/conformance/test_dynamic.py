"""Dynamic linear layers: the same float32 bits on every engine, on random shapes, and on lesser CPUs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intact8.engines import engine_status, get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program

STATUS = engine_status()
ENGINES = [name for name in ("native", "onednn", "onnxruntime") if STATUS[name] is None]
KINDS = ("ordinary", "wide", "huge", "subnormal", "ties", "same sign")


def draw(rng: np.random.Generator, shape: tuple[int, ...], outputs: int, kind: str, granularity: str) -> int:
    """Compare every engine with the reference; how many results were compared."""
    width = shape[-1]
    weight = rng.integers(-64, 65, (outputs, width)).astype(np.int8)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "wide":
        x *= 10.0 ** rng.uniform(-25, 25, (*shape[:-1], 1)).astype(np.float32)
    elif kind == "huge":
        x = np.clip(x, -1, 1) * np.float32(3e38)
    elif kind == "subnormal":
        x *= np.float32(2.0**-138)
    elif kind == "ties":
        x = (rng.integers(-253, 254, shape) / 2).astype(np.float32)
        x[..., 0] = 127
    elif kind == "same sign":  # sums beyond 2²⁴ in long rows
        x, weight = np.abs(x), np.abs(weight)
    arrays = {"weight": weight, "scale": rng.uniform(1e-4, 1e-2, outputs).astype(np.float32)}
    if rng.integers(2):
        arrays["bias"] = rng.standard_normal(outputs).astype(np.float32)
    dims = (None, *shape[1:])
    tensors = {"x": Tensor("x", "float32", dims), "y": Tensor("y", "float32", (*dims[:-1], outputs))}
    op = Op("y", "dynamic_linear", ("x",), {"granularity": granularity}, arrays)
    program = certify(Program(tensors, (op,), ("x",), ("y",)))
    check(program)
    assert program.needs == ()
    (want,) = ReferenceEngine().prepare(program)({"x": x})
    for engine in ENGINES:
        runner = get_engine(engine).prepare(program, threads=1)
        for got in (runner({"x": x})[0], runner.tensors({"x": x})["y"]):
            unequal = int((got.view(np.int32) != want.view(np.int32)).sum())
            assert unequal == 0, (
                f"{engine}: {unequal} of {want.size} differ, {shape} → {outputs}, {kind}, {granularity}"
            )
    return want.size


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    rows=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    width=st.one_of(st.integers(1, 70), st.sampled_from([1041, 2048])),
    outputs=st.integers(1, 40),
    kind=st.sampled_from(KINDS),
    granularity=st.sampled_from(["per_row", "per_tensor"]),
)
def test_bits(seed: int, rows: list[int], width: int, outputs: int, kind: str, granularity: str) -> None:
    draw(np.random.default_rng(seed), (*rows, width), outputs, kind, granularity)
