"""What quantize rounds between layers, chosen by samples that ranges were not calibrated on."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme
from intact8.diagnose.between_layers import PARTS, _may_be_behind, _parts, _plain
from intact8.diagnose.fidelity import measure_outputs, measure_unseen
from intact8.errors import AccuracyWarning
from intact8.simulation import prepare

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).eval()


def samples(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


TIGHT = Recipe(activation=Scheme(observer="minmax"))
"""Ranges without room for what the samples do not show."""


PLAIN = _plain(Recipe())
"""Plain W8A8."""


def calibrated(x: Tensor, recipe: Recipe | None = None) -> intact8.Simulation:
    sim = intact8.prepare(network(), x[:1], recipe).eval()
    intact8.calibrate(sim, x)
    return sim


def chosen(x: Tensor, recipe: Recipe | None = None) -> Recipe:
    return Recipe.from_toml(intact8.quantize(network(), x, recipe).recipe)


def test_outputs_that_other_samples_clip_are_not_rounded() -> None:
    """Four samples look good on the ranges that they gave themselves, and a fifth is outside of them."""
    sim = calibrated(samples(4))
    (seen,), (unseen,) = (
        measure_outputs(sim).outputs,
        measure_unseen(sim, [[samples(64, seed=2)]], [[samples(4)]]).outputs,
    )
    assert seen["sqnr"] > 25 and unseen["sqnr"] < unseen["plain"] - 3
    assert chosen(samples(4), TIGHT).between_layers in ("float_residual", "float")


def test_ranges_from_few_samples_get_room_where_that_helps_those_held_out() -> None:
    recipe = chosen(samples(4))
    assert recipe.between_layers == "auto" and recipe.activation.observer_args == {"room": True}
    (unseen,) = measure_unseen(calibrated(samples(4), recipe), [[samples(64, seed=2)]], [[samples(4)]]).outputs
    assert unseen["sqnr"] > 20


def noisy(size: int = 32) -> nn.Sequential:
    """Rounding errors grow so much that no few samples tell whether an output is nearer to float's than another."""
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(16) for m in (nn.Linear(size, size), nn.Tanh()))).eval()
    for module in net:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=2 / size**0.5)
    return net


def test_where_few_samples_cannot_tell_plain_rounding_itself_is_taken() -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    with pytest.warns(AccuracyWarning):
        program = intact8.quantize(noisy(), x)
    recipe = Recipe.from_toml(program.recipe)
    assert recipe == PLAIN
    y, z = noisy()(x), torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
    sim = intact8.prepare(noisy(), x[:1], recipe).eval()
    intact8.calibrate(sim, x)
    assert y.shape == x.shape
    (row,) = measure_unseen(sim, [[z]], [[x]]).outputs
    assert abs(row["apart"]) < 0.005


def test_parts_that_differ_too_much_do_not_show_that_an_output_is_near() -> None:
    def rows(*apart: float) -> list[dict[str, object]]:
        return [{"name": "y", "sqnr": 10.0, "plain": 10.0, "apart": a} for a in apart]

    assert not _may_be_behind(rows(0.002, 0.003, 0.004, 0.003))
    assert _may_be_behind(rows(0.004, 0.005, 0.006, 0.005)), "samples that nobody has seen are twice as far at times"
    assert _may_be_behind(rows(-0.02, 0.009, 0.009, 0.01))[0]["name"] == "y"
    assert not _may_be_behind([{"name": "y", "sqnr": 25.0}, {"name": "y", "sqnr": None}, {"name": "y", "sqnr": 40.0}])


def test_many_samples_give_ranges_that_hold() -> None:
    assert not measure_unseen(calibrated(samples(64)), [[samples(64, seed=2)]], [[samples(64)]]).behind
    assert chosen(samples(64)) == Recipe()


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_every_sample_is_held_out_once(count: int) -> None:
    x = samples(count)
    parts = _parts(calibrated(x), [(x[:1],), (x[1:],)])
    assert len(parts) == min(PARTS, count)
    unseen = torch.cat([t for _, batches in parts for (t,) in batches])
    assert sorted(unseen[:, 0].tolist()) == sorted(x[:, 0].tolist())
    for seen, other in parts:
        rows = torch.cat([t for (t,) in (*seen, *other)])
        assert sorted(rows[:, 0].tolist()) == sorted(x[:, 0].tolist())


@pytest.mark.parametrize("count", [1, 17])
def test_one_sample_and_many_are_not_divided(count: int) -> None:
    assert _parts(calibrated(samples(count)), samples(count)) == []


def test_plain_rounding_clips_what_its_samples_did_not_show() -> None:
    """Ranges of plain W8A8 are those of the samples that gave the simulation's."""
    sim, unseen = calibrated(samples(4)), [[10 * samples(8, seed=3)]]
    (own,), (clipped,) = (measure_unseen(sim, unseen, seen).outputs for seen in ([], [[samples(4)]]))
    assert clipped["plain"] < 15 < own["plain"]


def test_the_model_is_captured_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    calls, capture = [], prepare.capture

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return capture(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "capture", counted)
    with caplog.at_level(logging.INFO):
        assert chosen(samples(4), TIGHT).between_layers != "auto"
    assert len(calls) == 1 and "is further from float than plain W8A8" in caplog.text


def amplifying() -> nn.Sequential:
    """Rounding errors grow from layer to layer, those of weights most of all."""
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(32, 32), nn.Tanh()))).eval()
    for module in net:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=3 / 32**0.5)
    return net


def test_weights_take_all_eight_bits_where_nothing_else_helps_and_that_is_told() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    with pytest.warns(AccuracyWarning) as told:
        program = intact8.quantize(amplifying(), x)
    assert any("a CPU with VNNI" in str(w.message) and "Recipe(portable=True)" in str(w.message) for w in told)
    assert told[0].filename == __file__
    assert Recipe.from_toml(program.recipe).portable is False and program.needs == ("vnni",)
    assert torch.equal(program.run(x), program.run(x, engine="reference"))


def test_a_portable_recipe_stays_portable() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    with pytest.warns(AccuracyWarning, match="lost little by little"):
        program = intact8.quantize(amplifying(), x, Recipe(portable=True))
    assert Recipe.from_toml(program.recipe).portable is True and program.needs == ()
