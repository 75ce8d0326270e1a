"""One node of the simulation becomes one op of the program, with the same integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intact8.arithmetic.dimensions import Dim
from intact8.arithmetic.resize import denominators
from intact8.capture.graph import Node
from intact8.errors import ProgramError
from intact8.golden import with_golden
from intact8.lower.dynamic_weight_only import float_result_ops
from intact8.lower.float_islands import float_ops, with_infinities
from intact8.opset import KINDS
from intact8.opset.op import Op, Tensor
from intact8.opset.resize import as_known
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program
from intact8.simulation.ops.affine import Affine
from intact8.simulation.ops.integer_op import output_limits
from intact8.simulation.ops.recurrent import layer_arrays
from intact8.simulation.ops.softmax_norms import program_form
from intact8.simulation.quantized_graph import AFFINE
from intact8.simulation.scales.quant_points import QuantPoint, Requantization
from intact8.simulation.simulation import Simulation
from intact8.simulation.weights.folding import own_params

from .provenance import provenance

Array = npt.NDArray[Any]

NAMED = 16
"""Functions of a chain, at most, that a table's attribute names."""


def lower(sim: Simulation) -> Program:
    """Return the program of a calibrated simulation, checked and certified, with golden vectors.

    Raises:
        StateError: not calibrated, in training mode, fake quantization off somewhere, a parameter not finite, or
            weights too large for any multiplier.
    """
    return with_golden(draft(sim))


def draft(sim: Simulation) -> Program:
    """Return the program without golden vectors, which take the reference engine seconds: for use in this process.

    Raises:
        StateError: as :func:`lower`.
    """
    sim.require_deployable()
    sim.require_finite()
    if not sim.current:
        sim.resolve(from_observers=False)
    sim.require_multipliers()
    alias: dict[str, str] = {}
    ops: list[Op] = []
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for node in sim.graph:
            inputs = tuple(alias.get(n, n) for n in node.inputs)
            if node.op == "dropout":
                alias[node.name] = inputs[0]
                continue
            if node.op == "expand":  # what it takes the batch size of is not among the operands of the program's op
                inputs = inputs[:1]
            if node.op != "input":
                made = _lower_node(sim, node, inputs)
                ops += made
                # A product of two activations scales its first operand; other parts have the shape of the whole.
                shape = sim.graph.nodes[node.inputs[0]].shape if node.op == "matmul" else node.shape
                for op in made[:-1]:
                    tensors[op.name] = Tensor(op.name, "float32", shape)
            tensors[node.name] = _tensor(node, sim.point(node.name))
    infinite = [alias.get(name, name) for i, name in enumerate(sim.graph.outputs) if i in sim.captured.infinite]
    program = Program(
        tensors=tensors,
        ops=tuple(with_infinities(ops, infinite)),
        inputs=tuple(sim.graph.inputs),
        outputs=tuple(alias.get(n, n) for n in sim.graph.outputs),
        structure=sim.graph.structure,
        recipe=sim.recipe.to_toml(),
        provenance=provenance(sim),
        dimensions=dict(sim.graph.dimensions),
    )
    try:
        check(program)
    except ProgramError as error:
        what = f"what was made of the model is not a program: {error.what}"
        remedy = "keep this part out of the quantized model, and report it as an issue with this message"
        raise ProgramError(what, where=error.where, why=error.why, remedy=remedy) from error
    return certify(program, sim.recipe.engines)


def _tensor(node: Node, point: QuantPoint | None) -> Tensor:
    if point is None:
        return Tensor(node.name, node.dtype, node.shape)
    return Tensor(node.name, "uint8", node.shape, point.scale_value, point.zero_point_value)


def _lower_node(sim: Simulation, node: Node, inputs: tuple[str, ...]) -> list[Op]:
    point = sim.point(node.name)
    note = sim.placed.float_nodes.get(node.name, "")
    common: dict[str, Any] = {"module": node.module, "source": tuple(node.source or [node.name])}
    if node.op == "quantize":
        assert point is not None
        return [Op(node.name, "quantize", inputs, {"lo": point.lo, "hi": point.hi}, **common)]
    if node.op == "dequantize":
        return [Op(node.name, "dequantize", inputs, **common)]
    if node.name in sim.recurrent_points:
        arrays = layer_arrays(node, sim.tensors, sim.recurrent_points[node.name])
        return [Op(node.name, node.op, inputs, dict(node.attrs), arrays, **common)]
    if node.name in sim.coded_points or node.name in sim.placed.dequantized:
        return float_result_ops(sim, node, inputs, note=note, **common)
    if point is None:
        return float_ops(node, inputs, sim.tensors, sim.graph.nodes, note=note, **common)
    if node.op == "constant":
        value = own_params(node, sim.tensors)["value"]
        return [Op(node.name, "constant", (), arrays={"value": _rows(value, point)}, **common)]
    if node.op in AFFINE:
        return [_affine(sim, node, inputs, point, common)]
    if node.op in KINDS and KINDS[node.op].nonlinear:
        return [_nonlinear(sim, node, inputs, point, common)]
    if node.op in _LOWER:
        kind, attrs, arrays = _LOWER[node.op](node, point, sim.requantizations[node.name])
        if kind != "table":
            lo, hi = output_limits(node, point)
            attrs.update(lo=lo, hi=hi)
        return [Op(node.name, kind, inputs, attrs, arrays, **common)]
    if node.op == "upsample" and not node.moves:
        return [_resize(node, sim.graph.nodes[node.inputs[0]].shape, inputs, common)]
    attrs = dict(node.attrs)
    if node.op == "pad":
        z = point.zero_point_value
        attrs["value"] = min(max(round(attrs["value"] / point.scale_value) + z, point.lo), point.hi)
    return [Op(node.name, node.op, inputs, attrs, **common)]


def _resize(node: Node, shape: Sequence[Dim], inputs: tuple[str, ...], common: dict[str, Any]) -> Op:
    size, corners = node.attrs["size"], node.attrs["align_corners"]
    attrs = {"size": size, "align_corners": corners, "denominators": denominators(*as_known(shape[2:], size), corners)}
    return Op(node.name, "resize_linear", inputs, attrs, **common)


def _nonlinear(sim: Simulation, node: Node, inputs: tuple[str, ...], point: QuantPoint, common: dict[str, Any]) -> Op:
    params = own_params(node, sim.tensors)
    if node.op == "embedding":
        return Op(node.name, "embedding", inputs, {}, {"weight": _rows(params["weight"], point)}, **common)
    x = sim.point(node.inputs[0])
    assert x is not None
    attrs, arrays = program_form(node, params, x, point)
    return Op(node.name, node.op, inputs, {**attrs, "lo": point.lo, "hi": point.hi}, arrays, **common)


def _rows(value: torch.Tensor, point: QuantPoint) -> Array:
    """Quantize real numbers that are known before the network runs."""
    q = torch.clamp(torch.round(value / point.scale) + point.zero_point, point.lo, point.hi)
    return q.to(torch.uint8).cpu().numpy()


def _numpy(t: torch.Tensor, dtype: type[np.generic]) -> Array:
    return t.detach().cpu().numpy().astype(dtype)


def _affine(sim: Simulation, node: Node, inputs: tuple[str, ...], point: QuantPoint, common: dict[str, Any]) -> Op:
    x = sim.point(node.inputs[0])
    assert x is not None
    req = sim.requantizations[node.name]
    layer = sim.layer_ops[node.name]
    assert isinstance(layer, Affine)
    integers = layer.integers(x)
    weight, bias = _numpy(integers.weight, np.int8), _numpy(integers.bias, np.int32)
    arrays = {"weight": weight, "bias": bias, "a": _numpy(req.a, np.int32), "b": _numpy(req.b, np.int32)}
    if req.a_neg.numel():
        arrays |= {"a_neg": _numpy(req.a_neg, np.int32), "b_neg": _numpy(req.b_neg, np.int32)}
    lo, hi = output_limits(node, point)
    attrs: dict[str, Any] = {"lo": lo, "hi": hi, "residual_a": int(req.residual_a[0]) if req.residual_a.numel() else 0}
    kind = "linear"
    if node.op == "conv":
        kind = "conv"
        attrs |= {k: node.attrs[k] for k in ("stride", "padding", "dilation", "output_padding", "groups", "transposed")}
    elif node.op == "scale_shift":
        rank = len(node.shape) - 2
        if rank == 0:
            arrays["weight"] = np.diag(weight)
        else:
            kind = "conv"
            arrays["weight"] = weight.reshape(-1, 1, *[1] * rank)
            attrs |= {"stride": [1] * rank, "padding": [0] * rank, "dilation": [1] * rank, "output_padding": [0] * rank}
            attrs |= {"groups": len(weight), "transposed": False}
    gain = float(req.gain_error)
    certificate = {"gain_error": gain} if gain else None
    return Op(node.name, kind, inputs, attrs, arrays, certificate=certificate, **common)


Lowered = tuple[str, dict[str, Any], dict[str, Array]]


def _sum(node: Node, point: QuantPoint, req: Requantization) -> Lowered:
    return "add", {"a": [int(v) for v in req.a], "b": int(req.b[0])}, {}


def _single(node: Node, point: QuantPoint, req: Requantization) -> Lowered:
    kept = {k: v for k, v in node.attrs.items() if k not in ("act", "mul")}  # a factor is part of the multiplier
    return node.op, {**kept, "a": int(req.a[0]), "b": int(req.b[0])}, {}


def _pool(node: Node, point: QuantPoint, req: Requantization) -> Lowered:
    attrs = {k: v for k, v in node.attrs.items() if k != "act"}
    rows = [[int(n), int(a), int(b)] for n, a, b in zip(req.n, req.a, req.b, strict=True)]
    return node.op, {**attrs, "multipliers": rows}, {}


def _table(node: Node, point: QuantPoint, req: Requantization) -> Lowered:
    steps = [s["attrs"].get("fn", s["op"]) if s["op"] == "unary" else s["op"] for s in node.attrs.get("chain", [])]
    if len(steps) > NAMED:
        steps = [*steps[:NAMED], f"{len(steps) - NAMED} more"]
    return "table", {"fn": " ∘ ".join(steps) or "requantize"}, {"table": _numpy(req.table, np.uint8)}


_LOWER: dict[str, Callable[[Node, QuantPoint, Requantization], Lowered]] = {
    "add": _sum,
    "sub": _sum,
    "mul": _single,
    "matmul": _single,
    "mean": _single,
    "avg_pool": _pool,
    "adaptive_avg_pool": _pool,
    "table": _table,
    "requantize": _table,
}
