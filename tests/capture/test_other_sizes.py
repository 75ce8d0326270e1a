"""What a model's code asks of sizes: other answers are found by the model itself, and limited, refused or said."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import intact8
from intact8.capture import capture
from intact8.errors import CaptureError, CaptureWarning


class Asking(nn.Module):
    """Doubles its results where a condition on the input holds."""

    def __init__(self, asks: Callable[..., bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.asks = nn.Linear(6, 6), asks

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y * 2 if self.asks(x) else y


BATCHES: dict[str, Callable[[Tensor], bool]] = {
    "more": lambda x: x.shape[0] > 32,
    "numbers": lambda x: x.numel() > 192,
    "length": lambda x: len(x) >= 33,
    "not less": lambda x: not x.size(0) < 33,
    "equal": lambda x: x.shape[0] == 24,
    "odd": lambda x: x.shape[0] % 2 == 1,
    "few": lambda x: x.shape[0] < 4,
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_branch_on_the_number_of_samples_fixes_it_and_says_so(name: str) -> None:
    with pytest.warns(CaptureWarning, match="no other batch size") as given:
        program = intact8.quantize(Asking(BATCHES[name]).eval(), torch.randn(64, 16, 6).unbind(0))
    assert program.tensors[program.inputs[0]].shape == (16, 6)
    if name in ("more", "equal", "odd"):
        assert "test_other_sizes.py" in str(given[0].message)


def test_a_branch_that_does_not_matter_does_not_fix_it() -> None:
    class Same(Asking):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y.flip(0).flip(0) if self.asks(x) else y

    captured = capture(Same(BATCHES["more"]).eval(), torch.randn(16, 6))
    assert captured.graph.dynamic_batch and not captured.questions


def test_a_branch_far_beyond_the_example_is_said() -> None:
    with pytest.warns(CaptureWarning, match="something else for many samples.*less than 1001|at most 1000"):
        program = intact8.quantize(Asking(lambda x: x.shape[0] > 1000).eval(), torch.randn(64, 6))
    assert program.tensors[program.inputs[0]].shape == (None, 6)


def test_another_result_for_one_sample_is_said() -> None:
    class Squeezed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = super().forward(x)
            return y.squeeze()

    with pytest.warns(CaptureWarning, match=r"one sample alone.*squeeze\(-1\)"):
        program = intact8.quantize(Squeezed(nn.Linear(6, 1)).eval(), torch.randn(64, 6))
    assert program.run(torch.randn(5, 6)).shape == (5,)


def test_an_example_of_one_sample_is_what_the_program_computes() -> None:
    model, data = Asking(lambda x: x.shape[0] == 1).eval(), list(torch.randn(64, 1, 6).unbind(0))
    with pytest.warns(CaptureWarning, match="something else for one sample, as the example is"):
        program = intact8.quantize(model, data)
    error = (program.run(data[0]) - model(data[0])).norm() / model(data[0]).norm()
    assert float(error) < 0.1


LENGTHS: dict[str, tuple[Callable[[Tensor], bool], tuple[int, int | None]]] = {
    "equal": (lambda x: x.shape[1] == 12, (1, 11)),
    "two": (lambda x: x.shape[1] in (5, 12), (6, 11)),
    "one": (lambda x: x.shape[1] == 1, (2, None)),
    "more": (lambda x: x.shape[1] > 10, (1, 10)),
    "a fraction": (lambda x: x.shape[1] / 4 <= 1.0, (5, None)),
    "not a fraction": (lambda x: not x.shape[1] / 4 > 1.5, (7, None)),
    "twice": (lambda x: 2 * x.shape[1] + 1 < 10, (5, None)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_another_branch_are_outside_of_the_limits(name: str) -> None:
    asks, limits = LENGTHS[name]
    captured = capture(Asking(asks).eval(), torch.randn(4, 8, 6), dynamic_shapes={"x": {1: "steps"}})
    assert captured.graph.dimensions["steps"] == limits


def test_two_answers_that_meet_are_told_apart_behind_where_they_do() -> None:
    class Scaled(Asking):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y * (x.shape[1] / 4) if self.asks(x) else y

    model = Scaled(lambda x: x.shape[1] / 4 > 1.0).eval()
    captured = capture(model, torch.randn(4, 8, 6), dynamic_shapes={"x": {1: Dim("steps", max=64)}})
    assert captured.graph.dimensions["steps"] == (4, 64)


def test_a_length_that_does_not_matter_is_inside() -> None:
    class Same(Asking):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y.flip(0).flip(0) if self.asks(x) else y

    captured = capture(
        Same(lambda x: x.shape[1] == 12).eval(), torch.randn(4, 8, 6), dynamic_shapes={"x": {1: "steps"}}
    )
    assert captured.graph.dimensions["steps"] == (1, None)


@pytest.mark.parametrize(
    "asks",
    [lambda x: x.numel() < 3000, lambda x: x.shape[1] > x.shape[2], lambda x: x.shape[1] == x.shape[2]],
    ids=["product", "order", "equal"],
)
def test_conditions_on_several_sizes_are_refused(asks: Callable[[Tensor], bool]) -> None:
    with pytest.raises(CaptureError, match="the model works only where"):
        capture(
            Asking(asks).eval(),
            torch.randn(4, 7, 9, 6),
            dynamic_shapes={"x": {1: "height", 2: "width"}},
            dynamic_batch=False,
        )


def test_sizes_that_are_too_small_together_are_outside_of_the_limits() -> None:
    model, names = Asking(lambda x: x.numel() > 300).eval(), {1: "height", 2: "width"}
    captured = capture(model, torch.randn(4, 7, 9, 6), dynamic_shapes={"x": names}, dynamic_batch=False)
    assert captured.graph.dimensions == {"height": (7, None), "width": (9, None)}


class Second(nn.Module):
    """Takes one step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x[:, 1])


def test_a_step_that_is_taken_is_the_least_length() -> None:
    captured = capture(Second().eval(), torch.randn(4, 8, 6), dynamic_shapes={"x": {1: "steps"}})
    assert captured.graph.dimensions["steps"] == (2, None)


POSITIONS: dict[str, Callable[[int], Tensor]] = {
    "down": lambda n: torch.arange(n - 1, -1, -1).float(),
    "down in floats": lambda n: torch.arange(n - 1, -1, -1.0),
    "from a float": lambda n: torch.arange(0.0, n),
    "from 1.0": lambda n: torch.arange(1.0, n + 1),
    "in twos": lambda n: torch.arange(0, 2 * n, 2).float(),
    "of both signs": lambda n: torch.arange(n - 1, -n, -1.0)[:n],
}


class Placed(nn.Module):
    """Adds positions."""

    def __init__(self, positions: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.layer, self.positions = nn.Linear(6, 6), positions

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.positions(x.shape[1])[:, None]
        return y


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_counted_in_any_way(name: str) -> None:
    torch.manual_seed(0)
    model = Placed(POSITIONS[name]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = intact8.quantize(model, [torch.randn(16, n, 6) for n in (8, 12, 5)])
    x = torch.randn(3, 11, 6)
    with torch.no_grad():
        expected = model(x)
    found = program.run(x)
    assert found.shape == expected.shape and float((found - expected).norm() / expected.norm()) < 0.02
