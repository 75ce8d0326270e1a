"""OpenVINO on the CPU, from QDQ models, in float32 or in the precision it chooses by itself (bfloat16 on some CPUs)."""

from __future__ import annotations

import io

import numpy as np

from intact8_conformance.case import Array, Case
from intact8_conformance.engines.base import Engine
from intact8_conformance.engines.onnx_models import model


class OpenVino(Engine):
    """One compiled model per case."""

    packages = ("openvino", "onnx")

    def __init__(self, name: str, *, precision: str) -> None:
        super().__init__(name)
        self.precision = precision

    def run(self, case: Case) -> Array:
        """Return the result of a case."""
        import openvino

        core = openvino.Core()
        settings = {"INFERENCE_PRECISION_HINT": self.precision} if self.precision else {}
        read = core.read_model(io.BytesIO(model(case, qdq=True)))
        compiled = core.compile_model(read, "CPU", settings)
        result = compiled({f"x{i}": x for i, x in enumerate(case.inputs)})[0]
        return np.array(result)
