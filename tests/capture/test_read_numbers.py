"""Numbers that are read from tensors: table[t], x * t.item()."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.errors import CaptureError

Call = Callable[["Timed", Tensor, Tensor], Tensor]

CALLS: dict[str, Call] = {
    "a row": lambda m, x, t: m.layer(x) * m.table[t],
    "a column": lambda m, x, t: m.layer(x) * m.table[:, t][:8],
    "an element": lambda m, x, t: m.layer(x) * m.table[t, t + 1],
    "counted on": lambda m, x, t: m.layer(x) * m.table[2 * t.item() + 1],
    "counted back": lambda m, x, t: m.layer(x) * m.table[9 - t.item()],
    "an own row": lambda m, x, t: x[:, t.item()],
    "a factor": lambda m, x, t: m.layer(x * t.item()),
    "a limit": lambda m, x, t: m.layer(torch.where(x > t.item(), x, 0)),
    "twice": lambda m, x, t: m.layer(x) * m.table[t.item()] + t.item(),
}


class Timed(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.layer, self.call = nn.Linear(8, 8), call
        self.register_buffer("table", torch.linspace(0.1, 1, 96).reshape(12, 8).contiguous())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.call(self, x, t)


@cache
def chooses_rows() -> bool:
    """Return whether this torch exports a row that is chosen by a number in a tensor; 2.8 does not."""
    try:
        torch.export.export(Timed(CALLS["a row"]), (torch.rand(8, 8), torch.tensor(3)), strict=False)
    except RuntimeError:
        return False
    return True


def require_chosen_rows() -> None:
    if not chooses_rows():
        pytest.skip("this torch exports no row that is chosen by a number")


INDEXED = ("a row", "a column", "an element")
"""Calls that choose several rows where the index has a dimension."""


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, ()) for name in CALLS), *((name, (1,)) for name in CALLS if name not in INDEXED)]
)
def test_a_number_is_a_tensor_of_one_element(name: str, shape: tuple[int, ...]) -> None:
    if name not in ("a factor", "a limit"):
        require_chosen_rows()
    torch.manual_seed(0)
    model = Timed(CALLS[name]).eval()
    data = [(torch.rand(8, 8), torch.full(shape, i % 4)) for i in range(6)]
    program = intact8.quantize(model, data)
    assert intact8.verify(program, data[:2]).exact
    for k in range(4):
        x, t = torch.rand(3, 8), torch.full(shape, k)
        assert (model(x, t) - program.run(x, t)).abs().max() < 0.05 * model(x, t).abs().max() + 0.02, k


def test_what_is_written_meanwhile_does_not_change_a_number() -> None:
    def counted(m: Timed, x: Tensor, t: Tensor) -> Tensor:
        t = t.clone()
        k = t.item()
        t += 1
        return m.layer(x) * m.table[k] + t

    require_chosen_rows()
    model = Timed(counted).eval()
    data = [(torch.rand(8, 8), torch.tensor(i % 4)) for i in range(6)]
    program = intact8.quantize(model, data)
    for x, t in data:
        assert (model(x, t) - program.run(x, t)).abs().max() < 0.05


def scaled(m: Timed, x: Tensor, t: Tensor) -> Tensor:
    y = m.layer(x)
    y.mul_(t.item())
    return y + m.table[t]


def put(m: Timed, x: Tensor, t: Tensor) -> Tensor:
    y = m.layer(x)
    y[:, t] = 7.0
    return y


def seen_later(m: Timed, x: Tensor, t: Tensor) -> Tensor:
    y = m.layer(x)
    column = y[:, t]
    y += 1
    return column


@pytest.mark.parametrize("call", [scaled, put, seen_later])
def test_what_is_written_into_a_tensor_is_not_lost(call: Call) -> None:
    data = [(torch.rand(8, 8), torch.tensor(3))]
    with pytest.raises(CaptureError, match=r"test_read_numbers.py:\d+: (a number|control flow)"):
        intact8.quantize(Timed(call).eval(), data)


def test_a_number_that_sizes_depend_on_is_refused() -> None:
    model = Timed(lambda m, x, t: m.layer(x) * torch.ones(t.item()).sum())
    with pytest.raises(CaptureError, match=r"test_read_numbers.py:\d+"):
        intact8.quantize(model.eval(), [(torch.rand(8, 8), torch.tensor(3))])
