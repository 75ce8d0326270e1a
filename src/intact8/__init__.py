"""int8 quantization for PyTorch whose simulated integers equal the deployed ones, bit for bit.

Example:
    >>> import intact8
    >>> issubclass(intact8.CaptureError, intact8.IntactError)
    True

The verbs are ``quantize`` (prepare, calibrate and convert in one call), ``prepare``, ``calibrate``, ``convert`` and
``verify``; the nouns ``Program``, ``Recipe``, ``Scheme`` and the presets in ``recipes``. They are imported when first
used, so that ``import intact8`` is quick and a machine without torch can load and run programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from intact8.errors import (
    CalibrationError,
    CaptureError,
    EngineError,
    InputError,
    IntactError,
    InternalError,
    MissingTorchError,
    ProgramError,
    RecipeError,
    StateError,
    in_short,
)

if TYPE_CHECKING:
    from intact8 import recipes
    from intact8.api import calibrate, convert, prepare, quantize
    from intact8.diagnose.compare import compare
    from intact8.diagnose.compare.report import CompareReport
    from intact8.diagnose.doctor import DoctorReport, doctor
    from intact8.diagnose.evaluate import EvaluationReport, evaluate
    from intact8.diagnose.lint import lint
    from intact8.diagnose.report import report
    from intact8.diagnose.sensitivity import sensitivity
    from intact8.diagnose.sensitivity.report import SensitivityReport
    from intact8.migration.report import Migrated, MigrationReport
    from intact8.migration.run import migrate
    from intact8.program.program import Program
    from intact8.recipe.recipe import Recipe, Scheme
    from intact8.reconstruction.run import reconstruct
    from intact8.splitting import split
    from intact8.tuning import TuneResult, tune
    from intact8.verification import verify

__version__ = "0.2.0"

__all__ = [
    "quantize",
    "prepare",
    "calibrate",
    "convert",
    "split",
    "migrate",
    "reconstruct",
    "verify",
    "evaluate",
    "compare",
    "sensitivity",
    "lint",
    "report",
    "doctor",
    "tune",
    "Program",
    "Recipe",
    "Scheme",
    "CompareReport",
    "SensitivityReport",
    "DoctorReport",
    "EvaluationReport",
    "MigrationReport",
    "Migrated",
    "TuneResult",
    "recipes",
    "IntactError",
    "CalibrationError",
    "CaptureError",
    "EngineError",
    "InputError",
    "InternalError",
    "ProgramError",
    "RecipeError",
    "StateError",
]

_HOMES = {
    "quantize": "intact8.api",
    "prepare": "intact8.simulation.prepare",
    "calibrate": "intact8.api",
    "convert": "intact8.api",
    "split": "intact8.splitting",
    "migrate": "intact8.migration.run",
    "MigrationReport": "intact8.migration.report",
    "Migrated": "intact8.migration.report",
    "verify": "intact8.verification",
    "reconstruct": "intact8.reconstruction.run",
    "lint": "intact8.diagnose.lint",
    "evaluate": "intact8.diagnose.evaluate",
    "EvaluationReport": "intact8.diagnose.evaluate",
    "compare": "intact8.diagnose.compare",
    "sensitivity": "intact8.diagnose.sensitivity",
    "report": "intact8.diagnose.report",
    "doctor": "intact8.diagnose.doctor",
    "tune": "intact8.tuning",
    "TuneResult": "intact8.tuning",
    "Program": "intact8.program.program",
    "Recipe": "intact8.recipe.recipe",
    "Scheme": "intact8.recipe.recipe",
    "CompareReport": "intact8.diagnose.compare.report",
    "SensitivityReport": "intact8.diagnose.sensitivity.report",
    "DoctorReport": "intact8.diagnose.doctor",
}


def missing_torch(where: str, error: ImportError) -> MissingTorchError:
    """Return the error for a part of the package that needs torch, which cannot be imported.

    Args:
        where: the module or function.
        error: of the import.
    """
    why = "" if isinstance(error, ModuleNotFoundError) and error.name == "torch" else in_short(error)
    return MissingTorchError("this needs torch", where=where, why=why, remedy="pip install 'intact8[torch]'")


def _has_torch() -> bool:
    try:
        import_module("torch")
    except ImportError:
        return False
    return True


def __getattr__(name: str) -> Any:
    module = name in ("recipes", "runtime", "testing", "torch", "train")
    if module or name in _HOMES:
        try:
            found = import_module(f"intact8.{name}" if module else _HOMES[name])
        except MissingTorchError:
            raise
        except ImportError as error:
            if _has_torch():
                raise
            raise missing_torch(f"intact8.{name}", error) from error
        value = found if module else getattr(found, name)
        globals()[name] = value  # the next look-up does not come here again
        return value
    raise AttributeError(f"module 'intact8' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
