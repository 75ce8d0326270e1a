from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="loading models needs torch")

from safetensors.torch import save_file  # noqa: E402

from intact8 import recipes  # noqa: E402
from intact8.cli.models import load_model  # noqa: E402
from intact8.errors import InputError, RecipeError  # noqa: E402
from intact8.recipes import as_recipe, presets  # noqa: E402

SOURCE = """
from torch import nn

ready = nn.Linear(2, 3)
number = 3

def make():
    return nn.Linear(2, 3)

def picky(width):
    return nn.Linear(2, width)

def failing():
    raise ValueError("no weights here")

def wrong():
    return "a string"

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_the_user.py").write_text(SOURCE)
    (tmp_path / "broken_of_the_user.py").write_text("raise RuntimeError('no such operator')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("attribute", ["ready", "make", "Net"])
def test_modules_functions_and_classes_give_models_in_eval_mode(attribute: str) -> None:
    model = load_model(f"nets_of_the_user:{attribute}")
    assert model.weight.shape == (3, 2) and not model.training


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nets_of_the_user", "package.module:factory"),
        ("nothing_of_this_name:make", "cannot import"),
        ("nets_of_the_user:absent", "has no 'absent'"),
        ("nets_of_the_user:number", "cannot be called"),
        ("nets_of_the_user:picky", "without arguments"),
        ("nets_of_the_user:wrong", "not an nn.Module"),
        ("nets_of_the_user:failing", "failed. Reason: ValueError: no weights here"),
        ("nets_of_the_user.py:make", "such as nets_of_the_user:make"),
        ("nets_of_the_user.py", "a file, not a network"),
        ("broken_of_the_user:make", "cannot import .* RuntimeError: no such operator"),
    ],
)
def test_wrong_specs_say_what_is_wrong(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_model(spec)


@pytest.mark.parametrize("kind", ["safetensors", "torch", "checkpoint"])
def test_weights_are_loaded(tmp_path: Path, kind: str) -> None:
    state = torch.nn.Linear(2, 3).state_dict()
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pt")
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind == "checkpoint" else state, path)
    assert torch.equal(load_model("nets_of_the_user:make", path).weight, state["weight"])


def test_weights_that_do_not_fit_or_hold_code_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(5, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(InputError, match="do not fit"):
        load_model("nets_of_the_user:make", tmp_path / "other.pt")
    wrapped = {"state_dict": {f"module.{k}": v for k, v in torch.nn.Linear(2, 3).state_dict().items()}}
    torch.save(wrapped, tmp_path / "wrapped.pt")
    with pytest.raises(InputError, match=r"do not fit.*begin with module\.: save those of the module inside of DataP"):
        load_model("nets_of_the_user:make", tmp_path / "wrapped.pt")
    torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pt")
    with pytest.raises(
        InputError, match=r"objects of Python \(torch\.nn\S+Linear\).*Remedy: save.*state_dict"
    ) as caught:
        load_model("nets_of_the_user:make", tmp_path / "whole.pt")
    assert str(caught.value).isprintable() and "trust" not in str(caught.value)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(InputError, match="cannot read these weights"):
        load_model("nets_of_the_user:make", tmp_path / "note.txt")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 9)
    with pytest.raises(InputError, match="cannot read these weights"):
        load_model("nets_of_the_user:make", tmp_path / "broken.safetensors")


def test_recipes_are_presets_by_name_or_files(tmp_path: Path) -> None:
    assert {"default", "fast", "accurate", "images"} <= set(presets())
    for name in presets():
        assert as_recipe(name) == getattr(recipes, name)()
    written = recipes.accurate().save(tmp_path / "mine.toml")
    assert as_recipe(str(written)) == recipes.accurate()
    with pytest.raises(RecipeError, match="nonsense.*presets are .*default"):
        as_recipe("nonsense")
    with pytest.raises(RecipeError, match="absent.toml"):
        as_recipe("absent.toml")
    (tmp_path / "broken.toml").write_text("[recipe\n")
    with pytest.raises(RecipeError, match=r"broken\.toml: recipe: this is not TOML"):
        as_recipe(str(tmp_path / "broken.toml"))
