"""Answers in another form than that of the labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import Bed
from torch import Tensor, nn

from intact8.diagnose.doctor.answer_repairs import BOXES


def boxes() -> tuple[Any, Tensor, Tensor]:
    """Return a network that says middle and size of a box, its inputs and its answers."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).eval(), torch.randn(256, 8)
    with torch.no_grad():
        net[2].bias[2:] += 2
        return net, x, net(x)


def test_boxes_are_taken_for_those_of_another_form() -> None:
    net, x, y = boxes()
    corners = torch.cat([y[:, :2] - y[:, 2:] / 2, y[:, :2] + y[:, 2:] / 2], 1)
    finding = Bed(net, x, corners).said()
    assert (finding.place, finding.cause) == ("network", "float_network_wrong")
    assert "its boxes are middle and size, and labels corners" in finding.message, str(finding)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("corners, and labels middle and size", "middle and size, and labels corners"),
        ("a corner and size, and labels both corners", "both corners, and labels a corner and size"),
        ("a corner and size, and labels middle and size", "middle and size, and labels a corner and size"),
        ("x before y, and labels y before x", "x before y, and labels y before x"),
    ],
)
def test_every_form_has_a_way_back(one: str, other: str) -> None:
    _, _, y = boxes()
    a, b = BOXES[other](*BOXES[one](y[:, :2], y[:, 2:]))
    assert torch.allclose(torch.cat([a, b], 1), y, atol=1e-6)
