"""``torch.compile(model, backend="intact8")`` runs the converted program of every simulation in evaluation mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import intact8
import intact8.torch
from intact8.errors import StateError
from intact8.simulation.simulation import Simulation
from intact8.simulation.torch_compile import BACKEND, backend

X = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Let no test run code that another one compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3)
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()


def calibrated() -> Simulation:
    sim = intact8.prepare(network(), X[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, [X])
    return sim


class Around(nn.Module):
    """A simulation between float operations, with a float head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.inner(x * 2)).relu()
        return y


def test_a_simulation_runs_as_its_program() -> None:
    sim = calibrated()
    program, compiled = intact8.convert(sim), torch.compile(sim, backend="intact8", fullgraph=True)
    for n in (16, 5, 1):
        assert torch.equal(compiled(X[:n]), program(X[:n]))
    assert compiled(X).grad_fn is None and isinstance(sim.deployed, intact8.torch.Module)


def test_changed_weights_are_converted_again() -> None:
    sim = calibrated()
    compiled, before = torch.compile(sim, backend="intact8"), intact8.convert(sim)(X)
    assert torch.equal(compiled(X), before)
    with torch.no_grad():
        for parameter in sim.parameters():
            parameter.mul_(1.1)
    after = compiled(X)
    assert torch.equal(after, intact8.convert(sim)(X)) and not torch.equal(after, before)


def test_other_ranges_are_converted_again() -> None:
    sim = calibrated()
    compiled, before = torch.compile(sim, backend="intact8"), intact8.convert(sim)(X)
    assert torch.equal(compiled(X), before)
    intact8.calibrate(sim, X * 3)
    assert torch.equal(compiled(X), sim(X)) and not torch.equal(compiled(X), before)


@pytest.mark.parametrize("way", ["trace", "export"])
def test_a_simulation_is_not_exported(way: str) -> None:
    sim = calibrated().eval()
    with pytest.raises(StateError, match="export the program: intact8.convert"):
        torch.jit.trace(sim, X) if way == "trace" else torch.export.export(sim, (X,))


def test_one_compiled_model_trains_and_evaluates() -> None:
    model = Around(calibrated()).eval()
    compiled = torch.compile(model, backend="intact8")
    assert torch.equal(compiled(X), model(X))
    model.train()
    compiled(X).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=1e-3)
    model.eval()
    assert torch.equal(compiled(X), model(X))
    assert model.inner.deployed.program is not None


def test_a_program_inside_of_a_model_is_taken() -> None:
    model = Around(intact8.torch.Module(intact8.convert(calibrated()))).eval()
    assert torch.equal(torch.compile(model, backend="intact8")(X), model(X))


def test_a_copy_and_other_backends_do_not_share_the_program() -> None:
    sim = calibrated()
    torch.compile(sim, backend="intact8")(X)
    other = copy.deepcopy(sim)
    assert other.deployed is None
    assert torch.equal(torch.compile(other, backend="eager")(X), sim(X)) and other.deployed is None


def test_what_is_refused() -> None:
    with pytest.raises(Exception, match=r"was given a float model.*Remedy: compile intact8\.calibrate"):
        torch.compile(network(), backend="intact8")(X)
    with pytest.raises(Exception, match=r"not calibrated.*call intact8\.calibrate"):
        torch.compile(intact8.prepare(network(), X[:2]), backend="intact8")(X)


def test_the_entry_point_names_the_backend() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    _, _, value = next(line for line in text.split("torch_dynamo_backends]")[1].splitlines() if line).partition(" = ")
    assert EntryPoint(BACKEND, value.strip('"'), "torch_dynamo_backends").load() is backend


def test_training_asks_the_compiler_whether_it_uses_cuda_graphs() -> None:
    sim = calibrated().train()
    torch.compile(sim)(X).sum().backward()
    assert sim.step is None
    torch._dynamo.reset()
    other = copy.deepcopy(sim)
    assert torch.equal(torch.compile(sim, mode="reduce-overhead")(X), other(X))
    assert sim.step is not None and copy.deepcopy(sim).step is None  # on a CPU it runs the simulation
