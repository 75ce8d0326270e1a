"""Capture: torch.export in eval mode, canonical operations, readable names."""

from __future__ import annotations

from .execute import run_float
from .export import Captured, capture
from .graph import Graph, Node

__all__ = ["Captured", "Graph", "Node", "capture", "run_float"]
