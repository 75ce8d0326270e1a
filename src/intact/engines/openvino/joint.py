"""One model for several batch sizes.

OpenVINO (2026.4) packs weights anew in every compiled model, but once within one. So that a large network is not packed
for each batch size, the models of all sizes become branches of one, behind conditions. Inputs and results are handed to
branches as vectors: tensors of more dimensions would be reordered element by element on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from .values import port


def join(models: Mapping[int, Any]) -> Any:
    """A model of all of ``models`` and one input more, an int32: the size whose model is to run.

    Args:
        models: size → model of static shapes; all have the same inputs and results but for their sizes.
    """
    sizes = sorted(models)
    first = models[sizes[0]]
    inputs = [_vector(p.get_element_type()) for p in first.get_parameters()]
    size = ov.parameter([], np.int32)
    outputs = _choice({n: _flat(models[n]) for n in sizes}, sizes, [port(p) for p in inputs], port(size))
    return openvino.Model([ov.result(y) for y in outputs], [*inputs, size], "intact")


def _vector(dtype: Any) -> Any:
    return ov.parameter(openvino.PartialShape([-1]), dtype)


def _flat(model: Any) -> Any:
    """The model with vectors for inputs and results."""
    parameters = []
    for old in model.get_parameters():
        shape = [int(n) for n in old.get_shape()]
        vector = ov.parameter([int(np.prod(shape))], old.get_element_type())
        whole = port(ov.reshape(vector, np.array(shape, np.int64), False))
        for target in list(port(old).get_target_inputs()):
            target.replace_source_output(whole)
        parameters.append(vector)
    whole_size = np.array([-1], np.int64)
    results = [ov.result(ov.reshape(r.input_value(0), whole_size, False)) for r in model.get_results()]
    return openvino.Model(results, parameters)


def _choice(models: Mapping[int, Any], sizes: Sequence[int], inputs: Sequence[Any], size: Any) -> list[Any]:
    """Results of the model for ``size``; the last one's where it is none of the others."""
    model = models[sizes[0]]
    if len(sizes) == 2:
        other, passed = models[sizes[1]], False
    else:
        inner = [_vector(x.get_element_type()) for x in inputs]
        inner_size = ov.parameter([], np.int32)
        outputs = _choice(models, sizes[1:], [port(p) for p in inner], port(inner_size))
        other, passed = openvino.Model([ov.result(y) for y in outputs], [*inner, inner_size]), True
    node = ov.if_op(port(ov.equal(size, ov.constant(np.int32(sizes[0])))))
    node.set_then_body(model)
    node.set_else_body(other)
    for x, here, there in zip(inputs, model.get_parameters(), other.get_parameters(), strict=False):
        node.set_input(x, here, there)
    if passed:
        node.set_input(size, None, other.get_parameters()[-1])
    pairs = zip(model.get_results(), other.get_results(), strict=True)
    return [node.set_output(here, there) for here, there in pairs]
