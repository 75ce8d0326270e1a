"""Repairs of how images and signals are padded, convolved, pooled and resized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F

from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.repair import SCALED, Compute, Repair
from intact8.diagnose.doctor.structural_repairs import unwrapped
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.simulation import Simulation


def of_windows(sim: Simulation) -> Iterator[Repair]:
    """Yield the repairs of this module."""
    graph, compute = sim.graph, FloatExecutor(sim.tensors)
    convolutions = [n for n in graph if n.op == "conv" and "weight" in n.params and not n.attrs["transposed"]]
    dilations = {d for n in graph if n.op == "conv" for d in n.attrs["dilation"]}
    yield from _edges(convolutions, compute)
    for node in convolutions:
        yield from _convolved(node, graph, dilations, compute)
    pads = [node for node in graph if node.op == "pad"]
    causal = len(pads) > 1 and all(node.attrs["pads"][-1][1] == 0 for node in pads)
    for node in graph:
        if node.op == "pad":
            yield from _padded(node, causal)
        elif node.op in ("mean", "reduce", "max_pool", "avg_pool"):
            yield from _pooled(node, graph.nodes[node.inputs[0]].shape)
        elif node.op == "upsample":
            yield from _resized(node)


def _padded(node: Node, causal: bool) -> Iterator[Repair]:
    """Yield padding before only, behind only, or on both sides, along all dimensions that are padded.

    A network that is ``causal`` everywhere gives better answers where it may see what comes later, whatever is wrong.
    """
    given = [tuple(pads) for pads in node.attrs["pads"]]
    ways = {
        "before only": [(a + b, 0) for a, b in given],
        "behind only": [(0, a + b) for a, b in given],
        "on both sides": [((a + b) // 2, (a + b + 1) // 2) for a, b in given],
    }
    for text, pads in ways.items():
        if pads != given and min(min(pads)) >= 0:
            changed = replace(node, attrs={**node.attrs, "pads": [list(p) for p in pads]})
            yield Repair("wrong_setting", f"it pads {text}", changed, least=SCALED if causal else 0.0)


def _convolved(node: Node, graph: Graph, dilations: set[int], compute: FloatExecutor) -> Iterator[Repair]:
    """Yield a convolution with other dilations, or with its padding on one side, with results of the same size."""
    stride, padding, dilation = (node.attrs[key] for key in ("stride", "padding", "dilation"))
    kernel = compute.tensors[node.params["weight"]].shape[2:]
    bare = replace(node, attrs={**node.attrs, "padding": [0] * len(kernel)})

    def changed(conv: Node, pads: list[int]) -> Compute:
        return lambda inputs, _: FloatExecutor(compute.tensors)(conv, [F.pad(inputs[0], pads), *inputs[1:]])

    if len(set(padding)) == 1 and padding[0] > 0 and set(stride) in ({1}, {2}):
        sides = {"before only": [2 * padding[0], 0]} if len(kernel) == 1 else {}
        if set(stride) == {2}:  # as TensorFlow pads where sizes are even
            sides["less before"] = [padding[0] - 1, padding[0]]
        for text, pads in sides.items():
            yield Repair("wrong_setting", f"it is padded {text}", node, compute=changed(bare, pads * len(kernel)))
    others = (dilations | ({1, 2, 4, 8, 16} if len(kernel) == 1 else set())) if len(set(dilation)) == 1 else set()
    if min(kernel) < 3 or len(set(kernel)) > 1 or len(set(padding)) > 1:
        return
    source = unwrapped(graph, graph.nodes[node.inputs[0]])
    causal = source.op == "pad" and source.attrs["pads"][-1][1] == 0
    for other in others - set(dilation):
        wider = (kernel[0] - 1) * (other - dilation[0]) + 2 * padding[0]
        pads = [wider, 0] if causal else [wider // 2, wider - wider // 2]
        wide = replace(bare, attrs={**bare.attrs, "dilation": [other] * len(kernel)})
        text = f"its dilation is {other}, not {dilation[0]}"
        yield Repair("wrong_setting", text, node, compute=changed(wide, pads * len(kernel)))


def _edges(convolutions: Sequence[Node], compute: FloatExecutor) -> Iterator[Repair]:
    """Yield all convolutions that are padded with what is at the edges of images in place of zeros."""
    padded = [n for n in convolutions if any(n.attrs["padding"]) and not n.attrs["transposed"]]
    bare = {n.name: replace(n, attrs={**n.attrs, "padding": [0] * len(n.attrs["padding"])}) for n in padded}

    def otherwise(node: Node, mode: str) -> Compute:
        pads = [p for p in reversed(node.attrs["padding"]) for _ in range(2)]
        return lambda inputs, _: compute(bare[node.name], [F.pad(inputs[0], pads, mode), *inputs[1:]])

    for mode, how in (("reflect", "reflected"), ("replicate", "repeated"), ("circular", "those of the other side")):
        text = f"the edges of what convolutions read are {how}, not zeros, in {len(padded)} places"
        parts = [Repair("wrong_setting", text, node, compute=otherwise(node, mode)) for node in padded]
        if parts:
            yield replace(parts[0], also=tuple(parts[1:]))


def _resized(node: Node) -> Iterator[Repair]:
    """Yield images made larger in another way."""
    linear = {"mode": "bilinear", "align_corners": False}, {"mode": "bilinear", "align_corners": True}
    for way in ({"mode": "nearest", "align_corners": False}, *linear):
        if len(node.shape) == 4 and any(node.attrs[key] != value for key, value in way.items()):
            corners = " with aligned corners" if way["align_corners"] else ""
            changed = replace(node, attrs={**node.attrs, **way})
            yield Repair("wrong_setting", f"it resizes by {way['mode']} interpolation{corners}", changed)


def _pooled(node: Node, shape: Sequence[Any]) -> Iterator[Repair]:
    """Yield the maximum in place of the mean, or the mean in place of the maximum."""
    a = node.attrs
    if node.op in ("mean", "reduce"):
        fn, dims, keepdim = a.get("fn", "mean"), tuple(a.get("dims") or ()), a.get("keepdim", False)
        if fn not in ("mean", "amax") or not dims or 0 in dims or len(shape) < 3:
            return
        mean: Compute = lambda inputs, _: inputs[0].mean(dims, keepdim=keepdim)  # noqa: E731
        most: Compute = lambda inputs, _: inputs[0].amax(dims, keepdim=keepdim)  # noqa: E731
    elif len(a["kernel"]) in (1, 2) and set(a.get("dilation", [1])) == {1}:
        fn, given = "mean" if node.op == "avg_pool" else "amax", (a["kernel"], a["stride"], a["padding"])
        pools = (F.avg_pool1d, F.max_pool1d) if len(a["kernel"]) == 1 else (F.avg_pool2d, F.max_pool2d)
        mean = lambda inputs, _: pools[0](inputs[0], *given, a.get("ceil_mode", False))  # noqa: E731
        most = lambda inputs, _: pools[1](inputs[0], *given, 1, a.get("ceil_mode", False))  # noqa: E731
    else:
        return
    if a.get("count_include_pad") is not None and any(a["padding"]):
        other = not a["count_include_pad"]
        text = f"its padding {'counts' if other else 'does not count'} in means"
        yield Repair("wrong_setting", text, replace(node, attrs={**a, "count_include_pad": other}))
    text, way = ("maximum, not the mean", most) if fn == "mean" else ("mean, not the maximum", mean)
    yield Repair("wrong_setting", f"it takes the {text}", node, compute=way)
