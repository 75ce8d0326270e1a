"""One model for several batch sizes.

OpenVINO (2026.4) packs weights anew in every compiled model, but once within one. So that a large network is not packed
for each batch size, the models of all sizes become branches of one, behind conditions. Inputs and results are handed to
branches as vectors: tensors of more dimensions would be reordered element by element on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.engines.openvino.lowering import port


def join(models: Mapping[int, Any]) -> Any:
    """Return a model of all of ``models`` and one input more, an int32: the size whose model is to run.

    Args:
        models: size → model of static shapes, two or more; all have the same inputs and results but for their sizes.
    """
    *others, last = sorted(models)
    joined = _flat(models[last])
    for size in reversed(others):
        joined = _either(size, _flat(models[size]), joined)
    return joined


def _flat(model: Any) -> Any:
    """Return the model with vectors for inputs and results."""
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


def _either(size: int, here: Any, there: Any) -> Any:
    """Build ``here`` for ``size`` and ``there`` for all others, which may itself take the size as its last input."""
    vectors = [ov.parameter(openvino.PartialShape([-1]), p.get_element_type()) for p in here.get_parameters()]
    given = ov.parameter([], np.int32)
    node = ov.if_op(port(ov.equal(given, ov.constant(np.int32(size)))))
    node.set_then_body(here)
    node.set_else_body(there)
    below = there.get_parameters()
    for x, a, b in zip(vectors, here.get_parameters(), below, strict=False):
        node.set_input(port(x), a, b)
    if len(below) > len(vectors):
        node.set_input(port(given), None, below[-1])
    pairs = zip(here.get_results(), there.get_results(), strict=True)
    return openvino.Model([ov.result(node.set_output(a, b)) for a, b in pairs], [*vectors, given], "intact8")
