"""The configuration of lint: ``[tool.intact8.lint]`` in a project's pyproject.toml.

[tool.intact8.lint]
select = ["IQ3", "IQ4", "IQ5"]   # all rules by default
ignore = ["IQ310"]
fail-on = "error"                # the mildest severity that ends `intact8 lint` with status 1; warning by default
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intact8.errors import RecipeError

from .finding import SEVERITIES
from .rule import choose
from .rules import load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEVER = "never"
KEYS = ("select", "ignore", "fail-on")


@dataclass(frozen=True)
class Config:
    """The settings of the table.

    Attributes:
        select: ids or beginnings of ids; None for all rules.
        ignore: ids or beginnings of ids that are left out.
        fail_on: the mildest severity that fails, or "never".
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    fail_on: str = "warning"


def find(start: Path | None = None) -> Config:
    """Read the table of the nearest pyproject.toml, from ``start`` (the current folder) upwards; defaults without one.

    Raises:
        RecipeError: see :func:`read`.
    """
    folder = (start or Path.cwd()).resolve()
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        if path.is_file():
            return read(path)
    return Config()


def read(path: Path) -> Config:
    """Read the table of one file; defaults where it has none.

    Raises:
        RecipeError: the file is not TOML, or the table has an unknown key or a rule that does not exist.
    """
    where = f"[tool.intact8.lint] in {path}"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError("this file is not TOML", where=str(path), why=str(error), remedy="repair it") from error
    table: Any = document
    for part in ("tool", "intact8", "lint"):
        table = table.get(part, {}) if isinstance(table, Mapping) else {}
    if not isinstance(table, Mapping) or not set(table) <= set(KEYS):
        raise RecipeError(f"unknown keys in {table!r}", where=where, remedy=f"known are {', '.join(KEYS)}")
    fail_on = check_fail_on(table.get("fail-on", "warning"), where)
    config = Config(_names(table, "select", where), _names(table, "ignore", where) or (), fail_on)
    try:
        choose(load(), config.select, config.ignore)
    except RecipeError as error:
        raise RecipeError(error.what, where=where, remedy=error.remedy) from error
    return config


def check_fail_on(value: Any, where: str) -> str:
    """Return ``value``. Raises RecipeError where it is neither a severity nor "never"."""
    if value not in (*SEVERITIES, NEVER):
        raise RecipeError(f"fail-on = {value!r}", where=where, remedy=f"choose {', '.join((*SEVERITIES, NEVER))}")
    return str(value)


def _names(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise RecipeError(f"{key} = {value!r}", where=where, remedy='give a list of rules: ["IQ301", "IQ4"]')
    return tuple(value)
