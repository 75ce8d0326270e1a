"""The environment as tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from intact8.display import inert
from intact8.machine import INT8_FEATURES

if TYPE_CHECKING:
    from intact8.runtime.environment import Environment


def show(environment: Environment) -> Group:
    """Machine, CPU flags, torch and engines, and what can be done here."""
    return Group(_machine(environment), _flags(environment), _torch(environment), _abilities(environment))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _machine(environment: Environment) -> Table:
    facts = environment.facts
    table = _table("machine", "", "found")
    memory = "unknown" if facts.memory is None else f"{facts.memory / 2**30:.1f} GiB free"
    runtime = f"GLIBCXX up to {facts.glibcxx}" if facts.glibcxx else "unknown"
    rows = {
        "CPU": f"{facts.cpu or 'unknown'}, {facts.machine}",
        "oneDNN's instruction set": environment.isa,
        "system": facts.system,
        "memory": memory,
        "Python": facts.python,
        "C library": f"glibc {facts.glibc}" if facts.glibc else "unknown, or not glibc",
        "C++ runtime": f"{runtime}{', loaded' if facts.glibcxx_loaded else ''}",
        "packages": ", ".join(f"{name} {version}" for name, version in facts.packages.items()),
        **{f"${name}": value for name, value in facts.environment.items()},
    }
    for what, found in rows.items():
        table.add_row(inert(what), inert(found))
    return table


def _flags(environment: Environment) -> Table:
    table = _table("CPU flags that matter", "flag", "here", "what it is good for")
    for name, there in environment.flags.items():
        table.add_row(inert(name), Text("yes", "green") if there else Text("no", "yellow"), Text(INT8_FEATURES[name]))
    return table


def _torch(environment: Environment) -> Table:
    table = _table("torch", "", "found")
    for what, found in environment.torch.items():
        words = ("yes" if found else "no") if isinstance(found, bool) else str(found) or "none"
        table.add_row(inert(what.replace("_", " ")), inert(words))
    return table


def _abilities(environment: Environment) -> Table:
    table = _table("what can be done here", "", "", "why")
    for ability in environment.abilities:
        verdict = Text("yes", "green") if ability.possible else Text("no", "bold red")
        table.add_row(inert(ability.what), verdict, inert(ability.why))
    return table
