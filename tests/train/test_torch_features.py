"""What else PyTorch does with a module in training: checkpoints, autocast, averages, compilers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.networks import Net, batch, exact, optimizer_of, prepared, train
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import intact8
import intact8.train

KINDS = ["learned", "observed", "fixed", "lsq+", "pact"]


def gradients(sim: Any, forward: Callable[[Tensor], Tensor], step: int) -> dict[str, Tensor]:
    sim.zero_grad()
    x, y = batch(step)
    nn.functional.cross_entropy(forward(x), y).backward()
    return {name: p.grad.clone() for name, p in sim.named_parameters() if p.grad is not None}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("scales", KINDS)
@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
def test_gradient_checkpointing(scales: str, reentrant: bool) -> None:
    """Run again in the backward pass, nothing is observed twice and no scale moves in between."""
    plain = prepared(scales).train()
    plain.freeze_batch_norm()
    other = copy.deepcopy(plain)

    def recomputed(x: Tensor) -> Any:
        return checkpoint(other, x.clone().requires_grad_(), use_reentrant=reentrant)

    for step in range(3):
        assert equal(gradients(plain, plain, step), gradients(other, recomputed, step))
    assert plain.points["x"].observer.count == other.points["x"].observer.count


@pytest.mark.parametrize("scales", ["learned", "observed"])
def test_two_forwards_before_a_backward(scales: str) -> None:
    sim = prepared(scales).train()
    (sim(batch(0)[0]).sum() + sim(batch(1)[0]).sum()).backward()
    assert all(p.grad is not None for n, p in sim.named_parameters() if "learner" not in n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_no_integer(dtype: torch.dtype) -> None:
    sim, x = prepared("learned").eval(), batch(0)[0]
    with torch.autocast("cpu", dtype=dtype):
        y = sim(x)
    assert torch.equal(y, sim(x))
    sim.train()
    sim.freeze_batch_norm()

    def mixed(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            result: Tensor = sim(x)
        return result

    assert equal(gradients(sim, sim, 1), gradients(sim, mixed, 1))


def test_a_gradient_scaler() -> None:
    sim = prepared("learned")
    optimizer, scaler = optimizer_of(sim), torch.amp.GradScaler("cpu")
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(sim.train()(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    exact(sim)


@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize("scales", KINDS)
def test_an_average_of_weights_and_scales_ships(scales: str) -> None:
    sim = prepared(scales)
    optimizer = optimizer_of(sim)
    average = AveragedModel(sim, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for step in range(4):
        train(sim, optimizer, range(step, step + 1))
        average.update_parameters(sim)
    intact8.train.reestimate_batch_norm(average.module, [batch(i)[0] for i in range(3)])
    program = exact(average.module)
    assert program is not None and not torch.equal(average.module.fc.weight, sim.fc.weight)
    with pytest.raises(intact8.StateError, match=r"not AveragedModel.*\.module"):
        intact8.convert(average)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_compiled_it_is_what_it_was(training: bool) -> None:
    """The simulation itself runs uncompiled; what is around it is compiled."""
    plain = prepared("learned").train(training)
    plain.freeze_batch_norm()
    other = copy.deepcopy(plain)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = other

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x * 2)
            return y.relu()

    for module, reference in ((other, plain), (Around(), lambda x: plain(x * 2).relu())):
        compiled = torch.compile(module, backend="eager")
        for step in range(2):
            if training:
                assert equal(gradients(plain, reference, step), gradients(other, compiled, step))
            else:
                assert torch.equal(compiled(batch(step)[0]), reference(batch(step)[0]))


class Plain(torch.optim.Optimizer):
    """Gradient descent as older ones write it, without torch's counting."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad.data, alpha=-1e-3)


def test_an_optimizer_that_writes_to_data_moves_scales() -> None:
    torch.manual_seed(0)
    sim = intact8.prepare(Net().eval(), batch(0)[0], intact8.recipes.qat("learned"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, [batch(1)[0]])
    train(sim, Plain(sim.parameters()), range(3))


def test_an_optimizer_built_before_prepare_is_an_error_at_its_first_step() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for scales in ("learned", "observed"):
        sim = intact8.prepare(net, batch(0)[0], intact8.recipes.qat(scales))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            intact8.calibrate(sim, [batch(1)[0]])
        with pytest.raises(intact8.StateError, match=r"Adam moves nothing: none of its 11 param.*parameter_groups"):
            train(sim, optimizer, range(1))
        # Others may step in between; the right one is found, and nobody looks any longer.
        other = nn.Linear(2, 2)
        other(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
        train(sim, optimizer_of(sim), range(2))
        assert sim.scale_phase.stepped
    from intact8.train import optimizer as optimizers

    assert not optimizers._waiting or sim not in optimizers._waiting


def test_an_optimizer_whose_closure_computes_gradients_is_not_idle() -> None:
    sim, other = prepared("learned").train(), nn.Linear(2, 2)
    sim(batch(0)[0]).sum().backward()  # nobody's step follows

    def closure() -> Tensor:
        loss = other(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    for given in ({"closure": closure}, closure):
        other.zero_grad()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        optimizer.step(**given) if isinstance(given, dict) else optimizer.step(given)
    other.zero_grad()
    with pytest.raises(intact8.StateError, match="SGD moves nothing"):
        torch.optim.SGD(other.parameters(), lr=0.1).step()


def test_what_wraps_a_simulation_is_not_prepared_again() -> None:
    sim = prepared("learned")
    for wrapped in (sim, nn.Sequential(sim, nn.ReLU()), AveragedModel(sim)):
        with pytest.raises(intact8.StateError, match="learned scales away"):
            intact8.prepare(wrapped, batch(0)[0])
    with pytest.raises(intact8.StateError, match=r"not AveragedModel.*\.module"):
        intact8.calibrate(AveragedModel(sim), [batch(0)[0]])  # type: ignore[arg-type]


class Reused(nn.Module):
    """One batch norm behind two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.a(x)))
        y: Tensor = self.head(torch.relu(self.norm(self.b(x))).mean((2, 3)))
        return y


@pytest.mark.parametrize("scales", ["learned", "observed"])
def test_a_batch_norm_that_is_used_twice(scales: str) -> None:
    torch.manual_seed(0)
    net = Reused().eval()
    sim = intact8.prepare(net, batch(0)[0], intact8.recipes.qat(scales))
    # Live, its statistics follow both uses, as in the float network.
    reference = copy.deepcopy(net).train()
    floating = copy.deepcopy(sim).train()
    floating.fake_quantize(False)
    with torch.no_grad():
        for step in range(2):
            torch.testing.assert_close(floating(batch(step)[0]), reference(batch(step)[0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(floating.norm.running_mean, reference.norm.running_mean, rtol=1e-4, atol=1e-4)
    assert int(floating.norm.num_batches_tracked) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, [batch(i)[0] for i in range(3)])
    optimizer = optimizer_of(sim)
    train(sim, optimizer, range(3))
    exact(sim)
    intact8.train.Schedule(freeze_scales=1).step(sim)
    train(sim, optimizer, range(3, 5))
    exact(sim)
