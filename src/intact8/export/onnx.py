"""A program as an ONNX model with the same integers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.arithmetic.dimensions import Dim, told_by
from intact8.errors import EngineError
from intact8.opset.op import Tensor
from intact8.program.dimensions import fixed
from intact8.program.file import digest
from intact8.program.indices import intervals, unproved
from intact8.program.inputs import check_layout, images, sole_quantizers
from intact8.program.nonfinite import nonfinite_tensors
from intact8.program.program import Program
from intact8.regular_file import path_of

from .files import write_file

if TYPE_CHECKING:
    from .onnx_builder import Builder, Choice, Rule

OPSET, IR_VERSION = 17, 8
"""Every release of ONNX Runtime since 1.13 (2022) reads these versions, and so do the other tools of that age."""

PRIMES = (1000003, 1000033, 1000037, 1000039)
"""No network has sizes that are multiples of these."""

LARGEST_FILE = (1 << 31) - 1
"""Bytes a protocol buffer can have."""


def export_onnx(
    program: Program,
    path: str | Path | None = None,
    *,
    contrib: bool = False,
    uint8_input: bool = False,
    layout: str = "NCHW",
) -> Any:
    """Return the program as an ONNX model: same tensor names, dynamic batch size, and the same integers in every uint8
    tensor.

    The scales written beside integer operators count in steps of the output, weights carrying the multiplier a/b: what
    a runtime multiplies by is then exactly what the program's certificates were proved for. The real scale and zero
    point of every tensor stand in its ``doc_string``.

    Args:
        program: checked (converted or loaded).
        path: file to write, all at once or not at all; nothing is written when None.
        contrib: use operators of ONNX Runtime's domain ``com.microsoft`` where it has one. The integers are the same;
            without them, any tool that knows opset 17 can read the file.
        uint8_input: inputs that are quantized at once are taken as uint8 integers (images), without QuantizeLinear.
        layout: "NHWC": inputs of four dimensions are taken as (N, H, W, C), and a Transpose follows each.

    Returns:
        onnx.ModelProto, checked by onnx.checker.

    Raises:
        EngineError: onnx is not installed, an op cannot be expressed, or the file cannot be written.
        InputError: the layout is not known, or no input has four dimensions.

    Example:
        >>> from intact8.opset import Op, Tensor
        >>> x, y = Tensor("x", "float32", (None, 4)), Tensor("y", "uint8", (None, 4), 0.5, 3)
        >>> quantize = Op("y", "quantize", ("x",), {"lo": 0, "hi": 255})
        >>> model = export_onnx(Program({"x": x, "y": y}, (quantize,), ("x",), ("y",)))
        >>> [node.op_type for node in model.graph.node]
        ['QuantizeLinear']
    """
    check_layout(program, layout)
    integers = sole_quantizers(program) if uint8_input else ()
    model = build(program, contrib=contrib, integers=integers, nhwc=images(program) if layout == "NHWC" else ())
    import onnx

    onnx.checker.check_model(model)
    if path is not None:
        write_model(model, path_of(path, kind=EngineError))
    return model


def build(
    program: Program,
    *,
    contrib: bool,
    integers: Collection[str] = (),
    fed: Collection[str] = (),
    everything: bool = False,
    forms: Mapping[str, Choice] | None = None,
    nhwc: Collection[str] = (),
    byte_extremes: bool = False,
    nan_is_least: bool = False,
) -> Any:
    """Build the model without checking it.

    Args:
        program: checked.
        contrib: see :func:`export_onnx`.
        integers: inputs to take as uint8.
        fed: float ops whose outputs are inputs of the model instead.
        everything: every tensor is an output, not only the program's.
        forms: tables that an engine computes otherwise than a file does, see ``intact8.export.onnx_tables``.
        nhwc: inputs to take with channels last.
        byte_extremes: whether Max and Min take uint8, as they do in the standard and in ONNX Runtime from 1.24 on.
        nan_is_least: whether QuantizeLinear turns NaN into the least integer, as on x86; otherwise the model does.
    """
    rules = base_rules(program)
    tensors = {name: replace(t, dtype="uint8") if name in integers else t for name, t in program.tensors.items()}
    how = {"forms": forms or {}, "byte_extremes": byte_extremes, "nan_is_least": nan_is_least}
    b = builder(program, tensors, contrib=contrib, **how)
    for op in program.ops:
        if op.name not in fed:
            b.begin(op)
            b.finish(op, rules[op.kind](b, op, list(op.inputs), [tensors[n] for n in op.inputs], tensors[op.name]))
    return assemble(b, program, nhwc, fed, everything)


def builder(program: Program, tensors: dict[str, Tensor], **how: Any) -> Builder:
    """Return an empty graph for the program, whose tensors are described by ``tensors``."""
    from .onnx_builder import Builder

    known = {"given": program.inputs, "unproved": unproved(program), "special": nonfinite_tensors(program)}
    known |= {"intervals": intervals(program)}
    return Builder(tensors, **{"contrib": False, "places": _places(program), **known, **how})


def assemble(
    b: Builder, program: Program, nhwc: Collection[str] = (), fed: Collection[str] = (), everything: bool = False
) -> Any:
    """Return the model of the nodes that were collected; the arguments are those of :func:`build`."""
    from onnx import helper

    for name in nhwc:
        b.transpose_input(name)
        n, c, h, w = b.tensors[name].shape
        b.tensors[name] = replace(b.tensors[name], shape=(n, h, w, c))
    graph = _graph(b, program, fed, everything)
    domains = sorted({node.domain for node in b.nodes} - {""})
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="intact8")
    helper.set_model_props(model, {"intact8.digest": digest(program), "intact8.needs": ",".join(program.needs)})
    return model


def _graph(b: Builder, program: Program, fed: Collection[str], everything: bool) -> Any:
    from onnx import helper

    dims, tensors, made = _Dims(program), b.tensors, [op.name for op in program.ops]
    inputs = [*program.inputs, *(name for name in made if name in fed)]
    outputs = [name for name in made if name not in fed] if everything else list(dict.fromkeys(program.outputs))
    b.set_apart([name for name in outputs if name not in inputs and tensors[name].dtype == "float32"])
    inner = [dims.value_info(tensors[name]) for name in made if name not in fed and name not in outputs]
    inner += [dims.value_info(Tensor(name, "uint8", shape), op) for name, (op, shape) in b.shapes.items()]
    given, given_back = ([dims.value_info(tensors[name]) for name in names] for names in (inputs, outputs))
    return helper.make_graph(b.nodes, "intact8", given, given_back, b.initializers, value_info=inner)


def base_rules(program: Program) -> dict[str, Rule]:
    """Return the kind → rule, for a program whose kinds all have one."""
    if importlib.util.find_spec("onnx") is None:
        raise EngineError("onnx is not installed", where="export_onnx", remedy="pip install 'intact8[onnx]'")
    from . import (
        onnx_conv_linear,
        onnx_dynamic_linear,
        onnx_elementwise,
        onnx_floats,
        onnx_moves,
        onnx_pools,
        onnx_recurrent,
        onnx_softmax_norms,
    )

    rules = {
        **onnx_elementwise.RULES,
        **onnx_conv_linear.RULES,
        **onnx_pools.RULES,
        **onnx_softmax_norms.RULES,
        **onnx_dynamic_linear.RULES,
        **onnx_recurrent.RULES,
        **onnx_moves.RULES,
        **{f"float.{name}": rule for name, rule in onnx_floats.RULES.items()},
    }
    for op in program.ops:
        if op.kind not in rules:
            raise EngineError(f"{op.kind} has no form in ONNX", where=op.name, remedy="run with engine='reference'")
    return rules


def _places(program: Program) -> dict[str | None, tuple[str, int, int, int]]:
    """Return the dimension that changes → an input, the axis of it that tells the size, and in what way."""
    places: dict[str | None, tuple[str, int, int, int]] = {}
    for name in program.inputs:
        for axis, dim in enumerate(program.tensors[name].shape):
            if dim is None and axis == 0:
                places.setdefault(None, (name, axis, 1, 0))
            elif (told := told_by(dim)) is not None:
                places.setdefault(told[0], (name, axis, *told[1:]))
    return places


class _Dims:
    """Descriptions of tensors. An unknown dimension is ``batch``, or a multiple of it after a reshape.

    Products of the batch and a named dimension are found by taking the name's size for a large prime.
    """

    def __init__(self, program: Program) -> None:
        self._factor = {name: Fraction(1) for name in program.inputs}
        self._primes = dict(zip(program.dimensions, PRIMES, strict=False))
        self._batch = "batch"
        while self._batch in program.dimensions:
            self._batch += "_"
        program = fixed(program, {name: self._primes.get(name, 1) for name in program.dimensions})
        for op in program.ops:
            shapes = [program.tensors[n].shape for n in (*op.inputs[:1], op.name)]
            factor = next((self._factor[n] for n in op.inputs if None in program.tensors[n].shape), Fraction(1))
            if op.kind == "reshape":
                factor *= Fraction(_known(shapes[0]), _known(shapes[-1]))
            self._factor[op.name] = factor

    def value_info(self, t: Tensor, of: str = "") -> Any:
        """Return the description of a tensor; its batch is that of tensor ``of``, if one is named."""
        from onnx import helper

        from .onnx_builder import ONNX_TYPES

        factor = self._factor[of or t.name]
        symbol = self._symbol(factor)
        text = f"scale={t.scale!r} zero_point={t.zero_point}" if t.quantized else ""
        shape = [symbol if d is None else d for d in t.shape]
        return helper.make_tensor_value_info(t.name, ONNX_TYPES[t.dtype], shape, doc_string=text)

    def _symbol(self, factor: Fraction) -> str:
        names: list[str] = []
        for name, prime in self._primes.items():
            while factor.numerator % prime == 0:
                factor, names = factor / prime, [*names, name]
        return "*".join([*([str(factor)] if factor != 1 else []), self._batch, *names])


def _known(shape: tuple[Dim, ...]) -> int:
    return math.prod(d for d in shape if isinstance(d, int))


def write_model(model: Any, path: Path) -> None:
    """Write the file. Raises EngineError: it is too large for the format, or cannot be written."""
    if model.ByteSize() > LARGEST_FILE:
        what, why = "the model is too large for one ONNX file", "protocol buffers end at 2 GiB"
        raise EngineError(what, where=str(path), why=why, remedy="split the network")
    write_file(path, model.SerializeToString())
