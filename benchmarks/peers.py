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


def without_grad(model: Any) -> Predict:
    """``model``, called without recording gradients."""

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = model(x)
        return y

    return call


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

    predict = without_grad(converted)
    predict.converted = converted  # type: ignore[attr-defined]
    return predict


def torch_ao_dynamic(model: nn.Module) -> Predict:
    """torch.ao dynamic quantization of linear layers and LSTMs, its defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import quantize_dynamic

        torch.backends.quantized.engine = "x86"
        return without_grad(quantize_dynamic(copy.deepcopy(model).eval(), {nn.Linear, nn.LSTM}))


def torch_ao_frozen(model: nn.Module, calibration: Tensor, example: Tensor) -> Predict:
    """The same, traced and frozen by torch.jit, for inputs of the shape of ``example``."""
    predict = torch_ao_fx(model, calibration)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        frozen = torch.jit.freeze(torch.jit.trace(predict.converted, example).eval())  # type: ignore[attr-defined]
        for _ in range(3):
            frozen(example)

    return without_grad(frozen)


def torchao_pt2e(model: nn.Module, calibration: Tensor, example: Tensor) -> Predict:
    """torchao's pt2e static quantization with the X86 inductor quantizer, compiled by inductor (needs a C++ compiler).

    Compiled for the shape of ``example`` and torch's number of threads at this moment.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        torch._dynamo.reset()
        with torch.no_grad():
            exported = torch.export.export(copy.deepcopy(model).eval(), (example,), strict=True).module()
            prepared = prepare_pt2e(exported, quantizer)
            for x in calibration.split(len(example)):
                if len(x) == len(example):
                    prepared(x)
            converted = convert_pt2e(prepared)
            with torch._inductor.config.patch(freezing=True):  # type: ignore[attr-defined]
                compiled = torch.compile(converted)
                for _ in range(3):
                    compiled(example)

    return without_grad(compiled)


def torch_compiled(model: nn.Module, example: Tensor) -> Predict:
    """The float32 network compiled by inductor, weights frozen."""
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # type: ignore[attr-defined]
        compiled = torch.compile(copy.deepcopy(model).eval())
        for _ in range(3):
            compiled(example)

    return without_grad(compiled)


def kept_openvino(path: Path, make: Callable[[], Any]) -> Any:
    """An ``openvino.Model`` that an earlier run left in a file, or what is made now, as it is read from there."""
    import openvino

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        openvino.save_model(make(), path, compress_to_fp16=False)
    return openvino.Core().read_model(path)


def nncf_openvino(model: nn.Module, calibration: Tensor, transformer: bool = False) -> Any:
    """NNCF's post-training quantization of the OpenVINO model, its defaults; an ``openvino.Model`` of dynamic batch.

    ``transformer``: with the scheme NNCF has for transformers.
    """
    import logging

    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = openvino.convert_model(copy.deepcopy(model).eval(), example_input=calibration[:1])
        dataset = nncf.Dataset([x.numpy() for x in calibration.split(1)])
        kind = nncf.ModelType.TRANSFORMER if transformer else None
        return nncf.quantize(converted, dataset, subset_size=len(calibration), model_type=kind)


def openvino_predict(model: Any, example: Tensor, threads: int) -> Predict:
    """An OpenVINO model compiled for the shape of ``example``, with OpenVINO's own advice for low latency."""
    import openvino

    fixed = model.clone()
    fixed.reshape(list(example.shape))
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(fixed, "CPU", config).create_infer_request()
    return lambda x: next(iter(request.infer([x.numpy()], share_inputs=True, share_outputs=True).values()))


def nncf_predict(model: nn.Module, calibration: Tensor, threads: int = 2) -> Predict:
    """NNCF for transformers, run by OpenVINO on batches of any size, in float32 where it is not int8."""
    import openvino

    quantized = nncf_openvino(model, calibration, transformer=True)
    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(quantized, "CPU", config)
    return lambda x: compiled([x.numpy()])[0]


def nncf_accuracy_control(
    model: nn.Module,
    calibration: Tensor,
    judged: Tensor,
    score: Callable[[Predict], float],
    max_drop: float,
    transformer: bool = False,
) -> tuple[Predict, int]:
    """NNCF's quantization that reverts to float until ``score`` drops by no more than ``max_drop``.

    Returns what predicts, in float32 where it is not int8, and how often networks were judged. NNCF ranks operations by
    the outputs for ``judged``.
    """
    import logging

    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)
    judgements = 0

    def validate(network: Any, data: Any) -> float:
        nonlocal judgements
        judgements += 1
        return score(lambda x: network([x.numpy()])[0])

    converted = openvino.convert_model(copy.deepcopy(model).eval(), example_input=calibration[:1])
    quantized = nncf.quantize_with_accuracy_control(
        converted,
        nncf.Dataset([x.numpy() for x in calibration.split(1)]),
        nncf.Dataset([x.numpy() for x in judged.split(32)]),
        validation_fn=validate,
        max_drop=max_drop,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(calibration),
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
    )
    compiled = openvino.Core().compile_model(quantized, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: compiled([x.numpy()])[0], judgements


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
    """ONNX Runtime ``quantize_static``: QDQ, uint8 activations, per-channel int8 weights, min-max calibration.

    A file that is there already is taken as it is.
    """
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
    if int8.exists():
        return int8
    folder.mkdir(parents=True, exist_ok=True)
    export_onnx(model, calibration[:2], float_path)
    quant_pre_process(str(float_path), str(prepared), skip_symbolic_shape=True)
    q.quantize_static(
        str(prepared), str(int8), Reader(), quant_format=q.QuantFormat.QDQ, per_channel=True,
        activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
    )  # fmt: skip
    return int8


def quantize_onnx_dynamic(model: nn.Module, example: Tensor, folder: Path) -> Path:
    """ONNX Runtime ``quantize_dynamic``: uint8 activations, per-channel int8 weights; an existing file is taken."""
    import onnxruntime.quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    float_path, prepared, int8 = folder / "plain.onnx", folder / "plain_prepared.onnx", folder / "dynamic.onnx"
    if int8.exists():
        return int8
    folder.mkdir(parents=True, exist_ok=True)
    export_onnx(model, example, float_path)
    quant_pre_process(str(float_path), str(prepared), skip_symbolic_shape=True)
    q.quantize_dynamic(str(prepared), str(int8), per_channel=True, weight_type=q.QuantType.QInt8)
    return int8


def onnxruntime_dynamic(model: nn.Module, calibration: Tensor, threads: int = 2) -> Predict:
    """ONNX Runtime ``quantize_dynamic``, per-channel int8 weights, as a predictor."""
    import onnxruntime.quantization as q

    with tempfile.TemporaryDirectory() as folder:
        float_path, int8 = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        export_onnx(model, calibration[:2], float_path)
        q.quantize_dynamic(str(float_path), str(int8), per_channel=True, weight_type=q.QuantType.QInt8)
        session = ort_session(int8, threads)
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def onnxruntime_static(model: nn.Module, calibration: Tensor, threads: int = 2) -> Predict:
    """``quantize_static`` as a predictor."""
    with tempfile.TemporaryDirectory() as folder:
        session = ort_session(quantize_onnx(model, calibration, Path(folder)), threads)
    return lambda x: session.run(None, {"x": x.numpy()})[0]
