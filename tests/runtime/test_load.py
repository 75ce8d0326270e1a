"""Loading what is right: which engine, what was checked, what is remembered, what comes out."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import certified, data
from tests.test_import import run_python

import intact8.runtime
from intact8.engines import get_runner, prepare
from intact8.errors import EngineError, InputError, ProgramError
from intact8.outputs import rebuild
from intact8.program.file import digest, save
from intact8.runtime import Facts, load

LIMIT = 60.0


def test_importing_it_is_light_and_brings_no_torch(tmp_path: Path) -> None:
    # The first run compiles the modules, as an installation does, whatever the environment says of bytecode.
    # ru_maxrss would count the memory of the process that started this one.
    code = (
        "import sys, time; t = time.process_time(); import intact8.runtime.load; t = time.process_time() - t; "
        "status = open('/proc/self/status').read() if sys.platform == 'linux' else 'VmRSS: 0'; "
        "print(t, status.split('VmRSS:')[1].split()[0], 'torch' in sys.modules)"
    )
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    runs = [run_python(code, **bytecode) for _ in range(2)]
    while len(runs) < 10 and float(runs[-1][0]) >= 0.3:  # beside other work, an import takes longer, now and then
        runs.append(run_python(code, **bytecode))
    assert float(runs[-1][0]) < 0.3
    assert max(float(run[1]) / 1024 for run in runs) < 80
    assert all(run[2] == "False" for run in runs)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
def test_loading_without_torch(path: Path, engine: str) -> None:
    if engine != "reference":
        pytest.importorskip(engine)
    code = f"import intact8.runtime as r, sys; r.load({str(path)!r}, engine={engine!r}); print('torch' in sys.modules)"
    assert run_python(code) == ["False"]


def test_a_loaded_program_gives_what_the_reference_gives(path: Path) -> None:
    runner = load(path, engine="reference")
    x, bias = data()
    program = certified()
    expected = rebuild(program.structure, get_runner(program, "reference")({"x": x, "bias": bias}))
    np.testing.assert_equal(runner(x, bias=bias), expected)


def test_torch_tensors_go_in_and_come_out_without_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    runner = load(path, engine="reference")
    x, bias = (torch.from_numpy(array) for array in data())
    seen: list[int] = []
    inner = runner._runner

    def watch(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        seen.append(arrays["x"].__array_interface__["data"][0])
        out = inner(arrays)
        seen.append(out[0].__array_interface__["data"][0])
        return out

    monkeypatch.setattr(runner, "_runner", watch)
    out = runner(x, bias)["probabilities"]
    assert isinstance(out, torch.Tensor)
    assert seen == [x.data_ptr(), out.data_ptr()]


def test_an_empty_batch_and_wrong_inputs(path: Path) -> None:
    runner = load(path, engine="reference")
    x, bias = data(1)
    assert runner(x[:0], bias[:0])["probabilities"].shape == (0, 5)
    with pytest.raises(InputError, match="no input is given"):
        runner()
    with pytest.raises(InputError, match="bias"):
        runner(x)


def test_info_tells_how_it_came_to_run(path: Path) -> None:
    info = load(path, engine="reference").info
    assert info.engine == "reference" and info.digest == digest(certified())
    assert info.inputs["x"] == ("float32", (None, 3, 8, 8))
    assert info.golden.startswith("4 samples") and "not needed" in info.probe
    assert {"file", "preflight", "prepare", "golden"} <= set(info.seconds)
    assert json.loads(json.dumps(info.to_json()))["engine"] == "reference"
    assert "reference" in repr(load(path, engine="reference"))


@pytest.mark.usefixtures("engines")
def test_the_first_load_probes_and_the_next_remembers(path: Path) -> None:
    assert load(path, engine="fine").info.probe == "passed"
    assert load(path, engine="fine").info.probe == "remembered"
    assert load(path, engine="fine", probe="always").info.probe == "passed"
    assert load(path, engine="fine", probe="never").info.probe.startswith("switched off")


@pytest.mark.usefixtures("engines")
def test_what_is_remembered_belongs_to_program_engine_and_machine(path: Path, tmp_path: Path) -> None:
    load(path, engine="fine")
    facts = Facts.here()
    for other in (
        replace(facts, cpu="another"),
        replace(facts, features=frozenset({"sse4_1", "sse4_2"})),
        replace(facts, packages={**facts.packages, "numpy": "9.9"}),
        replace(facts, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    ):
        assert load(path, engine="fine", facts=other).info.probe == "passed"
    changed = save(replace(certified(), recipe="other"), tmp_path / "other")
    assert load(changed, engine="fine").info.probe == "passed"
    assert load(path, engine="fine").info.probe == "remembered"


@pytest.mark.parametrize("engine", ["onednn", "onnxruntime", "openvino"])
def test_real_engines_pass_the_probe(path: Path, engine: str) -> None:
    pytest.importorskip({"onednn": "torch"}.get(engine, engine))
    from intact8.program.file import load as read
    from intact8.runtime.preflight import preflight, refusal

    error = refusal(preflight(read(path), engine, Facts.here()), engine)
    if error is not None:
        pytest.skip(str(error))
    runner = load(path, engine=engine)
    assert runner.info.probe == "passed" and runner.info.golden.startswith("4 samples")


@pytest.mark.usefixtures("engines")
def test_files_without_golden_vectors_load_and_say_so(tmp_path: Path, cache: Path) -> None:
    path = save(certified(), tmp_path / "old")
    info = load(path, engine="fine").info
    assert info.golden.startswith("0 samples") and any("no golden vectors" in r for r in info.remarks)


def test_arguments_are_checked(path: Path) -> None:
    with pytest.raises(EngineError, match="choose from always, first, never"):
        load(path, probe="sometimes")
    with pytest.raises(EngineError, match="time_limit"):
        load(path, time_limit=0)
    for wrong in (
        {"batch": "x"},
        {"batch": 0},
        {"threads": 0},
        {"sizes": 3},
        {"sizes": {"a": "b"}},
        {"time_limit": "x"},
        {"facts": 3},
    ):
        name = next(iter(wrong))
        with pytest.raises(EngineError, match=f"^{name}.*Remedy: give"):
            load(path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="no engine is named"):
        load(path, engine=())
    with pytest.raises(EngineError, match="there is no engine None"):
        load(path, engine=None)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="there is no engine 'warp'"):
        load(path, engine="warp", probe="never")
    with pytest.raises(EngineError, match="there is no engine 'onnx'"):
        load(path, engine=["onnx", "reference"])
    with pytest.raises(EngineError, match="OPENBLAS_NUM_THREADS"):
        load(path, engine="reference", threads=2)


def test_the_file_may_not_change_between_probe_and_load(path: Path, tmp_path: Path) -> None:
    from intact8.runtime.probe_process import run_probe

    outcome = run_probe(path, "0" * 64, "reference", None, memory=4 << 30, seconds=LIMIT)
    assert outcome.verdict == "refused" and "changed while it was loaded" in outcome.detail


def test_a_library_that_cannot_be_imported_is_an_engine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.engines.reference import ReferenceEngine

    def fail(self: ReferenceEngine) -> None:
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.30' not found")

    monkeypatch.setattr(ReferenceEngine, "available", fail)
    with pytest.raises(EngineError, match=r"GLIBCXX_3\.4\.30"):
        prepare(certified(), "reference", None)


def test_errors_of_files_come_before_anything_about_engines(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ProgramError, match="damaged|not an intact8 program"):
        load(tmp_path / "x", engine="warp")


def test_the_module_is_reached_from_the_package() -> None:
    assert intact8.runtime.load is load
    code = "import intact8, sys; print(intact8.runtime.load.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "No module named 'intact8'" in done.stderr


def test_a_loaded_program_is_copied_but_not_pickled(path: Path) -> None:
    runner = load(path, engine="reference", probe="never")
    assert copy.copy(runner).info == runner.info
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(EngineError, match=r"cannot be pickled.*load it there"):
            attempt(runner)
