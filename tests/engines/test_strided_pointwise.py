"""Pointwise convolutions with a stride, which oneDNN computes from memory of another thread, see
``intact8.engines.strided_pointwise``."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.engines import available_engines, get_engine
from intact8.exporting import export
from intact8.program.program import Program


class Skip(nn.Module):
    """A strided skip connection whose input another layer has just computed, with threads that end one by one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.skip = nn.Conv2d(channels, 512, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Run."""
        y: Tensor = self.skip(self.pointwise(self.depthwise(x).relu()) + x)
        return y


def converted(channels: int) -> Program:
    torch.manual_seed(0)
    x = torch.randn(1, channels, 6, 6)
    sim = intact8.prepare(Skip(channels).eval(), x)
    intact8.calibrate(sim, [x])
    return intact8.convert(sim)


@pytest.mark.parametrize("engine", ["native", "onednn", "onnxruntime", "openvino"])
def test_two_threads_compute_what_one_does(engine: str) -> None:
    program = converted(728)
    if engine not in available_engines(program):
        pytest.skip(f"{engine} cannot run it here")
    x = np.random.default_rng(0).standard_normal((1, 728, 6, 6)).astype(np.float32)
    [wanted] = get_engine("reference").prepare(program)({program.inputs[0]: x})
    runner = get_engine(engine).prepare(program, threads=2)
    for _ in range(60):
        [got] = runner({program.inputs[0]: x})
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("channels", "strides"), [(72, 0), (128, 1)])
def test_openvino_is_given_none_that_it_gets_wrong(channels: int, strides: int, tmp_path: Path) -> None:
    """With few threads it is a rare accident there, so that what is written is looked at."""
    pytest.importorskip("openvino")
    export(converted(channels), tmp_path / "skip.xml", "openvino")
    layers = ElementTree.parse(tmp_path / "skip.xml").getroot().iter("layer")
    strided = [d for layer in layers for d in layer.iter("data") if d.get("strides") == "2, 2"]
    assert len(strided) == strides
