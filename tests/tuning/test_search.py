"""The search for a recipe: what it reaches, how it ends, goes on and is shared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intact8
from intact8 import recipes
from intact8.diagnose.report.html import render
from intact8.display import number
from intact8.errors import InputError, StateError
from intact8.program.file import digest
from intact8.timing import Timing
from intact8.tuning import measure
from intact8.tuning.journal import Journal
from intact8.tuning.result import Trial, TuneResult


class Uneven(nn.Module):
    """A small network in which the inner layer has one channel far louder than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.inner.weight[3] *= 100
            self.last.weight[:, 3] /= 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.inner(self.first(x).relu()).sigmoid() + self.first(x)[:, :16])
        return y


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Uneven().eval(), torch.randn(96, 8)


POOR = replace(recipes.minmax(), weight=recipes.minmax().weight.changed({"granularity": "per_tensor"}))
WANTED = 0.0002


@pytest.fixture(scope="module")
def found(network: tuple[nn.Module, torch.Tensor]) -> TuneResult:
    model, x = network
    return intact8.tune(model, x, max_drop=WANTED, recipe=POOR, seconds=0)


def test_the_drop_is_reached_and_the_recipe_gives_the_program(
    network: tuple[nn.Module, torch.Tensor], found: TuneResult
) -> None:
    model, x = network
    assert found.trials[0].drop > WANTED >= found.best.drop and found.reached and found.ended == "done"
    assert found.best.floats > 0 and found.best.time > 1
    assert digest(intact8.quantize(model, x, found.recipe)) == digest(found.program)
    cosine = nn.functional.cosine_similarity(found.program(x), model(x).detach(), dim=1).mean()
    assert 100 * (1 - float(cosine)) == pytest.approx(found.best.drop, abs=1e-4)


def test_float32_between_layers_is_tried(found: TuneResult) -> None:
    between = {trial.recipe.between_layers: trial for trial in found.trials}
    assert between["float"].sqnr > found.trials[0].sqnr and "everything between layers" in between["float"].change
    assert any(trial.recipe.reconstruction == "gptq" for trial in found.trials)


def test_programs_of_one_form_take_the_same_time(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    result = intact8.tune(model, x, max_drop=0, max_trials=4, seconds=0.01, engine="reference")
    assert len(result.trials) == 4 and {trial.time for trial in result.trials} == {1.0}


def test_a_busy_machine_gets_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest call of a turn may have been disturbed, in each of them: turns go on until none is faster."""
    turns = iter([(3.0, 1.5), (1.0, 1.5), (1.01, 1.6)])

    def timed(calls: Mapping[str, object], *, seconds: float, least: int) -> dict[str, Timing]:
        assert (seconds, least) == (0.25, measure.LEAST_CALLS)
        return {name: Timing(9.0, 9.0, 9.0, 7, value) for name, value in zip(calls, next(turns), strict=True)}

    monkeypatch.setattr(measure, "interleaved", timed)
    calls = {"start": lambda: None, "candidate": lambda: None}
    assert measure.fastest_calls(calls, 0.5) == {"start": 1.0, "candidate": 1.5}
    assert next(turns, None) is None
    turns = iter([(2.0**-i, 1.0) for i in range(measure.TURNS + 1)])
    assert measure.fastest_calls(calls, 0.5)["start"] == 2.0 ** (1 - measure.TURNS)


def test_nothing_that_was_tried_is_allowed_and_faster(found: TuneResult) -> None:
    allowed = [t for t in found.trials if t.drop <= WANTED]
    assert found.best.time <= 1.02 * min(t.time for t in allowed)
    front = found.front
    assert [t.time for t in front] == sorted(t.time for t in front)
    assert [t.drop for t in front] == sorted((t.drop for t in front), reverse=True)
    assert all(any(f.time <= t.time and f.drop <= t.drop for f in front) for t in found.trials)


def test_it_is_deterministic_and_goes_on_where_it_was_interrupted(
    network: tuple[nn.Module, torch.Tensor], found: TuneResult, tmp_path: Path
) -> None:
    model, x = network
    journal, seen = tmp_path / "run.jsonl", list[Trial]()

    def interrupt(trial: Trial, best: Trial) -> None:
        seen.append(trial)
        if len(seen) == 6:
            raise KeyboardInterrupt

    options = {"max_drop": WANTED, "recipe": POOR, "seconds": 0, "journal": journal}
    first = intact8.tune(model, x, progress=interrupt, **options)
    assert (first.ended, len(first.trials)) == ("interrupted", 6) and first.best in first.trials
    assert len(journal.read_text().splitlines()) == 1 + len(first.trials)
    seen.clear()
    again = intact8.tune(model, x, progress=lambda trial, best: seen.append(trial), **options)
    assert (again.trials, again.best) == (found.trials, found.best) and seen == list(found.trials)
    with pytest.raises(InputError, match="another search.*recipe"):
        intact8.tune(model, x, **{**options, "recipe": "accurate"})
    journal.write_text("{")
    with pytest.raises(InputError, match="no journal.*name another file"):
        intact8.tune(model, x, **options)


def test_of_a_journal_only_the_torn_last_line_is_lost(found: TuneResult, tmp_path: Path) -> None:
    path, search = tmp_path / "run.jsonl", {"metric": "cosine"}
    Journal(path, search).add({trial.recipe_toml: trial for trial in found.trials[:3]})
    whole = path.read_bytes()
    for cut, left in ((0, 3), (1, 3), (20, 2)):
        path.write_bytes(whole[: len(whole) - cut])
        assert [*Journal(path, search).trials.values()] == list(found.trials[:left])
    for damaged in (whole.replace(b'"recipe_toml"', b'"other"', 1), whole[:-20] + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"line [24] is no trial.*take this line out") as error:
            Journal(path, search)
        assert "delete" not in str(error.value)


def test_budgets_end_the_search(network: tuple[nn.Module, torch.Tensor], found: TuneResult) -> None:
    model, x = network
    short = intact8.tune(model, x, max_drop=WANTED, recipe=POOR, seconds=0, max_trials=4)
    assert (short.ended, short.trials) == ("budget", found.trials[:4])
    none = intact8.tune(model, x, max_drop=WANTED, recipe=POOR, seconds=0, budget=0)
    assert (none.ended, len(none.trials), none.reached) == ("budget", 1, False)
    assert "none of them is within" in none.summary()


def test_labels_functions_and_samples_without_labels(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    y = model(x).argmax(1)
    labelled = intact8.tune(model, x, (x, y), max_drop=0, max_trials=1)
    assert labelled.float_score == 100 and labelled.evaluation is not None
    assert 100 * labelled.evaluation.score("int8").value == pytest.approx(labelled.best.score)

    def loss(network: nn.Module) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return nn.functional.cross_entropy(network(x), y)

    assert intact8.tune(model, x, (x, y), metric="sqnr", max_drop=200).best.score > 20

    lower = intact8.tune(model, x, loss, higher_is_better=False, max_drop=1)
    assert lower.metric == "loss" and lower.best.drop == pytest.approx(lower.best.score - lower.float_score)
    assert intact8.tune(model, x, x[:8], metric="sqnr", max_drop=200).best.score > 20


@pytest.mark.parametrize(
    "wrong", [{"max_drop": math.nan}, {"max_drop": "little"}, {"budget": -1}, {"progress": 3}, {"held_out": 3}]
)
def test_arguments_of_the_wrong_kind_are_refused(
    network: tuple[nn.Module, torch.Tensor], wrong: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)) if "held_out" not in wrong else "nothing to judge by"):
        intact8.tune(*network, max_trials=1, seconds=0, **wrong)


def test_a_function_that_gives_no_number_is_refused(network: tuple[nn.Module, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="gave NoneType, no number"):
        intact8.tune(*network, lambda network: None, max_trials=1, seconds=0)

    with pytest.raises(InputError, match="gave str, no number"):
        intact8.tune(*network, lambda network: "0.5", max_trials=1, seconds=0)


def test_a_float_network_without_a_score_is_refused(network: tuple[nn.Module, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="score of the float network is nan. Reason: nothing can be compared"):

        def score(network: nn.Module) -> float:
            return math.nan

        intact8.tune(*network, score, max_trials=1, seconds=0)


def test_candidates_without_a_score_are_the_worst(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    result = intact8.tune(model, x, lambda net: 1.0 if net is model else math.nan, max_trials=3, seconds=0)
    assert not result.reached and all(trial.drop == math.inf for trial in result.trials)
    assert '="nan"' not in result.svg() and result.to_dict()["best"]["drop"] is None


def test_an_unknown_metric_names_those_of_labels_too(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    with pytest.raises(InputError, match="choose from sqnr.*or with labels from top1, top5"):
        intact8.tune(model, x, (x, x[:, :4].argmax(1)), metric="top-1", max_trials=1, seconds=0)


def test_names_of_metrics_are_shown_as_they_are(network: tuple[nn.Module, torch.Tensor]) -> None:
    result = intact8.tune(*network, lambda network: 1.0, max_trials=1, seconds=0)
    assert "<lambda>" in [column.title for column in result.grid().columns]


def test_a_limit_of_single_samples_is_said(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    data = (x, model(x).argmax(1))
    coarse = intact8.tune(model, x, data, max_drop=2, metric="top1", seconds=0, max_trials=1)
    assert "The limit of 2 is 1.9 of 96 samples" in coarse.summary() and "give at least 250" in coarse.summary()
    enough = intact8.tune(model, x, data, max_drop=10, metric="top1", seconds=0, max_trials=1)
    assert "The limit" not in enough.summary()


def test_held_out_samples_judge_what_others_chose(network: tuple[nn.Module, torch.Tensor]) -> None:
    model, x = network
    other = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    result = intact8.tune(model, x, max_drop=50, held_out=(other, model(other).argmax(1)), metric="top1", seconds=0)
    exact, score = result.held_out or (0.0, 0.0)
    right = (result.program(other).argmax(1) == model(other).argmax(1)).double().mean()
    assert exact == 100 and score == pytest.approx(100 * float(right)) and "held-out" in result.summary()
    assert result.held_out_evaluation is not None
    found = result.held_out_evaluation.score("int8")
    assert found.low is not None and found.high is not None
    assert f"{number(100 * found.low)} to {number(100 * found.high)})." in result.summary()
    assert result.to_dict()["held_out_evaluation"]["samples"] == 32


def test_the_report_has_a_section(network: tuple[nn.Module, torch.Tensor], found: TuneResult) -> None:
    made = intact8.report(found.program, network[1], tuning=found, seconds=0)
    page = render(made)
    assert found.svg() in page and '<section id="tuning"' in page and found.best.change.split(":")[0] in page
    assert found.front[0].change in [row[1] for row in made.to_json()["tuning"]["rows"]]


def test_what_it_shows(found: TuneResult) -> None:
    values = json.loads(found.to_json())
    assert values["trials"][values["front"][0]]["change"] == found.front[0].change
    assert found.svg().count("<circle") == len(found.trials) and found.svg() in found._repr_html_()
    assert "→" in str(found) and found.best.change[:20] in str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "bleu"}, "no metric 'bleu'"),
        ({"max_drop": -1}, "max_drop is -1"),
        ({"evaluate": iter([])}, "read only once"),
    ],
)
def test_what_cannot_be_asked(
    network: tuple[nn.Module, torch.Tensor], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        intact8.tune(*network, **arguments)
    with pytest.raises(StateError, match="float model"):
        intact8.tune(intact8.prepare(*network), network[1])
