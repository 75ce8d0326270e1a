from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import intact8


def run_python(code: str, **variables: str) -> list[str]:
    """The words ``code`` prints in a fresh interpreter that imports the same intact8 as this one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(intact8.__file__).parents[1]), **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def seconds(*command: str) -> float:
    """Return the processor time of a command, the least of five."""
    environment = {**os.environ, "PYTHONPATH": str(Path(intact8.__file__).parents[1])}
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


@pytest.mark.bench
def test_start_up_is_quick_beside_that_of_python() -> None:
    bare = seconds("-c", "pass")
    assert seconds("-c", "import intact8.runtime") - bare < 0.15
    assert seconds("-m", "intact8", "--help") - bare < 0.3


MODULES = "print(*sorted(m for m in sys.modules if m.split('.')[0] in {'intact8', 'numpy', 'torch', 'rich', 'typer'}))"


def test_the_package_imports_next_to_nothing() -> None:
    """Time itself depends on the machine: what costs it is modules."""
    assert run_python(f"import intact8, sys; {MODULES}") == [
        "intact8",
        "intact8.addresses",
        "intact8.errors",
        "intact8.text",
    ]


def test_the_runtime_package_imports_what_is_asked_for_only() -> None:
    assert run_python(f"import intact8.runtime, sys; {MODULES}") == [
        "intact8", "intact8.addresses", "intact8.errors", "intact8.runtime", "intact8.text",
    ]  # fmt: skip
    code = "import intact8.runtime.load, sys; print(intact8.runtime.load.__name__, 'torch' in sys.modules)"
    assert run_python(f"{code}; print(intact8.runtime.facts.__name__)") == ["load", "False", "intact8.runtime.facts"]


def test_the_command_line_imports_neither_numpy_nor_torch_for_its_help() -> None:
    found = run_python(f"import intact8.cli.app, sys; {MODULES}")
    assert not {"numpy", "torch", "rich.progress", "intact8.opset", "intact8.program"} & set(found)


@pytest.mark.parametrize("name", intact8.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(intact8, name).__doc__
    assert name in dir(intact8)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = intact8.quantise


def test_programs_load_and_run_without_torch() -> None:
    code = "import intact8.program.file, intact8.engines, intact8.engines.reference, sys; print('torch' in sys.modules)"
    assert run_python(code) == ["False"]


def test_what_needs_torch_says_so_without_it() -> None:
    code = """
import sys
sys.modules["torch"] = None
import intact8
for name in ("quantize", "recipes", "train", "torch"):
    try:
        getattr(intact8, name)
    except intact8.IntactError as error:
        print(type(error).__name__, error.where)
"""
    where = ("intact8.quantize", "intact8.recipes", "intact8.train", "intact8.torch")
    assert run_python(code) == [word for name in where for word in ("MissingTorchError", name)]
