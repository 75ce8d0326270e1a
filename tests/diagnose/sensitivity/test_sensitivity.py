"""Sensitivity against brute force: the simulation's own switches, one full run per layer."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diagnose.networks import calibrated, data, net
from torch import Tensor

import intact8
from intact8.diagnose.sensitivity.report import MODES, PARTS, Score, SensitivityReport
from intact8.simulation.simulation import Simulation


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return calibrated(net(), data())


@pytest.fixture(scope="module")
def report(sim: Simulation) -> SensitivityReport:
    return intact8.sensitivity(sim, data(), modes=MODES, parts=PARTS)


def logits(sim: Simulation, points: set[str], weights: set[str]) -> Tensor:
    """The simulation with these switched on, and everything else off."""
    sim.fake_quantize(False)
    for name in points:
        sim.points[name].quantizing = True
    for name in weights:
        sim.weight_points[name].quantizing = True
    try:
        with torch.no_grad():
            y: Tensor = sim(data()).double()
    finally:
        sim.fake_quantize(True)
    return y


def sqnr(y: Tensor, reference: Tensor) -> float:
    return 10 * math.log10(float((reference**2).sum() / ((y - reference) ** 2).sum()))


def parts_of(sim: Simulation, layer: str, part: str) -> tuple[set[str], set[str]]:
    points = set() if part == "weight" else {sim.placed.point_of[layer]}
    weights = {layer} if part != "activation" and layer in sim.weight_points else set()
    return points, weights


@pytest.mark.parametrize(("mode", "part"), list(itertools.product(MODES, PARTS)))
def test_scores_are_those_of_full_runs(sim: Simulation, report: SensitivityReport, mode: Any, part: Any) -> None:
    reference = logits(sim, set(), set())
    so_far: tuple[set[str], set[str]] = (set(), set())
    for row in report:
        points, weights = parts_of(sim, row.name, part)
        if not points and not weights:
            assert row.score(mode, part) is None
            continue
        if mode == "cumulative":
            points, weights = so_far = so_far[0] | points, so_far[1] | weights
        if mode == "without":
            points, weights = set(sim.points) - points, set(sim.weight_points) - weights
        wanted = sqnr(logits(sim, points, weights), reference)
        # One value that float noise carries over a boundary moves the score by a few hundredths of a dB.
        assert row.score(mode, part) == pytest.approx(wanted, abs=0.1), row.name


def test_the_ends_are_the_float_network_and_the_program(sim: Simulation, report: SensitivityReport) -> None:
    reference = logits(sim, set(), set())
    program = intact8.convert(sim)
    shipped = torch.as_tensor(program.run(data(), engine="reference")).double()
    assert report.quantized_score == pytest.approx(sqnr(shipped, reference), abs=1e-3)
    assert report.float_score == 150.0
    assert report.rows[-1].score("cumulative") == report.quantized_score
    assert report.samples == 48 and report.metric == "sqnr"


def test_layers_are_those_on_integers(sim: Simulation, report: SensitivityReport) -> None:
    assert [row.name for row in report] == [
        "x.quantize",
        "conv1",
        "conv2",
        "add",
        "depthwise",
        "silu",
        "cat",
        "mean",
        "fc",
    ]
    assert report["relu2"].name == "conv2" and report["conv2"].has_weight and not report["add"].has_weight
    ranking = report.ranking()
    scores = [row.score("alone") for row in ranking]
    assert scores == sorted(scores)  # type: ignore[type-var]
    gains = [row.score("without") for row in report.ranking("without")]
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]


def kl(y: Tensor, r: Tensor) -> float:
    p, q = torch.softmax(r, 1), torch.softmax(y, 1)
    return float((p * (p / q).log()).sum(1).mean())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "sqnr": sqnr,
    "kl": kl,
    "cosine": lambda y, r: float(torch.nn.functional.cosine_similarity(y, r).mean()),
    "top1": lambda y, r: float((y.argmax(1) == r.argmax(1)).double().mean()),
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics(sim: Simulation, name: str) -> None:
    found = intact8.sensitivity(sim, data(), metric=name)
    reference = logits(sim, set(), set())
    y = logits(sim, set(sim.points), set(sim.weight_points))
    assert found.quantized_score == pytest.approx(METRICS[name](y, reference), rel=1e-4)
    y = logits(sim, {sim.placed.point_of["conv2"]}, {"conv2"})
    assert found["conv2"].score("alone") == pytest.approx(METRICS[name](y, reference), rel=0.02)
    assert found.float_score == {"sqnr": 150.0, "kl": 0.0, "cosine": pytest.approx(1.0), "top1": 1.0}[name]
    assert found.higher_is_better == (name != "kl")


def test_a_metric_of_ones_own_gets_outputs_and_batches_with_labels(sim: Simulation) -> None:
    x = data()
    labels = net()(x).argmax(1).detach()
    labels[::5] = 0
    batches = [(x[i : i + 20], labels[i : i + 20]) for i in range(0, 48, 20)]
    seen: list[int] = []

    def accuracy(y: Tensor, batch: Any) -> Tensor:
        seen.append(len(y))
        return (y.argmax(1) == batch[1]).float()

    found = intact8.sensitivity(sim, batches, metric=accuracy, memory=150_000)
    assert found.metric == "accuracy" and 1 < max(seen) < 20  # batches are cut, and labels with them
    expected = float((net()(x).argmax(1) == labels).double().mean())
    assert found.float_score == pytest.approx(expected)
    y = logits(sim, set(sim.points), set(sim.weight_points))
    assert found.quantized_score == pytest.approx(float((y.argmax(1) == labels).double().mean()))


def test_less_memory_changes_nothing_but_the_chunks(sim: Simulation, report: SensitivityReport) -> None:
    small = intact8.sensitivity(sim, data(), modes=MODES, parts=PARTS, memory=1)
    for a, b in zip(report, small, strict=True):
        for first, second in zip(a.scores, b.scores, strict=True):
            assert first.value == pytest.approx(second.value, abs=0.1)


def test_greedy_puts_back_what_gains_most(sim: Simulation) -> None:
    found = intact8.sensitivity(sim, data(), modes=(), greedy=3)
    reference = logits(sim, set(), set())
    points, weights = set(sim.points), set(sim.weight_points)
    left = [row.name for row in found]
    for step in found.greedy:
        scores = {}
        for name in left:
            p, w = parts_of(sim, name, "both")
            scores[name] = sqnr(logits(sim, points - p, weights - w), reference)
        best = max(scores, key=lambda name: scores[name])
        assert step.layer == best and step.value == pytest.approx(scores[best], abs=0.1)
        left.remove(best)
        p, w = parts_of(sim, best, "both")
        points, weights = points - p, weights - w
    assert len(found.greedy) == 3


def test_only_what_comes_after_the_layer_is_computed_again(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.diagnose.sensitivity.partial_network import PartialNetwork

    computed: list[str] = []
    compute = PartialNetwork._compute

    def spy(self: Any, node: Any, *rest: Any) -> Any:
        computed.append(node.name)
        return compute(self, node, *rest)

    network = PartialNetwork(sim)
    from intact8.diagnose.sensitivity.partial_network import Selection

    base = network.run([data(4)], Selection())
    monkeypatch.setattr(PartialNetwork, "_compute", spy)
    point = sim.placed.point_of
    network.resume(base, Selection(), Selection(frozenset({point["depthwise"]}), frozenset({"depthwise"})))
    assert computed[0] == "depthwise" and "conv2" not in computed and "add" not in computed
    computed.clear()
    network.resume(base, Selection(), Selection(frozenset({point["depthwise"]})))
    assert computed[0] == "silu"  # what is only rounded is not computed again


def test_interrupted_and_continued_is_as_if_never_interrupted(sim: Simulation, tmp_path: Path) -> None:
    whole = intact8.sensitivity(sim, data().split(12), metric="kl", modes=MODES, greedy=1)
    state = tmp_path / "state.json"
    told: list[tuple[int, int | None]] = []

    def stop_after(runs: int) -> Callable[[int, int | None], None]:
        def progress(done: int, total: int | None) -> None:
            told.append((done, total))
            if len(told) == runs:
                raise KeyboardInterrupt

        return progress

    arguments: dict[str, Any] = {"metric": "kl", "modes": MODES, "greedy": 1, "state": state}
    with pytest.raises(KeyboardInterrupt):
        intact8.sensitivity(sim, data().split(12), progress=stop_after(70), **arguments)
    kept = json.loads(state.read_text())["passes"]["layers"]
    assert kept["chunks"] == 2 and kept["samples"] == 24
    assert not list(tmp_path.glob(".*"))
    told.clear()
    again = intact8.sensitivity(sim, data().split(12), progress=lambda *a: told.append(a), **arguments)
    assert again == whole
    assert told[-1][0] == told[-1][1], "progress ends at its total"
    told.clear()
    assert intact8.sensitivity(sim, data().split(12), progress=lambda *a: told.append(a), **arguments) == whole
    with pytest.raises(intact8.InputError, match="differs in metric"):
        intact8.sensitivity(sim, data().split(12), **{**arguments, "metric": "cosine"})
    with pytest.raises(intact8.InputError, match="differs in data"):
        intact8.sensitivity(sim, data(seed=9).split(12), **arguments)
    state.write_text("[]")
    with pytest.raises(intact8.InputError, match="no file of a sensitivity run"):
        intact8.sensitivity(sim, data().split(12), **arguments)


class Clock:
    """Seconds that pass with every look at the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


def test_a_limit_of_time(sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.diagnose.sensitivity import run

    whole = intact8.sensitivity(sim, data().split(4), modes=MODES)
    monkeypatch.setattr(run, "time", Clock())
    batches, state = data().split(4), tmp_path / "state.json"
    limited = intact8.sensitivity(sim, batches, modes=MODES, seconds=3.5, state=state, greedy=2)
    reached = [row for row in limited.rows if row.scores]
    assert 0 < len(reached) < len(limited.rows) and limited.samples == 4 and not limited.greedy
    assert f"{len(reached)} of {len(limited.rows)} layers were reached" in " ".join(str(limited).split())
    first = {row.name: row.score("alone") for row in intact8.sensitivity(sim, batches[0])}
    assert all(row.score("alone") == pytest.approx(first[row.name]) for row in reached)
    assert limited.ranking() == sorted(reached, key=lambda row: row.score("alone") or 0.0)
    none = intact8.sensitivity(sim, batches, seconds=0.5)
    assert not any(row.scores for row in none.rows) and math.isfinite(none.quantized_score)
    # Called again with more time it goes on, to what it would have been without a limit.
    told: list[tuple[int, int | None]] = []
    again = intact8.sensitivity(
        sim, batches, modes=MODES, seconds=1e6, state=state, progress=lambda *seen: told.append(seen)
    )
    assert again == whole and told[-1][0] == told[-1][1]


def test_time_that_ends_in_a_later_chunk(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.diagnose.sensitivity import run

    monkeypatch.setattr(run, "time", Clock())
    layers = len(intact8.sensitivity(sim, data(4)).rows)
    some = intact8.sensitivity(sim, data().split(4), seconds=2.5 * layers)
    assert some.samples == 8 and some == intact8.sensitivity(sim, data()[:8].split(4))


def test_layers_that_lose_most_come_first(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.diagnose.sensitivity import run

    monkeypatch.setattr(run, "time", Clock())
    network = run.PartialNetwork(sim)
    x = [data(4)]
    losses = network.losses(network.run(x, run.NOTHING), None, x)
    assert losses.keys() == {node.name for node in network.layers()}
    for seconds in range(1, len(losses) + 2):
        report = intact8.sensitivity(sim, data(4), seconds=seconds + 0.5)
        reached = {row.name for row in report.rows if row.scores}
        assert reached == set(sorted(losses, key=lambda name: -losses[name])[: len(reached)])


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_a_float_network_is_prepared_and_calibrated(sim: Simulation) -> None:
    assert intact8.sensitivity(net(), data()) == intact8.sensitivity(sim, data())
    with pytest.raises(intact8.InputError, match="read only once"):
        intact8.sensitivity(net(), iter(data().split(8)))
    assert intact8.sensitivity(net(), iter(data().split(8)), calibration=data()).samples == 48


def test_wrong_calls_are_refused(sim: Simulation) -> None:
    for arguments, words in [
        ({"metric": "psnr"}, "no metric 'psnr'"), ({"modes": ("all",)}, "no mode 'all'"),
        ({"parts": ("bias",)}, "no part 'bias'"), ({"memory": 0}, "memory is 0"), ({"samples": 0}, "samples is 0"),
        ({"seconds": 0}, "seconds is 0"), ({"seconds": math.nan}, "seconds is nan"),
        ({"recipe": intact8.Recipe()}, "prepared with one"),
    ]:  # fmt: skip
        with pytest.raises(intact8.InputError, match=words):
            intact8.sensitivity(sim, data(), **arguments)
    with pytest.raises(intact8.InputError, match="more than once"):
        intact8.sensitivity(sim, iter(data().split(8)), greedy=1)
    with pytest.raises(intact8.InputError, match="no batch"):
        intact8.sensitivity(sim, [])
    with pytest.raises(intact8.StateError, match="no scale yet"):
        intact8.sensitivity(intact8.prepare(net(), data()[:2]).eval(), data())


def test_json_and_back(report: SensitivityReport) -> None:
    assert SensitivityReport.from_dict(json.loads(report.to_json())) == report
    assert SensitivityReport.from_dict(report.to_dict()) == report


def top(k: int) -> Callable[[Tensor, Any], Tensor]:
    @torch.no_grad()
    def metric(outputs: Tensor, batch: Any) -> Tensor:
        return (outputs.topk(k, 1).indices == batch[1][:, None]).any(1)

    return metric


def test_a_state_of_another_metric_of_the_same_name_is_refused(sim: Simulation, tmp_path: Path) -> None:
    """The second metric of a factory got the scores of the first."""
    labelled, state = [(data(), torch.arange(48) % 5)], tmp_path / "state.json"
    first = intact8.sensitivity(sim, labelled, metric=top(1), state=state)
    assert intact8.sensitivity(sim, labelled, metric=top(1), state=state) == first
    with pytest.raises(intact8.InputError, match="of another sensitivity run.*differs in metric"):
        intact8.sensitivity(sim, labelled, metric=top(3), state=state)
    with pytest.raises(intact8.InputError, match="differs in higher_is_better"):
        intact8.sensitivity(sim, labelled, metric=top(1), higher_is_better=False, state=state)


def test_metrics_without_a_number_are_refused(sim: Simulation) -> None:
    """Layers were ranked by NaN, and of None there was a bare TypeError."""
    calls: list[float] = []

    def at(call: int, value: float) -> Callable[[Any, Any], float]:
        calls.clear()

        def metric(outputs: Any, batch: Any) -> float:
            calls.append(value if len(calls) == call else 0.5)
            return calls[-1]

        return metric

    for call, value, words in [
        (0, math.nan, "metric of the float network is nan.*nothing can be compared with it.*give data and a metric"),
        (0, math.inf, "metric of the float network is inf"),
        (1, math.nan, "metric of the quantized network is nan"),
    ]:
        with pytest.raises(intact8.InputError, match=words):
            intact8.sensitivity(sim, data(), metric=at(call, value))
    for nothing in (None, "much", {}):
        with pytest.raises(intact8.InputError, match="sensitivity: the metric .* gave .*, no number"):
            intact8.sensitivity(sim, data(), metric=lambda outputs, batch, found=nothing: found)
    # The score of one layer may be NaN: it is the worst.
    report = intact8.sensitivity(sim, data(), metric=at(4, math.nan))
    assert report.ranking()[0].name == report.rows[2].name


def test_a_metric_may_give_an_array(sim: Simulation) -> None:
    metric = lambda outputs, batch: outputs[:, 0].double()  # noqa: E731
    report = intact8.sensitivity(sim, data(), metric=metric)
    assert intact8.sensitivity(sim, data(), metric=lambda y, batch: metric(y, batch).numpy()).rows == report.rows


def test_numbers_that_json_does_not_have_are_null(report: SensitivityReport) -> None:
    row = replace(report.rows[0], scores=(Score("alone", "both", math.nan),))
    text = replace(report, quantized_score=-math.inf, rows=(row,)).to_json()
    values = json.loads(text, parse_constant=pytest.fail)
    assert values["quantized_score"] is None and values["rows"][0]["scores"][0]["value"] is None
    again = SensitivityReport.from_dict(values)
    assert (again.float_score, again.ranking(), str(again) != "") == (report.float_score, [], True)
