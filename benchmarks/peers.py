"""Other quantizers on the same data, for tables side by side. The only place besides examples that imports torch.ao."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Predict = Callable[[Tensor], Any]


def torch_ao_fx(model: nn.Module, calibration: Tensor, batch: int = 32) -> Predict:
    """torch.ao FX static quantization, x86 engine, its default qconfig (histogram activations, per-channel weights)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        torch.backends.quantized.engine = "x86"
        prepared = prepare_fx(copy.deepcopy(model).eval(), get_default_qconfig_mapping("x86"), (calibration[:1],))
        with torch.no_grad():
            for x in calibration.split(batch):
                prepared(x)
        converted = convert_fx(prepared)

    def predict(x: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = converted(x)
        return y

    return predict


def export_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    """The float32 model as ONNX with a dynamic batch dimension."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), (example,), str(path), input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},  # noqa: E501
            opset_version=17, dynamo=False,
        )  # fmt: skip


def ort_session(path: Path | str, threads: int) -> Any:
    """An ONNX Runtime session on the CPU with all optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantize_onnx(model: nn.Module, calibration: Tensor, folder: Path, batch: int = 32) -> Path:
    """ONNX Runtime ``quantize_static``: QDQ, uint8 activations, per-channel int8 weights, min-max calibration."""
    import onnxruntime.quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[dict[str, np.ndarray[Any, Any]]] = iter(
                [{"x": b.numpy()} for b in calibration.split(batch)]
            )

        def get_next(self) -> Any:
            return next(self.batches, None)

    float_path, prepared, int8 = folder / "float.onnx", folder / "prepared.onnx", folder / "int8.onnx"
    export_onnx(model, calibration[:2], float_path)
    quant_pre_process(str(float_path), str(prepared), skip_symbolic_shape=True)
    q.quantize_static(
        str(prepared), str(int8), Reader(), quant_format=q.QuantFormat.QDQ, per_channel=True,
        activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
    )  # fmt: skip
    return int8


def onnxruntime_static(model: nn.Module, calibration: Tensor, threads: int = 2) -> Predict:
    """``quantize_static`` as a predictor."""
    with tempfile.TemporaryDirectory() as folder:
        session = ort_session(quantize_onnx(model, calibration, Path(folder)), threads)
    return lambda x: session.run(None, {"x": x.numpy()})[0]
