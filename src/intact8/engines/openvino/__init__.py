"""The ``openvino`` engine: an OpenVINO model built directly from the program, exact on every integer (x86 CPUs).

Imports neither openvino nor torch before it is used.
"""

from __future__ import annotations

from .engine import OpenVinoEngine, OpenVinoRunner

__all__ = ["OpenVinoEngine", "OpenVinoRunner"]
