"""Rows of all samples at once: ``x.view(batch * n, c)[(i + torch.arange(batch)[:, None] * n).view(-1)]``.

The places in such a table count on from sample to sample, as in graph networks on point clouds. They are rows of each
sample, ``x[torch.arange(batch)[:, None], i]``, of which any number of samples can be computed.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from intact8.capture.fx_nodes import added_like
from intact8.capture.ops_shape import WHOLE

aten = torch.ops.aten

FLAT = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints)
VIEWS = (*FLAT, aten.unsqueeze.default)
SAME = (aten.contiguous.default, aten.clone.default, aten.to.dtype, aten.to.device, aten._to_copy.default)


def index_samples(gm: GraphModule) -> None:
    """Index rows of each sample where rows of all samples at once are indexed."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.index.Tensor):
        found = _parts(node)
        if found is None:
            continue
        x, index = found
        before = node.all_input_nodes
        batch = added_like(node, aten.sym_size.int, x, 0)
        samples = added_like(node, aten.arange.default, batch)
        for _ in range(index.meta["val"].ndim - 1):
            samples = added_like(node, aten.unsqueeze.default, samples, -1)
        rows = added_like(node, aten.index.Tensor, x, [samples, index])
        if node.meta["val"].ndim == x.meta["val"].ndim - 1:
            with gm.graph.inserting_before(node):
                rows = gm.graph.call_function(aten.reshape.default, (rows, [-1, *x.meta["val"].shape[2:]]))
            rows.meta = dict(node.meta)
        node.replace_all_uses_with(rows)
        gm.graph.erase_node(node)
        _erase(before)
        gm.recompile()


def _erase(nodes: list[Node]) -> None:
    """Erase nodes that nothing reads, and what only they read."""
    for node in nodes:
        if not node.users and node.op == "call_function" and node in node.graph.nodes:
            before = node.all_input_nodes
            node.graph.erase_node(node)
            _erase(before)


def _parts(node: Node) -> tuple[Node, Node] | None:
    """Return what rows are taken from, (batch, n, …), and their indices in each sample, (batch, …); None for others."""
    args: Any = node.args
    places: Any
    if node.target is not aten.index.Tensor or len(args[1]) != 1 or not isinstance(args[1][0], Node):
        return None
    table, places = args[0], args[1][0]
    if table.target not in FLAT:
        return None
    x, flat = table.args[0].meta["val"], table.meta["val"]
    while places.target in (*FLAT, *SAME):
        places = places.args[0]
    given = args[1][0].meta["val"].shape
    if len(given) != 1 and given != places.meta["val"].shape:
        return None
    if places.target is not aten.add.Tensor or places.kwargs or x.ndim < 2 or x.shape[2:] != flat.shape[1:]:
        return None
    batch, rows = x.shape[:2]
    if isinstance(batch, int) or not _equal(_expr(flat.shape[0]), _expr(batch) * _expr(rows)):
        return None
    for index, offset in (places.args[:2], places.args[1::-1]):
        both = [n.meta["val"] for n in (index, offset) if isinstance(n, Node) and isinstance(n.meta.get("val"), Tensor)]
        if len(both) == 2 and both[0].ndim == both[1].ndim and _counts(offset, batch, rows):
            return (table.args[0], index) if _expr(both[0].shape[0]) == _expr(batch) else None
    return None


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _equal(a: Any, b: Any) -> bool:
    """Return whether two sizes are one, as ``40·s // 8`` and ``5·s`` are, by some values of what they depend on."""
    a, b = sympy.sympify(a), sympy.sympify(b)
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    tried = [{symbol: first + i for i, symbol in enumerate(symbols)} for first in (2, 3, 7)]
    return all(a.subs(values) == b.subs(values) for values in tried)


def _is_whole(node: Node) -> bool:
    """Return whether a node is a slice of all there is, as ``x[:, None]`` begins with."""
    if node.target is not aten.slice.Tensor:
        return False
    args: Any = node.args
    start, end = args[2] if len(args) > 2 else 0, args[3] if len(args) > 3 else None
    return len(args) < 5 and not start and (end is None or end >= WHOLE)


def _counts(node: Any, batch: torch.SymInt, rows: int | torch.SymInt) -> bool:
    """Return whether a node is the number of the sample, (batch, 1, …), times the number of its rows."""
    shape = node.meta["val"].shape
    if _expr(shape[0]) != _expr(batch) or any(size != 1 for size in shape[1:]):
        return False
    scaled = False
    while node.target in (*VIEWS, *SAME, aten.mul.Tensor) or _is_whole(node):
        if node.target is aten.mul.Tensor:
            factor = node.args[1].meta.get("val") if isinstance(node.args[1], Node) else node.args[1]
            if scaled or not isinstance(factor, int | torch.SymInt) or _expr(factor) != _expr(rows):
                return False
            scaled = True
        node = node.args[0]
    if node.target is aten.arange.default:
        start, step = 0, 1
    elif node.target is aten.arange.start:
        start, step = node.args[0], 1
    elif node.target is aten.arange.start_step:
        start, step = node.args[0], node.args[2] if len(node.args) > 2 else 1
    else:
        return False
    return start == 0 and (step == 1 if scaled else _expr(step) == _expr(rows))
