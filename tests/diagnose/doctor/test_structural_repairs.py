"""What several operations do alike is put right together, and weights that no training leaves behind are named."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.answers import answers_of
from intact8.diagnose.doctor.best_repair import put_right
from intact8.diagnose.doctor.fitting import fitting
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.network_checks import batch_dependence
from intact8.diagnose.doctor.repair import Repair
from intact8.diagnose.doctor.repairs import repairs
from intact8.diagnose.doctor.report import Finding
from intact8.diagnose.doctor.samples import Samples, gather
from intact8.diagnose.doctor.structural_repairs import grouped, together
from intact8.diagnose.doctor.trials import Repaired, tried_repairs
from intact8.diagnose.doctor.untrained import untrained

PLAIN = intact8.Recipe(equalize=False)


class Bed:
    """A network, its simulation, samples, and what it answers."""

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor | None = None) -> None:
        self.network = FloatNetwork(net.eval(), x[:2], torch.device("cpu"))
        data = [x] if y is None else [(x, y)]
        self.samples: Samples = gather(data, self.network.captured, self.network.device, 1000)
        self.sim = self.network.prepare(PLAIN)

    def offered(self) -> dict[str, Any]:
        found = list(repairs(self.sim, self.samples))
        return {r.text: r for r in [*found, *together(grouped(found), self.sim.graph)]}

    def said(self) -> Finding:
        answers = answers_of(FloatOutputs(self.sim, self.samples, None), self.samples, 1)
        return put_right(self.network, self.sim, answers, self.samples, [])[0]


def answered(net: nn.Module, x: Tensor) -> Tensor:
    """What a network answers is taken to be right."""
    with torch.no_grad():
        y: Tensor = net.eval()(x).argmax(1)
    return y


def mlp(act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 16), act())), nn.Linear(16, 4))
    for layer in net[::2]:
        nn.init.normal_(layer.weight, std=0.4)
    return net


def test_a_tried_change_sends_no_index_beyond_a_table() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item, self.fc = nn.Embedding(40, 4), nn.Embedding(4, 4), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Any:
            return self.fc(torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1])], 1))

    torch.manual_seed(0)
    ids = torch.stack([torch.arange(128) % 40, torch.arange(128) % 4], 1)
    bed = Bed(Two(), ids, torch.randint(0, 3, (128,)))
    answers = answers_of(FloatOutputs(bed.sim, bed.samples, None), bed.samples, 1)
    assert answers is not None
    tried = {r.repair.text for r in tried_repairs(bed.sim, bed.samples, answers.targets)}
    assert "it sees indices one more" in bed.offered() and "it sees indices one more" not in tried
    assert tried


def test_nothing_more_is_tried_when_the_time_is_over() -> None:
    net, x = mlp(), torch.randn(64, 16)
    bed = Bed(net, x, torch.randint(0, 4, (64,)))
    answers = answers_of(FloatOutputs(bed.sim, bed.samples, None), bed.samples, 1)
    assert answers is not None
    few = tried_repairs(bed.sim, bed.samples, answers.targets, time.monotonic() - 1)
    assert 0 < len(few) < len(tried_repairs(bed.sim, bed.samples, answers.targets))


def test_the_noise_of_a_wrong_network_is_not_measured_when_the_time_is_over() -> None:
    net, x = mlp(), torch.randn(256, 16)
    y = (answered(net, x) + 1) % 4
    report = intact8.doctor(net, [(x, y)], seconds=0, budget=0)
    assert (report.findings[0].place, report.findings[0].cause) == ("network", "float_network_wrong")
    assert report.sites == () == report.trials


def test_layers_that_are_transposed_everywhere() -> None:
    net, x = mlp(), torch.randn(128, 16)
    y = answered(net, x)
    with torch.no_grad():
        for layer in net[:6:2]:
            layer.weight.copy_(layer.weight.T.clone())
    found = Bed(net, x, y).said()
    assert (found.place, found.cause) == ("0", "wrong_weights") and "in 2 more places" in found.message
    assert found.evidence["accuracy"][1] == 1


def test_another_activation_everywhere() -> None:
    net, x = mlp(nn.Tanh), torch.randn(128, 16)
    y = answered(net, x)
    for i in (1, 3, 5):
        net[i] = nn.ReLU()
    found = Bed(net, x, y).said()
    assert (found.place, found.cause) == ("1", "wrong_setting") and "it computes tanh, not relu" in found.message


def test_inputs_that_are_normalized_twice() -> None:
    class Normalizing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.register_buffer("mean", torch.full((16,), 3.0))

        def forward(self, x: Tensor) -> Any:
            return self.net((x - self.mean) / 0.2)

    x = torch.randn(128, 16)
    y = answered(mlp(), x)
    texts = [text for text in Bed(Normalizing(), x, y).offered() if "prepared already" in text]
    assert len(texts) == 1


def test_a_batch_norm_that_its_weights_hold_already() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8, momentum=None), nn.ReLU()),
        torch.randn(64, 2, 8, 8),
    )
    with torch.no_grad():
        net[0].weight.mul_(3)
    net(x)
    net.eval()
    with torch.no_grad():
        net[0].weight.mul_((net[1].running_var + net[1].eps).rsqrt().reshape(-1, 1, 1, 1))
    bed = Bed(net, x)
    found = fitting(bed.sim, bed.samples, "0")
    assert found is not None and "does not hold its batch norm already" in found[0].text and found[2] < 0.01


def test_a_recurrent_layer_along_the_samples() -> None:
    class Rows(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.rnn, self.fc = nn.GRU(4, 8, batch_first=first), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Any:
            return self.fc(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    net, wrong, x = Rows(True), Rows(False), torch.randn(32, 6, 4)
    wrong.load_state_dict(net.state_dict())
    bed = Bed(wrong, x)
    (found,) = batch_dependence(bed.network, bed.samples, bed.sim.graph)
    assert (found.place, found.cause) == ("rnn", "batch_dependence")
    assert not batch_dependence(Bed(net, x).network, bed.samples, Bed(net, x).sim.graph)
    repair = bed.offered()["it runs along the steps, dimension 1, not along the samples (batch_first=True)"]
    with torch.no_grad():
        assert torch.allclose(repair.value(bed.sim, [x]), net.rnn(x)[0], atol=1e-6)


def test_padding_takes_no_part_in_attention_and_means() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.fc = nn.Embedding(9, 8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Any:
            x = self.emb(ids)
            return self.fc(((x @ x.mT).softmax(-1) @ x).mean(1))

    torch.manual_seed(0)
    ids = torch.randint(1, 9, (32, 6))
    ids[:, 4:] = 0
    bed, text = Bed(Words(), ids), "padding, which is index 0, takes no part in it"
    both = [r for r in repairs(bed.sim, bed.samples) if r.text == text][-1]
    softmax, mean = both.parts()
    x = torch.randn(32, 6, 6)
    weights = softmax.value(bed.sim, [x], {"ids": ids})
    assert torch.allclose(weights[..., :4], x[..., :4].softmax(-1)) and not bool(weights[..., 4:].any())
    y = torch.randn(32, 6, 8)
    assert torch.allclose(mean.value(bed.sim, [y], {"ids": ids}), y[:, :4].mean(1), atol=1e-6)


def test_columns_of_indices_that_share_a_table() -> None:
    class Joint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(28, 4), nn.Linear(8, 3)
            self.register_buffer("offset", torch.tensor([[0, 0]]))

        def forward(self, ids: Tensor) -> Any:
            return self.fc(self.table(ids + self.offset).flatten(1))

    ids = torch.stack([torch.arange(60) % 20, torch.arange(60) % 8], 1)
    bed = Bed(Joint(), ids)
    repair = bed.offered()["its columns of indices begin at rows 0, 20 of the table"]
    assert torch.equal(repair.value(bed.sim, [ids, torch.zeros(1, 2).long()]), ids + torch.tensor([0, 20]))


def test_weights_that_no_training_leaves_behind() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(8, 16))
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

        def forward(self, x: Tensor) -> Any:
            x = x + self.positions
            for block in self.blocks:
                x = block(x).relu()
            return x

    torch.manual_seed(0)
    net, x = Positions(), torch.randn(32, 8, 16)
    with torch.no_grad():
        for block in net.blocks:
            block.weight.copy_(0.3 * torch.randn(16, 16))
        net.blocks[2].load_state_dict(net.blocks[1].state_dict())
        net.blocks[4].weight.copy_(net.blocks[4].weight.to(torch.int8))
    found = {f.place: f.message for f in untrained(Bed(net, x).sim)}
    assert found.keys() == {"positions", "blocks.2", "blocks.4"}
    assert "zeros" in found["positions"] and "bit by bit" in found["blocks.2"] and "zeros" in found["blocks.4"]


def test_many_more_right_answers_are_enough_where_most_of_the_loss_is_noise() -> None:
    node = Bed(mlp(), torch.randn(8, 16)).sim.graph.nodes["0"]

    def helps(cause: str, score: float, loss: float) -> bool:
        return Repaired(Repair(cause, "", node), (0.5, score), (1.0, loss), 5.0).helps

    assert helps("wrong_setting", 0.65, 0.75) and helps("wrong_setting", 0.55, 0.65)
    assert not helps("wrong_setting", 0.55, 0.75) and not helps("wrong_scale", 0.65, 0.75)
