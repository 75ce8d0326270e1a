"""What the user asks for: which numbers each tensor and weight gets, by module name, glob or type."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import tomli_w

from intact.errors import RecipeError

from .override import Override, as_overrides
from .scheme import Scheme, check_activation, check_keys, check_weight

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESIDUALS = ("separate", "fused")
LEAKY = ("fused", "table")
SCALES = ("calibrated", "fixed", "observed", "learned")
SCALE_GRADIENTS = ("lsq", "plain")


def _weight() -> Scheme:
    return Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer="minmax")


@dataclass(frozen=True)
class Recipe:
    """How to quantize a network.

    Attributes:
        activation: the scheme of every activation.
        weight: the scheme of every weight. A mapping, here and above, changes fields of the default.
        inputs: schemes of network inputs by name, glob or position; a mapping changes fields of ``activation``.
        overrides: {pattern: None (stay float) or {"activation": …, "weight": …, "input": …, "quantize": bool}}. Later
            ones win. Read it back as ``rules``. See :class:`Override` for the patterns.
        portable: choose weight scales so that CPUs without VNNI compute the same integers.
        residual: "fused": conv + add + activation with one rounding; "separate": two, which every engine runs natively.
        leaky: "fused": leaky ReLU and PReLU with one rounding; "table": after an 8-bit result.
        engines: the engines the program is certified for.
        bias_correction: correct biases for the mean error the rounded weights make.
        equalize: give the channels between a convolution and a depthwise one the same range. Exact in float, and free:
            every depthwise channel has a weight scale of its own.
        scales: what scales do in training. "calibrated": activations' stay, weights' are computed anew by every
            evaluation (nothing but calibration decides); "fixed": all stay, so that training computes the deployed
            integers from its first step; "observed": activations' follow their observers, weights' the weights;
            "learned": all are parameters (Esser et al. 2020). See ``intact.train``.
        scale_gradient: the gradient of a learned scale: "lsq" (times 1/√(n·Q), for one learning rate with the
            weights), "plain".

    Raises:
        RecipeError: an unknown key or a value without meaning.

    Example:
        >>> recipe = Recipe(overrides={"classifier.*": None, "type:Conv2d": {"weight": {"observer": "mse"}}})
        >>> Recipe.from_toml(recipe.to_toml()) == recipe
        True
    """

    activation: Scheme = field(default_factory=Scheme)
    weight: Scheme = field(default_factory=_weight)
    inputs: Mapping[str, Scheme] = field(default_factory=dict, hash=False)
    overrides: Mapping[str, Any] | Sequence[Override] = field(default=(), hash=False)
    portable: bool = True
    residual: str = "separate"
    leaky: str = "fused"
    engines: tuple[str, ...] = ("reference", "onednn", "onnxruntime")
    bias_correction: bool = False
    equalize: bool = True
    scales: str = "calibrated"
    scale_gradient: str = "lsq"

    def __post_init__(self) -> None:
        put = object.__setattr__
        activation = _scheme(Scheme(), self.activation, "Recipe.activation")
        put(self, "activation", check_activation(activation, "Recipe.activation"))
        put(self, "weight", check_weight(_scheme(_weight(), self.weight, "Recipe.weight"), "Recipe.weight"))
        if not isinstance(self.inputs, Mapping):
            raise RecipeError(f"inputs = {self.inputs!r}", where="Recipe", remedy="give {name or position: Scheme}")
        inputs = {str(k): _scheme(self.activation, v, f"Recipe.inputs[{k!r}]") for k, v in self.inputs.items()}
        put(self, "inputs", {k: check_activation(v, f"Recipe.inputs[{k!r}]") for k, v in inputs.items()})
        put(self, "overrides", as_overrides(self.overrides))
        for name, known in (
            ("residual", RESIDUALS),
            ("leaky", LEAKY),
            ("scales", SCALES),
            ("scale_gradient", SCALE_GRADIENTS),
        ):
            if getattr(self, name) not in known:
                raise RecipeError(
                    f"{name} = {getattr(self, name)!r}", where="Recipe", remedy="choose " + " or ".join(known)
                )
        for name in ("portable", "bias_correction", "equalize"):
            if not isinstance(getattr(self, name), bool):
                raise RecipeError(
                    f"{name} = {getattr(self, name)!r} is no bool", where="Recipe", remedy="give true or false"
                )
        names = isinstance(self.engines, Sequence) and not isinstance(self.engines, str) and len(self.engines) > 0
        if not names or not all(isinstance(e, str) for e in self.engines):
            raise RecipeError(
                f"engines = {self.engines!r}",
                where="Recipe",
                remedy='give at least one name: engines=("reference", "onednn")',
            )
        put(self, "engines", tuple(self.engines))

    @property
    def rules(self) -> tuple[Override, ...]:
        """The overrides in order; later ones win."""
        return cast("tuple[Override, ...]", self.overrides)

    def to_toml(self) -> str:
        """The recipe as TOML, every field written out, so that later defaults cannot change what it means."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values["engines"] = list(self.engines)
        for name in ("inputs", "overrides", "activation", "weight"):
            del values[name]
        values["activation"], values["weight"] = self.activation.to_dict(), self.weight.to_dict()
        # Read back as changes of ``activation``, so what is empty here and given there has to say so.
        given = self.activation.to_dict()
        values["inputs"] = {
            name: {**dict.fromkeys(given, "none"), **scheme.to_dict()} for name, scheme in self.inputs.items()
        }
        # A list, because one pattern may come twice and order matters.
        values["overrides"] = [{"match": rule.match, **rule.to_dict()} for rule in self.rules]
        return tomli_w.dumps({k: v for k, v in values.items() if v not in ({}, [])})

    @staticmethod
    def from_toml(text: str) -> Recipe:
        """Read what :meth:`to_toml` wrote, or what a person did.

        Overrides may be tables ``[overrides."layer1.*"]`` or a list ``[[overrides]]`` with ``match``.

        Example:
            >>> Recipe.from_toml('''[overrides."fc"]
            ... quantize = false''').rules[0].match
            'fc'
        """
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(
                "this is no TOML", where="recipe", why=str(error), remedy="repair the line named"
            ) from error
        check_keys(values, [f.name for f in fields(Recipe)], "recipe")
        overrides = values.get("overrides", {})
        if isinstance(overrides, list):
            values["overrides"] = tuple(_listed(entry) for entry in overrides)
        return Recipe(**values)

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_toml` to a file and return its path."""
        path = Path(path)
        try:
            path.write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise RecipeError(
                "cannot write the recipe", where=str(path), why=str(error), remedy="choose another path"
            ) from error
        return path

    @staticmethod
    def load(path: str | Path) -> Recipe:
        """Read a recipe from a TOML file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                "cannot read the recipe", where=str(path), why=str(error), remedy="check the path"
            ) from error
        return Recipe.from_toml(text)


def _scheme(base: Scheme, given: Any, where: str) -> Scheme:
    if isinstance(given, (Scheme, Mapping)):
        return base.changed(given, where=where)
    raise RecipeError(f"{given!r} is no scheme", where=where, remedy="give a Scheme, or some of its fields")


def _listed(entry: Any) -> Override:
    if not isinstance(entry, Mapping) or "match" not in entry:
        raise RecipeError(f"override {entry!r} has no match", where="recipe", remedy='write match = "layer1.*"')
    rest = {k: v for k, v in entry.items() if k != "match"}
    return as_overrides({entry["match"]: rest})[0]


__all__ = ["Override", "Recipe", "Scheme"]
