"""Recurrent layers, embeddings and attention of torch.ao keep the integers of their weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.migration.networks import ao, quantize_fx
from torch import Tensor, nn

import intact8

pytestmark = pytest.mark.filterwarnings("ignore")


class Cells(nn.Module):
    """Every class that has a dynamic form."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(5, 3, bidirectional=True), nn.GRU(6, 6)
        self.lstm_cell, self.gru_cell = nn.LSTMCell(6, 4), nn.GRUCell(4, 4)
        self.rnn_cell = nn.RNNCell(4, 4, nonlinearity="relu")

    def forward(self, x: Tensor) -> Any:
        y, _ = self.gru(self.lstm(x)[0])
        h, _ = self.lstm_cell(y[0])
        return self.rnn_cell(self.gru_cell(h))


class Static(nn.Module):
    """An LSTM between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.lstm, self.fc = nn.LSTM(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.dequant(self.fc(self.lstm(self.quant(x))[0]))


class Attention(nn.Module):
    """Attention between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        x = self.quant(x)
        return self.dequant(self.attention(x, x, x)[0])


def close(there: Any, made: intact8.Migrated, x: Tensor, steps: float = 0.05) -> None:
    assert intact8.verify(made.program, x, sim=made.simulation).mismatches == 0
    with torch.no_grad():
        y = there(x)
    assert float((made.program.run(x) - y).abs().max()) < steps * float(y.abs().max())


KINDS = {nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell}


def test_dynamic_layers() -> None:
    torch.manual_seed(0)
    there, x = ao.quantize_dynamic(Cells().eval(), KINDS), torch.randn(2, 3, 5)
    made = intact8.migrate(there, data=x)
    report = made.report
    # -128 becomes -127, which the formulas of recurrent layers need; no other integer changes.
    least = sum(int((w.int_repr() == -128).sum()) for m in there.children() for w in m.get_weight().values())
    assert report.weights_changed == least and report.weights == sum(p.numel() for p in _matrices(Cells()))
    assert not report.floats and not report.observed
    close(there, made, x)


@pytest.mark.parametrize("file", [True, pytest.param(False, marks=pytest.mark.long)])
def test_checkpoints_of_dynamic_layers(file: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    there, x = ao.quantize_dynamic(Cells().eval(), KINDS), torch.randn(2, 3, 5)
    path = tmp_path / "dynamic.pth"
    torch.save(there.state_dict(), path)
    made = intact8.migrate(Cells(), path if file else there.state_dict(), data=x)
    want = intact8.migrate(there, data=x)
    assert made.report.weights_changed == want.report.weights_changed
    assert torch.equal(torch.as_tensor(made.program.run(x)), torch.as_tensor(want.program.run(x)))
    with pytest.raises(intact8.InputError, match="give the code the checkpoint was made with"):
        intact8.migrate(nn.Sequential(nn.LSTM(5, 3)), path if file else there.state_dict(), data=x)


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


@pytest.mark.parametrize("stage", ["prepared", "converted"])
def test_an_fx_model_that_is_dynamic(stage: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6, 5)
    mapping = ao.QConfigMapping().set_global(ao.default_dynamic_qconfig)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    prepared = quantize_fx.prepare_fx(model, mapping, (x,))
    there = quantize_fx.convert_fx(copy.deepcopy(prepared))
    made = intact8.migrate(prepared if stage == "prepared" else there, data=x)
    assert made.report.weights_changed == 0 and made.report.weights == 48
    close(there, made, x)


def test_float16_weights_are_refused() -> None:
    there = ao.quantize_dynamic(nn.Sequential(nn.LSTM(3, 2)), {nn.LSTM}, dtype=torch.float16)
    layer = ao.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)), {nn.Linear}, dtype=torch.float16)
    with pytest.raises(intact8.InputError, match="quantize the float model"):
        intact8.migrate(layer, data=torch.randn(8, 3))
    with pytest.raises(intact8.InputError, match="float16"):
        intact8.migrate(there, example_inputs=torch.zeros(1, 1, 3))


@pytest.mark.parametrize("kind", [Static, Attention])
def test_static_layers(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, 4, 6 if kind is Static else 8)
    model.qconfig = ao.get_default_qconfig("fbgemm")
    prepared = ao.prepare(model)
    prepared(x)
    there = ao.convert(copy.deepcopy(prepared))
    for source in (prepared, there):
        made = intact8.migrate(source, data=x)
        assert made.report.weights_changed <= 32 and not made.report.requantized
        close(there, made, x, 0.08)


@pytest.mark.parametrize(("kind", "requantize"), [(nn.Embedding, []), (nn.Embedding, ["0"]), (nn.EmbeddingBag, ["0"])])
def test_embeddings(kind: type[nn.Module], requantize: list[str]) -> None:
    torch.manual_seed(0)
    more = {"mode": "sum"} if kind is nn.EmbeddingBag else {}
    model, x = nn.Sequential(kind(20, 6, **more), nn.Linear(6, 3)).eval(), torch.randint(0, 20, (8, 4))
    how = {nn.Linear: ao.default_dynamic_qconfig, kind: ao.float_qparams_weight_only_qconfig}
    there = ao.quantize_dynamic(model, how)
    made = intact8.migrate(there, data=x, requantize=requantize)
    anew = requantize if kind is nn.Embedding else []  # the rows of a bag are always float32
    assert list(made.report.requantized) == anew and made.report.weights_changed == 0
    assert anew or any("float32" in note for note in made.report.notes)
    close(there, made, x)
    if requantize:
        return
    model.qconfig = None
    model[0].qconfig = ao.default_embedding_qat_qconfig
    trained = ao.prepare_qat(model.train()).eval()
    with torch.no_grad():
        trained(x)
    close(trained, intact8.migrate(trained, data=x), x)
