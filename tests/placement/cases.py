"""Small graphs and their placement as text: one case is a title, the nodes, a recipe and what place() makes of it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from intact8.capture.graph import Graph, Node
from intact8.placement.place import Placed, place
from intact8.recipe.recipe import Recipe, Scheme

CASES = Path(__file__).with_name("placements.txt")

_ATTRS: dict[str, dict[str, Any]] = {
    "conv": {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "transposed": False},
    "mean": {"dims": [2, 3], "keepdim": False},
    "max_pool": {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False},
    "upsample": {"mode": "nearest", "size": [16, 16], "align_corners": False},
    "softmax": {"axis": 1},
    "layer_norm": {"shape": [4], "eps": 1e-5},
    "rms_norm": {"shape": [4], "eps": 1e-5},
    "cat": {"axis": 1},
    "pad": {"pads": [[0, 0]] * 4, "value": 0.0},
    "roll": {"shifts": [1], "dims": [2]},
    "dropout": {"p": 0.1, "feature": False},
}
_WEIGHTS = ("conv", "linear", "scale_shift", "embedding", "lstm")


def graph_of(lines: list[str]) -> Graph:
    """``name op input … attribute=value … (shape)`` per line; the last one is ``-> output …``."""
    graph = Graph()
    for line in lines:
        if line.startswith("->"):
            graph.outputs = line.split()[1:]
            break
        name, op, *rest = line.split()
        inputs = [word for word in rest if word in graph.nodes]
        given = dict(word.split("=", 1) for word in rest if "=" in word)
        values = {key: ast.literal_eval(value) for key, value in given.items()}
        shape = next((ast.literal_eval(word) for word in rest if word.startswith("(")), None)
        if shape is None:
            shape = graph.nodes[inputs[0]].shape if inputs else (None, 4, 8, 8)
        if op == "input":
            values.setdefault("key", name)
            graph.inputs.append(name)
        if op == "table":
            values = {"chain": [{"op": "unary", "attrs": {"fn": fn, **values}} for fn in values.pop("fns").split("+")]}
        dtype = values.pop("dtype", "float32")
        module, module_type = values.pop("module", name), values.pop("type", op.title())
        source = values.pop("source", [])
        params = {"weight": f"{name}.weight"} if op in _WEIGHTS else {"value": name} if op == "constant" else {}
        attrs = {**_ATTRS.get(op, {}), **values}
        graph.nodes[name] = Node(name, op, inputs, attrs, params, module, module_type, shape, dtype, source)
    return graph


def shown(placed: Placed) -> list[str]:
    """Everything a placement decides, as lines."""
    nodes = placed.graph.nodes
    words = []
    for node in nodes.values():
        point = f"={placed.point_of[node.name]}" if node.name in placed.point_of else ""
        made = f"[{node.op}]" if node.op in ("div", "mul") or (node.op == "constant" and node.source) else ""
        words.append(node.name + (f"({' '.join(node.inputs)})" if node.inputs else "") + made + point)
    out = ["nodes " + " ".join(words), "outputs " + " ".join(placed.graph.outputs)]
    for point in placed.points.values():
        text = f"point {point.name}: {' '.join(point.tensors)}"
        if point.observed != point.tensors:
            text += f"; observed {' '.join(point.observed)}"
        out.append(text + ("; constant" if point.constant else "") + _changed(point.scheme, Scheme()))
    for name, scheme in placed.weights.items():
        out.append(f"weight {name}" + _changed(scheme, Recipe().weight))
    out += [f"coded {name} {mode}" for name, mode in placed.coded.items()]
    out += [f"float {name}: {reason}" for name, reason in placed.float_nodes.items()]
    for c in placed.channels:
        axes = " ".join(f"{n}:{axis}" for n, axis in sorted(c.axes.items()))
        parts = [f"{k} {' '.join(v)}" for k in ("divided", "layers", "constants", "observed") if (v := getattr(c, k))]
        out.append(f"channels {c.name} of {c.size}: {axes}; " + "; ".join(parts))
    return [*out, f"transitions {placed.transitions}"]


def _changed(scheme: Scheme, default: Scheme) -> str:
    given, usual = scheme.to_dict(), default.to_dict()
    changed = {key: value for key, value in given.items() if usual.get(key) != value}
    return f"; {changed}" if changed else ""


def read() -> dict[str, tuple[list[str], str, list[str]]]:
    """Title → nodes, recipe and the placement expected."""
    cases = {}
    for block in CASES.read_text(encoding="utf-8").strip().split("\n\n"):
        title, *lines = block.splitlines()
        end = next(i for i, line in enumerate(lines) if line.startswith("->")) + 1
        recipe = lines[end].removeprefix("recipe ") if lines[end:] and lines[end].startswith("recipe ") else ""
        cases[title.removeprefix("# ")] = lines[:end], recipe, lines[end + bool(recipe) :]
    return cases


def answer(lines: list[str], recipe: str) -> list[str]:
    """What place() makes of a case."""
    given = eval(f"dict({recipe})", {"Scheme": Scheme})
    return shown(place(graph_of(lines), Recipe(**given)))


def main() -> None:
    """Write the expectations anew: ``python -m tests.placement.cases``, then read what git says has changed."""
    blocks = []
    for title, (lines, recipe, _) in read().items():
        blocks.append(
            "\n".join([f"# {title}", *lines, *([f"recipe {recipe}"] if recipe else []), *answer(lines, recipe)])
        )
    CASES.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
