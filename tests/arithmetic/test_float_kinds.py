"""Float kinds in numpy and in torch at every option, default and end of a range, against torch itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.floats import run_float

from intact8.arithmetic import resize
from intact8.arithmetic import torch_float_ops as torch_ops
from intact8.arithmetic.unary_functions import UNARY, unary64
from intact8.opset.floats import whole_attrs

ENDS = torch.tensor(
    [-90, -20.5, -9, -3, -2.5, -1.5, -1, -0.75, -0.5, -0.25, -1e-3, 0, 1e-3, 0.25, 0.5, 0.6, 0.75, 1, 1.5, 2, 2.5, 3,
     9, 20, 20.5, 90],
    dtype=torch.float64,
)  # fmt: skip
OPTIONS: dict[str, list[tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]]] = {
    "gelu": [({}, F.gelu), ({"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh"))],
    "elu": [({}, F.elu), ({"alpha": 0.3}, lambda x: F.elu(x, 0.3))],
    "celu": [({}, F.celu), ({"alpha": 0.3}, lambda x: F.celu(x, 0.3))],
    "softplus": [
        ({}, F.softplus), ({"beta": 4.0}, lambda x: F.softplus(x, 4.0)),
        ({"threshold": 0.5}, lambda x: F.softplus(x, threshold=0.5)),
        ({"beta": 2.0, "threshold": 1.0}, lambda x: F.softplus(x, 2.0, 1.0)),
    ],
    "hardshrink": [({}, F.hardshrink), ({"lambd": 0.25}, lambda x: F.hardshrink(x, 0.25))],
    "softshrink": [({}, F.softshrink), ({"lambd": 0.25}, lambda x: F.softshrink(x, 0.25))],
    "threshold": [({"threshold": 0.5, "value": -2.0}, lambda x: F.threshold(x, 0.5, -2.0))],
    "pow": [({"exponent": n}, lambda x, n=n: x**n) for n in (0.0, 2.0, -1.0, 3.0, 0.5)],  # type: ignore[misc]
    "neg": [({}, lambda x: -x)], "square": [({}, lambda x: x * x)], "reciprocal": [({}, lambda x: 1 / x)],
    "tanhshrink": [({}, lambda x: x - torch.tanh(x))], "softsign": [({}, lambda x: x / (1 + x.abs()))],
}  # fmt: skip


@pytest.mark.parametrize("fn", sorted(UNARY))
def test_functions_at_their_ends_and_defaults(fn: str) -> None:
    plain = getattr(F, fn, None) or getattr(torch, fn, None)
    for attrs, reference in OPTIONS.get(fn) or [({}, plain)]:
        want = reference(ENDS).numpy()
        np.testing.assert_allclose(unary64(fn, attrs, ENDS.numpy()), want, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(torch_ops.unary(fn, ENDS, attrs).numpy(), want, rtol=1e-14, atol=1e-15)


def test_functions_of_nothing_and_of_no_number() -> None:
    for fn in ("erf", "gelu", "sigmoid"):
        assert unary64(fn, {}, np.zeros((0, 3))).shape == (0, 3)
        assert np.isnan(unary64(fn, {}, np.array([np.nan]))).all()
    assert unary64("log", {}, np.array([-1.0, 0.0])).tolist()[1] == -np.inf
    assert unary64("softplus", {}, np.array([800.0, -800.0])).tolist() == [800.0, 0.0]
    assert unary64("logsigmoid", {}, np.array([-800.0])).tolist() == [-800.0]


SIZES = [*itertools.product(range(1, 6), range(1, 8)), (9, 4), (4, 13)]


@pytest.mark.parametrize("align", [False, True], ids=["half pixels", "corners"])
@pytest.mark.parametrize("mode", ["linear", "bicubic"])
def test_every_weight_of_a_resize_is_torchs(mode: str, align: bool) -> None:
    for size, out in SIZES:
        unit = torch.eye(size)
        if mode == "linear":
            got = resize.linear_matrix(size, out, align)
            want = F.interpolate(unit[None], out, mode=mode, align_corners=align)[0].T
        else:
            got = resize.cubic_matrix(size, out, align)
            want = F.interpolate(unit[None, :, None], (1, out), mode=mode, align_corners=align)[0, :, 0].T
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=3e-6, err_msg=f"{size} to {out}")
        rest = resize.resize(np.eye(size, dtype=np.float32), [out], mode == "bicubic", align)
        np.testing.assert_allclose(rest, got.T, rtol=0, atol=1e-6)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


A, COLUMN, LONG = rand(2, 6, 7, 5), rand(2, 6, 11), torch.tensor([[-3, 0, 2], [5, 2, 9]])
CONV = {"stride": [1, 2], "padding": [2, 1], "dilation": [2, 1], "output_padding": [0, 0], "groups": 1}
ONE = {"stride": [2], "padding": [1], "dilation": [1], "output_padding": [0], "groups": 3}
POOL = {"kernel": [3], "stride": [2], "padding": [1], "ceil_mode": True, "count_include_pad": True}
Case = tuple[str, dict[str, Any], list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]
CASES: list[Case] = [
    ("relu", {}, [A], {}, F.relu(A)),
    ("clamp", {"min": None, "max": 0.5}, [A], {}, A.clamp(max=0.5)),
    ("clamp", {"min": 0.0, "max": None}, [A], {}, A.clamp(min=0)),
    ("clamp", {"min": None, "max": None}, [A], {}, A),
    ("clamp", {"min": -1.0, "max": float("inf")}, [LONG], {}, LONG.clamp(min=-1)),
    ("clamp", {"min": -1.0, "max": 4.0}, [LONG], {}, LONG.clamp(-1, 4)),
    ("leaky_relu", {"slope": -0.5}, [A], {}, F.leaky_relu(A, -0.5)),
    ("prelu", {}, [COLUMN], {"weight": rand(6)}, F.prelu(COLUMN, rand(6))),
    ("affine_scalar", {"mul": 3.0, "add": -2.0}, [LONG], {}, LONG * 3 - 2),
    ("affine_scalar", {"mul": 1.0, "add": 0.0}, [LONG], {}, LONG),
    ("affine_scalar", {"mul": 1.0, "add": 0.5}, [A], {}, A + 0.5),
    ("affine_scalar", {"mul": -2.5, "add": 0.0}, [A], {}, A * -2.5),
    ("add", {}, [LONG, LONG + 1], {}, 2 * LONG + 1),
    ("add", {}, [A, (A > 0)], {}, A + (A > 0)),
    ("sub", {}, [LONG, LONG * LONG], {}, LONG - LONG * LONG),
    ("mul", {}, [LONG, LONG + 4], {}, LONG * (LONG + 4)),
    ("div", {}, [LONG, LONG + 4], {}, LONG / (LONG + 4)),
    ("mean", {"dims": [1], "keepdim": False}, [A], {}, A.mean(1)),
    ("mean", {"dims": [0, 3], "keepdim": True}, [A], {}, A.mean((0, 3), True)),
    ("avg_pool", POOL, [COLUMN], {}, F.avg_pool1d(COLUMN, 3, 2, 1, True, True)),
    ("avg_pool", {**POOL, "count_include_pad": False}, [COLUMN], {}, F.avg_pool1d(COLUMN, 3, 2, 1, True, False)),
    ("avg_pool", {**POOL, "ceil_mode": False}, [COLUMN], {}, F.avg_pool1d(COLUMN, 3, 2, 1, False, True)),
    ("adaptive_avg_pool", {"output_size": [4]}, [COLUMN], {}, F.adaptive_avg_pool1d(COLUMN, 4)),
    ("adaptive_avg_pool", {"output_size": [9, 1]}, [A], {}, F.adaptive_avg_pool2d(A, (9, 1))),
    ("conv", {**CONV, "transposed": False}, [A], {"weight": rand(4, 6, 2, 3)},
     F.conv2d(A, rand(4, 6, 2, 3), None, (1, 2), (2, 1), (2, 1))),
    ("conv", {**CONV, "transposed": True}, [A], {"weight": rand(6, 4, 2, 3)},
     F.conv_transpose2d(A, rand(6, 4, 2, 3), None, (1, 2), (2, 1), 0, 1, (2, 1))),
    ("conv", {**ONE, "transposed": False}, [COLUMN], {"weight": rand(6, 2, 3), "bias": rand(6)},
     F.conv1d(COLUMN, rand(6, 2, 3), rand(6), 2, 1, 1, 3)),
    ("conv", {**ONE, "transposed": True, "output_padding": [1]}, [COLUMN], {"weight": rand(6, 2, 3), "bias": rand(6)},
     F.conv_transpose1d(COLUMN, rand(6, 2, 3), rand(6), 2, 1, 1, 3)),
    ("linear", {}, [A], {"weight": rand(4, 5)}, F.linear(A, rand(4, 5))),
    ("scale_shift", {}, [COLUMN], {"weight": rand(6)}, COLUMN * rand(6)[:, None]),
    ("scale_shift", {}, [A], {"bias": rand(6)}, A + rand(6)[:, None, None]),
    ("softmax", {"axis": -2}, [A * 30], {}, (A * 30).softmax(-2)),
    ("log_softmax", {"axis": 1}, [A * 30], {}, (A * 30).log_softmax(1)),
    ("layer_norm", {"shape": [7, 5], "eps": 0.5}, [A], {}, F.layer_norm(A, (7, 5), eps=0.5)),
    ("layer_norm", {"shape": [5], "eps": 0.5}, [A], {"weight": rand(5)}, F.layer_norm(A, (5,), rand(5), eps=0.5)),
    ("layer_norm", {"shape": [7, 5], "eps": 1e-5}, [A], {"weight": rand(7, 5), "bias": rand(7, 5)},
     F.layer_norm(A, (7, 5), rand(7, 5), rand(7, 5))),
    ("rms_norm", {"shape": [7, 5], "eps": 0.5}, [A], {}, F.rms_norm(A, (7, 5), None, 0.5)),
    ("group_norm", {"groups": 2, "eps": 0.5}, [COLUMN], {}, F.group_norm(COLUMN, 2, eps=0.5)),
    ("group_norm", {"groups": 6, "eps": 1e-5}, [A], {"weight": rand(6), "bias": rand(6)},
     F.group_norm(A, 6, rand(6), rand(6))),
    *(("reduce", {"fn": fn, "dims": dims, "keepdim": keep}, [A], {}, getattr(torch, fn)(A, dims, keep))
      for fn in ("sum", "amax", "amin") for dims in ([1, 3], [0]) for keep in (False, True)),
    *(("reduce", {"fn": "argmax", "dims": [2], "keepdim": keep}, [A], {}, A.argmax(2, keep)) for keep in (False, True)),
    ("reduce", {"fn": "argmax", "dims": [], "keepdim": False}, [A], {}, A.argmax()),
    ("reduce", {"fn": "sum", "dims": [], "keepdim": False}, [LONG], {}, LONG.sum()),
    ("reduce", {"fn": "amin", "dims": [], "keepdim": False}, [A], {}, A.min()),
    ("masked_fill", {"value": float("-inf")}, [A, A > 0.3], {}, A.masked_fill(A > 0.3, float("-inf"))),
    *(("compare", {"fn": fn, "value": 2}, [LONG], {}, getattr(torch, fn)(LONG, 2))
      for fn in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(("cast", {"dtype": name}, [LONG.clamp(min=0)], {}, LONG.clamp(min=0).to(getattr(torch, name)))
      for name in ("float32", "int64", "bool", "uint8")),
    *(("upsample", {"size": [10, 3], "mode": mode, "align_corners": False}, [A], {},
       F.interpolate(A, (10, 3), mode=mode)) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")),
    ("upsample", {"size": [1, 9], "mode": "bilinear", "align_corners": True}, [A], {},
     F.interpolate(A, (1, 9), mode="bilinear", align_corners=True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "attrs", "inputs", "arrays", "want"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_numpy_and_torch_equal_torchs_own(
    name: str, attrs: dict[str, Any], inputs: list[torch.Tensor], arrays: dict[str, torch.Tensor], want: torch.Tensor
) -> None:
    dtype = str(want.dtype).removeprefix("torch.")
    got = run_float(name, attrs, [t.numpy() for t in inputs], {k: v.numpy() for k, v in arrays.items()}, dtype)
    assert got.dtype == np.dtype(dtype) and got.shape == tuple(want.shape)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=3e-5)
    same = torch_ops.FLOAT_OPS[name](attrs, inputs, arrays)
    np.testing.assert_allclose(same.to(want.dtype).numpy(), want.numpy(), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_torch_operations_of_every_rank(rank: int) -> None:
    x, ones = rand(2, 4, *[6] * rank), [1] * rank
    pool = {"kernel": [2] * rank, "stride": [2] * rank, "padding": [1] * rank, "ceil_mode": False}
    ops = torch_ops.FLOAT_OPS
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    attrs = {"stride": ones, "padding": ones, "dilation": ones, "output_padding": [0] * rank, "groups": 2}
    w = rand(4, 2, *[3] * rank)
    assert torch.equal(ops["conv"]({**attrs, "transposed": False}, [x], {"weight": w}), conv(x, w, None, 1, 1, 1, 2))
    assert torch.equal(
        ops["conv"]({**attrs, "transposed": True}, [x], {"weight": w}), transposed(x, w, None, 1, 1, 0, 2, 1)
    )
    most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    assert torch.equal(ops["max_pool"]({**pool, "dilation": ones}, [x], {}), most(x, 2, 2, 1))
    mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    for include in (False, True):
        assert torch.equal(ops["avg_pool"]({**pool, "count_include_pad": include}, [x], {}),
                           mean(x, 2, 2, 1, False, include))  # fmt: skip
    adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
    assert torch.equal(ops["adaptive_avg_pool"]({"output_size": [4] * rank}, [x], {}), adaptive(x, [4] * rank))
    torch.manual_seed(0)
    dropped = ops["dropout"]({"p": 0.5, "training": True, "feature": True}, [x], {})
    whole = (dropped == 0).flatten(2)
    assert (whole.all(2) == whole.any(2)).all() and whole.any() and not whole.all()
    some = ops["dropout"]({"p": 0.5, "training": True}, [x], {}) == 0
    assert (some.flatten(2).all(2) != some.flatten(2).any(2)).any()
    assert torch.equal(ops["dropout"]({"p": 0.5}, [x], {}), x)


NORM = {"eps": 0.25, "momentum": 0.5}


def statistics() -> dict[str, torch.Tensor]:
    return {"running_mean": rand(4), "running_var": rand(4).square() + 0.5, "weight": rand(4), "bias": rand(4) + 1}


def roles(prefix: str, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + k: v for k, v in values.items()}


@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_before_and_behind_a_layer(training: bool) -> None:
    def norm(x: torch.Tensor, s: dict[str, torch.Tensor], momentum: float = 0.5) -> torch.Tensor:
        return F.batch_norm(x, s["running_mean"], s["running_var"], s["weight"], s["bias"], training, momentum, 0.25)

    x, w, residual, s = rand(3, 4), rand(4, 4), rand(3, 4), statistics()
    mode = {"training": training}
    linear, shift = torch_ops.FLOAT_OPS["linear"], torch_ops.FLOAT_OPS["scale_shift"]
    got = linear({"bn": NORM, **mode}, [x, residual], {"weight": w, **roles("bn.", s)})
    want = norm(F.linear(x, w), t := statistics()) + residual
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(s, t)
    got = linear({"pre": NORM, **mode, "act": {"kind": "leaky_relu", "slope": 0.3}}, [x],
                 {"weight": w, **roles("pre.", s)})  # fmt: skip
    torch.testing.assert_close(got, F.leaky_relu(F.linear(norm(x, t), w), 0.3))
    alone = torch_ops.FLOAT_OPS["batch_norm"]({"eps": 0.25, "momentum": None, **mode}, [x], s)
    torch.testing.assert_close(alone, norm(x, t, 0.0))
    torch.testing.assert_close(s, t)
    got = shift({"act": {"kind": "prelu"}}, [x, residual], {"weight": w[0], "bias": w[1], "act.weight": w[2]})
    torch.testing.assert_close(got, F.prelu(x * w[0] + w[1] + residual, w[2]))


def test_fused_activations_of_sums_and_products() -> None:
    x, y, act = rand(2, 4), rand(2, 4) + 1, {"act": {"kind": "clamp", "min": -0.5, "max": 0.5}}
    ops = torch_ops.FLOAT_OPS
    assert torch.equal(ops["add"](act, [x, y, y], {}), (x + y + y).clamp(-0.5, 0.5))
    assert torch.equal(ops["sub"](act, [x, y], {}), (x - y).clamp(-0.5, 0.5))
    assert torch.equal(ops["mul"](act, [x, y], {}), (x * y).clamp(-0.5, 0.5))
    assert torch.equal(ops["mean"]({"dims": [0], "keepdim": False, **act}, [x], {}), x.mean(0).clamp(-0.5, 0.5))
    assert torch.equal(ops["mean"]({"dims": [], "keepdim": False}, [x], {}), x)
    assert torch.equal(ops["matmul"]({"mul": 0.5}, [x, y.T], {}), x @ y.T * 0.5)
    with pytest.raises(ValueError, match="activation"):
        torch_ops.apply_act(x, {"kind": "swish"}, {})
    with pytest.raises(ValueError, match="reduction"):
        ops["reduce"]({"fn": "median", "dims": [], "keepdim": False}, [x], {})
    masked = ops["softmax"]({"axis": 1}, [x, x > 0.2], {})
    assert (masked[(x > 0.2) & (x <= 0.2).any(1, keepdim=True)] == 0).all()
    torch.testing.assert_close(masked, x.masked_fill(x > 0.2, -1e30).softmax(1))


def test_torch_moves() -> None:
    x, ops = rand(1, 3, 8), torch_ops.FLOAT_OPS
    assert torch.equal(ops["slice"]({"axis": 2, "start": 1, "end": 7, "step": 2}, [x], {}), x[:, :, 1:7:2])
    pads = {"pads": [[0, 0], [1, 2], [-1, 3]], "value": 0.5}
    assert torch.equal(ops["pad"](pads, [x], {}), F.pad(x, (-1, 3, 1, 2), value=0.5))
    assert ops["expand"]({"shape": [-1, 3, 8]}, [x, rand(5, 2)], {}).shape == (5, 3, 8)
    assert ops["expand"]({"shape": [4, -1, 8]}, [x], {}).shape == (4, 3, 8)
    assert torch.equal(ops["roll"]({"shifts": [1, -2], "dims": [1, 2]}, [x], {}), x.roll((1, -2), (1, 2)))
    assert torch.equal(ops["permute"]({"dims": [2, 0, 1]}, [x], {}), x.permute(2, 0, 1))
    assert torch.equal(ops["cat"]({"axis": 1}, [x, x], {}), torch.cat([x, x], 1))
    chain = [{"op": "relu", "attrs": {}}, {"op": "prelu", "attrs": {}}, {"op": "unary", "attrs": {"fn": "neg"}}]
    assert torch.equal(ops["table"]({"chain": chain[:1]}, [x], {}), F.relu(x))
    assert torch.equal(ops["table"]({"chain": chain[1:]}, [x], {"chain.0.weight": rand(3)}), -F.prelu(x, rand(3)))


def test_whole_attributes() -> None:
    attrs = {"a": 3.0, "b": float("inf"), "c": float("-inf"), "d": None, "e": 2}
    assert whole_attrs(attrs) == {"a": 3, "b": None, "c": None, "d": None, "e": 2}
    assert all(type(v) in (int, type(None)) for v in whole_attrs(attrs).values())


def test_integers_beyond_float64_stay_exact() -> None:
    x = np.array([(1 << 60) + 1, -(1 << 60) - 3])
    assert run_float("affine_scalar", {"mul": 1.0, "add": 2.0}, [x], {}, "int64").tolist() == (x + 2).tolist()
    assert run_float("add", {}, [x, np.uint8([3, 4])], {}, "int64").tolist() == (x + np.array([3, 4])).tolist()
    assert run_float("sub", {}, [np.uint8([3, 4]), np.int64([5, 5])], {}, "int64").tolist() == [-2, -1]
    assert run_float("compare", {"fn": "eq", "value": 4}, [np.uint8([3, 4])], {}, "bool").tolist() == [False, True]
    assert run_float("relu", {}, [np.float32([np.nan, np.inf])], {}).tolist()[1] == np.inf


LAYERS = list(itertools.product(["lstm", "gru", "rnn"], [False, True], [False, True], [False, True]))


@pytest.mark.parametrize(("kind", "two", "states", "lengths"), LAYERS)
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_layers_are_those_of_torch(kind: str, two: bool, states: bool, lengths: bool, bias: bool) -> None:
    hidden, features, time, batch, gates = 4, 3, 5, 6, {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    for nonlinearity in ("tanh", "relu") if kind == "rnn" else ("tanh",):
        attrs = {"hidden": hidden, "bidirectional": two, "states": states, "lengths": lengths, "result": "all"}
        more = {"nonlinearity": nonlinearity} if kind == "rnn" else {}
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        sizes = ((gates * hidden, features), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
        module = getattr(torch.nn, kind.upper())(features, hidden, bias=bias, bidirectional=two, **more)
        params = {}
        for d in ("", ".reverse")[: 1 + two]:
            for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
                if bias or not name.startswith("bias"):
                    params[name + d] = rand(*size) * (1 + 0.1 * i + 0.05 * len(d))
                    parameter = getattr(module, f"{name}_l0{d.replace('.', '_')}")
                    parameter.data.copy_(params[name + d])
        x, first = rand(time, batch, features), [rand(1 + two, batch, hidden) * (1 + i) for i in range(2)]
        count = 2 if kind == "lstm" else 1
        given = first[:count] if states else [torch.zeros(1 + two, batch, hidden)] * count
        steps = torch.tensor([5, 0, 3, 1, 9, -2]) if lengths else torch.full((batch,), time)
        ends, want = [], torch.zeros(time, batch, (1 + two) * hidden)
        with torch.no_grad():
            for i, n in enumerate(steps.clamp(0, time).tolist()):  # one sequence after the other: no packing
                hx = [s[:, i : i + 1].contiguous() for s in given]
                if n:
                    y, last = module(x[:n, i : i + 1], tuple(hx) if kind == "lstm" else hx[0])
                    want[:n, i], hx = y[:, 0], list(last) if kind == "lstm" else [last]
                ends.append(torch.stack([s[:, 0] for s in hx]))  # (states, directions, hidden)
        rows = torch.stack(ends, 2).transpose(1, 2).reshape(count, batch, -1)
        everything = torch.cat([rows, want])
        inputs = [x, *(given if states else []), *([steps] if lengths else [])]
        whole = {"all": everything, "states": everything[:count], "steps": everything[count:]}
        for result, expected in whole.items():
            options = {**attrs, **more, "result": result}
            in_torch = torch_ops.FLOAT_OPS[kind](options, inputs, params)
            torch.testing.assert_close(in_torch, expected, rtol=1e-5, atol=1e-5)
            arrays = {k: v.numpy() for k, v in params.items()}
            in_numpy = run_float(kind, options, [t.numpy() for t in inputs], arrays)
            np.testing.assert_allclose(in_numpy, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "group"), [(5, 0), (5, 2), (6, 3), (4, 7)])
def test_decoded_layers(bits: int, columns: int, group: int) -> None:
    from intact8.arithmetic.bit_packing import group_count, pack, unpack

    rng, least = np.random.default_rng(columns), -(1 << (bits - 1))
    q = rng.integers(least, -least, (3, columns))
    q[0, :2] = least, -least - 1
    codes, count = pack(q, bits), -(-columns // group) if group else 1
    assert codes.dtype == np.uint8 and codes.shape == (3, columns if bits == 8 else (columns + 1) // 2)
    assert unpack(codes, bits, columns).tolist() == q.tolist() and group_count(columns, group) == count
    scale = rng.uniform(0.5, 2, (3, count)).astype(np.float32)
    wide = np.array([[q[i, j] * scale[i, j // group if group else 0] for j in range(columns)] for i in range(3)])
    x, bias = rng.normal(size=(2, columns)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    attrs, arrays = {"bits": bits, "columns": columns, "group": group}, {"weight": codes, "scale": scale, "bias": bias}
    want = x @ wide.T + bias
    np.testing.assert_allclose(run_float("decoded_linear", attrs, [x], arrays), want, rtol=1e-5, atol=1e-6)
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}
    got = torch_ops.FLOAT_OPS["decoded_linear"](attrs, [torch.from_numpy(x)], tensors)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    if bits == 4 and columns % 2:
        assert (codes[:, -1] >> 4 == 8).all()  # an odd row ends in a zero


def test_means_of_infinities() -> None:
    x, inf = np.array([[[np.inf, 1, np.inf, -np.inf, -np.inf, 2, 3, 5]]], np.float32), np.inf
    attrs = {"kernel": [2], "stride": [2], "padding": [0], "ceil_mode": False, "count_include_pad": True}
    assert np.array_equal(run_float("avg_pool", attrs, [x], {})[0, 0], [inf, np.nan, -inf, 4], equal_nan=True)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [[0, 2], [1], [2, 0, 1]], ids=str)
def test_products_over_several_dimensions(dims: list[int], keepdim: bool) -> None:
    x = torch.randint(1, 4, (2, 3, 4)).float()
    got = torch_ops.FLOAT_OPS["reduce"]({"fn": "prod", "dims": dims, "keepdim": keepdim}, [x], {})
    assert np.array_equal(got.numpy(), np.prod(x.numpy(), axis=tuple(dims), keepdims=keepdim))
