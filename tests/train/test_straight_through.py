"""Straight-through gradients, and LSQ's closed form for scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.gradients import clamp
from tests.simulation.networks import quantized
from tests.train.networks import prepared
from torch import Tensor, nn

import intact8
from intact8.errors import StateError
from intact8.train.straight_through import forward_as, round_ste


def quantize_ste(x: Tensor, scale: Tensor, zero_point: int, lo: int, hi: int) -> Tensor:
    """The straight-through estimator, clipped at the range ends, by its definition."""
    return clamp(round_ste(x / scale), lo - zero_point, hi - zero_point)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.PReLU(6), nn.Conv2d(6, 4, 1),
        nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_reaches_every_parameter_and_the_input(training: bool) -> None:
    model = network()
    sim, _ = quantized(model, torch.randn(32, 3, 8, 8))
    sim.train(training)
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    y = sim(x)
    y.square().sum().backward()
    for name, parameter in sim.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name
    assert x.grad is not None and x.grad.abs().max() > 0


def test_the_gradient_is_close_to_that_of_the_float_model() -> None:
    model = network()
    sim, _ = quantized(model, torch.randn(256, 3, 8, 8))
    x = torch.randn(16, 3, 8, 8)
    for net in (model, sim):
        net.zero_grad()
        net(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        other = dict(sim.named_parameters())[name].grad
        cosine = torch.cosine_similarity(parameter.grad.flatten(), other.flatten(), dim=0)  # type: ignore[union-attr]
        assert cosine > 0.95, (name, float(cosine))


def lsq(v: Tensor, q: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """d(s·q)/ds by Esser et al. 2020, eq. 3: q − v/s inside, the ends of the range outside."""
    steps = v / scale
    outside = ((q == low) & (steps < low - 0.5)) | ((q == high) & (steps > high + 0.5))
    return torch.where(outside, q, q - steps)


def test_lsq_at_an_input() -> None:
    scale = torch.tensor(0.1, requires_grad=True)
    x = torch.linspace(-3, 40, 5000)
    grad = torch.randn(5000)
    q = quantize_ste(x, scale, 7, 0, 255)
    (q * scale * grad).sum().backward()
    expected = (lsq(x, q.detach(), scale.detach(), -7, 248) * grad).sum()
    torch.testing.assert_close(scale.grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", ["linear", "prelu", "add", "mul", "mean", "silu"])
def test_lsq_at_the_output_of_any_operation(kind: str, training: bool) -> None:
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)
            self.prelu = nn.PReLU(6)

        def forward(self, x: Tensor) -> Any:
            y = self.fc(x)
            ops: dict[str, Any] = {
                "linear": lambda: y, "prelu": lambda: self.prelu(y), "add": lambda: y + x, "mul": lambda: y * x,
                "mean": lambda: y.mean(1, keepdim=True), "silu": lambda: nn.functional.silu(y),
            }  # fmt: skip
            return ops[kind]()

    sim, _ = quantized(Net().eval(), torch.randn(64, 6))
    sim.train(training)
    point = sim.point(sim.graph.nodes[sim.graph.outputs[0]].inputs[0])
    before = sim(2 * torch.randn(8, 6))  # the multipliers are settled
    x = 2 * torch.randn(64, 6)
    plain = sim(x).detach()
    point.scale.requires_grad_()
    y = sim(x)
    assert torch.equal(y.detach(), plain), "asking for a gradient changes no value"
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    # The unrounded value: the same operation on the rounded inputs, in float.
    sim.fake_quantize(False, point.name)
    if kind in ("linear", "prelu"):
        wp = sim.weight_points["fc"]
        q = quantize_ste(x, sim.points["x"].scale, int(sim.points["x"].zero_point), 0, 255) * sim.points["x"].scale
        w = (sim.fc.weight / wp.scale[:, None]).round() * wp.scale[:, None]
        v = q @ w.T + sim.fc.bias
        v = nn.functional.prelu(v, sim.prelu.weight) if kind == "prelu" else v
    else:
        v = sim(x)
    v = v.detach()
    scale, z = point.scale.detach(), int(point.zero_point)
    expected = (lsq(v, (plain / scale).round(), scale, point.lo - z, point.hi - z) * weight).sum()
    assert before.isfinite().all()
    torch.testing.assert_close(point.scale.grad, expected, rtol=0.02, atol=0.5)


def test_forward_as_is_exact_where_adding_the_difference_would_not_be() -> None:
    gradient = torch.tensor([1e8, 1.0], requires_grad=True)
    value = torch.tensor([0.1, 3.0])
    assert torch.equal(forward_as(value, gradient), value)


def test_learned_scales_ship_as_they_are() -> None:
    """After a step on a scale the deployed program has the learned scale, and is exact again."""
    sim, _ = quantized(network(), torch.randn(32, 3, 8, 8))
    sim.train()
    scales = [p.scale.requires_grad_() for p in sim.points.values()]
    optimizer = torch.optim.SGD([*sim.parameters(), *scales], lr=1e-4)
    before = [float(s.detach()) for s in scales]
    for _ in range(3):
        optimizer.zero_grad()
        sim(torch.randn(8, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    learned = [float(s.detach()) for s in scales]
    assert learned != before
    sim.eval()
    program = intact8.convert(sim)
    for point, scale in zip(sim.points.values(), learned, strict=True):
        shipped = program.tensors[point.tensors[0]].scale
        assert shipped == float(point.scale.detach()) and abs(shipped / scale - 1) < 0.03  # made tie-free, no more
    report = intact8.verify(program, torch.randn(4, 3, 8, 8), sim=sim)
    assert report.exact and not report.uncertified


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed", "fixed"])
def test_gradients_are_not_differentiated_again(scales: str) -> None:
    """Without a refusal, a gradient penalty has no effect at all."""
    sim = prepared(scales).train()
    x = torch.randn(4, 2, 6, 6, requires_grad=True)
    (first,) = torch.autograd.grad(sim(x).sum(), x)
    assert first.any()
    with pytest.raises(StateError, match="cannot be differentiated again"):
        torch.autograd.grad(sim(x).sum(), x, create_graph=True)
    (double,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    assert double.requires_grad  # a graph that goes around the simulation is nobody's business
