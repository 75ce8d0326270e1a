"""Which tensors may have a factor per channel: such whose every maker and reader keeps channels apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import intact8
from intact8.arithmetic.torch_float_ops import apply_act
from intact8.capture.graph import Graph, Node
from intact8.placement.rescale_groups import _seed, homogeneous
from intact8.simulation.simulation import Simulation


@pytest.mark.parametrize(
    "act",
    [
        {"kind": "clamp", "min": 0.0, "max": None}, {"kind": "clamp", "min": 0.0, "max": 6.0},
        {"kind": "clamp", "min": -1.0, "max": None},
        {"kind": "clamp", "min": None, "max": 1.0}, {"kind": "leaky_relu", "slope": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_an_activation_is_homogeneous_where_it_commutes_with_factors(act: dict[str, Any]) -> None:
    x = torch.linspace(-9, 9, 37)
    commutes = all(torch.allclose(apply_act(x * c, act, {}), apply_act(x, act, {}) * c) for c in (0.25, 3.0))
    assert homogeneous(act) == commutes


def prepared(model: nn.Module, x: torch.Tensor, **changes: Any) -> Simulation:
    return intact8.prepare(model.eval(), x, intact8.Recipe(**changes))


@pytest.mark.parametrize("norm", [False, True], ids=["input", "layer norm"])
def test_what_a_linear_layer_reads_may_have_factors(norm: bool) -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4)) if norm else nn.Linear(8, 4)
    (place,) = prepared(model, torch.randn(2, 8), smooth=0.5).equalized
    assert len(place.observed) == 1 and place.readers
    assert prepared(model, torch.randn(2, 8), smooth=0.0).equalized == []


def test_a_range_that_is_given_stays_and_so_has_no_factors() -> None:
    given = intact8.Scheme(fixed=(0.05, 128))
    assert prepared(nn.Linear(8, 4), torch.randn(2, 8), smooth=0.5, inputs={"*": given}).equalized == []


def test_what_convolutions_read_has_factors_where_it_is_smoothed() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert prepared(model, torch.randn(2, 4, 5, 5), smooth=0, equalize=True).equalized == []
    assert [e.name for e in prepared(model, torch.randn(2, 4, 5, 5), smooth=0.5, equalize=True).equalized] == ["0"]


def test_channels_begin_where_a_linear_layer_reads_what_was_rounded() -> None:
    nodes = [Node("x", "quantize", shape=(None, 8)), Node("y", "add", ["x"], shape=(None, 8)), Node("fc", "linear")]
    graph = Graph({n.name: n for n in nodes})
    for name, reader, axis in (("x", "fc", 1), ("x", "y", None), ("y", "fc", None)):
        assert _seed(graph.nodes[name], {name: [reader]}, graph, {}) == axis
