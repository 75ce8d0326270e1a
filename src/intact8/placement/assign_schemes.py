"""What the recipe asks of each node: schemes after all overrides, and what has to stay float."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from intact8.arithmetic.recurrent import GATES as RECURRENT
from intact8.capture.graph import Graph, Node
from intact8.capture.operations import FLOAT_KINDS, LIGHT, NONLINEAR
from intact8.errors import RecipeError
from intact8.opset import KINDS
from intact8.recipe.recipe import Recipe
from intact8.recipe.scheme import Scheme, check_activation, check_weight, nearest

DECODED = frozenset(op for op in FLOAT_KINDS if {f"decoded_{op}", f"float.decoded_{op}"} & KINDS.keys())
CODED = {"dynamic": DECODED | RECURRENT.keys(), "weight_only": DECODED}
"""Mode → operations whose weights are integers in it."""

_OUTSIDE = {
    "dynamic": "dynamic quantization is for linear and recurrent layers and embeddings",
    "weight_only": "weight-only quantization is for linear layers and embeddings",
}
_INSIDE = {"dynamic": "quantized when it runs", "weight_only": "integer weights, multiplied as floats"}


class NodeSchemes:
    """A recipe applied to the nodes of one fused graph.

    Activation schemes belong to what makes values. A move (pooling by maximum, reshape, …) has none of its own: it
    shares its input's, and an override naming a module does not reach through it. ``cat`` may have one.
    """

    def __init__(self, graph: Graph, recipe: Recipe, roles: Mapping[str, Set[str]]) -> None:
        self.graph, self.recipe = graph, recipe
        self._inputs = _match_inputs(graph, recipe.inputs)
        self._quantize: dict[str, bool] = {}
        self._mode: dict[str, tuple[str, int]] = {}
        self._weight: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        own: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        read: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, rule in enumerate(recipe.rules):
            for node in (n for n in graph if rule.matches(n, roles.get(n.name, ()))):
                if rule.quantize is not None:
                    self._quantize[node.name] = rule.quantize
                if rule.mode is not None:
                    self._mode[node.name] = rule.mode, index
                if rule.activation and (node.op == "cat" or not node.shares_grid):
                    own[node.name].append((index, rule.activation))
                if rule.weight:
                    self._weight[node.name].append((index, rule.weight))
                if rule.input:
                    for maker in {graph.origin(name).name for name in node.inputs}:
                        if graph.nodes[maker].op != "constant":
                            read[maker].append((index, rule.input))
        # The node that makes a tensor has the last word about its scheme.
        self._activation = {n: [*read.get(n, []), *own.get(n, [])] for n in {*own, *read}}

    def forced_float(self) -> dict[str, str]:
        """Return the nodes that the recipe keeps float."""
        kept = {name for name, yes in self._quantize.items() if not yes}
        kept |= {n.name for n in self.graph if self._float_between_layers(n) and not self._quantize.get(n.name)}
        out = dict.fromkeys((name for name in self.graph.nodes if name in kept), "the recipe keeps it float")
        for node in self.graph:
            mode = self.mode(node.name)
            if mode != "static" and node.name not in out:
                out[node.name] = _OUTSIDE[mode] if node.op not in CODED[mode] else _INSIDE[mode]
        return out

    def _float_between_layers(self, node: Node) -> bool:
        between = self.recipe.rounds_between_layers
        if node.op == "matmul":
            return self.recipe.attention == "float" or between == "float"
        if node.op in ("add", "sub") and between == "float_residual":
            return all(self.graph.origin(name).op != "constant" for name in node.inputs)
        if between == "float" and node.op == "cat":  # joined integers would have one grid for all
            return len({self.graph.origin(name).name for name in node.inputs}) > 1
        return between == "float" and node.op in LIGHT | NONLINEAR and not node.shares_grid

    def told(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Return the reasons to report: neither those of nodes of mode dynamic nor of what computes nothing."""
        coded, nodes = self.coded(), self.graph.nodes
        return {
            name: reason
            for name, reason in reasons.items()
            if coded.get(name) != "dynamic"
            and not (name in coded and nodes[name].op == "embedding")
            and not (reason in _OUTSIDE.values() and (nodes[name].moves or nodes[name].dtype != "float32"))
        }

    def mode(self, name: str) -> str:
        """Return the mode of a node of the fused graph, see :class:`Recipe`."""
        mode = self._mode[name][0] if name in self._mode else self.recipe.mode
        # Recurrent layers have no static form: their activations get their scales when the network runs.
        return "dynamic" if mode == "static" and self.graph.nodes[name].op in RECURRENT else mode

    def coded(self) -> dict[str, str]:
        """Return the mode of each node whose weights are integers while activations are float between operations.

        Raises:
            RecipeError: an override asks for a mode that nothing it matches has.
        """
        modes = {n.name: self.mode(n.name) for n in self.graph if self._quantize.get(n.name) is not False}
        out = {name: mode for name, mode in modes.items() if self.graph.nodes[name].op in CODED.get(mode, ())}
        reached = {self._mode[name][1] for name in out if name in self._mode}
        for index, rule in enumerate(self.recipe.rules):
            if (
                rule.mode in CODED
                and index not in reached
                and not rule.names_role
                and any(i == index for _, i in self._mode.values())
            ):
                why = f"what it matches is none of {', '.join(sorted(CODED[rule.mode]))}"
                remedy = "name such an operation, or leave the mode out"
                raise RecipeError(f"mode {rule.mode!r} has no effect", where=self._where(index), why=why, remedy=remedy)
        return out

    def owner(self, node: Node) -> str:
        """Return the node of the fused graph that a placed node belongs to: a transition, to what it converts."""
        if node.name in self.graph.nodes:
            return node.name
        if node.op == "constant":
            return node.source[0]
        return node.inputs[0]

    def explicit(self, name: str) -> bool:
        """Return whether somebody named a scheme for the output of this node."""
        return name in self._inputs or name in self._activation

    def wants_grid(self, name: str) -> bool:
        """Return whether an override names a scheme for the output of this node, and not only by its place."""
        return any(not self.recipe.rules[index].names_role for index, _ in self._activation.get(name, ()))

    def activation(self, name: str) -> Scheme:
        """Return the scheme of the output of a node of the fused graph."""
        scheme = self._inputs.get(name)
        if scheme is not None:
            return scheme
        scheme = self.recipe.activation
        if self.graph.nodes[name].op == "constant":
            # All values are known, there is nothing to estimate.
            scheme = replace(scheme, observer="minmax", observer_args={})
        for index, changes in self._activation.get(name, []):
            where = self._where(index)
            scheme = check_activation(scheme.changed(changes, where=where), where)
        return scheme

    def weight(self, name: str) -> Scheme:
        """Return the scheme of a node's weight."""
        scheme = self.recipe.weight
        for index, changes in self._weight.get(name, []):
            where = self._where(index)
            scheme = check_weight(scheme.changed(changes, where=where), where)
        return scheme

    def check_effect(self, points_of: Set[str], weights: Set[str]) -> None:
        """Raise RecipeError for an override that reached no quantized tensor or weight: nothing is ignored silently."""
        reached = {
            "activation or input": {i for n in points_of for i, _ in self._activation.get(n, [])},
            "weight": {i for n in weights for i, _ in self._weight.get(n, [])},
        }
        for index, rule in enumerate(self.recipe.rules):
            for part, asked in (("activation or input", rule.activation or rule.input), ("weight", rule.weight)):
                if asked and index not in reached[part] and not rule.names_role:
                    what = f"the {part} part of this override has no effect"
                    why = "what it matches is float, moves values only, or has no weight"
                    remedy = "name the operation that computes the values, or leave the part out"
                    raise RecipeError(what, where=self._where(index), why=why, remedy=remedy)
            named = [node for node in self.graph if rule.matches(node)] if rule.quantize is False else []
            if named and all(node.op == "input" for node in named):
                what, why = "this override has no effect", "an input is float, and what reads it rounds it or does not"
                users = self.graph.users()
                readers = dict.fromkeys(reader for node in named for reader in users[node.name])
                remedy = f"name what reads it: {', '.join(readers)}"
                raise RecipeError(what, where=self._where(index), why=why, remedy=remedy)

    def _where(self, index: int) -> str:
        return f"overrides[{self.recipe.rules[index].match!r}]"


def _match_inputs(graph: Graph, wanted: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """Return the scheme of each input node; later entries win.

    An entry is an input's key or position, or a glob; "*" is all that hold float32, of which there may be none.
    """
    out: dict[str, Scheme] = {}
    for key, scheme in wanted.items():
        names = [
            name
            for position, name in enumerate(graph.inputs)
            if key == str(position)
            or any(fnmatch.fnmatchcase(known, key) for known in (name, str(graph.nodes[name].attrs.get("key", name))))
        ]
        if not names and key != "*":
            near = nearest(key, graph.inputs)
            remedy = (f"did you mean {near[0]!r}? " if near else "") + "Inputs: " + ", ".join(graph.inputs)
            raise RecipeError("the network has no such input", where=f"Recipe.inputs[{key!r}]", remedy=remedy)
        if key != "*" and not any(graph.nodes[name].dtype == "float32" for name in names):
            what = f"the input holds {graph.nodes[names[0]].dtype}"
            where = f"Recipe.inputs[{key!r}]"
            raise RecipeError(what, where=where, why="only float32 inputs are quantized", remedy="leave the entry out")
        out.update(dict.fromkeys(names, scheme))
    return out
