"""Float islands in numpy against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.floats import FLOAT_OPS, run_float

from intact8.arithmetic.unary_functions import UNARY, unary64

X = torch.linspace(-8, 8, 257, dtype=torch.float64)
DOMAIN = {"log": (0, 9), "sqrt": (0, 9), "rsqrt": (0, 9), "log1p": (-1, 9), "acosh": (0.9, 9)}
DOMAIN |= dict.fromkeys(("asin", "acos", "atanh"), (-1, 1))
UNARY_CASES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "sigmoid": ({}, torch.sigmoid), "tanh": ({}, torch.tanh), "silu": ({}, F.silu), "gelu": ({}, F.gelu),
    "hardswish": ({}, F.hardswish), "hardsigmoid": ({}, F.hardsigmoid),
    "elu": ({"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    "selu": ({}, F.selu), "celu": ({"alpha": 1.3}, lambda x: F.celu(x, 1.3)), "mish": ({}, F.mish),
    "softplus": ({"beta": 2.0, "threshold": 9.0}, lambda x: F.softplus(x, 2.0, 9.0)), "softsign": ({}, F.softsign),
    "logsigmoid": ({}, F.logsigmoid), "hardshrink": ({"lambd": 0.6}, lambda x: F.hardshrink(x, 0.6)),
    "softshrink": ({"lambd": 0.6}, lambda x: F.softshrink(x, 0.6)), "tanhshrink": ({}, F.tanhshrink),
    "threshold": ({"threshold": 1.0, "value": 2.0}, lambda x: F.threshold(x, 1.0, 2.0)), "abs": ({}, torch.abs),
    "neg": ({}, torch.neg), "exp": ({}, torch.exp), "log": ({}, torch.log), "sqrt": ({}, torch.sqrt),
    "rsqrt": ({}, torch.rsqrt), "square": ({}, torch.square), "reciprocal": ({}, torch.reciprocal),
    "pow": ({"exponent": 3.0}, lambda x: x**3.0), "sin": ({}, torch.sin), "cos": ({}, torch.cos),
    "erf": ({}, torch.erf),
    "sign": ({}, torch.sign), "floor": ({}, torch.floor), "ceil": ({}, torch.ceil), "round": ({}, torch.round),
    **{
        fn: ({}, getattr(torch, fn))
        for fn in "trunc log1p expm1 tan asin acos atan sinh cosh asinh acosh atanh".split()  # noqa: SIM905
    },
}  # fmt: skip


def test_every_function_is_covered() -> None:
    assert set(UNARY) == set(UNARY_CASES)


@pytest.mark.parametrize("fn", UNARY)
def test_unary_functions_equal_torch(fn: str) -> None:
    attrs, reference = UNARY_CASES[fn]
    low, high = DOMAIN.get(fn, (-9, 9))
    x = X[(low < X) & (high > X)]
    assert len(x) > 30
    np.testing.assert_allclose(unary64(fn, attrs, x.numpy()), reference(x).numpy(), rtol=1e-10, atol=1e-12)


def test_tanh_gelu_and_extremes() -> None:
    np.testing.assert_allclose(
        unary64("gelu", {"approximate": "tanh"}, X.numpy()),
        F.gelu(X, approximate="tanh").numpy(),
        rtol=1e-10,
        atol=1e-12,
    )
    far = np.array([-1e30, -800.0, 800.0, 1e30])
    assert unary64("sigmoid", {}, far).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert unary64("softplus", {}, far).tolist() == [0.0, 0.0, 800.0, 1e30]
    assert np.isfinite(unary64("mish", {}, far)).all()


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


A, B, C3 = rand(2, 6, 7, 9), rand(6, 1, 1), rand(2, 6, 11)
W = {"weight": rand(8, 3, 3, 3), "bias": rand(8)}
WT = {"weight": rand(6, 4, 3, 3), "bias": rand(8)}
PER = {"weight": rand(6), "bias": rand(6)}
CONV = {
    "stride": [2, 1],
    "padding": [1, 2],
    "dilation": [1, 2],
    "output_padding": [0, 0],
    "groups": 2,
    "transposed": False,
}
CONVT = {**CONV, "transposed": True, "output_padding": [1, 0]}
POOL = {"kernel": [3, 2], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True, "count_include_pad": False}
MASK, PLACES, PILED = A > 0.3, A.argsort(1)[:, :4], A.argsort(3) % 4
WHOLE, DIVISOR = (9 * A).long(), (A > 0).long() * 9 - 4
HOLES = A.round().masked_fill(A > 1.5, float("nan"))
CASES: list[tuple[str, dict[str, Any], list[torch.Tensor], dict[str, torch.Tensor], Any]] = [
    ("relu", {}, [A], {}, F.relu(A)),
    ("clamp", {"min": -0.5, "max": None}, [A], {}, A.clamp(min=-0.5)),
    ("clamp", {"min": -0.5, "max": 0.25}, [A], {}, A.clamp(-0.5, 0.25)),
    ("leaky_relu", {"slope": 0.1}, [A], {}, F.leaky_relu(A, 0.1)),
    ("prelu", {}, [A], {"weight": PER["weight"]}, F.prelu(A, PER["weight"])),
    ("prelu", {}, [A], {"weight": PER["weight"][:1]}, F.prelu(A, PER["weight"][:1])),
    ("unary", {"fn": "silu"}, [A], {}, F.silu(A)),
    ("affine_scalar", {"mul": 1.5, "add": -2.0}, [A], {}, A * 1.5 - 2.0),
    ("add", {}, [A, B], {}, A + B),
    ("sub", {}, [A, B], {}, A - B),
    ("mul", {}, [A, B], {}, A * B),
    ("maximum", {}, [A, B], {}, torch.maximum(A, B)),
    ("minimum", {}, [A, B], {}, torch.minimum(A, B)),
    ("cumsum", {"axis": 2}, [A], {}, A.cumsum(2)),
    *(
        ("integer_divide", {"rounding": how}, [WHOLE, DIVISOR], {}, torch.div(WHOLE, DIVISOR, rounding_mode=how))
        for how in ("floor", "trunc")
    ),
    ("gather", {"axis": 1}, [A, PLACES], {}, A.gather(1, PLACES)),
    ("scatter", {"axis": 1, "reduce": "none"}, [A, PLACES, A[:, :4]], {}, A.scatter(1, PLACES, A[:, :4])),
    *(("scatter", {"axis": 3, "reduce": how}, [A, PILED, A + 1], {}, A.scatter_reduce(3, PILED, A + 1, how))
      for how in ("sum", "prod", "amax", "amin")),
    *(("argsort", {"axis": 2, "descending": back}, [HOLES], {}, HOLES.sort(dim=2, descending=back, stable=True)[1])
      for back in (False, True)),
    ("reduce", {"fn": "prod", "dims": [1, 3], "keepdim": True}, [A], {}, A.prod(3, True).prod(1, True)),
    ("div", {}, [A, B], {}, A / B),
    ("mean", {"dims": [2, 3], "keepdim": True}, [A], {}, A.mean((2, 3), keepdim=True)),
    ("avg_pool", POOL, [A], {}, F.avg_pool2d(A, (3, 2), (2, 2), (1, 1), True, False)),
    ("avg_pool", {**POOL, "count_include_pad": True}, [A], {}, F.avg_pool2d(A, (3, 2), (2, 2), (1, 1), True, True)),
    ("adaptive_avg_pool", {"output_size": [3, 4]}, [A], {}, F.adaptive_avg_pool2d(A, (3, 4))),
    ("conv", CONV, [A], W, F.conv2d(A, W["weight"], W["bias"], (2, 1), (1, 2), (1, 2), 2)),
    ("conv", {**CONV, "groups": 6}, [A], {"weight": rand(6, 1, 3, 3)},
     F.conv2d(A, rand(6, 1, 3, 3), None, (2, 1), (1, 2), (1, 2), 6)),
    ("conv", CONVT, [A], WT, F.conv_transpose2d(A, WT["weight"], WT["bias"], (2, 1), (1, 2), (1, 0), 2, (1, 2))),
    ("linear", {}, [A], {"weight": rand(5, 9), "bias": rand(5)}, F.linear(A, rand(5, 9), rand(5))),
    ("scale_shift", {}, [A], PER, A * PER["weight"].view(-1, 1, 1) + PER["bias"].view(-1, 1, 1)),
    ("softmax", {"axis": 1}, [A], {}, A.softmax(1)),
    ("log_softmax", {"axis": -1}, [A], {}, A.log_softmax(-1)),
    ("rms_norm", {"shape": [9], "eps": 1e-5}, [A], {"weight": rand(9)}, F.rms_norm(A, (9,), rand(9), 1e-5)),
    ("layer_norm", {"shape": [9], "eps": 1e-5}, [A], {"weight": rand(9), "bias": rand(9)},
     F.layer_norm(A, (9,), rand(9), rand(9))),
    ("group_norm", {"groups": 3, "eps": 1e-5}, [A], PER, F.group_norm(A, 3, PER["weight"], PER["bias"])),
    ("matmul", {}, [A, rand(2, 6, 9, 4)], {}, A @ rand(2, 6, 9, 4)),
    ("reduce", {"fn": "sum", "dims": [1], "keepdim": False}, [A], {}, A.sum(1)),
    ("reduce", {"fn": "amax", "dims": [2, 3], "keepdim": True}, [A], {}, A.amax((2, 3), True)),
    ("reduce", {"fn": "amin", "dims": [3], "keepdim": False}, [A], {}, A.amin(3)),
    ("reduce", {"fn": "argmax", "dims": [1], "keepdim": False}, [A], {}, A.argmax(1)),
    ("embedding", {}, [torch.tensor([[0, 3], [2, 2]])], {"weight": rand(4, 5)},
     rand(4, 5)[torch.tensor([[0, 3], [2, 2]])]),
    ("masked_fill", {"value": -7.5}, [A, MASK], {}, A.masked_fill(MASK, -7.5)),
    ("compare", {"fn": "ge", "value": 0.5}, [A], {}, A >= 0.5),
    ("compare", {"fn": "ne", "value": 1}, [torch.tensor([0, 1, 2])], {}, torch.tensor([True, False, True])),
    ("cast", {"dtype": "int64"}, [MASK], {}, MASK.long()),
    *(("upsample", {"size": [10, 5], "mode": mode, "align_corners": align}, [A], {},
       F.interpolate(A, (10, 5), mode=mode, align_corners=align))
      for mode in ("bilinear", "bicubic") for align in (False, True)),
    ("upsample", {"size": [17], "mode": "linear", "align_corners": False}, [C3], {},
     F.interpolate(C3, 17, mode="linear", align_corners=False)),
    ("upsample", {"size": [14, 18], "mode": "nearest", "align_corners": False}, [A], {}, F.interpolate(A, (14, 18))),
]  # fmt: skip


def test_every_float_kind_has_a_case() -> None:
    elsewhere = {"lstm", "gru", "rnn", "decoded_linear"}  # with tests of their own
    assert {name for name, *_ in CASES} == {*FLOAT_OPS, "upsample"} - elsewhere


@pytest.mark.parametrize(
    ("name", "attrs", "inputs", "arrays", "want"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_float_kinds_equal_torch(name, attrs, inputs, arrays, want) -> None:
    dtype = str(want.dtype).removeprefix("torch.")
    got = run_float(name, attrs, [t.numpy() for t in inputs], {k: v.numpy() for k, v in arrays.items()}, dtype)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=2e-5)
