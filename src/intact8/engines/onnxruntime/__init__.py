"""ONNX Runtime as an engine."""

from .engine import OnnxRuntimeEngine

__all__ = ["OnnxRuntimeEngine"]
