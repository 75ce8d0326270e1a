"""Presets: recipes with a sentence on when to use each. All of them are ordinary recipes; change what you like.

Example:
    >>> import dataclasses
    >>> from intact import recipes
    >>> dataclasses.replace(recipes.default(), overrides={"fc": None}).rules[0].quantize
    False
"""

from __future__ import annotations

from dataclasses import replace

from intact.errors import RecipeError
from intact.recipe.recipe import Recipe, Scheme


def default() -> Recipe:
    """Start here: clips of least error for activations, one scale per weight channel, every engine and CPU."""
    return Recipe(activation=Scheme(observer="histogram"), bias_correction=True)


def fast() -> Recipe:
    """When only the onednn engine runs the program: residual adds are fused into convolutions, 12–19 % faster there."""
    return replace(default(), residual="fused", engines=("reference", "onednn"))


def minmax() -> Recipe:
    """When calibration data shows the true ranges, nothing may be clipped, or results must be easy to explain."""
    return Recipe(activation=Scheme(observer="minmax"))


def percentile() -> Recipe:
    """When a few extreme activations stretch the ranges and you want to say yourself how much is cut off."""
    return Recipe(activation=Scheme(observer="percentile"))


def accurate() -> Recipe:
    """When the default loses too much (small or depthwise networks): ranges and weights by error, biases corrected."""
    return Recipe(
        activation=Scheme(observer="mse"),
        weight=Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer="mse"),
        bias_correction=True,
    )


def images() -> Recipe:
    """When every input is an image with values k/255: the bytes themselves are the integers (scale 1/255)."""
    return replace(default(), inputs={"*": Scheme(fixed=(1 / 255, 0))})


def full_range() -> Recipe:
    """When every CPU that will run the program has VNNI: weights use [−128, 127] without room for pair sums."""
    weight = Scheme(dtype="int8", symmetric=True, qmin=-128, granularity="per_channel", observer="minmax")
    return Recipe(weight=weight, portable=False)


def symmetric() -> Recipe:
    """When qparams go on to hardware with symmetric int8 activations only; costs a bit of range after ReLU."""
    return Recipe(activation=Scheme(dtype="int8", symmetric=True))


def w4a8() -> Recipe:
    """When you study 4-bit weights: error-minimal scales in [−7, 7]. Files and speed stay those of int8."""
    weight = Scheme(dtype="int8", bits=4, symmetric=True, granularity="per_channel", observer="mse")
    return Recipe(activation=Scheme(observer="mse"), weight=weight)


def qat(scales: str = "learned", *, bits: int = 8, activation_bits: int = 8) -> Recipe:
    """When the network is trained further (``intact.train``): the simulation trains on the integers that ship.

    Args:
        scales: "learned": parameters of the optimizer, from where calibration left them; "observed": activations'
            follow a moving average of each batch's extremes, weights' the weights; "fixed": as calibrated, so that
            training computes the deployed integers from its first step.
        bits, activation_bits: 2 to 8. Fewer than 8 are stored as int8.

    Raises:
        RecipeError: ``scales`` is none of these, or so many bits cannot be stored.

    Example:
        >>> from intact import recipes
        >>> recipes.qat("observed").activation.observer
        'moving_average'
    """
    if scales not in ("learned", "observed", "fixed"):
        raise RecipeError(f"scales = {scales!r}", where="recipes.qat", remedy="choose learned, observed or fixed")
    fine = "histogram" if activation_bits == 8 else "mse"
    return Recipe(
        activation=Scheme(bits=activation_bits, observer="moving_average" if scales == "observed" else fine),
        weight=Scheme(
            dtype="int8",
            bits=bits,
            symmetric=True,
            granularity="per_channel",
            observer="minmax" if bits == 8 else "mse",
        ),
        scales=scales,
    )
