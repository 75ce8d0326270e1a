"""No circles: rooms (folders of the package) and files import in one direction, imports inside functions included."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = next(p.parent.name for p in SOURCE.glob("*/__init__.py"))

BELOW = {
    "arithmetic": {"errors"},
    "opset": {"arithmetic", "errors"},
    "program": {"opset", "arithmetic", "errors", "text", "display", "late_binding", "regular_file", "atomic_write"},
    "export": {"program", "opset", "arithmetic", "errors", "outputs", "regular_file", "atomic_write"},
    "engines": {"export", "program", "opset", "arithmetic", "errors", "machine", "nesting", "outputs"},
    "capture": {"opset", "arithmetic", "errors", "nesting", "outputs", "torch_defaults"},
    "fusion": {"capture"},
    "recipe": {"capture", "arithmetic", "errors", "regular_file", "atomic_write", "text"},
    "placement": {"recipe", "capture", "opset", "arithmetic", "errors"},
}
"""Room → the rooms and files of the package it may import at most."""

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Dotted name → file, of all modules of the package."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that this one imports, anywhere but for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in _running(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                compiled = list((SOURCE / base.replace(".", "/")).glob(f"{alias.name}*.so"))
                found |= {full} if full in known else set() if compiled else {base}
    return {module for module in found if module in known and module != name}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, but for ``if TYPE_CHECKING:``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected parts of more than one node (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def room(module: str) -> str:
    """The folder or file right below the package."""
    return module.split(".")[1] if "." in module else PACKAGE


@functools.cache
def files() -> Graph:
    known = modules()
    return {name: imported(name, path, known) for name, path in known.items()}


def rooms(graph: Graph) -> Graph:
    found: Graph = {room(name): set() for name in graph}
    for name, others in graph.items():
        found[room(name)] |= {room(other) for other in others} - {room(name)}
    return found


def drawing(graph: Graph) -> str:
    """Rooms from the bottom up, each with what it imports: what docs/architecture.md shows."""
    done: list[str] = []
    lines = []
    while len(done) < len(graph):
        level = sorted(r for r in graph if r not in done and graph[r] <= set(done))
        lines.append("  ".join(level))
        done += level
    return "\n".join(reversed(lines)) + "\n"


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert circles(files()) == []


def test_no_room_imports_itself_by_way_of_others() -> None:
    assert circles(rooms(files())) == []


def test_what_lies_below_knows_nothing_of_what_lies_above() -> None:
    graph = rooms(files())
    more = {name: sorted(graph[name] - allowed) for name, allowed in BELOW.items() if graph[name] - allowed}
    assert more == {}


def test_the_page_shows_the_rooms_as_they_are() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"```text\n{drawing(rooms(files()))}```" in page, drawing(rooms(files()))


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


HIDDEN = {
    "absent": """
import sys
sys.modules["torch"] = None
""",
    "forbidden": """
import sys
class Forbidding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not for this process")
sys.meta_path.insert(0, Forbidding())
""",
}
"""What hides torch from a process."""

ASKING = """
import importlib, intact8
from intact8.engines.onednn import OnednnEngine
for name in ("train", "torch", "recipes"):
    try:
        importlib.import_module(f"intact8.{name}")
    except ImportError as error:
        print(type(error).__name__, error.where, "|", error)
for name in ("train", "torch", "quantize"):
    try:
        getattr(intact8, name)
    except ImportError as error:
        print(type(error).__name__, error.where, "|", error)
try:
    intact8.lint(b"net.safetensors")
except intact8.InputError as error:
    print(type(error).__name__, error.where, "|", error)
print(OnednnEngine().available())
"""


@pytest.mark.parametrize("how", HIDDEN)
def test_what_needs_torch_says_so_however_it_is_asked_for(how: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", HIDDEN[how] + ASKING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    *said, onednn = done.stdout.splitlines()
    modules = ["intact8.train", "intact8.torch", "intact8.recipes"]
    asked = [*modules, "intact8.train", "intact8.torch", "intact8.quantize"]
    assert [line.split(" |")[0] for line in said] == [f"MissingTorchError {name}" for name in asked] + [
        "InputError lint"
    ]
    assert all("this needs torch" in line and "pip install" in line for line in said[:-1])
    assert all(("not for this process" in line) == (how == "forbidden") for line in said[:-1])
    assert onednn.startswith(("torch is not installed", "the onednn engine needs an x86-64 CPU"))
