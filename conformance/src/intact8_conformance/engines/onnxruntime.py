"""ONNX Runtime on the CPU, with quantized operators or with QDQ models, fused or not."""

from __future__ import annotations

from intact8_conformance.case import Array, Case
from intact8_conformance.engines.base import Engine, Unsupported
from intact8_conformance.engines.onnx_models import model


class OnnxRuntime(Engine):
    """One session of one thread per case."""

    packages = ("onnxruntime", "onnx")

    def __init__(self, name: str, *, qdq: bool, optimized: bool = True) -> None:
        super().__init__(name)
        self.qdq, self.optimized = qdq, optimized

    def run(self, case: Case) -> Array:
        """Return the result of a case."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        if not self.optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(model(case, self.qdq), options, providers=["CPUExecutionProvider"])
        except ort.capi.onnxruntime_pybind11_state.NotImplemented as error:
            raise Unsupported(str(error)) from error
        feed = {f"x{i}": x for i, x in enumerate(case.inputs)}
        result: Array = session.run(None, feed)[0]
        return result
