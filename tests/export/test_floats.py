"""Float islands: every kind as ONNX operators gives what the reference gives, to float accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.export.models import meta, one_op, run_model
from tests.floats import FLOAT_OPS

from intact8.arithmetic.unary_functions import UNARY
from intact8.engines.reference import ReferenceEngine
from intact8.export.onnx import export_onnx
from intact8.export.onnx_floats import RULES
from intact8.export.onnx_unary import FUNCTIONS
from intact8.opset.op import Op

pytest.importorskip("onnxruntime")
Array = npt.NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def whole(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-5, 6, shape)


def layer(rows: int, *, suffixes: tuple[str, ...] = ("",), bias: bool = True) -> dict[str, Array]:
    """Weights of a recurrent layer of 3 units and 5 inputs."""
    shapes = {
        "weight_ih": (rows, 5),
        "weight_hh": (rows, 3),
        **({"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}),
    }
    return {r + d: normal(*s, seed=i) for i, (r, s) in enumerate(shapes.items()) for d in suffixes}


RECURRENT: dict[str, Any] = {"hidden": 3, "bidirectional": False, "states": False, "lengths": False, "result": "all"}
TWO = {**RECURRENT, "bidirectional": True, "states": True}
STATE = normal(2, 2, 3)
POOL = {"kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]}
CONV: dict[str, Any] = {
    "stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "output_padding": [0, 0], "groups": 2, "transposed": False,
}  # fmt: skip
CASES: list[tuple[str, str, dict[str, Any], list[Array], dict[str, Array]]] = [
    ("relu", "relu", {}, [normal(2, 3)], {}),
    ("clamp", "clamp", {"min": -1.0, "max": 2.0}, [normal(2, 3)], {}),
    ("clamp-one-side", "clamp", {"min": None, "max": 0.5}, [normal(2, 3)], {}),
    ("clamp-wide-integers", "clamp", {"min": -1, "max": 7}, [np.int64([3_000_000_000, -1 << 40, 1 << 32, 5, 8])], {}),
    ("clamp-wide-below", "clamp", {"min": -1, "max": None}, [np.int64([3_000_000_000, -3_000_000_000, 0])], {}),
    ("clamp-integers", "clamp", {"min": 0, "max": 3}, [whole(2, 3)], {}),
    ("leaky", "leaky_relu", {"slope": 0.1}, [normal(2, 3)], {}),
    ("prelu", "prelu", {}, [normal(2, 3, 4)], {"weight": normal(3)}),
    ("prelu-one", "prelu", {}, [normal(2, 3, 4)], {"weight": normal(1)}),
    ("affine", "affine_scalar", {"mul": 2.5, "add": -1.0}, [normal(2, 3)], {}),
    ("affine-integers", "affine_scalar", {"mul": 2, "add": -1}, [whole(2, 3)], {}),
    ("add", "add", {}, [normal(2, 3), normal(1, 3, seed=1)], {}),
    ("add-integers", "add", {}, [whole(2, 3), whole(1, 3)], {}),
    ("sub-mixed", "sub", {}, [normal(2, 3), whole(1, 3)], {}),
    ("mul", "mul", {}, [normal(2, 3), normal(1, 3, seed=1)], {}),
    ("div", "div", {}, [normal(2, 3), normal(1, 3, seed=1)], {}),
    ("maximum", "maximum", {}, [normal(2, 3), normal(1, 3, seed=1)], {}),
    ("maximum-wide-integers", "maximum", {}, [np.int64([3_000_000_000, -1 << 40]), np.int64([1 << 32, -5])], {}),
    ("minimum", "minimum", {}, [normal(2, 3), normal(1, 3, seed=1)], {}),
    ("minimum-mixed", "minimum", {}, [normal(2, 3), whole(1, 3)], {}),
    ("cumsum", "cumsum", {"axis": 1}, [normal(2, 3, 4)], {}),
    ("floor", "integer_divide", {"rounding": "floor"}, [whole(9, 9) - 40, whole(9, 1) - 4], {}),
    ("towards 0", "integer_divide", {"rounding": "trunc"}, [whole(9, 9) - 40, whole(9, 1) - 4], {}),
    ("cumsum-truths", "cumsum", {"axis": 0}, [whole(4, 3) > 1], {}),
    ("gather", "gather", {"axis": 1}, [normal(2, 5), np.int64([[0, 4, 9], [-3, 2, 1]])], {}),
    ("gather-integers", "gather", {"axis": 0}, [whole(4, 3), np.int64([[0, 3, 1]])], {}),
    ("scatter", "scatter", {"axis": 1, "reduce": "none"},
     [normal(2, 5), np.int64([[0, 4, 9], [-3, 2, 1]]), normal(2, 3)], {}),
    *((f"scatter-{how}", "scatter", {"axis": 0, "reduce": how}, [normal(4, 3), np.int64([[0, 3, 1], [0, 3, 1]]),
       normal(2, 3, seed=1)], {}) for how in ("sum", "prod")),
    ("scatter-integers", "scatter", {"axis": 0, "reduce": "sum"}, [whole(4, 3), np.int64([[0, 3, 1]] * 2), whole(2, 3)],
     {}),
    *((f"argsort-{back}", "argsort", {"axis": 1, "descending": back}, [np.rint(normal(3, 19, 2))], {})
      for back in (False, True)),
    ("argsort-integers", "argsort", {"axis": 0, "descending": True}, [whole(19, 3)], {}),
    ("prod", "reduce", {"fn": "prod", "dims": [1], "keepdim": True}, [normal(2, 3, 4)], {}),
    ("prod-integers", "reduce", {"fn": "prod", "dims": [0, 1], "keepdim": False}, [whole(2, 3)], {}),
    ("filled-integers", "masked_fill", {"value": 3}, [whole(2, 3), whole(2, 3) > 1], {}),
    ("mean", "mean", {"dims": [1, 2], "keepdim": False}, [normal(2, 3, 4)], {}),
    ("avg-pool", "avg_pool", {**POOL, "ceil_mode": False, "count_include_pad": False}, [normal(2, 3, 7, 6)], {}),
    ("avg-pool-pad", "avg_pool", {**POOL, "ceil_mode": False, "count_include_pad": True}, [normal(2, 3, 7, 6)], {}),
    ("avg-pool-ceil", "avg_pool", {**POOL, "ceil_mode": True, "count_include_pad": True}, [normal(2, 3, 8, 6)], {}),
    ("adaptive", "adaptive_avg_pool", {"output_size": [3, 2]}, [normal(2, 3, 8, 6)], {}),
    ("conv", "conv", CONV, [normal(2, 4, 7, 6)], {"weight": normal(6, 2, 3, 2), "bias": normal(6)}),
    ("conv-transposed", "conv", {**CONV, "transposed": True, "output_padding": [1, 0]}, [normal(2, 4, 5, 4)],
     {"weight": normal(4, 3, 3, 2)}),
    ("linear", "linear", {}, [normal(2, 3, 4)], {"weight": normal(5, 4), "bias": normal(5)}),
    ("linear-plain", "linear", {}, [normal(2, 4)], {"weight": normal(5, 4)}),
    ("scale-shift", "scale_shift", {}, [normal(2, 3, 4)], {"weight": normal(3), "bias": normal(3, seed=1)}),
    ("softmax", "softmax", {"axis": -1}, [normal(2, 3, 4)], {}),
    ("log-softmax", "log_softmax", {"axis": 1}, [normal(2, 3, 4)], {}),
    ("rms-norm", "rms_norm", {"shape": [4], "eps": 1e-5}, [normal(2, 3, 4)], {"weight": normal(4)}),
    ("layer-norm", "layer_norm", {"shape": [3, 4], "eps": 1e-5}, [normal(2, 3, 4)],
     {"weight": normal(3, 4), "bias": normal(3, 4)}),
    ("layer-norm-plain", "layer_norm", {"shape": [4], "eps": 1e-5}, [normal(2, 3, 4)], {}),
    ("group-norm", "group_norm", {"groups": 2, "eps": 1e-5}, [normal(2, 4, 3, 3)],
     {"weight": normal(4), "bias": normal(4)}),
    ("matmul", "matmul", {}, [normal(2, 3, 4), normal(2, 4, 5)], {}),
    ("sum", "reduce", {"fn": "sum", "dims": [1], "keepdim": True}, [normal(2, 3, 4)], {}),
    ("amax", "reduce", {"fn": "amax", "dims": [2, 1], "keepdim": False}, [normal(2, 3, 4)], {}),
    ("amin-all", "reduce", {"fn": "amin", "dims": [], "keepdim": False}, [normal(2, 3, 4)], {}),
    ("argmax", "reduce", {"fn": "argmax", "dims": [1], "keepdim": False}, [normal(2, 3, 4)], {}),
    ("argmax-all", "reduce", {"fn": "argmax", "dims": [], "keepdim": False}, [normal(2, 3)], {}),
    ("embedding", "embedding", {}, [np.array([[0, 2], [1, 1]])], {"weight": normal(3, 5)}),
    ("masked-fill", "masked_fill", {"value": float("-inf")}, [normal(2, 3), normal(2, 3) > 0], {}),
    ("less", "compare", {"fn": "lt", "value": 0.5}, [normal(2, 3)], {}),
    ("not-equal-integers", "compare", {"fn": "ne", "value": 2}, [whole(2, 3)], {}),
    ("greater-equal-integers", "compare", {"fn": "ge", "value": 0.5}, [whole(2, 3)], {}),
    ("cast-integers", "cast", {"dtype": "int64"}, [normal(2, 3)], {}),
    ("cast-bool", "cast", {"dtype": "bool"}, [whole(2, 3)], {}),
    ("lstm", "lstm", TWO, [normal(4, 2, 5), STATE, STATE], layer(12, suffixes=("", ".reverse"))),
    ("lstm-lengths", "lstm", {**RECURRENT, "lengths": True}, [normal(4, 2, 5), np.int64([4, 2])], layer(12)),
    ("gru", "gru", TWO, [normal(4, 2, 5), STATE], layer(9, suffixes=("", ".reverse"))),
    ("gru-steps", "gru", {**RECURRENT, "result": "steps"}, [normal(4, 2, 5)], layer(9, bias=False)),
    ("rnn", "rnn", {**RECURRENT, "nonlinearity": "tanh"}, [normal(4, 2, 5)], layer(3)),
    ("rnn-relu", "rnn", {**RECURRENT, "nonlinearity": "relu", "result": "states"}, [normal(4, 2, 5)], layer(3)),
]  # fmt: skip
OPTIONS = {
    "threshold": {"threshold": 0.3, "value": -2.0},
    "pow": {"exponent": 3.0},
    "softplus": {"beta": 2.0, "threshold": 3.0},
}


def compare(kind: str, attrs: dict[str, Any], args: list[Array], arrays: dict[str, Array]) -> None:
    metas = [meta(f"x{i}", a, static=True) for i, a in enumerate(args)]
    program = one_op(Op("y", f"float.{kind}", tuple(t.name for t in metas), attrs, arrays), metas, "float32")
    inputs = {t.name: a for t, a in zip(metas, args, strict=True)}
    want = ReferenceEngine().prepare(program)(inputs)[0]
    got = run_model(export_onnx(program), inputs, True)["y"]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("kind", "attrs", "args", "arrays"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_kind(kind: str, attrs: dict[str, Any], args: list[Array], arrays: dict[str, Array]) -> None:
    compare(kind, attrs, args, arrays)


@pytest.mark.parametrize("fn", UNARY)
def test_function(fn: str) -> None:
    x = np.concatenate([normal(1, 200)[0], np.float32([0, -0.5, 0.5, 3, -3, 6, 20])])
    x = np.abs(x) + np.float32(0.01) if fn in ("log", "sqrt", "rsqrt", "reciprocal") else x
    compare("unary", {"fn": fn, **OPTIONS.get(fn, {})}, [x], {})


def test_gelu_by_tanh() -> None:
    compare("unary", {"fn": "gelu", "approximate": "tanh"}, [normal(100)], {})


def test_every_kind_and_function_of_the_reference_is_exported() -> None:
    assert set(FUNCTIONS) == set(UNARY)
    elsewhere = {"decoded_linear"}  # with a rule and tests of its own
    # upsample is a move, for it has no float. in its name
    assert set(RULES) - elsewhere == set(FLOAT_OPS) - {"upsample"} - elsewhere
    assert {c[1] for c in CASES} | {"unary"} == set(RULES) - elsewhere
