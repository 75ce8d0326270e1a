"""What a user's modules are called is shown as text."""

from __future__ import annotations

import torch
from torch import nn

import intact8
from intact8.train.branch import Branch

HOSTILE = "\x1b]0;title\x07\x1b[2J\nforged\u202e"


def test_names_of_modules_are_inert() -> None:
    network = nn.Sequential()
    network.add_module("first" + HOSTILE, nn.Conv2d(1, 2, 1))
    network.add_module("second" + HOSTILE, nn.ReLU())
    shown = repr(intact8.prepare(network.eval(), (torch.zeros(2, 1, 4, 4),)))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert not any(line.lstrip().startswith("forged") for line in shown.split("\n"))
    assert "first" in shown and "second" in shown


def test_shown_as_torch_shows_it() -> None:
    class Plain(nn.Module):
        pass

    for kind in (Branch, Plain):
        tree = kind()
        tree.add_module("layer", nn.Linear(1, 2))
        tree.add_module("inside", kind())
        tree.inside.add_module("act", nn.ReLU())
        shown = repr(tree).replace(kind.__name__, "Tree")
        assert shown == SHOWN


SHOWN = """Tree(
  (layer): Linear(in_features=1, out_features=2, bias=True)
  (inside): Tree(
    (act): ReLU()
  )
)"""


def test_recipes_are_shown_inert() -> None:
    recipe = intact8.Recipe(overrides={"layer" + HOSTILE: {"quantize": False}})
    assert all(line.isprintable() for line in str(recipe).split("\n"))
    assert intact8.Recipe.from_toml(recipe.to_toml()) == recipe
