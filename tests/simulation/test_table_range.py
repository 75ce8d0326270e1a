"""Ranges of tensors that only tables read: integers that no table tells apart are not spent."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.simulation.scales.quant_points import QuantPoint
from intact8.simulation.scales.table_range import flat_ends
from intact8.simulation.simulation import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

X = torch.linspace(-1, 1, 4096).reshape(64, 64)
"""The inputs of a network that multiplies them by 20."""


def network(function: nn.Module, *behind: nn.Module) -> nn.Module:
    layer = nn.Linear(64, 64, bias=False)
    nn.init.eye_(layer.weight).data.mul_(20)
    return nn.Sequential(layer, function, *behind).eval()


def calibrated(model: nn.Module, recipe: intact8.Recipe | None = None) -> Simulation:
    recipe = replace(recipe or recipes.minmax(), between_layers="integer")
    sim = intact8.prepare(model, X, recipe)
    intact8.calibrate(sim, X)
    return sim.eval()


def ends(point: QuantPoint) -> tuple[float, float]:
    """The least and largest number of a point's grid."""
    scale, zero_point = float(point.scale), int(point.zero_point)
    return (point.lo - zero_point) * scale, (point.hi - zero_point) * scale


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (nn.Hardswish(), -3.0, 20.0),
        (nn.SiLU(), -4.9, 20.0),
        (nn.GELU(), -2.1, 20.0),
        (nn.Hardsigmoid(), -3.0, 3.0),
        (nn.Sigmoid(), -6.2, 6.2),
        (nn.Tanh(), -3.1, 3.1),
        (nn.Softplus(), -3.2, 20.0),
        (nn.LogSigmoid(), -20.0, 3.2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_range_ends_where_the_function_is_flat(function: nn.Module, low: float, high: float) -> None:
    sim = calibrated(network(function))
    assert ends(sim.points["0"]) == pytest.approx((low, high), abs=0.3)
    # What lies outside the grid is saturated, and loses nothing by it.
    x, result = sim.points["0"], sim.points[sim.graph.outputs[0].removesuffix(".dequantize")]
    values = torch.linspace(-20, 20, 4001)
    outside = (values < ends(x)[0]) | (values > ends(x)[1])
    q = (torch.round(values / x.scale) + x.zero_point).clamp(x.lo, x.hi).long()
    steps = sim.requantizations["1"].table[q].float() - result.zero_point - function(values) / result.scale
    assert not outside.any() or float(steps[outside].abs().max()) < 0.51


@pytest.mark.parametrize("function", [nn.Hardsigmoid(), nn.Tanh()], ids=["hardsigmoid", "tanh"])
def test_ends_do_not_depend_on_where_they_are_looked_for(function: nn.Module) -> None:
    """The last bit of a scale is another one on another machine, and must not move a range by a step of the search."""
    tables = calibrated(network(function)).points["0"].tables
    assert tables is not None
    found = []
    for low, high in ((-20.0, 20.0), (-20.01, 20.02)):
        half = (high - low) / 256 / 2
        least, most = tables.useful_range(low, high, 256)
        found.append((least + half, most - half))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_entries_saturate_at_both_ends() -> None:
    sim = calibrated(network(nn.Hardsigmoid()))
    table = sim.requantizations["1"].table.tolist()
    assert table[0] == 0 < table[5] and table[-6] < 255 == table[-1]


class TwoReaders(nn.Module):
    """A layer whose result two functions read, and possibly a third operation."""

    def __init__(self, other: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.other = network(nn.Identity())[0], other

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return torch.sigmoid(y), self.other(y)


@pytest.mark.parametrize(
    ("other", "low", "high"),
    [
        (torch.tanh, -6.2, 6.2),
        (nn.functional.hardswish, -6.2, 20.0),
        (lambda y: y, -20.0, 20.0),
        (lambda y: y + y.mean(), -20.0, 20.0),
        (lambda y: torch.tanh(y.reshape(-1)), -6.2, 6.2),
    ],
    ids=["two-tables", "one-goes-on", "output", "sum", "behind-a-move"],
)
def test_all_readers_count(other: Callable[[Tensor], Tensor], low: float, high: float) -> None:
    sim = calibrated(TwoReaders(other).eval())
    assert ends(sim.points["layer"]) == pytest.approx((low, high), abs=0.3)


def test_a_reader_without_a_grid_says_nothing_of_the_range() -> None:
    sim = intact8.prepare(TwoReaders(torch.tanh).eval(), X, recipes.minmax())
    tables = sim.points["layer"].tables
    assert tables is not None and len(tables.readers) == 2
    tables.readers[0][1].set(1 / 256, 0)
    assert tables.useful_range(-20.0, 20.0, 256) == (-20.0, 20.0)


def test_what_the_user_fixed_stays() -> None:
    fixed = {"0": {"activation": {"observer": "fixed", "observer_args": {"lo": -8.0, "hi": 8.0}}}}
    sim = calibrated(network(nn.Tanh()), replace(recipes.minmax(), overrides=fixed))
    assert ends(sim.points["0"]) == pytest.approx((-8, 8), abs=0.1)
    sim = intact8.prepare(network(nn.Tanh()), X, recipes.minmax())
    sim.points["0"].set(0.1, 128)
    intact8.calibrate(sim, X)
    assert (float(sim.points["0"].scale), int(sim.points["0"].zero_point)) == (pytest.approx(0.1), 128)


def test_observers_and_copies_know_nothing_of_it() -> None:
    sim = calibrated(network(nn.Tanh()))
    point = sim.points["0"]
    assert (point.observer.minimum, point.observer.maximum) == pytest.approx((-20, 20), abs=1e-3)
    twin = copy.deepcopy(sim)
    twin.points["1"].set(1 / 16, 128)
    twin.resolve()
    assert ends(twin.points["0"])[1] < ends(point)[1]
    sim.resolve()
    again = intact8.prepare(network(nn.Tanh()), X, recipes.minmax())
    again.load_state_dict(sim.state_dict())
    again.eval().resolve()
    assert ends(again.points["0"]) == ends(point) == ends(sim.points["0"])


def test_scales_that_follow_observers_follow_it_in_training() -> None:
    sim = intact8.prepare(network(nn.Tanh()), X, recipes.qat("observed"))
    intact8.calibrate(sim, X)
    sim.train()
    sim(X)
    assert ends(sim.points["0"])[1] < 4


def test_a_network_comes_closer_to_float() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Hardswish())), nn.Linear(64, 8)).eval()
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=0.35)
    x = torch.randn(512, 64)
    sim = intact8.prepare(model, x, recipes.minmax())
    intact8.calibrate(sim, x)
    sim.eval()

    def noise() -> float:
        with torch.no_grad():
            return float((sim(x) - model(x)).norm() / model(x).norm())

    cut = noise()
    for point in sim.points.values():
        point.tables = None
    sim.resolve()
    assert cut < 0.9 * noise()
    assert intact8.verify(intact8.convert(sim), x[:4]).exact


def test_diagnosis_does_not_call_it_clipping() -> None:
    model = network(nn.Tanh())
    sim = calibrated(model)
    assert flat_ends(sim.points)["0"] == pytest.approx((-3, 3), abs=0.3)
    told = " ".join(str(finding) for finding in intact8.lint(sim, data=X).at_least("warning"))
    assert not any(rule in told for rule in ("IQ305", "IQ404", "IQ405")), told
    rows = {row.name: row for row in intact8.compare(model, sim, X).rows}
    assert rows["0"].clipped == 0 and rows["0"].cascade.sqnr > 20
