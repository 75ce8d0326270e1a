"""What calibration rounds between layers, chosen by samples that ranges were not calibrated on."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme
from intact8.calibration.run import compute_scales
from intact8.diagnose import between_layers
from intact8.diagnose.between_layers import PARTS, _less_and_less_rounded, _may_be_behind, _parts, _plain, _possible
from intact8.diagnose.fidelity import measure_outputs, measure_unseen
from intact8.errors import AccuracyWarning
from intact8.program.file import digest
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
    """A simulation of this recipe, for which nothing is chosen."""
    sim = intact8.prepare(network(), x[:1], recipe).eval()
    compute_scales(sim, x)
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


class Residual(nn.Module):
    """A chain of blocks with residual sums, whose rounding adds up."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(blocks))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + 0.1 * torch.relu(block(x))
        y: Tensor = self.last(x)
        return y


@pytest.mark.parametrize("count", [8, 256])
def test_nearest_rounds_less_where_that_brings_outputs_nearer(count: int) -> None:
    torch.manual_seed(0)
    model, x = Residual(40).eval(), torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    x[:, 0] *= 5
    recipe = replace(TIGHT, between_layers="nearest")
    found = Recipe.from_toml(intact8.quantize(model, x[:count], recipe).recipe)
    assert found.between_layers in ("float_residual", "float")


def test_nearest_leaves_outputs_that_are_near_enough() -> None:
    assert chosen(samples(256), replace(Recipe(), between_layers="nearest")).between_layers == "nearest"


def test_what_is_tried_after_what_is_chosen_rounds_less() -> None:
    sim = calibrated(samples(256))
    tried = [(r.between_layers, r.portable) for r in _less_and_less_rounded(sim, sim.recipe)]
    assert tried == [(b, "auto") for b in ("auto", "float_residual", "float")] + [("auto", False), ("float", False)]
    residual = replace(sim.recipe, between_layers="float_residual")
    assert [r.between_layers for r in _less_and_less_rounded(sim, residual)][:2] == ["float_residual", "float"]


class Gated(nn.Module):
    """Features times a gate of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z: Tensor = self.last(y * self.gate(y))
        return z


def test_what_has_a_range_of_its_own_is_rounded_whatever_is_chosen() -> None:
    recipe = replace(TIGHT, overrides={"gate": {"activation": {"fixed": (1 / 255, 0)}}})
    torch.manual_seed(0)
    sim = intact8.prepare(Gated().eval(), samples(1), recipe).eval()
    compute_scales(sim, samples(64))
    tried = list(_less_and_less_rounded(sim, sim.recipe))
    assert any(r.between_layers == "float" for r in tried)
    assert [r.between_layers for r in _possible(sim, tried)].count("float") == 0
    assert intact8.quantize(Gated().eval(), samples(64), replace(recipe, between_layers="nearest"))


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


def merged_shortcuts() -> nn.Sequential:
    """Blocks of a RepVGG for inference: shortcuts in the middle of filters, some divided by small deviations."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        conv, quiet = nn.Conv2d(24, 24, 3, padding=1), torch.randperm(24)[:4]
        before: Any = blocks[-2]
        with torch.no_grad():
            for value in before.parameters():
                value[quiet] *= 0.004
            conv.weight[range(24), range(24), 1, 1] += 1.0
            conv.weight[quiet, quiet, 1, 1] = 250.0
        blocks += [conv, nn.ReLU()]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)).eval()


@pytest.mark.parametrize("count", [8, 64])
def test_channels_are_rescaled_where_outputs_are_far_and_come_much_nearer(count: int) -> None:
    model, x = merged_shortcuts(), torch.randn(128, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    program = intact8.quantize(model, x[:count])
    assert Recipe.from_toml(program.recipe).smooth == "auto"
    plain = intact8.quantize(model, x[:count], Recipe(between_layers="integer"))
    with torch.no_grad():
        exact = model(x[64:])
    lost = [float((torch.as_tensor(p(x[64:])) - exact).square().mean()) for p in (program, plain)]
    assert lost[0] < lost[1] / 4
    assert len(program.ops) == len(plain.ops)


def test_channels_stay_where_outputs_are_near() -> None:
    assert chosen(samples(256)).smooth == 0.0


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


@pytest.mark.parametrize("count", [1, 32])
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


def by_hand(model: nn.Module, x: Tensor, recipe: Recipe | None = None) -> intact8.Simulation:
    sim = intact8.prepare(model, x[:1], recipe).eval()
    intact8.calibrate(sim, x)
    return sim


@pytest.mark.parametrize(("count", "recipe"), [(4, None), (4, TIGHT), (9, TIGHT), (64, None)], ids=str)
def test_calibrating_by_hand_chooses_as_quantize_does(count: int, recipe: Recipe | None) -> None:
    x = samples(count)
    sim, program = by_hand(network(), x, recipe), intact8.quantize(network(), x, recipe)
    assert sim.recipe.to_toml() == program.recipe
    assert digest(intact8.convert(sim)) == digest(program)
    z = samples(32, seed=5)
    assert torch.equal(sim(z), program.run(z))
    assert intact8.verify(intact8.convert(sim), z).mismatches == 0


def test_parameters_hooks_and_modes_outlive_the_choice() -> None:
    sim = intact8.prepare(network(), samples(1), TIGHT)
    weights, called = dict(sim.named_parameters()), []
    sim.register_forward_hook(lambda *_: called.append(1))
    sim.train()
    intact8.calibrate(sim, samples(4))
    assert sim.recipe.between_layers != "auto" and sim.training and all(m.training for m in sim.modules())
    assert {name: id(p) for name, p in sim.named_parameters()} == {name: id(p) for name, p in weights.items()}
    called.clear()
    loss = sim(samples(8)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert called and all(p.grad is not None for p in weights.values())
    before = sim.eval()(samples(8)).detach()
    with torch.no_grad():
        for p in weights.values():
            p.mul_(0.5)
    assert not torch.equal(sim(samples(8)), before), "the simulation computes with the parameters it had"


@pytest.mark.parametrize("count", [4, 64])
def test_a_simulation_in_training_mode_is_looked_at_in_evaluation(count: int) -> None:
    """Batch norm's statistics and the choice do not depend on the mode."""
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2)),
        samples(count),
    )
    sims = [intact8.prepare(net, x[:1], TIGHT).train(mode) for mode in (True, False)]
    for sim in sims:
        intact8.calibrate(sim, x)
    assert sims[0].training and all(m.training for m in sims[0].modules()) and sims[0].recipe == sims[1].recipe
    assert digest(intact8.convert(sims[0].eval())) == digest(intact8.convert(sims[1]))
    assert int(sims[0].get_submodule("1").num_batches_tracked) == 0  # type: ignore[arg-type]


def test_a_state_brings_what_was_chosen_with_it() -> None:
    x, z = samples(4), samples(32, seed=5)
    sim = by_hand(network(), x, TIGHT)
    other = intact8.prepare(network(), x[:1], TIGHT).eval()
    assert other.recipe.between_layers == "auto"
    other.load_state_dict(sim.state_dict())
    assert other.recipe == sim.recipe and torch.equal(other(z), sim(z))
    assert digest(intact8.convert(other)) == digest(intact8.convert(sim))
    again = intact8.prepare(network(), x[:1], TIGHT).eval()
    again.load_state_dict(other.state_dict())
    assert torch.equal(again(z), sim(z))
    for copied in (copy.deepcopy(sim), pickle.loads(pickle.dumps(sim))):
        assert torch.equal(copied(z), sim(z)) and copied.recipe == sim.recipe
    fixed = intact8.prepare(network(), x[:1], replace(TIGHT, between_layers="integer")).eval()
    with pytest.raises(RuntimeError, match="quantizers"):
        fixed.load_state_dict(sim.state_dict())


def test_a_second_call_goes_on_with_what_was_chosen() -> None:
    sim = by_hand(network(), samples(4), TIGHT)
    recipe, first = sim.recipe, sim.points["input"].observer.maximum
    intact8.calibrate(sim, 3 * samples(64, seed=2))
    assert sim.recipe == recipe and sim.points["input"].observer.maximum > first
    assert sim.calibration["samples"] == 68


def test_where_nothing_is_chosen() -> None:
    x = samples(4)

    def left(data: object, recipe: Recipe = TIGHT, **options: object) -> bool:
        sim = intact8.prepare(network(), x[:1], recipe)
        for point in sim.points.values():
            point.quantizing = not options.get("off", False)
        intact8.calibrate(sim, data)
        return sim.recipe == recipe

    assert not left(x)
    assert left(iter([x])), "an iterator can be read only once"
    assert left(x, replace(TIGHT, scales="learned")) and left(x, replace(TIGHT, scales="observed"))
    assert left(x, replace(TIGHT, between_layers="integer"))
    assert left(x, off=True)


def test_no_more_batches_are_read_than_asked_for() -> None:
    sim = intact8.prepare(network(), samples(1), TIGHT)
    read: list[int] = []

    class Data:
        def __iter__(self) -> Iterator[Tensor]:
            for i in range(100):
                read.append(i)
                yield samples(2, seed=i)

    intact8.calibrate(sim, Data(), max_batches=2)
    assert sim.recipe.between_layers != "auto" and max(read) <= 2 and sim.calibration["samples"] == 4


def test_interrupted_while_it_chooses_it_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(between_layers, "measure_unseen", stop)
    sim = intact8.prepare(network(), samples(1), TIGHT).eval()
    with pytest.raises(KeyboardInterrupt):
        intact8.calibrate(sim, samples(4))
    assert sim.calibrated and sim.recipe == TIGHT and sim(samples(2)).shape == (2, 2)


def test_tied_weights_batch_norm_and_buffers_stay_what_they_are() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
            self.b.weight = self.a.weight
            self.register_buffer("shift", torch.randn(8), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.b(torch.tanh(self.norm(self.a(x)))) + self.shift) @ torch.eye(8)

    torch.manual_seed(3)
    model, x = Tied().eval(), samples(3)
    sim = by_hand(model, x, TIGHT)
    assert sim.recipe.between_layers != "auto"
    assert sim.get_submodule("a").weight is sim.get_submodule("b").weight
    assert isinstance(sim.get_submodule("norm"), nn.BatchNorm1d)
    assert digest(intact8.convert(sim)) == digest(intact8.quantize(model, x, TIGHT))


def test_sensitivity_of_a_float_network_is_that_of_what_quantize_makes() -> None:
    x = samples(4)
    sim = intact8.prepare(network(), x[:1], TIGHT).eval()
    intact8.calibrate(sim, x)
    assert sim.recipe.between_layers in ("float_residual", "float")
    of_network = intact8.sensitivity(network(), x, recipe=TIGHT)
    assert of_network.to_dict() == intact8.sensitivity(sim, x).to_dict()


def test_a_trial_of_tune_is_what_quantize_makes_of_its_recipe() -> None:
    x = samples(4)
    result = intact8.tune(network(), x, recipe=TIGHT, metric="sqnr", seconds=0, max_trials=1)
    assert Recipe.from_toml(result.program.recipe).between_layers in ("float_residual", "float")
    exact = network()(x).detach()
    error = (torch.from_numpy(result.program.run(x.numpy())) - exact).square().sum()
    assert result.best.sqnr == pytest.approx(10 * float(torch.log10(exact.square().sum() / error)), abs=0.01)
    assert result.best.floats == sum(op.is_float for op in result.program.ops)


class Reader(nn.Module):
    """Reads powers of bands of which some are a thousand times those of others, and weights make up for that."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.fc = nn.LSTM(16, 24, layers, batch_first=True), nn.Linear(24, 6)
        self.bands = torch.logspace(0, -4, 16)
        self.lstm.weight_ih_l0.data /= self.bands

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.lstm(x)[0][:, -1])
        return y


def test_a_recurrent_layer_stays_float_whose_rows_hold_numbers_that_are_far_apart() -> None:
    model = Reader().eval()
    x = torch.randn(64, 12, 16).square() * model.bands
    with pytest.warns(AccuracyWarning, match=r"lstm\.layer0 stays float, as in 8 bits"):
        program = intact8.quantize(model, x[:40])
    rules = Recipe.from_toml(program.recipe).rules
    assert [(rule.match, rule.quantize) for rule in rules] == [("lstm.layer0", False)]
    assert {op.kind for op in program.ops} >= {"float.lstm", "lstm"}

    def sqnr(given: intact8.Program) -> float:
        with torch.no_grad():
            wanted, got = model(x[40:]), torch.as_tensor(given.run(x[40:]))
        return float(10 * torch.log10(wanted.square().sum() / (wanted - got).square().sum()))

    with pytest.warns(AccuracyWarning, match="far from the float network"):  # whoever asks for it has it quantized
        asked = intact8.quantize(model, x[:40], Recipe(overrides={"lstm.*": {"quantize": True}}))
    assert {op.kind for op in asked.ops}.isdisjoint({"float.lstm"})
    assert sqnr(program) > 25 and sqnr(asked) < 17


def test_a_recurrent_layer_that_loses_little_is_quantized() -> None:
    model = Reader().eval()
    model.lstm.weight_ih_l0.data *= model.bands
    assert not Recipe.from_toml(intact8.quantize(model, torch.randn(40, 12, 16)).recipe).rules
