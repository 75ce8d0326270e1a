"""The multipliers of a program are the ratios of the scales of the tensors they stand between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.simulation.networks import Builder, quantized
from tests.simulation.test_exact import RECIPES
from torch import Tensor, nn

import intact8
from intact8.arithmetic.dimensions import known
from intact8.opset.op import Op
from intact8.program.program import Program


def ratios(program: Program, op: Op) -> Iterator[tuple[float, float]]:
    """Every multiplier beside the ratio of scales it stands for; of the sums of weights, those of the residual."""
    scale = {name: t.scale or 0.0 for name, t in program.tensors.items()}
    t, y = op.attrs, scale[op.name]
    if op.kind == "add":
        yield from ((abs(a) / t["b"], scale[x] / y) for a, x in zip(t["a"], op.inputs, strict=True))
    elif op.kind == "mul":
        yield t["a"] / t["b"], scale[op.inputs[0]] * scale[op.inputs[1]] / y
    elif op.kind == "mean":
        shape = program.tensors[op.inputs[0]].shape
        yield t["a"] / t["b"], scale[op.inputs[0]] / (math.prod(known([shape[d] for d in t["dims"]])) * y)
    elif op.kind in ("avg_pool", "adaptive_avg_pool"):
        yield from ((a / b, scale[op.inputs[0]] / (n * y)) for n, a, b in t["multipliers"])
    elif op.kind == "conv" and t["residual_a"]:
        yield from ((t["residual_a"] / b, scale[op.inputs[1]] / y) for b in op.arrays["b"].tolist())


@pytest.mark.parametrize("recipe", ["default", "fused", "symmetric"])
@pytest.mark.parametrize("seed", [0, 4, 6, 8, 10])
def test_they_are_the_ratios_of_scales(recipe: str, seed: int) -> None:
    net, shape = Builder(1000 + seed, 9).build()
    x = torch.randn(32, *shape)
    _, program = quantized(net, x, RECIPES[recipe]())
    found = [pair for op in program.ops for pair in ratios(program, op)]
    assert found
    assert max(abs(multiplier / ratio - 1) for multiplier, ratio in found) < 2e-5
    with torch.no_grad():
        want = leaves(net(x))
    # Both the simulation and the program could follow the same wrong scale: the numbers must be the network's, too.
    assert all(snr(a, b) > 20 for a, b in zip(want, leaves(program.run(x)), strict=True) if a.std() > 0)


def leaves(result: Any) -> list[Tensor]:
    return list(result.values()) if isinstance(result, dict) else [result]


def snr(want: Tensor, got: Tensor) -> float:
    """Signal to noise in dB."""
    return float(10 * torch.log10(want.var() / ((want - got) ** 2).mean()))


@pytest.mark.parametrize("slope", [0.1, 0.25, -0.5])
def test_multipliers_of_negative_sums_are_the_slope_times_those_of_positive_ones(slope: float) -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.LeakyReLU(slope)).eval()
    program = intact8.quantize(model, torch.randn(8, 4, 9, 9))
    (arrays,) = [op.arrays for op in program.ops if op.kind == "conv"]
    ratio = arrays["a_neg"] / arrays["b_neg"] / (arrays["a"] / arrays["b"])
    np.testing.assert_allclose(ratio, slope, rtol=1e-3)
