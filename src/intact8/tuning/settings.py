"""Settings of a recipe that cost no time, or little, and may be worth trying on any network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any

from intact8.capture.operations import NONLINEAR
from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe

Setting = Callable[[Recipe], Recipe]


def settings(recipe: Recipe, operations: Set[str]) -> dict[str, Setting]:
    """Return by name the changes of a recipe that are not in force and may matter to a network of these operations.

    Example:
        >>> settings(Recipe(), {"conv"})["ranges of activations by mse"](Recipe()).activation.observer
        'mse'
    """
    changes: dict[str, Setting] = {
        f"ranges of activations by {name}": partial(_observe, observer=name)
        for name in ("histogram", "mse", "output", "minmax", "percentile")
    }
    changes |= {
        "ranges of weights by mse": _weights_by_mse,
        "bias correction": partial(_with, bias_correction=True),
        "equalization": partial(_with, equalize=True),
        "weights rounded by the covariance of inputs": partial(_with, reconstruction="gptq"),
    }
    if operations & {"conv", "linear"}:
        changes["smoothing"] = partial(_with, smooth=recipe.smooth or "auto")
    if operations & NONLINEAR:
        changes["softmax, norms and embeddings in float"] = partial(_with, nonlinear="float")
    if "matmul" in operations:
        changes["attention in float"] = partial(_with, attention="float")
    return _effective(recipe, changes)


def between_layers(recipe: Recipe, operations: Set[str]) -> dict[str, Setting]:
    """Return by name the changes that compute more between layers in float32, which takes time.

    Example:
        >>> [change(Recipe()).between_layers for change in between_layers(Recipe(), {"conv", "add"}).values()]
        ['float_residual', 'float']
    """
    names = {"everything between layers in float32": "float"}
    if operations & {"add", "sub"}:
        names = {"residual sums in float32": "float_residual", **names}
    further = {name: value for name, value in names.items() if value != recipe.rounds_between_layers}
    return _effective(recipe, {name: partial(_with, between_layers=value) for name, value in further.items()})


def keep_float(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Return a recipe in which these operations stay float as well."""
    return replace(recipe, overrides=(*recipe.rules, *(Override(name, quantize=False) for name in names)))


def make_dynamic(recipe: Recipe, names: Iterable[str]) -> Recipe:
    """Return a recipe in which these layers find the scales of their inputs when they run."""
    return replace(recipe, overrides=(*recipe.rules, *(Override(name, mode="dynamic") for name in names)))


def _effective(recipe: Recipe, changes: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the changes that are not in force already."""
    return {name: change for name, change in changes.items() if change(recipe) != recipe}


def _observe(recipe: Recipe, observer: str) -> Recipe:
    return replace(recipe, activation=recipe.activation.changed({"observer": observer}))


def _weights_by_mse(recipe: Recipe) -> Recipe:
    return replace(recipe, weight=recipe.weight.changed({"observer": "mse"}))


def _with(recipe: Recipe, **changes: Any) -> Recipe:
    return replace(recipe, **changes)
