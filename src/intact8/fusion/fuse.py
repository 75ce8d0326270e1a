"""Fusion: operations that share one rounding become one node. Only the edges of the graph decide, never names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from intact8.capture.decisions import only_decide
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import HEAVY, INTEGER_KINDS, LIGHT
from intact8.fusion.activations import clamp_act, compose, never_negative
from intact8.fusion.attention_masks import masks_into_softmax
from intact8.fusion.decomposed_norms import norms_by_hand
from intact8.fusion.lookup_tables import to_tables
from intact8.fusion.rewriter import Note, Rewriter
from intact8.fusion.scale_shift import constants_to_scale_shift
from intact8.fusion.slice_of_cat import slices_of_parts

CARRIES_CLAMP = frozenset(op for op in LIGHT | HEAVY if "lo" in INTEGER_KINDS[op].attrs) - {"matmul"}
"""Operations whose requantization clamps, so that ReLU, ReLU6 and hardtanh after them cost nothing."""

CARRIES_SLOPE = frozenset(op for op, kind in INTEGER_KINDS.items() if "a_neg" in kind.optional_arrays)
"""Operations whose requantization can use another multiplier for negative sums (leaky ReLU, PReLU)."""


@dataclass(frozen=True)
class Fused:
    """What :func:`fuse` returns.

    Attributes:
        graph: the simplified graph; the captured one is untouched.
        log: one note per captured activation, batch norm and fused add: (node, decision).
        constants: tensors fusion computed (−mean, 1/std), to be added to the network's tensors under these names.
    """

    graph: Graph
    log: tuple[Note, ...]
    constants: dict[str, Tensor] = field(default_factory=dict)


def fuse(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    *,
    residual: bool,
    leaky: bool,
    masks: bool = False,
    rounded: Collection[str] = (),
) -> Fused:
    """Simplify a captured graph.

    - a layer norm or RMS norm written by hand → that norm (see ``intact8.fusion.decomposed_norms``).
    - conv, linear + batch norm (+ residual add) (+ ReLU, ReLU6, hardtanh, clamp; leaky ReLU, PReLU) → one node.
    - add, sub, mul, mean, average pools + clamp-like activation → one node; an activation that changes nothing
      any more (ReLU after ReLU) disappears.
    - batch norm right before a conv or linear without padding → folded into it.
    - a positive factor before or after a product of two activations → its attribute ``mul``.
    - any other batch norm that stands alone, and arithmetic with one constant per channel → ``scale_shift``.
    - a slice of a concatenation → its part (see ``intact8.fusion.slice_of_cat``).
    - runs of other functions of one number → ``table`` (see ``intact8.fusion.lookup_tables``).

    Nothing is fused into an operation that somebody else reads, too, nor across dropout, which is not the identity in
    training. A fused node has the name of its first part; ``source`` lists all parts, every captured node is
    in exactly one.

    Args:
        graph: from ``intact8.capture``.
        tensors: parameters, buffers and constants by the names the graph's params use.
        residual: whether an add goes into the convolution before it (one rounding instead of two).
        leaky: whether leaky ReLU and PReLU go into the operation before them (one rounding instead of a table).
        masks: whether masks of scores become boolean inputs of the softmax behind them.
        rounded: nodes whose results another tool rounds: no batch norm goes into weights across that rounding.

    Example:
        >>> g = Graph({"x": Node("x", "input", shape=(None, 4)), "fc": Node("fc", "linear", ["x"], shape=(None, 2)),
        ...            "act": Node("act", "relu", ["fc"], shape=(None, 2))}, ["x"], ["act"])
        >>> fused = fuse(g, {}, residual=False, leaky=False)
        >>> fused.graph.outputs, fused.graph.nodes["fc"].attrs["act"], fused.log
        (['fc'], {'kind': 'clamp', 'min': 0.0, 'max': None}, (Note(node='act', decision='fused into fc'),))
    """
    work = Rewriter(graph)
    norms_by_hand(work)
    slices_of_parts(work)
    made = masks_into_softmax(work, tensors) if masks else {}
    made |= constants_to_scale_shift(work, tensors)
    _fuse_batch_norms(work, rounded)
    if residual:
        _fuse_residuals(work)
    _fuse_activations(work, tensors, leaky)
    _fold_forward(work, rounded)
    _fold_factors(work)
    to_tables(work, tensors)
    for node in work.graph:
        if node.op in ("softmax", "log_softmax"):
            work.note(node.name, f"float: no integer form yet: {node.op}")
    result = work.finish()
    used = {name for node in result for name in node.params.values()}
    return Fused(result, work.log(), {k: v for k, v in made.items() if k in used})


def _fuse_batch_norms(work: Rewriter, rounded: Collection[str]) -> None:
    for node in list(work.graph):
        if node.op != "batch_norm":
            continue
        if "running_mean" not in node.params or node.dtype != "float32":
            work.note(node.name, "float: batch norm without running statistics, or not float32")
            continue
        bn = {"eps": node.attrs["eps"], "momentum": node.attrs["momentum"]}
        params = {f"bn.{role}": name for role, name in node.params.items()}
        before = work.producer(node)
        # Batch norm works on dimension 1, a linear map on the last one.
        aligned = before.op == "conv" or (before.op == "linear" and len(before.shape) == 2)
        if aligned and "bn" not in before.attrs and work.only_user(before.name) and before.name not in rounded:
            work.merge(before, node, attrs={**before.attrs, "bn": bn}, params={**before.params, **params})
            work.note(node.name, f"fused into {before.name}")
        else:
            work.put(replace(node, op="scale_shift", attrs={"bn": bn}, params=params))
            work.note(node.name, "scale_shift: no convolution of its own before it")


def _fold_forward(work: Rewriter, rounded: Collection[str]) -> None:
    """Fold batch norm into a convolution or linear map that alone reads it: W·(γ'x + β') = (W·γ')x + W·β'.

    Exact where no padding is inserted between the two; the parameters get the roles ``pre.weight`` and so on.
    """
    for node in list(work.graph):
        if node.op != "scale_shift" or "bn" not in node.attrs or "act" in node.attrs or len(node.inputs) > 1:
            continue
        if not work.only_user(node.name) or node.name in rounded:
            continue
        reader = work.graph.nodes[work.users(node.name)[0]]
        plain = reader.op == "conv" and not reader.attrs["transposed"] and not any(reader.attrs["padding"])
        aligned = plain or (reader.op == "linear" and len(node.shape) == 2)
        if not aligned or reader.inputs[0] != node.name or "weight" not in reader.params:
            continue
        params = {f"pre.{role.removeprefix('bn.')}": name for role, name in node.params.items()}
        inputs, attrs = [node.inputs[0], *reader.inputs[1:]], {**reader.attrs, "pre": node.attrs["bn"]}
        params |= reader.params
        work.put(replace(reader, inputs=inputs, attrs=attrs, params=params, source=node.parts + reader.parts))
        work.remove(node)
        work.note(node.name, f"folded into {reader.name}")


def _fold_factors(work: Rewriter) -> None:
    """Make a constant factor of a product of two activations (1/√d of attention) part of its multiplier."""
    for node in list(work.graph):
        if node.op != "affine_scalar" or node.attrs["add"] != 0 or not node.attrs["mul"] > 0:
            continue
        factor, before = float(node.attrs["mul"]), work.producer(node)
        after = work.graph.nodes[work.users(node.name)[0]] if work.only_user(node.name) else None
        if {node.dtype, before.dtype} != {"float32"}:
            continue
        if before.op == "matmul" and work.only_user(before.name):
            work.merge(before, node, attrs={"mul": factor * before.attrs.get("mul", 1.0)})
            work.note(node.name, f"fused into {before.name}")
        elif after is not None and after.op == "matmul" and after.dtype == "float32":
            inputs = [before.name if name == node.name else name for name in after.inputs]
            attrs = {"mul": factor * after.attrs.get("mul", 1.0)}
            work.remove(node)
            work.put(replace(after, inputs=inputs, attrs=attrs, source=node.parts + after.parts))
            work.note(node.name, f"fused into {after.name}")


def _fuse_residuals(work: Rewriter) -> None:
    for node in list(work.graph):
        if node.op != "add" or node.dtype != "float32":
            continue
        a, b = work.producer(node, 0), work.producer(node, 1)
        if a.shape != b.shape or a.shape != node.shape or "constant" in (a.op, b.op) or a.dtype != b.dtype:
            continue
        able = [n for n in (a, b) if n.op in HEAVY and len(n.inputs) == 1 and work.only_user(n.name)]
        if not able:
            continue
        head = max(able, key=lambda n: work.position(n.name))
        shortcut = b if head is a else a
        work.merge(head, node, inputs=[*head.inputs, shortcut.name])
        work.note(node.name, f"fused into {head.name}")


def _fuse_activations(work: Rewriter, tensors: Mapping[str, Tensor], leaky: bool) -> None:
    deciding = only_decide(work.graph)
    for node in list(work.graph):
        if node.op not in ("relu", "clamp", "leaky_relu", "prelu") or node.dtype != "float32":
            continue
        before = work.producer(node)
        if before.dtype != "float32":
            continue
        act = before.attrs.get("act")
        clamp = clamp_act(node)
        if _changes_nothing(act, node, clamp):
            work.put(replace(before, source=before.parts + node.parts))
            work.drop(node, before.name)
        elif clamp is not None and before.op in CARRIES_CLAMP and work.only_user(before.name):
            if node.op != "relu" and node.name in deciding:
                continue
            if act is not None and act["kind"] != "clamp":
                continue
            work.merge(before, node, attrs={**before.attrs, "act": clamp if act is None else compose(act, clamp)})
        elif clamp is None and leaky and _takes_slope(work, before, node, tensors):
            _merge_slope(work, before, node)
        elif node.op == "prelu" and leaky and len(node.shape) >= 2 and tensors[node.params["weight"]].numel() > 1:
            # One slope per channel needs more than one table, but it is a per-channel product by 1 with an activation.
            params = {"act.weight": node.params["weight"]}
            work.put(replace(node, op="scale_shift", attrs={"act": {"kind": "prelu"}}, params=params))
            work.note(node.name, "scale_shift: one slope per channel, nothing before it to fuse into")
            continue
        else:
            continue
        work.note(node.name, f"fused into {before.name}")


def _changes_nothing(act: dict[str, Any] | None, node: Node, clamp: dict[str, Any] | None) -> bool:
    if act is None or act["kind"] != "clamp":
        return False
    return never_negative(act) if clamp is None else compose(act, clamp) == act


def _takes_slope(work: Rewriter, before: Node, node: Node, tensors: Mapping[str, Tensor]) -> bool:
    if before.op not in CARRIES_SLOPE or "act" in before.attrs or len(before.inputs) > 1:
        return False
    if not work.only_user(before.name):
        return False
    # PReLU counts channels along dimension 1, a linear map along the last one.
    one_slope = node.op == "leaky_relu" or tensors[node.params["weight"]].numel() == 1
    return one_slope or before.op != "linear" or len(before.shape) == 2


def _merge_slope(work: Rewriter, before: Node, node: Node) -> None:
    params = {f"act.{role}": name for role, name in node.params.items()}
    attrs = {**before.attrs, "act": {"kind": node.op, **node.attrs}}
    work.merge(before, node, attrs=attrs, params={**before.params, **params})
