"""Names, shared modules, in-place operations, inputs, outputs and the batch dimension."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intact8.capture.execute import run_float
from intact8.capture.trace import capture
from intact8.errors import InputError

from .helpers import assert_same, check, randomize_batch_norms, run


class Block(nn.Module):
    """One ReLU used twice and a residual added in place."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


@pytest.mark.parametrize("inplace", [True, False])
def test_block_with_one_relu_used_twice(inplace: bool) -> None:
    model = nn.Sequential(Block(inplace), Block(inplace))
    randomize_batch_norms(model)
    graph = check(model, torch.randn(2, 4, 6, 6), batches=(1, 2, 3, 4, 5)).graph
    assert list(graph.nodes)[:8] == [
        "input", "0.conv1", "0.bn1", "0.relu", "0.conv2", "0.bn2", "0.add", "0.relu_1",
    ]  # fmt: skip
    assert graph.nodes["0.add"].inputs == ["0.bn2", "input"]
    assert graph.nodes["1.conv1"].inputs == ["0.relu_1"]
    assert graph.nodes["0.relu_1"].module == "0.relu"
    assert graph.nodes["0.relu_1"].module_type == "ReLU"


class M(nn.Module):
    """A module from a function; ``parts`` become children."""

    def __init__(self, function: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def test_shared_convolution_is_two_nodes_with_one_weight() -> None:
    graph = check(M(lambda m, x: m.conv(m.conv(x)), conv=nn.Conv2d(3, 3, 1)), torch.randn(2, 3, 4, 4)).graph
    assert list(graph.nodes)[1:] == ["conv", "conv_1"]
    assert graph.nodes["conv"].params == graph.nodes["conv_1"].params


def inplace_on_both_users(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    z = y
    z.relu_()
    return y + z


def inplace_on_copy(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    z = y.clone().relu_()
    return y + z


def inplace_on_part_of_split(m: nn.Module, x: Tensor) -> Tensor:
    a, b = (x * 1.5).chunk(2, 1)
    a.relu_()
    return torch.cat([b, a], 1)


def inplace_under_no_grad(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.relu_()
    return y + 1


@pytest.mark.parametrize(
    "function", [inplace_on_both_users, inplace_on_copy, inplace_on_part_of_split, inplace_under_no_grad]
)
def test_in_place(function: Any) -> None:
    check(M(function), torch.randn(2, 4, 3))


def inplace_on_view(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    y[:, :1].relu_()
    return y


def inplace_on_base_of_view(m: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    v = y.view(-1, 12)
    y.relu_()
    return v


@pytest.mark.parametrize("function", [inplace_on_view, inplace_on_base_of_view])
def test_in_place_on_a_view_used_later(function: Any) -> None:
    check(M(function), torch.randn(2, 4, 3))


@dataclass
class Output:
    """As transformer libraries return them."""

    logits: Tensor
    hidden: Any = None


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("function", "structure"),
    [
        (lambda m, x: {"out": x + 1, "aux": x * 2}, {"dict": {"out": 0, "aux": 1}}),
        (lambda m, x: (x + 1, [x * 2, {"a": x.relu()}]), {"tuple": [0, {"list": [1, {"dict": {"a": 2}}]}]}),
        (
            lambda m, x: Output(x + 1, [x * 2]),
            {"object": f"{__name__}.Output", "fields": {"logits": 0, "hidden": {"list": [1]}}},
        ),
        (lambda m, x: Pair(x + 1, x), {"object": f"{__name__}.Pair", "fields": {"first": 0, "second": 1}}),
        (lambda m, x: {"a": x, "n": None, "same": x}, {"dict": {"a": 0, "n": {"none": True}, "same": 1}}),
    ],
    ids=["dict", "nested", "dataclass", "namedtuple", "none-and-input"],
)
def test_outputs_keep_their_structure(function: Any, structure: Any) -> None:
    model = M(function)
    captured = capture(model, torch.randn(2, 3))
    assert captured.graph.structure == structure
    x = torch.randn(4, 3)
    ours, theirs = run(captured, x), model(x)
    assert type(ours) is type(theirs)
    if isinstance(theirs, Output):
        ours, theirs = vars(ours), vars(theirs)
    assert_same(ours, theirs)


class TwoInputs(nn.Module):
    """Two tensors, a flag and a nested dict."""

    def forward(
        self, image: Tensor, extra: dict[str, Tensor], flip: bool = False, bias: Tensor | None = None
    ) -> Tensor:
        y = image + extra["shift"]
        if flip:
            y = -y
        return y if bias is None else y + bias


def test_several_inputs_by_position_and_by_name() -> None:
    model = TwoInputs()
    image, extra, bias = torch.randn(2, 3), {"shift": torch.randn(2, 3)}, torch.randn(2, 3)
    by_name = capture(model, {"image": image, "extra": extra, "flip": True, "bias": bias})
    assert by_name.input_keys == ("image", "extra.shift", "bias")
    assert by_name.graph.inputs == ["image", "extra.shift", "bias"]
    image, extra, bias = torch.randn(5, 3), {"shift": torch.randn(5, 3)}, torch.randn(5, 3)
    expected = model(image, extra, True, bias)
    assert_same(run(by_name, image, extra, True, bias), expected)
    assert_same(run(by_name, bias=bias, extra=extra, flip=True, image=image), expected)
    with pytest.raises(InputError, match="flip is fixed to True"):
        run(by_name, image, extra, False, bias)
    with pytest.raises(InputError, match="bias"):
        run(by_name, image, extra, True)
    by_position = capture(model, (image, extra))
    assert_same(run(by_position, image, extra=extra), model(image, extra))


def test_static_batch_when_the_model_specializes() -> None:
    model = M(lambda m, x: x.reshape(2, 6) * 1 if x.shape[0] == 2 else x.flatten(1) * 2)
    captured = capture(model, torch.randn(2, 6))
    assert not captured.graph.dynamic_batch
    assert any("batch size fixed" in note for note in captured.notes)
    assert captured.graph.nodes[captured.graph.outputs[0]].shape == (2, 6)


def test_dynamic_batch_can_be_declined() -> None:
    graph = capture(nn.Linear(3, 2), torch.randn(4, 3), dynamic_batch=False).graph
    assert not graph.dynamic_batch and graph.nodes["input"].shape == (4, 3)


def test_tied_parameters_have_one_name_and_aliases() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    captured = check(model, torch.randn(2, 3))
    assert captured.graph.nodes["2"].params["weight"] == "0.weight"
    assert captured.aliases == {"2.weight": "0.weight"}
    assert captured.parameters["0.weight"] is model[0].weight
    assert set(captured.parameters) | set(captured.buffers) | set(captured.aliases) == set(model.state_dict())


def test_computed_weights_are_constants_that_follow_parameters() -> None:
    conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    captured = check(nn.Sequential(conv), torch.randn(2, 3, 5, 5))
    followed = captured.derived[captured.graph.nodes["0"].params["weight"]]
    assert all(source.startswith("0.parametrizations") for source in followed.sources) and not captured.notes


def test_constants_changed_in_place_while_building_a_mask() -> None:
    def function(m: nn.Module, x: Tensor) -> Tensor:
        mask = torch.zeros(4, 4)
        y = x + mask
        mask[1:, :2] = 5
        mask[0] += 1
        return y * mask

    check(M(function), torch.randn(2, 4, 4))


def test_run_float_is_differentiable() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Hardswish(), nn.Flatten(), nn.Linear(27, 2)).eval()
    captured = capture(model, torch.randn(2, 2, 5, 5))
    x = torch.randn(2, 2, 5, 5)
    values = run_float(captured.graph, captured.tensors(), [x])
    values[captured.graph.outputs[0]].square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_functional_names_take_the_surrounding_module() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.fc(x)) + x

    graph = check(nn.Sequential(Inner(), nn.Hardtanh(-1, 2)), torch.randn(2, 3)).graph
    assert list(graph.nodes) == ["input", "0.fc", "0.gelu", "0.add", "1"]
