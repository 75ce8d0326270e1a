"""Functions that a room needs and rooms above it implement. They are looked up when they are called.

``Program`` is data: it is checked, proved and saved without any engine. What a user calls on it, but an engine, a file
or a page has to do, is named here, so that no room below imports one above. So is the conversion of a simulation that
``torch.compile`` meets, what ends a calibration where the recipe wants layers reconstructed, and what makes a
simulation that loads a state one of the recipe that was chosen when the state was saved.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {
    "save": "intact8.program.file",
    "load": "intact8.program.file",
    "table": "intact8.program.inspect",
    "run": "intact8.engines",
    "stored_plan": "intact8.engines.native.stored_plan",
    "export_onnx": "intact8.export.onnx",
    "convert": "intact8.api",
    "export": "intact8.exporting",
    "reconstruct": "intact8.reconstruction.run",
    "rebuild": "intact8.simulation.prepare",
}
"""Function → its module."""


def call(name: str, *args: Any, **named: Any) -> Any:
    """Return what the function of that name gives for these arguments.

    Example:
        >>> from intact8.program.program import Program
        >>> call("table", Program({}, (), (), ())).rows
        ()
    """
    return getattr(import_module(HOMES[name]), name)(*args, **named)
