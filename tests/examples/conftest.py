"""What tests of examples share: loading a script as a module, and a few of the digits."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


@pytest.fixture
def load_example(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import ``examples/NAME.py`` under its name."""
    from tests.conftest import import_torchvision

    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # trainers import it where it is installed, with its compiled operators or without

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[2] / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 digits to train on, 50 held out."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    from intact8.demo import digits

    whole = digits.load(0)
    part = digits.Digits(
        whole.train_images[:256], whole.train_labels[:256], whole.held_out_images[:50], whole.held_out_labels[:50]
    )
    monkeypatch.setattr(digits, "load", lambda seed: part)
