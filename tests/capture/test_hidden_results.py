"""Functions that are not defined everywhere do not see the elements whose results a mask hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.capture.execute import run_float
from intact8.capture.graph import Graph
from intact8.errors import CalibrationError

from .helpers import check


class Behind(nn.Module):
    """A function of a layer's results, and a parameter."""

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)
        self.sizes = nn.Parameter(torch.rand(6) + 0.5)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x), self)


def filled(y: Tensor) -> Tensor:
    found = torch.log(y)
    found.masked_fill_(y <= 0, 0.0)
    return found * 2


def written(y: Tensor) -> Tensor:
    found = torch.log(y)
    found[y <= 0] = 0.0
    return found


def chosen(y: Tensor) -> Tensor:
    found = y.clone()
    inside = y.abs() < 1
    found[inside] = torch.atanh(y[inside])
    return found


def shared(y: Tensor) -> Tensor:
    found, mask = torch.log(y), y > 0
    return torch.where(mask, found, 0.0) + torch.where(~mask, 1.0, found.exp())


HIDDEN: dict[str, Callable[[Tensor, Any], Any]] = {
    "log": lambda y, m: torch.where(y > 0, torch.log(y), 0.0),
    "on the right": lambda y, m: torch.where(y > 0, 0.0, torch.log(-y)),
    "by an opposite": lambda y, m: torch.where(~(y > 0), 0.0, y.sqrt() * 2 + 1),
    "filled later": lambda y, m: torch.log(y.relu()).masked_fill(y <= 0, 0.0),
    "filled in place": lambda y, m: filled(y),
    "written": lambda y, m: written(y),
    "chosen": lambda y, m: chosen(y),
    "standard colours": lambda y, m: torch.where(y > 0.003, y.pow(1 / 2.4) * 1.055 - 0.055, y * 12.92),
    "special": lambda y, m: torch.where(y > 0, torch.special.xlogy(2.0 * y, y), y),
    "open interval": lambda y, m: torch.where(y.abs() < 1, torch.atanh(y), y),
    "mean of some": lambda y, m: torch.where(
        (y > 9).sum(1, keepdim=True) > 0, y / (y > 9).sum(1, keepdim=True), torch.zeros(())
    ),
    "of rows": lambda y, m: torch.where(y.sum(1, keepdim=True) > 0, y.sum(1, keepdim=True).log() * y, 0.0),
    "two branches": lambda y, m: torch.where(y > 0, y.abs().sqrt(), y) + torch.where(y > 0, y.rsqrt(), -y),
    "nested": lambda y, m: torch.where(y > 0, torch.where(y > 0.2, (y - 0.1).log(), 0.0), 0.0),
    "shared": lambda y, m: shared(y),
    "entropy": lambda y, m: torch.special.entr(y.relu()),
}

OTHERWISE: dict[str, Callable[[Tensor, Any], Any]] = {
    "of a parameter": lambda y, m: torch.where(y > 0, torch.log(m.sizes), 0.0),
    "of a norm": lambda y, m: torch.where(y > 0, torch.rsqrt(y.pow(2).mean(1, keepdim=True) + 1e-6) * y, 0.0),
    "of a direction": lambda y, m: F.normalize(y, dim=1).masked_fill(y > 0, 0.0),
    "square": lambda y, m: torch.where(y > 0, y**2, 0.0),
    "two masks": lambda y, m: (lambda z: torch.where(y > 0, z, 0.0) + torch.where(y > 1, z, 0.0))(y.abs().log()),
    "read by others": lambda y, m: (lambda z: (torch.where(y > 0, z, 0.0), z.sum(1)))(y.abs().log()),
    "a mask of results": lambda y, m: (lambda z: torch.where(z > 0, z, 0.0))(y.abs().log()),
}


def fills(graph: Graph) -> int:
    """Return how many operations put numbers in the places of a mask."""
    return sum(node.op == "masked_fill" for node in graph)


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_results_are_finite_and_others_as_they_were(name: str) -> None:
    torch.manual_seed(1)
    model, x = Behind(HIDDEN[name]), torch.randn(32, 6)
    captured = check(model, x)
    values = run_float(captured.graph, captured.tensors(), [x])
    assert all(bool(value.isfinite().all()) for value in values.values())
    program = intact8.quantize(model.eval(), x)
    assert torch.equal(program.run(x, engine="native"), program.run(x))


@pytest.mark.parametrize("name", OTHERWISE)
def test_nothing_is_replaced_where_it_is_read_or_defined(name: str) -> None:
    captured = check(Behind(OTHERWISE[name]), torch.randn(32, 6))
    numbers = (node for node in captured.graph if node.op == "masked_fill" and node.attrs["value"])
    assert not [*numbers] and fills(captured.graph) <= 2


def test_other_readers_see_the_true_values() -> None:
    model = Behind(lambda y, m: (lambda z: (torch.where(y > 0, z, 0.0), z))(torch.log(y))).eval()
    x = torch.randn(32, 6)
    captured = capture(model, x)
    values = run_float(captured.graph, captured.tensors(), [x])
    assert torch.equal(values[captured.graph.outputs[1]].isnan(), model(x)[1].isnan())
    with pytest.raises(CalibrationError, match="NaN"):
        intact8.quantize(model, x)


def test_masks_of_rows_are_no_masks_of_columns() -> None:
    def rows(y: Tensor, m: Any) -> Tensor:
        found = torch.log(y.abs())
        found[y.sum(1) > 0] = 0.0
        return found

    model, x = Behind(rows).eval(), torch.randn(6, 6)
    captured = capture(model, x, dynamic_batch=False)
    values = run_float(captured.graph, captured.tensors(), [x])
    torch.testing.assert_close(values[captured.graph.outputs[0]], model(x))
