"""Comparing a captured graph with the model it came from."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from intact8.arithmetic.dimensions import measure, resolve
from intact8.capture.execute import run_float
from intact8.capture.graph import Graph
from intact8.capture.operations import FLOAT_KINDS, GRAPH_ONLY
from intact8.capture.trace import Captured, capture


def run(captured: Captured, *args: Any, **kwargs: Any) -> Any:
    """The graph's result in the model's own output structure."""
    with torch.no_grad():
        values = run_float(captured.graph, captured.tensors(), captured.flatten(args, kwargs))
    return captured.rebuild([values[name] for name in captured.graph.outputs])


def randomize_batch_norms(model: nn.Module) -> None:
    """Statistics and weights that are not the identity, so that leaving a batch norm out shows."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.6, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Equal structure, and tensors within ``tolerance`` of the largest value."""
    a, spec_a = pytree.tree_flatten(ours)
    b, spec_b = pytree.tree_flatten(theirs)
    assert spec_a == spec_b
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, Tensor):
            assert x == y
            continue
        assert x.shape == y.shape and x.dtype == y.dtype
        assert torch.isfinite(y.float()).all()
        scale = max(float(y.float().abs().max()), 1e-6)
        assert float((x.float() - y.float()).abs().max()) <= tolerance * scale


def assert_declared(graph: Graph) -> None:
    """Every node has the inputs, attributes and parameters that the opset declares for its operation."""
    for node in graph:
        if node.op in GRAPH_ONLY:
            continue
        assert node.op in FLOAT_KINDS, node
        kind = FLOAT_KINDS[node.op]
        known = {**kind.attrs, **kind.optional}
        assert kind.attrs.keys() <= node.attrs.keys() <= known.keys(), node
        assert not any(known[name](value) for name, value in node.attrs.items()), node
        least, most = kind.inputs
        assert least <= len(node.inputs) <= most + (node.op == "expand"), node
        assert kind.arrays.keys() <= node.params.keys() <= {*kind.arrays, *kind.optional_arrays}, node


def like(x: Tensor, batch: int) -> Tensor:
    """Other values of the same kind, for another batch size."""
    if x.is_floating_point():
        return torch.randn(batch, *x.shape[1:])
    return x[:1].expand(batch, *x.shape[1:])


def check(model: nn.Module, *example: Tensor, batches: tuple[int, ...] = (3,)) -> Captured:
    """Capture with ``example``, then compare at other batch sizes."""
    model.eval()
    captured = capture(model, example)
    assert_declared(captured.graph)
    for name, node in captured.graph.nodes.items():
        assert name == node.name
    for batch in batches:
        inputs = [
            torch.randn(batch, *x.shape[1:]) if x.is_floating_point() else x[:1].expand(batch, *x.shape[1:])
            for x in example
        ]
        with torch.no_grad():
            expected = model(*[x.clone() for x in inputs])
        assert_same(run(captured, *inputs), expected)
        graph_values = run_float(captured.graph, captured.tensors(), inputs)
        given = [
            (n, captured.graph.nodes[n].shape, x.shape) for n, x in zip(captured.graph.inputs, inputs, strict=True)
        ]
        sizes = measure(given, captured.graph.dimensions)
        for node in captured.graph:
            known = tuple(graph_values[node.name].shape)
            assert len(known) == len(node.shape), node.name
            assert all(
                n in (None, k) for n, k in zip(resolve({"shape": [*node.shape]}, sizes)["shape"], known, strict=True)
            ), node.name
            assert str(graph_values[node.name].dtype) == f"torch.{node.dtype}", node.name
    return captured
