"""Inputs prepared otherwise than in training: what gives all answers back is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import Bed, answered
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.answers import answers_of
from intact8.diagnose.doctor.best_repair import put_right
from intact8.diagnose.doctor.float_network import FloatOutputs
from intact8.diagnose.doctor.input_repairs import _other_end, _resampled


def test_padding_at_the_other_end() -> None:
    ids = torch.tensor([[4, 5, 6, 0, 0], [1, 2, 3, 4, 5], [7, 8, 0, 0, 0]])
    left = torch.tensor([[0, 0, 4, 5, 6], [1, 2, 3, 4, 5], [0, 0, 0, 7, 8]])
    assert torch.equal(_other_end(ids), left) and torch.equal(_other_end(left), ids)
    assert torch.equal(_other_end(ids[1:2]), ids[1:2])
    assert torch.equal(_other_end(ids[None]), left[None]), "sentences of a text"


WAYS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "amplitudes": (lambda x: x.exp(), "the logarithms of inputs"),
    "powers": (lambda x: x.clamp(min=0).square(), "the roots of inputs"),
    "units": (lambda x: x * 0.01, "inputs multiplied by 100"),
    "sensors": (lambda x: x[:, [0, 4, 2, 3, 1, 5]], "numbers 1 and 4 of dimension 1 swapped"),
    "order": (lambda x: x.flip(1), "columns, in reverse order"),
    "sign": (lambda x: x * torch.tensor([1, 1, -1, 1, 1, 1.0])[:, None], "number 2 of dimension 1 negated"),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_gives_all_answers_back_is_named(name: str) -> None:
    way, text = WAYS[name]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(6, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5))
    x = torch.randn(256, 6, 24)
    x = x.clamp(min=0) if name == "powers" else x
    with torch.no_grad():
        net[0].weight.mul_(2)
        net[4].bias -= net(x).mean(0)
    finding = Bed(net, way(x), answered(net, x)).said()
    assert finding.place == "network" and text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_inputs_normalized_twice_and_not_the_scale_of_the_layer_that_reads_them() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    x = torch.randn(512, 3, 8, 8) * 0.8 + torch.tensor([0.1, -0.1, 0.2])[:, None, None]
    with torch.no_grad():
        net[0].weight.mul_(1.5)
        net[4].weight.mul_(4)
        net[4].bias -= net(x).mean(0)
    labels = answered(net, x)
    again = (x - 0.5) / 0.2
    finding = Bed(net, again, labels).said()
    assert (finding.place, finding.cause) == ("network", "float_network_wrong"), str(finding)
    with torch.no_grad():
        net[0].weight.mul_(8)
        net[0].bias.mul_(8)
    assert Bed(net, x, labels).said().place == "0"


def test_words_moved_behind_those_that_are_marks() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.fc = nn.Embedding(40, 16), nn.Linear(16, 5)

        def forward(self, ids: Tensor) -> Tensor:
            z: Tensor = self.fc(self.words(ids).mean(1))
            return z

    torch.manual_seed(1)
    net, ids = Words().eval(), torch.randint(3, 40, (512, 8))
    ids[:, 0] = 1
    ids[:, 5:] = torch.where(torch.rand(512, 1) < 0.5, 0, ids[:, 5:])
    with torch.no_grad():
        net.fc.bias -= net(ids).mean(0)
    finding = Bed(net, torch.where(ids > 2, ids - 1, ids), answered(net, ids)).said()
    assert finding.place == "network" and "indices one more beyond" in finding.message, str(finding)


def test_two_inputs_each_in_the_place_of_the_other() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.fc = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)

        def forward(self, left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
            y = self.a(left).tanh() - self.b(right).relu()
            z: Tensor = self.fc(y.masked_fill(mask, 0.0))
            return z

    torch.manual_seed(1)
    net, left, right, mask = Pair().eval(), torch.randn(512, 6), torch.randn(512, 6), torch.rand(512, 8) < 0.3
    with torch.no_grad():
        classes = net(left, right, mask).argmax(1)
    for given, text in (
        ((right, left, mask), "it sees right as left, and left as right"),
        ((left, right, ~mask), "it sees the mask inverted as mask"),
    ):
        first = intact8.doctor(net, [(*given, classes)], remedies=False, seconds=0).findings[0]
        assert first.place == "network" and text in first.message, str(first)


def test_signals_sampled_at_another_rate() -> None:
    steps = torch.arange(64.0)
    slow, fast = ((steps / period).sin().expand(2, 3, 64) for period in (6.0, 3.0))
    ways = _resampled(slow)
    assert all(change(slow).shape == slow.shape for _, change in ways.values())
    twice = ways["signals sampled at 0.5 times the rate"][1](slow)
    half = ways["signals sampled at 2 times the rate"][1](fast)
    assert (twice - fast)[..., 1:30].abs().max() < 0.2 and (half - slow)[..., 1:60].abs().max() < 0.2
    assert not _resampled(slow[..., :8]) and not _resampled(slow[0])


def test_a_mask_of_ones_over_padding_and_one_that_is_inverted() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y: Tensor = self.out((self.fc(x).tanh() * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))
            return y

    torch.manual_seed(0)
    net = Mean().eval()
    x = torch.randn(256, 8, 4) + 1
    mask = (torch.arange(8) < torch.randint(1, 8, (256, 1))).float()
    x = x * mask[:, :, None]
    with torch.no_grad():
        net.fc.bias.mul_(4)
        net.out.weight.mul_(4)
        net.out.bias -= net(x, mask).mean(0)
        labels = net(x, mask).argmax(1)
    for given, text in (
        (torch.ones_like(mask), "mask, which is 1 everywhere, is 0 where x has nothing but 0"),
        ((1 - mask).long(), "it sees the mask inverted as mask"),
    ):
        data = list(zip(x.split(64), given.split(64), labels.split(64), strict=True))
        found = intact8.doctor(net, data, remedies=False, seconds=0).findings[0]
        assert found.place == "network" and text in found.message, str(found)


def test_a_layer_that_reads_one_number_is_made_for_no_other_layout() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3))
    assert not any("channels last" in text for text in Bed(net, torch.randn(64, 1)).offered())


class Tagger(nn.Module):
    """A tag for every word, by the word, its place and its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(20, 8, padding_idx=0), nn.Parameter(torch.randn(12, 8))
        self.near, self.head = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 4)
        for weight in (self.words.weight, self.near.weight, self.head.weight):
            nn.init.normal_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.near((self.words(ids) + self.places).transpose(1, 2)).transpose(1, 2)
        z: Tensor = self.head(x.tanh())
        return z


def test_answers_move_with_padding() -> None:
    net = Tagger().eval()
    sizes = torch.randint(3, 10, (256,), generator=torch.Generator().manual_seed(0))
    ids = torch.randint(1, 20, (256, 12), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(12) >= sizes[:, None]] = 0
    with torch.no_grad():
        tags = net(ids).argmax(-1)
    left = [torch.stack([row.roll(12 - int(n)) for row, n in zip(t, sizes, strict=True)]) for t in (ids, tags)]
    finding = Bed(net, left[0], left[1]).said()
    assert finding.place == "network" and "padding at the other end of ids" in finding.message, str(finding)


def test_numbers_that_stand_for_none() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).eval(), torch.randn(256, 6)
    with torch.no_grad():
        net[0].weight[:, 2:4] *= 0.2
        y = net(x)
    x[::3, 2:4] = -50
    finding = Bed(net, x, y).said()
    assert finding.place == "network" and "number 2 is -50, 3 is -50" in finding.message, str(finding)


class Letters(nn.Module):
    """Short texts by the numbers of their letters in ASCII, with nothing where they have ended."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(128, 16, padding_idx=0), nn.Linear(12 * 16, 5)
        nn.init.normal_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.words(x).flatten(1))
        return y


def test_texts_in_capitals_and_a_row_of_padding() -> None:
    net = Letters()
    small = torch.randint(ord("a"), ord("z") + 1, (512, 12))
    small = torch.where(torch.rand(512, 12) < 0.2, small - 32, small)
    small = small.masked_fill(torch.arange(12) >= torch.randint(3, 13, (512, 1)), 0)
    right = answered(net, small)
    capitals = torch.where(small >= ord("a"), small - 32, small)
    shouted = Bed(net, small, answered(net, capitals)).said()
    assert shouted.place == "network" and "capitals for small letters, where A is 65" in shouted.message, str(shouted)
    with torch.no_grad():
        net.words.weight[0] = torch.randn(16)
    filled = Bed(net, small, right).said()
    assert filled.cause == "wrong_weights" and "its row 0, that of padding, holds zeros" in filled.message, str(filled)


def test_other_units_and_the_other_strand() -> None:
    torch.manual_seed(0)
    measured, lengths = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)), torch.randn(256, 6)
    nn.init.normal_(measured[0].weight)
    finding = Bed(measured, lengths / 0.3048, answered(measured, lengths)).said()
    assert "inputs multiplied by 0.3048, metres for feet" in finding.message, str(finding)
    letters, dna = nn.Sequential(nn.Conv1d(4, 16, 5, padding=2), nn.Tanh(), nn.Conv1d(16, 3, 3, padding=1)), 20
    nn.init.normal_(letters[0].weight)
    x = nn.functional.one_hot(torch.randint(0, 4, (128, dna)), 4).mT.float()
    with torch.no_grad():
        shift = letters(x).mean((0, 2))
        letters[2].bias -= shift  # type: ignore[operator]
    strand = Bed(letters, x.flip((1, 2)), answered(letters, x).flip(1)).said()
    assert "in reverse order along dimensions 1 and 2" in strand.message and strand.place == "network", str(strand)


def test_labels_that_are_the_next_words_are_not_moved() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 7, (256, 9))
    net = nn.Sequential(nn.Embedding(7, 7), nn.Linear(7, 7))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(7))  # type: ignore[union-attr, operator]
        net[1].weight.copy_(5 * torch.eye(7))  # type: ignore[union-attr, operator]
    following = words.roll(-1, 1)
    following[:, -1] = torch.randint(0, 7, (256,))
    found = Bed(net, words, following)
    answers = answers_of(FloatOutputs(found.sim, found.samples, None), found.samples, 1)
    told = put_right(found.network, found.sim, answers, found.samples, [])
    assert not any("belong to the place" in f.message for f in told), [str(f) for f in told]
