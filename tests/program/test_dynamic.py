"""Dynamic layers and decoded weights in a program: refused where they do not fit, kept by the file, run."""

from dataclasses import replace

import numpy as np
import pytest

from intact8.arithmetic import bit_packing as codes
from intact8.arithmetic import dynamic
from intact8.engines.reference import ReferenceEngine
from intact8.errors import ProgramError
from intact8.golden import with_golden
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.file import load, save
from intact8.program.program import Program


def linear(**changes):
    rng = np.random.default_rng(0)
    arrays = {
        "weight": rng.integers(-60, 61, (3, 5)).astype(np.int8),
        "scale": np.full(3, 0.01, np.float32),
        "bias": np.ones(3, np.float32),
    } | changes
    op = Op("y", "dynamic_linear", ("x",), {"granularity": "per_row"}, arrays)
    x, y = Tensor("x", "float32", (None, 5)), Tensor("y", "float32", (None, 3))
    return Program({"x": x, "y": y}, (op,), ("x",), ("y",))


def decoded(kind, bits, group, columns=5):
    rng = np.random.default_rng(1)
    top = 7 if bits == 4 else 127
    q = rng.integers(-top, top + 1, (6, columns))
    scale = rng.uniform(0.1, 1, (6, codes.group_count(columns, group))).astype(np.float32)
    attrs = {"bits": bits, "columns": columns, "group": group}
    op = Op("y", kind, ("x",), attrs, {"weight": codes.pack(q, bits), "scale": scale})
    index = kind == "decoded_embedding"
    x = Tensor("x", "int64", (None, 2)) if index else Tensor("x", "float32", (None, columns))
    y = Tensor("y", "float32", (None, 2, columns) if index else (None, 6))
    real = (q * codes.spread(scale, columns, group)).astype(np.float32)
    return Program({"x": x, "y": y}, (op,), ("x",), ("y",)), real


BAD = {
    "scale of another length": ({"scale": np.ones(2, np.float32)}, "scale has shape"),
    "scale of zero": ({"scale": np.zeros(3, np.float32)}, "not positive"),
    "bias of NaN": ({"bias": np.full(3, np.nan, np.float32)}, r"bias holds nan at index \(0,\)"),
    "weight of another width": ({"weight": np.ones((3, 4), np.int8)}, "does not end in 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_layer_that_does_not_fit_is_refused(name):
    changes, message = BAD[name]
    with pytest.raises(ProgramError, match=message):
        check(linear(**changes))


def test_the_certificate_counts_sums_and_pairs():
    program = certify(linear(weight=np.full((3, 5), 127, np.int8)), ("reference", "onednn"))
    c = program.ops[0].certificate
    assert (c["exact"], c["accumulator"], c["saturation"], c["portable"]) == (True, 127 * 127 * 5, 254 * 255, False)
    assert program.needs == ("vnni",)
    assert certify(linear()).needs == ()


def test_file_and_golden_vectors_know_results_that_are_float_but_exact(tmp_path):
    program = with_golden(certify(linear()))
    assert list(program.golden.checksums) == ["y"] == program.exact_floats()
    again = load(save(program, tmp_path / "p.safetensors"))
    x = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
    p = program.ops[0].arrays
    want = dynamic.linear(x, p["weight"], p["scale"], p["bias"])
    (have,) = ReferenceEngine().prepare(again)({"x": x})
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 2), (4, 0), (4, 2), (4, 3)])
def test_codes_come_back_from_the_file(bits, group, tmp_path):
    for kind in ("decoded_embedding", "float.decoded_linear"):
        program, real = decoded(kind, bits, group)
        check(program)
        again = load(save(with_golden(program), tmp_path / "p.safetensors"))
        if kind == "decoded_embedding":
            (y,) = ReferenceEngine().prepare(again)({"x": np.array([[0, 5]])})
            np.testing.assert_array_equal(y[0], real[[0, 5]])
        else:
            x = np.eye(5, dtype=np.float32)
            (y,) = ReferenceEngine().prepare(again)({"x": x})
            np.testing.assert_array_equal(y, real.T)


@pytest.mark.parametrize("changes", [{"bits": 5}, {"group": 5}, {"columns": 9}], ids=str)
def test_codes_that_do_not_fit_are_refused(changes):
    program, _ = decoded("decoded_embedding", 4, 2)
    op = replace(program.ops[0], attrs=program.ops[0].attrs | changes)
    with pytest.raises(ProgramError):
        check(replace(program, ops=(op,)))
