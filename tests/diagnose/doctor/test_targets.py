"""What the float network is judged by: classes of samples, of pixels and of words, and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.diagnose.chunks import Chunk
from intact8.diagnose.doctor.answers import Answers
from intact8.diagnose.doctor.exploded import grown_everywhere
from intact8.diagnose.doctor.findings import ordered
from intact8.diagnose.doctor.float_causes import FLOAT_CAUSES, refused
from intact8.diagnose.doctor.float_checks import proven
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.model_checks import overflowing, rounded
from intact8.diagnose.doctor.repairs import repairs
from intact8.diagnose.doctor.report import Finding
from intact8.diagnose.doctor.samples import Samples, gather
from intact8.diagnose.doctor.targets import Targets, targets_of
from intact8.diagnose.doctor.trials import standard_errors
from intact8.diagnose.doctor.untrained import untrained


def batches(x: Tensor, y: Tensor) -> Samples:
    return Samples(tuple(Chunk([a], (a, b), len(a)) for a, b in zip(x.split(4), y.split(4), strict=True)))


def test_embeddings_are_no_scores_of_classes() -> None:
    """Vectors of length 1 are judged by the metric that is given, and without one by nothing."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), Directions()).eval()
    persons = torch.randn(6, 12)
    labels = torch.randint(0, 6, (384,))
    x = persons[labels] + 0.1 * torch.randn(384, 12)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(1.7)
        known = net(persons)

    def near(outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs @ known.T).argmax(1) == labels).double()

    assert targets_of(batches(x, labels), 1, net(x)) is None
    for metric in (near, None):
        report = intact8.doctor(net, batches_of(x, labels), metric=metric, remedies=False, seconds=0)
        assert all(f.severity == "note" for f in report.findings), [str(f) for f in report.findings]
    with torch.no_grad():
        net[2].weight.data = net[2].weight.data.flip(1).contiguous()
    report = intact8.doctor(net, batches_of(x, labels), metric=near, remedies=False, seconds=0)
    assert report.findings[0].cause in FLOAT_CAUSES and report.findings[0].severity == "error"


class Directions(nn.Module):
    """Vectors of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().sum(1, keepdim=True).sqrt()


def batches_of(x: Tensor, y: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(x.split(64), y.split(64), strict=True))


def test_weights_that_were_rounded_in_one_module() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({name: nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))) for name in ("one", "two")})
    with torch.no_grad():
        for layer in net["one"]:
            layer.weight.copy_((layer.weight * 20).round() / 20)
    assert [(f.cause, f.place) for f in rounded(net)] == [("rounded_weights", "one")]
    with torch.no_grad():
        net["two"][0].weight.copy_((net["two"][0].weight * 20).round() / 20)
    assert [f.place for f in rounded(net)] == ["network"]


def test_rows_of_length_one_and_weights_that_vanished() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    with torch.no_grad():
        for layer in net:
            layer.weight.mul_(3)
        net[1].weight.div_(net[1].weight.norm(dim=1, keepdim=True))
    sim = intact8.prepare(net, torch.randn(2, 16))
    found = [f for f in untrained(sim) if "lengths" in f.evidence]
    assert [(f.place, f.cause) for f in found] == [("1", "wrong_weights")]
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(1e-6)
    dead = [Finding("dead_channels", "2", "error", "", "", evidence={"share": 1.0})]
    (vanished,) = grown_everywhere(intact8.prepare(net, torch.randn(2, 16)), dead)
    assert vanished.cause == "float_network_wrong" and "made them vanish" in vanished.message


def test_the_best_temperature_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    index, noise = torch.randint(0, 5, (64,), generator=generator), torch.randn(64, 5, generator=generator)
    for scale, right in ((1e-6, 1.0), (0.01, 3.0), (1.0, 2.0), (30.0, 1.0), (1.0, 0.0), (1.0, -4.0)):
        scores = scale * (noise + right * nn.functional.one_hot(index, 5)).double()
        means = {k: float(nn.functional.cross_entropy(2.0**k * scores, index)) for k in range(-24, 9)}
        factor, losses = Targets(index, classes=True).tempered(scores)
        assert factor == 2.0 ** min(means, key=lambda k: means[k])
        assert float(losses.mean()) == pytest.approx(min(means.values()))


@pytest.mark.parametrize(
    ("scores", "places"),
    [((3,), ()), ((3, 2, 5), (2, 5)), ((7, 3), (7,))],
    ids=["samples", "pixels", "words"],
)
def test_classes(scores: tuple[int, ...], places: tuple[int, ...]) -> None:
    y = torch.randint(0, 3, (8, *places), generator=torch.Generator().manual_seed(0))
    right = nn.functional.one_hot(y, 3).float()
    right = right if scores[-1] == 3 else right.movedim(-1, 1)
    targets = targets_of(batches(torch.zeros(8, 2), y), 1, right)
    assert targets is not None and targets.classes
    assert targets.score(right) == 1 and targets.score(-right) < 0.5
    assert float(targets.losses(right).mean()) < float(targets.losses(-right).mean())


def test_numbers_count_by_the_variance_of_their_column() -> None:
    y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1000.0])
    targets = targets_of(batches(torch.zeros(8, 2), y), 1, y)
    assert targets is not None and not targets.classes and targets.score(y) == 1
    wrong = y.clone()
    wrong[:, 0] = y[:, 0].mean()
    assert targets.score(wrong) == pytest.approx(0.5, abs=1e-5)


def test_a_column_that_never_changes_hides_no_others() -> None:
    """A pixel that is always black, and answered as nearly black, is no fault."""
    y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    y[:, 2] = 0.0
    targets = targets_of(batches(torch.zeros(64, 2), y), 1, y)
    assert targets is not None and targets.score(y + 0.003) > 0.99
    wrong = y.clone()
    wrong[:, 0] = 100.0  # worse than its mean: nothing of this column, all of the others
    assert targets.score(wrong) == pytest.approx(0.75, abs=1e-3)


def test_numbers_in_other_units_by_channel() -> None:
    y = torch.randn(32, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    targets = targets_of(batches(torch.zeros(32, 2), y), 1, y)
    assert targets is not None
    other = torch.stack([3 * y[:, 0] - 1, y[:, 1]], 1)
    assert targets.score(other) == pytest.approx(0.5, abs=1e-3) and targets.renumbered(other) == pytest.approx(1)


def test_yes_and_no_are_classes_of_logits() -> None:
    y = torch.tensor([0.0, 1.0, 1.0, 0.0]).repeat(2)[:, None]
    logits, x = 6 * y - 3, torch.zeros(8, 2)
    for given, answered in ((y, logits), (y.long(), logits), (y[:, 0].long(), y)):  # y itself as probabilities
        targets = targets_of(batches(x, given), 1, answered)
        assert targets is not None and targets.classes and targets.score(answered) == 1
        assert targets.score(-logits) == 0 and targets.renumbered(-logits) == 1
    numbers, one = targets_of(batches(x, y), 1, y + 0.1), torch.cat([y, 1 - y], 1)
    assert numbers is not None and not numbers.classes
    classes = targets_of(batches(x, one), 1, 5 * one + 20)  # one-hot: what counts is which score is the largest
    assert classes is not None and classes.score(5 * one + 20) == 1


def test_heat_maps_are_answered_by_logits() -> None:
    torch.manual_seed(0)
    maps = torch.zeros(8, 2, 6, 6)
    maps[:, :, 2, 3], maps[:, :, 2, 2], maps[4:, 0] = 1.0, 0.6, 0.0
    logits = maps.clamp(0.01, 0.99).logit()
    found = targets_of(batches(torch.randn(8, 3), maps), 1, logits)
    assert found is not None and found.link == "sigmoid" and found.score(logits) > 0.9
    numbers = targets_of(batches(torch.randn(8, 3), maps), 1, maps + 0.1 * torch.randn(8, 2, 6, 6))
    assert numbers is not None and not numbers.link


def test_rows_of_shares_are_classes() -> None:
    torch.manual_seed(0)
    smoothed = 0.9 * nn.functional.one_hot(torch.arange(8) % 4, 4) + 0.025
    found = targets_of(batches(torch.randn(8, 3), smoothed), 1, torch.randn(8, 4))
    assert found is not None and found.classes and torch.equal(found.values, torch.arange(8) % 4)


def test_a_rare_yes_that_is_foretold_somewhat_is_no_guess() -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(512, generator=generator) < 0.06).long()
    logits = 2.0 * y + torch.randn(512, generator=generator) - 4.5  # none is 0 or larger, or next to none
    targets = Targets(y, True, yes=True)
    gained = [standard_errors(targets.prior_losses() - targets.losses(z)) for z in (logits, logits.flip(0))]
    knows, chance = (Answers(targets.score(z), 0.9, targets, 1.0, 0.0, None, gain)
                     for z, gain in zip((logits, logits.flip(0)), gained, strict=True))  # fmt: skip
    assert knows.score < targets.chance() + 0.01 and not knows.guesses and chance.guesses


def test_columns_in_units_of_their_own() -> None:
    y = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1000.0])
    targets, alike = (targets_of(batches(torch.zeros(64, 2), t), 1, t) for t in (y, y / y.std(0)))
    assert targets is not None and alike is not None and alike.units(y / y.std(0)) is None
    units = targets.units(y)
    assert units is not None and float(units[0] / units[1]) == pytest.approx(1000, rel=0.3)
    assert targets.units(y * torch.tensor([0.0, 1.0])) is None  # nothing of the first is foretold


@pytest.mark.parametrize("y", [torch.zeros(8), torch.full((8,), 9), torch.zeros(8, 4)], ids=["one", "beyond", "shape"])
def test_what_is_no_target(y: Tensor) -> None:
    assert targets_of(batches(torch.zeros(8, 2), y), 1, torch.zeros(8, 3)) is None


def test_order_of_classes_of_which_one_is_never_the_answer() -> None:
    right = torch.tensor([0] * 60 + [1] * 3 + [2] * 10 + [3] * 10)
    given = torch.tensor([0] * 63 + [3] * 10 + [2] * 10)
    order = Targets(right, True).order(nn.functional.one_hot(given, 4).double())
    assert order is not None and order.tolist() == [0, 1, 3, 2]
    assert Targets(right, True).order(nn.functional.one_hot(right, 4).double()) is None


def test_renumbered_classes() -> None:
    y = torch.arange(8) % 3
    targets = targets_of(batches(torch.zeros(8, 2), y), 1, torch.zeros(8, 3))
    assert targets is not None
    assert targets.renumbered(nn.functional.one_hot((y + 1) % 3, 3).float()) == 1
    assert targets.renumbered(torch.zeros(8, 3)) == pytest.approx(3 / 8)
    rare = Targets(torch.arange(40), True)
    assert rare.renumbered(nn.functional.one_hot((rare.values + 1) % 40, 40).float()) == 0  # each is seen once


def simulation(net: nn.Module, x: Tensor) -> intact8.Simulation:
    sim = intact8.prepare(net.eval(), x)
    intact8.calibrate(sim, x)
    return sim.eval()


def test_weights_as_initialized_and_copies_of_rows() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    with torch.no_grad():
        for layer in net[:4]:
            layer.weight.mul_(1.3).add_(0.1 * torch.randn(16, 16))
        net[4].weight.copy_(net[4].weight[:1].expand(16, 16))
    found = {f.place: f.message for f in untrained(simulation(net, torch.randn(32, 16)))}
    assert found.keys() == {"4", "5"} and "copies" in found["4"] and "initialized" in found["5"]


@pytest.mark.parametrize(
    ("shape", "bound", "bias", "initialized"),
    [
        ((10, 20), (6 / 30) ** 0.5, 0.05, False),  # two hundred numbers reach one of several bounds by chance
        ((64, 48), (6 / 112) ** 0.5, 0.0, True),
        ((64, 48), 48**-0.5, 0.1, True),
        ((16, 12), 12**-0.5, 0.1, True),
        ((16, 12), 12**-0.5, 0.4, False),  # a bias that was trained beside it
        ((64, 48), 48**-0.5, 0.4, True),  # so many numbers are no chance: a decoder that was tied, say
    ],
)
def test_a_trained_layer_is_not_taken_for_one_as_initialized(
    shape: tuple[int, int], bound: float, bias: float, initialized: bool
) -> None:
    weight = torch.linspace(-bound, bound, shape[0] * shape[1])[torch.randperm(shape[0] * shape[1])]
    net = nn.Sequential(nn.Linear(shape[1], shape[0]))
    with torch.no_grad():
        net[0].weight.copy_(weight.reshape(shape))
        net[0].bias.fill_(bias)
    assert bool(untrained(simulation(net, torch.randn(32, shape[1])))) == initialized


def test_weights_that_are_huge_in_most_layers() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))), torch.randn(32, 16)
    with torch.no_grad():
        net[0].weight.mul_(1e4)
        assert grown_everywhere(simulation(net, x)) == []
        net[2].weight.mul_(1e4)
    (found,) = grown_everywhere(simulation(net, x))
    assert found.evidence["layers"] == ["0", "2"] and "diverged" in found.message
    with torch.no_grad():
        for layer in net:
            layer.weight.normal_()
    dead = Finding("dead_channels", "1", "error", "", "", evidence={"share": 1.0})
    assert grown_everywhere(simulation(net, x)) == []
    assert "whole layers are dead" in grown_everywhere(simulation(net, x), [dead])[0].message


def test_something_far_too_large_is_no_reason_to_refuse_right_answers() -> None:
    grown, targets = Finding("exploded_weight", "0", "error", "", ""), Targets(torch.arange(4), True)
    answers = Answers(0.9, 0.9, targets, 1.0, 0.9)
    assert refused([grown]) and not refused(proven([grown], [], answers))


def test_coarse_rounding_explains_a_network_that_is_wrong() -> None:
    torch.manual_seed(0)
    targets = Targets(torch.arange(4), True)
    wrong = Finding("float_network_wrong", "network", "error", "", "")
    for bits, severity in ((3, "error"), (8, "warning")):
        net, step = nn.Linear(64, 64), 0.125 / (2 ** (bits - 1) - 1)
        with torch.no_grad():
            net.weight.copy_((net.weight / step).round() * step)
        found = rounded(net)[0]
        told = proven([found], [wrong], Answers(0.1, 0.9, targets, 1.0, 0.1))
        assert told[0].severity == severity
        assert ordered(told, [])[0].cause == ("rounded_weights" if bits == 3 else "float_network_wrong")


def test_norms_as_they_begin() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.LayerNorm(8)))), torch.randn(32, 8)
    assert not untrained(simulation(net, x))  # all of them
    for norm in (net[1], net[5]):
        nn.init.normal_(norm.weight)
    (found,) = untrained(simulation(net, x))
    assert (found.place, found.cause, found.severity) == ("3", "wrong_weights", "note")
    repaired = Finding("wrong_scale", "3", "error", "", "", evidence={"recovers": 0.9, "accuracy": (0.1, 0.9)})
    answers = Answers(0.1, 0.9, Targets(torch.arange(4), True), 1.0, 0.1)
    assert proven([found], [], answers)[0].severity == "note"
    assert proven([found, repaired], [], answers)[0].severity == "error"


def test_a_wrong_network_that_has_no_program_is_reported() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.randn(400, 8)
    with torch.no_grad():
        net[0].weight.mul_(1e13)
        net[0].bias.fill_(-1e15)
        net[2].weight.mul_(1e13)
    report = intact8.doctor(net, [(x, torch.randint(0, 4, (400,)))], seconds=0)
    assert report.trials == ()  # no recipe repairs it
    assert (report.findings[0].place, report.findings[0].cause) == ("network", "float_network_wrong")
    assert "already wrong" in report.verdict.reason


def offered(net: nn.Module, x: Tensor) -> list[str]:
    """What is tried to put right."""
    sim = simulation(net, x)
    network = FloatNetwork(net, x, torch.device("cpu"))
    return [f"{r.node.name}: {r.text}" for r in repairs(sim, gather(x, network.captured, network.device, 64))]


def test_recurrent_weights_get_the_usual_size() -> None:
    torch.manual_seed(0)
    net, x = nn.LSTM(8, 16, 2, batch_first=True), torch.randn(32, 6, 8)
    assert not any("times as large as the weights of other layers" in text for text in offered(net, x))
    with torch.no_grad():
        net.weight_hh_l0.mul_(20)
    assert any("weight_hh_l0, " in text and "as the weights of other layers" in text for text in offered(net, x))


def test_inputs_and_results_lose_their_means() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 1, 3)), torch.randn(32, 4, 8)
    assert any("channels with mean 0" in text and "deviation" not in text for text in offered(net, x))
    assert not any("loses its mean" in text for text in offered(net, x))
    with torch.no_grad():
        net[2].bias.fill_(-50.0)
    assert any(text.startswith("2: channel 0") and "loses its mean" in text for text in offered(net, x))


def test_only_weights_of_one_size_are_exchanged() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(32, 8)
    assert any("exchange" in text for text in offered(net, x))
    with torch.no_grad():
        net[0].weight.mul_(100)
    assert not any("exchange" in text for text in offered(net, x))


class Words(nn.Module):
    """Indices with positions, a softmax of a softmax, and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(8, 4, padding_idx=0), nn.Parameter(torch.randn(6, 4))
        self.fc = nn.Linear(8, 3)

    def forward(self, ids: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        x = (self.words(ids) + self.positions + mask[:, :, None]).softmax(-1).softmax(-1)
        return self.fc(torch.cat([x.mean(1), other], 1))


def test_what_comes_in_another_order() -> None:
    torch.manual_seed(0)
    ids = torch.randint(2, 8, (32, 6))
    ids[:, 4:] = 1
    data = (ids, torch.randn(32, 4), ids > 1)
    network = FloatNetwork(Words().eval(), data, torch.device("cpu"))
    sim = network.prepare(intact8.recipes.default())
    found = {r.text: r for r in repairs(sim, gather([data], network.captured, network.device, 64))}
    assert "it sees channels with mean 0 and standard deviation 1 as other" in found
    padded = found["it sees padding of 0, not 1 as ids"].change
    assert padded is not None and torch.equal(padded(ids), torch.where(ids == 1, 0, ids))
    later, joined = found["its rows come one later"], found["it joins its inputs in the order (1, 0)"]
    (table,) = later.tensors.values()
    assert torch.equal(table[1:], sim.tensors[later.node.params["value"]][:-1])
    a, b = torch.zeros(1, 4), torch.ones(1, 4)
    assert torch.equal(joined.value(sim, [a, b]), torch.cat([b, a], 1))
    assert torch.equal(found["it is left out, as what it reads is a softmax"].value(sim, [b]), b)
    x = torch.arange(32.0).reshape(2, 2, 2, 4)
    assert any("channels last" in text for text in offered(nn.Conv2d(2, 3, 1), x))


def test_a_gate_that_is_always_closed_is_dead() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.gate, self.fc = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(self.wide(x) * self.gate(x).sigmoid())
            return y

    torch.manual_seed(0)
    net, x = Gated().eval(), torch.randn(256, 8)
    with torch.no_grad():
        for parameter in net.parameters():  # unlike initialization
            parameter.add_(0.2 * torch.randn(parameter.shape))
        y = net(x).argmax(1)
        net.gate.bias.fill_(-40.0)
    first = intact8.doctor(net, [(x, y)], calibration=x, remedies=False, seconds=0).findings[0]
    assert (first.place, first.cause) == ("gate", "dead_channels") and "recovers" in first.evidence


def test_heads_in_another_order() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
            y: Tensor = self.proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2))
            return y

    torch.manual_seed(0)
    net, x = Heads(), torch.randn(32, 5, 8)
    assert [text for text in offered(net, x) if "heads that" in text] == [
        f"proj: the heads that it reads are {order}"
        for order in ("rolled by one", "rolled back by one", "reversed", "between each other")
    ]


def test_causes_come_before_what_makes_up_for_them() -> None:
    def finding(cause: str, place: str, severity: str = "error", **rest: Any) -> Finding:
        return Finding(cause, place, severity, "", "", **rest)

    dead = finding("dead_channels", "a")
    partly = finding("wrong_setting", "b", evidence={"recovers": 0.6, "accuracy": (0.5, 0.8)})
    nearly = finding("wrong_setting", "b", evidence={"recovers": 0.9, "accuracy": (0.5, 0.9)})
    assert ordered([partly, dead], ["a", "b"])[0] == dead and ordered([nearly, dead], ["a", "b"])[0] == nearly
    whole = finding("float_network_wrong", "network")
    scale = finding("wrong_scale", "a", evidence={"recovers": 0.4, "accuracy": (0.1, 0.4)})
    assert ordered([whole, replace(dead, place="b"), scale], ["a", "b"])[0].cause == "dead_channels"
    all_of_it, part = (finding("dead_channels", n, evidence={"share": s}) for n, s in (("b", 1.0), ("a", 0.5)))
    assert ordered([part, replace(part, place="c"), whole, all_of_it], ["a", "b", "c"])[0] == all_of_it
    diverged = finding("float_network_wrong", "network", evidence={"layers": ["a", "b"]})
    assert ordered([dead, diverged], ["a", "b"])[0] == diverged
    left, fault = (
        finding("accumulated", "network", "note", noise=5e-4),
        finding("unlike_data", "calibration data", "note"),
    )
    uncovered = finding("unrepresentative", "calibration data", "note", noise=5e-4)
    dead, slow = finding("dead_channels", "a", "note"), finding("no_integer_form", "network", "note")
    assert ordered([slow, left, uncovered, dead, fault], ["a"]) == (fault, dead, uncovered, left, slow)


def test_statistics_behind_which_all_others_fit_are_stale_though_half_of_the_numbers_is_chance() -> None:
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU())]
    net, x = nn.Sequential(*layers, nn.Linear(16, 1)), torch.randn(256, 16)
    with torch.no_grad():
        for layer in net[::3]:
            nn.init.normal_(layer.weight)
        net(x)  # which gives batch norms their statistics
        y = net.eval()(x)
        y = y + 0.95 * y.std() * torch.randn(y.shape)
        net[4].running_var.mul_(0.1)
    first = intact8.doctor(net, [(x, y)], remedies=False, seconds=0).findings[0]
    assert (first.place, first.cause) == ("3", "stale_batch_norm")


def test_first_operation_with_infinite_results() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        net[1].weight.fill_(3e38)
    x = torch.randn(64, 4)
    sim = intact8.prepare(net.eval(), x)
    network = FloatNetwork(net, x, torch.device("cpu"))
    found = overflowing(sim, gather(x, network.captured, network.device, 64))
    assert [(f.place, f.cause) for f in found] == [("1", "not_finite")]
    report = intact8.doctor(net, x, seconds=0)
    assert (report.findings[0].place, report.findings[0].cause) == ("1", "not_finite")


class Joined(nn.Module):
    """A box in pixels beside scores."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.score = nn.Linear(8, 4), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([100 * self.box(x), self.score(x)], 1)


def test_a_loud_part_of_an_output_hides_no_noise_of_others() -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    net = Joined().eval()
    sim = simulation(net, x)
    network = FloatNetwork(net, x, torch.device("cpu"))
    exact = FloatOutputs(sim, gather(x, network.captured, network.device, 128), None)
    y = net(x).detach()
    noisy = y.clone()
    noisy[:, 4:] *= 1.1
    assert exact._noise([[part] for part in noisy.split(32)]) == pytest.approx(0.01 * 0.6, rel=0.01)
    report = intact8.doctor(net, torch.randn(512, 8), seconds=0, remedies=False)
    assert "shared_range" in {f.cause for f in report.findings[:2]}, report.findings


def test_numbers_in_units_of_their_own_share_no_scale() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval(), torch.randn(128, 8)
    with torch.no_grad():
        net[2].weight[0].mul_(1e4)
        y = net(x)
    first = intact8.doctor(net, [(x, y)], calibration=x, remedies=False, seconds=0).findings[0]
    assert (first.place, first.cause, first.severity) == ("2", "outlier_channel", "error")


def test_few_bits_by_the_recipe_are_the_network_s() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.randn(128, 8)
    weight = intact8.recipes.default().weight.changed({"bits": 3})
    recipe = replace(intact8.recipes.default(), weight=weight)
    first = intact8.doctor(net, x, calibration=x, recipe=recipe, remedies=False, seconds=0).findings[0]
    assert (first.place, first.cause) == ("network", "few_bits") and "every weight by the recipe" in first.message


def test_a_column_that_sets_every_scale_of_a_table() -> None:
    torch.manual_seed(0)
    net, ids = (
        nn.Sequential(nn.Embedding(64, 16), nn.Flatten(), nn.Linear(64, 4)).eval(),
        torch.randint(0, 64, (128, 4)),
    )
    with torch.no_grad():
        net[0].weight[:, 3] += 40.0
    recipe = intact8.recipes.weight_only(bits=4)
    first = intact8.doctor(net, ids, calibration=ids, recipe=recipe, remedies=False, seconds=0).findings[0]
    assert (first.place, first.cause) == ("0", "outlier_weight") and "one column" in first.message


def test_labels_that_are_no_classes_of_the_outputs() -> None:
    """Embeddings and reconstructions have other columns than classes; of a language model labels may be its inputs."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 6
    embedded = torch.randn(64, 32)
    assert targets_of(batches(torch.randn(64, 3), labels), 1, embedded) is None
    scores = torch.cat([4 * nn.functional.one_hot(labels, 6).float(), torch.randn(64, 26)], 1)
    assert targets_of(batches(torch.randn(64, 3), labels), 1, scores) is not None
    words = torch.randint(0, 9, (64, 7))
    ahead = nn.functional.one_hot(words.roll(-1, 1), 9).float()
    found = targets_of(batches(words, words), 1, ahead)
    assert found is not None and found.ahead and found.score(found.taken([ahead])) == 1


def test_signs_counts_and_what_is_unknown() -> None:
    torch.manual_seed(0)
    x, logits = torch.randn(64, 3), 3 * torch.randn(64, 4)
    signs = targets_of(batches(x, logits.sign()), 1, logits)
    assert signs is not None and signs.yes and signs.score(logits) == 1
    assert targets_of(batches(x, logits.sign() * (logits.abs() > 1)), 1, logits) is None
    rates = logits.clamp(-2, 3)
    counts = targets_of(batches(x, torch.poisson(rates.exp())), 1, rates)
    assert counts is not None and counts.link == "exp" and counts.score(rates) > 0.5


def test_a_metric_decides_whether_the_network_is_right() -> None:
    """Numbers that the labels seem to ask for are not those of this network, of which the metric knows that."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
    x = torch.randn(384, 6)
    with torch.no_grad():
        net[2].weight.mul_(4)
        y = 100 + 40 * net(x)

    def explained(outputs: Tensor, labels: Tensor) -> float:
        return float(torch.corrcoef(torch.stack([outputs[:, 0], labels[:, 0]]))[0, 1].clamp(0, 1))

    report = intact8.doctor(net, batches_of(x, y), metric=explained, remedies=False, seconds=0)
    assert all(f.cause not in FLOAT_CAUSES or f.severity == "note" for f in report.findings), str(report.findings[0])
    report = intact8.doctor(net, batches_of(x, y), remedies=False, seconds=0)
    assert report.findings[0].cause in FLOAT_CAUSES


def test_masks_may_hold_infinity() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.qk = nn.Linear(4, 8)
            self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))

        def forward(self, x: Tensor) -> Tensor:
            q, k = self.qk(x).chunk(2, -1)
            y: Tensor = (q @ k.transpose(1, 2) + self.mask).softmax(-1) @ x
            return y

    report = intact8.doctor(Causal().eval(), torch.randn(256, 6, 4), remedies=False, seconds=0)
    assert all(f.cause != "not_finite" for f in report.findings)


@pytest.mark.parametrize("form", ["arrays", "dict", "column", "list", "floats"])
def test_labels_of_many_forms_are_judged(form: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)).eval()
    x = torch.randn(256, 8)
    with torch.no_grad():
        net[0].weight.mul_(3)
        net[2].weight.mul_(3)
        y = net(x).argmax(1)
        net[2].weight.data = torch.randn_like(net[2].weight)
    forms: dict[str, Any] = {
        "arrays": lambda a, b: (a.numpy(), b.numpy()),
        "dict": lambda a, b: {"input": a, "labels": b},
        "column": lambda a, b: (a, b[:, None]),
        "list": lambda a, b: (a, b.tolist()),
        "floats": lambda a, b: (a, b.float()),
    }
    data = [forms[form](a, b) for a, b in zip(x.split(64), y.split(64), strict=True)]
    first = intact8.doctor(net, data, remedies=False, seconds=0).findings[0]
    assert first.cause in FLOAT_CAUSES and first.severity == "error", str(first)
