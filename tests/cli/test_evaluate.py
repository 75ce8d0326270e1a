"""``intact8 evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="quantizing needs torch")

from typer.testing import CliRunner  # noqa: E402

import intact8  # noqa: E402
from intact8.cli.app import app  # noqa: E402

SOURCE = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 6)
def wrong(outputs, labels):
    return (outputs.argmax(1) != labels).float()
"""


def test_a_program_beside_its_float_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_evaluate_test.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    net, x = torch.nn.Linear(8, 6).eval(), torch.randn(128, 8)
    intact8.quantize(net, x).save("net.safetensors")
    y = net(x).argmax(1).numpy()
    np.savez("data.npz", x=x.numpy(), y=y)
    np.save("x.npy", x.numpy())
    np.save("y.npy", y)
    command = ["evaluate", "net.safetensors", "--model", "nets_of_evaluate_test:make", "--json"]
    found = []
    for data in (["--data", "data.npz", "--labels", "y", "--key", "x"], ["--data", "x.npy", "--labels", "y.npy"]):
        result = CliRunner().invoke(app, [*command, *data])
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout))
    assert found[0] == found[1] and found[0]["samples"] == 128
    floats, integers = found[0]["scores"]
    assert (floats["network"], floats["value"], integers["network"]) == ("float32", 1.0, "int8")
    assert integers["value"] > 0.9 and integers["low"] <= integers["difference"] <= integers["high"]
    metrics = ["--metric", "top1", "--metric", "nets_of_evaluate_test:wrong"]
    result = CliRunner().invoke(app, [*command, "--data", "x.npy", "--labels", "y.npy", *metrics])
    scores = {(s["network"], s["metric"]): s["value"] for s in json.loads(result.stdout)["scores"]}
    assert scores["float32", "wrong"] == 0 and scores["int8", "wrong"] == 1 - scores["int8", "top1"]
    np.save("short.npy", y[:3])
    for labels, message in [("z", "no entry 'z'"), ("short.npy", "3 labels for 128 samples")]:
        result = CliRunner().invoke(app, [*command, "--data", "data.npz", "--key", "x", "--labels", labels])
        assert result.exit_code == 2 and message in result.stderr
