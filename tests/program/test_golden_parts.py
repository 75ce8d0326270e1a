"""The parts of golden vectors, one by one, against definitions written in plain Python."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import affine_arrays, certified, conv_attrs, q

from intact8.errors import ProgramError
from intact8.opset.op import Op, Tensor
from intact8.opset.values import LARGEST_SIZE
from intact8.program import golden as parts
from intact8.program.check import check
from intact8.program.golden import MOST_SAMPLES, MOST_VALUES, PATTERNS, Golden, checksum, index_bounds, products, sample
from intact8.program.indices import table_rows
from intact8.program.program import Program
from intact8.program.samples import first_grids, random_samples

CLAMP = {"lo": 3, "hi": 250}


def mixed(counter: int, seed: int) -> int:
    """The finalizer of MurmurHash3."""
    x = (counter + seed * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ x >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ x >> 16


def integer(pattern: str, shape: tuple[int, ...], at: int, seed: int, low: int, high: int) -> int:
    if pattern in ("low", "high"):
        return low if pattern == "low" else high
    if pattern == "noise":
        return mixed(at, seed) % (high - low + 1) + low
    if pattern == "extremes":
        return high if mixed(at, seed) & 1 else low
    total, rest = 0, at
    for axis in reversed(range(len(shape))):
        rest, index = divmod(rest, shape[axis])
        total += index * (3 + (seed + 4 * axis) % 11)
    span = max(high - low, 1)
    folded = total % (2 * span)
    return low + min(2 * span - folded if folded > span else folded, high - low)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_these_integers(pattern: str) -> None:
    for shape, seed, low, high in (
        ((3, 4, 5), 0, 0, 255),
        ((2, 30), 9, 7, 9),
        ((61,), 1048575, 5, 5),
        ((4, 9), 3, 0, 1),
    ):
        count = math.prod(shape)
        want = [integer(pattern, shape, at, seed, low, high) for at in range(count)]
        assert parts._integers(pattern, shape, 0, count, seed, low, high).tolist() == want
        halves = [parts._integers(pattern, shape, *ends, seed, low, high) for ends in ((0, 7), (7, count))]
        assert np.concatenate(halves).tolist() == want
        assert min(want) >= low and max(want) <= high


def inputs() -> Program:
    """One input of every kind, a float one with a grid and one without."""
    tensors = [
        Tensor("f", "float32", (None, 5, 6)), Tensor("g", "float32", (None, 7)), Tensor("i", "int64", (None, 9)),
        Tensor("j", "int64", (None, 9)), Tensor("b", "bool", (None, 8)), Tensor("u", "uint8", (2, 9)),
        q("z", None, 5), q("fq", None, 5, 6, s=0.25, z=40), q("fr", None, 5, 6, s=0.5, z=0),
        Tensor("e", "float32", (None, 9, 2)), Tensor("d", "float32", (None, 9, 2)),
    ]  # fmt: skip
    table = {"weight": np.zeros((11, 2), np.float32)}
    ops = (
        Op("fq", "quantize", ("f",), dict(CLAMP)), Op("fr", "quantize", ("f",), {"lo": 0, "hi": 255}),
        Op("e", "float.embedding", ("i",), {}, {"weight": np.zeros((13, 2), np.float32)}),
        Op("d", "float.embedding", ("i",), {}, table),
    )  # fmt: skip
    return Program({t.name: t for t in tensors}, ops, ("f", "g", "i", "j", "b", "u", "z"), ("fq", "e"))


def test_samples_are_the_patterns_on_every_input() -> None:
    program = inputs()
    assert index_bounds(program) == {"i": 11, "j": 2}
    golden = Golden(tuple((p, 20 + i) for i, p in enumerate(PATTERNS)), {"i": 11, "j": 6})
    limits = {"f": (3, 250), "g": (0, 255), "i": (0, 10), "j": (0, 5), "b": (0, 1), "u": (0, 255), "z": (0, 255)}
    for index, (pattern, seed) in enumerate(golden.samples):
        made = sample(program, golden, index)
        assert list(made) == list(program.inputs)
        for position, (name, array) in enumerate(made.items()):
            shape = tuple(d or 1 for d in program.tensors[name].shape)
            assert array.shape == shape and array.dtype == np.dtype(program.tensors[name].dtype)
            own = seed + 7919 * position
            want: Any = [integer(pattern, shape, at, own, *limits[name]) for at in range(array.size)]
            if array.dtype == np.float32:
                scale, zero = (0.25, 40) if name == "f" else (1 / 128, 128)
                off = [mixed(at, own + 1) % 801 / 1000 - 0.4 if pattern == "noise" else 0.0 for at in range(array.size)]
                want = [np.float32((v - zero + o) * scale) for v, o in zip(want, off, strict=True)]
            assert array.ravel().tolist() == want, (pattern, name)


def test_long_samples_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    program, golden = inputs(), Golden(tuple((p, 1) for p in PATTERNS), {"i": 11, "j": 6})
    whole = [sample(program, golden, i) for i in range(len(PATTERNS))]
    monkeypatch.setattr(parts, "BLOCK", 4)
    for i, made in enumerate(whole):
        assert all((made[name] == array).all() for name, array in sample(program, golden, i).items())


def test_checksums_are_those_of_little_endian_bytes() -> None:
    for array in (np.arange(6, dtype=np.uint8), np.arange(-3, 3), np.float32([0.5, -1.5]), np.array([True, False])):
        want = zlib.crc32(array.astype(array.dtype.newbyteorder("<")).tobytes())
        assert checksum(array) == checksum(array.astype(array.dtype.newbyteorder(">"))) == want
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert checksum(x.T) == zlib.crc32(np.ascontiguousarray(x.T).tobytes()) != checksum(x)
    assert checksum(np.float32([-0.0])) == checksum(np.float32([0.0])) == zlib.crc32(bytes(4))


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 512, 513, 1000])
def test_values_are_evenly_spaced(size: int) -> None:
    step = math.ceil(size / MOST_VALUES)
    values = parts.values_of(np.arange(size, dtype=np.float64).reshape(1, size))
    assert values.dtype == np.float32 and values.tolist() == list(range(0, size, step)) and len(values) <= MOST_VALUES


def test_products_are_counted() -> None:
    def one(op: Op, x: Tensor, y: Tensor) -> int:
        return products(Program({"x": x, "y": y}, (op,), ("x",), ("y",)))

    weight = affine_arrays(4, 3, 3, 2)
    conv = Op("y", "conv", ("x",), conv_attrs(), weight)
    assert one(conv, q("x", None, 3, 9, 9), q("y", None, 4, 5, 7)) == 4 * 3 * 3 * 2 * 5 * 7
    back = replace(conv, attrs=conv_attrs(transposed=True))
    assert one(back, q("x", None, 4, 9, 11), q("y", None, 3, 5, 7)) == 4 * 3 * 3 * 2 * 9 * 11
    linear = Op("y", "linear", ("x",), {**CLAMP, "residual_a": 0}, affine_arrays(4, 3))
    assert one(linear, q("x", None, 5, 6, 3), q("y", None, 5, 6, 4)) == 4 * 3 * 5 * 6
    assert one(linear, q("x", None, "t", 3), q("y", None, "t", 4)) == 12  # type: ignore[arg-type]
    assert one(replace(conv, kind="max_pool"), q("x", None, 3), q("y", None, 4)) == 0


def stated(**changes: Any) -> Program:
    program = inputs()
    exact = dict.fromkeys(("fq", "fr"), (0, (1 << 32) - 1))
    values = {1: np.zeros((2, MOST_VALUES), np.float32)}
    golden = Golden((("noise", 0), ("low", (1 << 20) - 1)), {"i": 11, "j": LARGEST_SIZE}, exact, values)
    return replace(program, golden=replace(golden, **changes))


def arrays(*shape: int, dtype: Any = np.float32) -> dict[int, Any]:
    return {1: np.zeros(shape, dtype)}


def lists(count: int) -> dict[str, Any]:
    return {"samples": (("low", 0),) * count, "checksums": dict.fromkeys(("fq", "fr"), (1,) * count), "outputs": {}}


TAKEN: list[dict[str, Any]] = [
    {}, {"outputs": {}}, {"outputs": arrays(2, 1)}, {"bounds": {"i": 1, "j": 1}}, lists(1), lists(MOST_SAMPLES),
    {"omitted": "why"},
]  # fmt: skip
REFUSED: list[dict[str, Any]] = [
    lists(0), lists(MOST_SAMPLES + 1), {"samples": (("loud", 0), ("low", 0))}, {"samples": (("low", -1), ("low", 0))},
    {"samples": (("low", 1 << 20), ("low", 0))}, {"samples": (("low", 0.0), ("low", 0))},
    {"samples": ((["low"], 0), ("low", 0))}, {"samples": (("low", True), ("low", 0))},
    {"bounds": {"i": 11}}, {"bounds": {"i": 11, "j": 1, "f": 1}}, {"bounds": {"i": 0, "j": 1}},
    {"bounds": {"i": LARGEST_SIZE + 1, "j": 1}}, {"bounds": {"i": 1.0, "j": 1}},
    {"checksums": {"fq": (1, 2)}}, {"checksums": {"fr": (1, 2), "fq": (1, 2)}},
    {"checksums": {"fq": (1, 2), "fr": (1,)}}, {"checksums": {"fq": (1, 2), "fr": (1, -1)}},
    {"checksums": {"fq": (1, 2), "fr": (1, 1 << 32)}}, {"checksums": {"fq": (1, 2), "fr": (1, True)}},
    {"checksums": {"fq": (1, 2), "fr": (1, 2), "e": (1, 2)}},
    {"outputs": arrays(1, 3)}, {"outputs": arrays(2, 0)}, {"outputs": arrays(2, MOST_VALUES + 1)},
    {"outputs": arrays(2, 3, dtype=np.float64)}, {"outputs": arrays(2)}, {"outputs": arrays(2, 1, 1)},
    {"outputs": {-1: np.zeros((2, 1), np.float32)}}, {"outputs": {2: np.zeros((2, 1), np.float32)}},
]  # fmt: skip


@pytest.mark.parametrize("changes", TAKEN, ids=lambda c: str(c)[:40])
def test_golden_vectors_that_fit_are_taken(changes: dict[str, Any]) -> None:
    check(stated(**changes))


@pytest.mark.parametrize("changes", REFUSED, ids=lambda c: str(c)[:40])
def test_golden_vectors_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProgramError) as caught:
        check(stated(**changes))
    assert caught.value.where == "golden"


def test_golden_vectors_survive_json() -> None:
    golden = stated().golden
    assert golden is not None
    stored = {**golden.arrays(), "op/role": np.zeros(1)}
    again = parts.from_json(golden.to_json(), stored)
    assert (again.samples, again.bounds, again.checksums) == (golden.samples, golden.bounds, golden.checksums)
    assert list(again.outputs) == [1] and list(stored) == ["op/role"]
    assert parts.from_json({"omitted": "x" * 1000}, {}).omitted == "x" * 1000
    json = golden.to_json()
    for bad in (
        {"omitted": ""}, {"omitted": "x" * 1001}, {"omitted": 1}, {**json, "omitted": "x"}, {**json, "more": 1},
        {k: v for k, v in json.items() if k != "bounds"}, {**json, "samples": {}}, {**json, "outputs": {}},
        {**json, "bounds": []}, {**json, "checksums": []}, {**json, "samples": [["low"]]}, {**json, "samples": ["ab"]},
        {**json, "checksums": {"fq": 1}}, {**json, "outputs": [1, 1]}, {**json, "outputs": ["1"]},
        {**json, "outputs": [0]}, {**json, "outputs": [True]},
    ):  # fmt: skip
        with pytest.raises(parts.Violation):
            parts.from_json(bad, golden.arrays())


def test_made_up_samples_cover_their_ranges_and_stay_inside() -> None:
    program = inputs()
    program = replace(program, ops=(*program.ops, Op("x", "float.embedding", ("j",), {}, {"weight": np.zeros((5, 2))})))
    assert table_rows(program) == {"i": 11, "j": 5}
    assert {name: t.name for name, t in first_grids(program).items()} == {"f": "fq"}
    made = random_samples(program, 700, seed=1)
    assert all(made[n].shape[0] == 700 for n in "fgijbz") and made["u"].shape == (2, 9)
    assert all(made[n].dtype == np.dtype(program.tensors[n].dtype) for n in made)
    # Zero point 40 and scale ¼: from −10 to 53.75, and 2 % of that beyond.
    for name, low, high in (("f", -10 - 1.275, 53.75 + 1.275), ("g", -1.04, 1.04)):
        assert low <= made[name].min() < low + 0.02 * (high - low)
        assert high >= made[name].max() > high - 0.02 * (high - low)
    assert (made["i"].min(), made["i"].max()) == (0, 10) and (made["j"].min(), made["j"].max()) == (0, 4)
    assert (made["z"].min(), made["z"].max()) == (0, 255) and set(np.unique(made["b"])) == {False, True}
    again, other = random_samples(program, 700, seed=1), random_samples(program, 700, seed=2)
    assert all((again[n] == made[n]).all() for n in made) and (other["f"] != made["f"]).any()
    assert (random_samples(program, 700)["f"] == random_samples(program, 700, seed=0)["f"]).all()


def test_certified_networks_need_nothing_else() -> None:
    program = certified()
    assert parts.exact_tensors(program)[-1] == "real" and "shift" not in parts.exact_tensors(program)
    assert "again" not in parts.exact_tensors(program)
