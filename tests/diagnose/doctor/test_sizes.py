"""Data whose batches are of different sizes, and labels of places of which some are not known."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import Bed
from tests.diagnose.doctor.test_targets import batches
from torch import Tensor, nn

import intact8
from intact8.diagnose.chunks import Chunk
from intact8.diagnose.doctor.samples import UNKNOWN, Samples, padded
from intact8.diagnose.doctor.targets import Targets, targets_of


class Tagger(nn.Module):
    """A tag for every word: a table, a recurrent layer and an embedding of what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.memory, self.tags = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def forward(self, words: Tensor) -> Tensor:
        y: Tensor = self.tags(self.memory(self.table(words))[0])
        return y


def sentences(net: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return sentences of different lengths with the tags that a network gives, without those of the first words."""
    torch.manual_seed(1)
    words = [torch.randint(0, 20, (32, length)) for length in (5, 7, 6, 9, 8, 5, 7, 6)]
    with torch.no_grad():
        tags = [net(x).argmax(2) for x in words]
    for y in tags:
        y[:, 0] = UNKNOWN
    return list(zip(words, tags, strict=True))


def test_a_wrong_layer_is_named_by_sentences_of_different_lengths() -> None:
    net, wrong = Tagger().eval(), Tagger().eval()
    for value in wrong.memory.parameters():
        value.data = torch.cat([value.data.chunk(3)[i] for i in (1, 0, 2)])
    data = sentences(net)
    report = intact8.doctor(wrong, data, seconds=0, budget=30, remedies=False)
    found = report.findings[0]
    assert (found.place, found.cause) == ("memory", "wrong_weights") and "(1, 0, 2)" in found.message, str(found)


def test_a_sound_network_is_examined_at_different_lengths() -> None:
    net = Tagger().eval()
    report = intact8.doctor(net, sentences(net), seconds=0, budget=10)
    assert all(f.severity == "note" for f in report.findings), [str(f) for f in report.findings]
    assert report.outcome("after").metric > 0.99


@pytest.mark.parametrize(("mark", "count"), [(-100, 5), (-1, 5), (255, 5)])
def test_places_that_nobody_labelled_count_nothing(mark: int, count: int) -> None:
    torch.manual_seed(0)
    scores, classes = torch.randn(12, count, 4, 6), torch.randint(0, count, (12, 4, 6))
    some = classes.clone()
    some[:, 1:] = mark
    found = targets_of(batches(torch.randn(12, 3, 4, 6), some), 1, scores)
    plain = Targets(classes[:, :1].contiguous(), True)
    assert found is not None and set(found.values.unique().tolist()) == {UNKNOWN, *range(count)}
    top = scores[:, :, :1].contiguous()
    assert found.score(scores) == pytest.approx(plain.score(top))
    torch.testing.assert_close(found.losses(scores), plain.losses(top))
    torch.testing.assert_close(found.prior_losses(), plain.prior_losses())
    assert found.chance() == pytest.approx(plain.chance())
    assert found.confidence(scores) == pytest.approx(plain.confidence(top))
    assert found.renumbered(scores) == pytest.approx(plain.renumbered(top))


def test_yes_and_no_of_which_some_are_unknown() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (12, 4, 6))
    logits = (labels * 2 - 1) * 3.0
    labels[:, 2:] = 255
    found = targets_of(batches(torch.randn(12, 3, 4, 6), labels), 1, logits)
    assert found is not None and found.yes and found.score(logits) == 1.0


def test_two_negative_numbers_are_no_marks() -> None:
    labels = torch.randint(-2, 3, (12, 6))
    labels[0, :2] = torch.tensor([-1, -2])
    assert targets_of(batches(torch.randn(12, 6, 3), labels), 1, torch.randn(12, 5, 6)) is None


def test_outputs_are_filled_up_to_the_largest() -> None:
    net, parts = Tagger().eval(), [torch.randint(0, 20, (4, length)) for length in (3, 5)]
    with torch.no_grad():
        outputs = [net(x) for x in parts]
    labels = [y.argmax(2) for y in outputs]
    samples = Samples(tuple(Chunk([x], (x, y), 4) for x, y in zip(parts, labels, strict=True)))
    values = samples.labels(1)
    assert values is not None and values.shape == (8, 5) and bool((values[:4, 3:] == UNKNOWN).all())
    found = targets_of(samples, 1, padded(outputs))
    assert found is not None and found.score(padded(outputs)) == 1.0
    numbers = Samples(tuple(Chunk([x], (x, y), 4) for x, y in zip(parts, outputs, strict=True)))
    assert numbers.labels(1) is None  # numbers of different sizes are not compared


def test_a_language_model_whose_padding_is_not_labelled() -> None:
    words = torch.arange(48).reshape(8, 6) % 7
    labels = words.clone()
    labels[:, 4:] = UNKNOWN
    following = nn.functional.one_hot(words.roll(-1, 1), 7).float()
    found = targets_of(batches(words, labels), 1, following)
    assert found is not None and found.ahead and found.score(found.taken([following])) == 1.0


def test_tables_of_columns_need_rows_of_one_length() -> None:
    x = torch.randint(0, 20, (64, 4))
    assert Bed(Tagger(), x).offered()


def test_samples_that_depend_on_one_another_are_examined_in_whole_batches() -> None:
    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y + y.roll(1, 0)

    torch.manual_seed(0)
    net, data = Rolled().eval(), list(torch.randn(12, 8, 6).unbind(0))
    report = intact8.doctor(net, data, seconds=0, budget=5)
    assert sum(report.samples.values()) == 96 and report.calibration.batch_dependence is None
