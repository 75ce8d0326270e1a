from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.calibration.fake import FakeSimulation

from intact8.calibration.run import compute_scales
from intact8.calibration.summary import CalibrationWarning, Growth, warnings_of
from intact8.errors import CalibrationError


@pytest.fixture
def sim() -> FakeSimulation:
    torch.manual_seed(0)
    return FakeSimulation()


def batches(n: int, size: int = 16, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 4, generator=generator) for _ in range(n)]


def switches(sim: FakeSimulation) -> Any:
    return (
        [m.training for m in sim.modules()],
        [p.observing for p in sim.points.values()],
        [p.quantizing for p in (*sim.points.values(), *sim.weight_points.values())],
    )


def statistics(sim: FakeSimulation) -> Any:
    states = [p.observer.state() for p in sim.points.values()]
    values = [np.asarray(v).tolist() for s in states for v in s.values()]
    return repr((values, [float(p.scale) for p in sim.points.values()]))


def quiet(sim: FakeSimulation, data: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return compute_scales(sim, data, **options)  # type: ignore[arg-type]


def test_it_runs_the_float_model_in_evaluation_and_puts_everything_back(sim: FakeSimulation) -> None:
    sim.train()
    sim.dropout.eval()
    sim.points["relu"].quantizing = False
    sim.points["input"].observing = True
    before = switches(sim)
    quiet(sim, batches(3))
    assert switches(sim) == before
    assert sim.resolved == 1
    for seen in sim.seen:
        assert seen == {"training": False, "gradients": False, "observing": [True, True], "quantizing": [False] * 3}


def test_summary(sim: FakeSimulation) -> None:
    data = batches(3)
    summary = quiet(sim, data)
    assert (summary.batches, summary.samples) == (3, 48)
    point = summary.points["input"]
    everything = torch.cat(data)
    assert (point.count, point.minimum, point.maximum) == (192, float(everything.min()), float(everything.max()))
    assert point.scale == float(sim.points["input"].scale) and point.zero_point == 0
    assert json.loads(json.dumps(summary.to_json())) == summary.to_json() == sim.calibration


@pytest.mark.parametrize("observer", ["histogram", "moving_average", "minmax"])
def test_two_runs_give_the_bits_of_one(observer: str) -> None:
    torch.manual_seed(0)
    once = FakeSimulation(observer)
    twice = FakeSimulation(observer)
    twice.load_state_dict(once.state_dict())
    data = batches(6)
    quiet(once, data)
    quiet(twice, data[:2])
    summary = quiet(twice, data[2:])
    assert statistics(once) == statistics(twice)
    assert (summary.batches, summary.samples) == (6, 96)


def test_statistics_are_taken_once_from_the_first_samples_which_are_observed_as_well(sim: FakeSimulation) -> None:
    quiet(sim, iter(batches(4)))
    assert sim.looked_at == [2]
    assert quiet(sim, batches(4)).samples == 128
    assert sim.looked_at == [2]
    sim.looked_at.clear()
    quiet(sim, batches(4), reset=True, max_batches=1)
    assert sim.looked_at == [1]


def test_reset_starts_over(sim: FakeSimulation) -> None:
    quiet(sim, [b * 100 for b in batches(2)])
    summary = quiet(sim, batches(2), reset=True)
    assert summary.samples == 32 and summary.points["input"].maximum <= 1


def test_max_batches_and_progress(sim: FakeSimulation) -> None:
    told: list[Any] = []
    summary = quiet(sim, batches(5), max_batches=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)] and summary.batches == 2
    told.clear()
    quiet(sim, iter(batches(2)), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, None), (2, None)]
    with pytest.raises(CalibrationError, match="max_batches"):
        compute_scales(sim, batches(1), max_batches=0)  # type: ignore[arg-type]


def test_max_batches_leaves_the_rest_of_a_generator(sim: FakeSimulation) -> None:
    source = iter(batches(3))
    quiet(sim, source, max_batches=1)
    assert len(list(source)) == 2


@pytest.mark.parametrize("reset", [False, True], ids=["continue", "reset"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError], ids=["ctrl_c", "error"])
def test_an_interruption_loses_nothing(sim: FakeSimulation, error: type[BaseException], reset: bool) -> None:
    quiet(sim.train(), batches(3))
    before = switches(sim), statistics(sim), dict(sim.calibration)

    def interrupt(done: int, total: int | None) -> None:
        if done == 2:
            raise error

    with pytest.raises(error):
        quiet(sim, [b * 9 for b in batches(4)], progress=interrupt, reset=reset)
    assert (switches(sim), statistics(sim), dict(sim.calibration)) == before


def test_a_failing_resolve_is_undone(sim: FakeSimulation, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(sim, batches(3))
    before = statistics(sim)

    def fail() -> None:
        sim.points["input"].scale.fill_(7.0)
        raise CalibrationError("no")

    monkeypatch.setattr(sim, "resolve", fail)
    with pytest.raises(CalibrationError):
        quiet(sim, [b * 9 for b in batches(4)])
    assert statistics(sim) == before


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "inf"])
def test_non_finite_values_name_batch_and_layer(sim: FakeSimulation, value: float) -> None:
    data = batches(3)
    data[2][3, 1] = value
    with pytest.raises(CalibrationError, match=r"batch 2, layer input: .* of 64 values"):
        quiet(sim, data)
    with torch.no_grad():
        sim.linear.weight[0, 0] = value
    with pytest.raises(CalibrationError, match=r"batch 0, layer relu: "):
        quiet(sim, batches(1))
    assert sim.points["input"].observer.count == 0


def test_bad_data_leaves_the_simulation_alone(sim: FakeSimulation) -> None:
    for data in ([], [torch.zeros(2, 4).double()], [torch.zeros(2, 5)]):
        before = switches(sim), statistics(sim)
        with pytest.raises(CalibrationError):
            quiet(sim, data)
        assert (switches(sim), statistics(sim)) == before
    assert sim.resolved == 0


def test_two_inputs_by_key() -> None:
    sim = FakeSimulation(inputs=2)
    summary = quiet(sim, [{"shift": torch.ones(3, 4), "x": torch.zeros(3, 4), "label": 1}] * 2)
    assert summary.samples == 6


def warned(sim: FakeSimulation, data: Any) -> str:
    with pytest.warns(CalibrationWarning) as caught:
        summary = compute_scales(sim, data)  # type: ignore[arg-type]
    assert len(caught) == 1 and caught[0].filename == __file__
    assert str(caught[0].message) == "; ".join(summary.warnings)
    return str(caught[0].message)


def test_few_samples_are_warned_about(sim: FakeSimulation) -> None:
    assert "calibrated on 31 samples" in warned(sim, batches(1, 31))


def test_layers_with_the_largest_share_of_dead_channels_are_named() -> None:
    dead = {"wide": (30, 300), **{f"half{i}": (4, 8) for i in range(4)}, "most": (3, 4), "few": (1, 100)}
    (said,) = warnings_of(64, 4, {}, Growth(), {}, dead)
    assert "most: 3 of 4, half0: 4 of 8" in said and "wide" not in said and "and 2 more layers" in said
    assert not warnings_of(64, 4, {}, Growth(), {}, dead, held=frozenset(dead))  # constants, which are no layers


def test_enough_steady_data_warn_of_nothing(sim: FakeSimulation) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compute_scales(sim, batches(4, 400)).warnings == ()  # type: ignore[arg-type]


def test_samples_count_over_runs(sim: FakeSimulation) -> None:
    warned(sim, batches(1, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute_scales(sim, batches(1, 20))  # type: ignore[arg-type]


def test_moving_ranges_are_warned_about_with_numbers(sim: FakeSimulation) -> None:
    data = batches(8, 400)
    data[6] = data[6] * 2
    text = warned(sim, data)
    assert "of 2 ranges still widened by more than 5% in the last quarter of 8 batches" in text
    assert "most of all input: by 99.9%, from [8.637e-05, 0.9999] to [8.637e-05, 1.999]" in text


def test_constant_tensors_are_warned_about(sim: FakeSimulation) -> None:
    with torch.no_grad():
        sim.linear.bias.fill_(-100.0)
    text = warned(sim, batches(4, 400))
    assert "1 of 2 tensors never changed" in text and "relu = 0" in text


def test_growth_looks_at_the_last_quarter_only() -> None:
    growth = Growth()
    for batch, hi in enumerate([1.0, 4.0, 4.0, 4.0, 4.0, 5.0, 5.2, 5.2]):
        growth.note("a", batch, 0.0, hi)
    assert growth.widened(8, {}) == {}
    growth.note("a", 7, 0.0, 5.5)
    share, old, new = growth.widened(8, {})["a"]
    assert share == pytest.approx(0.1) and (old, new) == ((0.0, 5.0), (0.0, 5.5))
    assert growth.widened(3, {}) == {}


def test_growth_beyond_the_chosen_range_is_none() -> None:
    growth = Growth()
    for batch, (lo, hi) in enumerate([(-1.0, 2.0)] * 6 + [(-9.0, 5.0)] * 2):
        growth.note("a", batch, lo, hi)
    assert growth.widened(8, {"a": (-1.0, 2.05)}) == {}
    share, old, new = growth.widened(8, {"a": (-1.0, 3.0)})["a"]
    assert share == pytest.approx(1 / 3) and (old, new) == ((-1.0, 2.0), (-1.0, 3.0))
