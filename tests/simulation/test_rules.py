"""Rules of single functions of the simulation, each held against a plain account of what it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intact8
from intact8.arithmetic import torch_nonlinear
from intact8.capture.graph import Node
from intact8.simulation.ops import exact_sums as exact
from intact8.simulation.ops import pools
from intact8.simulation.ops.exact_sums import exact_product
from intact8.simulation.weights.grid import on_grid
from intact8.simulation.weights.quantize import LARGEST_PAIR, corrected_bias, integer_weight, pair_limits
from intact8.train.fused_batch_norm import can_fuse
from intact8.train.learned_scale import LearnedScale, LearnedScales, lsq_factor
from intact8.train.snapshot import Snapshot

LINEAR = Node("fc", "linear", ["x"])


@pytest.mark.parametrize("module", [exact, torch_nonlinear], ids=["sums", "softmax and norms"])
def test_the_limit_of_exact_sums_is_where_float32_stops_counting(module: Any) -> None:
    """Up to it every integer is a float32; the next one is not."""
    below = np.float32(module.EXACT - 1)
    assert int(below) == module.EXACT - 1 and int(below + np.float32(1)) == module.EXACT
    assert int(np.float32(module.EXACT + 1)) != module.EXACT + 1


def test_nan_in_an_input_is_refused_in_evaluation_as_engines_do() -> None:
    sim, x = intact8.prepare(nn.Sequential(nn.Linear(3, 2)), torch.ones(2, 3)), torch.tensor([[1.0, float("nan"), 0.0]])
    assert sim.eval()(x).isnan().all()  # before calibration it is the float model
    intact8.calibrate(sim, torch.eye(3).repeat(12, 1))
    program = intact8.convert(sim.eval())
    for run in (sim, lambda v: program.run(v, engine="reference")):
        with pytest.raises(intact8.errors.InputError, match="the input holds NaN"):
            run(x)
    assert not sim.train()(x).isfinite().all()  # so that the loss shows it


@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_correction_takes_out_the_mean_error_of_rounded_weights(with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, mean = torch.randn(5, 12, generator=generator), torch.rand(12, generator=generator) + 0.5
    bias = torch.randn(5, generator=generator) if with_bias else None
    scale = torch.full((5,), 0.21)
    node = Node("fc", "linear", ["x"], params={"correct.mean": "mean"})
    rounded = integer_weight(node, weight, scale, -127, 127) * scale[:, None]
    corrected = corrected_bias(node, {"mean": mean}, weight, bias, scale, -127, 127)
    assert corrected is not None
    wanted = weight @ mean + (0.0 if bias is None else bias)
    assert not torch.allclose(rounded @ mean + (0.0 if bias is None else bias), wanted, atol=1e-2)
    torch.testing.assert_close(rounded @ mean + corrected, wanted, rtol=1e-5, atol=1e-5)
    assert corrected_bias(LINEAR, {}, weight, bias, scale, -127, 127) is bias


def test_on_a_held_grid_no_pair_of_weights_can_saturate() -> None:
    weight = torch.tensor([[126.0, -100.0, 3.0], [64.0, 64.0, 1.0], [127.0, 1.0, 0.0], [20.0, 3.0, -90.0]])
    scale = torch.ones(4)
    limits = pair_limits(LINEAR, weight, scale, -127, 127)
    assert limits is not None
    q = on_grid(weight, None, scale[:, None], limits).q
    assert (q.abs().topk(2, 1).values.sum(1) <= LARGEST_PAIR).all()
    assert torch.equal(q[1:3], weight[1:3])
    assert pair_limits(LINEAR, weight[1:3], scale[1:3], -127, 127) is None


@pytest.mark.parametrize(("sizes", "out"), [((7, 5), (3, 2)), ((4, 9), (4, 5)), ((6,), (4,)), ((5, 3, 4), (2, 2, 3))])
def test_adaptive_windows_count_what_torch_averages(sizes: tuple[int, ...], out: tuple[int, ...]) -> None:
    """A window of n elements shows as 1/n where one element is 1."""
    counts = pools.adaptive_counts(out, sizes)
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[len(sizes) - 1](out)
    one = torch.eye(int(np.prod(sizes)), dtype=torch.float64).reshape(-1, 1, *sizes)
    assert torch.equal(counts, (1 / pool(one)[:, 0].amax(0)).round().long())


def test_scales_that_learn_move_by_the_steps_on_one_side_of_zero() -> None:
    """LSQ's Q is the number of positive steps (Esser et al. 2020, section 2.2): 255 of 0..255, 127 of −128..127."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 1))
    x = torch.randn(4, 1, 6, 6)
    for scheme, steps in (({}, 255), ({"dtype": "int8", "symmetric": True}, 127)):
        recipe = intact8.Recipe(activation=scheme, scales="learned")
        sim = intact8.prepare(net, x, recipe)
        for point in sim.points.values():
            if isinstance(point.learner, LearnedScale):
                elements = sim.graph.nodes[point.tensors[0]].shape[1:]
                wanted = lsq_factor(int(np.prod([d for d in elements if isinstance(d, int)])), steps)
                assert point.learner.factor == pytest.approx(wanted), point.name


def test_scales_of_several_matrices_start_where_they_are_told() -> None:
    """A matrix of one scale takes the largest, so that nothing is clipped."""
    scales = LearnedScales([LearnedScale((2,), 1.0), LearnedScale((1,), 1.0)], 2)
    scales.start(torch.tensor([0.5, 1.0, 2.0, 1.5]))
    assert scales().tolist() == [0.5, 1.0, 2.0, 2.0]


def test_batch_norms_are_computed_here_only_where_nobody_can_tell() -> None:
    class Own(nn.BatchNorm2d):
        pass

    z, hooked, asked = torch.randn(2, 3, 2, 2), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    hooked.register_forward_hook(lambda *_: None)
    asked.register_forward_pre_hook(lambda *_: None)
    assert can_fuse(nn.BatchNorm2d(3), z)
    assert not any(can_fuse(norm, z) for norm in (Own(3), hooked, asked))
    assert not can_fuse(nn.BatchNorm2d(3), z[:1, :, :1, :1])  # torch refuses one value per channel, and says so


@pytest.mark.parametrize("terms", [1, 257, 258, 259, 260, 1000])
def test_matrix_products_in_parts_are_exact(terms: int) -> None:
    longest = 258
    x, w = torch.full((2, terms), 255.0), torch.full((terms, 3), 254.0)
    got = exact_product(x, w, longest)
    assert torch.equal(got.double(), torch.full((2, 3), 255.0 * 254.0 * terms, dtype=torch.float64))
    assert got.dtype == (torch.float32 if terms <= longest else torch.float64)


def test_a_snapshot_is_of_these_very_tensors() -> None:
    a, b = torch.ones(2), torch.ones(2)
    taken = Snapshot([a, b])
    assert taken.current([a, b])
    assert not any(taken.current(others) for others in ([a, b.clone()], [a.clone(), b], [b, a], [a], [a, b, b]))
    b += 1
    assert not taken.current([a, b])


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_every_rank(rank: int, transposed: bool) -> None:
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1](2, 3, 2, stride=2, bias=False)
    if not transposed:
        layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](2, 3, 2, stride=2, bias=False)
    attrs = {
        "stride": [2] * rank, "padding": [0] * rank, "dilation": [1] * rank, "output_padding": [0] * rank, "groups": 1,
        "transposed": transposed,
    }  # fmt: skip
    x = torch.randn(1, 2, *[4] * rank)
    assert torch.equal(exact.convolve(Node("c", "conv", ["x"], attrs), x, layer.weight), layer(x))
