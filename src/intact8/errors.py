"""The errors intact8 raises on purpose.

Every message says what went wrong, where (module, node or file), why, and what to do about it, on one line of
printable characters: names in files and words of libraries cannot write into a terminal or forge a line of a log.
"""

from __future__ import annotations

import math
import numbers
import os
import sys
import warnings
from typing import Any

from intact8.addresses import SITE
from intact8.text import one_line


class IntactError(Exception):
    """Base class of all errors intact8 raises on purpose.

    Args:
        what: one sentence that says what went wrong.
        where: the module path, node, tensor or file concerned.
        why: the reason, often the words of the library underneath.
        remedy: what the user can do.

    Example:
        >>> print(IntactError("weights hold NaN", where="layer1.0.conv1", remedy="retrain or repair them"))
        layer1.0.conv1: weights hold NaN. Remedy: retrain or repair them
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        what, where, why, remedy = map(one_line, (what, where, why, remedy))
        self.what, self.where, self.why, self.remedy = what, where, why, remedy
        text = f"{where}: {what}" if where else what
        if why:
            text += f". Reason: {why}"
        if remedy:
            text += f". Remedy: {remedy}"
        super().__init__(text)

    @property
    def help(self) -> str:
        """Address of the section about errors of this class; without a public site, its file in the repository.

        Example:
            >>> InputError("the input is missing").help
            'docs/errors.md#inputerror'
        """
        public = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        page = f"{SITE}errors.html" if SITE else "docs/errors.md"
        return f"{page}#{public.__name__.lower()}"


class CaptureError(IntactError):
    """The model cannot be turned into a graph."""


class RecipeError(IntactError):
    """A recipe is malformed, or asks for what cannot be had."""


class CalibrationError(IntactError):
    """Calibration data is missing, of the wrong kind, or not finite."""


class StateError(IntactError):
    """A verb was called on a simulation that is not in the state it needs."""


def no_simulation(given: object, where: str) -> StateError:
    """Return the error for what was given in the place of a simulation to what ``where`` names."""
    remedy = (
        "give what intact8.prepare(model, example_inputs) returned (intact8.quantize(model, data) does all at once); "
        "where something wraps it (DistributedDataParallel, AveragedModel), its .module"
    )
    return StateError(f"{where} takes a simulation, not {type(given).__name__}", remedy=remedy)


def not_for_export() -> StateError:
    """Return the error for a simulation that torch traces or exports."""
    what, why = "torch traces or exports the simulation", "it reads scales and switches in Python at every call"
    return StateError(what, where="Simulation", why=why, remedy="export the program: intact8.convert(sim).export(path)")


class ProgramError(IntactError):
    """A program or its file breaks the specification."""


class MissingTorchError(IntactError, ImportError):
    """A function that needs torch was asked for where torch is not installed."""


class EngineError(IntactError):
    """An engine is missing, or cannot run a program on this machine."""


class InputError(IntactError):
    """An input has the wrong name, dtype or shape."""


def require_number(
    name: str,
    given: Any,
    least: int,
    where: str,
    kind: type = numbers.Integral,
    *,
    finite: bool = True,
    error: type[IntactError] = InputError,
) -> None:
    """Raise an error where an argument is no number of that kind, or less than ``least``; or infinite, if ``finite``.

    Example:
        >>> require_number("batch_size", 8, 1, "report")
        >>> require_number("seconds", math.nan, 0, "report", numbers.Real)
        Traceback (most recent call last):
        ...
        intact8.errors.InputError: report: seconds is nan. Remedy: give a number of 0 or more
    """
    known = isinstance(given, kind) and not isinstance(given, bool) and given >= least  # type: ignore[operator]
    if not known or (finite and given == math.inf):
        what = "an integer" if kind is numbers.Integral else "a number"
        raise error(f"{name} is {given!r:.40}", where=where, remedy=f"give {what} of {least} or more")


def in_short(error: BaseException, most: int = 200) -> str:
    """Return what another library's exception says, on one line and no longer than ``most``; its type where it says
    nothing.

    Example:
        >>> in_short(ValueError("no\\n  such thing")), in_short(KeyError())
        ('no such thing', 'KeyError')
    """
    return " ".join(str(error).split())[:most] or type(error).__name__


class InternalError(IntactError):
    """A fault of intact8 itself. ``__cause__`` is the error underneath, with its traceback.

    Args:
        what: what was being done.
        where: the module path or node concerned.
        cause: what went wrong.
    """

    def __init__(self, what: str, where: str, cause: BaseException) -> None:
        kind, said = type(cause).__name__, in_short(cause, 300)
        super().__init__(
            what,
            where=where,
            why=kind if said == kind else f"{kind}: {said}",
            remedy="this is a fault of intact8, not of the model: please report it, with the traceback",
        )


class CaptureWarning(UserWarning):
    """A program will be more limited than the model, because of how the model is written."""


class AccuracyWarning(UserWarning):
    """A program's outputs are far from the float network's or will seem so, or it computes mostly in float."""


def warn(warning: Warning) -> None:
    """Warn at the line outside of this package, and of torch, from which it was called."""
    frame, level, package = sys._getframe(1), 2, os.path.dirname(__file__) + os.sep
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(package)
        or frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "contextlib")
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
