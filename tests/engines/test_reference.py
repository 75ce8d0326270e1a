"""The reference engine: every op of a small network against plain integer arithmetic and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.program.build import certified, data, network, q

from intact8.engines import get_engine
from intact8.engines.reference import ReferenceEngine, evaluate
from intact8.errors import EngineError
from intact8.opset.op import Array, Op, Tensor
from intact8.program.program import Program


def run(program: Program, **inputs: Array) -> dict[str, Array]:
    return ReferenceEngine().prepare(program).tensors(inputs)


@pytest.fixture(scope="module")
def values() -> dict[str, Array]:
    x, bias = data()
    return run(certified(), x=x, bias=bias)


def op(name: str) -> Op:
    return next(o for o in network().ops if o.name == name)


def ideal(sums: Array, m: Array | float, z: int, lo: int = 0, hi: int = 255) -> Array:
    """Rounded in float64, which is exact here: with odd denominators no value is near a tie."""
    return np.clip(np.floor(sums * m + 0.5) + z, lo, hi)


def conv(name: str, x: Array, z: int, **options: object) -> Array:
    p = op(name).arrays
    weight, bias = torch.from_numpy(p["weight"]).double(), torch.from_numpy(p["bias"]).double()
    function = F.conv_transpose2d if op(name).attrs["transposed"] else F.conv2d
    return function(torch.from_numpy(x).double() - z, weight, bias, **options).numpy()


def test_tensors_have_the_declared_shapes_and_dtypes(values: dict[str, Array]) -> None:
    program = certified()
    assert list(values) == list(program.tensors)
    for name, t in program.tensors.items():
        assert values[name].shape == tuple(3 if d is None else d for d in t.shape), name
        assert str(values[name].dtype) == t.dtype, name


def test_something_happens(values: dict[str, Array]) -> None:
    """Equality tests on saturated tensors would prove nothing."""
    for name in certified().integer_tensors():
        assert len(np.unique(values[name])) > 4, name


def test_quantize_divides(values: dict[str, Array]) -> None:
    x, _ = data()
    want = torch.clamp(torch.round(torch.from_numpy(x) / torch.tensor(0.05)) + 128, 0, 255)
    np.testing.assert_array_equal(values["xq"], want.numpy())


def test_convolutions(values: dict[str, Array]) -> None:
    acc = conv("net.c1", values["xq"], 128, padding=1)
    np.testing.assert_array_equal(values["net.c1"], ideal(acc, 5 / 1001, 100, 100))
    acc = conv("net.c2", values["net.c1"], 100, padding=1, groups=4) * 5 + 700.0 * (values["net.c1"].astype(int) - 100)
    np.testing.assert_array_equal(values["net.c2"], ideal(acc, 1 / 1001, 90))
    acc = conv("leaky", values["net.c2"], 90)
    assert (acc < 0).any() and (acc > 0).any()
    np.testing.assert_array_equal(values["leaky"], ideal(acc, np.where(acc < 0, 1, 5) / 1001, 100))
    acc = conv("up", values["gate"], 100, stride=(2, 1))
    np.testing.assert_array_equal(values["up"], ideal(acc, 5 / 1001, 100))


def test_linear_and_pointwise(values: dict[str, Array]) -> None:
    p = op("head").arrays
    acc = (values["flat"].astype(int) - 100) @ p["weight"].T.astype(int) + p["bias"]
    np.testing.assert_array_equal(values["head"], ideal(acc, 5 / 1001, 100))
    total = (values["net.c2"].astype(int) - 90) * 601 - (values["table"].astype(int) - 7) * 302
    np.testing.assert_array_equal(values["sum"], ideal(total, 1 / 1001, 100))
    product = (values["adaptive"].astype(int) - 100) * (values["mean"].astype(int) - 100)
    np.testing.assert_array_equal(values["gate"], ideal(product, 9 / 1001, 100))
    np.testing.assert_array_equal(values["table"], op("table").arrays["table"][values["leaky"]])


def test_pools_and_moves(values: dict[str, Array]) -> None:
    s = torch.from_numpy(values["sum"]).double()
    np.testing.assert_array_equal(values["most"], F.max_pool2d(s, 3, 2, 1).numpy())
    counts = F.avg_pool2d(torch.ones_like(s), 3, 2, 1, divisor_override=1).numpy()
    sums = F.avg_pool2d(s - 100, 3, 2, 1, divisor_override=1).numpy()
    m = np.select([counts == 4, counts == 6, counts == 9], [251 / 1003, 167 / 1003, 111 / 1001])
    np.testing.assert_array_equal(values["average"], ideal(sums, m, 100))
    np.testing.assert_array_equal(values["cat"], np.concatenate([values["most"], values["average"]], 1))
    c = values["cat"].astype(int) - 100
    np.testing.assert_array_equal(values["adaptive"], ideal(c.reshape(3, 8, 2, 8).sum(-1)[..., None], 125 / 1001, 100))
    np.testing.assert_array_equal(values["mean"], ideal(c.sum((2, 3), keepdims=True), 65 / 1001, 100))
    np.testing.assert_array_equal(values["flat"], values["up"].reshape(3, 24))
    np.testing.assert_array_equal(values["part"], values["again"][:, 1:5:2])


def test_island(values: dict[str, Array]) -> None:
    want = (values["head"].astype(np.float32) - 100) * np.float32(0.05)
    np.testing.assert_array_equal(values["real"], want)
    probabilities = torch.softmax(torch.from_numpy(values["shift"]), 1).numpy()
    np.testing.assert_allclose(values["softmax"], probabilities, rtol=1e-5)


def test_feed_replaces_float_ops_only() -> None:
    x, bias = data()
    runner = get_engine("reference").prepare(certified())
    fed = np.full((3, 5), 0.5, np.float32)
    got = runner.tensors({"x": x, "bias": bias}, {"softmax": fed, "head": np.zeros((3, 5), np.uint8)})
    assert got["softmax"] is fed and (got["again"] == 128).all()
    assert got["head"].any()


def test_call_gives_the_outputs_and_frees_the_rest(values: dict[str, Array]) -> None:
    x, bias = data()
    runner = ReferenceEngine().prepare(certified())
    got = runner({"x": x, "bias": bias})
    np.testing.assert_array_equal(got[0], values["softmax"])
    np.testing.assert_array_equal(got[1], values["parted"])
    kept = runner._run({"x": x, "bias": bias}, {}, everything=False)
    assert set(kept) == {"softmax", "parted"}


def test_batches_do_not_influence_each_other(values: dict[str, Array]) -> None:
    x, bias = data()
    for i in range(3):
        one = run(certified(), x=x[i : i + 1], bias=bias[i : i + 1])
        for name in certified().integer_tensors():
            np.testing.assert_array_equal(one[name], values[name][i : i + 1])


def test_threads_cannot_be_set() -> None:
    with pytest.raises(EngineError, match="OPENBLAS_NUM_THREADS"):
        ReferenceEngine().prepare(certified(), threads=2)


def test_nan_behind_an_island_is_the_least_integer() -> None:
    x = Tensor("x", "float32", (None, 2))
    tensors = {t.name: t for t in (x, Tensor("log", "float32", (None, 2)), q("y", None, 2))}
    ops = (Op("log", "float.unary", ("x",), {"fn": "log"}), Op("y", "quantize", ("log",), {"lo": 0, "hi": 255}))
    program = Program(tensors, ops, ("x",), ("y",))
    assert run(program, x=np.float32([[0.0, 1.0]]))["y"].tolist() == [[0, 100]]
    assert run(program, x=np.float32([[-1.0, 1.0]]))["y"].tolist() == [[0, 100]]


MOVES: list[tuple[str, dict[str, object], tuple[int, ...]]] = [
    ("permute", {"dims": [0, 2, 3, 1]}, (2, 4, 5, 3)),
    ("pad", {"pads": [[0, 0], [0, 0], [1, 0], [-1, 2]], "value": 9}, (2, 3, 5, 6)),
    ("roll", {"shifts": [1, -2], "dims": [2, 3]}, (2, 3, 4, 5)),
    ("slice", {"axis": 3, "start": 1, "end": 5, "step": 2}, (2, 3, 4, 2)),
    ("upsample", {"size": [9, 7], "mode": "nearest", "align_corners": False}, (2, 3, 9, 7)),
    ("reshape", {"shape": [-1, 60]}, (2, 60)),
    (
        "max_pool",
        {"kernel": [2, 2], "stride": [1, 2], "padding": [1, 0], "dilation": [2, 1], "ceil_mode": True},
        (2, 3, 4, 3),
    ),
]


@pytest.mark.parametrize(("kind", "attrs", "shape"), MOVES, ids=[m[0] for m in MOVES])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_moves_move_any_dtype(kind: str, attrs: dict[str, object], shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5)).astype(np.uint8)
    meta = [Tensor("x", "uint8", (None, 3, 4, 5))]
    as_u8 = evaluate(Op("y", kind, ("x",), attrs), [x], meta, Tensor("y", "uint8", shape), 2)
    got = evaluate(Op("y", kind, ("x",), attrs), [x.astype(dtype)], meta, Tensor("y", dtype, shape), 2)
    assert got.shape == shape and str(got.dtype) == dtype
    np.testing.assert_array_equal(got, as_u8)
    if kind == "pad":
        assert (
            (got[:, :, 0] == 9).all() and (got[:, :, :, -2:] == 9).all() and (got[:, :, 1:, :4] == x[:, :, :, 1:]).all()
        )
    if kind == "permute":
        assert (got == x.transpose(0, 2, 3, 1)).all()
    if kind == "max_pool":
        t = torch.from_numpy(x).double()
        assert (got == F.max_pool2d(t, (2, 2), (1, 2), (1, 0), (2, 1), True).numpy()).all()


def test_expand_into_the_batch() -> None:
    token = np.arange(4, dtype=np.uint8).reshape(1, 1, 4)
    meta = [q("x", 1, 1, 4)]
    y = evaluate(Op("y", "expand", ("x",), {"shape": [-1, 2, 4]}), [token], meta, q("y", None, 2, 4), 5)
    assert y.shape == (5, 2, 4) and (y == token).all()
    y = evaluate(Op("y", "expand", ("x",), {"shape": [-1, 2, 4]}), [token], meta, q("y", 1, 2, 4), None)
    assert y.shape == (1, 2, 4)


def test_windows_of_one_pixel_and_the_whole_image() -> None:
    x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    attrs = {"output_size": [1, 4], "multipliers": [[4, 251, 1003]], "lo": 0, "hi": 255}
    y = evaluate(
        Op("y", "adaptive_avg_pool", ("x",), attrs), [x], [q("x", 1, 1, 4, 4, z=0)], q("y", 1, 1, 1, 4, z=0), 1
    )
    assert y.ravel().tolist() == [math.floor(s * 251 / 1003 + 0.5) for s in x.sum(2).ravel()]
