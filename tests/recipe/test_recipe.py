from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact8 import recipes
from intact8.capture.graph import Node
from intact8.errors import RecipeError
from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe, Scheme
from intact8.recipe.scheme import check_activation

INT8 = {"dtype": "int8", "symmetric": True}


@pytest.mark.parametrize(
    ("scheme", "stored"),
    [
        (Scheme(), (0, 255, 0)),
        (Scheme(bits=4), (0, 15, 0)),
        (Scheme(**INT8), (1, 255, 128)),
        (Scheme(**INT8, qmin=-128), (0, 255, 128)),
        (Scheme(dtype="int8"), (0, 255, 128)),
        (Scheme(**INT8, bits=4), (121, 135, 128)),
        (Scheme(qmin=10, qmax=20), (10, 20, 0)),
    ],
    ids=str,
)
def test_stored_range(scheme: Scheme, stored: tuple[int, int, int]) -> None:
    assert scheme.stored() == stored


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "int4"},
        {"bits": 9},
        {"bits": 1},
        {"bits": True},
        {"qmin": 5, "qmax": 5},
        {"qmin": -1},
        {"qmax": 256},
        {"qmin": 0.5},
        {**INT8, "bits": 4, "qmax": 8},
        {"granularity": "per_row"},
        {"symmetric": 1},
        {"observer": None},
        {"observer_args": 3},
        {"fixed": 0.5},
        {"fixed": (0.0, 0)},
        {"fixed": (float("nan"), 0)},
        {"fixed": (0.1, 256)},
        {"fixed": (0.1, 0.5)},
        {**INT8, "fixed": (0.1, 1)},
    ],
    ids=str,
)
def test_schemes_without_meaning(fields: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Scheme(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": Scheme(granularity="per_channel")},
        {"activation": Scheme(symmetric=True, bits=4)},
        {"weight": Scheme()},
        {"weight": Scheme(dtype="int8")},
        {"weight": {"observer": "entropy"}},
        {"weight": {"fixed": (0.1, 0)}},
        {"weight": {"observer": "minmax", "observer_args": {"a": 1}}},
        {"activation": "uint8"},
        {"inputs": [Scheme()]},
        {"inputs": {"x": None}},
        {"overrides": {"x": "float"}},
        {"overrides": {"x": {}}},
        {"overrides": {"": None}},
        {"overrides": {"x": {"activation": None}}},
        {"overrides": {"x": {"quantize": "no"}}},
        {"overrides": 3},
        {"residual": "maybe"},
        {"leaky": True},
        {"portable": "yes"},
        {"engines": "onednn"},
        {"engines": ()},
    ],
    ids=str,
)
def test_recipes_without_meaning(fields: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Recipe(**fields)


@pytest.mark.parametrize(
    ("make", "near"),
    [
        (lambda: Recipe(activation={"obsever": "mse"}), "observer"),
        (lambda: Recipe(overrides={"fc": {"wieght": {}}}), "weight"),
        (lambda: Recipe(overrides={"fc": {"weight": {"bit": 4}}}), "bits"),
        (lambda: Recipe.from_toml("portabel = true"), "portable"),
        (lambda: Recipe.from_toml("[activation]\nsymetric = true"), "symmetric"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known(make: Any, near: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean '{near}'"):
        make()


def test_a_new_observer_forgets_the_arguments_of_the_old_one() -> None:
    tail = Scheme(observer="percentile", observer_args={"percentile": 99.0}, qmax=200)
    assert tail.changed({"observer": "mse"}) == Scheme(observer="mse", qmax=200)
    assert tail.changed({"qmax": 100}).observer_args == {"percentile": 99.0}
    assert tail.changed({"bits": 4}).range == (0, 15)


def test_a_whole_scheme_replaces_everything() -> None:
    rule = Recipe(overrides={"fc": {"activation": Scheme(bits=4)}}).rules[0]
    assert Scheme(qmin=3, fixed=(1.0, 3)).changed(rule.activation) == Scheme(bits=4)


def test_observer_arguments_are_copied() -> None:
    args = {"percentile": 99.0}
    scheme = Scheme(observer="percentile", observer_args=args)
    args["percentile"] = 1.0
    assert scheme.observer_args == {"percentile": 99.0}


def test_toml_by_hand() -> None:
    recipe = Recipe.from_toml(
        """
        residual = "fused"
        [activation]
        observer = "mse"
        [inputs.0]
        fixed = [0.5, 3]
        [overrides.head]
        quantize = false
        [overrides."layer1.*".weight]
        bits = 4
        """
    )
    assert recipe == Recipe(
        activation=Scheme(observer="mse"),
        residual="fused",
        inputs={0: Scheme(observer="mse", fixed=(0.5, 3))},
        overrides={"head": None, "layer1.*": {"weight": {"bits": 4}}},
    )


@pytest.mark.parametrize(
    "name", ["default", "fast", "minmax", "percentile", "accurate", "images", "full_range", "symmetric", "w4a8"]
)
def test_presets_say_when_and_round_trip(name: str) -> None:
    preset = getattr(recipes, name)
    assert preset.__doc__.startswith(("Use when", "Start"))
    assert Recipe.from_toml(preset().to_toml()) == preset()


def test_files(tmp_path: Any) -> None:
    recipe = recipes.images()
    assert Recipe.load(recipe.save(tmp_path / "r.toml")) == recipe
    with pytest.raises(RecipeError, match=r"nowhere"):
        Recipe.load(tmp_path / "nowhere.toml")
    with pytest.raises(RecipeError, match="cannot write"):
        recipe.save(tmp_path / "no" / "r.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(RecipeError, match="not TOML"):
        Recipe.load(tmp_path / "bad.toml")


scales = st.floats(1e-30, 1e30, allow_nan=False)
schemes = st.one_of(
    st.builds(Scheme, bits=st.integers(2, 8), observer=st.sampled_from(["minmax", "mse"]), symmetric=st.just(False)),
    st.builds(Scheme, fixed=st.tuples(scales, st.integers(0, 255))),
    st.builds(Scheme, dtype=st.just("int8"), symmetric=st.just(True), qmin=st.sampled_from([None, -128, -100])),
    st.builds(
        Scheme, observer=st.just("percentile"), observer_args=st.fixed_dictionaries({"percentile": st.floats(90, 100)})
    ),
)
patterns = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
changes = st.one_of(
    schemes, st.fixed_dictionaries({}, optional={"bits": st.integers(2, 8), "qmin": st.none()}).filter(bool)
)
overrides = st.one_of(
    st.none(), st.fixed_dictionaries({"activation": changes}, optional={"input": changes, "quantize": st.booleans()})
)


@settings(max_examples=80, deadline=None)
@given(
    activation=schemes,
    inputs=st.dictionaries(patterns, schemes, max_size=2),
    rules=st.dictionaries(patterns, overrides, max_size=4),
    portable=st.sampled_from([True, False, "auto"]),
)
def test_toml_round_trip_is_exact(activation: Scheme, inputs: Any, rules: Any, portable: bool | str) -> None:
    recipe = Recipe(activation=activation, inputs=inputs, overrides=rules, portable=portable)
    again = Recipe.from_toml(recipe.to_toml())
    assert again == recipe and [r.match for r in again.rules] == list(rules)


def test_one_pattern_twice_survives() -> None:
    recipe = Recipe(
        overrides=[Override("a", quantize=False), Override("b", quantize=True), Override("a", quantize=True)]
    )
    assert Recipe.from_toml(recipe.to_toml()).rules == recipe.rules


def test_a_symmetric_uint8_has_its_zero_point_inside_its_range() -> None:
    scheme = Scheme(symmetric=True)
    assert check_activation(scheme, "x") is scheme
    for outside in ({"qmax": 100}, {"qmin": 130}, {"qmin": 128}, {"qmax": 128}):
        with pytest.raises(RecipeError, match="zero point 128"):
            check_activation(Scheme(symmetric=True, **outside), "x")


def test_there_is_one_set_of_defaults() -> None:
    assert Recipe() == Recipe.from_toml("") == recipes.default() == recipes.as_recipe(None)


def test_a_pattern_names_a_module_and_what_is_in_it() -> None:
    inside, outside = Node("block.fc", "linear", module="block.fc"), Node("fc", "linear", module="fc")
    for pattern, matched in (("block", (True, False)), ("block.*", (True, False)), ("fc", (False, True))):
        assert tuple(Override(pattern, quantize=False).matches(node) for node in (inside, outside)) == matched
    assert Override("add", quantize=False).matches(Node("add", "add"))


def test_a_place_among_the_layers_that_there_is_not_is_refused() -> None:
    """It would name no layer, and the override would be forgotten without a word."""
    with pytest.raises(RecipeError, match=r"match = 'middle'.*first or last or small or behind"):
        Override("layers:middle", quantize=False)


def test_several_names_in_one_match_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"match = \['a', 'b'\].*an override for each"):
        Recipe.from_toml("[[overrides]]\nmatch = ['a', 'b']\nquantize = false")


def test_a_dtype_of_fewer_bits_names_the_two_fields() -> None:
    with pytest.raises(RecipeError, match=r"dtype = 'int4'.*dtype=\"int8\", bits=4"):
        Scheme(dtype="int4")
    for bits in ((4, "8"), ("4", 8)):
        with pytest.raises(RecipeError, match="is not an integer"):
            recipes.reconstruct(*bits)  # type: ignore[arg-type]


WRONG = [None, "8", b"8", 8.5, True, math.nan, [8], {}, set(), object(), np.array([4, 8]), np.array(None)]
"""What numbers and names of recipes are not."""


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_a_value_of_any_wrong_type_is_refused_in_words(value: Any) -> None:
    """Comparisons came before checks: they raised TypeError for None and texts, ValueError for arrays."""
    calls: list[Callable[[], Any]] = [
        lambda: Scheme(bits=value),
        lambda: Scheme(dtype=value),
        lambda: Scheme(fixed=(0.1, value)),
        lambda: Scheme().changed({"bits": value}),
        lambda: Scheme().changed({"granularity": value}),
        lambda: Recipe(weight={"bits": value}),
        lambda: Recipe(mode=value),
        lambda: Recipe(group=value),
        lambda: Recipe(scales=value),
        lambda: Recipe(reconstruction=value),
        lambda: recipes.dynamic(bits=value),
        lambda: recipes.dynamic(rows=value),
        lambda: recipes.weight_only(bits=value),
        lambda: recipes.qat(scales=value),
        lambda: recipes.qat(bits=value),
        lambda: recipes.qat(activation_bits=value),
        lambda: recipes.reconstruct(bits=value),
        lambda: recipes.reconstruct(activation_bits=value),
        lambda: recipes.reconstruct(method=value),
        lambda: recipes.reconstruct(samples=value),
    ]
    if value is not None:
        calls += [lambda: Override("fc", mode=value), lambda: recipes.weight_only(group=value)]
    if not isinstance(value, str):
        calls.append(lambda: recipes.reconstruct(eight=[value]))
    if not isinstance(value, float) or math.isnan(value):
        calls.append(lambda: Scheme(fixed=(value, 0)))
    for call in calls:
        with pytest.raises(RecipeError):
            call()


def test_arguments_of_presets_and_of_reconstruction_say_what_to_give() -> None:
    with pytest.raises(RecipeError, match="eight = 3.*pattern of modules"):
        recipes.reconstruct(eight=3)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r"iterations = 8\.5.*give an integer"):
        recipes.reconstruct(iterations=8.5)
    with pytest.raises(RecipeError, match="deferred = 1.*true or false"):
        recipes.reconstruct(deferred=1)
    with pytest.raises(RecipeError, match=r"rate = nan.*give a number"):
        recipes.reconstruct(rate=math.nan)
    with pytest.raises(RecipeError, match="bits = None is not an integer"):
        recipes.qat(bits=None)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="smooth = 1000"):
        Recipe(smooth=10**400)
    with pytest.raises(RecipeError, match="fixed = .1000"):
        Scheme(fixed=(10**400, 0))


@pytest.mark.parametrize("text", [b"portable = true", 3, None, Path("a.toml")], ids=lambda text: type(text).__name__)
def test_what_is_no_text_is_no_toml(text: Any) -> None:
    with pytest.raises(
        RecipeError, match=rf"expected TOML as text, got {type(text).__name__}.*Recipe.load reads a file"
    ):
        Recipe.from_toml(text)
