"""Sums that float32 does not hold are added in parts, each of which reads its own channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("openvino")

import intact8
from intact8.engines.openvino import products


def heavy(layer: nn.Module) -> nn.Module:
    """Fill a layer with weights that are all as large as can be."""
    with torch.no_grad():
        next(layer.parameters()).uniform_(-1, 1).sign_()
    return layer.eval()


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(2048, 4), torch.rand(3, 2048)),
        (nn.Conv2d(256, 4, 3), torch.rand(2, 256, 5, 5)),
        (nn.ConvTranspose2d(1024, 4, 2, stride=2), torch.rand(2, 1024, 3, 3)),
        (nn.Conv1d(2, 4, 1500, groups=2), torch.rand(2, 2, 1510)),
    ],
    ids=["linear", "conv", "transposed", "grouped"],
)
def test_parts_of_a_heavy_sum_are_exact_and_no_larger_than_the_whole(layer: nn.Module, x: torch.Tensor) -> None:
    torch.manual_seed(0)
    sim = intact8.prepare(heavy(layer), (x,), intact8.Recipe(between_layers="integer"))
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    assert (program.run(x.numpy(), engine="openvino") == program.run(x.numpy(), engine="reference")).all()
    (op,) = (op for op in program.ops if "weight" in op.arrays)
    shares = products._split(op, 255)
    if op.attrs.get("groups", 1) == 1:
        assert shares is not None and len(shares) > 1
        assert sum(w.size for w in shares) == op.arrays["weight"].size
    else:
        assert shares is None and len(products._dealt(op, 255)) > 1
