"""Readable names of nodes, modules and operators, from what torch.export records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch.fx

from .graph import Graph, Node, unique
from .operations import LAYERS


def module_of(node: torch.fx.Node) -> tuple[str, str, str]:
    """Return the path, type and call key of the innermost module that ran ``node``.

    The call key tells apart several calls of one shared module. The root module has path "".
    """
    stack = node.meta.get("nn_module_stack") or {}
    for key, (path, kind) in reversed(stack.items()):
        if "_empty_nn_module_stack" in str(key):
            continue
        name = kind if isinstance(kind, str) else kind.__qualname__
        return clean_path(str(path)), name.rsplit(".", 1)[-1], str(key)
    return "", "", ""


def clean_path(path: str) -> str:
    """Return the dotted path as in ``named_modules``: without ``L['self']``, call counters, and wrappers of forward.

    Bytecode analysis finds the modules of a model whose forward is wrapped, as it is here, in the wrapper's closure.

    Example:
        >>> clean_path("L['self'].layer1.0.relu@1")
        'layer1.0.relu'
        >>> clean_path("L['self'].forward.__closure__[0].cell_contents.__self__.layer1[0]")
        'layer1.0'
    """
    path = re.sub(r"^L\['self'\]\.?", "", path)
    path = re.sub(r"@\d+", "", path)
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", "." + path)
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", path).strip(".")
    return re.sub(r"^forward(\.__closure__\.\d+\.cell_contents)+\.__self__\.?", "", path)


def rename(graph: Graph, labels: Mapping[str, str], calls: Mapping[str, str], leaves: frozenset[str]) -> Graph:
    """Give every node its final name.

    Args:
        graph: nodes under provisional names.
        labels: provisional name → name of the operation; for inputs and constants, the wished name.
        calls: provisional name → call key of the module.
        leaves: paths of modules without children. The only node, or the only layer, of such a module takes its path.
    """
    fixed = ("input", "constant")
    work = [n for n in graph if n.op not in fixed]
    per_call = Counter(calls[n.name] for n in work)
    with_weights = Counter(calls[n.name] for n in work if n.op in LAYERS)
    final: dict[str, str] = {}
    taken: set[str] = set()
    # Inputs and modules get their names first, so that "x" stays "x" whatever a functional op is called.
    for node in sorted(graph, key=lambda n: n.op not in fixed[:1]):
        key = calls.get(node.name, "")
        if node.op in fixed:
            wish = labels[node.name]
        elif node.module in leaves and (per_call[key] == 1 or (node.op in LAYERS and with_weights[key] == 1)):
            wish = node.module
        else:
            wish = ".".join(filter(None, (node.module, labels[node.name])))
        final[node.name] = unique(wish, taken)
        taken.add(final[node.name])
    nodes: dict[str, Node] = {}
    for node in graph:
        node.name = final[node.name]
        node.inputs = [final[name] for name in node.inputs]
        nodes[node.name] = node
    inputs = [final[name] for name in graph.inputs]
    outputs = [final[name] for name in graph.outputs]
    return replace(graph, nodes=nodes, inputs=inputs, outputs=outputs)


def operator_name(fx: torch.fx.Node) -> str:
    """Return the name of what a node calls, without namespace and overload."""
    schema = getattr(fx.target, "_schema", None)
    return str(schema.name).split("::")[-1] if schema is not None else str(getattr(fx.target, "__name__", fx.target))


def full_name(fx: torch.fx.Node) -> str:
    """Return the name of what a node calls with its namespace, as ``aten.conv2d``."""
    schema = getattr(fx.target, "_schema", None)
    return str(schema.name).replace("::", ".") if schema is not None else operator_name(fx)
