"""Rounding of weights by second moments: less error of results, exact programs, the same integers again."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.reconstruction.gptq import inverse_factor, largest_integers, round_by_covariance
from intact8.reconstruction.inputs import Moments, rows_of
from intact8.simulation.scales.quant_points import WeightPoint

RECIPE = replace(recipes.accurate(), smooth=0.0)


def correlated(count: int, size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(count, 2, generator=generator)
    mixed = shared @ torch.randn(2, size, generator=torch.Generator().manual_seed(9))
    return mixed + 0.1 * torch.randn(count, size, generator=generator)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ReLU6())
        self.b = nn.Conv2d(8, 12, 3, padding=(1, 2), dilation=(1, 2), groups=2)
        self.c = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(self.a(x)).relu().mean((2, 3)))
        return y


def small_simulation(recipe: intact8.Recipe = RECIPE) -> tuple[intact8.Recipe, nn.Module, Tensor]:
    x = torch.randn(24, 3, 12, 10, generator=torch.Generator().manual_seed(1))
    sim = intact8.prepare(Small().eval(), x[:2], recipe)
    with pytest.warns(UserWarning):
        intact8.calibrate(sim, x.split(8))
    return recipe, sim, x


def test_columns_take_back_what_others_lost() -> None:
    x, w = correlated(512, 12), torch.randn(4, 12, generator=torch.Generator().manual_seed(2))
    scale = torch.full((1, 4), 0.2)
    q = round_by_covariance(w[None], (x.T @ x)[None] / 512, scale, torch.full((1, 4, 12), 127.0))[0]
    nearest = (w / 0.2).round()
    errors = [((w - 0.2 * integers) @ x.T).square().mean() for integers in (q, nearest)]
    assert errors[0] < 0.5 * errors[1]
    assert (q - w / 0.2).abs().max() < 8


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_rows_times_weight_are_the_convolution(groups: int) -> None:
    conv = nn.Conv2d(8, 8, 3, stride=2, padding=(1, 0), dilation=(1, 2), groups=groups, bias=False)
    x = torch.randn(2, 8, 9, 11)
    sim = intact8.prepare(conv, x, recipes.default())
    node = next(n for n in sim.graph if n.op == "conv")
    rows = rows_of(node, x, conv.weight)
    y = rows @ conv.weight.reshape(groups, 8 // groups, -1).transpose(1, 2)
    wanted = conv(x).reshape(2, groups, 8 // groups, -1).permute(1, 0, 3, 2).flatten(1, 2)
    torch.testing.assert_close(y, wanted)


def test_moments_do_not_depend_on_batches() -> None:
    x = correlated(64, 6)
    whole, parts = Moments(), Moments()
    whole.add(x[None], 64)
    for part in x.split(16):
        parts.add(part[None], 16)
    torch.testing.assert_close(parts.covariance(), whole.covariance())


def test_inputs_that_are_constant_have_no_variance() -> None:
    moments = Moments()
    for _ in range(2):
        moments.add(torch.full((1, 50, 6), 0.1), 50)
    assert moments.covariance().count_nonzero() == 0
    assert inverse_factor(moments.covariance()).isfinite().all()


def test_no_two_integers_saturate_a_pair_sum() -> None:
    rows = torch.tensor([[[100.0, 30.0, -20.0], [50.0, 50.0, 1.0]]])
    point = WeightPoint("w", recipes.default().weight)
    limit = largest_integers(rows, torch.ones(1, 2), point)
    assert limit.tolist() == [[[100, 28, 28], [64, 64, 64]]]


def test_programs_are_exact_and_closer_to_float() -> None:
    _, sim, x = small_simulation()
    program = intact8.convert(sim)
    assert intact8.verify(program, x[:4], sim=sim).mismatches == 0
    plain = intact8.quantize(Small().eval(), x, replace(RECIPE, reconstruction="none"))
    with torch.no_grad():
        wanted = Small().eval()(x)
    errors = [(torch.as_tensor(p.run(x)) - wanted).square().mean() for p in (program, plain)]
    assert errors[0] < errors[1]


def test_states_and_copies_keep_the_integers() -> None:
    recipe, sim, x = small_simulation()
    wanted = sim(x)
    assert torch.equal(copy.deepcopy(sim)(x), wanted)
    loaded = intact8.prepare(Small().eval(), x[:2], recipe)
    loaded.load_state_dict(sim.state_dict())
    assert torch.equal(loaded.eval()(x), wanted)


def test_calibrating_in_two_calls_gives_the_same_bits() -> None:
    _, sim, x = small_simulation()
    parts = intact8.prepare(Small().eval(), x[:2], RECIPE)
    with pytest.warns(UserWarning):
        intact8.calibrate(parts, x[:16].split(8))
        intact8.calibrate(parts, x[16:].split(8))
    assert parts.kept and not torch.equal(parts(x), sim(x))  # statistics come from the first call
    whole = intact8.prepare(Small().eval(), x[:2], RECIPE)
    with pytest.warns(UserWarning):
        intact8.calibrate(whole, x.split(8), max_batches=2)
        intact8.calibrate(whole, x[16:].split(8))
    assert torch.equal(parts(x), whole(x))
