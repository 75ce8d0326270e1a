"""What ``doctor --env`` says is what this machine is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from intact8.engines import ENGINES, available_engines
from intact8.machine import INT8_FEATURES
from intact8.program.certify import uncertified
from intact8.runtime import environment as environments
from intact8.runtime.environment import Environment, environment, specimen
from intact8.runtime.facts import Facts


@pytest.fixture(scope="module")
def here() -> Environment:
    return environment()


def test_flags_are_those_of_proc_cpuinfo(here: Environment) -> None:
    path = Path("/proc/cpuinfo")
    if not path.exists() or not here.facts.is_x86:
        pytest.skip("no x86 Linux here")
    listed = next(line for line in path.read_text().splitlines() if line.startswith("flags")).split(":")[1].split()
    assert here.flags == {name: name in listed for name in INT8_FEATURES if name not in ("asimddp", "i8mm")}


def test_torch_build_is_that_of_the_imported_torch(here: Environment) -> None:
    torch = pytest.importorskip("torch")
    assert here.torch["version"] == torch.__version__
    assert here.torch["cxx11_abi"] == torch.compiled_with_cxx11_abi()
    assert here.torch["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert here.torch["onednn_version"] in torch.__config__.show()


def test_every_engine_was_tried_and_the_verdicts_agree_with_the_engines_own(here: Environment) -> None:
    assert sorted(engine.engine for engine in here.trial.engines) == sorted(ENGINES)
    assert {engine.engine for engine in here.trial.engines if engine.usable} == set(available_engines())
    ran = {a.what for a in here.abilities if a.possible and "bit for bit" in a.why}
    assert ran == {f"run programs on {name}" for name in available_engines()}


def test_the_specimen_is_proved() -> None:
    assert uncertified(specimen()) == []


def test_a_machine_without_vnni_and_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts.here()
    old = replace(
        facts, machine="x86_64", features=frozenset({"sse4_1", "sse4_2", "avx", "avx2"}), environment={},
        packages={"intact8": "0.1.0", "numpy": "2.0.0", "onnx": "1.20.0", "onnxruntime": "1.20.0"}, wheels={},
    )  # fmt: skip
    monkeypatch.setattr(Facts, "here", staticmethod(lambda: old))
    found = environments.environment(probe=False)
    verdicts = {ability.what: ability for ability in found.abilities}
    assert found.isa == "avx2"
    assert not verdicts["run programs on onednn"].possible
    assert "pip install 'intact8[torch]'" in verdicts["run programs on onednn"].why
    assert not verdicts["quantize and train"].possible
    assert "int16" in verdicts["int8 without saturation, in any library that uses oneDNN"].why
    vnni = verdicts["run programs that need VNNI (portable=False) on onnxruntime"]
    assert not vnni.possible
    assert "portable=True" in vnni.why


def test_a_torch_that_dies_on_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(environments, "_ASK_TORCH", "import os; os.kill(os.getpid(), 4)")
    found = environment(probe=False)
    assert "signal 4" in found.torch["error"]
    assert not next(a for a in found.abilities if a.what == "quantize and train").possible


@pytest.mark.parametrize("built", [True, False])
def test_whether_passes_are_compiled(monkeypatch: pytest.MonkeyPatch, built: bool) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(environments, "native_library", lambda: Path("_library.so") if built else None)
    found = environments._compiled()
    assert found.possible is built
    assert built or "C compiler" in found.why


def test_json_and_tables_hold_the_same(here: Environment) -> None:
    document = json.loads(json.dumps(here.to_json()))
    console = Console(width=200)
    with console.capture() as printed:
        console.print(here)
    shown = printed.get()
    for ability in document["abilities"]:
        assert ability["what"] in shown
    for name in document["flags"]:
        assert name in shown
    assert document["facts"]["packages"]["numpy"] in shown
