"""On a CPU with AMX, convolutions that oneDNN computes wrongly there are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import intact8
from intact8.engines import available_engines, cpu, get_engine, present_engines
from intact8.errors import EngineError
from intact8.runtime.guarded import open_guarded


def program(layer: nn.Module, *shape: int) -> intact8.Program:
    return intact8.quantize(layer.eval(), torch.randn(32, *shape))


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cpu.flags() | {"amx_int8"}
    monkeypatch.setattr(cpu, "flags", lambda: found)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


@pytest.mark.parametrize(
    "layer, shape",
    [(nn.Conv2d(3, 4, 3), (3, 6, 6)), (nn.Conv1d(64, 64, 16, padding=8, groups=4), (64, 39))],
    ids=["two dimensions", "one dimension"],
)
def test_wide_kernels_are_refused(layer: nn.Module, shape: tuple[int, ...], amx: None) -> None:
    with pytest.raises(EngineError, match=r"wider than 1 does not run on a CPU with AMX.*ONEDNN_MAX_CPU_ISA"):
        get_engine("onednn").prepare(program(layer, *shape))


@pytest.mark.parametrize(
    "layer, shape",
    [(nn.Conv2d(3, 4, (3, 1)), (3, 6, 6)), (nn.Conv1d(3, 4, 1), (3, 6)), (nn.Linear(4, 3), (4,))],
    ids=["tall", "of width 1", "linear"],
)
def test_the_rest_runs(layer: nn.Module, shape: tuple[int, ...], amx: None) -> None:
    get_engine("onednn").prepare(program(layer, *shape))


def test_the_environment_switches_amx_off(amx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core_fp16")
    get_engine("onednn").prepare(program(nn.Conv2d(3, 4, 3), 3, 6, 6))


def test_nothing_asks_it_where_it_was_not_named(amx: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval(),
        torch.randn(64, 3, 6, 6),
    )
    sim = intact8.prepare(model, data[:2])
    intact8.calibrate(sim, data)
    made = intact8.convert(sim)
    assert "onednn" not in available_engines(made) and "onednn" in present_engines(made)
    made.save(tmp_path / "made.safetensors")
    assert "onednn" not in available_engines(open_guarded(tmp_path / "made.safetensors"))
    report = intact8.verify(made, data)
    assert report.exact and list(report.by_engine) == ["native"] and "AMX" in report.remarks[0]
    intact8.compare(model, made, data)
    intact8.sensitivity(sim, data)
    intact8.doctor(model, data, seconds=0, remedies=False)
    with pytest.raises(EngineError, match="AMX"):
        made.run(data, engine="onednn")
