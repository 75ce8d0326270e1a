"""Capturing LSTM, GRU, RNN and their cells: a node per layer, with the model's own numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from intact8.capture.recurrent_custom_ops import traceable
from intact8.capture.trace import capture
from intact8.errors import CaptureError

from .helpers import assert_same, check, run

KINDS: list[Any] = [nn.LSTM, nn.GRU, nn.RNN]
CELLS: list[Any] = [nn.LSTMCell, nn.GRUCell, nn.RNNCell]


class Around(nn.Module):
    """A network inside another module, so that its nodes have a path."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.rnn = inner

    def forward(self, x: Tensor) -> Any:
        return self.rnn(x)


class Stateful(nn.Module):
    """Initial states computed from the input."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.rnn, self.first = kind(5, 6, **options), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Any:
        h = torch.stack([self.first(x[:, t]) for t in range(2)])
        return self.rnn(x.transpose(0, 1), (h, 0.5 * h) if isinstance(self.rnn, nn.LSTM) else h)


class Loop(nn.Module):
    """A cell in a Python loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Any:
        state, seen = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(seen, 1), state


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "bias": False}])
def test_projections_are_computed_step_by_step(options: dict[str, bool]) -> None:
    captured = check(Around(nn.LSTM(5, 6, 2, batch_first=True, proj_size=3, **options)), torch.randn(2, 4, 5))
    assert {"linear", "mul"} <= {n.op for n in captured.graph}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("directions", "layers"), [(1, 1), (2, 2)])
def test_layers(kind: Any, directions: int, layers: int) -> None:
    rnn = kind(5, 6, layers, batch_first=True, bidirectional=directions == 2, dropout=0.5 if layers > 1 else 0.0)
    captured = check(Around(rnn), torch.randn(2, 7, 5))
    nodes = [n for n in captured.graph if n.op == kind.__name__.lower()]
    assert [n.name for n in nodes] == (["rnn"] if layers == 1 else ["rnn.layer0", "rnn.layer1"])
    assert captured.graph.dynamic_batch and not any(n.attrs["states"] for n in nodes)
    assert sum(n.op == "dropout" for n in captured.graph) == layers - 1
    named = {name for n in nodes for name in n.params.values()}
    assert named == {f"rnn.{name}" for name, _ in rnn.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_no_bias_and_time_first(kind: Any) -> None:
    check(Around(kind(5, 6, bias=False)), torch.randn(7, 2, 5), batches=())
    check(kind(5, 6, nonlinearity="relu") if kind is nn.RNN else kind(5, 6), torch.randn(7, 2, 5), batches=())


@pytest.mark.parametrize("kind", KINDS)
def test_initial_state(kind: Any) -> None:
    options = {"num_layers": 2} if kind is nn.RNN else {"bidirectional": True}
    captured = check(Stateful(kind, **options), torch.randn(2, 4, 5))
    assert all(n.attrs["states"] for n in captured.graph if n.op == kind.__name__.lower())


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind: Any) -> None:
    captured = check(Loop(kind(5, 6)), torch.randn(2, 3, 5))
    states = [n.attrs["states"] for n in captured.graph if n.op in ("lstm", "gru", "rnn")]
    assert states == [False, True, True]


class Packed(nn.Module):
    """Sequences of different lengths; ``read``: an attribute of the packed result the forward pass looks at."""

    def __init__(self, kind: Any, read: str = "", **options: Any) -> None:
        super().__init__()
        self.rnn, self.read, self.options = kind(5, 6, 2, batch_first=True, bidirectional=True), read, options

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.rnn(packed)
        if self.read:
            return getattr(y, self.read)
        return pad_packed_sequence(y, batch_first=True, **self.options)[0], last


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: Any) -> None:
    model = Packed(kind).eval()
    captured = capture(model, (torch.randn(2, 7, 5), torch.tensor([3, 7])))
    assert captured.graph.dynamic_batch and "keeps all time steps" in captured.notes[0]
    for lengths in ([7, 2, 6, 4], [7], [1, 7]):
        x, given = torch.randn(len(lengths), 7, 5), torch.tensor(lengths)
        with torch.no_grad():
            assert_same(run(captured, x, given), model(x, given))


def test_packed_to_a_length() -> None:
    model = Packed(nn.GRU, total_length=9).eval()
    x, lengths = torch.randn(3, 7, 5), torch.tensor([3, 7, 2])
    captured = capture(model, (x, lengths))
    with torch.no_grad():
        assert_same(run(captured, x, lengths), model(x, lengths))


def test_inside_a_packed_sequence() -> None:
    inputs = (torch.randn(2, 7, 5), torch.tensor([3, 7]))
    with pytest.raises(CaptureError, match="data of a packed sequence"):
        capture(Packed(nn.GRU, read="data"), inputs)
    with pytest.raises(CaptureError, match="padding value"):
        capture(Packed(nn.GRU, padding_value=-1.0), inputs)


def test_torch_is_as_before() -> None:
    before = nn.LSTM.forward, pack_padded_sequence.__code__
    capture(nn.LSTM(5, 6), torch.randn(7, 2, 5))
    assert (nn.LSTM.forward, pack_padded_sequence.__code__) == before


def test_other_threads_are_left_alone() -> None:
    net, x, lengths = nn.LSTM(5, 6, batch_first=True), torch.randn(2, 4, 5), torch.tensor([4, 2])

    def outputs() -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        y, _ = pad_packed_sequence(net(packed)[0], batch_first=True)
        return y

    expected = outputs()
    with traceable(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(outputs).result(), expected)
    assert torch.equal(outputs(), expected)


def test_any_number_of_steps() -> None:
    model = Around(nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True)).eval()
    captured = capture(model, torch.randn(2, 7, 5), dynamic_shapes={"x": {1: "steps"}})
    for steps in (1, 4, 9):
        x = torch.randn(3, steps, 5)
        with torch.no_grad():
            assert_same(run(captured, x), model(x))
