"""What the user asks for: which numbers each tensor and weight gets, by module name, glob or type."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import tomli_w

from intact8.arithmetic.dynamic import GRANULARITIES
from intact8.atomic_write import write_atomically
from intact8.errors import RecipeError
from intact8.regular_file import bytes_of, path_of, unwritable
from intact8.text import printable_lines

from .override import MODES, Override, as_overrides
from .scheme import Scheme, check_activation, check_bool, check_keys, check_weight, is_number, one_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEARNED = ("learned", "lsq+", "pact")
LEARNED_ROUNDINGS = ("adaround", "brecq", "qdrop", "distill")
RECONSTRUCTIONS = ("none", "gptq", *LEARNED_ROUNDINGS)
WHOLE_ARGUMENTS = ("iterations", "samples", "batch", "seed")
FLOAT_BETWEEN_LAYERS = ("float_residual", "float")
CHOSEN_BETWEEN_LAYERS = ("auto", "nearest")
"""Values that leave it to calibration, which begins with "integer"."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": MODES,
    "rows": GRANULARITIES,
    "residual": ("separate", "fused"),
    "leaky": ("fused", "table"),
    "attention": ("integer", "float"),
    "between_layers": (*CHOSEN_BETWEEN_LAYERS, "integer", *FLOAT_BETWEEN_LAYERS),
    "nonlinear": ("float", "integer"),
    "scales": ("calibrated", "fixed", "observed", *LEARNED),
    "scale_gradient": ("lsq", "plain"),
    "reconstruction": RECONSTRUCTIONS,
}
"""Field of a recipe → the values it may have."""


def _weight() -> Scheme:
    return Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer="minmax")


@dataclass(frozen=True)
class Recipe:
    """How to quantize a network.

    Attributes:
        activation: the scheme of every activation.
        weight: the scheme of every weight. A mapping, here and above, changes fields of the default.
        mode: what is quantized. "static": weights and, with scales known ahead, activations; "dynamic": the weights of
            linear and recurrent layers and the rows of embeddings, activations when the network runs (results are
            float32, and exact); "weight_only": the weights of linear layers and the rows of embeddings, which are
            stored as integers and multiplied as floats. Everything else stays float in the last two.
        rows: scales of activations in mode dynamic: "per_row", or "per_tensor" (results then depend on the batch).
        group: columns of a weight that share a scale in mode weight_only; 0: whole rows.
        inputs: schemes of network inputs by name, glob or position; a mapping changes fields of ``activation``.
        overrides: {pattern: None (stay float) or {"activation": …, "weight": …, "input": …, "quantize": bool,
            "mode": …}}. Later ones win. Read it back as ``rules``. See :class:`Override` for the patterns.
        portable: choose weight scales so that CPUs without VNNI compute the same integers on every engine: True, False
            (the native engine does all the same, others need VNNI), or "auto": True, but calibration takes False where
            outputs are worse than plain W8A8 leaves them however little is rounded between layers.
        residual: "fused": conv + add + activation with one rounding; "separate": two, which every engine runs natively.
        leaky: "fused": leaky ReLU and PReLU with one rounding; "table": after an 8-bit result.
        attention: products of two activations: "integer" where both operands can be had as integers; "float": in the
            float island of the softmax between them.
        between_layers: how sums, products, pooling, activation functions and attention between convolutions and
            linear layers compute. "integer": on integers where they can, each result rounded to a grid;
            "float_residual": sums of two tensors are float32, so that a residual stream is not rounded; "float": all
            are, and only the weights and inputs of layers are rounded (plain W8A8); "auto": "integer", but
            calibration takes a more precise one where outputs are worse than plain W8A8 leaves them;
            "nearest": the same, and takes what brings outputs below 32 dB nearer to float by 0.2 dB or more: residual
            sums and products of attention in float32, then everything.
        nonlinear: softmax, layer norm, RMS norm and embeddings: "float" islands; "integer": exact on integers (see
            docs/arithmetic.md), so that a whole encoder is one integer program.
        engines: the engines the program is certified for.
        bias_correction: correct biases for the mean error the rounded weights make.
        equalize: bring the ranges of channels nearer to each other where it is exact in float and nothing is lost:
            between a convolution and a depthwise one, and between layers and float operations.
        smooth: the same before linear maps and convolutions, whose weights take what activations give up (SmoothQuant,
            Xiao et al. 2023): the α of equation 4, 0 < α ≤ 1, how much of it; 0 is off, which calibration makes
            "auto" where outputs are far from float and come much nearer, if ``between_layers`` is "auto"; "auto": 0.5,
            or for single tensors what leaves at most a quarter of its noise in the layers behind them.
        scales: what scales do in training. "calibrated": activations' stay, weights' are computed anew by every
            evaluation (nothing but calibration decides); "fixed": all stay, so that training computes the deployed
            integers from its first step; "observed": activations' follow their observers, weights' the weights;
            "learned": all are parameters (LSQ, Esser et al. 2020); "lsq+": and so are activations' zero points, by
            the lower ends of their ranges (Bhalgat et al. 2020); "pact": activations' clips are parameters, weights'
            scales follow the weights (Choi et al. 2018). See ``intact8.train``.
        reconstruction: how weights are rounded. "none": to the nearest integer; "gptq": by the covariance of what their
            layer reads, so that the errors of the layer's results are small (GPTQ, Frantar et al. 2023); "adaround",
            "brecq", "qdrop": learned, with the scales of activations, layer by layer or block by block
            (``intact8.reconstruct``); "distill": by covariance, then all layers together, with biases and scales, by
            the error of the outputs (with ``scales`` that are learned).
        reconstruction_args: how they are learned: iterations, samples, batch, rate, scale_rate, seed, deferred; see
            ``intact8.reconstruct``.
        scale_gradient: the gradient of a learned scale, offset or clip: "lsq" (times 1/√(n·Q), for one learning rate
            with the weights), "plain".

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
    mode: str = "static"
    rows: str = "per_row"
    group: int = 0
    portable: bool | str = "auto"
    residual: str = "separate"
    leaky: str = "fused"
    attention: str = "integer"
    nonlinear: str = "float"
    between_layers: str = "auto"
    engines: tuple[str, ...] = ("reference", "onednn", "onnxruntime", "openvino")
    bias_correction: bool = True
    equalize: bool = True
    smooth: float | str = 0.0
    scales: str = "calibrated"
    scale_gradient: str = "lsq"
    reconstruction: str = "none"
    reconstruction_args: Mapping[str, Any] = field(default_factory=dict, hash=False)

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
        for name, known in CHOICES.items():
            one_of(name, getattr(self, name), known, "Recipe")
        arguments = self.reconstruction_args
        if not isinstance(arguments, Mapping):
            remedy = 'give {"iterations": 1000}'
            raise RecipeError(f"reconstruction_args = {arguments!r}", where="Recipe", remedy=remedy)
        for name, value in arguments.items():
            whole = name not in WHOLE_ARGUMENTS or isinstance(value, int)
            if not (isinstance(value, bool) if name == "deferred" else is_number(value) and whole):
                remedy = "give true or false" if name == "deferred" else "give a number" if whole else "give an integer"
                raise RecipeError(f"{name} = {value!r}", where="Recipe.reconstruction_args", remedy=remedy)
        put(self, "reconstruction_args", dict(arguments))
        if self.reconstruction == "distill" and not self.learns:
            what, why = f"scales = {self.scales!r}", 'reconstruction = "distill" learns scales'
            raise RecipeError(what, where="Recipe", why=why, remedy='say scales = "lsq+"')
        if isinstance(self.group, bool) or not isinstance(self.group, int) or self.group < 0:
            raise RecipeError(f"group = {self.group!r}", where="Recipe", remedy="give a number of columns, or 0")
        for name in ("portable", "bias_correction", "equalize"):
            value = getattr(self, name)
            if not (name == "portable" and isinstance(value, str) and value == "auto"):
                check_bool(name, value, "Recipe")
        if not isinstance(self.smooth, str) or self.smooth != "auto":
            if not (is_number(self.smooth) and 0 <= float(self.smooth) <= 1):
                remedy = 'give 0 (off) to 1, or "auto"; 0.5 is the customary α'
                raise RecipeError(f"smooth = {self.smooth!r}", where="Recipe", remedy=remedy)
            put(self, "smooth", float(self.smooth))
        names = isinstance(self.engines, Sequence) and not isinstance(self.engines, str) and len(self.engines) > 0
        if not names or not all(isinstance(e, str) for e in self.engines):
            what = f"engines = {self.engines!r}"
            raise RecipeError(what, where="Recipe", remedy='give at least one name: engines=("reference", "onednn")')
        put(self, "engines", tuple(self.engines))

    @property
    def rounds_between_layers(self) -> str:
        """Return what ``between_layers`` says, and what calibration begins with where that is left to it."""
        return "integer" if self.between_layers in CHOSEN_BETWEEN_LAYERS else self.between_layers

    @property
    def learns(self) -> bool:
        """Return whether training moves parameters that decide scales."""
        return self.scales in LEARNED

    @property
    def rules(self) -> tuple[Override, ...]:
        """Return the overrides in order; later ones win."""
        return cast("tuple[Override, ...]", self.overrides)

    def __str__(self) -> str:
        """Return the recipe as TOML, to be read by people: :meth:`to_toml` gives what a file holds."""
        return printable_lines(self.to_toml())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_toml(self) -> str:
        """Return the recipe as TOML, every field written out, so that later defaults cannot change what it means."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values["engines"] = list(self.engines)
        for name in ("inputs", "overrides", "activation", "weight"):
            del values[name]
        values["activation"], values["weight"] = self.activation.to_dict(), self.weight.to_dict()
        # These are read as changes of ``activation``: what is empty here and given there has to be written.
        given = self.activation.to_dict()
        values["inputs"] = {
            name: {**dict.fromkeys(given, "none"), **scheme.to_dict()} for name, scheme in self.inputs.items()
        }
        # This is a list, because one pattern may come twice and order matters.
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
        if not isinstance(text, str):
            remedy = "give the text itself; Recipe.load reads a file"
            raise RecipeError(f"expected TOML as text, got {type(text).__name__}", where="recipe", remedy=remedy)
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            remedy = "repair the line named"
            raise RecipeError("this is not TOML", where="recipe", why=str(error), remedy=remedy) from error
        check_keys(values, [f.name for f in fields(Recipe)], "recipe")
        overrides = values.get("overrides", {})
        if isinstance(overrides, list):
            values["overrides"] = tuple(_listed(entry) for entry in overrides)
        return Recipe(**values)

    def save(self, path: str | Path) -> Path:
        """Write :meth:`to_toml` to a file and return its path."""
        path = path_of(path, "the recipe", RecipeError)
        try:
            write_atomically(path, self.to_toml().encode())
        except OSError as error:
            raise unwritable(path, "the recipe", RecipeError, error) from error
        return path

    @staticmethod
    def load(path: str | Path) -> Recipe:
        """Read a recipe from a TOML file."""
        try:
            text = bytes_of(path, "the recipe", RecipeError).decode()
        except UnicodeDecodeError as error:
            remedy = "write it in UTF-8"
            raise RecipeError("this is no text", where=str(path), why=str(error), remedy=remedy) from error
        try:
            return Recipe.from_toml(text)
        except RecipeError as error:
            raise RecipeError(error.what, where=f"{path}: {error.where}", why=error.why, remedy=error.remedy) from error


def _scheme(base: Scheme, given: Any, where: str) -> Scheme:
    if isinstance(given, (Scheme, Mapping)):
        return base.changed(given, where=where)
    raise RecipeError(f"{given!r} is not a scheme", where=where, remedy="give a Scheme, or some of its fields")


def _listed(entry: Any) -> Override:
    if not isinstance(entry, Mapping) or "match" not in entry:
        raise RecipeError(f"override {entry!r} has no match", where="recipe", remedy='write match = "layer1.*"')
    rest = {k: v for k, v in entry.items() if k != "match"}
    if not isinstance(entry["match"], str):
        remedy = "write one name, glob or type:NAME as text; an override for each"
        raise RecipeError(f"override with match = {entry['match']!r}", where="recipe", remedy=remedy)
    return as_overrides({entry["match"]: rest})[0]


__all__ = ["Override", "Recipe", "Scheme"]
