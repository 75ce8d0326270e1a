"""Programs of named dimensions: what the specification asks of them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact8.arithmetic.dimensions import LONGEST
from intact8.errors import InputError, ProgramError
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.dimensions import fixed, largest, sizes_of
from intact8.program.file import digest
from intact8.program.golden import Golden, sample
from intact8.program.program import Program


def program(**changes: Any) -> Program:
    """A table cut to the length, added to a sequence in two heads."""
    tensors = {
        "x": Tensor("x", "float32", (None, "n", 4)),
        "heads": Tensor("heads", "float32", (None, "n", 2, 2)),
        "table": Tensor("table", "float32", (1, 8, 2, 2)),
        "cut": Tensor("cut", "float32", (1, "n", 2, 2)),
        "wide": Tensor("wide", "float32", (1, "n", 2, 2)),
        "y": Tensor("y", "float32", (None, "n", 2, 2)),
        "first": Tensor("first", "float32", (None, 1, 2, 2)),
    }
    ops = {
        "heads": Op("heads", "reshape", ("x",), {"shape": [-1, "n", 2, 2]}),
        "table": Op("table", "constant", (), arrays={"value": np.ones((1, 8, 2, 2), np.float32)}),
        "cut": Op("cut", "slice", ("table",), {"axis": 1, "start": 0, "end": "n", "step": 1}),
        "wide": Op("wide", "expand", ("cut",), {"shape": [1, "n", 2, 2]}),
        "y": Op("y", "float.add", ("heads", "wide")),
        "first": Op("first", "slice", ("y",), {"axis": 1, "start": 0, "end": 1, "step": 1}),
    }
    for name, attrs in changes.pop("attrs", {}).items():
        ops[name] = replace(ops[name], attrs={**ops[name].attrs, **attrs})
    for name, shape in changes.pop("shapes", {}).items():
        tensors[name] = replace(tensors[name], shape=shape)
    dimensions = changes.pop("dimensions", {"n": (1, 8)})
    return Program(tensors, tuple(ops.values()), ("x",), ("first", "y"), {"list": [0, 1]}, dimensions=dimensions)


def test_a_program_of_named_dimensions_runs_at_every_length() -> None:
    check(program())
    for length in (1, 5, 8):
        x = np.arange(2 * length * 4, dtype=np.float32).reshape(2, length, 4)
        first, y = program().run(x, engine="reference")
        assert np.array_equal(y, x.reshape(2, length, 2, 2) + 1) and np.array_equal(first, y[:, :1])


def test_it_comes_back_the_same_from_a_file(tmp_path: Path) -> None:
    path = program().save(tmp_path / "p.safetensors")
    assert Program.load(path).dimensions == {"n": (1, 8)}
    assert digest(Program.load(path)) == digest(program()) != digest(program(dimensions={"n": (1, 7)}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dimensions": {}}, "bad shape"),
        ({"dimensions": {"n": (0, 8)}}, "bad limits"),
        ({"dimensions": {"n": (5, 4)}}, "bad limits"),
        ({"dimensions": {"n": (1, True)}}, "bad limits"),
        ({"dimensions": {"n": (1, 8), "m": (1, 8)}}, "no input tells the size of 'm'"),
        ({"dimensions": {"n": (1, 8), "": (1, 8)}}, "bad name"),
        ({"dimensions": {"n": (1, 9)}}, "op cut: n may be longer than 8"),
        ({"dimensions": {"n": (1, None)}}, "op cut: n may be longer than 8"),
        ({"attrs": {"heads": {"shape": [-1, "m", 2, 2]}}}, "op heads"),
        ({"attrs": {"first": {"axis": 0, "end": "n"}}, "shapes": {"first": ("n", "n", 2, 2)}}, "on the batch size"),
        ({"attrs": {"heads": {"shape": ["n", -1, 2, 2]}}}, "op heads"),
        ({"attrs": {"wide": {"shape": [1, "m", 2, 2]}}}, "op wide"),
        ({"attrs": {"cut": {"start": 1}}}, "op cut: gives shape .*n-1"),
        ({"attrs": {"cut": {"end": "m"}}}, "op cut"),
        ({"attrs": {"first": {"end": 2}}, "shapes": {"first": (None, 2, 2, 2)}}, "n may be shorter than 2"),
    ],
)
def test_what_does_not_hold_at_every_size_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        check(program(**changes))


def test_sizes_are_read_from_the_inputs() -> None:
    assert sizes_of(program(), {"x": np.zeros((2, 5, 4))}) == {"n": 5}
    with pytest.raises(InputError, match="x: n is 9, outside 1 to 8. Remedy: truncate"):
        sizes_of(program(), {"x": np.zeros((2, 9, 4))})


def test_at_given_sizes_no_name_is_left() -> None:
    at = fixed(program(), {"n": 3})
    check(at)
    assert at.tensors["y"].shape == (None, 3, 2, 2) and at.ops[0].attrs["shape"] == [-1, 3, 2, 2]
    assert largest(program()).tensors["y"].shape == (None, 8, 2, 2)


@pytest.mark.parametrize(("limits", "size"), [((1, 8), 7), ((1, 4), 4), ((9, None), 9)])
def test_golden_samples_are_seven_long_where_they_may(limits: tuple[int, int | None], size: int) -> None:
    given = sample(program(dimensions={"n": limits}), Golden((("noise", 1),)), 0)
    assert given["x"].shape == (1, size, 4)


def test_a_dimension_without_a_limit_ends_where_proofs_end() -> None:
    x, y = Tensor("x", "float32", (None, "n")), Tensor("y", "float32", (None, "n"))
    free = Program({"x": x, "y": y}, (Op("y", "float.relu", ("x",)),), ("x",), ("y",), dimensions={"n": (1, None)})
    check(free)
    assert free.run(np.zeros((1, LONGEST), np.float32), engine="reference").shape == (1, LONGEST)
    with pytest.raises(InputError, match=f"n is {LONGEST + 1}, outside 1 to {LONGEST}"):
        free.run(np.zeros((1, LONGEST + 1), np.float32), engine="reference")
