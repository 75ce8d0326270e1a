"""simulation == reference == onednn, on every integer tensor of random networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulation.networks import Builder, quantized

import intact8
from intact8.program.file import digest

RECIPES = {
    "default": intact8.recipes.default,
    "accurate": intact8.recipes.accurate,
    "w4a8": intact8.recipes.w4a8,
    "symmetric": intact8.recipes.symmetric,
    "full_range": intact8.recipes.full_range,
    "per_tensor": lambda: intact8.Recipe(weight={"granularity": "per_tensor"}),
    "fused": lambda: intact8.Recipe(residual="fused"),
    "leaky table": lambda: intact8.Recipe(leaky="table", equalize=False),
}


@pytest.mark.parametrize("examples", [30, pytest.param(120, marks=pytest.mark.long)])
def test_random_networks(examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(
        seed=st.integers(0, 10**6),
        length=st.integers(1, 9),
        recipe=st.sampled_from(sorted(RECIPES)),
        batch=st.integers(1, 5),
    )
    def check(seed: int, length: int, recipe: str, batch: int) -> None:
        assert_exact(seed, length, recipe, batch)

    check()


def assert_exact(seed: int, length: int, recipe: str, batch: int) -> None:
    net, shape = Builder(seed, length).build()
    sim, program = quantized(net, torch.randn(32, *shape), RECIPES[recipe]())
    report = intact8.verify(program, 1.5 * torch.randn(batch, *shape), sim=sim)
    assert report.exact, (report.first, report.by_engine)
    assert report.elements > 0
    # Multipliers that are tie-free stay what they are: solving again from the same scales changes nothing.
    sim.resolve(from_observers=False)
    assert digest(intact8.convert(sim)) == digest(program)
