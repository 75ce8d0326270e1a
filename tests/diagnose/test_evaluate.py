"""Accuracy side by side: values, paired differences and their intervals."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intact8
from intact8.diagnose.evaluate import mcnemar, paired_interval
from intact8.diagnose.evaluation_scores import identity
from intact8.errors import AccuracyWarning, InputError


class Fixed(nn.Module):
    """Answers class 0 for a share of the samples and class 1 for the others."""

    def __init__(self, zeros: int) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = (x[:, 0] < self.zeros).float()
        return torch.stack([zero, 1 - zero], 1)


X, Y = torch.arange(100.0).reshape(100, 1), torch.zeros(100, dtype=torch.int64)


def test_paired_differences_have_intervals_and_a_test() -> None:
    report = intact8.evaluate({"a": Fixed(90), "b": Fixed(70)}, (X, Y))
    a, b = report.score("a"), report.score("b")
    assert (a.value, a.difference, b.value, b.difference) == (0.9, None, 0.7, pytest.approx(-0.2))
    assert (b.low, b.high) == paired_interval(0, 20, 100) and b.high is not None and b.high < 0
    assert b.p == mcnemar(0, 20) == pytest.approx(2 / 2**20)
    assert report.samples == 100 and "-0.2" in str(report) and "-0.2" in report._repr_html_()
    assert type(report).from_dict(report.to_dict()) == report


def test_intervals_of_scores_that_are_no_shares_are_bootstrapped() -> None:
    def distance(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs[:, 0] + labels

    noise = np.random.default_rng(0).normal(0.5, 1, 400).astype(np.float32)
    x, y = torch.from_numpy(noise)[:, None], torch.zeros(400)
    score = intact8.evaluate([nn.Identity(), Doubled()], (x, y), distance).score("float32 2")
    mean, error = float(noise.mean()), float(noise.std()) / 20
    assert score.difference == pytest.approx(mean, abs=1e-5) and score.p is None
    assert score.low == pytest.approx(mean - 1.96 * error, abs=error / 4)
    assert score.high == pytest.approx(mean + 1.96 * error, abs=error / 4)


class Doubled(nn.Module):
    """Returns its input twice as large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_float_simulation_and_program_side_by_side() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6)).eval()
    x = torch.randn(256, 8)
    sim = intact8.prepare(net, x[:2])
    intact8.calibrate(sim, x)
    batches = list(zip(x.split(50), net(x).argmax(1).split(50), strict=True))
    seen: list[int] = []
    report = intact8.evaluate([net, sim, intact8.convert(sim)], batches, ["top1", "top5"], progress=seen.append)
    assert [s.network for s in report.scores[::2]] == ["float32", "simulation", "int8"]
    assert report.score("float32").value == 1 and seen == [50, 100, 150, 200, 250, 256]
    assert report.score("simulation").value == report.score("int8").value > 0.9
    assert report.score("int8", "top5").value >= report.score("int8").value


def test_a_network_in_training_mode_is_named_and_left_so() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.Dropout())
    with pytest.warns(AccuracyWarning, match="1 is in training mode"):
        intact8.evaluate(net, (X, Y))
    assert net.training and net[1].training


class Counter:
    """A metric with a state of its own, as those of torchmetrics."""

    def __init__(self) -> None:
        self.right = self.count = 0

    def clone(self) -> Counter:
        return Counter()

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> float:
        raise AssertionError("update and compute are called")

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.right += int((outputs.argmax(1) == labels).sum())
        self.count += len(labels)

    def compute(self) -> float:
        return self.right / self.count


def test_metrics_with_a_state() -> None:
    score = intact8.evaluate([Fixed(90), Fixed(70)], (X, Y), Counter()).score("float32 2")
    assert (score.value, score.difference, score.low) == (0.7, pytest.approx(-0.2), None)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="no metric 'top2'"):
        intact8.evaluate(Fixed(1), (X, Y), "top2")
    with pytest.raises(InputError, match="without labels"):
        intact8.evaluate(Fixed(1), [{"x": X}])
    with pytest.raises(InputError, match="no samples"):
        intact8.evaluate(Fixed(1), [])
    with pytest.raises(InputError, match="no network"):
        intact8.evaluate([3], (X, Y))


def batches(count: int, size: int = 25) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(size, 8), torch.randint(0, 4, (size,))) for _ in range(count)]


def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    torch.manual_seed(1)
    networks, data, state = {"a": nn.Linear(8, 4), "b": nn.Linear(8, 4)}, batches(6), tmp_path / "scores.safetensors"
    whole = intact8.evaluate(networks, data, ["top1", "top5"])

    def killed(done: int) -> None:
        if done == 75:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        intact8.evaluate(networks, data, ["top1", "top5"], state=state, progress=killed)
    seen: list[int] = []
    networks["a"].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    assert intact8.evaluate(networks, data, ["top1", "top5"], state=state) == whole and len(seen) == 3
    for other in (data[:3], [data[1], data[0], *data[2:]]):
        with pytest.raises(InputError, match="other data"):
            intact8.evaluate(networks, other, ["top1", "top5"], state=state)
    with pytest.raises(InputError, match="another evaluation"):
        intact8.evaluate({**networks, "b": nn.Linear(8, 4)}, data, ["top1", "top5"], state=state)
    state.write_bytes(b"nothing")
    with pytest.raises(InputError, match="no scores"):
        intact8.evaluate(networks, data, state=state)


def test_arrays_and_lists_are_labels_and_data() -> None:
    expected = intact8.evaluate(Fixed(90), (X, Y)).score("float32").value
    for data in ((X.numpy(), Y.numpy()), [(X, Y.tolist())], [{"x": X.numpy(), "labels": Y.numpy()}]):
        assert intact8.evaluate(Fixed(90), data).score("float32").value == expected
    with pytest.raises(InputError, match="int is no data"):
        intact8.evaluate(Fixed(90), 3)


def test_of_equal_outputs_the_first_counts() -> None:
    outputs = torch.tensor([[0.0, 1, 1, 1, 0, 1]]).repeat(64, 1)
    for label, share in enumerate((0, 1, 0, 0, 0, 0)):
        report = intact8.evaluate(nn.Identity(), (outputs, torch.full((64,), label)))
        assert report.score("float32").value == share


def test_entries_that_are_no_inputs_are_left_out() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(8, 4).eval(), torch.randn(64, 8)
    sim = intact8.prepare(net, x[:2])
    intact8.calibrate(sim, x)
    program = intact8.convert(sim)
    networks = {"float": net, "sim": sim, "int8": program, "module": intact8.torch.Module(program)}
    batch = {"input": x, "label": net(x).argmax(1), "name": ["sample"] * 64}
    scores = [intact8.evaluate(networks, [batch]).score(name).value for name in networks]
    assert scores[0] == 1 and scores[1] == scores[2] == scores[3] > 0.9
    assert intact8.verify(program, [batch]).mismatches == 0
    assert intact8.report(program, [batch], model=net, seconds=0).samples == 64
    behind = [(batch, batch["label"])]
    assert intact8.evaluate(networks, behind).scores == intact8.evaluate(networks, [batch]).scores
    assert intact8.verify(program, behind).mismatches == 0
    empty = {"input": x[:0], "label": batch["label"][:0]}
    assert intact8.evaluate(program, [batch, empty]).score("int8").value == scores[2]
    with pytest.raises(InputError, match=r"does not fit Linear\.forward.*give \(inputs…, labels\)"):
        intact8.evaluate(net, [(x, batch["label"], torch.arange(64))])


@pytest.mark.parametrize("labels", [Y - 1, Y + 2])
def test_labels_that_are_no_classes_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(InputError, match="for 2 classes.*give classes from 0 to 1"):
        intact8.evaluate(Fixed(90), (X, labels))


@pytest.mark.parametrize("found", [None, "much", torch.ones(3, 3), {}])
def test_metrics_that_give_no_numbers_are_refused(found: object) -> None:
    with pytest.raises(InputError, match="a score per sample, or one number"):
        intact8.evaluate(Fixed(90), (X, Y), lambda outputs, labels: found)


def test_a_metric_that_compares_every_sample_with_every_other_is_refused() -> None:
    def distance(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs - labels).abs()

    x = torch.randn(32, 1)
    assert intact8.evaluate(nn.Identity(), [(x, x)], distance).score("float32").value == 0
    with pytest.raises(InputError, match=r"\(32, 1\) and labels of shape \(32,\) were broadcast.*the shape of"):
        intact8.evaluate(nn.Identity(), [(x, x[:, 0])], distance)


def test_several_metrics_may_be_names_and_functions() -> None:
    def wrong(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) != labels).float()

    report = intact8.evaluate(Fixed(90), (X, Y), ["top1", wrong, wrong])
    assert [(s.metric, round(s.value, 6)) for s in report.scores] == [("top1", 0.9), ("wrong", 0.1), ("wrong 2", 0.1)]
    with pytest.raises(InputError, match="no metric is named"):
        intact8.evaluate(Fixed(90), (X, Y), [])


def test_scores_of_batches_have_intervals_by_drawing_batches() -> None:
    def mean(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float(outputs.mean())

    report = intact8.evaluate([nn.Identity(), Doubled()], batches(40), mean)
    second = report.score("float32 2")
    assert second.low is not None and second.high is not None and second.difference is not None
    assert second.low < second.difference < second.high and second.p is None
    assert intact8.evaluate([nn.Identity(), Doubled()], batches(3), mean).score("float32 2").low is None


@pytest.mark.parametrize("name", ["MulticlassF1Score", "MulticlassAccuracy", "MulticlassAUROC"])
def test_metrics_of_torchmetrics(tmp_path: Path, name: str) -> None:
    try:
        classification = importlib.import_module("torchmetrics.classification")
    except (ImportError, RuntimeError):  # it imports torchvision, which may not fit the torch that is here
        pytest.skip("torchmetrics cannot be imported: pip install 'intact8[metrics]'")
    metric = getattr(classification, name)(num_classes=4)
    torch.manual_seed(1)
    networks, data, state = [nn.Linear(8, 4), nn.Linear(8, 4)], batches(10), tmp_path / "scores"
    report = intact8.evaluate(networks, data, metric, state=state)
    whole = metric.clone()
    whole.update(torch.cat([networks[0](x) for x, _ in data]).detach(), torch.cat([y for _, y in data]))
    assert report.score("float32").value == pytest.approx(float(whole.compute()))
    second = report.score("float32 2")
    assert second.low is not None and second.high is not None and second.low < second.difference < second.high
    assert intact8.evaluate(networks, data, metric, state=state) == report


@pytest.mark.parametrize(("shape", "labels"), [((4, 4, 3), (4,)), ((4, 3, 2, 2), (4,)), ((4, 3), (4, 1)), ((4,), (4,))])
def test_scores_that_are_not_one_per_class_are_refused(shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
    class Scores(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    data = [(torch.zeros(shape), torch.zeros(labels, dtype=torch.long))]
    with pytest.raises(InputError, match="a score per class"):
        intact8.evaluate({"net": Scores()}, data, "top1")


def test_a_network_of_other_inputs_is_named() -> None:
    with pytest.raises(InputError, match="Linear does not run on a batch.*mat1 and mat2"):
        intact8.evaluate([nn.Linear(5, 2)], [(torch.zeros(3, 4), torch.zeros(3).long())])


def share(outputs: torch.Tensor, labels: Any) -> float:
    """Return one number for a batch."""
    return float((outputs.argmax(-1) == labels).double().mean())


def test_samples_are_counted_whatever_form_labels_have() -> None:
    """A metric of whole batches is weighed by the samples of each."""
    batches = [(X[:60], Y[:60]), (X[60:], Y[60:])]
    wanted = intact8.evaluate(Fixed(50), batches, share)
    assert wanted.samples == 100 and wanted.score("float32").value == 0.5
    forms: dict[str, Callable[[torch.Tensor], Any]] = {
        "dict": lambda y: {"class": y, "weight": y + 1.0},
        "tuple": lambda y: (y, y + 1.0),
        "list of targets": lambda y: [y, y + 1.0],
        "list of samples": lambda y: [{"class": int(c)} for c in y],
    }

    def classes(labels: Any) -> Any:
        if isinstance(labels, dict):
            return labels["class"]
        return torch.tensor([c["class"] for c in labels]) if isinstance(labels[0], dict) else labels[0]

    for form in forms.values():
        given = [(x, form(y)) for x, y in batches]
        for metric in (share, lambda outputs, labels: outputs.argmax(-1) == labels):
            found = intact8.evaluate(Fixed(50), given, lambda o, y, m=metric: m(o, classes(y)))
            assert (found.samples, found.score("float32").value) == (100, 0.5)


def test_single_samples_are_no_batches() -> None:
    for data in (torch.utils.data.TensorDataset(X, Y), [(X, None)]):
        with pytest.raises(InputError, match=r"labels of type .*, without samples.*DataLoader"):
            intact8.evaluate(Fixed(50), data)


def test_a_metric_may_write_into_labels_and_outputs() -> None:
    def first(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = outputs.argmax(-1) == labels
        labels += 1
        outputs.zero_()
        return found

    report = intact8.evaluate({"a": Fixed(90), "b": Fixed(90)}, (X, Y.clone()), [first, first])
    assert [score.value for score in report.scores] == [0.9] * 4


def test_another_function_of_the_same_name_does_not_go_on(tmp_path: Path) -> None:
    def interrupted(count: int) -> None:
        if count > 30:
            raise KeyboardInterrupt

    state = tmp_path / "scores"
    with pytest.raises(KeyboardInterrupt):
        intact8.evaluate(
            Fixed(90), (X, Y), lambda o, y: o.argmax(-1) == y, state=state, batch_size=20, progress=interrupted
        )
    with pytest.raises(InputError, match="of another evaluation"):
        intact8.evaluate(Fixed(90), (X, Y), lambda o, y: o.argmax(-1) != y, state=state, batch_size=20)
    again = intact8.evaluate(Fixed(90), (X, Y), lambda o, y: o.argmax(-1) == y, state=state, batch_size=20)
    assert again.score("float32").value == 0.9


def test_a_function_within_the_metric_counts_too() -> None:
    """Decorated metrics of one factory, as by ``torch.no_grad()``, were taken for one another."""

    def top(k: int) -> Callable[..., torch.Tensor]:
        return torch.no_grad()(lambda outputs, labels: (outputs.topk(k, 1).indices == labels[:, None]).any(1))

    def recursive(outputs: torch.Tensor, labels: torch.Tensor) -> Any:
        return recursive if labels is None else outputs

    assert identity(top(1)) == identity(top(1)) != identity(top(2))
    assert identity(recursive) == identity(recursive)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_null(value: float) -> None:
    report = intact8.evaluate({"a": Fixed(90)}, (X, Y), lambda outputs, labels: value)
    values = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert values == report.to_dict() and values["scores"][0]["value"] is None
    again = type(report).from_dict(values)
    assert (again.samples, again.score("a").metric) == (100, "<lambda>") and str(again)


@pytest.mark.parametrize("size", [0, -1, 2.5, "8"])
def test_batch_sizes_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(InputError, match=r"evaluate: batch_size is .*give an integer of 1 or more"):
        intact8.evaluate(Fixed(90), (X, Y), batch_size=size)
