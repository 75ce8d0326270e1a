"""Scales and zero points as accelerators' tool chains take them, beside a float ONNX model whose tensors they name.

Two JSON files of AIMET, which QNN's converter reads too (versions 1.0.0 and 0.6.1), and a TensorRT calibration
cache. An AIMET offset is the negated zero point of unsigned integers; a weight's is −128, as its integers are signed.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, numpy_helper

from intact8.atomic_write import target_of
from intact8.errors import EngineError
from intact8.opset.op import Tensor
from intact8.program.program import Program

from .files import write_file
from .onnx import write_model
from .onnx_qdq import build_qdq

VERSIONS = ("1.0.0", "0.6.1")
CACHE_HEADER = "TRT-8601-EntropyCalibration2"
"""TensorRT's version and calibrator; it reads caches of the same calibrator."""

QDQ = ("QuantizeLinear", "DequantizeLinear")

OLDER, MODEL, CACHE = ".v0.6.1.encodings", ".float.onnx", ".cache"
"""Ends of the names of the files beside the encodings. The model's is no name of an export to ONNX, whose neighbour it
may be."""

MIDDLE = 128
"""Zero point of a symmetric tensor."""


def export_encodings(program: Program, path: Path) -> tuple[Path, ...]:
    """Write a float ONNX model, its encodings and a TensorRT calibration cache.

    Args:
        program: checked (converted or loaded).
        path: of the encodings of version 1.0.0; the other files have its stem and end in ``.v0.6.1.encodings``,
            ``.float.onnx`` and ``.cache``.

    Returns:
        Paths of the encodings of both versions, the model and the cache.

    Raises:
        EngineError: an operation has no float form, or a file cannot be written: nothing is, where that is known
            beforehand of one of them.
    """
    target_of(path)
    older, beside, cache = (target_of(_beside(path, end)) for end in (OLDER, MODEL, CACHE))
    if path in (older, beside, cache):
        what, remedy = "another file of the encodings has this name", "give a name that ends in .encodings"
        raise EngineError(what, where=str(path), remedy=remedy)
    model, activations, weights = _float_model(program)
    checker.check_model(model)
    write_model(model, beside)
    for at, version in zip((path, older), VERSIONS, strict=True):
        write_file(at, json.dumps(encodings(activations, weights, version), indent=1).encode())
    write_file(cache, calibration_cache(activations).encode())
    return path, older, beside, cache


def _beside(path: Path, end: str) -> Path:
    """Return the path of a file that belongs to the encodings at ``path``."""
    return path.with_name(path.stem + end)


def encodings(activations: dict[str, Tensor], weights: dict[str, list[float]], version: str) -> dict[str, Any]:
    """Return the encodings as JSON values.

    Args:
        activations: name in the float model → the tensor with its grid.
        weights: name in the float model → scales by channel.
        version: "1.0.0" or "0.6.1".

    Example:
        >>> given = {"x": Tensor("q", "uint8", (None, 2), 0.5, 10)}
        >>> encodings(given, {}, "1.0.0")["activation_encodings"][0]["offset"]
        [-10]
    """
    given = {name: ([float(t.scale or 1.0)], int(t.zero_point or 0)) for name, t in activations.items()}
    params = {name: (scales, MIDDLE) for name, scales in weights.items()}
    entry = _entry if version == "1.0.0" else _older_entries
    found = [{name: entry(name, *grid) for name, grid in part.items()} for part in (given, params)]
    kinds = [list(part.values()) if version == "1.0.0" else part for part in found]
    return {"version": version, "activation_encodings": kinds[0], "param_encodings": kinds[1], "producer": "intact8"}


def _entry(name: str, scales: list[float], zero_point: int) -> dict[str, Any]:
    kind = "PER_TENSOR" if len(scales) == 1 else "PER_CHANNEL"
    common = {"name": name, "enc_type": kind, "dtype": "INT", "bw": 8, "is_sym": zero_point == MIDDLE}
    return {**common, "scale": scales, "offset": [-zero_point] * len(scales)}


def _older_entries(name: str, scales: list[float], zero_point: int) -> list[dict[str, Any]]:
    return [
        {
            "bitwidth": 8,
            "dtype": "int",
            "is_symmetric": str(zero_point == MIDDLE),
            "min": -zero_point * s,
            "max": (255 - zero_point) * s,
            "offset": -zero_point,
            "scale": s,
        }
        for s in scales
    ]


def calibration_cache(activations: dict[str, Tensor]) -> str:
    """Return a calibration cache of TensorRT: scales of int8 around 0, as the hexadecimal bits of float32.

    A tensor with another zero point gets the scale that holds its range: its integers are not those of the program.

    Example:
        >>> calibration_cache({"x": Tensor("x", "uint8", (None, 2), 1.0, 128)})
        'TRT-8601-EntropyCalibration2\\nx: 3f800000\\n'
    """
    lines = [CACHE_HEADER]
    for name, t in activations.items():
        scale, z = float(t.scale or 1.0), int(t.zero_point or 0)
        symmetric = scale if z == MIDDLE else scale * max(z, 255 - z) / 127
        lines.append(f"{name}: {struct.pack('>f', symmetric).hex()}")
    return "\n".join(lines) + "\n"


def _float_model(program: Program) -> tuple[Any, dict[str, Tensor], dict[str, list[float]]]:
    """Return the QDQ model without its quantizations, the grids of its tensors and the scales of its weights."""
    integers = next((name for name in program.inputs if program.tensors[name].quantized), None)
    if integers is not None:
        what, remedy = "encodings are of a network of floats, and this input holds integers", "export to onnx-qdq"
        raise EngineError(what, where=integers, remedy=remedy)
    model = build_qdq(program)
    graph, stored = model.graph, {x.name: x for x in model.graph.initializer}
    before = {n.output[0]: n.input[0] for n in graph.node if n.op_type in QDQ and n.input[0] not in stored}
    activations: dict[str, Tensor] = {}
    new: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            if node.output[0] not in program.tensors:  # an operation that quantizes by itself
                raise _no_form(node.name)
            value, tensor = _root(node.input[0], before), program.tensors[node.output[0]]
            if numpy_helper.to_array(stored[node.input[1]]) != np.float32(tensor.scale or 1.0):
                raise _no_form(node.name)
            new.setdefault(value, value if value in program.tensors else tensor.name)
            activations[new[value]] = tensor
    floats, weights = [], dict[str, list[float]]()
    for node in graph.node:
        if node.op_type not in QDQ:
            if any(program.tensors[n].quantized for n in (*node.input, *node.output) if n in program.tensors):
                raise _no_form(node.name)
            floats.append(node)
        elif node.input[0] in stored:
            weights |= _decode(node, stored)
    for node in floats:
        for names in (node.input, node.output):
            names[:] = [new.get(_root(n, before), _root(n, before)) for n in names]
    made = {name for node in floats for name in node.output} | {x.name for x in graph.input}
    for output in graph.output:
        if program.tensors[output.name].quantized:
            output.type.tensor_type.elem_type = TensorProto.FLOAT
        if output.name not in made:
            source = _root(output.name, before)
            floats.append(helper.make_node("Identity", [new.get(source, source)], [output.name], name=output.name))
    read = {name for node in floats for name in node.input}
    constants = [x for name, x in stored.items() if name in read]
    for field, kept in ((graph.node, floats), (graph.value_info, ()), (graph.initializer, constants)):
        del field[:]
        field.extend(kept)
    return model, activations, weights


def _no_form(where: str) -> EngineError:
    return EngineError("an operation of integers has no float form", where=where, remedy="export to onnx-qdq")


def _root(name: str, before: dict[str, str]) -> str:
    """Return the tensor that is quantized and dequantized to ``name``."""
    while name in before:
        name = before[name]
    return name


def _decode(node: Any, stored: dict[str, Any]) -> dict[str, list[float]]:
    """Store what a DequantizeLinear of a constant gives in its place; return the scales of 8-bit weights."""
    q, scale, zero = (numpy_helper.to_array(stored[name]) for name in node.input)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [-1 if i == axis and scale.size > 1 else 1 for i in range(q.ndim)]
    real = (q.astype(np.float64) - zero.reshape(shape)) * scale.reshape(shape)
    stored[node.output[0]] = numpy_helper.from_array(real.astype(np.float32), node.output[0])
    return {node.output[0]: [float(v) for v in scale.reshape(-1)]} if q.dtype == np.int8 else {}


CHANNEL_AXIS = {"Conv": 0, "Gemm": 0, "ConvTranspose": 1, "MatMul": 1}
"""Operator → the dimension of its weight that counts output channels, as the files have it."""


def quantized_model(path: Path) -> Any:
    """Return the float model beside encodings of version 1.0.0, with the quantizations that these describe.

    The integers of every tensor they name are outputs of the model, named ``NAME/integers``.
    """
    document, model = json.loads(path.read_text()), onnx.load(str(_beside(path, MODEL)))
    graph, axes = model.graph, dict[str, int]()
    for node in graph.node:
        axes |= {name: CHANNEL_AXIS[node.op_type] for name in node.input if node.op_type in CHANNEL_AXIS}
    around = {}
    for kind, dtype, shift in (("activation_encodings", np.uint8, 0), ("param_encodings", np.int8, MIDDLE)):
        for entry in document[kind]:
            name, single = entry["name"], entry["enc_type"] == "PER_TENSOR"
            values: list[Any] = [np.array(entry["scale"], np.float32)]
            values.append(np.array([-v - shift for v in entry["offset"]], dtype))
            grid = [f"{name}/encoding/scale", f"{name}/encoding/zero_point"]
            for at, value in zip(grid, values, strict=True):
                graph.initializer.append(numpy_helper.from_array(value.reshape(()) if single else value, at))
            how: dict[str, Any] = {} if single else {"axis": axes[name]}
            quantize = helper.make_node("QuantizeLinear", [name, *grid], [f"{name}/integers"], **how)
            around[name] = (
                quantize,
                helper.make_node("DequantizeLinear", [f"{name}/integers", *grid], [f"{name}/real"], **how),
            )
            if kind == "activation_encodings":
                graph.output.append(helper.make_tensor_value_info(f"{name}/integers", TensorProto.UINT8, None))
    nodes = [*(n for x in [*graph.input, *graph.initializer] for n in around.get(x.name, ()))]
    for node in graph.node:
        node.input[:] = [f"{name}/real" if name in around else name for name in node.input]
        nodes += [node, *(n for name in node.output for n in around.get(name, ()))]
    del graph.node[:]
    graph.node.extend(nodes)
    return model
