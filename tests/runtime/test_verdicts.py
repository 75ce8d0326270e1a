"""Every verdict of a preflight and of a probe, from both sides of its limit, on machines and children made up."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.program.build import certified
from tests.runtime.faults.machines import AVX2, GIB, GOOD, needy

from intact8.engines.memory import predicted, seconds
from intact8.engines.spec import MIB, SPECS
from intact8.errors import EngineError
from intact8.golden import with_golden
from intact8.program.golden import Golden
from intact8.runtime import cache, fastest, probe_policy, probe_process
from intact8.runtime.facts import Facts
from intact8.runtime.preflight import (
    GLIBCXX,
    OK,
    REFUSED,
    UNKNOWN,
    Row,
    _modern,
    _numbers,
    candidates,
    origin_row,
    preflight,
    program_rows,
    refusal,
)
from intact8.runtime.probe_process import Outcome, failure

PROGRAM = certified()


def verdicts(engine: str, what: str, program: Any = PROGRAM, **changes: Any) -> list[str]:
    return [row.verdict for row in preflight(program, engine, replace(GOOD, **changes)) if row.what == what]


@pytest.mark.parametrize("engine", SPECS)
def test_packages_from_their_lowest_version_on(engine: str) -> None:
    needs = SPECS[engine]
    for name, lowest in needs.packages.items():
        major, minor = map(int, lowest.split("."))
        below = f"{major}.{minor - 1}.9" if minor else f"{major - 1}.99"
        for version, verdict in ((lowest, OK), (f"{lowest}.0+cpu", OK), (f"{major + 1}.0", OK), (below, REFUSED),
                                 ("unknown", REFUSED)):  # fmt: skip
            assert verdicts(engine, name, packages={**GOOD.packages, name: version}) == [verdict], version
        rows = preflight(PROGRAM, engine, replace(GOOD, packages={}))
        row = next(r for r in rows if r.what == name)
        install = f"pip install 'intact8[{needs.extra}]'" if needs.extra else f"pip install --upgrade {name}"
        assert (row.verdict, row.found) == (REFUSED, "not installed") and row.remedy.startswith(install)
    assert (needs.footprint, needs.features) == {
        "reference": (0, ()), "onednn": (300 << 20, ("sse4_1",)), "onnxruntime": (80 << 20, ("sse4_1",)),
        "openvino": (120 << 20, ("sse4_2",)), "native": (0, ()),
    }[engine]  # fmt: skip
    for feature in needs.features:
        assert verdicts(engine, "CPU features") == [OK]
        assert verdicts(engine, "CPU features", features=GOOD.features - {feature}) == [REFUSED]
        assert verdicts(engine, "CPU features", features=frozenset()) == [UNKNOWN]
        assert verdicts(engine, "CPU features", machine="aarch64") == []


@pytest.mark.parametrize("engine", SPECS)
def test_memory_from_both_sides(engine: str) -> None:
    needed = predicted(PROGRAM, engine) + SPECS[engine].footprint
    assert predicted(PROGRAM, engine) > 0
    for memory, verdict in ((needed, OK), (needed - 1, REFUSED), (None, UNKNOWN)):
        assert verdicts(engine, "memory", memory=memory) == [verdict]
    row = preflight(PROGRAM, engine, replace(GOOD, memory=5 * MIB))[-1]
    assert (row.needed, row.found) == (f"about {max(needed // MIB, 1)} MiB", "5 MiB") and MIB == 1 << 20


def test_instruction_sets_that_are_switched_off() -> None:
    plain, old = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"
    for engine, program, limit, variable, verdict in (
        ("onednn", needy(), "AVX512_CORE_VNNI", plain, OK),
        ("onednn", needy(), "avx512_core", plain, REFUSED),
        ("onednn", needy(), "avx2", old, REFUSED), ("onednn", needy(), "default", old, OK),
        ("onednn", needy(), "ALL", plain, OK), ("onnxruntime", needy(), "avx2", plain, OK),
        ("openvino", needy(), "avx2", plain, REFUSED), ("onednn", PROGRAM, "avx2", plain, OK),
    ):  # fmt: skip
        assert verdicts(engine, "CPU features", program, environment={variable: limit}) == [verdict], (engine, limit)
    rows = preflight(PROGRAM, "onednn", replace(GOOD, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}))
    assert next(r.found for r in rows if r.what == "CPU features") == "AVX2 (ONEDNN_MAX_CPU_ISA=AVX2)"


def test_libraries_of_wheels_from_both_sides() -> None:
    def row(what: str, **changes: Any) -> list[str]:
        return verdicts("onednn", f"{what} for torch", **changes)

    for glibc, verdict in (("2.28", OK), ("2.27", REFUSED), ("2.100", OK), ("3.0", OK), (None, UNKNOWN)):
        assert row("C library", glibc=glibc) == [verdict]
    assert row("C library", system="Darwin") == row("C++ library", system="Darwin") == []
    for glibcxx, loaded, verdict in (("3.4.24", True, OK), ("3.4.23", True, REFUSED), ("3.4.23", False, UNKNOWN)):
        assert row("C++ library", glibcxx=glibcxx, glibcxx_loaded=loaded) == [verdict]
    assert row("C++ library", glibcxx=None) == []
    for wheels in ((), ("any",)):
        assert (
            row("C library", wheels={"torch": wheels})
            == verdicts("onednn", "torch wheel", wheels={"torch": wheels})
            == []
        )
    assert list(GLIBCXX) == sorted(GLIBCXX) and {major for major, _ in GLIBCXX} == {2}
    for policy, newest in GLIBCXX.items():
        for name in (f"manylinux_{policy[0]}_{policy[1]}_x86_64",):
            rows = preflight(PROGRAM, "onednn", replace(GOOD, wheels={"torch": (name,)}))
            assert next(r.needed for r in rows if r.what == "C++ library for torch") == f"GLIBCXX up to {newest}"
    lowest = ("manylinux_2_35_x86_64.manylinux_2_28_x86_64",)
    assert row("C library", wheels={"torch": lowest}, glibc="2.28") == [OK]
    assert row("C++ library", wheels={"torch": ("manylinux_2_4_x86_64",)}) == []
    for tag, machine, verdict in (
        ("win_amd64", "AMD64", OK), ("win_amd64", "x86_64", OK), ("linux_aarch64", "x86_64", REFUSED),
        ("macosx_11_0_universal2", "x86_64", OK), ("macosx_11_0_arm64", "x86_64", REFUSED),
    ):  # fmt: skip
        assert verdicts("onednn", "torch wheel", machine=machine, wheels={"torch": (tag,)}) == [verdict]
    assert verdicts("onnxruntime", "onnxruntime wheel", machine="aarch64",
                    wheels={"onnxruntime": ("macosx_11_0_arm64",)}) == [OK]  # fmt: skip
    assert [_modern(f"manylinux{v}_x86_64") for v in ("1", "2010", "2014", "_2_28")] == [
        f"manylinux_2_{v}_x86_64" for v in (5, 12, 17, 28)
    ]
    assert [_numbers(v) for v in ("2.13.0+cpu", "1", "v2", "2.x")] == [(2, 13, 0), (1,), (), (2,)]


def test_architectures_and_candidates() -> None:
    for engine, needs in SPECS.items():
        assert verdicts(engine, "architecture", machine="aarch64") == [REFUSED if needs.x86 else OK]
        for machine in ("x86_64", "AMD64"):
            assert verdicts(engine, "architecture", machine=machine) == [OK]
    assert {e: n.x86 for e, n in SPECS.items()} == {
        "reference": False, "onednn": True, "onnxruntime": False, "openvino": True, "native": False,
    }  # fmt: skip
    assert candidates(("onednn", "reference")) == ("onednn", "reference")
    with pytest.raises(EngineError, match="no engine is named"):
        candidates([])
    rows = [Row("a", "1", "2", UNKNOWN), Row("b", "3", "4", REFUSED, "do"), Row("c", "5", "6", REFUSED)]
    error = refusal(rows, "warp")
    assert error is not None and (error.where, error.remedy) == ("b", "do") and "3; found is 4" in str(error)
    assert refusal(rows[:1], "warp") is None


def test_what_a_file_says_of_itself() -> None:
    proofs, vectors = program_rows(with_golden(PROGRAM))
    assert (proofs.verdict, vectors.verdict) == (OK, OK)
    assert proofs.found == f"{sum(op.certificate is not None for op in PROGRAM.ops)} proved"
    golden = with_golden(PROGRAM).golden
    assert golden is not None
    assert vectors.found == f"{len(golden.samples)} samples, {len(golden.checksums)} tensors"
    bare = replace(PROGRAM, ops=tuple(replace(op, certificate=None) for op in PROGRAM.ops), golden=None)
    proofs, vectors = program_rows(bare)
    assert (proofs.verdict, vectors.verdict) == (UNKNOWN, UNKNOWN)
    assert proofs.found.startswith("0 proved; not proved: net.c1 (") and "without them" in vectors.found
    left = program_rows(replace(PROGRAM, golden=Golden(omitted="too long")))[1]
    assert (left.found, left.verdict) == ("too long", UNKNOWN)


def test_where_a_file_was_made() -> None:
    made = {
        "machine": "x86_64",
        "cpu_features": ["avx2", "avx", 3],
        "intact8": "0.1",
        "torch": "2.9",
        "python": "3.12.1",
    }
    found = origin_row(replace(PROGRAM, provenance=made), replace(GOOD, machine="aarch64")).found
    assert (
        found
        == "x86_64 with AVX2, intact8 0.1, torch 2.9, python 3.12.1; here: aarch64, torch 2.13.0+cpu, python 3.11.7"
    )
    for provenance, words in (
        ({}, "not recorded; here: x86_64 with AVX512-VNNI, "), ({"machine": "AMD64", "cpu_features": "a"}, "AMD64; "),
        ({"machine": "m" * 30}, "m" * 20 + ";"), ({"machine": "aarch64", "cpu_features": ["avx2"]}, "aarch64; here"),
    ):  # fmt: skip
        assert origin_row(replace(PROGRAM, provenance=provenance), GOOD).found.startswith(words)


CHANGES: list[dict[str, Any]] = [
    {"system": "Darwin"}, {"machine": "arm64"}, {"cpu": "another"}, {"features": AVX2}, {"python": "3.12.0"},
    {"glibc": "2.37"}, {"glibcxx": "3.4.31"}, {"packages": {**GOOD.packages, "torch": "2.14"}},
    {"environment": {"OMP_NUM_THREADS": "1"}},
]  # fmt: skip


def test_everything_that_could_end_a_probe_differently_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_golden(PROGRAM)
    first = cache.key(program, "onednn", 2, GOOD)
    assert first == cache.key(program, "onednn", 2, GOOD)
    assert cache.key(program, "onednn", 2, replace(GOOD, memory=1)) == first  # what changes from minute to minute
    keys = [first, *(cache.key(program, "onednn", 2, replace(GOOD, **c)) for c in CHANGES)]
    keys += [cache.key(replace(program, recipe="other"), "onednn", 2, GOOD), cache.key(program, "openvino", 2, GOOD)]
    keys += [cache.key(program, "onednn", 3, GOOD), cache.key(program, "onednn", None, GOOD)]
    keys += [cache.key(PROGRAM, "onednn", 2, GOOD), fastest.key(program, 2, 1, GOOD)]
    keys += [fastest.key(program, 2, 8, GOOD), fastest.key(program, 3, 8, GOOD)]
    monkeypatch.setattr(cache, "_library", lambda: [1, 2])
    keys.append(cache.key(program, "onednn", 2, GOOD))
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    keys.append(cache.key(program, "onednn", 2, GOOD))
    assert len(set(keys)) == len(keys)


def test_measurements_are_recalled_fastest_first(cache_dir: Path) -> None:
    assert fastest.remember("k", {"slow": 3.0, "fast": 0.5, "middle": 1.0}) == ""
    assert list((fastest.recall("k") or {}).items()) == [("fast", 0.5), ("middle", 1.0), ("slow", 3.0)]
    for bad in ({"a": 0.0}, {"a": -1.0}, {"a": 1}, {"a": True}, {"a": "1"}, {"auto": 1.0}, {}, {"a": 1.0, "b": 0.0}):
        fastest.remember("k", bad)
        assert fastest.recall("k") is None
    for result in ({"milliseconds": [1.0]}, {"other": {"a": 1.0}}):
        cache.remember("k", result)
        assert fastest.recall("k") is None
    assert fastest.recall("nothing") is None


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_measuring_times_every_engine() -> None:
    program, calls = PROGRAM, {"a": 0, "b": 0}

    def runner(name: str) -> Any:
        def run(*inputs: Any) -> None:
            assert [x.shape[0] for x in inputs] == [3, 3]
            calls[name] += 1

        return run

    found = fastest.measure(program, {"a": runner("a"), "b": runner("b")}, 3)
    assert set(found) == {"a", "b"} and all(0 < v < 1000 for v in found.values())
    assert list(found.values()) == sorted(found.values())
    assert min(calls.values()) >= fastest.LEAST
    assert fastest.measure(program, {"a": runner("a")}, 3, limit=1e-9) == {}


def test_memory_of_a_probe() -> None:
    need = predicted(PROGRAM, "onednn")
    assert (probe_policy.GIB, probe_policy.SMALL, probe_policy.SHARE) == (1 << 30, 1 << 28, 4)
    generous = max(4 * GIB, 4 * need + 2 * GIB)
    for memory, limit in ((None, generous), (64 * GIB, generous), (GIB, GIB), (1, GIB // 4), (GIB // 4, GIB // 4)):
        assert probe_policy.memory_limit(PROGRAM, replace(GOOD, memory=memory), "onednn") == limit


def test_memory_of_a_probe_of_something_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_policy, "predicted", lambda program, engine: 3 * GIB)
    assert probe_policy.memory_limit(PROGRAM, replace(GOOD, memory=None), "onednn") == 14 * GIB


def test_what_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_golden(PROGRAM)
    assert program.golden is not None
    count, each = len(program.golden.samples), seconds(program)
    limit = count * each * 4
    assert count > 1 and each > 0
    for memory in (None, 8 * GIB):
        facts = replace(GOOD, memory=memory)
        assert probe_policy.is_small(program, limit, facts) and not probe_policy.is_small(program, limit * 0.999, facts)
        assert probe_policy.is_small(replace(program, golden=None), each * 4, facts)
        assert not probe_policy.is_small(replace(program, golden=None), each * 3.99, facts)
    for needed, memory, small in ((GIB // 4, None, True), (GIB // 4 + 1, None, False), (GIB // 4, GIB, True),
                                  (1000, 4000, True), (1001, 4000, False), (GIB, 9 * GIB, False)):  # fmt: skip
        monkeypatch.setattr(probe_policy, "predicted", lambda program, engine, n=needed: n)
        assert probe_policy.is_small(program, 1e9, replace(GOOD, memory=memory)) is small


STAGE = json.dumps({"stage": "preparing"})
DONE, NO = (
    json.dumps({"result": {"golden": "5 tensors"}}),
    json.dumps({"refused": {"what": "w", "where": "", "why": "", "remedy": ""}}),
)
ENDS: list[tuple[int, list[str], list[str], bool, str, str, str]] = [
    # status, told, said, late; verdict, stage, detail
    (0, [STAGE, DONE], [], False, "passed", "preparing", "5 tensors"),
    (1, [STAGE, DONE], ["Error: x"], False, "failed", "preparing", "Error: x (exit status 1)"),
    (0, [STAGE, NO], [], False, "refused", "preparing", "w"),
    (1, [NO], [], False, "refused", "starting Python", "w"),
    (-9, [STAGE], [], True, "late", "preparing", "not done after 7 s"),
    (-11, [STAGE, '{"sta'], ['  File "a.py", line 3 in f', '  File "b.py"', "boom", "Current thread 0x1:", ""], False,
     "died", "preparing", 'at File "a.py", line 3 in f, last words: boom'),
    (-11, [], [], False, "died", "starting Python", ""),
    (-4, [], ["Fatal Python error: Illegal", "  illegal  ", "Extension modules: x"], False, "died", "starting Python",
     "last words: illegal"),
    (-200, [], [], False, "died", "starting Python", ""),
    (3, [], ["first", "  last  ", "", " "], False, "failed", "starting Python", "last (exit status 3)"),
    (1, [], [], False, "failed", "starting Python", "it said nothing (exit status 1)"),
    (1, [], ["x" * 600], False, "failed", "starting Python", "x" * 500 + " (exit status 1)"),
    (-6, [], ["y" * 400], False, "died", "starting Python", "last words: " + "y" * 300),
    (-1073741819, [], [], False, "died", "starting Python", ""),
    (0xC000001D, [], [], False, "died", "starting Python", ""),
]  # fmt: skip
SIGNALS = {-11: "SIGSEGV", -4: "SIGILL", -200: "signal 200", -6: "SIGABRT", 0xC000001D: "illegal instruction",
           -1073741819: "signal 1073741819"}  # fmt: skip


@pytest.mark.parametrize(("code", "told", "said", "late", "verdict", "stage", "detail"), ENDS)
def test_what_became_of_a_child(
    code: int, told: list[str], said: list[str], late: bool, verdict: str, stage: str, detail: str
) -> None:
    found = probe_process._outcome(code, told, said, late, 7.4)
    assert (found.verdict, found.stage, found.detail, found.seconds) == (verdict, stage, detail, 7.4)
    assert found.signal == (SIGNALS[code] if verdict == "died" else "")
    assert found.lasting == (verdict == "passed" or found.signal in probe_process.LASTING)
    again = Outcome.from_json(json.loads(json.dumps(found.to_json())))
    assert again == (found if found.lasting and not found.error else None)


def test_only_whole_outcomes_come_back() -> None:
    good = Outcome("passed", "s", "d", "", 1.5).to_json()
    assert Outcome.from_json(good) == Outcome("passed", "s", "d", "", 1.5)
    assert Outcome.from_json({**good, "seconds": 2}) is not None
    for bad in ({"seconds": "1"}, {"seconds": None}, {"error": {"what": "x"}}, {"error": None}, {"verdict": "late"},
                {"stage": 1}, {"detail": None}, {"more": 1}, {"verdict": "died", "signal": "SIGKILL"}):  # fmt: skip
        assert Outcome.from_json({**good, **bad}) is None
    assert Outcome.from_json({k: v for k, v in good.items() if k != "stage"}) is None
    assert {s for s in probe_process.LASTING if s.startswith("SIG")} == {
        signal.Signals(n).name for n in (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)
    }


def test_errors_of_probes_say_what_else_to_do() -> None:
    died, late = Outcome("died", "preparing", "why", "SIGILL"), Outcome("late", "running", "not done")
    error = failure(died, "onednn", ("reference", "x"), False)
    assert "dies of SIGILL on this machine (illegal instruction" in error.what and error.where == "onednn, preparing"
    assert (error.remedy, error.why) == ("use engine='reference'", "why")
    assert failure(died, "onednn", (), False).remedy == "run on another machine"
    assert failure(died, "onednn", (), True).remedy.endswith("earlier load on this machine, probe='always' tries again")
    assert failure(late, "onednn", ("reference",), False).remedy == (
        "use engine='reference', or give it longer: time_limit="
    )
    assert "does not come to an end" in failure(late, "onednn", (), False).what
    assert "fails on this machine" in failure(Outcome("failed"), "onednn", (), False).what
    told = {"what": "w", "where": "h", "why": "y", "remedy": "r"}
    refused = failure(Outcome("refused", error=told), "onednn", ("reference",), False)
    assert (refused.what, refused.where, refused.why, refused.remedy) == ("w", "h", "y", "r")
    told["remedy"] = ""
    assert failure(Outcome("refused", error=told), "onednn", ("a",), False).remedy == "use engine='a'"


class Parts:
    """A pipe that gives so many bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self.stream, self.step = BytesIO(data), step

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *args: object) -> None: ...

    def read1(self, size: int) -> bytes:
        return self.stream.read(min(self.step, size))


def test_tails_keep_the_end() -> None:
    for size, step in ((10, 3), (1 << 18, 1 << 16), ((1 << 19) + 5, 1 << 16), ((1 << 20) + 77, 1000)):
        data = bytes(65 + i % 26 for i in range(size))
        tail = probe_process._Tail(Parts(data, step))  # type: ignore[arg-type]
        tail.join()
        kept = "".join(tail.lines()).encode()
        assert data.endswith(kept) and min(size, 1 << 18) <= len(kept) <= (1 << 18) + (1 << 16)


def test_a_machine_in_json() -> None:
    found = GOOD.to_json()
    assert found["features"] == sorted(GOOD.features) and found["wheels"]["torch"] == ["manylinux_2_28_x86_64"]
    assert json.loads(json.dumps(found)) == found and set(found) == set(Facts("", "").to_json())


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "0 ms"), (0.204, "204 ms"), (1.2, "1 s"), (120.0, "120 s")])
def test_how_long_a_child_took_is_never_told_as_nothing(seconds: float, told: str) -> None:
    assert probe_process._outcome(-9, [STAGE], [], True, seconds).detail == f"not done after {told}"
