"""Which code is a model's, and which is torch's, numpy's or ours."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

import numpy as np
import torch

OWN = f"{Path(__file__).parents[1]}{os.sep}"
LIBRARIES = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (torch, np) if package.__file__)


def is_models(filename: str) -> bool:
    """Return whether code of this file is neither torch's, numpy's nor ours, nor made at run time."""
    return not filename.startswith((OWN, *LIBRARIES, "<"))


def innermost_line(frame: FrameType | None) -> str:
    """Return the file and the line of the innermost frame that is no library's; "" where none is the model's."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(OWN):
            return ""
        if is_models(filename):
            return f"{os.path.basename(filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


__all__ = ["innermost_line", "is_models"]
