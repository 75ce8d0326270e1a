"""Dynamic layers and decoded weights on every engine: the reference's float32 results, bit for bit."""

import numpy as np
import pytest
from tests.arithmetic.test_dynamic import KINDS, rows

from intact8.arithmetic import bit_packing as codes
from intact8.engines import get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINES = ("onednn", "onnxruntime")


def layers(rng, width, outputs, granularity="per_row", top=63):
    """Three layers that read one tensor, and a fourth behind a reshape."""
    tensors = {"x": Tensor("x", "float32", (None, 3, width))}
    ops = []
    for i, count in enumerate(outputs):
        arrays = {
            "weight": rng.integers(-top, top + 1, (count, width)).astype(np.int8),
            "scale": rng.uniform(1e-3, 1e-2, count).astype(np.float32),
        }
        if i:
            arrays["bias"] = rng.standard_normal(count).astype(np.float32)
        ops.append(Op(f"y{i}", "dynamic_linear", ("x",), {"granularity": granularity}, arrays))
        tensors[f"y{i}"] = Tensor(f"y{i}", "float32", (None, 3, count))
    flat = Tensor("flat", "float32", (None, 3 * width))
    weight = rng.integers(-top, top + 1, (4, 3 * width)).astype(np.int8)
    tensors |= {"flat": flat, "z": Tensor("z", "float32", (None, 4))}
    ops.append(Op("flat", "reshape", ("x",), {"shape": [-1, 3 * width]}))
    arrays = {"weight": weight, "scale": np.full(4, 0.01, np.float32)}
    ops.append(Op("z", "dynamic_linear", ("flat",), {"granularity": granularity}, arrays))
    names = tuple(f"y{i}" for i in range(len(outputs)))
    program = Program(tensors, tuple(ops), ("x",), (*names, "z"))
    check(program)
    return program


def bits(a):
    return np.where(np.isnan(a), np.float32(np.nan), a).view(np.int32)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("granularity", ["per_row", "per_tensor"])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_layers_that_share_their_rows(kind, granularity, engine):
    rng = np.random.default_rng(0)
    program = layers(rng, 40, (5, 16, 33), granularity)
    runner = get_engine(engine).prepare(program, threads=1)
    for batch in (1, 4):
        x = rows(rng, (batch, 3, 40), kind)
        want = ReferenceEngine().prepare(program).tensors({"x": x})
        given = runner.tensors({"x": x})
        for name, result in zip(program.outputs, runner({"x": x}), strict=True):
            np.testing.assert_array_equal(bits(result), bits(want[name]))
            np.testing.assert_array_equal(bits(given[name]), bits(want[name]))


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_beyond_float32_are_rounded_once(engine):
    rng = np.random.default_rng(1)
    program = layers(rng, 2500, (8,))
    for op in program.ops:
        if "weight" in op.arrays:
            op.arrays["weight"][:] = np.abs(op.arrays["weight"]) | 1
    x = rng.uniform(0.5, 1, (2, 3, 2500)).astype(np.float32)
    want = ReferenceEngine().prepare(program)({"x": x})
    for result, expected in zip(get_engine(engine).prepare(program, threads=1)({"x": x}), want, strict=True):
        np.testing.assert_array_equal(bits(result), bits(expected))


# ONNX Runtime's ReduceMax leaves NaN out, so that it marks no such row.
@pytest.mark.parametrize(("bad", "engine"), [(np.nan, "onednn"), (np.inf, "onednn"), (np.inf, "onnxruntime")], ids=str)
def test_rows_that_are_not_finite_spoil_no_others(bad, engine):
    rng = np.random.default_rng(2)
    program = layers(rng, 16, (4,))
    x = rng.standard_normal((2, 3, 16)).astype(np.float32)
    x[0, 1, 5] = bad
    want = ReferenceEngine().prepare(program)({"x": x})
    for result, expected in zip(get_engine(engine).prepare(program, threads=1)({"x": x}), want, strict=True):
        np.testing.assert_array_equal(bits(result), bits(expected))
    assert np.isnan(want[0][0, 1]).all() and np.isfinite(want[0][1]).all()


@pytest.mark.parametrize("optimized", [False, True], ids=["as written", "optimized"])
def test_no_optimization_of_onnx_runtime_changes_a_bit(optimized):
    import onnxruntime

    from intact8.export.onnx import export_onnx

    rng = np.random.default_rng(3)
    program = layers(rng, 64, (32, 48))
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(export_onnx(program).SerializeToString(), options, ["CPUExecutionProvider"])
    x = rng.standard_normal((5, 3, 64)).astype(np.float32)
    want = ReferenceEngine().prepare(program)({"x": x})
    for result, expected in zip(session.run(list(program.outputs), {"x": x}), want, strict=True):
        np.testing.assert_array_equal(bits(result), bits(expected))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("number", "group"), [(8, 0), (8, 5), (4, 0), (4, 3)])
def test_decoded_rows_and_weights(number, group, engine):
    rng = np.random.default_rng(4)
    top, attrs = (7 if number == 4 else 127), {"bits": number, "columns": 13, "group": group}

    def arrays(count):
        scale = rng.uniform(0.1, 1, (count, codes.group_count(13, group))).astype(np.float32)
        return {"weight": codes.pack(rng.integers(-top, top + 1, (count, 13)), number), "scale": scale}

    tensors = {
        "i": Tensor("i", "int64", (None, 2)),
        "e": Tensor("e", "float32", (None, 2, 13)),
        "y": Tensor("y", "float32", (None, 2, 6)),
    }
    ops = (
        Op("e", "decoded_embedding", ("i",), attrs, arrays(20)),
        Op("y", "float.decoded_linear", ("e",), attrs, arrays(6) | {"bias": np.ones(6, np.float32)}),
    )
    program = Program(tensors, ops, ("i",), ("e", "y"))
    check(program)
    index = rng.integers(0, 20, (3, 2))
    want, result = (get_engine(name).prepare(program)({"i": index}) for name in ("reference", engine))
    np.testing.assert_array_equal(bits(result[0]), bits(want[0]))
    np.testing.assert_allclose(result[1], want[1], rtol=1e-5, atol=1e-5)
