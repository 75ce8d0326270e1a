"""Training by CUDA graphs: the bits of training without them, in every phase, and errors where a graph cannot know."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import pytest
import torch
from tests.train.networks import batch, exact, optimizer_of, prepared
from torch import Tensor, nn

import intact8
import intact8.train
from intact8.errors import StateError
from intact8.simulation.ops.integer_op import _limits_there, integer_limits
from intact8.train import CudaGraphs, CudaGraphWarning

# Without it cuBLAS need not give the same bits on two streams; it is read when cuBLAS is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def losses(model: Any, sim: Any, steps: range, schedule: Any = None, size: int = 64) -> list[float]:
    """The loss of every step, on the GPU."""
    optimizer, found = optimizer_of(sim), []
    for step in steps:
        x, y = (t.cuda() for t in batch(step, size))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.train()(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if schedule is not None:
            schedule.step(model)
    return found


class Capped(nn.Module):
    """ReLU6 behind batch norm, a sum and a pad: limits that depend on learned scales."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu6(self.bn1(self.conv1(nn.functional.pad(x, (1, 1, 1, 1)))))
        x = nn.functional.relu6(x + self.bn2(self.conv2(x)))
        y: Tensor = self.fc(x.mean((2, 3)))
        return y


def capped(kind: str = "learned") -> Any:
    torch.manual_seed(3)
    sim = intact8.prepare(Capped().eval(), batch(0)[0], intact8.recipes.qat("fixed" if kind == "fixed" else "learned"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, [4 * batch(-20 - i)[0] for i in range(4)])
    return sim


def test_on_the_cpu_it_is_the_simulation() -> None:
    sim, other = prepared("learned").train(), prepared("learned").train()
    x, step = batch(0)[0], CudaGraphs(sim)
    assert torch.equal(step(x), other(x)) and not step._graphs
    assert intact8.train.Schedule(freeze_scales=1).step(step) == ["freeze batch norm", "freeze scales"]
    with pytest.raises(StateError, match="takes a simulation, not Linear"):
        CudaGraphs(nn.Linear(2, 2))


def test_limits_as_tensors_are_those_as_numbers() -> None:
    point = next(iter(capped().train().points.values()))
    for act in ({"min": 0.0, "max": 6.0}, {"min": -1.5, "max": None}, {"min": -0.25, "max": 0.25}):
        for power in range(-200, 40):
            with torch.no_grad():
                point.learner.value.fill_(1.05**power)
                point.learner.smallest.fill_(1e-9)
            scale = float(point.live_scale.detach())
            whole = integer_limits({"kind": "clamp", **act}, scale, point.zero_point_value, point.lo, point.hi)
            assert tuple(end.item() for end in _limits_there(act, point)) == whole


@needs_gpu
@pytest.mark.parametrize("kind", ["learned", "fixed", "capped"])
def test_it_trains_to_the_same_bits_in_every_phase_and_ships(kind: str) -> None:
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        sim = (prepared("learned") if kind == "learned" else capped(kind)).cuda()
        other = copy.deepcopy(sim)
        plans = [intact8.train.Schedule(freeze_batchnorm=6, freeze_scales=12, unit="step") for _ in range(2)]
        step = CudaGraphs(other)
        captured = []
        step.register_forward_hook(lambda *_: captured.append(len(step._graphs)))
        ours, theirs = losses(step, other, range(18), plans[0]), losses(sim, sim, range(18), plans[1])
    assert ours == theirs
    assert captured[1] == captured[7] == 1, captured
    assert captured[13] == (kind != "learned"), captured  # its PReLU is solved anew in every step that is frozen
    state, expected = other.state_dict(), sim.state_dict()
    assert [name for name, value in expected.items() if not torch.equal(state[name].cpu(), value.cpu())] == []
    exact(other.cpu())


@needs_gpu
def test_gradients_add_up_and_outputs_stay() -> None:
    sim = prepared("learned").cuda().train()
    sim.freeze_batch_norm()
    step, outputs, plain = CudaGraphs(sim), [], []
    data = [batch(i)[0].cuda() for i in range(5)]
    for x in data[:2]:
        step(x).sum().backward()
    sim.zero_grad()
    for x in data:
        outputs.append(step(x))
        outputs[-1].square().sum().backward()
    sums = [p.grad.clone() for p in sim.parameters() if p.grad is not None]
    sim.zero_grad()
    for x in data:
        plain.append(sim(x))
        plain[-1].square().sum().backward()
    assert len(step._graphs) == 1
    assert all(torch.equal(a, b) for a, b in zip(outputs, plain, strict=True))
    for a, p in zip(sums, (p for p in sim.parameters() if p.grad is not None), strict=True):
        assert torch.allclose(a, p.grad, rtol=1e-3, atol=1e-4 * float(p.grad.abs().max()))


@needs_gpu
def test_a_backward_pass_that_is_lost_is_an_error() -> None:
    step = CudaGraphs(prepared("learned").cuda().train())
    x = batch(0)[0].cuda()
    for _ in range(3):
        step(x).sum().backward()
    first, second = step(x), step(x)
    with pytest.raises(StateError, match="backward pass of this forward pass is lost"):
        (first.sum() + second.sum()).backward()
    y = step(x).sum()
    y.backward(retain_graph=True)
    with pytest.raises(StateError, match="for one backward pass"):
        y.backward()


@needs_gpu
def test_other_shapes_evaluation_and_loaded_states() -> None:
    sim = prepared("learned").cuda().train()
    step, x = CudaGraphs(sim), batch(0)[0].cuda()
    for _ in range(3):
        step(x).sum().backward()
    graph = next(iter(step._graphs.values()))
    step(x[:5]).sum().backward()
    step(x).sum().backward()
    assert list(step._graphs.values()) == [graph]
    with torch.no_grad():
        assert torch.equal(step.eval()(x), sim.eval()(x))
    state = copy.deepcopy(prepared("learned", seed=4).state_dict())
    sim.load_state_dict(state)
    other = copy.deepcopy(sim).train()
    step.train()
    for _ in range(3):
        last = step(x)
        last.sum().backward()
        expected = other(x)
    assert torch.equal(last, expected)


@needs_gpu
def test_what_is_chosen_on_the_cpu_is_not_captured() -> None:
    sim = prepared("observed").cuda().train()
    step, x = CudaGraphs(sim), batch(0)[0].cuda()
    for _ in range(3):
        step(x).sum().backward()
    assert not step._graphs
    sim = prepared("learned").cuda().train()
    sim.get_submodule("bn1").momentum = None
    step = CudaGraphs(sim)
    with pytest.warns(CudaGraphWarning, match="bn1 counts its batches"):
        step(x).sum().backward()


@needs_gpu
def test_torch_compile_that_asks_for_graphs_gets_them() -> None:
    sim, other = prepared("learned").cuda(), prepared("learned").cuda()
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        ours = losses(torch.compile(sim, mode="reduce-overhead"), sim, range(5))
        theirs = losses(other, other, range(5))
    assert ours == theirs and len(sim.step._graphs) == 1
    torch._dynamo.reset()
