"""OpenVINO's one object for reading and compiling models, made when first needed."""

from __future__ import annotations

from functools import cache
from typing import Any

import openvino


@cache
def core() -> Any:
    """The ``openvino.Core`` of this process."""
    return openvino.Core()
