"""The checker takes what obeys the specification and names what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import affine_arrays, conv_attrs, network, q, with_op, with_tensor

from intact8.errors import ProgramError
from intact8.opset import KINDS
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

Break = Callable[[Program], Program]


def array(role: str, value: Any, op: str = "net.c1") -> Break:
    return lambda p: with_op(p, op, arrays={role: value})


def attr(op: str, **values: Any) -> Break:
    return lambda p: with_op(p, op, attrs=values)


def drop_attr(op: str, name: str) -> Break:
    return lambda p: with_op(p, op, attrs={name: None})


def tensor(which: str, **values: Any) -> Break:
    return lambda p: with_tensor(p, which, **values)


BREAKS: dict[str, tuple[Break, str, str]] = {
    "unknown kind": (lambda p: with_op(p, "sum", kind="explode"), "sum", "unknown kind"),
    "name used twice": (lambda p: replace(p, ops=(*p.ops, p.ops[0])), "xq", "used twice"),
    "op shadows input": (lambda p: replace(p, ops=(replace(p.ops[0], name="x"), *p.ops[1:])), "x", "used twice"),
    "used before defined": (lambda p: replace(p, ops=(p.ops[1], p.ops[0], *p.ops[2:])), "net.c1", "not defined before"),
    "unknown input": (lambda p: with_op(p, "sum", inputs=("nothing", "table")), "sum", "not defined before"),
    "itself as input": (lambda p: with_op(p, "table", inputs=("table",)), "table", "not defined before"),
    "too many inputs": (lambda p: with_op(p, "table", inputs=("leaky", "leaky")), "table", "takes 1 to 1"),
    "op without tensor": (
        lambda p: replace(p, tensors={k: v for k, v in p.tensors.items() if k != "cat"}),
        "cat",
        "no output tensor",
    ),
    "tensor nobody makes": (
        lambda p: replace(p, tensors={**p.tensors, "ghost": q("ghost", 1)}),
        "ghost",
        "nothing makes",
    ),
    "half a letter": (
        lambda p: replace(p, tensors={**p.tensors, "x\ud800": q("x\ud800", 1)}),
        r"x\ud800",
        "no Unicode text",
    ),
    "tensor under another name": (tensor("sum", name="other"), "sum", "bad tensor name"),
    "missing output": (lambda p: replace(p, outputs=("softmax", "nowhere")), "nowhere", "no op"),
    "output too often": (lambda p: replace(p, outputs=("softmax",) * 65), "softmax", "65 times an output"),
    "missing input tensor": (lambda p: replace(p, inputs=("x", "bias", "y")), "y", "no tensor"),
    "input twice": (lambda p: replace(p, inputs=("x", "x", "bias")), "inputs", "twice"),
    "structure index": (lambda p: replace(p, structure={"list": [0, 2]}), "structure", "index 2"),
    "structure of booleans": (lambda p: replace(p, structure=True), "structure", "bad entry"),
    "structure of a key of a list": (lambda p: replace(p, structure={"pairs": [[[[1]], 0]]}), "structure", "bad key"),
    "structure of a key twice": (
        lambda p: replace(p, structure={"pairs": [[1, 0], [1, 0]]}),
        "structure",
        "a key twice",
    ),
    "structure of no pairs": (lambda p: replace(p, structure={"pairs": [[1]]}), "structure", "bad entry"),
    "structure unknown": (lambda p: replace(p, structure={"set": [0]}), "structure", "bad entry"),
    "structure without a class": (
        lambda p: replace(p, structure={"object": 1, "fields": {"y": 0}}),
        "structure",
        "bad entry",
    ),
    "unknown needs": (lambda p: replace(p, needs=("luck",)), "program", "unknown needs"),
    "missing attribute": (drop_attr("net.c1", "stride"), "net.c1", "stride is missing"),
    "unknown attribute": (attr("net.c1", speed=1), "net.c1", "unknown attribute 'speed'"),
    "attribute of wrong type": (attr("net.c1", stride=1), "net.c1", "stride must be a list"),
    "bool for int": (attr("net.c1", groups=True), "net.c1", "groups must be an integer"),
    "stride 0": (attr("net.c1", stride=[0, 1]), "net.c1", "stride must hold"),
    "negative padding": (attr("net.c1", padding=[-1, 1]), "net.c1", "padding must hold"),
    "wrong number of strides": (attr("net.c1", stride=[1]), "net.c1", "does not have 2 entries"),
    "lo above hi": (attr("net.c1", lo=200, hi=199), "net.c1", "exceeds hi"),
    "hi above 255": (attr("net.c1", hi=256), "net.c1", "hi must be"),
    "groups do not divide": (attr("net.c1", groups=3), "net.c1", "channels"),
    "output_padding without transposed": (attr("net.c1", output_padding=[1, 0]), "net.c1", "output_padding"),
    "missing array": (array("bias", None), "net.c1", "bias is missing"),
    "unknown array": (array("gain", np.zeros(4, np.float32)), "net.c1", "unknown array"),
    "bias int64": (array("bias", np.zeros(4, np.int64)), "net.c1", "bias has dtype int64"),
    "weight uint8": (array("weight", np.zeros((4, 3, 3, 3), np.uint8)), "net.c1", "weight has dtype"),
    "weight of wrong shape": (array("weight", np.zeros((4, 2, 3, 3), np.int8)), "net.c1", "channels"),
    "weight of rank 2": (array("weight", np.zeros((4, 3), np.int8)), "net.c1", "weight has shape"),
    "bias of wrong length": (array("bias", np.zeros(3, np.int32)), "net.c1", "bias has shape"),
    "even b": (array("b", np.full(4, 1000, np.int32)), "net.c1", "b must be odd"),
    "b too large": (array("b", np.full(4, 8193, np.int32)), "net.c1", "b must be odd"),
    "negative a": (array("a", np.full(4, -1, np.int32)), "net.c1", "a must be within"),
    "huge a": (array("a", np.full(4, 1 << 25, np.int32)), "net.c1", "a must be within"),
    "a_neg alone": (array("a_neg", np.ones(4, np.int32)), "net.c1", "come together"),
    "residual_a without residual": (attr("net.c1", residual_a=3), "net.c1", "without a residual"),
    "residual without residual_a": (attr("net.c2", residual_a=0), "net.c2", "residual_a is 0"),
    "residual with unequal b": (
        array("b", np.array([1001, 1001, 1001, 999], np.int32), "net.c2"),
        "net.c2",
        "all b must be equal",
    ),
    "residual with a_neg": (
        lambda p: with_op(p, "net.c2", arrays={"a_neg": np.ones(4, np.int32), "b_neg": np.ones(4, np.int32)}),
        "net.c2",
        "does not go with",
    ),
    "residual of other shape": (lambda p: with_op(p, "net.c2", inputs=("net.c1", "xq")), "net.c2", "residual of shape"),
    "scale 0": (tensor("sum", scale=0.0), "sum", "positive float32"),
    "scale NaN": (tensor("sum", scale=float("nan")), "sum", "positive float32"),
    "scale infinite": (tensor("sum", scale=float("inf")), "sum", "positive float32"),
    "scale beyond float32": (tensor("sum", scale=1e300), "sum", "positive float32"),
    "scale not a float32": (tensor("sum", scale=0.1), "sum", "positive float32"),
    "zero point 256": (tensor("sum", zero_point=256), "sum", "outside 0..255"),
    "zero point missing": (tensor("sum", zero_point=None), "sum", "come together"),
    "float with scale": (tensor("sum", dtype="float32"), "sum", "quantized tensor of dtype"),
    "unknown dtype": (tensor("sum", dtype="float8"), "sum", "unknown dtype"),
    "dimension 0": (tensor("sum", shape=(None, 0, 8, 8)), "sum", "bad shape"),
    "dimension text": (tensor("sum", shape=(None, "4", 8, 8)), "sum", "bad shape"),
    "rank 9": (tensor("sum", shape=(1,) * 9), "sum", "bad shape"),
    "gigantic": (tensor("sum", shape=(1 << 20, 1 << 20)), "sum", "too large"),
    "declared shape": (tensor("net.c1", shape=(None, 4, 8, 7)), "net.c1", "gives shape"),
    "static batch declared": (tensor("net.c1", shape=(2, 4, 8, 8)), "net.c1", "gives shape"),
    "integer op on float": (lambda p: with_op(p, "table", inputs=("x",)), "table", "takes (quantized)"),
    "integer op gives float": (
        tensor("table", dtype="float32", scale=None, zero_point=None),
        "table",
        "not (quantized) → float32",
    ),
    "float op on integers": (
        lambda p: with_op(p, "shift", inputs=("head", "bias")),
        "shift",
        "not (quantized, float32)",
    ),
    "quantize of integers": (lambda p: with_op(p, "again", inputs=("head",)), "again", "takes (float32) → quantized"),
    "cat of other scales": (lambda p: with_op(p, "cat", inputs=("most", "table")), "cat", "differ"),
    "cat changes zero point": (tensor("cat", zero_point=3), "cat", "differ in dtype, scale or zero point"),
    "cat axis": (attr("cat", axis=4), "cat", "axis 4"),
    "cat over the batch": (attr("cat", axis=0), "cat", "axis of a cat depends"),
    "table of 255": (array("table", np.zeros(255, np.uint8), "table"), "table", "not (256,)"),
    "numerators per input": (attr("sum", a=[1]), "sum", "1 numerators for 2"),
    "numerator 0": (attr("sum", a=[1, 0]), "sum", "nonzero"),
    "even b of an add": (attr("sum", b=1000), "sum", "b must be odd"),
    "mean over the batch": (attr("mean", dims=[0]), "mean", "depends on the batch"),
    "mean dims twice": (attr("mean", dims=[2, 2]), "mean", "dims"),
    "divisor missing": (attr("average", multipliers=[[4, 1, 3], [9, 1, 3]]), "average", "those that occur are"),
    "divisor too many": (
        attr("average", multipliers=[[4, 1, 3], [6, 1, 3], [9, 1, 3], [1, 1, 1]]),
        "average",
        "those that occur",
    ),
    "divisor twice": (attr("average", multipliers=[[4, 1, 3], [4, 1, 3]]), "average", "occurs twice"),
    "multiplier malformed": (attr("average", multipliers=[[4, 1]]), "average", "must hold [n, a, b]"),
    "padding beyond half the kernel": (attr("most", padding=[2, 1]), "most", "half the kernel"),
    "pool output gigantic": (attr("adaptive", output_size=[1 << 30, 1]), "adaptive", "gives shape|too large"),
    "reshape does not fit": (attr("flat", shape=[-1, 25]), "flat", "gives shape|cannot become"),
    "reshape two -1": (attr("flat", shape=[-1, -1]), "flat", "more than one -1"),
    "reshape loses the batch": (attr("flat", shape=[3, 24]), "flat", "no room for the batch"),
    "slice beyond the end": (attr("part", end=6), "part", "beyond 5"),
    "slice of nothing": (attr("part", start=5), "part", "empty"),
    "softmax axis": (attr("softmax", axis=2), "softmax", "axis 2"),
    "linear width": (lambda p: with_op(p, "head", arrays=affine_arrays(5, 23)), "head", "does not end in 23"),
    "fn is no text": (attr("table", fn=7), "table", "fn must be"),
}


def test_the_network_is_fine() -> None:
    check(network())


@pytest.mark.parametrize("case", BREAKS)
def test_broken_programs_are_refused_by_name(case: str) -> None:
    breaker, where, reason = BREAKS[case]
    with pytest.raises(ProgramError) as caught:
        check(breaker(network()))
    assert where in caught.value.where
    parts = reason.split("|")
    assert any(part in caught.value.what for part in parts), caught.value.what


def single(op: Op, output: Tensor, *inputs: Tensor) -> Program:
    """A program of one op."""
    given = {t.name: t for t in inputs}
    return Program({**given, output.name: output}, (op,), tuple(given), (op.name,))


X = Tensor("x", "float32", (None, 6, 4, 5))
F: dict[str, tuple[dict[str, Any], dict[str, Any], list[Tensor], tuple[int | None, ...], str]] = {
    "float.relu": ({}, {}, [X], X.shape, "float32"),
    "float.clamp": ({"min": None, "max": 6.0}, {}, [X], X.shape, "float32"),
    "float.leaky_relu": ({"slope": 0.1}, {}, [X], X.shape, "float32"),
    "float.prelu": ({}, {"weight": np.ones(6, np.float32)}, [X], X.shape, "float32"),
    "float.unary": ({"fn": "gelu", "approximate": "tanh"}, {}, [X], X.shape, "float32"),
    "float.affine_scalar": ({"mul": 2.0, "add": 1}, {}, [X], X.shape, "float32"),
    **{
        f"float.{n}": ({}, {}, [X, Tensor("y", "float32", (6, 1, 5))], X.shape, "float32")
        for n in ("add", "sub", "mul", "div", "maximum", "minimum")
    },
    "float.integer_divide": (
        {"rounding": "floor"},
        {},
        [Tensor("x", "int64", (None, 4)), Tensor("y", "int64", (4,))],
        (None, 4),
        "int64",
    ),
    "float.cumsum": ({"axis": 1}, {}, [X], X.shape, "float32"),
    "float.gather": (
        {"axis": 1},
        {},
        [X, Tensor("y", "int64", (None, 9, *X.shape[2:]))],
        (None, 9, *X.shape[2:]),
        "float32",
    ),
    "float.scatter": (
        {"axis": 1, "reduce": "amax"},
        {},
        [X, *(Tensor(name, dtype, (None, 9, *X.shape[2:])) for name, dtype in (("y", "int64"), ("z", "float32")))],
        X.shape,
        "float32",
    ),
    "float.argsort": ({"axis": 1, "descending": False}, {}, [X], X.shape, "int64"),
    "float.mean": ({"dims": [2, 3], "keepdim": False}, {}, [X], (None, 6), "float32"),
    "float.avg_pool": (
        {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": True, "count_include_pad": True},
        {},
        [X],
        (None, 6, 2, 3),
        "float32",
    ),
    "float.adaptive_avg_pool": ({"output_size": [3, 7]}, {}, [X], (None, 6, 3, 7), "float32"),
    "float.conv": (
        {k: v for k, v in conv_attrs(groups=2).items() if k not in ("lo", "hi", "residual_a")},
        {"weight": np.ones((8, 3, 3, 3), np.float32)},
        [X],
        (None, 8, 4, 5),
        "float32",
    ),
    "float.linear": (
        {},
        {"weight": np.ones((7, 5), np.float32), "bias": np.ones(7, np.float32)},
        [X],
        (None, 6, 4, 7),
        "float32",
    ),
    "float.scale_shift": ({}, {"bias": np.ones(6, np.float32)}, [X], X.shape, "float32"),
    "float.softmax": ({"axis": -1}, {}, [X], X.shape, "float32"),
    "float.log_softmax": ({"axis": 1}, {}, [X], X.shape, "float32"),
    "float.layer_norm": (
        {"shape": [4, 5], "eps": 1e-5},
        {"weight": np.ones((4, 5), np.float32)},
        [X],
        X.shape,
        "float32",
    ),
    "float.rms_norm": ({"shape": [5], "eps": 1e-5}, {"weight": np.ones(5, np.float32)}, [X], X.shape, "float32"),
    "float.group_norm": ({"groups": 3, "eps": 1e-5}, {}, [X], X.shape, "float32"),
    "float.matmul": ({}, {}, [X, Tensor("y", "float32", (None, 1, 5, 9))], (None, 6, 4, 9), "float32"),
    "float.reduce": ({"fn": "argmax", "dims": [1], "keepdim": False}, {}, [X], (None, 4, 5), "int64"),
    "float.embedding": (
        {},
        {"weight": np.ones((9, 3), np.float32)},
        [Tensor("x", "int64", (None, 2))],
        (None, 2, 3),
        "float32",
    ),
    "dynamic_linear": (
        {"granularity": "per_row"},
        {"weight": np.ones((7, 5), np.int8), "scale": np.ones(7, np.float32), "bias": np.ones(7, np.float32)},
        [X],
        (None, 6, 4, 7),
        "float32",
    ),
    "decoded_embedding": (
        {"bits": 4, "columns": 3, "group": 2},
        {"weight": np.ones((9, 2), np.uint8), "scale": np.ones((9, 2), np.float32)},
        [Tensor("x", "int64", (None, 2))],
        (None, 2, 3),
        "float32",
    ),
    "float.decoded_linear": (
        {"bits": 8, "columns": 5, "group": 0},
        {"weight": np.ones((7, 5), np.uint8), "scale": np.ones((7, 1), np.float32)},
        [X],
        (None, 6, 4, 7),
        "float32",
    ),
    "float.masked_fill": ({"value": float("-inf")}, {}, [X, Tensor("m", "bool", (4, 5))], X.shape, "float32"),
    "float.compare": ({"fn": "lt", "value": 0}, {}, [X], X.shape, "bool"),
    "float.cast": ({"dtype": "int64"}, {}, [X], X.shape, "int64"),
    "permute": ({"dims": [2, 0, 3, 1]}, {}, [X], (4, None, 5, 6), "float32"),
    "pad": ({"pads": [[0, 0], [0, 0], [1, 2], [-1, 0]], "value": float("-inf")}, {}, [X], (None, 6, 7, 4), "float32"),
    "expand": ({"shape": [-1, 6, 3, 5]}, {}, [Tensor("x", "float32", (1, 1, 5))], (1, 6, 3, 5), "float32"),
    "roll": ({"shifts": [1, -2], "dims": [2, 3]}, {}, [X], X.shape, "float32"),
    "upsample": ({"size": [9, 9], "mode": "bilinear", "align_corners": True}, {}, [X], (None, 6, 9, 9), "float32"),
    "constant": ({}, {"value": np.ones((2, 3), np.float32)}, [], (2, 3), "float32"),
}


def test_every_kind_is_checked_somewhere() -> None:
    own_tests = {
        "dequantized_conv",
        "dequantized_linear",
        "matmul",
        "softmax",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "embedding",
        "resize_linear",
    }
    own_tests |= {name for name in KINDS if name.removeprefix("float.") in ("lstm", "gru", "rnn")}  # conformance
    assert set(F) | own_tests | {op.kind for op in network().ops} == set(KINDS)


def test_matmul() -> None:
    op = Op("op", "matmul", ("x", "y"), {"a": 3, "b": 1001, "lo": 0, "hi": 255})
    x, y, out = q("x", None, 6, 4, 5), q("y", None, 1, 5, 9), q("op", None, 6, 4, 9)
    check(single(op, out, x, y))
    for wrong, other, reason in (
        (op, q("y", None, 6, 4, 9), "do not multiply"),
        (op, q("y", None, 2, 5, 9), "do not broadcast"),
        (op, Tensor("y", "float32", (None, 1, 5, 9)), r"not \(quantized, float32\) → quantized"),
        (replace(op, attrs={**op.attrs, "b": 1000}), y, "b must be odd"),
    ):
        with pytest.raises(ProgramError, match=reason):
            check(single(wrong, out, x, other))


@pytest.mark.parametrize("kind", F)
def test_float_kinds_and_moves(kind: str) -> None:
    attrs, arrays, inputs, shape, dtype = F[kind]
    op = Op("op", kind, tuple(t.name for t in inputs), attrs, arrays)
    check(single(op, Tensor("op", dtype, shape), *inputs))
    with pytest.raises(ProgramError, match="gives shape|cannot expand"):
        check(single(op, Tensor("op", dtype, (*shape, 2)), *inputs))
    for name in attrs:
        if name != "approximate":
            with pytest.raises(ProgramError, match=f"{name} is missing"):
                check(
                    single(
                        replace(op, attrs={k: v for k, v in attrs.items() if k != name}),
                        Tensor("op", dtype, shape),
                        *inputs,
                    )
                )


def test_batch_dimension_can_be_expanded_into() -> None:
    token = Tensor("x", "float32", (1, 1, 5))
    op = Op("op", "expand", ("x",), {"shape": [-1, 1, 5]})
    check(single(op, Tensor("op", "float32", (None, 1, 5)), token))


def test_integer_upsampling_is_nearest_only() -> None:
    x = q("x", None, 3, 4, 4)
    for mode, fine in (("nearest", True), ("bilinear", False)):
        op = Op("op", "upsample", ("x",), {"size": [8, 8], "mode": mode, "align_corners": False})
        program = single(op, q("op", None, 3, 8, 8), x)
        if fine:
            check(program)
        else:
            with pytest.raises(ProgramError, match="no integer operation"):
                check(program)


def test_hostile_nesting_is_refused() -> None:
    structure: Any = 0
    for _ in range(100):
        structure = {"list": [structure]}
    with pytest.raises(ProgramError, match="too deeply"):
        check(replace(network(), structure=structure))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("size", "message"), [(1, "a window holds nothing but padding"), (5, None)])
def test_a_window_of_padding_alone_has_no_maximum(dtype: str, size: int, message: str | None) -> None:
    attrs = {"kernel": [2], "stride": [1], "padding": [1], "dilation": [2], "ceil_mode": False}
    grid: tuple[Any, ...] = (0.5, 3) if dtype == "uint8" else ()
    x, y = Tensor("x", dtype, (None, 2, size), *grid), Tensor("y", dtype, (None, 2, size), *grid)
    program = single(Op("y", "max_pool", ("x",), attrs), y, x)
    if message is None:
        check(program)
    else:
        with pytest.raises(ProgramError, match=f"y: {message}"):
            check(program)
