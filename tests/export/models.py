"""Running exported models, and programs of one operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from intact8.opset import output_dtypes, output_shape
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

Array = npt.NDArray[Any]


def run_model(model: Any, inputs: dict[str, Array], optimized: bool) -> dict[str, Array]:
    """All outputs of a model by name, as any user of ONNX Runtime gets them."""
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def meta(name: str, value: Array, *, z: int | None = None, static: bool = False) -> Tensor:
    """Description of an array; the first dimension is the batch unless ``static``."""
    shape: tuple[int | None, ...] = value.shape if static else (None, *value.shape[1:])
    quantized = value.dtype == np.uint8 and z is not None
    return Tensor(name, value.dtype.name, shape, 0.5 if quantized else None, z if quantized else None)


def one_op(op: Op, inputs: list[Tensor], dtype: str = "") -> Program:
    """A program of ``op`` alone; moves keep what their input is, float ops give ``dtype`` where they leave it open."""
    declared = tuple(None if d == -1 else d for d in op.attrs["shape"]) if op.kind == "expand" else ()
    shape = output_shape(op, inputs, declared)
    moved = bool(inputs) and not op.is_float
    kept = replace(inputs[0], name=op.name, shape=shape) if moved else None
    allowed = [str(op.arrays["value"].dtype)] if op.kind == "constant" else output_dtypes(op, inputs)
    y = kept or Tensor(op.name, dtype if dtype in allowed else allowed[0], shape)
    names = tuple(dict.fromkeys(t.name for t in inputs))
    return Program({t.name: t for t in [*inputs, y]}, (op,), names, (op.name,))
