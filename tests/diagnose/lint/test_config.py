from __future__ import annotations

from pathlib import Path

import pytest

from intact8 import RecipeError
from intact8.diagnose.lint import config, load
from intact8.diagnose.lint.config import Config, find, read
from intact8.diagnose.lint.rule import choose


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    write(tmp_path, '[tool.intact8.lint]\nselect = ["IQ3"]\nignore = ["IQ301"]\nfail-on = "error"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find(inner) == Config(("IQ3",), ("IQ301",), "error")
    write(inner, "[project]\nname = 'x'\n")
    assert find(inner) == Config()


def test_the_example_of_the_docstring_is_read(tmp_path: Path) -> None:
    lines = [line.strip() for line in (config.__doc__ or "").splitlines()]
    example = "\n".join(lines[lines.index("[tool.intact8.lint]") :])
    assert read(write(tmp_path, example)) == Config(("IQ3", "IQ4", "IQ5"), ("IQ310",), "error")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('select = ["IQ999"]', "no lint rule 'IQ999'"),
        ('ignore = ["few-sample"]', "no lint rule 'few-sample'"),
        ('ignore = "IQ301"', "ignore = 'IQ301'"),
        ("select = [1]", "give a list"),
        ("select = []", "no rule is selected"),
        ('fail-on = "fatal"', "fail-on = 'fatal'"),
        ('fail_on = "error"', "unknown keys"),
        ("select = [", "not TOML"),
    ],
)
def test_what_is_refused(tmp_path: Path, table: str, message: str) -> None:
    path = write(tmp_path, f"[tool.intact8.lint]\n{table}\n")
    with pytest.raises(RecipeError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="tool.intact8.lint"):
        read(write(tmp_path, '[tool.intact8]\nlint = ["IQ301"]\n'))


def test_rules_are_chosen_by_id_beginning_and_name() -> None:
    rules = load()
    assert list(choose(rules, ["IQ301", "few-samples"], None)) == ["IQ301", "IQ303"]
    assert list(choose(rules, "IQ301, IQ302", None)) == ["IQ301", "IQ302"]
    assert "IQ305" not in choose(rules, None, ["IQ3"]) and "IQ401" in choose(rules, None, ["IQ3"])
    assert choose(rules, None, None) == rules
    for bad in ("iq301", "Q3", ""):
        with pytest.raises(RecipeError):
            choose(rules, [bad], None)
