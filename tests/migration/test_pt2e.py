"""PT2E models, prepared and converted, and exported programs keep their integers."""

from __future__ import annotations

import copy
import importlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fuzz.checkpoints import repacked
from tests.migration.networks import Plain, network, samples
from torch import Tensor, nn

import intact8
from intact8.migration.run import describe

pytestmark = pytest.mark.filterwarnings("ignore")


def pt2e() -> Any:
    """Functions of torchao."""
    return pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")


def prepared(qat: bool) -> Any:
    """A model that PT2E has prepared and calibrated or trained."""
    make = pt2e()
    inductor = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    model = network(Plain).train(qat)
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    graph = torch.export.export(model, (samples(),), dynamic_shapes=dynamic).module()
    config = inductor.get_default_x86_inductor_quantization_config(is_qat=qat)
    quantizer = inductor.X86InductorQuantizer().set_global(config)
    made = (make.prepare_qat_pt2e if qat else make.prepare_pt2e)(graph, quantizer)
    made(samples())
    return made


@pytest.mark.parametrize("qat", [False, True], ids=["ptq", "qat"])
def test_weights_and_ranges_are_kept(qat: bool, tmp_path: Path) -> None:
    model = prepared(qat)
    there = pt2e().convert_pt2e(copy.deepcopy(model))
    torch.export.save(torch.export.export(there, (samples(),)), tmp_path / "model.pt2")
    y = there(samples()).detach()
    for source, tool in ((model, "prepared"), (there, "converted"), (tmp_path / "model.pt2", "ExportedProgram")):
        made = intact8.migrate(source, data=samples(), samples=16)
        assert tool in made.report.tool
        assert made.report.weights == 544 and made.report.weights_changed == 0 and not made.report.floats
        assert "fc" in made.report.observed[-1] or "linear" in made.report.observed[-1]
        assert intact8.verify(made.program, samples(4), sim=made.simulation).mismatches == 0
        error = made.program.run(samples()) - y
        assert float(error.abs().max()) < 0.05 * float(y.abs().max())


def test_ranges_that_are_missing_need_data() -> None:
    with pytest.raises(intact8.InputError, match=r"have no range there.*give data"):
        intact8.migrate(pt2e().convert_pt2e(prepared(False)), example_inputs=samples(2))


def test_an_exported_program_of_floats_is_refused() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),))
    with pytest.raises(intact8.InputError, match="nothing in this exported program is quantized"):
        intact8.migrate(program, example_inputs=torch.zeros(3, 2))


class ByHand(nn.Module):
    """What PT2E's conversion makes of a linear layer with ReLU between two roundings."""

    def __init__(self) -> None:
        super().__init__()
        pytest.importorskip("torch.ao.quantization.fx._decomposed")
        self.q = torch.ops.quantized_decomposed
        self.register_buffer("integers", torch.randint(-127, 128, (6, 5), generator=torch.Generator().manual_seed(0)))
        self.integers = self.integers.to(torch.int8)
        self.register_buffer("scales", torch.linspace(0.01, 0.02, 6))
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))
        self.bias = nn.Parameter(torch.linspace(-1, 1, 6))

    def rounded(self, x: Tensor, scale: float, zero_point: int) -> Tensor:
        """Quantized and dequantized."""
        q = self.q.quantize_per_tensor(x, scale, zero_point, -128, 127, torch.int8)
        return self.q.dequantize_per_tensor(q, scale, zero_point, -128, 127, torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        w = self.q.dequantize_per_channel(self.integers, self.scales, self.zeros, 0, -128, 127, torch.int8)
        y = torch.relu(nn.functional.linear(self.rounded(x, 0.03, -5), w, self.bias))
        return self.rounded(y, 0.05, -128)


def test_operators_of_the_converted_form() -> None:
    model, x = ByHand(), torch.randn(64, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    made = intact8.migrate(program, data=x)
    report = made.report
    assert report.weights == 30 and report.weights_changed == 0 and not report.observed and not report.floats
    points = {name: (float(p.scale), int(p.zero_point)) for name, p in made.simulation.points.items()}
    assert points["x"] == (pytest.approx(0.03), 123) and [z for _, z in points.values()] == [123, 0]
    assert float((made.program.run(x) - model(x)).abs().max()) < 0.051
    assert intact8.verify(made.program, x).mismatches == 0


def test_tensors_that_are_quantized_in_the_run_are_refused() -> None:
    class Dynamic(ByHand):
        def forward(self, x: Tensor) -> Tensor:
            scale, zero_point = self.q.choose_qparams(x, -128, 127, 1e-9, torch.int8)
            return self.q.quantize_per_tensor.tensor(x, scale, zero_point, -128, 127, torch.int8).float()

    with pytest.raises(intact8.InputError, match="quantized when the network runs"):
        intact8.migrate(torch.export.export(Dynamic(), (torch.randn(4, 5),)), example_inputs=torch.randn(4, 5))


def saved(tmp_path: Path) -> Path:
    """The file of a model in the converted form."""
    program = torch.export.export(ByHand(), (samples_of_rows(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def samples_of_rows() -> Tensor:
    return torch.randn(64, 5, generator=torch.Generator().manual_seed(1))


def test_files_are_read_without_the_loader_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = saved(tmp_path), samples_of_rows()
    there = intact8.migrate(torch.export.load(path), data=x).program
    monkeypatch.setattr(torch.export, "load", None)
    monkeypatch.setattr(torch, "load", None)
    assert torch.equal(intact8.migrate(path, data=x).program.run(x), there.run(x))


def entries_of(path: Path) -> dict[str, bytes]:
    """The content of an archive."""
    with zipfile.ZipFile(path) as there:
        return {name: there.read(name) for name in there.namelist()}


def as_torch_2_8_saves(path: Path) -> None:
    """Join the tensors of each kind in one checkpoint."""
    program = torch.export.load(path)
    held = {**program.state_dict, **program.constants}
    entries = entries_of(path)
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in entries.items():
            if "/data/weights/" not in name and "/data/constants/" not in name:
                changed.writestr(name, data)
        for kind, tensors in (("weights", held), ("constants", {})):
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            changed.writestr(f"{path.stem}/data/{kind}/model.pt", buffer.getvalue())


def test_files_of_torch_2_8_are_read(tmp_path: Path) -> None:
    path, x = saved(tmp_path), samples_of_rows()
    there = intact8.migrate(path, data=x).program
    as_torch_2_8_saves(path)
    assert torch.equal(intact8.migrate(path, data=x).program.run(x), there.run(x))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"name": "linear"', '"name": "linear; import os"', "a value is called"),
        ('"parameter_name": "bias"', '"parameter_name": "x)(os.system"', "is damaged|a tensor is called"),
        ("torch.ops.aten.linear.default", "torch.ops.aten.from_file.default", "calls torch.ops.aten.from_file"),
        ("torch.ops.aten.linear.default", "os.system", "calls os.system, which nothing here reads"),
        ("torch.ops.aten.relu.default", "torch.ops.prims.abs.default", "calls torch.ops.prims"),
    ],
)
def test_graphs_that_would_become_code_are_refused(before: str, after: str, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    entries = entries_of(path)
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in entries.items():
            changed.writestr(name, data.replace(before.encode(), after.encode()) if name.endswith(".json") else data)
    with pytest.raises(intact8.InputError, match=f"exported program cannot be read.*({message})"):
        intact8.migrate(path, data=samples_of_rows())


def test_descriptions_of_mutated_files_raise_our_errors_alone(tmp_path: Path) -> None:
    whole, rng, read = saved(tmp_path).read_bytes(), np.random.default_rng(0), 0
    for _ in range(40):
        (tmp_path / "broken.pt2").write_bytes(repacked(whole, rng))
        try:
            describe(tmp_path / "broken.pt2")
            read += 1
        except intact8.IntactError:
            pass
    assert 5 < read < 40
