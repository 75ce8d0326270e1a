"""Presets: recipes with a sentence on when to use each. All of them are ordinary recipes; change what you like.

Example:
    >>> import dataclasses
    >>> from intact8 import recipes
    >>> dataclasses.replace(recipes.default(), overrides={"fc": None}).rules[0].quantize
    False
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intact8 import missing_torch

try:
    import torch  # noqa: F401 - recipes have schemes, and these observers
except ImportError as error:
    raise missing_torch(__name__, error) from error

from intact8.errors import RecipeError
from intact8.recipe.override import Override
from intact8.recipe.recipe import LEARNED, Recipe, Scheme
from intact8.recipe.scheme import one_of


def default() -> Recipe:
    """Start here: clips of least error for activations, one scale per weight channel, every engine and CPU."""
    return Recipe()


def fast() -> Recipe:
    """Use when only the onednn engine runs the program: residual adds join convolutions, 12–19 % faster there,
    and products of two activations stay float, 8 % faster for an encoder.
    """
    return replace(default(), residual="fused", attention="float", engines=("reference", "onednn"))


def minmax() -> Recipe:
    """Use when calibration data shows the true ranges, nothing may be clipped, or results must be easy to explain."""
    return Recipe(activation=Scheme(observer="minmax"), bias_correction=False)


def percentile() -> Recipe:
    """Use when a few extreme activations stretch the ranges and you want to say yourself how much is cut off."""
    return Recipe(activation=Scheme(observer="percentile"), bias_correction=False)


def accurate() -> Recipe:
    """Use when the default loses too much (small, depthwise networks): errors choose ranges, weights and roundings."""
    return Recipe(
        activation=Scheme(observer="output"),
        weight=Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer="mse"),
        smooth="auto",
        reconstruction="gptq",
        between_layers="nearest",
    )


def images() -> Recipe:
    """Use when every input is an image with values k/255: the bytes themselves are the integers (scale 1/255)."""
    return replace(default(), inputs={"*": Scheme(fixed=(1 / 255, 0))})


def detector() -> Recipe:
    """Use when a network computes with the results of its last layers, as detectors decode boxes: both are float32."""
    return replace(default(), overrides={"layers:behind": None})


def transformer() -> Recipe:
    """Use when a transformer gets static scales: outlier channels are shared with the weights that read them."""
    return replace(default(), smooth="auto")


def integer() -> Recipe:
    """Use when a transformer should be one integer program: softmax, norms and embeddings as integers, too."""
    return replace(default(), nonlinear="integer")


def full_range() -> Recipe:
    """Use when every CPU that will run the program has VNNI: weights use [−128, 127] without room for pair sums."""
    weight = Scheme(dtype="int8", symmetric=True, qmin=-128, granularity="per_channel", observer="minmax")
    return Recipe(weight=weight, portable=False, bias_correction=False)


def symmetric() -> Recipe:
    """Use when qparams go on to hardware with symmetric int8 activations only; costs a bit of range after ReLU."""
    return Recipe(activation=Scheme(dtype="int8", symmetric=True), bias_correction=False)


def w4a8() -> Recipe:
    """Use when files must be half as large, or memory limits the speed: weights of 4 bits, error-minimal scales in
    [−7, 7].

    The native engine keeps them in 4 bits and unpacks them in registers: layers whose weights do not fit the caches
    (linear layers of one row) are up to three times as fast as in int8; convolutions are as fast.
    """
    weight = Scheme(dtype="int8", bits=4, symmetric=True, granularity="per_channel", observer="mse")
    return Recipe(activation=Scheme(observer="mse"), weight=weight, bias_correction=False)


def dynamic(rows: str = "per_row", bits: int = 8) -> Recipe:
    """Use when activations differ too much from input to input for scales known ahead, or no calibration data exist:
    linear and recurrent layers multiply integers, with a scale for every row that is found when the network runs.

    Results are float32, and the same bits on every engine. Activation functions, norms, residuals and convolutions stay
    float; rows of embeddings are stored as integers. No calibration data are needed beyond one example.

    Args:
        rows: "per_row", or "per_tensor": one scale for the whole tensor, so that results depend on the batch.
        bits: of weights, 8 or 4: half the file, and faster where weights do not fit the caches (decoders).

    Raises:
        RecipeError: other bits.

    Example:
        >>> import intact8, torch
        >>> intact8.quantize(torch.nn.Linear(4, 2), torch.randn(1, 4), recipe=dynamic()).ops[0].kind
        'dynamic_linear'
    """
    stored = _stored(bits, "recipes.dynamic")
    weight = Recipe().weight if stored.bits == 8 else stored
    return Recipe(weight=weight, mode="dynamic", rows=rows, equalize=False, bias_correction=False)


def _stored(bits: int, where: str) -> Scheme:
    """Return the scheme of weights that are stored in 8 or 4 bits."""
    if isinstance(bits, bool) or not isinstance(bits, int) or bits not in (4, 8):
        raise RecipeError(f"bits = {bits!r}", where=where, remedy="choose 4 or 8")
    observer = "minmax" if bits == 8 else "mse"
    return Scheme(dtype="int8", bits=bits, symmetric=True, granularity="per_channel", observer=observer)


def weight_only(bits: int = 8, group: int | None = None) -> Recipe:
    """Use when files have to be small: linear layers and embeddings store integers of 8 or 4 bits, and multiply floats.

    Speed is that of float32, and so are results: a float island.

    Args:
        bits: 8, or 4 (two weights per byte).
        group: columns that share a scale; None: one scale per row. 32 is customary for 4 bits.

    Raises:
        RecipeError: other bits.

    Example:
        >>> weight_only(4, group=32).weight.range
        (-7, 7)
    """
    return Recipe(
        weight=_stored(bits, "recipes.weight_only"),
        mode="weight_only",
        group=0 if group is None else group,
        portable=False,
        equalize=False,
        bias_correction=False,
    )


def qat(scales: str = "learned", *, bits: int = 8, activation_bits: int = 8) -> Recipe:
    """Use when the network is trained further (``intact8.train``): the simulation trains on the integers that ship.

    Args:
        scales: "learned": parameters of the optimizer, from where calibration left them (LSQ; with activations of fewer
            than 8 bits LSQ+, where a zero point decides more); "lsq+": zero points of activations as well, for
            activations that are negative, too (SiLU, leaky ReLU); "pact": activations'
            clips, with a penalty (:func:`intact8.train.clipping_penalty`); "observed": activations'
            follow a moving average of each batch's extremes, weights' the weights; "fixed": as calibrated, so that
            training computes the deployed integers from its first step.
        bits, activation_bits: 2 to 8. Fewer than 8 are stored as int8.

    Raises:
        RecipeError: ``scales`` is none of these, or so many bits cannot be stored.

    Example:
        >>> from intact8 import recipes
        >>> recipes.qat("observed").activation.observer
        'moving_average'
        >>> recipes.qat(bits=4, activation_bits=4).scales
        'lsq+'
    """
    one_of("scales", scales, (*LEARNED, "observed", "fixed"), "recipes.qat")
    fine = "histogram" if isinstance(activation_bits, int) and activation_bits == 8 else "mse"
    activation = Scheme(bits=activation_bits, observer="moving_average" if scales == "observed" else fine)
    if scales == "learned" and activation_bits < 8:
        scales = "lsq+"
    return Recipe(
        activation=activation,
        weight=Scheme(
            dtype="int8",
            bits=bits,
            symmetric=True,
            granularity="per_channel",
            observer="minmax" if isinstance(bits, int) and bits == 8 else "mse",
        ),
        scales=scales,
        # PACT has no factor of its own; LSQ's would shrink its gradients, and the penalty's, by a thousand times.
        scale_gradient="plain" if scales == "pact" else "lsq",
        bias_correction=False,
    )


def reconstruct(
    bits: int = 4,
    activation_bits: int = 8,
    *,
    method: str = "distill",
    eight: str | Sequence[str] | None = None,
    **arguments: Any,
) -> Recipe:
    """Use when few bits have to do without training: integers, biases and scales are learned on calibration data,
    without labels.

    Calibration takes minutes then. Inputs of the network have 8 bits in any case. By default so do the weights of small
    layers, which together hold a twentieth of all weights (``layers:small``: depthwise convolutions and those next to
    the image make most of the noise at 4 bits, and would save next to nothing), and with activations of fewer bits what
    the first and the last layer return.

    Args:
        bits, activation_bits: 2 to 8. Fewer than 8 are stored as int8, weights of 4 as 4.
        method: "distill" (all layers together, with biases, by the error of the outputs; the least error in every
            network measured), "adaround" (layer by layer), "brecq" (blocks) or "qdrop" (blocks, activations randomly
            not rounded). All but the first also serve networks whose outputs have no row for every sample.
        eight: a pattern of modules, or several, that keep 8 bits in place of these, weights and results, as a recipe's
            overrides: by custom ``("layers:first", "layers:last")``.
        arguments: iterations, samples, batch, rate, scale_rate, seed, deferred; see ``intact8.reconstruct``.

    Raises:
        RecipeError: an unknown method, or bits that cannot be stored.

    Example:
        >>> reconstruct(4, 8, iterations=200).weight.range
        (-7, 7)
    """
    weight = Scheme(dtype="int8", bits=bits, symmetric=True, granularity="per_channel", observer="mse")
    activation, fine = Scheme(bits=activation_bits, observer="mse"), {"bits": 8}
    together = isinstance(method, str) and method == "distill"
    if together:
        arguments = {"rate": 2e-3} | arguments  # relative to weights, not steps of the grid
    if eight is None:
        overrides = [Override("layers:small", weight=fine)] if bits < 8 else []
        if activation_bits < 8:
            overrides += [Override(f"layers:{role}", activation=fine) for role in ("first", "last")]
    else:
        patterns = [eight] if isinstance(eight, str) else eight
        if not isinstance(patterns, Sequence) or isinstance(patterns, bytes):
            remedy = "give a pattern of modules as text, or a list of them"
            raise RecipeError(f"eight = {eight!r}", where="recipes.reconstruct", remedy=remedy)
        overrides = [Override(name, activation=fine, weight=fine) for name in patterns]
    return Recipe(
        activation=activation,
        weight=weight,
        inputs={"*": Scheme(observer="mse")},
        overrides=overrides,
        scales="lsq+" if together else "calibrated",
        reconstruction=method,
        reconstruction_args=arguments,
    )


def presets() -> dict[str, Callable[[], Recipe]]:
    """Return name → function of every preset that needs no arguments.

    Example:
        >>> presets()["default"]() == Recipe()
        True
    """
    found: dict[str, Callable[[], Recipe]] = {}
    for name, function in globals().items():
        if inspect.isfunction(function) and function.__module__ == __name__:
            signature = inspect.signature(function)
            defaults = all(p.default is not p.empty for p in signature.parameters.values())
            if defaults and signature.return_annotation == "Recipe":
                found[name] = function
    return found


def as_recipe(given: Recipe | str | Path | None) -> Recipe:
    """Return a recipe, the preset of a name, or the recipe of a TOML file; the default one for None.

    Raises:
        RecipeError: there is no such preset or file, the file is malformed, or ``given`` is something else.

    Example:
        >>> as_recipe("accurate") == accurate()
        True
    """
    if given is None or isinstance(given, Recipe):
        return default() if given is None else given
    if not isinstance(given, str | Path):
        remedy = 'give intact8.Recipe(…), the name of a preset ("accurate") or the path of a TOML file'
        if "QConfig" in type(given).__name__ or type(given).__name__.endswith(("Quantizer", "BackendConfig")):
            remedy = "call intact8.migration.recipe.recipe_of(it, model), and give the recipe that it returns"
        raise RecipeError(f"expected an intact8.Recipe, got {type(given).__name__}", where="recipe", remedy=remedy)
    path, known = Path(given), presets()
    if isinstance(given, Path) or path.suffix == ".toml" or (given not in known and os.path.exists(path)):
        return Recipe.load(path)
    if given not in known:
        raise RecipeError("no such preset or file", where=given, remedy=f"presets are {', '.join(known)}")
    return known[given]()
