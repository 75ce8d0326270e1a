"""A state dict is tensors through and through, so that checkpoints can be .safetensors files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import intact8
from intact8.train.extra_state import pack, unpack


@pytest.mark.parametrize("observer", ["histogram", "moving_average", "minmax", "mse"])
def test_a_state_dict_survives_safetensors(tmp_path: Path, observer: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(32, 4)
    activation = intact8.Scheme(observer=observer)
    recipe = intact8.Recipe(activation=activation, scales="learned", bias_correction=False)
    sim = intact8.prepare(model, x[:2], recipe)
    intact8.calibrate(sim, x)
    state = sim.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    save_file(state, tmp_path / "checkpoint.safetensors")
    other = intact8.prepare(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), x[:2], recipe)
    other.load_state_dict(load_file(tmp_path / "checkpoint.safetensors"))
    assert other.phase == "learn"
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name]), name
    with torch.no_grad():
        assert torch.equal(other.eval()(x), sim.eval()(x))


def test_packing_keeps_types_and_bits() -> None:
    state = {"on": True, "name": "moving_average", "none": None, "deep": {"n": 2**60, "t": torch.tensor([1, 2**40])}}
    found = unpack(pack(state))
    assert found["deep"]["t"].dtype == torch.int64 and torch.equal(found["deep"].pop("t"), state["deep"].pop("t"))
    assert found == state
    float64 = torch.rand(3, 2, dtype=torch.float64).T
    assert torch.equal(unpack(pack({"t": float64}))["t"], float64)
    assert torch.equal(pack({}), pack({})) and unpack(pack({})) == {}
