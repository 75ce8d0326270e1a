"""Machines this one is not: what would be refused there, in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.program.build import certified

from intact.errors import EngineError
from intact.program.program import Program
from intact.runtime.facts import Facts, available_memory
from intact.runtime.preflight import OK, REFUSED, UNKNOWN, candidates, memory_needed, preflight, refusal

GIB = 1 << 30
AVX2 = frozenset({"sse4_1", "sse4_2", "avx", "avx2"})
GOOD = Facts(
    system="Linux", machine="x86_64", cpu="a CPU", features=AVX2 | {"avx512bw", "avx512_vnni"}, python="3.11.7",
    memory=8 * GIB, glibc="2.36", glibcxx="3.4.30",
    packages={"numpy": "2.1.0", "torch": "2.13.0+cpu", "onnx": "1.17.0", "onnxruntime": "1.20.1", "openvino": "2026.4"},
    wheels={
        "torch": ("manylinux_2_28_x86_64",), "onnxruntime": ("manylinux_2_27_x86_64.manylinux_2_28_x86_64",),
        "openvino": ("manylinux2014_x86_64",),
    },
)  # fmt: skip
ENGINES = ("reference", "onednn", "onnxruntime", "openvino")


def needy() -> Program:
    return replace(certified(), needs=("vnni",))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [certified, needy])
def test_a_good_machine_is_good_for_all(engine: str, program: object) -> None:
    rows = preflight(program(), engine, GOOD)  # type: ignore[operator]
    assert all(row.verdict == OK for row in rows) and refusal(rows, engine) is None


CASES = {
    "no VNNI": (needy, "onednn", {"features": AVX2}, "AVX512-VNNI or AVX-VNNI; found is AVX2", "portable=True"),
    "no VNNI, onnxruntime": (needy, "onnxruntime", {"features": AVX2}, "found is AVX2", "engine='reference'"),
    "VNNI switched off": (
        needy, "openvino", {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}},
        "AVX512 (ONEDNN_MAX_CPU_ISA=AVX512_CORE)", "portable=True",
    ),
    "VNNI unknown": (needy, "onednn", {"features": frozenset()}, "cannot be read", "portable=True"),
    "old CPU": (certified, "onednn", {"features": frozenset({"sse2"})}, "no sse4_1", "engine='reference'"),
    "old CPU, openvino": (certified, "openvino", {"features": frozenset({"sse4_1"})}, "no sse4_2", "reference"),
    "Arm, onednn": (certified, "onednn", {"machine": "aarch64"}, "found is aarch64", "onnxruntime"),
    "Arm, openvino": (certified, "openvino", {"machine": "aarch64"}, "found is aarch64", "onnxruntime"),
    "no torch": (certified, "onednn", {"packages": {}}, "not installed", "intact[torch]"),
    "old torch": (certified, "onednn", {"packages": {"torch": "2.7.1"}}, "found is 2.7.1", "upgrade torch"),
    "old torch, longer": (certified, "onednn", {"packages": {"torch": "1.13.1+cu117"}}, "1.13.1+cu117", "upgrade"),
    "no onnx": (certified, "onnxruntime", {"packages": {"onnxruntime": "1.20"}}, "not installed", "intact[onnx]"),
    "old openvino": (certified, "openvino", {"packages": {"openvino": "2024.6.0"}}, "2024.6.0", "upgrade"),
    "a wheel for Arm": (certified, "onednn", {"wheels": {"torch": ("linux_aarch64",)}}, "linux_aarch64", "reinstall"),
    "old glibc": (certified, "onednn", {"glibc": "2.17"}, "glibc 2.28; found is 2.17", "newer system"),
    "old libstdc++": (certified, "onednn", {"glibcxx": "3.4.9"}, "GLIBCXX up to 3.4.24", "LD_LIBRARY_PATH"),
    "no memory": (certified, "onednn", {"memory": 100 << 20}, "found is 100 MiB", "free memory"),
    "no memory, reference": (certified, "reference", {"memory": 1000}, "found is 0 MiB", "free memory"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refusals_say_found_needed_and_what_to_do(case: str) -> None:
    program, engine, changes, words, remedy = CASES[case]
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
    assert candidates(["a", "b"]) == ("a", "b") and candidates("a") == ("a",)
    assert candidates("auto")[-1] == "reference" and len(candidates("auto")) >= 3


def test_memory_counts_arrays_and_the_worst_moment() -> None:
    program = certified()
    largest = 3 * 8 * 8 + 2 * 4 * 8 * 8
    assert 2 * program.nbytes() + 4 * largest <= memory_needed(program) <= 2 * program.nbytes() + 4 * 3 * largest


def test_facts_of_this_machine() -> None:
    facts = Facts.here()
    assert facts.packages["numpy"] and facts.machine and facts.system
    memory = available_memory()
    assert memory is None or memory > 1 << 20
    assert facts.to_json()["features"] == sorted(facts.features)
