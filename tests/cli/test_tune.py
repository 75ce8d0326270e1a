"""``intact8 tune``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="tuning needs torch")

from typer.testing import CliRunner  # noqa: E402

import intact8  # noqa: E402
from intact8.cli.app import app  # noqa: E402

SOURCE = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 6)
"""


def test_recipe_and_program_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_tune_test.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    net, x = torch.nn.Linear(8, 6).eval(), torch.randn(64, 8)
    np.save("x.npy", x.numpy())
    np.savez("labelled.npz", x=x.numpy(), y=net(x).argmax(1).numpy())
    command = ["tune", "nets_of_tune_test:make", "--data", "x.npy", "--seconds", "0", "--json"]
    labelled = ["--validation", "labelled.npz", "--labels", "y", "--max-drop", "0", "--program", "net.safetensors"]
    result = CliRunner().invoke(app, [*command, *labelled, "--max-trials", "3"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["metric"] == "top1" and found["float_score"] == 100.0 and found["evaluation"]["samples"] == 64
    assert intact8.Program.load("net.safetensors").recipe == Path("tuned.toml").read_text()
    result = CliRunner().invoke(app, [*command, "--max-drop", "1", "-o", "other.toml"])
    assert result.exit_code == 0 and json.loads(result.stdout)["metric"] == "cosine" and Path("other.toml").is_file()
