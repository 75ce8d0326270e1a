"""Capture: torch.export in eval mode, operations of the opset, readable names."""

from __future__ import annotations

from intact8.capture.trace import Captured, capture

from .execute import run_float
from .graph import Graph, Node

__all__ = ["Captured", "Graph", "Node", "capture", "run_float"]
