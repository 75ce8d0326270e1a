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
    from intact.diagnose.compare import compare
    from intact.diagnose.compare_report import CompareReport
    from intact.diagnose.doctor import DoctorReport, doctor
    from intact.diagnose.lint import lint
    from intact.diagnose.report import report
    from intact.diagnose.sensitivity import sensitivity
    from intact.diagnose.sensitivity_report import SensitivityReport
    from intact.program.program import Program
    from intact.recipe.recipe import Recipe, Scheme
    from intact.verification import verify

__version__ = "0.2.0"

__all__ = [
    "quantize",
    "prepare",
    "calibrate",
    "convert",
    "verify",
    "compare",
    "sensitivity",
    "lint",
    "report",
    "doctor",
    "Program",
    "Recipe",
    "Scheme",
    "CompareReport",
    "SensitivityReport",
    "DoctorReport",
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
    "prepare": "intact.simulation.prepare",
    "calibrate": "intact.api",
    "convert": "intact.api",
    "verify": "intact.verification",
    "lint": "intact.diagnose.lint",
    "compare": "intact.diagnose.compare",
    "sensitivity": "intact.diagnose.sensitivity",
    "report": "intact.diagnose.report",
    "doctor": "intact.diagnose.doctor",
    "Program": "intact.program.program",
    "Recipe": "intact.recipe.recipe",
    "Scheme": "intact.recipe.recipe",
    "CompareReport": "intact.diagnose.compare_report",
    "SensitivityReport": "intact.diagnose.sensitivity_report",
    "DoctorReport": "intact.diagnose.doctor",
}


def __getattr__(name: str) -> Any:
    if name in ("recipes", "runtime", "testing", "train"):
        return import_module(f"intact.{name}")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # the next look-up does not come here again
        return value
    raise AttributeError(f"module 'intact' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
