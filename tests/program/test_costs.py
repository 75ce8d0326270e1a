"""Reading and checking a file takes time and memory in proportion to its size, whatever the sizes it speaks of."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.program.build import conv_attrs

from intact8.arithmetic.windows import adaptive_divisors, adaptive_windows, pool_divisors, pool_size, pool_windows
from intact8.errors import ProgramError
from intact8.program.document import FORMAT
from intact8.program.file import parse

TIMES, ROOM = 50, 64 << 10
"""Bytes of memory per byte of the file, and for anything."""

SECONDS, START = 1.0, 0.1
"""Per megabyte, and for anything."""

POOL = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
UNIT = {"multipliers": [[1, 1, 1]], "lo": 0, "hi": 255}


def document(tensors: list[dict[str, Any]], ops: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    return {"inputs": ["x"], "outputs": [tensors[-1]["name"]], "structure": 0, "tensors": tensors, "ops": ops, **rest}


def quantized(name: str, *shape: Any) -> dict[str, Any]:
    return {"name": name, "dtype": "uint8", "shape": list(shape), "scale": 0.5, "zero_point": 0}


def chain(kind: str, attrs: dict[str, Any], count: int, *shape: Any, **rest: Any) -> dict[str, Any]:
    tensors = [quantized("x", *shape), *(quantized(f"p{i}", *shape) for i in range(count))]
    ops = [{"name": f"p{i}", "kind": kind, "inputs": ["x"], "attrs": attrs} for i in range(count)]
    return document(tensors, ops, **rest)


def nested(depth: int) -> Any:
    node: Any = 0
    for _ in range(depth):
        node = {"list": [node]}
    return node


SIDE = 4096
INSIDE, OUTSIDE = ({"count_include_pad": counted, **UNIT} for counted in (True, False))
HOSTILE: dict[str, Any] = {
    "average pools over millions of windows": chain("avg_pool", {**POOL, **INSIDE}, 16, None, 1, SIDE, SIDE),
    "adaptive pools over millions of windows": chain(
        "adaptive_avg_pool", {"output_size": [SIDE, SIDE], **UNIT}, 16, None, 1, SIDE, SIDE
    ),
    "pools of many divisors": chain(
        "avg_pool",
        {"kernel": [65536] * 2, "stride": [1, 1], "padding": [32768] * 2, "ceil_mode": True, **OUTSIDE},
        16,
        None,
        1,
        4000,
        4000,
    ),
    "adaptive pools of odd sizes": chain(
        "adaptive_avg_pool",
        {"output_size": [2**31 - 1], "multipliers": [[2, 1, 1]], "lo": 0, "hi": 255},
        16,
        None,
        1,
        2**31,
    ),
    "slices of long dimensions": chain("slice", {"axis": 1, "start": 0, "end": 2**31, "step": 1}, 64, None, 2**31),
    "rolls": chain("roll", {"shifts": [2**31], "dims": [1]}, 64, None, 2**31),
    "pads": chain("pad", {"pads": [[0, 0], [-1000000, 1000000]], "value": 0}, 64, None, 2**31),
    "many operations": chain("reshape", {"shape": [-1, 1]}, 500, None, 1),
    "many outputs": {**chain("reshape", {"shape": [-1, 1]}, 1, None, 1), "outputs": ["p0"] * 20_000},
    "deep outputs": {**chain("reshape", {"shape": [-1, 1]}, 1, None, 1), "structure": nested(49)},
    "wide outputs": {**chain("reshape", {"shape": [-1, 1]}, 1, None, 1), "structure": {"list": [0] * 20_000}},
    "empty entries": {**chain("reshape", {"shape": [-1, 1]}, 1, None, 1), "structure": {"list": [[]] * 20_000}},
    "many names of sizes": {
        **chain("reshape", {"shape": [-1, 1]}, 1, None, 1),
        "dimensions": {f"n{i}": [1, 2] for i in range(5_000)},
    },
    "many dimensions of inputs": {
        **chain("reshape", {"shape": [-1, "n0", "n1", "n2"]}, 200, None, "n0", "n1", "n2"),
        "dimensions": {f"n{i}": [1, None] for i in range(3)},
    },
    "long lists": chain("add", {"a": list(range(1, 50_000)), "b": 1, "lo": 0, "hi": 255}, 1, None, 1),
    "many multipliers": chain(
        "adaptive_avg_pool",
        {"output_size": [3], "multipliers": [[n, 1, 1] for n in range(1, 4096)], "lo": 0, "hi": 255},
        4,
        None,
        1,
        3,
    ),
    "an input of many dimensions, many times": {
        **chain("reshape", {"shape": [-1, 1]}, 1, None, *["n"] * 20_000),
        "inputs": ["x"] * 20_000,
        "dimensions": {"n": [1, 2]},
    },
    "a cat of a cat": chain("cat", {"axis": 1}, 1, None, 1),
}
HOSTILE["a cat of a cat"]["ops"][0]["inputs"] = ["x"] * 4096


def matrix(side: int) -> dict[str, Any]:
    """Arrays of a linear layer."""
    numbers = {"bias": np.zeros(side, np.int32), "a": np.ones(side, np.int32), "b": np.full(side, 4095, np.int32)}
    return {"weight": np.ones((side, side), np.int8), **numbers}


LINEAR = {"lo": 0, "hi": 255, "residual_a": 0}
LSTM = {"hidden": 1, "bidirectional": False, "states": False, "lengths": False, "result": "steps"}
LAYER = {role: np.ones((1, 4, 1), np.int8) for role in ("weight_ih", "weight_hh")}
LAYER |= {role: np.ones((1, 4), np.float32) for role in ("scale_ih", "scale_hh", "bias")}
LAYER["tanh"] = np.linspace(0, 1, 4097, dtype=np.float32)
Case = tuple[str, dict[str, Any], dict[str, Any], tuple[Any, ...], str]
WITH_ARRAYS: dict[str, Callable[[int], Case]] = {
    "linear": lambda n: ("linear", LINEAR, matrix(n), (None, n), "quantized"),
    "conv": lambda n: (
        "conv", conv_attrs(padding=0), {**matrix(n), "weight": np.ones((n, n, 1, 1), np.int8)}, (None, n, 2, 2),
        "quantized",
    ),
    "table": lambda n: ("table", {"fn": "t"}, {"table": np.arange(256, dtype=np.uint8)}, (None, n), "quantized"),
    "float.linear": lambda n: ("float.linear", {}, {"weight": np.ones((n, n), np.float32)}, (None, n), "float32"),
    "float.scale_shift": lambda n: (
        "float.scale_shift", {}, dict.fromkeys(("weight", "bias"), np.ones(n, np.float32)), (None, n), "float32",
    ),
    "float.layer_norm": lambda n: (
        "float.layer_norm", {"shape": [n], "eps": 1.0}, {"weight": np.ones(n, np.float32)}, (None, n), "float32"
    ),
    "constant": lambda n: ("constant", {}, {"value": np.ones((1,) * 7 + (n,), np.uint8)}, (1,) * 7 + (n,), "uint8"),
    "lstm": lambda n: ("lstm", LSTM, LAYER, (n, 2, 1), "float32"),
}  # fmt: skip
"""Kind → attributes, arrays, shape and type of a tensor of that size."""


def with_arrays(kind: str, count: int, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A document of so many operations with arrays of their own, and these."""
    kind, attrs, arrays, shape, dtype = WITH_ARRAYS[kind](size)
    names = ["x", *(f"p{i}" for i in range(count))]
    plain = [{"name": n, "dtype": dtype, "shape": list(shape)} for n in names]
    tensors = [quantized(n, *shape) for n in names] if dtype == "quantized" else plain
    inputs = [] if kind == "constant" else ["x"]
    ops = [{"name": n, "kind": kind, "inputs": inputs, "attrs": attrs, "arrays": sorted(arrays)} for n in names[1:]]
    return document(tensors, ops), {f"{n}/{role}": array for n in names[1:] for role, array in arrays.items()}


DTYPES = {
    "int8": "I8",
    "int32": "I32",
    "uint8": "U8",
    "float32": "F32",
    "int64": "I64",
    "float64": "F64",
    "bool": "BOOL",
}


def as_file(document: Any, arrays: dict[str, Any] | None = None) -> bytes:
    header: dict[str, Any] = {}
    arrays, at = arrays or {}, 0
    for name, array in arrays.items():
        extent = [at, at + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": extent}
        at += array.nbytes
    text = json.dumps(document, separators=(",", ":"))
    header["__metadata__"] = {"format": FORMAT, "version": "2", FORMAT: text}
    start = json.dumps(header).encode()
    start += b" " * (-len(start) % 8)
    return struct.pack("<Q", len(start)) + start + b"".join(array.tobytes() for array in arrays.values())


def cost(data: bytes) -> tuple[float, int]:
    """Seconds, the least of two, and bytes."""

    def run() -> None:
        try:
            parse(data, Path("file"))
        except ProgramError:
            return

    run()  # what is imported or made once
    times = []
    for _ in range(2):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    tracemalloc.start()
    try:
        run()
        return min(times), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_file_claims_costs_nothing(name: str) -> None:
    within(as_file(HOSTILE[name]))


def within(data: bytes) -> None:
    seconds, memory = cost(data)
    assert memory <= TIMES * len(data) + ROOM, f"{memory / len(data):.0f} times the file's {len(data)} bytes"
    assert seconds <= SECONDS * len(data) / 1e6 + START, f"{seconds:.2f} s for {len(data)} bytes"


@pytest.mark.parametrize(("count", "size"), [(1, 1), (400, 1), (1, 700)], ids=["one", "many small", "large"])
@pytest.mark.parametrize("kind", WITH_ARRAYS)
def test_arrays_cost_what_they_are(kind: str, count: int, size: int) -> None:
    data = as_file(*with_arrays(kind, count, size))
    assert len(parse(data, Path("file")).ops) == count
    within(data)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("size", [0, 1, 64])
def test_arrays_that_nobody_uses_cost_what_they_are(size: int, dtype: type) -> None:
    made, arrays = with_arrays("table", 1, 1)
    within(as_file(made, arrays | {f"z{i}/w": np.ones(size, dtype) for i in range(2000)}))


def test_weights_are_checked_in_proportion() -> None:
    shape, rows = (None, 512, 4, 4), 512
    arrays = {
        "p0/weight": np.ones((rows, 512, 3, 3), np.int8), "p0/bias": np.zeros(rows, np.int32),
        "p0/a": np.ones(rows, np.int32), "p0/b": np.full(rows, 4095, np.int32),
    }  # fmt: skip
    made = chain("conv", conv_attrs(), 1, *shape)
    made["ops"][0]["arrays"] = ["a", "b", "bias", "weight"]
    data = as_file(made, arrays)
    assert parse(data, Path("file")).ops[0].kind == "conv"
    seconds, memory = cost(data)
    assert memory <= TIMES * len(data)
    assert seconds <= SECONDS * len(data) / 1e6 + START


def test_divisors_are_those_of_the_windows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(2000):
        rank = int(rng.integers(1, 3))
        size, kernel, stride = (rng.integers(1, most, rank).tolist() for most in (40, 12, 9))
        padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
        ceil, include = (bool(v) for v in rng.integers(0, 2, 2))
        if min(pool_size(*g, 1, ceil) for g in zip(size, kernel, stride, padding, strict=True)) < 1:
            continue
        window = (size, kernel, stride, padding, ceil, include)
        wanted = set(np.unique(pool_windows(*window)[1]).tolist())
        assert pool_divisors(*window, 10**6) == wanted, window
        assert pool_divisors(*window, len(wanted) - 1) is None
        out = rng.integers(1, 50, rank).tolist()
        assert adaptive_divisors(size, out, 9) == set(np.unique(adaptive_windows(size, out)[1]).tolist()), (size, out)
