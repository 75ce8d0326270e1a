"""One operation of every kind: taken as it is, and refused with any part missing, added or of another size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import POOL, affine_arrays, conv_attrs, q

from intact8.arithmetic.recurrent import GATES, tanh_table
from intact8.errors import ProgramError
from intact8.opset import KINDS
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

CLAMP = {"lo": 0, "hi": 255}
RATIO = {"a": 3, "b": 1001, **CLAMP}


def f(*shape: Any, dtype: str = "float32") -> Tensor:
    return Tensor("t", dtype, shape)


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


Case = tuple[dict[str, Any], dict[str, Any], list[Tensor], Tensor]


def layer(kind: str, quantized: bool) -> Case:
    rows, t = GATES[kind] * 3, 5
    attrs = {"hidden": 3, "bidirectional": True, "states": True, "lengths": True, "result": "all"}
    attrs |= {"nonlinearity": "tanh"} if kind == "rnn" else {}
    states = 2 if kind == "lstm" else 1
    inputs = [f(t, 2, 4), *[f(2, 2, 3)] * states, f(2, dtype="int64")]
    out = f(t + states, 2, 6)
    if quantized:
        arrays = {"weight_ih": ones(2, rows, 4, dtype=np.int8), "weight_hh": ones(2, rows, 3, dtype=np.int8)}
        arrays |= {role: ones(2, rows) for role in ("scale_ih", "scale_hh", "bias")} | {"tanh": tanh_table()}
        return attrs, arrays | ({"bias_hh": ones(2, 3)} if kind == "gru" else {}), inputs, out
    roles = {"weight_ih": (rows, 4), "weight_hh": (rows, 3), "bias_ih": (rows,), "bias_hh": (rows,)}
    return attrs, {r + d: ones(*s) for r, s in roles.items() for d in ("", ".reverse")}, inputs, out


def pool(**more: Any) -> dict[str, Any]:
    return {**POOL, **more}


ROWS = [[4, 251, 1003], [6, 167, 1003], [9, 111, 1001]]
PLANE = q("t", None, 4, 5, 5)
IMAGE, SMALLER = q("t", None, 3, 8, 8), q("t", None, 3, 4, 4)
CONV = {k: v for k, v in conv_attrs().items() if k not in ("lo", "hi", "residual_a")}
CODES = {"bits": 4, "columns": 5, "group": 2}
CODED = {"weight": ones(3, 3, dtype=np.uint8), "scale": ones(3, 3)}
TABLE = {"table": np.zeros(256, np.uint8)}
FALLING = {"table": np.arange(255, -1, -1).astype(np.int32)}
NORM = {"shape": [3, 4], "eps": 1.0, **CLAMP}
GAIN = {"gain": ones(3, 4), "offset": ones(3, 4)}
SAME = (f(None, 3), f(None, 3))
MOVE = q("t", None, 3, 4)
CASES: dict[str, Case] = {
    "quantize": (CLAMP, {}, [f(None, 3)], q("t", None, 3)),
    "dequantize": ({}, {}, [q("t", None, 3)], f(None, 3)),
    "conv": (conv_attrs(groups=2, residual_a=9), affine_arrays(4, 2, 3, 3), [PLANE] * 2, PLANE),
    "linear": ({**CLAMP, "residual_a": 0}, affine_arrays(4, 3), [q("t", None, 7, 3)], q("t", None, 7, 4)),
    "dequantized_conv": (
        {k: v for k, v in conv_attrs(groups=2).items() if k in CONV},
        {"weight": ones(4, 2, 3, 3, dtype=np.int8), "scale": ones(4), "bias": ones(4)}, [PLANE], f(*PLANE.shape),
    ),
    "dequantized_linear": (
        {}, {"weight": ones(4, 3, dtype=np.int8), "scale": ones(4), "bias": ones(4)},
        [q("t", None, 7, 3)], f(None, 7, 4),
    ),
    "add": ({"a": [1, 2], "b": 3, **CLAMP}, {}, [q("t", None, 3), q("t", 1, 3)], q("t", None, 3)),
    "mul": (RATIO, {}, [q("t", None, 3), q("t", 3)], q("t", None, 3)),
    "matmul": (RATIO, {}, [q("t", None, 2, 3), q("t", None, 3, 4)], q("t", None, 2, 4)),
    "mean": ({"dims": [1, 2], "keepdim": True, **RATIO}, {}, [q("t", None, 2, 3, 4)], q("t", None, 1, 1, 4)),
    "avg_pool": (pool(count_include_pad=False, multipliers=ROWS, **CLAMP), {}, [IMAGE], SMALLER),
    "adaptive_avg_pool": ({"output_size": [4, 4], "multipliers": [[4, 1, 5]], **CLAMP}, {}, [IMAGE], SMALLER),
    "resize_linear": (
        {"size": [9, 8], "align_corners": False, "denominators": [255, 1]}, {}, [IMAGE], q("t", None, 3, 9, 8)
    ),
    "table": ({"fn": "t"}, TABLE, [q("t", None, 3)], q("t", None, 3)),
    "softmax": ({"axis": 2, "levels": 256.0, **CLAMP}, FALLING, [MOVE, f(None, 1, 4, dtype="bool")], MOVE),
    "layer_norm": (NORM, GAIN, [MOVE], MOVE), "rms_norm": (NORM, GAIN, [MOVE], MOVE),
    "group_norm": ({"groups": 2, "eps": 1.0, **CLAMP}, {"gain": ones(4), "offset": ones(4)}, [PLANE], PLANE),
    "embedding": ({}, {"weight": ones(9, 4, dtype=np.uint8)}, [f(None, 3, dtype="int64")], q("t", None, 3, 4)),
    "dynamic_linear": (
        {"granularity": "per_row"}, {"weight": ones(4, 3, dtype=np.int8), "scale": ones(4), "bias": ones(4)},
        [f(None, 3)], f(None, 4),
    ),
    "decoded_embedding": (CODES, CODED, [f(None, 7, dtype="int64")], f(None, 7, 5)),
    **{kind: layer(kind, True) for kind in GATES}, **{f"float.{kind}": layer(kind, False) for kind in GATES},
    "max_pool": (pool(dilation=[1, 1]), {}, [IMAGE], SMALLER),
    "cat": ({"axis": 1}, {}, [q("t", None, 3), q("t", None, 4)], q("t", None, 7)),
    "reshape": ({"shape": [-1, 2, 6]}, {}, [MOVE], q("t", None, 2, 6)),
    "permute": ({"dims": [0, 2, 1]}, {}, [MOVE], q("t", None, 4, 3)),
    "slice": ({"axis": 2, "start": 1, "end": 4, "step": 2}, {}, [MOVE], q("t", None, 3, 2)),
    "pad": ({"pads": [[0, 0], [1, 0], [-1, 2]], "value": 7}, {}, [MOVE], q("t", None, 4, 5)),
    "expand": ({"shape": [-1, 3, 4]}, {}, [q("t", None, 1, 4)], MOVE),
    "roll": ({"shifts": [1, -1], "dims": [1, 2]}, {}, [MOVE], MOVE),
    "upsample": ({"size": [9, 8], "mode": "nearest", "align_corners": False}, {}, [IMAGE], q("t", None, 3, 9, 8)),
    "constant": ({}, {"value": ones(2, 3)}, [], f(2, 3)),
    "float.relu": ({}, {}, [f(None, 3)], f(None, 3)),
    "float.clamp": ({"min": None, "max": 1.0}, {}, [f(None, 3)], f(None, 3)),
    "float.leaky_relu": ({"slope": 0.1}, {}, [f(None, 3)], f(None, 3)),
    "float.prelu": ({}, {"weight": ones(3)}, [f(None, 3, 4)], f(None, 3, 4)),
    "float.unary": ({"fn": "pow", "exponent": 2.0}, {}, [f(None, 3)], f(None, 3)),
    "float.affine_scalar": ({"mul": 1.0, "add": 0.5}, {}, [f(None, 3)], f(None, 3)),
    **{f"float.{k}": ({}, {}, [f(None, 3), f(1, 3)], f(None, 3)) for k in ("add", "sub", "mul", "div")},
    "float.integer_divide": (
        {"rounding": "floor"}, {}, [f(None, 3, dtype="int64"), f(1, 3, dtype="int64")], f(None, 3, dtype="int64")
    ),
    "float.mean": ({"dims": [1], "keepdim": False}, {}, [f(None, 3)], f(None)),
    "float.avg_pool": (pool(count_include_pad=True), {}, [f(None, 3, 8, 8)], f(None, 3, 4, 4)),
    "float.adaptive_avg_pool": ({"output_size": [2, 5]}, {}, [f(None, 3, 8, 8)], f(None, 3, 2, 5)),
    "float.conv": (CONV, {"weight": ones(4, 2, 3, 3), "bias": ones(4)}, [f(None, 2, 5, 5)], f(None, 4, 5, 5)),
    "float.linear": ({}, {"weight": ones(4, 3), "bias": ones(4)}, [f(None, 3)], f(None, 4)),
    "float.scale_shift": ({}, {"weight": ones(3), "bias": ones(3)}, [f(None, 3, 5)], f(None, 3, 5)),
    "float.softmax": ({"axis": -1}, {}, [f(None, 3)], f(None, 3)),
    "float.log_softmax": ({"axis": -2}, {}, [f(None, 3)], f(None, 3)),
    "float.layer_norm": ({"shape": [3], "eps": 0.1}, {"weight": ones(3), "bias": ones(3)}, [f(None, 3)], f(None, 3)),
    "float.rms_norm": ({"shape": [3], "eps": 0.1}, {"weight": ones(3)}, [f(None, 3)], f(None, 3)),
    "float.group_norm": ({"groups": 2, "eps": 0.1}, {"weight": ones(4), "bias": ones(4)}, [f(None, 4)], f(None, 4)),
    "float.matmul": ({}, {}, [f(None, 2, 3), f(None, 3, 4)], f(None, 2, 4)),
    "float.reduce": ({"fn": "argmax", "dims": [1], "keepdim": True}, {}, [f(None, 3)], f(None, 1, dtype="int64")),
    "float.embedding": ({}, {"weight": ones(9, 4)}, [f(None, 3, dtype="int64")], f(None, 3, 4)),
    "float.decoded_linear": (CODES, {**CODED, "bias": ones(3)}, [f(None, 5)], f(None, 3)),
    "float.masked_fill": ({"value": float("-inf")}, {}, [f(None, 3), f(1, 3, dtype="bool")], f(None, 3)),
    "float.cumsum": ({"axis": 1}, {}, [f(None, 3, dtype="bool")], f(None, 3, dtype="int64")),
    **{f"float.{name}imum": ({}, {}, [f(None, 3), f(1, 3)], f(None, 3)) for name in ("max", "min")},
    "float.gather": ({"axis": 1}, {}, [f(None, 3), f(None, 5, dtype="int64")], f(None, 5)),
    "float.scatter": (
        {"axis": 1, "reduce": "sum"}, {}, [f(None, 3), f(None, 5, dtype="int64"), f(None, 5)], f(None, 3)
    ),
    "float.argsort": ({"axis": 1, "descending": True}, {}, [f(None, 3)], f(None, 3, dtype="int64")),
    "float.compare": ({"fn": "lt", "value": 1.0}, {}, [f(None, 3)], f(None, 3, dtype="bool")),
    "float.cast": ({"dtype": "int64"}, {}, [f(None, 3)], f(None, 3, dtype="int64")),
}  # fmt: skip


def build(kind: str, attrs: Any, arrays: Any, inputs: list[Tensor], output: Tensor) -> Program:
    given = {f"x{i}": replace(t, name=f"x{i}") for i, t in enumerate(inputs)}
    op = Op("y", kind, tuple(given), attrs, arrays)
    return Program({**given, "y": replace(output, name="y")}, (op,), tuple(given), ("y",))


def taken(kind: str, attrs: Any, arrays: Any, inputs: list[Tensor], output: Tensor) -> bool:
    try:
        check(build(kind, attrs, arrays, inputs, output))
    except ProgramError:
        return False
    return True


def test_every_kind_is_here() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize("kind", CASES)
def test_it_is_taken_as_it_is(kind: str) -> None:
    check(build(kind, *CASES[kind]))


@pytest.mark.parametrize("kind", CASES)
def test_nothing_may_be_missing_or_added(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    for name in attrs:
        left = {k: v for k, v in attrs.items() if k != name}
        assert not taken(kind, left, arrays, inputs, output), name
        assert not taken(kind, {**attrs, name: object()}, arrays, inputs, output), name
    assert not taken(kind, {**attrs, "more": 1}, arrays, inputs, output)
    assert not taken(kind, attrs, {**arrays, "more": ones(1)}, inputs, output)
    for role, array in arrays.items():
        optional = role in KINDS[kind].optional_arrays
        single = role in ("bias", "weight") and not role.startswith("bias_")
        left = {k: v for k, v in arrays.items() if k != role}
        assert taken(kind, attrs, left, inputs, output) == (optional and single), role
        changed = [array.astype(np.float64), array.astype(np.int16), array[:0], array.tolist()]
        assert not any(taken(kind, attrs, {**arrays, role: a}, inputs, output) for a in changed), role
    counted = KINDS[kind].inputs
    for count in {counted[0] - 1, counted[1] + 1} - {-1, 4097}:
        some = ((inputs or [f(2, 3)]) * count)[:count]
        assert not taken(kind, {**attrs, "a": [1] * count} if kind == "add" else attrs, arrays, some, output), count


ROOM = {"embedding": ("weight", 0), "float.embedding": ("weight", 0)}
"""Whose array may have more rows."""


def larger(array: Any, axis: int) -> Any:
    return np.concatenate([array, array.take([0], axis)], axis)


@pytest.mark.parametrize("kind", CASES)
def test_no_array_may_have_another_size(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    for role, array in arrays.items():
        for axis in range(array.ndim):
            fits = ROOM.get(kind) == (role, axis)
            assert taken(kind, attrs, {**arrays, role: larger(array, axis)}, inputs, output) == fits, (role, axis)
        assert not taken(kind, attrs, {**arrays, role: array[None]}, inputs, output), role


def others(shape: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for axis, size in enumerate(shape):
        yield (*shape[:axis], (size or 2) + 1, *shape[axis + 1 :])
        yield (*shape[:axis], *shape[axis + 1 :])
    yield (*shape, 1)


@pytest.mark.parametrize("kind", CASES)
def test_the_output_has_one_shape_and_dtype(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    for shape in others(output.shape):
        assert not taken(kind, attrs, arrays, inputs, replace(output, shape=shape)), shape
    for dtype in {"float32", "int64", "bool", "uint8", "int8"} - {output.dtype}:
        assert not taken(kind, attrs, arrays, inputs, Tensor("y", dtype, output.shape))
    if output.quantized:
        plain = replace(output, scale=None, zero_point=None)
        assert not taken(kind, attrs, arrays, inputs, plain)
        if KINDS[kind].domain == "any":
            for change in ({"scale": 0.125}, {"zero_point": 3}):
                assert not taken(kind, attrs, arrays, inputs, replace(output, **change))


SIZED = {
    "expand": {(0, 1)}, "float.reduce": {(0, 1)}, "float.mean": {(0, 1)}, "upsample": {(0, 2), (0, 3)},
    "resize_linear": {(0, 2), (0, 3)},
    "float.adaptive_avg_pool": {(0, 2), (0, 3)}, "slice": {(0, 2)}, "max_pool": {(0, 2), (0, 3)},
    "float.avg_pool": {(0, 2), (0, 3)}, "avg_pool": {(0, 2), (0, 3)}, "mean": {(0, 1), (0, 2)},
    "float.gather": {(0, 1)},
}  # fmt: skip
"""Input and dimension that may be longer with the same output."""


@pytest.mark.parametrize("kind", [k for k in CASES if k not in ("reshape",)])
def test_no_input_may_be_longer(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    found = set()
    for i, t in enumerate(inputs):
        for axis, size in enumerate(t.shape):
            if isinstance(size, int):
                longer = replace(t, shape=(*t.shape[:axis], size + 1, *t.shape[axis + 1 :]))
                if taken(kind, attrs, arrays, [*inputs[:i], longer, *inputs[i + 1 :]], output):
                    found.add((i, axis))
    assert found <= SIZED.get(kind, set())


@pytest.mark.parametrize("kind", [k for k, c in CASES.items() if c[2]])
def test_no_input_may_have_another_rank(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    if kind in ("reshape", "expand"):
        return
    for i, t in enumerate(inputs):
        for shape in ((*t.shape, 3), t.shape[:-1]):
            changed = [*inputs[:i], replace(t, shape=shape), *inputs[i + 1 :]]
            broadcasts = len(inputs) == 2 and shape in ((3,), (1,), ()) and taken(kind, attrs, arrays, changed, output)
            assert broadcasts or not taken(kind, attrs, arrays, changed, output), (i, shape)


def scaled(role: str, value: float) -> Any:
    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        array = arrays[role].copy()
        array.flat[-1] = value
        return {**arrays, role: array}

    return change


DYNAMIC = ("dynamic_linear", "dequantized_conv", "dequantized_linear")
NUMBERS: list[tuple[str, str, float]] = [
    *((kind, role, v) for kind in GATES for role in ("scale_ih", "scale_hh") for v in (0.0, -1.0, np.nan, np.inf)),
    *((kind, "bias", v) for kind in GATES for v in (np.nan, -np.inf)),
    *((kind, role, -128) for kind in GATES for role in ("weight_ih", "weight_hh")),
    *((kind, "tanh", v) for kind in GATES for v in (-0.1, 1.1, np.nan)), ("gru", "bias_hh", np.nan),
    *((kind, "scale", v) for kind in (*DYNAMIC, "decoded_embedding", "float.decoded_linear")
      for v in (0.0, -1.0, np.nan, np.inf)),
    *((kind, "bias", v) for kind in DYNAMIC for v in (np.nan, np.inf)),
    *((kind, role, v) for kind in ("layer_norm", "rms_norm") for role in ("gain", "offset") for v in (np.nan, np.inf)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "role", "value"), NUMBERS)
def test_numbers_that_formulas_are_not_proved_for(kind: str, role: str, value: float) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    assert not taken(kind, attrs, scaled(role, value)(arrays), inputs, output)


FLOAT_ARRAYS = [
    (kind, role) for kind, (_, arrays, *_) in CASES.items() for role, a in arrays.items() if a.dtype.kind == "f"
]


@pytest.mark.parametrize(("kind", "role"), FLOAT_ARRAYS)
def test_float_arrays_hold_numbers(kind: str, role: str) -> None:
    """NaN nowhere, infinities where the kind declares them; the refusal says which and where."""
    attrs, arrays, inputs, output = CASES[kind]
    for value in (np.nan, np.inf, -np.inf):
        changed = scaled(role, value)(arrays)
        last = tuple(n - 1 for n in arrays[role].shape)
        if np.isinf(value) and role in KINDS[kind].infinite:
            assert taken(kind, attrs, changed, inputs, output)
            continue
        with pytest.raises(ProgramError) as refusal:
            check(build(kind, attrs, changed, inputs, output))
        assert f"{role} holds {value} at index {last}" in str(refusal.value)


def test_every_float_array_is_tried() -> None:
    declared = {(k, r) for k, kind in KINDS.items() for r, dtype in kind.arrays.items() if dtype == "float32"}
    assert declared <= set(FLOAT_ARRAYS)
    infinite = {(k, r) for k, kind in KINDS.items() for r in kind.infinite}
    assert infinite == {("constant", "value"), ("float.embedding", "weight"),
                        ("float.scale_shift", "weight"), ("float.scale_shift", "bias")}  # fmt: skip
    assert infinite <= set(FLOAT_ARRAYS)


def test_layers_and_what_they_are_given() -> None:
    for kind in [*GATES, *(f"float.{k}" for k in GATES)]:
        attrs, arrays, inputs, output = CASES[kind]
        states = len(inputs) - 2
        for result, rows in (("all", 5 + states), ("states", states), ("steps", 5)):
            assert taken(kind, {**attrs, "result": result}, arrays, inputs, replace(output, shape=(rows, 2, 6)))
        alone = {**attrs, "states": False, "lengths": False}
        assert taken(kind, alone, arrays, inputs[:1], output) and not taken(kind, alone, arrays, inputs[:2], output)
        long = replace(inputs[0], shape=("t", 2, 4))
        program = build(kind, {**alone, "result": "steps"}, arrays, [long], replace(output, shape=("t", 2, 6)))
        check(replace(program, dimensions={"t": (1, 9)}))
        with pytest.raises(ProgramError):
            check(replace(build(kind, alone, arrays, [long], output), dimensions={"t": (1, 9)}))
        single = {**attrs, "bidirectional": False}
        assert not taken(kind, single, arrays, inputs, output)
    attrs, arrays, inputs, output = CASES["rnn"]
    bare = {k: v for k, v in arrays.items() if k != "tanh"}
    assert taken("rnn", {**attrs, "nonlinearity": "relu"}, bare, inputs, output)
    assert not taken("rnn", {**attrs, "nonlinearity": "relu"}, arrays, inputs, output)
    assert not taken("lstm", *CASES["lstm"][:1], {**CASES["lstm"][1], "bias_hh": ones(2, 3)}, *CASES["lstm"][2:])


def test_a_clamp_between_dimensions_of_names() -> None:
    x = q("t", None, "t", 4)
    cut = {"axis": 1, "start": 0, "end": 3, "step": 1}

    def named(attrs: Any, inputs: Tensor, output: Tensor, **dimensions: Any) -> bool:
        try:
            check(replace(build("slice", attrs, {}, [inputs], output), dimensions=dimensions))
        except ProgramError:
            return False
        return True

    assert named(cut, x, q("t", None, 3, 4), t=(3, None)) and not named(cut, x, q("t", None, 3, 4), t=(2, None))
    until, fixed = {**cut, "end": "t"}, q("t", None, 7, "t")
    for most, fits in ((7, True), (8, False), (None, False)):
        assert named(until, fixed, q("t", None, "t", "t"), t=(1, most)) is fits
    assert not named({**until, "start": 1}, fixed, q("t", None, "t", "t"), t=(1, 7))
    assert not named({**until, "step": 2}, fixed, q("t", None, "t", "t"), t=(1, 7))
    assert not named({**until, "end": "u"}, fixed, q("t", None, "u", "t"), t=(1, 7))
    most = 1 << 31
    for limits, fits in (
        ((1, 1), True), ((0, 1), False), ((2, 1), False), ((1, most), True), ((1, most + 1), False),
        ((most, None), True), ((most + 1, None), False), ((1.0, 2), False), ((1, 2.0), False),
    ):  # fmt: skip
        same = {"axis": 2, "start": 0, "end": 4, "step": 1}
        assert named(same, x, x, t=limits) is fits, limits
    assert not named({"axis": 1, "start": 0, "end": 4, "step": 1}, q("t", None, 4), q("t", None, 4), t=(1, 2))
    for name, fits in (("n" * 60, True), ("n" * 61, False), ("", False)):
        shape = q("t", None, name, 4)
        assert named({"axis": 2, "start": 0, "end": 4, "step": 1}, shape, shape, **{name: (1, 2)}) is fits


def test_what_else_a_program_says() -> None:
    program = build("table", *CASES["table"])
    for needs, fits in (((), True), (("vnni",), True), (("avx",), False), (("vnni", "avx"), False)):
        try:
            check(replace(program, needs=needs))
            assert fits
        except ProgramError:
            assert not fits
    attrs, _, inputs, output = CASES["linear"]
    assert taken("linear", attrs, affine_arrays(1, 3), inputs, replace(output, shape=(None, 7, 1)))  # arrays of one


def test_ends_of_what_attributes_may_be() -> None:
    group = ({"groups": 1, "eps": 1e-5}, {}, [f(2, 5, 1)], f(2, 5, 1))
    assert taken("float.group_norm", *group)
    truth = f(2, 3, dtype="bool")
    for value, fits in ((0, True), (1, True), (2, False)):
        assert taken("pad", {"pads": [[0, 0], [1, 0]], "value": value}, {}, [truth], f(2, 4, dtype="bool")) is fits
    for shape, fits in (([-1, 3], True), ([-2, -3], False), ([-2, 3], False)):
        try:
            check(build("reshape", {"shape": shape}, {}, [f(2, 3)], f(2, 3)))
            assert fits
        except ProgramError as error:
            assert not fits and "integers within -1.." in str(error)
    for end in (0, 1, 2):
        cut = {"axis": 1, "start": 0, "end": end, "step": 1}
        assert taken("slice", cut, {}, [f(2, 3)], f(2, end)) is (end > 0)


@pytest.mark.parametrize("terms", [1 << 20, (1 << 20) + 1])
def test_sums_have_so_many_terms_that_int64_holds_them(terms: int) -> None:
    arrays = {role: ones(1, dtype=np.int32) for role in ("bias", "a")} | {"b": np.int32([1001])}
    arrays["weight"] = ones(1, terms, dtype=np.int8)
    assert taken("linear", CASES["linear"][0], arrays, [q("t", None, terms)], q("t", None, 1)) is (terms == 1 << 20)


@pytest.mark.parametrize("kind", [k for k, c in CASES.items() if c[2] and k not in ("add", "cat")])
def test_no_kind_takes_an_input_more(kind: str) -> None:
    attrs, arrays, inputs, output = CASES[kind]
    assert not taken(kind, attrs, arrays, [*inputs, inputs[0]], output)


PROPERTIES = {
    "in_result_dtype": {
        *("float.clamp", "float.unary", "float.affine_scalar", "float.add", "float.sub", "float.mul"),
        *("float.maximum", "float.minimum", "float.div", "float.mean", "float.cumsum"),
    },
    "nonlinear": {"softmax", "layer_norm", "rms_norm", "group_norm", "embedding"},
    "rows_by_index": {"embedding", "float.embedding", "decoded_embedding"},
    "multiplies_weights": {"conv", "linear", "dynamic_linear", "dequantized_conv", "dequantized_linear"},
    "multiplies_activations": {"matmul"},
    "univariate": {
        *("float.relu", "float.clamp", "float.leaky_relu", "float.prelu", "float.unary", "float.affine_scalar"),
    },
    "homogeneous": {"float.relu", "float.leaky_relu", "float.prelu", "float.add", "float.sub", "float.mean"},
    "shares_grid": {"resize_linear"},
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_those_of_few_kinds(name: str) -> None:
    assert {kind.name for kind in KINDS.values() if getattr(kind, name)} == PROPERTIES[name]


def test_dimensions_keep_their_places_but_in_these_kinds() -> None:
    moved = {"mean", "embedding", "float.embedding", "reshape", "permute", "float.mean", "float.reduce"}
    assert {kind.name for kind in KINDS.values() if not kind.aligned} == moved
