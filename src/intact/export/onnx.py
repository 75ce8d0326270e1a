"""A program as an ONNX model with the same integers."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact.engines.binding import sole_quantizers
from intact.errors import EngineError
from intact.program.file import digest
from intact.program.ops import Op, Tensor
from intact.program.program import Program

if TYPE_CHECKING:
    from .onnx_build import Builder
    from .onnx_floats import Rule

OPSET, IR_VERSION = 17, 8
"""Read by every release of ONNX Runtime since 1.13 (2022) and by the other tools of that age."""

LARGEST_FILE = (1 << 31) - 1
"""Bytes a protocol buffer can have."""


def export_onnx(
    program: Program, path: str | Path | None = None, *, contrib: bool = False, uint8_input: bool = False
) -> Any:
    """The program as an ONNX model: same tensor names, dynamic batch size, and the same integers in every uint8 tensor.

    The scales written beside integer operators count in steps of the output, weights carrying the multiplier a/b: what
    a runtime multiplies by is then exactly what the program's certificates were proved for. The real scale and zero
    point of every tensor stand in its ``doc_string``.

    Args:
        program: checked (converted or loaded).
        path: file to write, all at once or not at all; nothing is written when None.
        contrib: use operators of ONNX Runtime's domain ``com.microsoft`` where it has one. The integers are the same;
            without them, any tool that knows opset 17 can read the file.
        uint8_input: inputs that are quantized at once are taken as uint8 integers (images), without QuantizeLinear.

    Returns:
        onnx.ModelProto, checked by onnx.checker.

    Raises:
        EngineError: onnx is not installed, an op cannot be expressed, or the file cannot be written.

    Example:
        >>> from intact.program.ops import Tensor
        >>> x, y = Tensor("x", "float32", (None, 4)), Tensor("y", "uint8", (None, 4), 0.5, 3)
        >>> quantize = Op("y", "quantize", ("x",), {"lo": 0, "hi": 255})
        >>> model = export_onnx(Program({"x": x, "y": y}, (quantize,), ("x",), ("y",)))
        >>> [node.op_type for node in model.graph.node]
        ['QuantizeLinear']
    """
    model = build(program, contrib=contrib, integers=sole_quantizers(program) if uint8_input else ())
    import onnx

    onnx.checker.check_model(model)
    if path is not None:
        _write(model, Path(path))
    return model


def build(
    program: Program,
    *,
    contrib: bool,
    integers: Collection[str] = (),
    fed: Collection[str] = (),
    everything: bool = False,
    forms: Mapping[str, str] | None = None,
) -> Any:
    """The model, unchecked.

    Args:
        program: checked.
        contrib: see :func:`export_onnx`.
        integers: inputs to take as uint8.
        fed: float ops whose outputs are inputs of the model instead.
        everything: every tensor is an output, not only the program's.
        forms: tables to write as float functions, see ``intact.export.onnx_tables``.
    """
    if importlib.util.find_spec("onnx") is None:
        raise EngineError("onnx is not installed", where="export_onnx", remedy="pip install 'intact[onnx]'")
    from onnx import helper

    from .onnx_build import CONTRIB, Builder

    tensors = {name: replace(t, dtype="uint8") if name in integers else t for name, t in program.tensors.items()}
    batch = next((n for n in program.inputs if tensors[n].shape[:1] == (None,)), None)
    b = Builder(tensors, contrib=contrib, batch=batch, forms=forms)
    for op in program.ops:
        if op.name not in fed:
            _add(b, op)
    dims = _Dims(program)
    made = [op.name for op in program.ops]
    inputs = [*program.inputs, *(name for name in made if name in fed)]
    known = set(inputs)
    outputs = list(dict.fromkeys(made if everything else program.outputs))
    outputs = [name for name in outputs if name not in known] if everything else outputs
    graph = helper.make_graph(
        b.nodes,
        "intact",
        [dims.value_info(tensors[name]) for name in inputs],
        [dims.value_info(tensors[name]) for name in outputs],
        b.initializers,
        value_info=[dims.value_info(tensors[name]) for name in made if name not in known and name not in outputs],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    if any(node.domain for node in b.nodes):
        opsets.append(helper.make_opsetid(CONTRIB, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="intact")
    helper.set_model_props(model, {"intact.digest": digest(program), "intact.needs": ",".join(program.needs)})
    return model


def _add(b: Builder, op: Op) -> None:
    rule = _rules().get(op.kind)
    if rule is None:
        raise EngineError(f"{op.kind} has no form in ONNX", where=op.name, remedy="run with engine='reference'")
    b.begin(op)
    b.finish(op, rule(b, op, list(op.inputs), [b.tensors[n] for n in op.inputs], b.tensors[op.name]))


def _rules() -> dict[str, Rule]:
    from . import onnx_moves as moves
    from . import onnx_products as products
    from . import onnx_sums as sums
    from .onnx_floats import FLOATS

    return {
        "quantize": sums.quantize,
        "dequantize": sums.dequantize,
        "conv": products.conv,
        "linear": products.linear,
        "add": sums.add,
        "mul": sums.mul,
        "mean": sums.mean,
        "avg_pool": sums.avg_pool,
        "adaptive_avg_pool": sums.adaptive_avg_pool,
        "table": sums.table,
        "max_pool": moves.max_pool,
        "cat": moves.cat,
        "reshape": moves.reshape,
        "permute": moves.permute,
        "slice": moves.cut,
        "pad": moves.pad,
        "expand": moves.expand,
        "roll": moves.roll,
        "upsample": moves.upsample,
        "constant": moves.constant,
        **{f"float.{name}": rule for name, rule in FLOATS.items()},
    }


class _Dims:
    """Descriptions of tensors. An unknown dimension is ``batch``, or a multiple of it after a reshape."""

    def __init__(self, program: Program) -> None:
        self._factor = {name: Fraction(1) for name in program.inputs}
        for op in program.ops:
            shapes = [program.tensors[n].shape for n in (*op.inputs[:1], op.name)]
            factor = next((self._factor[n] for n in op.inputs if None in program.tensors[n].shape), Fraction(1))
            if op.kind == "reshape":
                factor *= Fraction(_known(shapes[0]), _known(shapes[-1]))
            self._factor[op.name] = factor

    def value_info(self, t: Tensor) -> Any:
        from onnx import helper

        from .onnx_build import ONNX_TYPES

        factor = self._factor[t.name]
        symbol = "batch" if factor == 1 else f"{factor}*batch"
        text = f"scale={t.scale!r} zero_point={t.zero_point}" if t.quantized else ""
        shape = [symbol if d is None else d for d in t.shape]
        return helper.make_tensor_value_info(t.name, ONNX_TYPES[t.dtype], shape, doc_string=text)


def _known(shape: tuple[int | None, ...]) -> int:
    total = 1
    for d in shape:
        total *= d or 1
    return total


def _write(model: Any, path: Path) -> None:
    if model.ByteSize() > LARGEST_FILE:
        raise EngineError("the model is too large for one ONNX file", where=str(path),
                          why="protocol buffers end at 2 GiB", remedy="split the network")  # fmt: skip
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            partial.write_bytes(model.SerializeToString())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise EngineError(
            "cannot write the file", where=str(path), why=str(error), remedy="check the folder and the space on it"
        ) from error


__all__ = ["IR_VERSION", "OPSET", "build", "export_onnx"]
