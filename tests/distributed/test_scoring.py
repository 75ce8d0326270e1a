"""The example of scoring on several workers: the bits of one process, and a worker that computes otherwise is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.distributed.conftest import Run

import intact8

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed_scoring.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("distributed_scoring", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(folder: Path, engine: str) -> list[str]:
    found: list[str] = example().score(folder / "m.safetensors", folder / "x.npy", folder / "y.npy", engine, 5)
    return found


def score_other_files(folder: Path) -> list[str]:
    file = folder / ("m.safetensors" if dist.get_rank() == 0 else "other.safetensors")
    found: list[str] = example().score(file, folder / "x.npy", folder / "y.npy", "reference", 5)
    return found


@pytest.fixture
def program(tmp_path: Path) -> intact8.Program:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    x = torch.randn(64, 6)
    np.save(tmp_path / "x.npy", x.numpy())
    for name, part in (("m", x), ("other", 3 * x)):
        intact8.quantize(model, part).save(tmp_path / f"{name}.safetensors")
    return intact8.Program.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_two_workers_give_the_bits_of_one(ranks: Run, program: intact8.Program, tmp_path: Path, engine: str) -> None:
    first, second = ranks(score, tmp_path, engine)
    assert first == second and len(set(first)) == 1
    want = program.run(np.load(tmp_path / "x.npy"), engine="reference")
    assert (np.load(tmp_path / "y.npy") == np.asarray(want)).all()


def test_a_worker_with_other_integers_is_named(ranks: Run, program: intact8.Program, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"workers \[1\] compute other integers than worker 0"):
        ranks(score_other_files, tmp_path)
