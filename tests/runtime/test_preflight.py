"""Machines this one is not: what would be refused there, in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.program.build import certified, network
from tests.runtime.faults.machines import AVX2, GOOD, MACHINES, needy

from intact8.errors import EngineError
from intact8.machine import available_memory
from intact8.runtime.facts import Facts
from intact8.runtime.preflight import OK, REFUSED, UNKNOWN, candidates, claim_row, preflight, refusal

ENGINES = ("reference", "onednn", "onnxruntime", "openvino", "native")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [certified, needy])
def test_a_good_machine_is_good_for_all(engine: str, program: object) -> None:
    rows = preflight(program(), engine, GOOD)  # type: ignore[operator]
    assert all(row.verdict == OK for row in rows) and refusal(rows, engine) is None


@pytest.mark.parametrize("case", MACHINES)
def test_refusals_say_found_needed_and_what_to_do(case: str) -> None:
    program, engine, changes, words, remedy = MACHINES[case]
    error = refusal(preflight(program(), engine, replace(GOOD, **changes)), engine)
    assert isinstance(error, EngineError)
    assert words in str(error) and remedy in error.remedy and engine in error.what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"features": frozenset()}, "CPU features"),
        ({"glibc": None}, "C library for torch"),
        ({"glibcxx": "3.4.9", "glibcxx_loaded": False}, "C++ library for torch"),
        ({"memory": None}, "memory"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_what_cannot_be_read_is_left_to_the_probe(changes: dict[str, object], what: str) -> None:
    rows = preflight(certified(), "onednn", replace(GOOD, **changes))  # type: ignore[arg-type]
    assert [row.verdict for row in rows if row.what == what] == [UNKNOWN]
    assert all(row.verdict != REFUSED for row in rows)


def test_vnni_is_no_matter_off_x86_and_on_the_reference() -> None:
    arm = replace(GOOD, machine="aarch64", features=frozenset({"asimd"}), wheels={})
    assert refusal(preflight(needy(), "onnxruntime", arm), "onnxruntime") is None
    assert refusal(preflight(needy(), "reference", replace(GOOD, features=AVX2)), "reference") is None


def test_an_engine_of_another_package_needs_memory_only() -> None:
    assert [row.what for row in preflight(certified(), "warp", GOOD)] == ["memory"]


def test_candidates() -> None:
    assert candidates(["onednn", "native"]) == ("onednn", "native") and candidates("native") == ("native",)
    with pytest.raises(EngineError, match="there is no engine 'a'"):
        candidates(["native", "a"])
    assert candidates("auto")[-1] == "reference" and len(candidates("auto")) >= 3


def test_facts_of_this_machine() -> None:
    facts = Facts.here()
    assert facts.packages["numpy"] and facts.machine and facts.system
    memory = available_memory()
    assert memory is None or memory > 1 << 20
    assert facts.to_json()["features"] == sorted(facts.features)


def test_whether_certificates_claim_an_engine_is_no_question_of_the_reference() -> None:
    assert claim_row(certified(), "onednn").verdict == OK
    assert claim_row(network(), "reference").verdict == OK
    row = claim_row(network(), "onednn")
    assert row.verdict == UNKNOWN and "net.c1" in row.found


def test_the_native_engine_needs_its_library() -> None:
    error = refusal(preflight(certified(), "native", replace(GOOD, compiled=False)), "native")
    assert error is not None and "librar" in str(error)
