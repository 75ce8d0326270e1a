"""Learned roundings: better than nearest, exact programs, the same bits for the same seed, interrupted and resumed."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.errors import AccuracyWarning, InputError, RecipeError, StateError
from intact8.program.file import digest
from intact8.reconstruction.blocks import blocks_of
from intact8.reconstruction.learn import Settings


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.a, self.norm, self.b = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.b(nn.functional.silu(self.norm(self.a(x))))
        y: Tensor = self.fc(x.mean((2, 3)))
        return y


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out((q @ k.mT / 8**0.5).softmax(-1) @ v)
        return x + self.down(nn.functional.gelu(self.up(x)))


NETWORKS = {"residual": (Residual, (48, 3, 8, 8)), "attention": (Attention, (48, 4, 8))}


def reconstructed(kind: str, method: str, w: int = 4, a: int = 8, **arguments: Any) -> tuple[Any, nn.Module, Tensor]:
    make, shape = NETWORKS[kind]
    model, x = make().eval(), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if method not in ("none", "gptq"):
        # Of few turns it is chance what they come to, and torch's versions differ in it.
        usual = {"iterations": 100, "rate": 0.01} if method == "distill" else {"iterations": 40, "rate": 0.05}
        usual |= {"iterations": 300} if method == "brecq" else {}
        arguments = {"batch": 16} | usual | arguments
    sim = intact8.prepare(model, x[:2], recipes.reconstruct(w, a, method=method, eight=(), **arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, x.split(16))
    return sim, model, x


def error(sim: Any, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((sim(x) - model(x)).square().mean())


@pytest.mark.parametrize(
    ("kind", "method", "w", "a"),
    [
        ("residual", "brecq", 3, 8),
        ("residual", "qdrop", 4, 4),
        ("attention", "adaround", 4, 8),
        ("residual", "distill", 3, 8),
        ("attention", "distill", 3, 8),
    ],
)
def test_programs_are_exact_and_nearer_to_float(kind: str, method: str, w: int, a: int) -> None:
    sim, model, x = reconstructed(kind, method, w, a, deferred=True)
    before = error(sim, model, x)
    intact8.reconstruct(sim)
    assert error(sim, model, x) < before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = intact8.convert(sim)
    assert intact8.verify(program, x[:8], sim=sim).mismatches == 0
    largest = max(abs(op.arrays["weight"]).max() for op in program.ops if op.kind in ("conv", "linear"))
    assert largest <= 2 ** (w - 1) - 1


@pytest.mark.parametrize("method", ["qdrop", "distill"])
def test_a_seed_decides_everything(method: str) -> None:
    sim, _, x = reconstructed("residual", method, 3, 8, iterations=40, rate=0.05)
    found = [sim(x)]
    for seed in (0, 1):
        sim.recipe = replace(sim.recipe, reconstruction_args={**sim.recipe.reconstruction_args, "seed": seed})
        found.append(intact8.reconstruct(sim)(x))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("method", ["brecq", pytest.param("distill", marks=pytest.mark.long)])
def test_an_interrupted_run_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    sim, _, x = reconstructed("residual", method, deferred=True)
    seen: list[tuple[int, int]] = []
    whole = intact8.reconstruct(sim, progress=lambda *done: seen.append(done))(x)
    assert seen[-1][0] == seen[-1][1] == len(seen) > 1

    def stop(done: int, blocks: int) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "blocks.pt"
    with pytest.raises(KeyboardInterrupt):
        intact8.reconstruct(sim, progress=stop, checkpoint=file)
    assert not torch.equal(sim(x), whole)
    assert torch.equal(intact8.reconstruct(sim, checkpoint=file)(x), whole)
    with torch.no_grad():
        next(sim.parameters()).mul_(2)
    with pytest.raises(InputError, match="another reconstruction"):
        intact8.reconstruct(sim, checkpoint=file)
    with torch.no_grad():
        next(sim.parameters()).div_(2)
    sim.recipe = replace(sim.recipe, reconstruction_args={"iterations": 5})
    with pytest.raises(InputError, match="another reconstruction"):
        intact8.reconstruct(sim, checkpoint=file)
    for damaged in (b"no", b"junk"):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="no checkpoint"):
            intact8.reconstruct(sim, checkpoint=file)
    torch.save({"state": {}}, file)
    with pytest.raises(InputError, match="no checkpoint of a reconstruction. Reason: it holds no 'fingerprint'"):
        intact8.reconstruct(sim, checkpoint=file)
    with pytest.raises(InputError, match="cannot write the checkpoint.*does not exist"):
        intact8.reconstruct(sim, checkpoint=tmp_path / "none" / "blocks.pt")


def test_a_reconstruction_that_was_left_to_the_caller_and_forgotten_is_told() -> None:
    sim, *_ = reconstructed("residual", "adaround", deferred=True)
    with pytest.warns(AccuracyWarning, match=r"not reconstructed.*intact8\.reconstruct\(sim\)"):
        intact8.convert(sim)
    program = intact8.convert(intact8.reconstruct(sim))
    again, *_ = reconstructed("residual", "adaround", deferred=True)
    again.load_state_dict(sim.state_dict())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the weights are not reconstructed")
        intact8.convert(again)
    for other in (nn.Linear(2, 2), program):
        with pytest.raises(StateError, match="reconstruct takes a simulation"):
            intact8.reconstruct(other)  # type: ignore[arg-type]


def test_distillation_leaves_the_float_network_as_it_was() -> None:
    sim, model, x = reconstructed("residual", "distill", 3, 4, deferred=True)
    flags = [p.requires_grad_(k % 2 == 0).requires_grad for k, p in enumerate(sim.get_submodule("stem").parameters())]
    intact8.reconstruct(sim)
    found = sim(x)
    sim.fake_quantize(False)
    assert torch.allclose(sim(x), model(x), atol=1e-5)
    sim.fake_quantize(True)
    assert torch.equal(sim(x), found) and torch.equal(copy.deepcopy(sim)(x), found)
    assert [p.requires_grad for p in sim.get_submodule("stem").parameters()] == flags and not sim.training
    state, other = sim.state_dict(), reconstructed("residual", "distill", 3, 4, deferred=True)[0]
    other.load_state_dict(state)
    assert torch.equal(other(x), found)


def test_blocks_are_all_nodes_and_end_where_one_tensor_goes_on() -> None:
    sim = intact8.prepare(Residual().eval(), torch.randn(2, 3, 8, 8), recipes.reconstruct())
    layers = {node.name for node in sim.graph if "correct.rounding" in node.params}
    assert layers == {"stem", "a", "b", "fc"}
    for single in (False, True):
        blocks = blocks_of(sim.graph, layers, single=single)
        assert [block.first for block in blocks[1:]] == [block.last + 1 for block in blocks[:-1]]
        assert blocks[0].first == 0 and blocks[-1].last == len(list(sim.graph)) - 1
        assert all(len(block.layers) < 2 for block in blocks) == single
    assert all(len(block.outputs) == 1 for block in blocks_of(sim.graph, layers))


def test_refusals() -> None:
    with pytest.raises(RecipeError, match="reconstruction"):
        recipes.reconstruct(method="magic")
    with pytest.raises(RecipeError, match="learns scales"):
        replace(recipes.default(), reconstruction="distill")
    sim = intact8.prepare(nn.Linear(4, 2), torch.randn(2, 4), recipes.reconstruct(iteration=3))
    with pytest.raises(RecipeError, match="iteration"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(8, 4))
    unfit: list[dict[str, Any]] = [{"iterations": 0}, {"deferred": 1}, {"batch": "a"}]
    for arguments in unfit:
        with pytest.raises(RecipeError, match="give"):
            Settings.of(arguments)
    with pytest.raises(StateError, match="nothing to reconstruct"):
        intact8.reconstruct(intact8.prepare(nn.Linear(4, 2), torch.randn(2, 4)))


def test_recipes_keep_their_arguments() -> None:
    recipe = recipes.reconstruct(3, 4, eight=("fc",), method="brecq", iterations=7)
    assert intact8.Recipe.from_toml(recipe.to_toml()) == recipe
    assert intact8.Recipe.from_toml(recipe.to_toml()).reconstruction_args == {"iterations": 7}


def test_small_layers_keep_eight_bits_by_default() -> None:
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 64, 3), nn.Flatten()
    model, x = nn.Sequential(*layers, nn.Linear(64 * 4, 64)).eval(), torch.randn(2, 1, 8, 8)
    sim = intact8.prepare(model, x, recipes.reconstruct(4, 4))
    assert {name: point.hi for name, point in sim.weight_points.items()} == {"0": 127, "2": 127, "3": 7, "5": 7}
    assert {name: point.hi for name, point in sim.points.items()} == {
        "input": 255,
        "0": 255,
        "2": 15,
        "3": 15,
        "5": 255,
    }
    custom = intact8.prepare(model, x, recipes.reconstruct(4, 8, eight=("layers:first", "layers:last")))
    assert {name: point.hi for name, point in custom.weight_points.items()} == {"0": 127, "2": 7, "3": 7, "5": 127}
    alone = intact8.prepare(nn.Linear(4, 2), x[:, 0, 0, :4], recipes.reconstruct(4))  # no layer is small here
    assert alone.weight_points[next(iter(alone.weight_points))].hi == 7
    with pytest.raises(RecipeError, match="first"):
        recipes.reconstruct(eight=("layers:second",))


@pytest.mark.parametrize("recipe", [recipes.accurate(), recipes.reconstruct(4, iterations=2)], ids=["ranges", "blocks"])
def test_inside_of_inference_mode_it_finds_the_same_integers(recipe: intact8.Recipe) -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(64, 6)
    wanted = intact8.quantize(model, x, recipe)
    with torch.inference_mode():
        inside = intact8.quantize(model, x.clone(), recipe)  # the copy is a tensor of inference mode
    assert digest(inside) == digest(wanted)
