"""Kinds of operations on the native engine: exact integers over random shapes, on this CPU and in plain C."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from tests.conformance.build import KINDS, Case, Draft, Unusable, draw
from tests.conformance.build import _product as product
from tests.conformance.nonlinear import CASES

from intact8.arithmetic import bit_packing, integer
from intact8.engines import get_engine
from intact8.engines.native.engine import NativeRunner
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(get_engine("native").available() is not None, reason="the library was not built")

EXAMPLES = 25
NONE_FALLS_BACK = sorted({*KINDS, *CASES} - {"matmul"})


def prepare(program: Program, threads: int) -> NativeRunner:
    runner = get_engine("native").prepare(program, threads=threads)
    assert isinstance(runner, NativeRunner)
    return runner


def mismatches(case: Case, threads: int) -> int:
    runner = prepare(case.program, threads)
    (y,) = runner(case.inputs)
    return int((y != case.expected).sum())


def check(kind: str, count: int) -> None:
    rng = np.random.default_rng(len(kind))
    for i in range(count):
        case = CASES[kind](rng, False) if kind in CASES else draw(kind, rng, True)
        assert mismatches(case, 1 + i % 2) == 0, case.text


def test_every_byte_is_looked_up_in_rows_of_any_length() -> None:
    rng = np.random.default_rng(3)
    for length in (1, 15, 16, 31, 63, 64, 65, 127, 128, 200, 256, 4097):
        entries = rng.permutation(256).astype(np.uint8)
        tensors = {name: Tensor(name, "uint8", (None, length), 0.5, 10) for name in "xy"}
        program = Program(tensors, (Op("y", "table", ("x",), {"fn": "silu"}, {"table": entries}),), ("x",), ("y",))
        x = np.arange(3 * length).reshape(3, length).astype(np.uint8)
        (y,) = prepare(program, 1)({"x": x})
        np.testing.assert_array_equal(y, entries[x])


@pytest.mark.parametrize("kind", NONE_FALLS_BACK)
def test_random_shapes(kind: str) -> None:
    check(kind, EXAMPLES)


def test_plain_c() -> None:
    code = "from tests.engines.native.test_kinds import *\nfor kind in NONE_FALLS_BACK: check(kind, 12)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "INTACT8_ISA": "plain"}, timeout=120)


@pytest.mark.parametrize("kind", NONE_FALLS_BACK)
def test_nothing_falls_back(kind: str) -> None:
    rng = np.random.default_rng(1)
    case = CASES[kind](rng, False) if kind in CASES else draw(kind, rng, True)
    runner = prepare(case.program, 1)
    runner(case.inputs)
    assert not any(plan.lowered.fallbacks for plan in runner._plans._values.values())


@pytest.mark.parametrize("terms", [1, 2, 3, 7, 8, 9, 40, 64])
def test_sums_of_many_terms(terms: int) -> None:
    """Ratios of the largest denominators that certificates allow, of both signs, and values that broadcast."""
    rng = np.random.default_rng(terms)
    for _ in range(20):
        d, shape = Draft(rng), (2, 3, int(rng.integers(1, 300)))
        shapes = [shape] + [tuple(n if rng.random() < 0.7 else 1 for n in shape[1:]) for _ in range(terms - 1)]
        drawn = [d.input(f"x{i}", (2, *s) if i and len(s) < 3 else s) for i, s in enumerate(shapes)]
        names, values, zeros = (list(part) for part in zip(*drawn, strict=True))
        a, b = [int(v) for v in rng.integers(1, 60, terms) * rng.choice([-1, 1], terms)], 1001
        z, lo, hi = int(rng.integers(0, 256)), 0, 255
        expected = integer.add(values, zeros, a, b, z, lo, hi)
        case = d.finish(Op("y", "add", tuple(names), {"a": a, "b": b, "lo": lo, "hi": hi}), z, expected, "add")
        assert mismatches(case, 1) == 0, (shapes, a)


@pytest.mark.parametrize("ratio", [(3, 1001), (-70, 8191), (300, 1001), (900, 7)])
def test_gates_of_images(ratio: tuple[int, int]) -> None:
    """Images with their channels last, of each of which all pixels have the same gates, and ratios of any size."""
    rng = np.random.default_rng(ratio[1])
    for _ in range(20):
        d, shape = Draft(rng), (2, *(int(n) for n in rng.integers(1, 150, 1)), *(int(n) for n in rng.integers(1, 9, 2)))
        x, w = d.input("x", shape, computed=False), d.input("w", (*shape[:2], 1, 1), computed=False)
        lo, z, hi = sorted(int(n) for n in rng.integers(0, 256, 3))
        a, b = ratio
        expected = integer.mul(x[1], x[2], w[1], w[2], a, b, z, lo, hi)
        case = d.finish(Op("y", "mul", (x[0], w[0]), {"a": a, "b": b, "lo": lo, "hi": hi}), z, expected, "gates")
        given = {n: np.asarray(v.transpose(0, 2, 3, 1).copy()).transpose(0, 3, 1, 2) for n, v in case.inputs.items()}
        (y,) = prepare(case.program, 1)(given)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_windows_apart(rank: int) -> None:
    """Transposed convolutions whose windows do not overlap; with residuals and negative slopes, too."""
    rng, compared = np.random.default_rng(rank), 0
    for _ in range(30):
        d, kernel = Draft(rng), [int(n) for n in rng.integers(1, 4, rank)]
        x, xq, zx = d.input(
            "x", (2, *(int(n) for n in rng.integers(1, 40, 1)), *(int(n) for n in rng.integers(1, 6, rank)))
        )
        w = rng.integers(-127, 128, (xq.shape[1], int(rng.integers(1, 40)), *kernel), dtype=np.int8)
        zeros, ones = [0] * rank, [1] * rank
        acc = integer.conv_transpose_accumulate(xq, zx, w, None, kernel, zeros, zeros, ones, 1)
        attrs = {"stride": kernel, "padding": zeros, "dilation": ones, "output_padding": zeros}
        with suppress(Unusable):  # no certificate
            case = product(
                d, "conv", x, xq, w, acc, attrs | {"groups": 1, "transposed": True}, 1, f"{xq.shape} {w.shape}"
            )
            assert mismatches(case, 1) == 0, case.text
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("bits", [4, 8])
def test_decoded_embeddings(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for _ in range(20):
        rows, columns = (int(n) for n in rng.integers(1, 40, 2))
        group = int(rng.integers(0, columns)) if rng.random() < 0.7 else 0
        codes = bit_packing.pack(rng.integers(-7, 8, (rows, columns)), bits)
        scale = rng.uniform(0.01, 2, (rows, bit_packing.group_count(columns, group))).astype(np.float32)
        index = rng.integers(0, rows, (3, 5))
        attrs = {"bits": bits, "columns": columns, "group": group}
        op = Op("y", "decoded_embedding", ("i",), attrs, {"weight": codes, "scale": scale})
        tensors = {"i": Tensor("i", "int64", (None, 5)), "y": Tensor("y", "float32", (None, 5, columns))}
        (y,) = prepare(Program(tensors, (op,), ("i",), ("y",), structure=0), 1)({"i": index})
        np.testing.assert_array_equal(y, bit_packing.decode(codes, scale, **attrs)[index])


def test_indices_outside_of_their_table() -> None:
    """Indices that no interval proves are checked in every call, and the runner can be called again."""
    weight = np.arange(12, dtype=np.uint8).reshape(3, 4)
    cast = Op("i", "float.cast", ("x",), {"dtype": "int64"})
    op = Op("y", "embedding", ("i",), {}, {"weight": weight})
    tensors = {
        "x": Tensor("x", "float32", (None, 2)),
        "i": Tensor("i", "int64", (None, 2)),
        "y": Tensor("y", "uint8", (None, 2, 4), 1.0, 0),
    }
    runner = prepare(Program(tensors, (cast, op), ("x",), ("y",), structure=0), 1)
    for bad in (3.0, -1.0):
        with pytest.raises(InputError):
            runner({"x": np.array([[0.0, bad]], np.float32)})
    (y,) = runner({"x": np.array([[2.0, 0.0]], np.float32)})
    np.testing.assert_array_equal(y, weight[[[2, 0]]])


def test_a_product_of_two_matrices_is_computed_once() -> None:
    """Leading dimensions that are not there have one element: more would compute the same product again."""
    from intact8.engines.native.builder import Value
    from intact8.engines.native.products import LEADING, product_fields

    shapes = ((5, 3), (3, 4), (5, 4))
    x, w, y = (Value(i, shape, (0, 1), "uint8") for i, shape in enumerate(shapes))
    fields = product_fields(x, w, y)
    assert [fields[f"d{i}"] for i in range(LEADING)] == [1] * LEADING
    assert (fields["rows"], fields["depth"], fields["columns"]) == (5, 3, 4)
