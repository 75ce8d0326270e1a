"""Quantized graphs of ONNX operators as descriptions."""

from __future__ import annotations

from collections.abc import Collection

from intact8.errors import InputError
from intact8.migration.description import Description

from .onnx_dynamic import DYNAMIC
from .onnx_graph import ForeignGraph
from .onnx_layers import LAYERS
from .onnx_qlinear import QLINEAR
from .onnx_reader import QDQ, Reader


def describe_graph(graph: ForeignGraph, requantize: Collection[str] = ()) -> Description:
    """Return the description of a quantized graph.

    Raises:
        InputError: an operator is not known, or cannot be kept; names it.
    """
    described = Reader(graph, requantize, {**QDQ, **LAYERS, **QLINEAR, **DYNAMIC}).read()
    if not described.marks and not described.dynamic:
        remedy = "quantize the float network with intact8.quantize"
        raise InputError("nothing in this graph is quantized", where=graph.tool, remedy=remedy)
    return described
