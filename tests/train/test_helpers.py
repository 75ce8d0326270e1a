"""Batch norm re-estimation and distillation."""

from __future__ import annotations

import pytest
import torch
from tests.train.networks import batch, exact, prepared
from torch import nn

import intact8
from intact8.train import distillation_loss, reestimate_batch_norm


def test_statistics_are_those_torch_averages() -> None:
    """On a float network (fake quantization off) it is what ``momentum=None`` gives."""
    sim = prepared("learned", dropout=0.5)
    sim.fake_quantize(False)
    data = [batch(i)[0] for i in range(4)]
    norms = [sim.bn1, sim.bn2]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    sim.train()
    sim.dropout.eval()
    with torch.no_grad():
        for x in data:
            sim(x)
    expected = [(n.running_mean.clone(), n.running_var.clone()) for n in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1)
        norm.momentum = 0.1
    sim.eval()
    tracked = [int(n.num_batches_tracked) for n in norms]
    assert reestimate_batch_norm(sim, data) == 2
    for norm, (mean, var), count in zip(norms, expected, tracked, strict=True):
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, var)
        assert norm.momentum == 0.1 and not norm.training and int(norm.num_batches_tracked) == count
    assert not sim.training


@pytest.mark.parametrize("scales", ["learned", "observed", "fixed"])
def test_it_sees_quantized_values_and_the_result_ships(scales: str) -> None:
    sim = prepared(scales).train()
    count = sim.points["x"].observer.count
    before = sim.bn1.running_var.clone()
    reestimate_batch_norm(sim, [batch(i)[0] for i in range(4)], max_batches=3)
    assert not torch.equal(sim.bn1.running_var, before)
    assert sim.points["x"].observer.count == count and sim.training and sim.bn1.training
    exact(sim)


def test_without_batch_norm_or_data() -> None:
    sim = intact8.prepare(nn.Linear(4, 2), torch.randn(2, 4))
    assert reestimate_batch_norm(sim, torch.randn(8, 4)) == 0
    with pytest.raises(intact8.CalibrationError, match="no batch"):
        reestimate_batch_norm(prepared("learned"), [])


def test_distillation_is_the_divergence_times_the_square_of_the_temperature() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 7, 3, requires_grad=True), torch.randn(5, 7, 3, requires_grad=True)
    loss = distillation_loss(student, teacher, temperature=2.0)
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    torch.testing.assert_close(loss, 4 * (p * (p / q).log()).sum(-1).mean())
    loss.backward()
    assert teacher.grad is None
    torch.testing.assert_close(student.grad, 4 * (q - p).detach() / 2 / 35)
    with pytest.raises(intact8.InputError, match="differ in shape"):
        distillation_loss(student, teacher[0])
    with pytest.raises(intact8.InputError, match="not positive"):
        distillation_loss(student, teacher, temperature=0.0)
