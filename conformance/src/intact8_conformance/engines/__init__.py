"""Adapters of engines. An engine of your own: derive from :class:`Engine` and hand an object to ``compare``."""

from __future__ import annotations

from intact8_conformance.engines.base import Engine, Unsupported
from intact8_conformance.engines.executorch import ExecuTorch
from intact8_conformance.engines.litert import LiteRT
from intact8_conformance.engines.onnxruntime import OnnxRuntime
from intact8_conformance.engines.openvino import OpenVino
from intact8_conformance.engines.pytorch import Torch

__all__ = ["ENGINES", "Engine", "Unsupported"]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        OnnxRuntime("onnxruntime-qlinear", qdq=False),
        OnnxRuntime("onnxruntime", qdq=True),
        OnnxRuntime("onnxruntime-unfused", qdq=True, optimized=False),
        OpenVino("openvino", precision="f32"),
        OpenVino("openvino-default", precision=""),
        *(Torch(f"torch-{name}", name) for name in ("x86", "onednn", "fbgemm", "qnnpack")),
        LiteRT("litert", xnnpack=True),
        LiteRT("litert-reference", xnnpack=False),
        ExecuTorch("executorch-xnnpack", xnnpack=True),
        ExecuTorch("executorch", xnnpack=False),
    )
}
"""Name → adapter, whether its packages are installed or not."""
