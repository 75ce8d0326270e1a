"""``intact8 migrate``: a checkpoint with its network's code becomes a program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import intact8
from intact8.cli.app import app
from intact8.program.program import Program

torch = pytest.importorskip("torch", reason="migration reads torch's models")

SOURCE = """
from torch import nn


def net():
    return nn.Sequential(nn.Identity(), nn.Linear(6, 4), nn.ReLU())
"""


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_becomes_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets_of_migrate_test.py").write_text(SOURCE, encoding="utf-8")
    weight = torch.quantize_per_tensor(torch.randn(4, 6), 0.02, 0, torch.qint8)
    state = {"1.weight": weight, "1.bias": torch.zeros(4)}
    for name, scale, zero_point in (("0", 0.05, 128), ("1", 0.1, 0)):
        state |= {f"{name}.scale": torch.tensor(scale), f"{name}.zero_point": torch.tensor(zero_point)}
    torch.save(state, "best.pth")
    np.save("rows.npy", np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32))
    common = ["migrate", "nets_of_migrate_test:net", "--data", "rows.npy", "-o", "net.safetensors"]
    done = CliRunner().invoke(app, [*common, "--checkpoint", "best.pth", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["tool"].startswith("torch.ao (checkpoint") and report["layers"][-1]["weights_changed"] == 0
    op = next(op for op in Program.load("net.safetensors").ops if op.name == "1")
    assert np.array_equal(op.arrays["weight"], weight.int_repr().numpy())
    refused = CliRunner().invoke(app, common)
    assert refused.exit_code == 2 and "nothing in this model is quantized" in refused.stderr


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_observers_takes_the_qconfig_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets_of_qconfig_test.py").write_text(SOURCE, encoding="utf-8")
    ao = torch.ao.quantization
    net = torch.nn.Sequential(ao.QuantStub(), torch.nn.Linear(6, 4), torch.nn.ReLU()).eval()
    net.qconfig = ao.get_default_qconfig("x86")
    prepared = ao.prepare(net)
    prepared(torch.randn(40, 6))
    torch.save(prepared.state_dict(), "observers.pth")
    np.save("rows.npy", np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32))
    common = ["migrate", "nets_of_qconfig_test:net", "--data", "rows.npy", "--checkpoint", "observers.pth"]
    refused = CliRunner().invoke(app, common)
    assert refused.exit_code == 2 and "give the QConfig it was prepared with" in refused.stderr
    done = CliRunner().invoke(app, [*common, "--qconfig", "torch.ao.quantization:get_default_qconfig"])
    assert done.exit_code == 0, done.output
    with pytest.raises(intact8.InputError, match="str is no QConfig"):
        intact8.migrate(
            torch.nn.Sequential(torch.nn.Linear(6, 4)), "observers.pth", data=torch.zeros(2, 6), qconfig="x86"
        )


@pytest.mark.filterwarnings("ignore")
def test_files_of_quantized_graphs_become_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    rows = torch.randn(64, 6)
    np.save("rows.npy", rows.numpy())
    program = intact8.quantize(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU()).eval(), rows)
    program.export("there.onnx", "onnx-qdq")
    done = CliRunner().invoke(app, ["migrate", "there.onnx", "--data", "rows.npy", "-o", "here.safetensors", "--json"])
    assert done.exit_code == 0, done.output
    assert not any(layer["weights_changed"] for layer in json.loads(done.stdout)["layers"])
    here = Program.load("here.safetensors")
    assert np.array_equal(here.run(rows.numpy()), program.run(rows.numpy()))
    Path("broken.pt2").write_bytes(b"PK")
    refused = CliRunner().invoke(app, ["migrate", "broken.pt2", "--data", "rows.npy"])
    assert refused.exit_code == 2 and "exported program cannot be read" in refused.stderr
