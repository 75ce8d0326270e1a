"""A cache of its own for every test, a small program file, and engines that do what they should not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.program.build import certified
from tests.runtime.faults import packages

from intact8.golden import with_golden
from intact8.program.file import save


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of another package: its modules and entry points, on this process's path and so on its children's."""
    monkeypatch.syspath_prepend(str(packages.install(tmp_path / "site")))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where probes are remembered."""
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path, cache: Path) -> Path:
    """A small program with golden vectors, every kind of op in it."""
    return save(with_golden(certified()), tmp_path / "net.safetensors")
