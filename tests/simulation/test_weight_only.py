"""Modes dynamic and weight_only from recipe to program: exact, trainable, saved, mixed with static layers."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.gradients import descend
from torch import nn

import intact8
from intact8 import recipes
from intact8.calibration.summary import CalibrationWarning
from intact8.engines import available_engines
from intact8.errors import RecipeError
from intact8.recipe.recipe import Recipe

ENGINES = [name for name in ("reference", "onednn", "onnxruntime") if name in available_engines()]


class Sentence(nn.Module):
    """Embedding, two layers that read one tensor, an activation between layers."""

    def __init__(self):
        super().__init__()
        self.rows, self.a, self.b = nn.Embedding(40, 33), nn.Linear(33, 24), nn.Linear(33, 24, bias=False)
        self.act, self.norm, self.head = nn.ReLU(), nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, index):
        x = self.rows(index)
        return self.head(self.norm(self.act(self.a(x)) + self.b(x)))


@pytest.fixture
def sentence():
    torch.manual_seed(0)
    return Sentence().eval(), torch.randint(0, 40, (6, 9))


ROWS = pytest.mark.parametrize("rows", ["per_row", "per_tensor"])


@ROWS
def test_dynamic_gives_the_same_bits_everywhere_and_needs_no_data(sentence, rows):
    model, x = sentence
    recipe = recipes.dynamic(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        program = intact8.quantize(model, x[:1], recipe)
    kinds = [op.kind for op in program.ops]
    assert kinds.count("dynamic_linear") == 3 and kinds.count("decoded_embedding") == 1
    sim = intact8.prepare(model, x, recipe).eval()
    report = intact8.verify(program, x, ENGINES, sim=sim)
    assert report.exact and report.elements == 6 * 9 * (33 + 24 + 24 + 5)
    np.testing.assert_allclose(program.run(x).numpy(), model(x).detach().numpy(), atol=0.05)


def test_a_row_does_not_depend_on_the_batch(sentence):
    model, x = sentence
    program = intact8.quantize(model, x, recipes.dynamic())
    np.testing.assert_array_equal(program.run(x)[2:3].numpy(), program.run(x[2:3]).numpy())


@pytest.mark.parametrize("scales", ["calibrated", "observed", "learned", "fixed"])
def test_training_computes_the_integers_of_now(sentence, scales):
    model, x = sentence
    recipe = replace(recipes.dynamic(), scales=scales)
    sim = intact8.prepare(model, x, recipe)
    intact8.calibrate(sim, x)
    target = torch.randn(6, 9, 5)
    optimizer = torch.optim.SGD(sim.parameters(), lr=0.05)
    sim.train()
    losses = descend(sim, x, target, optimizer)
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for name, p in sim.named_parameters() if name.endswith("weight"))
    sim.eval()
    report = intact8.verify(intact8.convert(sim), x, ("reference", "onednn"), sim=sim)
    assert report.exact


def test_static_and_dynamic_layers_in_one_network():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(64, 12)
    program = intact8.quantize(model, x, Recipe(overrides={"2": {"mode": "dynamic"}}))
    kinds = [op.kind for op in program.ops]
    assert kinds.count("linear") == 2 and kinds.count("dynamic_linear") == 1
    sim = intact8.prepare(model, x, Recipe(overrides={"2": {"mode": "dynamic"}}))
    intact8.calibrate(sim, x)
    program = intact8.convert(sim.eval())
    assert intact8.verify(program, x, ENGINES, sim=sim).exact
    program = intact8.quantize(model, x, replace(recipes.dynamic(), overrides={"0": {"mode": "static"}, "4": None}))
    kinds = [op.kind for op in program.ops]
    assert (kinds.count("linear"), kinds.count("dynamic_linear"), kinds.count("float.linear")) == (1, 1, 1)


def test_convolutions_stay_float_in_mode_dynamic():
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).eval()
    program = intact8.quantize(model, torch.randn(2, 3, 8), recipes.dynamic())
    assert [op.kind for op in program.ops if op.kind.endswith(("conv", "linear"))] == ["float.conv", "dynamic_linear"]
    (conv,) = (op for op in program.ops if op.kind == "float.conv")
    assert "linear" in conv.note


@pytest.mark.parametrize(("bits", "group", "error"), [(8, None, 0.02), (4, None, 0.4), (4, 8, 0.3)])
def test_weight_only_is_small_and_near(sentence, bits, group, error, tmp_path):
    model, x = sentence
    recipe = recipes.weight_only(bits, group)
    sim = intact8.prepare(model, x, recipe).eval()
    program = intact8.convert(sim)
    assert {"decoded_embedding", "float.decoded_linear"} <= {op.kind for op in program.ops}
    again = intact8.Program.load(program.save(tmp_path / "p.safetensors"))
    y = sim(x).detach()
    for engine in ENGINES:
        np.testing.assert_allclose(again.run(x, engine=engine).numpy(), y.numpy(), atol=1e-5)
    np.testing.assert_allclose(y.numpy(), model(x).detach().numpy(), atol=error)
    assert intact8.verify(program, x, ENGINES, sim=sim).exact  # rows of the embedding
    coded = sum(op.arrays["weight"].nbytes for op in program.ops if op.kind.split(".")[-1].startswith("decoded"))
    assert coded <= (40 * 33 + 2 * 24 * 33 + 5 * 24) * (1 if bits == 8 else 0.53)
    sim.fake_quantize(False)
    np.testing.assert_allclose(sim(x).detach().numpy(), model(x).detach().numpy(), atol=1e-6)


def test_weight_only_trains_with_the_weights_it_ships(sentence):
    model, x = sentence
    sim = intact8.prepare(model, x, recipes.weight_only(4, 8)).train()
    sim(x).square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in (sim.a.weight, sim.rows.weight))
    trained = sim(x).detach()
    torch.testing.assert_close(trained, sim.eval()(x).detach(), atol=0.3, rtol=0)


def test_a_state_comes_back(sentence):
    model, x = sentence
    sim = intact8.prepare(model, x, recipes.dynamic()).eval()
    y = sim(x)
    again = intact8.prepare(Sentence(), x, recipes.dynamic()).eval()
    again.load_state_dict(sim.state_dict())
    torch.testing.assert_close(again(x), y, atol=0, rtol=0)


def test_recipes_come_back_from_toml():
    recipe = replace(recipes.weight_only(4, 32), overrides={"head": {"mode": "dynamic"}, "a": {"mode": "static"}})
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert Recipe.from_toml(recipes.dynamic("per_tensor").to_toml()) == recipes.dynamic("per_tensor")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(mode="dynamical"), "mode"),
        (lambda: Recipe(rows="per_channel"), "rows"),
        (lambda: Recipe(group=-1), "group"),
        (lambda: recipes.weight_only(5), "bits"),
        (lambda: Recipe(overrides={"a": {"mode": "statically"}}), "mode"),
    ],
)
def test_what_means_nothing_is_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_a_mode_that_reaches_nothing_is_refused(sentence):
    model, x = sentence
    with pytest.raises(RecipeError, match="no effect"):
        intact8.prepare(model, x, Recipe(overrides={"norm": {"mode": "dynamic"}}))


def test_a_transposed_weight_reaches_every_engine_in_its_order():
    """Compiled code reads memory: onednn took the memory of a transposed array for that of the array."""
    torch.manual_seed(0)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x):
            return torch.relu(x) @ self.weight

    x = torch.randn(6, 8)
    program = intact8.quantize(Product(), [x], recipe=recipes.dynamic())
    assert all(array.flags.c_contiguous for op in program.ops for array in op.arrays.values())
    report = intact8.verify(program, x.numpy())
    assert report.mismatches == 0 and "onednn" in report.by_engine
