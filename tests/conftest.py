"""What all tests share: the assets folder, torchvision without its compiled operators, the random seed."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ASSETS = Path(__file__).resolve().parents[2] / "shared" / "assets"


# Captures make millions of objects that die at once beside millions that stay: looking through those each time takes a
# tenth of the tests' time.
gc.set_threshold(20_000, 10, 10)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def assets(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of trained networks and real data next to the repository; its loaders become importable."""
    if not ASSETS.is_dir():
        pytest.skip(f"no assets: {ASSETS.name} is not beside the repository")
    monkeypatch.syspath_prepend(str(ASSETS / "loaders"))
    return ASSETS


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """torchvision; the schemas of its two compiled operators are declared where the wheel lacks the operators."""
    return import_torchvision()


_libraries: list[object] = []


def import_torchvision() -> ModuleType:
    """Import torchvision although it has no compiled operators (models that use them are not tested)."""
    pytest.importorskip("torch")
    if "torchvision" not in sys.modules:
        import torch

        if not hasattr(torch.ops.torchvision, "nms"):
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _libraries.append(library)  # the definitions go when the library object goes
    return importlib.import_module("torchvision") if "torchvision" in sys.modules else _load()


def _load() -> ModuleType:
    pytest.importorskip("torchvision")
    return importlib.import_module("torchvision")
