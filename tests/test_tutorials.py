"""The README, the tutorials and the how-to guides do what they say: their code and their commands are run, in order.

A block that begins with a comment such as `# mynets.py` is a file. Lines of plain blocks that begin with `intact8` are
commands; what a command prints is a block of the language `text`.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from intact8.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("tutorials/*.md")), *sorted(DOCS.glob("how_to/*.md"))]
NOTEBOOKS = sorted(DOCS.glob("tutorials/*.ipynb"))
LONG = {"tune", "batch_scoring", "serving"}
"""Pages that take longest; tests of the rooms they tell of run in all cases."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")


def run(page: Path) -> None:
    """Run the blocks of a page in the current folder."""
    names: dict[str, Any] = {"__name__": page.stem}
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        file = FILE.match(text)
        if file:
            Path(file[1]).write_text(text, encoding="utf-8")
            importlib.invalidate_caches()
        elif language == "python":
            exec(compile(text, str(page), "exec"), names)
        elif language == "":
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["intact8"]:
                    done = CliRunner().invoke(app, words[1:])
                    assert done.exit_code == 0, f"{line}\n{done.output}"


def printed(cell: Any) -> str:
    """What a cell of a notebook printed."""
    return "".join(output["text"] for output in cell.get("outputs", ()) if output.get("name") == "stdout")


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=pytest.mark.long if p.stem in LONG else ()) for p in PAGES]
)
def test_what_a_page_says_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few samples, and torch.ao says that it is deprecated
        run(page)
    for name in [name for name in set(sys.modules) - modules if name == "mynets"]:
        del sys.modules[name]


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path]))
    content = nbformat.read(notebook, as_version=4)
    declare = "from tests.conftest import import_torchvision\nimport_torchvision();"  # transformers imports it
    content.cells.insert(0, nbformat.v4.new_code_cell(declare))
    before = [printed(cell) for cell in content.cells]
    done = nbclient.NotebookClient(content, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    # Numbers may differ from machine to machine, the number of lines may not.
    assert [len(printed(cell).splitlines()) for cell in done.cells] == [len(text.splitlines()) for text in before]
