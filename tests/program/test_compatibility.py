"""Files of every released version load for ever, and give the integers they gave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.sound import accepted_is_sound

from intact8.engines import get_runner
from intact8.golden import reproduce
from intact8.program.document import VERSION
from intact8.program.file import digest, load, save
from intact8.program.golden import checksum, sample

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted(FIXTURES.glob("*/*.safetensors"))
each = pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")


def test_every_release_has_files() -> None:
    assert {p.parent.name for p in FILES} >= {"0.1.0", "0.2.0"}


@each
def test_same_program_same_integers(path: Path) -> None:
    expected = json.loads((path.parent / "expected.json").read_text())[path.stem]
    program = load(path)
    assert digest(program) == expected["digest"]
    assert program.golden is not None
    outputs = get_runner(program, "reference")(sample(program, program.golden, 0))
    sums = {name: checksum(np.asarray(y)) for name, y in zip(program.outputs, outputs, strict=True)}
    assert {name: sums[name] for name in expected["outputs"]} == expected["outputs"]


@each
def test_golden_vectors_still_hold(path: Path) -> None:
    program = load(path)
    result = reproduce(get_runner(program, "reference"), "reference", every=True)
    known = json.loads((path.parent / "expected.json").read_text())[path.stem].get("exact", 6)
    assert result.samples == 4 and result.exact >= known


@each
def test_it_is_what_the_schema_and_the_specification_say(path: Path) -> None:
    accepted_is_sound(load(path))


@each
def test_written_again_it_is_the_same_program(path: Path, tmp_path: Path) -> None:
    program = load(path)
    assert digest(load(save(program, tmp_path / "again"))) == digest(program)


def test_the_policy_names_this_version() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    assert f"format version {VERSION}" in text and "## Versions" in text
