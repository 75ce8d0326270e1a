"""Checkpoints give the same programs as the models they were taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.migration.networks import Plain, Residual, converted, prepared, samples

import intact8

pytestmark = pytest.mark.filterwarnings("ignore")


def same(a: intact8.Program, b: intact8.Program) -> bool:
    """Whether two programs hold the same numbers."""
    pairs = list(zip(a.ops, b.ops, strict=True))
    arrays = all(np.array_equal(x.arrays[k], y.arrays[k]) for x, y in pairs for k in x.arrays)
    return arrays and [t.scale for t in a.tensors.values()] == [t.scale for t in b.tensors.values()]


@pytest.fixture(scope="module")
def model() -> Any:
    return prepared("eager qat")


def test_a_converted_state_dict_and_its_file(model: Any, tmp_path: Path) -> None:
    there = converted(model)
    wanted = intact8.migrate(there, example_inputs=samples(2)).program
    torch.save({"epoch": 3, "model": there.state_dict()}, tmp_path / "new.pth")
    torch.save(there.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for checkpoint in (there.state_dict(), tmp_path / "new.pth", str(tmp_path / "old.pth")):
        made = intact8.migrate(Residual(), checkpoint, example_inputs=samples(2))
        assert same(made.program, wanted)
        assert made.report.weights_changed == 0


def test_a_state_dict_in_training(model: Any) -> None:
    wanted = intact8.migrate(model, example_inputs=samples(2)).program
    made = intact8.migrate(Residual(), model.state_dict(), example_inputs=samples(2))
    assert same(made.program, wanted)
    assert any(note.startswith("assumed") for note in made.report.notes)


def test_a_torchscript_file(model: Any, tmp_path: Path) -> None:
    there = converted(model)
    torch.jit.save(torch.jit.script(there), tmp_path / "scripted.pt")
    made = intact8.migrate(Residual(), tmp_path / "scripted.pt", example_inputs=samples(2))
    assert same(made.program, intact8.migrate(there, example_inputs=samples(2)).program)


def test_a_traced_file(model: Any, tmp_path: Path) -> None:
    there = converted(model)
    torch.jit.save(torch.jit.trace(there, samples(2)), tmp_path / "traced.pt")
    made = intact8.migrate(Residual(), tmp_path / "traced.pt", example_inputs=samples(2))
    assert same(made.program, intact8.migrate(there, example_inputs=samples(2)).program)


def test_a_frozen_file_is_refused(model: Any, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.freeze(torch.jit.script(converted(model).eval())), tmp_path / "made.pt")
    with pytest.raises(intact8.InputError, match="it was frozen"):
        intact8.migrate(Residual(), tmp_path / "made.pt", example_inputs=samples(2))


def test_observers_without_scales_are_refused() -> None:
    state = prepared("eager ptq").state_dict()
    with pytest.raises(intact8.InputError, match=r"conv1\.activation_post_process: 5 observers have no scale"):
        intact8.migrate(Residual(), state, example_inputs=samples(2))


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "moving average"])
def test_observers_with_their_qconfig(name: str, tmp_path: Path) -> None:
    """State of histograms (0…127 in fbgemm's), and of ranges; weights per channel, and one scale in qnnpack's."""
    ao = torch.ao.quantization
    configs = {n: ao.get_default_qconfig(n) for n in ("fbgemm", "qnnpack")}
    qconfig = configs.get(name) or ao.QConfig(ao.MovingAverageMinMaxObserver, ao.default_per_channel_weight_observer)
    model = prepared("eager ptq", qconfig)
    torch.save(model.state_dict(), tmp_path / "prepared.pth")
    made = intact8.migrate(Residual(), tmp_path / "prepared.pth", qconfig=qconfig, example_inputs=samples(2))
    assert same(made.program, intact8.migrate(model, example_inputs=samples(2)).program)
    assert made.report.weights > 0 and made.report.weights_changed == 0
    other = configs["fbgemm"] if name == "moving average" else ao.QConfig(ao.MinMaxObserver, qconfig.weight)
    with pytest.raises(intact8.InputError, match=r"activation_post_process: its state has .* and the QConfig's"):
        intact8.migrate(Residual(), tmp_path / "prepared.pth", qconfig=other, example_inputs=samples(2))


def test_ranges_of_functions_are_refused() -> None:
    state = converted(prepared("fx ptq")).state_dict()
    with pytest.raises(intact8.InputError, match="no module of the float model"):
        intact8.migrate(Plain(), state, example_inputs=samples(2))


def test_another_float_model_is_refused(model: Any) -> None:
    class Other(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 7)

    with pytest.raises(intact8.InputError, match=r"fc: a weight of shape \(5, 8\)"):
        intact8.migrate(Other(), converted(model).state_dict(), example_inputs=samples(2))


def test_a_checkpoint_of_floats_is_refused() -> None:
    with pytest.raises(intact8.InputError, match="nothing in this checkpoint is quantized"):
        intact8.migrate(Residual(), Residual().state_dict(), example_inputs=samples(2))
