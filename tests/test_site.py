"""The documentation site builds without a warning, and has a place for every public name, error and page."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import intact8

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))


def run(*arguments: str) -> str:
    """Run a module of this Python in the repository's folder; its output is the message of the failure."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def public() -> Iterator[tuple[str, object]]:
    """Dotted name and object of everything public."""
    for module in ("intact8", "intact8.train", "intact8.runtime"):
        home = importlib.import_module(module)
        for name in home.__all__:
            if not inspect.ismodule(getattr(home, name)):
                yield f"{module}.{name}", getattr(home, name)
    for module in ("intact8.recipes", "intact8.testing"):
        home = importlib.import_module(module)
        for name, value in vars(home).items():
            if inspect.isfunction(value) and value.__module__ == module and not name.startswith("_"):
                yield f"{module}.{name}", value
    yield "intact8.torch.Module", importlib.import_module("intact8.torch").Module


def members(names: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Everything public, and the public methods and properties of public classes."""
    for name, value in names.items():
        yield name, value
        for member, inner in vars(value).items() if inspect.isclass(value) else ():
            if not member.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
                yield f"{name}.{member}", inner


def kinds_of_errors() -> list[type]:
    """Every class of errors and warnings that users meet."""
    from intact8.calibration import CalibrationWarning

    errors = vars(intact8.errors).values()
    found = [e for e in errors if inspect.isclass(e) and issubclass(e, Exception)]
    return [*found, CalibrationWarning, intact8.train.ScaleWarning]


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_autorefs")
    run("mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"))
    page = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert 'href="results.html#intact8.verification.report.VerifyReport"' in page  # docstrings' types are links
    assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page) == []
    assert broken_links(tmp_path / "site") == []


def broken_links(site: Path) -> list[str]:
    """Links that lead to no file, or to no anchor of it; the 404 page's begin at the root of a server."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r"\b(?:id|name)=\"?([^\"\s>]+)", text)) for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r"\b(?:href|src)=\"?([^\"\s>]+)", text):
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" in link or link.startswith("data:"):
                continue
            if not target.is_file() or (anchor and anchor not in anchors.get(target, {anchor})):
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


def test_every_page_is_in_the_navigation() -> None:
    pages = {
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in DOCS.rglob("*")
        if page.suffix in (".md", ".ipynb")
    }
    named = set(re.findall(r"([\w/]+)\.md$", NAV, re.MULTILINE))
    assert {page for page in pages if not re.match(r"lint/IQ\d", page)} == named


def test_every_public_name_is_documented() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = dict(public())
    whole = ("intact8.recipes.", "intact8.testing.")  # pages that show all functions of a module
    errors = {f"intact8.{kind.__name__}" for kind in kinds_of_errors()}
    missing = [n for n in names if f"::: {n}\n" not in REFERENCE + "\n" and not n.startswith(whole) and n not in errors]
    assert missing == []
    undocumented = [name for name, value in members(names) if not inspect.getdoc(value)]
    assert undocumented == []


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=lambda kind: kind.__name__)
def test_every_error_and_warning_has_its_section(kind: type) -> None:
    sections = re.findall(r"^## (\w+)$", (DOCS / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert kind.__name__ in sections
    if issubclass(kind, intact8.errors.InternalError):
        assert kind("converting", "conv1", ValueError("x")).help.endswith("errors.md#internalerror")
    elif issubclass(kind, intact8.IntactError):
        assert kind("what").help == f"docs/errors.md#{kind.__name__.lower()}"


def test_errors_that_are_not_public_lead_to_the_public_one() -> None:
    class NoBatchError(intact8.CaptureError):
        pass

    assert NoBatchError("x").help.endswith("#captureerror")


def test_errors_lead_to_the_site_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intact8.errors, "SITE", "https://example.org/intact8/")
    assert intact8.InputError("x").help == "https://example.org/intact8/errors.html#inputerror"


def test_no_word_is_misspelt() -> None:
    pytest.importorskip("codespell_lib")
    run("codespell_lib", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "src", "native", "examples", "scripts")
