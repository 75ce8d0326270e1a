"""What computes behind the last layers, as a detector's decoding of boxes does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.capture.graph import Graph, Node
from intact8.placement.layer_roles import layer_roles


class Head(nn.Module):
    """Boxes from bins and scores side by side, as YOLO's heads give them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.box, self.score, self.mean = nn.Conv2d(16, 64, 1), nn.Conv2d(16, 5, 1), nn.Conv2d(16, 1, 1, bias=False)
        self.mean.weight.data = torch.arange(16.0).reshape(1, 16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        bins = self.box(y).flatten(2).view(y.shape[0], 4, 16, -1).transpose(1, 2).softmax(1)
        first, second = self.mean(bins).view(y.shape[0], 4, -1).chunk(2, 1)
        places = torch.arange(first.shape[-1], dtype=torch.float32)
        box = torch.cat([places + (second - first) / 2, first + second], 1) * 8
        return torch.cat([box, self.score(y).flatten(2).sigmoid()], 1)


def test_a_detector_s_boxes_and_scores_are_computed_from_float32_sums() -> None:
    torch.manual_seed(0)
    model, data = Head().eval(), [torch.randn(4, 3, 16, 16) for _ in range(8)]
    errors = {}
    for name in ("default", "detector"):
        sim = intact8.prepare(model, data[0], getattr(recipes, name)()).eval()
        intact8.calibrate(sim, data)
        program = intact8.convert(sim)
        assert intact8.verify(program, data[0], sim=sim).mismatches == 0
        with torch.no_grad():
            difference = (model(data[0]) - sim(data[0])).abs()
        errors[name] = float(difference[:, :4].max()), float(difference[:, 4:].max())
    kinds = [op.kind for op in program.ops]
    assert kinds.count("dequantized_conv") == 2 and kinds.count("conv") == 2 and kinds.count("float.conv") == 1
    assert errors["detector"][0] < 0.2 * errors["default"][0] and errors["detector"][1] < 0.02


def test_what_leads_to_a_layer_is_behind_none() -> None:
    names = {"x": "input", "a": "conv", "r": "relu", "b": "conv", "m": "mul", "s": "sigmoid"}
    before = dict(zip(names, ["", *names], strict=False))
    nodes = {
        name: Node(name, op, [before[name]] * (op != "input"), params={"weight": name} if op == "conv" else {})
        for name, op in names.items()
    }
    roles = layer_roles(Graph(nodes, ["x"], ["s"]), {"a": 10, "b": 10})
    assert {name for name, given in roles.items() if "behind" in given} == {"m", "s"}


def test_a_network_that_ends_in_its_last_layer_has_nothing_behind_it() -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.randn(40, 4)
    sim = intact8.prepare(model, x, recipes.detector()).eval()
    intact8.calibrate(sim, x)
    assert [op.kind for op in intact8.convert(sim).ops] == ["quantize", "linear", "dequantized_linear"]
