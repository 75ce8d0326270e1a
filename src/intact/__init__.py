"""int8 quantization for PyTorch whose simulated integers equal the deployed ones, bit for bit.

Example:
    >>> import intact
    >>> issubclass(intact.CaptureError, intact.IntactError)
    True

The verbs are ``quantize`` (prepare, calibrate and convert in one call), ``prepare``, ``calibrate``, ``convert`` and
``verify``; the nouns ``Program``, ``Recipe``, ``Scheme`` and the presets in ``recipes``. They are imported when first
used, so that ``import intact`` is quick and a machine without torch can load and run programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from intact.errors import (
    CalibrationError,
    CaptureError,
    EngineError,
    InputError,
    IntactError,
    ProgramError,
    RecipeError,
    StateError,
)

if TYPE_CHECKING:
    from intact import recipes
    from intact.api import calibrate, convert, prepare, quantize
    from intact.program.program import Program
    from intact.recipe.recipe import Recipe, Scheme
    from intact.verification import verify

__version__ = "0.1.0"

__all__ = [
    "quantize",
    "prepare",
    "calibrate",
    "convert",
    "verify",
    "Program",
    "Recipe",
    "Scheme",
    "recipes",
    "IntactError",
    "CalibrationError",
    "CaptureError",
    "EngineError",
    "InputError",
    "ProgramError",
    "RecipeError",
    "StateError",
]

_HOMES = {
    "quantize": "intact.api",
    "prepare": "intact.api",
    "calibrate": "intact.api",
    "convert": "intact.api",
    "verify": "intact.verification",
    "Program": "intact.program.program",
    "Recipe": "intact.recipe.recipe",
    "Scheme": "intact.recipe.recipe",
}


def __getattr__(name: str) -> Any:
    if name in ("recipes", "runtime"):
        return import_module(f"intact.{name}")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # the next look-up does not come here again
        return value
    raise AttributeError(f"module 'intact' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
