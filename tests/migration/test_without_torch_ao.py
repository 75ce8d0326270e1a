"""Checkpoints become programs where torch has dropped torch.ao, and the package does not lean on it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.migration.networks import converted, prepared

SOURCE = Path(__file__).resolve().parents[2] / "src" / "intact8"

CODE = """
import sys
import torch
import torch.export
for name in [name for name in sys.modules if name.startswith("torch.ao.")]:
    sys.modules[name] = None
for name in ("qint8", "quint8", "qint32", "quantize_per_tensor", "quantize_per_channel", "ao"):
    delattr(torch, name)
from torch import nn
import intact8


class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.pool, self.fc = BasicBlock(), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.block(x)), 1))


made = intact8.migrate(Net(), "block.pth", example_inputs=torch.randn(2, 3, 12, 12))
print(made.report.weights, made.report.weights_changed, len(made.report.notes), sorted(made.simulation.points))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_a_network_with_stubs_for_one_without(tmp_path: Path) -> None:
    state = converted(prepared("eager ptq")).state_dict()
    inside = {"conv1", "conv2", "skip"}
    renamed = {f"block.{k}" if k.split(".")[0] in inside else k: v for k, v in state.items()}
    torch.save(renamed, tmp_path / "block.pth")
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["544", "0", "1"]
    assert "['block.add', 'block.conv1', 'block.conv2', 'fc', 'pool', 'x']" in done.stdout


def test_torch_ao_is_imported_by_its_readers_alone() -> None:
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(("torch.ao", "torchao")) for name in names):
                rooms = path.relative_to(SOURCE).parts
                assert rooms[0] == "migration" or rooms[:2] == ("diagnose", "lint"), path
                assert rooms[0] != "migration" or node not in tree.body, f"{path} imports it when it is imported"
