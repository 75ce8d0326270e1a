"""Scales in the code of traced TorchScript modules: the text is searched for numbers, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from intact8.migration.torch_file import Archive, Object

LONGEST_LINE = 4096
"""Characters of a line that is looked at."""

ATTRIBUTE = re.compile(r"\s*(\w+) = (\w+)\.(\w+)\s*")
CALL = re.compile(r"ops\.quantized\.\w+\(([^()]*), ([0-9.eE+-]{1,40}), (-?\d{1,10})\)")
FORWARD = re.compile(r"\((\w+)\)\.forward\(")
WATCHER, PACKED = "activation_post_process", "_packed_params"


def traced_grids(archive: Archive, root: Object) -> dict[str, tuple[float, int]]:
    """Return scale and zero point by module path, as the calls in the modules' code have them.

    A layer's call has its packed weight among its operands. What a functional calls stands in the code of the module
    that has it, before the call of the functional's observer, which does nothing.
    """
    found: dict[str, tuple[float, int]] = {}
    for path, module in _modules(root):
        for owner, grid in _calls(_forward(archive, module.name)):
            found[".".join(filter(None, (path, owner)))] = grid
    return found


def _modules(root: Object) -> Iterator[tuple[str, Object]]:
    todo, seen = [("", root)], set[int]()
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = module.state.items() if isinstance(module.state, dict) else ()
        todo += [(f"{path}.{name}" if path else str(name), m) for name, m in children if isinstance(m, Object)]


def _forward(archive: Archive, name: str) -> list[str]:
    """Return the lines of the method forward of a class; none where the archive has none."""
    module, _, kind = name.rpartition(".")
    text = archive.text(f"code/{module.replace('.', '/')}.py") or ""
    _, _, text = f"\n{text}".partition(f"\nclass {kind}(Module):\n")
    _, _, text = text.partition("\nclass ")[0].partition("\n  def forward(")
    return [line for line in text.partition("\n  def ")[0].splitlines() if len(line) <= LONGEST_LINE]


def _calls(lines: list[str]) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield the grids in the code of a module, with the path of the module inside of it that they belong to."""
    paths: dict[str, list[str]] = {"self": []}
    last: tuple[float, int] | None = None
    for line in lines:
        attribute = ATTRIBUTE.fullmatch(line)
        if attribute is not None and attribute[2] in paths:
            paths[attribute[1]] = [*paths[attribute[2]], attribute[3]]
            continue
        call, watcher = CALL.search(line), FORWARD.search(line)
        if call is not None:
            try:
                last = float(call[2]), int(call[3])
            except ValueError:
                continue
            operands = (paths.get(name.strip(), [""]) for name in call[1].split(","))
            packed = next((path for path in operands if path and path[-1] == PACKED), None)
            if packed is not None:
                yield ".".join(part for part in packed if part != PACKED), last
        elif watcher is not None and last is not None and paths.get(watcher[1], [""])[-1:] == [WATCHER]:
            yield ".".join(paths[watcher[1]][:-1]), last
