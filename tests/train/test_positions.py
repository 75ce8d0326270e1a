"""Constants computed from parameters (positions, biases by distance) are trained, and what is trained ships."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.capture.encoder import SEQUENCE, Encoder, call
from tests.conftest import import_torchvision
from torch import Tensor, nn
from torch.nn.utils import prune

import intact8
import intact8.train
from intact8 import recipes
from intact8.calibration.summary import CalibrationWarning
from intact8.capture import capture
from intact8.engines import engine_status
from intact8.errors import CaptureWarning, StateError

ENGINES = [e for e in ("reference", "onednn") if engine_status()[e] is None]
QAT = {
    "static": replace(recipes.transformer(), scales="learned"),
    "dynamic": replace(recipes.dynamic(), scales="learned"),
    "integer": replace(recipes.integer(), scales="learned"),
}


class Table(nn.Module):
    """A table of positions that starts at zero, cut to the length; a class token on every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.zeros(1, 24, 16))
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.wide, self.norm, self.end = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        batch, length = input_ids.shape
        x = self.words(input_ids) + self.places[:, :length] + self.token.expand(batch, length, -1)
        y: Tensor = self.end(self.norm(x + self.wide(x).relu()))
        return y


class Distances(nn.Module):
    """Attention whose scores get a bias by distance (Swin, T5)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(9, 2))
        self.qkv, self.end = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("number", (torch.arange(5)[:, None] - torch.arange(5) + 4).reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.number].view(5, 5, 2).permute(2, 0, 1).contiguous().unsqueeze(0)
        y = torch.softmax(q @ k.transpose(2, 3) * 0.5 + bias, -1) @ v
        z: Tensor = self.end(y.transpose(1, 2).reshape(-1, 5, 8))
        return z


def prepared(model: nn.Module, data: list[Any], recipe: intact8.Recipe, dynamic: Any = None) -> Any:
    torch.manual_seed(0)
    sim = intact8.prepare(model.eval(), data[0], recipe, dynamic_shapes=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        intact8.calibrate(sim, data)
    return sim


def train(sim: Any, data: list[Any], steps: int = 3) -> None:
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=0.01, scale_lr=0.01, relative=True))
    sim.train()
    for step in range(steps):
        optimizer.zero_grad()
        given = data[step % len(data)]
        y = sim(**given) if isinstance(given, dict) else sim(given)
        (torch.utils._pytree.tree_leaves(y)[0] - 1).square().mean().backward()
        optimizer.step()


def exact(sim: Any, x: Any) -> intact8.Program:
    program = intact8.convert(sim.eval())
    assert intact8.verify(program, x, ENGINES, sim=sim).exact
    return program


def ids(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": call(batch, length)["input_ids"]}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("recipe", QAT)
@pytest.mark.parametrize(
    ("kind", "lengths"),
    [pytest.param(Encoder, "one", marks=pytest.mark.long), (Encoder, "any"), (Table, "one"), (Table, "any")],
)
def test_positions_are_trained_and_ship(kind: Callable[[], nn.Module], lengths: str, recipe: str) -> None:
    made = call if kind is Encoder else ids
    sizes = (7, 7, 7) if lengths == "one" else (7, 9, 12)
    data = [made(16, n) for n in sizes]
    dynamic = None if lengths == "one" else {name: SEQUENCE[name] for name in data[0]}
    model = kind()
    sim = prepared(model, data, QAT[recipe], dynamic)
    assert not any("not trained" in note for note in sim.captured.notes)
    before = {name: p.detach().clone() for name, p in sim.named_parameters()}
    names = ["places.weight", "kinds.weight"] if kind is Encoder else ["places", "token"]
    train(sim, data)
    for name in names:
        rows = (sim.get_parameter(name) != before[name]).any(-1).flatten()
        longest = max(sizes) if name.startswith("places") else 1
        assert rows[:longest].all() and not rows[longest:].any(), name
    program = exact(sim, made(3, sizes[0]))
    trained = {name: v for name, v in sim.state_dict().items() if not name.startswith("quantizers.")}
    model.load_state_dict(trained)
    given = made(3, sizes[-1])
    y, z = (torch.utils._pytree.tree_leaves(f(**given))[0] for f in (program.run, model.eval()))
    assert float((y - z).detach().norm() / z.detach().norm()) < (0.1 if recipe != "integer" else 0.3)
    sim.freeze_scales()
    train(sim, data, 2)
    with torch.no_grad():
        frozen = sim.train()(**given)
        assert torch.equal(frozen, sim.eval()(**given))
    exact(sim, given)


@pytest.mark.parametrize("recipe", ["static", "dynamic"])
def test_the_gradient_is_that_of_the_float_model(recipe: str) -> None:
    data = [ids(32, 6)]
    model = Table()
    with torch.no_grad():
        for p in (model.places, model.token):
            p.normal_(0, 0.5)
    sim = prepared(model, data, QAT[recipe])
    for m in (model, sim.train()):
        m(**data[0]).square().sum().backward()
    for name in ("places", "token"):
        a, b = (m.get_parameter(name).grad for m in (model, sim))
        assert float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0)) > 0.98, name
    assert not sim.places.grad[:, 6:].any()


def test_a_bias_by_distance_is_trained() -> None:
    x = torch.randn(32, 5, 8)
    sim = prepared(Distances(), [x], QAT["static"])
    before = sim.get_parameter("table").detach().clone()
    train(sim, [x])
    assert (sim.get_parameter("table") != before).all()
    exact(sim, x)


def test_a_checkpoint_brings_its_positions() -> None:
    data, other = [ids(16, 7)], Table()
    sim = prepared(Table(), data, recipes.dynamic()).eval()
    zero = sim(**data[0])
    with torch.no_grad():
        other.places.normal_()
    sim.load_state_dict({**sim.state_dict(), "places": other.places})
    with torch.no_grad():
        assert not torch.allclose(sim(**data[0]), zero, atol=0.1)
    exact(sim, data[0])
    sim.get_parameter("places").data.zero_()
    with torch.no_grad():
        assert torch.equal(sim(**data[0]), zero)


def loaded(sim: Any) -> Any:
    stream = io.BytesIO()
    torch.save(sim.state_dict(), stream)
    stream.seek(0)
    fresh = intact8.prepare(Encoder().eval(), call(2, 7), QAT["static"], dynamic_shapes=SEQUENCE)
    fresh.load_state_dict(torch.load(stream, weights_only=True))
    return fresh


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda sim: pickle.loads(pickle.dumps(sim)), loaded], ids=["deepcopy", "pickle", "state"]
)
def test_training_resumes_to_the_bit(copied: Callable[[Any], Any]) -> None:
    data = [call(16, n) for n in (7, 9)]
    sim = prepared(Encoder(), data, QAT["static"], SEQUENCE)
    assert set(dict(Encoder().state_dict())) <= set(sim.state_dict())
    train(sim, data)
    sim.eval()(**data[0])
    other = copied(sim)
    for each in (sim, other):
        train(each, data)
    for (name, a), (_, b) in zip(sim.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(sim.eval()(**data[0]), other.eval()(**data[0]))
    assert other.tensors["places.weight"] is other.get_parameter("places.weight")


def test_an_evaluation_solves_once() -> None:
    """What is computed from parameters is the same object until they change."""
    data = [call(16, 7)]
    sim = prepared(Encoder(), data, QAT["static"]).eval()
    (name, *_) = sim.captured.derived
    sim(**data[0])
    assert sim.current
    with torch.no_grad():
        first = sim.tensors[name]
        assert sim.tensors[name] is first and not first.requires_grad
        sim.get_parameter("places.weight").mul_(2)
        sim.get_parameter("kinds.weight").mul_(2)
        torch.testing.assert_close(sim.tensors[name], 2 * first)
    assert not sim.current
    with torch.inference_mode():
        sim(**data[0])
    train(sim, data)


class Written(nn.Module):
    """A constant that is written into after it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.places * 2
        y[:, :1].add_(1)
        return x + y


def test_what_was_written_into_stays_as_captured_and_says_so() -> None:
    captured = capture(Written(), torch.randn(2, 5, 4))
    assert not captured.derived and any(
        "computed from places once, at capture: not trained" in n for n in captured.notes
    )


def test_training_warns_of_parameters_that_it_cannot_move() -> None:
    data = torch.randn(64, 5, 4)
    sim = intact8.prepare(Written(), data[:2], intact8.recipes.qat())
    intact8.calibrate(sim, data)
    with pytest.warns(CaptureWarning, match="not trained: places. .*write nothing in place"):
        sim.train()
    pruned = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    sim = intact8.prepare(pruned, torch.randn(2, 6), intact8.recipes.qat())
    assert not sim.captured.untrained


def test_what_is_done_to_the_parameters_of_a_simulation_is_refused() -> None:
    sim = intact8.prepare(nn.Sequential(nn.Linear(6, 4)), torch.randn(2, 6), intact8.recipes.qat())
    prune.l1_unstructured(sim.get_submodule("0"), "weight", 0.5)
    with pytest.raises(StateError, match=r"0\.weight: .*pruning.*before intact8\.prepare"):
        sim(torch.randn(2, 6))


def test_frozen_parameters_stay() -> None:
    data = [call(16, 7)]
    model = Encoder()
    model.places.requires_grad_(False)
    sim = prepared(model, data, QAT["static"])
    before = sim.get_parameter("places.weight").detach().clone()
    train(sim, data)
    assert torch.equal(sim.get_parameter("places.weight"), before)
    exact(sim, data[0])


@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel"])
def test_encoders_of_transformers(name: str) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # transformers imports it
    transformers = pytest.importorskip("transformers")
    bert = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    distil = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
    options = {"vocab_size": 50, "max_position_embeddings": 40, **(bert if name == "BertModel" else distil)}
    config = getattr(transformers, name.replace("Model", "Config"))(**options)
    data = [call(16, n) for n in (7, 9, 12)]
    sim = prepared(getattr(transformers, name)(config), data, QAT["static"], SEQUENCE)
    parameter = sim.get_parameter("embeddings.position_embeddings.weight")
    before = parameter.detach().clone()
    train(sim, data)
    assert (parameter != before).any(1).tolist() == [True] * 12 + [False] * 28
    exact(sim, call(3, 5))
