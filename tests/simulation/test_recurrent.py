"""LSTM, GRU, RNN and cells: the simulation computes the bits of the program, learns, and keeps its names."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import intact8
from intact8 import recipes
from intact8.engines import engine_status, get_engine
from intact8.simulation.ops import recurrent

ENGINES = [e for e in ("reference", "onednn") if engine_status()[e] is None]
DYNAMIC = recipes.dynamic()


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
        return torch.stack(seen, 1)


class Decoder(nn.Module):
    """The states of one layer start another."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.encoder = kind(6, 8, batch_first=True, bidirectional=True)
        self.decoder = kind(6, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Any:
        return self.decoder(x, self.encoder(x)[1])[0]


MODELS: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True),
    "gru": lambda: nn.GRU(6, 8, 2, batch_first=True, bidirectional=True),
    "rnn": lambda: nn.RNN(6, 8, 2, batch_first=True),
    "rnn_relu": lambda: nn.RNN(6, 8, batch_first=True, nonlinearity="relu", bias=False),
    "lstm_cell": lambda: Loop(nn.LSTMCell(6, 8)),
    "gru_cell": lambda: Loop(nn.GRUCell(6, 8)),
    "rnn_cell": lambda: Loop(nn.RNNCell(6, 8)),
    "lstm_decoder": lambda: Decoder(nn.LSTM),
    "gru_decoder": lambda: Decoder(nn.GRU),
}


def built(name: str, recipe: intact8.Recipe | None = None, time: int = 5) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]()
    for p in model.parameters():  # gates that go to both ends of their range
        nn.init.normal_(p, 0, 0.8)
    x = torch.randn(8, time, 6)
    sim = intact8.prepare(model, example_inputs=x[:2], recipe=recipe)
    intact8.calibrate(sim, [x])
    return model, sim, x


def assert_bits(sim: Any, x: Tensor) -> intact8.Program:
    """Outputs of simulation and engines, to the bit."""
    program = intact8.convert(sim.eval())
    with torch.no_grad():
        y = sim(x)
    want = [t.numpy() for t in torch.utils._pytree.tree_leaves(y)]
    assert any(op.kind in ("lstm", "gru", "rnn") for op in program.ops)
    for engine in ENGINES:
        got = get_engine(engine).prepare(program)({program.inputs[0]: x.numpy()})
        for a, b in zip(want, got, strict=True):
            assert a.shape == b.shape and (a.view(np.int32) == b.view(np.int32)).all(), engine
    return program


@pytest.mark.parametrize("name", MODELS)
def test_bits(name: str) -> None:
    model, sim, x = built(name, DYNAMIC)
    program = assert_bits(sim, x)
    report = intact8.verify(program, x, engines=ENGINES, sim=sim)
    assert report.exact
    with torch.no_grad():
        y, z = (torch.utils._pytree.tree_leaves(m.eval()(x))[0] for m in (sim, model))
    assert float((y - z).norm() / z.norm()) < 0.05


def test_other_batches() -> None:
    _, sim, _ = built("lstm", DYNAMIC)
    for batch in (1, 3, 17):
        assert_bits(sim, torch.randn(batch, 5, 6) * 3)


def test_other_numbers_of_steps() -> None:
    model = nn.GRU(6, 8, 2, batch_first=True, bidirectional=True)
    example, changing = torch.randn(2, 5, 6), {"input": {1: "t"}}
    sim = intact8.prepare(model, example_inputs=example, recipe=DYNAMIC, dynamic_shapes=changing)
    intact8.calibrate(sim, [torch.randn(8, 5, 6)])
    for batch, steps in ((1, 1), (3, 9)):
        assert_bits(sim, torch.randn(batch, steps, 6))


def test_one_direction_at_a_time_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on their grids are as large as the weights: those of one direction are gone before the next is run."""
    model, x = nn.LSTM(4, 8, 2, bidirectional=True, batch_first=True).eval(), torch.randn(2, 3, 4)
    sim = intact8.prepare(model, x).eval()
    intact8.calibrate(sim, x)
    left: list[int] = []

    def note(weight: int) -> None:
        left.append(sum(isinstance(found, recurrent.Direction) for found in gc.get_objects()))

    monkeypatch.setattr(recurrent, "trim_behind", note)
    with torch.no_grad():
        sim(x)
    assert left == [0, 0, 0, 0]


def test_one_step() -> None:
    _, sim, x = built("gru", DYNAMIC, time=1)
    assert_bits(sim, x)


def test_no_samples() -> None:
    _, sim, x = built("lstm", DYNAMIC)
    y, (h, c) = intact8.convert(sim.eval()).run(x[:0])
    assert y.shape == (0, 5, 16) and h.shape == c.shape == (4, 0, 8)


def test_static_recipes_quantize_them_dynamically() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Decoder(nn.LSTM), nn.Linear(16, 3))
    x = torch.randn(16, 4, 6)
    sim = intact8.prepare(model, example_inputs=x[:2])
    intact8.calibrate(sim, [x])
    program = assert_bits(sim, x)
    assert intact8.verify(program, x, engines=ENGINES, sim=sim).exact


def test_left_float() -> None:
    recipe = replace(recipes.default(), overrides={"decoder": None})
    _, sim, x = built("lstm_decoder", recipe)
    program = intact8.convert(sim.eval())
    assert [op.kind for op in program.ops if "lstm" in op.kind] == ["lstm", "float.lstm"]
    report = intact8.verify(program, x, engines=ENGINES, sim=sim)
    assert report.exact and report.islands == ["decoder"]
    with torch.no_grad():
        y = sim(x)
    for engine in ENGINES:
        (got,) = get_engine(engine).prepare(program)({"x": x.numpy()})
        np.testing.assert_allclose(got, y.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "rnn_relu", "lstm_cell"])
def test_gradients(name: str) -> None:
    """Close to the float network's for inputs and all parameters."""
    model, sim, x = built(name, DYNAMIC)
    with torch.no_grad():
        for p in (*model.parameters(), *sim.parameters()):
            p.mul_(0.5)
    found = []
    for m in (model.train(), sim.train()):
        given = x.clone().requires_grad_()
        torch.utils._pytree.tree_leaves(m(given))[0].square().mean().backward()
        grads = dict(m.named_parameters())
        found.append([given.grad, *(grads[n].grad for n in dict(model.named_parameters()))])
    for a, b in zip(*found, strict=True):
        assert a is not None and b is not None
        assert float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0)) > 0.97


def test_training_reaches_what_ships() -> None:
    """A few steps lower the loss, dropout between layers is on in training only, and the trained bits ship."""
    torch.manual_seed(1)
    model = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.5)
    x = torch.randn(32, 4, 6)
    target = x.cumsum(1).tanh()
    sim = intact8.prepare(model, example_inputs=x[:2], recipe=DYNAMIC)
    intact8.calibrate(sim, [x])
    assert set(dict(model.named_parameters())) == set(dict(sim.named_parameters()))
    sim.train()
    assert not torch.equal(sim(x)[0], sim(x)[0])
    optimizer, losses = torch.optim.Adam(sim.parameters(), 0.02), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(sim(x)[0][..., :6], target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    sim.eval()
    assert torch.equal(sim(x)[0], sim(x)[0])
    assert_bits(sim, x)
    model.load_state_dict({k: v for k, v in sim.state_dict().items() if not k.startswith("quantizers.")})


class Packed(nn.Module):
    """Sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, (h, c) = self.rnn(packed)
        return pad_packed_sequence(y, batch_first=True)[0], h, c


def test_packed_sequences() -> None:
    model, x, lengths = Packed().eval(), torch.randn(32, 5, 6), torch.arange(32) % 5 + 1
    sim = intact8.prepare(model, example_inputs=(x[:5], lengths[:5]), recipe=DYNAMIC)
    intact8.calibrate(sim, [(x, lengths)])
    program = intact8.convert(sim.eval())
    report = intact8.verify(program, {"x": x, "lengths": lengths}, engines=ENGINES, sim=sim)
    assert report.exact and report.elements == (2 + 5) * 32 * 16
    with torch.no_grad():
        for a, b in zip(sim(x, lengths), model(x, lengths), strict=True):
            assert float((a - b).norm() / b.norm()) < 0.05


class PackedDecoder(nn.Module):
    """A layer on sequences of several lengths that starts from given states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, state: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, h = self.rnn(packed, state.transpose(0, 1).contiguous())
        return pad_packed_sequence(y, batch_first=True)[0], h


def test_packed_sequences_that_start_from_states() -> None:
    model, lengths = PackedDecoder().eval(), torch.arange(20) % 5 + 1
    given = (torch.randn(20, 5, 6), torch.rand(20, 2, 8) * 2 - 1, lengths)
    sim = intact8.prepare(model, example_inputs=given, recipe=DYNAMIC).eval()
    intact8.calibrate(sim, [given])
    with torch.no_grad():
        for a, b in zip(sim(*given), model(*given), strict=True):
            assert float((a - b).norm() / b.norm()) < 0.05


def test_sst2(assets: Path) -> None:
    """The trained BiLSTM: within 0.3 points of float32, and the same bits."""
    pytest.importorskip("PIL")  # sst2 shares a file with what reads images
    import sst2
    from safetensors.torch import load_file

    *_, vocab = sst2.read("train")
    words, labels, _ = sst2.read("test", vocab)
    words, labels = words[::4], labels[::4]
    model = sst2.BiLSTM(len(vocab) + 2)
    (path,) = (p for p in (assets / "sst2").glob("*.safetensors") if "lstm" in p.name.lower())
    model.load_state_dict(load_file(path))
    sim = intact8.prepare(model.eval(), example_inputs=words[:2], recipe=DYNAMIC)
    intact8.calibrate(sim, [words[:32]])
    with torch.no_grad():
        right = [int((m.eval()(words).argmax(1) == labels).sum()) for m in (model, sim)]
    assert abs(right[0] - right[1]) <= 3  # of 455
    assert intact8.verify(intact8.convert(sim), words[:64], engines=ENGINES, sim=sim).exact


def test_weights_in_full_range_leave_out_the_lowest_integer():
    """The formulas of recurrent layers are stated for −127 … 127; a conversion once made −128 of them, and failed."""
    torch.manual_seed(0)
    model, x = nn.LSTM(6, 8, batch_first=True), torch.randn(8, 5, 6)
    with torch.no_grad():
        model.weight_ih_l0[:, 0] = -2.0
    program = intact8.quantize(model, [x] * 4, recipe=recipes.full_range())
    (layer,) = (op for op in program.ops if op.kind == "lstm")
    assert layer.arrays["weight_ih"].min() == -127
    assert intact8.verify(program, x.numpy()).mismatches == 0
