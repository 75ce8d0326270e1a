"""The onednn engine as a whole: several ops, memory, batches, threads, errors, CPUs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.conformance.networks import Network

from intact8.arithmetic import integer
from intact8.engines import cpu
from intact8.engines.image_layout import read_as_images
from intact8.engines.onednn import OnednnEngine
from intact8.engines.onednn.merge_linear import merge_linear
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

ENGINE = OnednnEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))
Array = npt.NDArray[Any]


def block(seed: int = 0) -> Program:
    """quantize → conv 3×3 (relu) → conv 1×1 + residual (relu), which is read again → dequantize."""
    rng = np.random.default_rng(seed)
    shape = (None, 8, 9, 7)
    names = {"x": None, "q": 3, "c1": 0, "c2": 100, "sum": 50}
    tensors = {n: Tensor(n, "uint8", shape, 0.1, z) for n, z in names.items() if z is not None}
    tensors = {"x": Tensor("x", "float32", shape)} | tensors | {"y": Tensor("y", "float32", shape)}
    ones = np.ones(8, np.int32)

    def conv(name: str, inputs: tuple[str, ...], k: int, z: int, residual: int) -> Op:
        w = rng.integers(-60, 61, (8, 8, k, k), dtype=np.int8)
        geometry = {"stride": [1, 1], "padding": [k // 2] * 2, "dilation": [1, 1], "output_padding": [0, 0]}
        attrs = geometry | {"groups": 1, "transposed": False, "lo": z, "hi": 255, "residual_a": residual}
        return Op(name, "conv", inputs, attrs, {"weight": w, "bias": ones, "a": ones * 7, "b": ones * 1999})

    ops = (
        Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),
        conv("c1", ("q",), 3, 0, 0),
        conv("c2", ("c1", "q"), 1, 100, 1500),
        Op("sum", "add", ("c2", "q"), {"a": [501, 333], "b": 1001, "lo": 0, "hi": 255}),
        Op("y", "dequantize", ("sum",)),
    )
    return Program(tensors, ops, ("x",), ("y",))


def ideal(program: Program, x: Array) -> dict[str, Array]:
    """Every tensor of :func:`block`, by exact integers."""
    _, c1, c2, total, _ = program.ops
    z = {n: t.zero_point for n, t in program.tensors.items()}
    s = np.float32(0.1)
    q = np.clip(np.rint(x / s) + np.float32(3), 0, 255).astype(np.uint8)

    def conv(op: Op, v: Array, zero: int, **more: Any) -> Array:
        g = op.attrs
        acc = integer.conv_accumulate(
            v, zero, op.arrays["weight"], op.arrays["bias"], g["stride"], g["padding"], g["dilation"], 1
        )
        return integer.requantize(acc, op.arrays["a"], op.arrays["b"], z[op.name], g["lo"], g["hi"], 1, **more)

    a = conv(c1, q, 3)
    b = conv(c2, a, 0, residual=q.astype(np.int64) - 3, residual_a=1500)
    t = integer.add([b, q], [100, 3], total.attrs["a"], 1001, 50)
    return {"x": x, "q": q, "c1": a, "c2": b, "sum": t, "y": (t.astype(np.float32) - 50) * s}


def images(batch: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(5, 6, (batch, 8, 9, 7)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_every_tensor_is_ideal_at_any_batch_size(batch: int) -> None:
    program, x = block(), images(batch)
    expected = ideal(program, x)
    got = ENGINE.prepare(program).tensors({"x": x})
    assert list(got) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
        assert got[name].flags.c_contiguous


def test_calls_leave_inputs_and_earlier_outputs_alone() -> None:
    runner, x, other = ENGINE.prepare(block()), images(2), images(2, seed=9)
    before = x.copy()
    (first,) = runner({"x": x})
    kept = first.copy()
    (second,) = runner({"x": other})
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(first, kept)
    assert (first != second).any()


def test_uint8_is_taken_where_the_input_is_only_quantized() -> None:
    program, x = block(), images(3)
    runner, expected = ENGINE.prepare(program), ideal(block(), x)
    np.testing.assert_array_equal(runner({"x": expected["q"]})[0], expected["y"])
    np.testing.assert_array_equal(runner({"x": np.asfortranarray(expected["q"])})[0], expected["y"])


def test_read_only_and_strided_inputs() -> None:
    runner, x = ENGINE.prepare(block()), images(4)
    expected = ideal(block(), x[::-2])["y"]
    frozen = x[::-2].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(runner({"x": x[::-2]})[0], expected)
    np.testing.assert_array_equal(runner({"x": frozen})[0], expected)


def test_many_threads_at_once() -> None:
    runner, inputs = ENGINE.prepare(block()), [images(1 + i % 6, seed=i) for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: runner({"x": x})[0], inputs))
    for x, y in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(y, ideal(block(), x)["y"])


def test_thread_count_is_set_back() -> None:
    before = torch.get_num_threads()
    runner = ENGINE.prepare(block(), threads=before + 1)
    runner({"x": images(1)})
    assert torch.get_num_threads() == before


def test_torch_call_gives_the_same_without_numpy() -> None:
    runner, x = ENGINE.prepare(block()), images(2)
    (y,) = runner.torch_call([torch.from_numpy(x)])
    np.testing.assert_array_equal(y.numpy(), ideal(block(), x)["y"])


def test_fed_tensors_replace_results() -> None:
    program, x = block(), images(2)
    fed = np.full((2, 8, 9, 7), 1.5, np.float32)
    got = ENGINE.prepare(program).tensors({"x": x}, feed={"y": fed})
    np.testing.assert_array_equal(got["y"], fed)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "missing"),
        ({"x": np.zeros((1, 8, 9, 7))}, "float32"),
        ({"x": np.zeros((1, 8, 9, 8), np.float32)}, "shape"),
        ({"x": np.zeros((8, 9, 7), np.float32)}, "shape"),
    ],
    ids=["missing", "float64", "shape", "rank"],
)
def test_wrong_inputs_are_named(inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ENGINE.prepare(block())(inputs)


def test_an_op_without_a_rule_is_refused_by_name() -> None:
    program = block()
    ops = (*program.ops[:-1], replace(program.ops[-1], kind="fourier"))
    with pytest.raises(EngineError, match="y: no rule for kind 'fourier'"):
        ENGINE.prepare(replace(program, ops=ops))


def test_vnni_is_demanded_where_the_program_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "isa", lambda *_: "avx2")
    with pytest.raises(EngineError, match="portable=True"):
        ENGINE.prepare(replace(block(), needs=("vnni",)))
    ENGINE.prepare(block())


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("sse4_1 avx avx2", "ALL", "avx2"),
        ("sse4_1 avx avx2 avx_vnni", "ALL", "avx2_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "ALL", "avx512_core_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "AVX512_CORE", "avx512_core"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni avx_vnni", "avx2_vnni", "avx2_vnni"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni", "AVX2", "avx2"),
        ("sse4_1 avx avx2 avx512bw avx512_vnni", "AVX512_CORE_AMX", "avx512_core_vnni"),
    ],
)
def test_instruction_sets(flags: str, limit: str, expected: str) -> None:
    assert cpu.isa(frozenset(flags.split()), limit) == expected


def projections(seed: int = 0) -> Program:
    """Three linear maps of one tensor, of different widths and zero points, one of them read as it is."""
    rng = np.random.default_rng(seed)
    x = Tensor("x", "uint8", (None, 5, 16), 0.1, 77)
    tensors, ops = {"x": x}, []
    for name, width, z in (("q", 8, 3), ("k", 24, 255), ("v", 8, 120)):
        arrays = {
            "weight": rng.integers(-60, 61, (width, 16), dtype=np.int8), "bias": rng.integers(-900, 900, width),
            "a": rng.integers(3, 9, width), "b": 2 * rng.integers(400, 900, width) + 1,
        }  # fmt: skip
        arrays = {k: v if k == "weight" else v.astype(np.int32) for k, v in arrays.items()}
        tensors[name] = Tensor(name, "uint8", (None, 5, width), 0.1, z)
        ops.append(Op(name, "linear", ("x",), {"lo": 0, "hi": 255, "residual_a": 0}, arrays))
    tensors["sum"] = Tensor("sum", "uint8", (None, 5, 8), 0.1, 9)
    ops.append(Op("sum", "add", ("q", "v"), {"a": [501, 333], "b": 1001, "lo": 0, "hi": 255}))
    return Program(tensors, tuple(ops), ("x",), ("sum", "k"), structure={"list": [0, 1]})


@pytest.mark.parametrize("batch", [1, 3])
def test_linear_maps_of_one_tensor_are_one_product(batch: int) -> None:
    program = projections()
    x = np.random.default_rng(1).integers(0, 256, (batch, 5, 16), dtype=np.uint8)
    wanted = ReferenceEngine().prepare(program).tensors({"x": x})
    runner = ENGINE.prepare(program)
    found = runner.tensors({"x": x})
    assert set(found) == set(wanted) and set(runner.times({"x": x})) == {"q", "k", "v", "sum"}
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    for y, name in zip(runner({"x": x}), program.outputs, strict=True):
        np.testing.assert_array_equal(y, wanted[name])
    # An output keeps memory of its own; the other two share a product.
    merged = merge_linear(program)
    assert [op.kind for op in merged.ops] == ["linear", "slice", "linear", "slice", "add"]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_product_takes_no_name_that_the_program_has(place: int) -> None:
    program = projections()
    own = Op("q + v", "table", ("x",), {"fn": "own"}, {"table": np.arange(256, dtype=np.uint8)[::-1].copy()})
    reader = Op("read", "table", ("q + v",), {"fn": "own"}, dict(own.arrays))
    ops = [*program.ops[:place], own, *program.ops[place:], reader]
    more = {n: Tensor(n, "uint8", (None, 5, 16), 0.1, 3) for n in (own.name, reader.name)}
    program = replace(program, tensors=program.tensors | more, ops=tuple(ops), outputs=(*program.outputs, "read"))
    x = np.random.default_rng(1).integers(0, 256, (2, 5, 16), dtype=np.uint8)
    runner = ENGINE.prepare(program)
    for y, wanted in zip(runner({"x": x}), ReferenceEngine().prepare(program)({"x": x}), strict=True):
        np.testing.assert_array_equal(y, wanted)
    assert set(runner.tensors({"x": x})) == set(program.tensors)


@pytest.mark.parametrize("fed", [np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float64)], ids=["shape", "dtype"])
def test_what_is_fed_is_what_an_operation_gives(fed: Array) -> None:
    tensors = {n: Tensor(n, "float32", (None, 4)) for n in ("x", "y", "z")}
    norm = Op("z", "float.layer_norm", ("y",), {"shape": [4], "eps": 1e-5})
    program = Program(tensors, (Op("y", "float.relu", ("x",)), norm), ("x",), ("z",))
    with pytest.raises(InputError, match="y: fed"):
        ENGINE.prepare(program).tensors({"x": np.zeros((2, 4), np.float32)}, {"y": fed})


@pytest.mark.parametrize("size", [1, 63, 200, 5000])
@pytest.mark.parametrize("offset", [0, 1])
def test_tables_are_looked_up(size: int, offset: int) -> None:
    table = np.random.default_rng(0).permutation(256).astype(np.uint8)
    tensors = {n: Tensor(n, "uint8", (None, size), 0.1, 3) for n in ("x", "y")}
    program = Program(tensors, (Op("y", "table", ("x",), {"fn": "any"}, {"table": table}),), ("x",), ("y",))
    whole = torch.randint(0, 256, (size + 1,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = whole[offset : offset + size].view(1, size)
    (y,) = ENGINE.prepare(program).torch_call([x])
    assert torch.equal(y, torch.from_numpy(table)[x.long()])


def test_only_images_are_turned() -> None:
    """A linear map reads rows: sequences with channels last would be copied twice."""
    assert read_as_images(block()) == {"q", "c1"}
    assert read_as_images(projections()) == set()


def depthwise_network() -> tuple[Program, Array]:
    """A convolution of few channels, a depthwise one that strides, one that does not, and a leaky one."""
    net = Network(np.random.default_rng(3))
    net.start((3, 3, 19, 23))
    x = net.conv(net.conv("x", 24, 3, stride=2), 24, 3, groups=24)
    x = net.conv(net.conv(x, 24, 5, stride=2, groups=24), 24, 3, groups=24, leaky=True)
    return net.program((x,)), net.exact["x"]


@pytest.mark.parametrize("threads", [1, 3])
def test_convolutions_in_any_layout(threads: int) -> None:
    program, x = depthwise_network()
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    want = ReferenceEngine().prepare(program).tensors({"x": x})
    runner = ENGINE.prepare(program, threads=threads)
    for given in (x, last, x[:1], np.concatenate([x] * 5)):
        found = runner({"x": given})[0]
        np.testing.assert_array_equal(found[: len(x)], want[program.outputs[0]][: len(found)])
    for name, got in runner.tensors({"x": x}).items():
        np.testing.assert_array_equal(got, want[name])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_float_convolution_that_sees_padding_only(batch: int) -> None:
    """torch's own call of it reads address 0 where channels lie last."""
    shapes = {"x": (None, 9, 3, 4), "moved": (None, 4, 9, 3), "column": (None, 4, 9, 1), "y": (None, 4, 13, 3)}
    tensors = {name: Tensor(name, "float32", shape) for name, shape in shapes.items()}
    attrs = {"stride": [1, 2], "padding": [2, 3], "dilation": [2, 2], "output_padding": [0, 0], "groups": 1}
    weight = {"weight": np.ones((4, 4, 1, 2), np.float32), "bias": np.ones(4, np.float32)}
    ops = (
        Op("moved", "permute", ("x",), {"dims": [0, 3, 1, 2]}),
        Op("column", "slice", ("moved",), {"axis": 3, "start": 2, "end": 3, "step": 1}),
        Op("y", "float.conv", ("column",), attrs | {"transposed": False}, weight),
    )
    program, x = Program(tensors, ops, ("x",), ("y",)), np.ones((batch, 9, 3, 4), np.float32)
    (y,), (wanted,) = (engine.prepare(program)({"x": x}) for engine in (ENGINE, ReferenceEngine()))
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_outputs_share_no_memory() -> None:
    program = block()
    moved = replace(program.tensors["y"], name="moved", shape=(None, 7, 9, 8))
    op = Op("moved", "permute", ("y",), {"dims": [0, 3, 2, 1]})
    program = replace(program, tensors={**program.tensors, "moved": moved}, ops=(*program.ops, op),
                      outputs=("y", "y", "moved"), structure={"list": [0, 1, 2]})  # fmt: skip
    runner = ENGINE.prepare(program)
    for _ in range(2):  # when the plan is made, and later
        y = runner({"x": np.zeros((2, 8, 9, 7), np.float32)})
        assert not any(np.shares_memory(y[i], y[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
