"""engine="auto": measured once, remembered, and never in the way of loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import certified, data, network

from intact8.engines import available_engines, get_runner
from intact8.errors import InputError
from intact8.golden import with_golden
from intact8.outputs import rebuild
from intact8.program.certify import EVALUATIONS, certifiable, certify
from intact8.program.file import save
from intact8.runtime import Facts, fastest, load
from intact8.runtime.check import check_file

several = pytest.mark.skipif(len(available_engines()) < 3, reason="needs two engines besides the reference")


@pytest.fixture(autouse=True)
def _claims_of_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away that the native engine is proved for every program, which leaves little to measure."""
    monkeypatch.setitem(EVALUATIONS, "native", replace(EVALUATIONS["native"], own=False))


@pytest.fixture
def open_path(tmp_path: Path, cache: Path) -> Path:
    """A file whose certificates claim no engine but the reference: all others are equal."""
    return save(with_golden(certify(network(), ("reference",))), tmp_path / "open.safetensors")


@several
def test_auto_takes_what_the_certificates_claim(tmp_path: Path, cache: Path, open_path: Path) -> None:
    claims = ("reference", "onnxruntime")
    claimed = save(with_golden(certify(network(), claims)), tmp_path / "claimed.safetensors")
    info = load(claimed, probe="never").info
    assert list(info.measured or {info.engine: 0}) == ["onnxruntime"] and not any("proof" in r for r in info.remarks)
    fastest.remember(fastest.key(load(claimed).program, None, 1, Facts.here()), {"onednn": 1.0})
    assert load(claimed, probe="never").info.engine == "onnxruntime", "what was measured once does not outdo a proof"
    for engine in ("onednn", "auto"):
        first = next(op for op in network().ops if certifiable(op))
        remarks = load(claimed if engine == "onednn" else open_path, engine=engine, probe="never").info.remarks
        assert any(r.startswith("proof: not proved for ") and first.name in r for r in remarks)
    assert get_runner(certify(network(), claims)).__class__.__name__ == "OnnxRuntimeRunner"
    assert "engine='auto' takes onnxruntime" in check_file(claimed, probe=False).verdict


@several
def test_auto_measures_and_takes_the_fastest(open_path: Path) -> None:
    runner = load(open_path, probe="never")
    assert set(runner.info.measured) == set(available_engines()) - {"reference"}
    assert list(runner.info.measured.values()) == sorted(runner.info.measured.values())
    assert runner.info.engine == next(iter(runner.info.measured)) and runner.info.seconds["measure"] > 0
    x, bias = data()
    expected = rebuild(certified().structure, get_runner(certified(), runner.info.engine)({"x": x, "bias": bias}))
    np.testing.assert_equal(runner(x, bias=bias), expected)


@several
def test_what_was_measured_is_remembered_per_batch_and_threads(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = load(open_path, probe="never").info.measured
    monkeypatch.setattr(fastest, "measure", lambda *_: pytest.fail("measured again"))
    again = load(open_path, probe="never")
    assert again.info.measured == measured and again.info.engine == next(iter(measured))
    assert "measure" not in again.info.seconds
    for other in ({"batch": 8}, {"threads": 1}):
        with pytest.raises(pytest.fail.Exception, match="measured again"):
            load(open_path, probe="never", **other)


@several
def test_the_remembered_order_is_obeyed_and_falls_through(open_path: Path) -> None:
    program, facts = load(open_path, engine="reference").program, Facts.here()
    for slowest in ("onnxruntime", "openvino"):
        times = {name: 1.0 for name in available_engines() if name != "reference"} | {slowest: 2.0, "absent": 0.5}
        fastest.remember(fastest.key(program, None, 1, facts), times)
        info = load(open_path, probe="never", facts=facts).info
        assert info.engine not in ("absent", slowest)
        assert [s.engine for s in info.skipped] == ["absent"]


@several
def test_samples_that_cannot_be_run_leave_the_order_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, float]:
        raise InputError("NaN reached a quantize")

    monkeypatch.setattr(fastest, "measure", refuse)
    info = load(path, probe="never").info
    assert info.measured == {} and info.engine == "onednn"


def test_files_that_do_not_know_the_native_engine_run_on_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "native" not in load(path, probe="never").program.ops[1].certificate["engines"]  # type: ignore[index]
    monkeypatch.setitem(EVALUATIONS, "native", replace(EVALUATIONS["native"], own=True))
    info = load(path, probe="never").info
    assert (info.engine == "native") == ("native" in available_engines()) and not any(
        "proof" in r for r in info.remarks
    )


def test_a_damaged_memory_is_measured_anew(path: Path, cache: Path) -> None:
    load(path, probe="never")
    for entry in cache.glob("*.json"):
        entry.write_text('{"result": {"milliseconds": {"onednn": "fast"}}, "sum": ""}')
    assert load(path, probe="never").info.engine in available_engines()


def test_an_engine_the_machine_cannot_run_is_not_measured(path: Path) -> None:
    facts = replace(Facts.here(), machine="riscv64")
    info = load(path, probe="never", facts=facts).info
    assert "onednn" not in info.measured and "onednn" in [s.engine for s in info.skipped]


@several
def test_processes_that_start_at_once_share_one_measurement(tmp_path: Path, cache: Path) -> None:
    claims = [name for name in available_engines() if name != "onednn"]
    open_path = save(with_golden(certify(network(), claims)), tmp_path / "open.safetensors")
    code = (
        f"import intact8.runtime as r, json; i = r.load({str(open_path)!r}, probe='never').info; "
        "print(json.dumps([i.engine, i.measured, 'measure' in i.seconds]))"
    )
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) for _ in range(4)
    ]
    found = [json.loads(child.communicate(timeout=300)[0]) for child in children]
    assert all(child.returncode == 0 for child in children)
    assert sum(f[2] for f in found) == 1, f"{found} after {time.monotonic() - began:.1f} s"
    assert len({(f[0], json.dumps(f[1])) for f in found}) == 1
