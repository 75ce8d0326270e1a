"""The doctor: a whole examination in one call, from symptom to recipe. See docs/diagnosis.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .report import DoctorReport, Finding

if TYPE_CHECKING:
    from .run import doctor

__all__ = ["DoctorReport", "Finding", "doctor"]


def __getattr__(name: str) -> Any:
    # The report can be read where torch is missing; the examination needs it.
    if name == "doctor":
        return import_module(".run", __name__).doctor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
