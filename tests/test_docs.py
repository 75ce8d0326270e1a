"""What the README and the pages say can be followed: links lead somewhere, recipes load, commands and code exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from intact8.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("[!l]*/*.md"))]
page_of = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    # All fences are matched, in pairs: the end of one block would else be taken for the start of another.
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for tag, text in fenced if tag == language]


@page_of
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert target.startswith("https://") or path.exists(), target


@page_of
def test_python_blocks_use_names_that_exist(page: Path) -> None:
    import intact8

    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "intact8":
                assert hasattr(intact8, node.attr), node.attr
            if isinstance(node, ast.ImportFrom) and node.module == "intact8":
                assert all(hasattr(intact8, name.name) for name in node.names)


@page_of
def test_toml_blocks_are_recipes(page: Path) -> None:
    from intact8.recipe.recipe import Recipe

    for block in blocks(page, "toml"):
        assert Recipe.from_toml(block) != Recipe()


@page_of
def test_shell_blocks_use_commands_and_options_that_exist(page: Path) -> None:
    runner = CliRunner()
    for block in blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["intact8"]:
                continue
            shown = runner.invoke(app, [words[1], "--help"], env={"COLUMNS": "200"})
            assert shown.exit_code == 0, line
            for word in words[2:]:
                if word.startswith("-"):
                    assert re.search(rf"(^|\s){re.escape(word)}\s", shown.stdout, re.MULTILINE), f"{word} in: {line}"


def test_the_readme_names_both_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme and "make test" in readme


def test_presets_in_the_table_are_those_there_are() -> None:
    from intact8.recipes import presets

    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split("## Presets")[1]
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(presets())


def test_observers_in_the_table_are_those_there_are() -> None:
    from intact8.calibration import list_observers

    text = (
        (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split("## Which observer")[1].split("## Presets")[0]
    )
    named = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    assert named == set(list_observers()) - {"per_channel"}  # of weights, chosen by granularity


def test_the_readme_is_short_and_installs_from_pypi_and_from_the_checkout() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 100
    assert "pip install 'intact8[torch]'" in readme and "pip install -e" in readme


def test_tables_of_measurements_are_those_of_the_latest_results() -> None:
    from benchmarks import page

    assert [file.name for file in page.RESULTS.glob("*-*-*-*.*")] == []  # python benchmarks/page.py moves them
    for path in page.PAGES:
        text = path.read_text(encoding="utf-8")
        assert page.filled(text) == text, "run python benchmarks/page.py"


def test_the_ramp_of_the_readme_is_what_comes_out() -> None:
    torch = pytest.importorskip("torch")
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no fbgemm, so torch.ao cannot be compared with")
    from scripts import ramp_figure

    assert ramp_figure.figure() == ramp_figure.FIGURE.read_text(encoding="utf-8")


def test_links_of_the_package_page_are_absolute_or_none() -> None:
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    setup.body = [node for node in setup.body if isinstance(node, ast.FunctionDef)]
    names = {"__file__": str(ROOT / "setup.py"), "Path": Path, "re": re}
    exec(compile(setup, "setup.py", "exec"), names)
    home = "https://example.org/owner/intact8"
    targets = re.findall(r"\]\(([^)]+)\)", names["package_page"](home))
    assert len(targets) > 10 and all(target.startswith(f"{home}/blob/main/") for target in targets[1:])
    assert targets[0] == f"{home}/raw/main/docs/ramp.svg"
    assert "](" not in names["package_page"]("") and "quickstart · tutorials" in names["package_page"]("")
    assert names["project_urls"]("", "") == {} and names["project_urls"](home, "")["Issues"] == f"{home}/issues"
