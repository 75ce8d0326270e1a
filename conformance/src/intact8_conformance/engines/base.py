"""What an adapter offers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod

from intact8_conformance.case import Array, Case


class Unsupported(Exception):
    """The engine has no such operation, or not with these attributes; the text says which."""


class Engine(ABC):
    """An engine under test.

    Attributes:
        name: name of the engine, with what is set otherwise than by default.
        packages: packages it needs, the one whose version is reported first.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self) -> str:
        """Return why the engine cannot run here, "" where it can."""
        absent = [name for name in self.packages if importlib.util.find_spec(name.replace("-", "_")) is None]
        return f"{', '.join(absent)} not installed" if absent else ""

    def version(self) -> str:
        """Return the package and its version."""
        return f"{self.packages[0]} {importlib.metadata.version(self.packages[0])}"

    @abstractmethod
    def run(self, case: Case) -> Array:
        """Return the result of a case.

        Raises:
            Unsupported: the engine has no such operation.
        """
