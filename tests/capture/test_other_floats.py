"""What a model computes in other floats than float32, a program computes in float32, and says so once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.capture.trace import capture
from intact8.errors import CaptureWarning


class Parts(nn.Module):
    """Two layers, and what happens between them; a shift and a factor in float64, as numpy gives them."""

    def __init__(self, between: Callable[["Parts", Tensor], Tensor]) -> None:  # noqa: UP037 - the class is not there yet
        super().__init__()
        self.first, self.last, self.between = nn.Linear(8, 16), nn.Linear(16, 4), between
        self.inner = nn.Linear(16, 16).bfloat16()
        self.register_buffer("shift", torch.arange(16, dtype=torch.float64) / 10)
        self.factor = nn.Parameter(torch.rand(16, dtype=torch.float64) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self, self.first(x)).float())
        return y


def normalized(_: Parts, x: Tensor) -> Tensor:
    y = x.double()
    return (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1e-5).sqrt()


def mixed(net: Parts, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y: Tensor = net.last(x.relu()) @ net.last.weight
    return y


def masked(_: Parts, x: Tensor) -> Tensor:
    y = x[:, None].double()
    scores = (y.transpose(1, 2) * y / 4).masked_fill(torch.ones(16, 16).triu(1).bool(), torch.finfo(torch.float64).min)
    return (scores.softmax(-1) @ y.transpose(1, 2)).flatten(1)


WAYS: dict[str, tuple[Callable[[Parts, Tensor], Tensor], str]] = {
    "double": (normalized, "float64"),
    "half": (lambda _, x: (x.half() * 2).relu(), "float16"),
    "autocast": (mixed, "bfloat16"),
    "buffer": (lambda net, x: x - net.shift, "float64"),
    "parameter": (lambda net, x: x * net.factor, "float64"),
    "layer": (lambda net, x: net.inner(x.bfloat16()), "bfloat16"),
    "minimum": (masked, "float64"),
}


@pytest.mark.parametrize("name", WAYS)
def test_other_floats_are_computed_in_float32(name: str) -> None:
    between, dtype = WAYS[name]
    torch.manual_seed(0)
    net, x = Parts(between).eval(), torch.randn(64, 8)
    with pytest.warns(CaptureWarning, match=f"computed in float32: what the model computes in {dtype}.*test_other_fl"):
        sim = intact8.prepare(net, example_inputs=(x[:4],))
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    with torch.no_grad():
        expected, found = net(x), sim(x)
    assert found.dtype == torch.float32
    assert float(torch.nn.functional.cosine_similarity(expected.flatten(), found.flatten(), 0)) > 0.995
    report = intact8.verify(program, [x])
    assert report.mismatches == 0, str(report)


def test_a_note_of_the_first_place_of_each_and_outputs_in_float32() -> None:
    net = Parts(lambda _, x: x.double().half().double())
    wide = nn.Sequential(net, nn.Softmax(-1)).eval()
    wide.register_forward_hook(lambda *given: given[2].double())
    captured = capture(wide, (torch.randn(3, 8),))
    assert [note.partition(".py")[0] for note in captured.notes] == [
        f"computed in float32: what the model computes in {name} from here on: 0 (Parts), test_other_floats"
        for name in ("float64", "float16")
    ]
    assert captured.graph.nodes[captured.graph.outputs[0]].dtype == "float32"


def test_a_parameter_in_float64_stays_trained() -> None:
    net, x = Parts(WAYS["parameter"][0]).eval(), torch.randn(64, 8)
    with pytest.warns(CaptureWarning, match="computed in float32"):
        sim = intact8.prepare(net, example_inputs=(x[:4],))
    intact8.calibrate(sim, [x])
    sim.train()
    sim(x).square().mean().backward()
    gradient = dict(sim.named_parameters())["factor"].grad
    assert gradient is not None and bool(gradient.abs().sum() > 0)
