"""The schedule: what happens when, in checkpoints too."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from tests.train.networks import batch, exact, optimizer_of, prepared, train
from torch import nn

import intact8
from intact8 import RecipeError, StateError
from intact8.train import ScaleWarning, Schedule, check_optimizer, parameter_groups

PLAN: dict[str, dict[str, Any]] = {
    "learned": {"freeze_batchnorm": 2, "freeze_scales": 4},
    "observed": {"observe": 1, "freeze_batchnorm": 2, "freeze_scales": 4},
    "fixed": {"freeze_batchnorm": 1},
    "lsq+": {"freeze_batchnorm": 2, "freeze_scales": 4},
    "pact": {"observe": 1, "freeze_batchnorm": 2, "freeze_scales": 4},
}


def test_events_and_phases_in_order() -> None:
    sim = prepared("observed")
    schedule = Schedule(observe=1, freeze_batchnorm=2, freeze_scales=3)
    phases = []
    for _ in range(4):
        events = schedule.step(sim)
        phases.append((sim.phase, sim.scale_phase.batch_norm_frozen, events))
    assert phases == [
        ("hold", False, ["stop observing"]),
        ("hold", True, ["freeze batch norm"]),
        ("frozen", True, ["freeze scales"]),
        ("frozen", True, []),
    ]


def test_start_observes_a_calibrated_simulation_before_it_learns() -> None:
    sim = prepared("learned")
    schedule = Schedule(observe=2)
    schedule.start(sim)
    assert sim.phase == "observe"
    train(sim, optimizer_of(sim), range(2))
    schedule.step(sim)
    assert sim.phase == "observe"
    assert schedule.step(sim) == ["stop observing"]
    assert sim.phase == "learn"
    for point in sim.points.values():
        assert point.learner is None or torch.equal(point.learner.value.detach(), point.scale)


def test_freezing_scales_freezes_batch_norm_whatever_train_says() -> None:
    sim = prepared("learned")
    Schedule(freeze_scales=0).start(sim)
    mean = sim.bn1.running_mean.clone()
    sim.train()(batch(3)[0])
    assert sim.bn1.training and torch.equal(sim.bn1.running_mean, mean)


def test_freezing_batch_norm_changes_no_integer() -> None:
    sim = prepared("learned")
    train(sim, optimizer_of(sim), range(3))
    x = batch(4)[0]
    before = sim.eval().integer_tensors([x])
    Schedule(freeze_batchnorm=1).step(sim)
    after = sim.eval().integer_tensors([x])
    assert before.keys() == after.keys() and all((before[k] == after[k]).all() for k in before)


@pytest.mark.parametrize(
    "plan",
    [{"observe": -1}, {"freeze_scales": 1.5}, {"freeze_scales": True}, {"unit": "batch"},
     {"freeze_batchnorm": 4, "freeze_scales": 3}, {"observe": 4, "freeze_scales": 3}],
    ids=str,
)  # fmt: skip
def test_plans_without_meaning(plan: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="Schedule"):
        Schedule(**plan)


def test_another_plan_s_checkpoint_and_other_modules_are_refused() -> None:
    with pytest.raises(StateError, match="schedule is"):
        Schedule(observe=2).load_state_dict(Schedule(observe=1).state_dict())
    with pytest.raises(StateError, match="not Linear"):
        Schedule().step(nn.Linear(2, 2))


@pytest.mark.parametrize("scales", ["learned", "fixed"])
def test_observing_that_was_not_started_is_said_at_the_first_step_and_the_plan_goes_on(scales: str) -> None:
    sim, schedule = prepared(scales), Schedule(observe=2)
    with pytest.warns(ScaleWarning, match=r"observe = 2, but the first epoch went on.*schedule\.start"):
        assert schedule.step(sim) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScaleWarning)
        assert schedule.step(sim) == [] and schedule.done == 2
        assert Schedule(observe=2).step(prepared("observed")) == []
    if scales == "fixed":
        with pytest.raises(StateError, match="cannot observe: the scales are frozen"):
            Schedule(observe=2).start(sim)


def test_wrappers_are_taken_off() -> None:
    sim = prepared("learned")
    wrapped = torch.compile(torch.optim.swa_utils.AveragedModel(sim))
    assert Schedule(freeze_scales=1).step(wrapped) == ["freeze batch norm", "freeze scales"]
    assert wrapped.module.phase == "frozen" and sim.phase == "learn"


def saved(thing: Any) -> Any:
    stream = io.BytesIO()
    torch.save(thing, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def run(sim: Any, optimizer: Any, schedule: Schedule, epochs: range) -> None:
    if epochs.start == 0:
        schedule.start(sim)
    for epoch in epochs:
        train(sim, optimizer, range(3 * epoch, 3 * epoch + 3))
        schedule.step(sim)
        sim.eval()(batch(500)[0])  # validation


@functools.cache
def uninterrupted(scales: str) -> Any:
    whole = prepared(scales, dropout=0.3)
    run(whole, optimizer_of(whole), Schedule(**PLAN[scales]), range(6))
    return whole.eval()


@pytest.mark.filterwarnings("ignore::intact8.train.ScaleWarning")
@pytest.mark.parametrize(
    ("scales", "at"),
    [(s, 3) for s in sorted(PLAN)]
    + [pytest.param(s, at, marks=pytest.mark.long) for s in sorted(PLAN) if s not in ("lsq+", "pact") for at in (1, 5)],
)
def test_interrupted_and_resumed_is_uninterrupted(scales: str, at: int) -> None:
    whole = uninterrupted(scales)
    first = prepared(scales, dropout=0.3)
    optimizer, schedule = optimizer_of(first), Schedule(**PLAN[scales])
    run(first, optimizer, schedule, range(at))
    state = saved([first.state_dict(), optimizer.state_dict(), schedule.state_dict()])

    second = prepared(scales, seed=7, calibrated=False, dropout=0.3)  # other weights: all comes from the checkpoint
    second.load_state_dict(state[0])
    optimizer, schedule = optimizer_of(second), Schedule(**PLAN[scales])
    optimizer.load_state_dict(state[1])
    schedule.load_state_dict(state[2])
    run(second, optimizer, schedule, range(at, 6))

    a, b = whole.state_dict(), second.state_dict()
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, b[name]), name
    x = batch(9)[0]
    assert torch.equal(whole(x), second.eval()(x))
    exact(second)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("scales", sorted(PLAN))
def test_a_copy_trains_on_alike(scales: str, copied: Any) -> None:
    sim = prepared(scales)
    sim.freeze_batch_norm()
    train(sim, optimizer_of(sim), range(2))
    other = copied(sim)
    for s in (sim, other):
        train(s, optimizer_of(s), range(2, 4))
    assert all(torch.equal(a, b) for a, b in zip(sim.parameters(), other.parameters(), strict=True))
    assert torch.equal(sim.eval()(batch(9)[0]), other.eval()(batch(9)[0]))


def test_an_optimizer_without_the_scales_is_refused() -> None:
    sim = prepared("learned")
    weights = [p for n, p in sim.named_parameters() if "learner" not in n]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    with pytest.raises(StateError, match=r"lacks 11 of 11 learned scales.*parameter_groups"):
        check_optimizer(optimizer, sim)
    with pytest.raises(StateError, match=r"none of the 11 learned scales moved.*optimizer"):
        train(sim, optimizer, range(2))
    sim = prepared("learned")
    train(sim, torch.optim.SGD([p for n, p in sim.named_parameters() if "learner" not in n], lr=0.01), range(1))
    with pytest.raises(StateError, match="none of the"):
        Schedule().step(sim)


def test_the_hook_sees_groups_that_change() -> None:
    sim = prepared("learned")
    optimizer = optimizer_of(sim)
    optimizer.register_step_pre_hook(check_optimizer(optimizer, sim))
    train(sim, optimizer, range(1))
    del optimizer.param_groups[1]
    with pytest.raises(StateError, match="lacks"):
        train(sim, optimizer, range(1, 2))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_no_false_alarm(optimizer: Any, options: dict[str, bool]) -> None:
    sim = prepared("learned")
    train(sim, optimizer(parameter_groups(sim, lr=1e-4), **options), range(3))
    # Gradients are gathered over several batches; weights move without a step of the optimizer.
    sim.zero_grad()
    for step in range(3):
        nn.functional.cross_entropy(sim(batch(step)[0]), batch(step)[1]).backward()
    # Scales that are not to be learned may be left out.
    still = prepared("learned")
    for name, parameter in still.named_parameters():
        parameter.requires_grad_("learner" not in name)
    train(still, torch.optim.SGD([p for p in still.parameters() if p.requires_grad], lr=1e-4), range(3))


def test_groups() -> None:
    sim = prepared("learned")
    weights, scales = parameter_groups(sim, lr=0.1, scale_lr=0.01)
    assert (weights["lr"], scales["lr"], scales["weight_decay"]) == (0.1, 0.01, 0.0)
    assert len(weights["params"]) + len(scales["params"]) == len(list(sim.parameters()))
    with pytest.raises(StateError, match="no scale is learned"):
        parameter_groups(prepared("observed"), lr=0.1, scale_lr=0.01)
    assert len(parameter_groups(prepared("fixed"), lr=0.1)) == 1
    assert isinstance(intact8.train.Schedule(), Schedule)


def test_relative_rates_move_every_scale_by_the_same_share() -> None:
    sim = prepared("learned")
    weights, *scales = parameter_groups(sim, lr=0.0, scale_lr=0.01, relative=True)
    assert len(weights["params"]) + len(scales) == len(list(sim.parameters()))
    before = [group["params"][0].detach().clone() for group in scales]
    train(sim, torch.optim.Adam([weights, *scales], eps=1e-12), range(1))
    # The first step of Adam is the learning rate, up to its eps, which is far below any gradient here.
    moved = [
        float(((group["params"][0].detach() - old).abs() / old.mean()).max())
        for group, old in zip(scales, before, strict=True)
    ]
    assert all(share == pytest.approx(0.01, rel=0.02) for share in moved if share > 0) and max(moved) > 0
    with pytest.raises(StateError, match="no scale is learned"):
        parameter_groups(prepared("observed"), lr=0.1, relative=True)
    with pytest.raises(StateError, match="not known yet"):
        parameter_groups(prepared("learned", calibrated=False), lr=0.1, relative=True)
