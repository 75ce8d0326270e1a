"""What every command does the same way: help, version, errors, Ctrl-C."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import typer
from tests.test_import import run_python
from typer.testing import CliRunner

import intact8
from intact8.cli.app import app
from intact8.cli.console import FAILED, INTERRUPTED, friendly
from intact8.errors import CalibrationError, IntactError

COMMANDS = ["demo", "quantize", "migrate", "inspect", "verify", "check", "run", "export", "sign", "bench"]
runner = CliRunner()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_name_the_command(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"intact8 {command}" in result.stdout


def test_the_bare_command_lists_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert all(command in result.stdout for command in COMMANDS)


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).stdout == f"intact8 {intact8.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "absent.safetensors"],
        ["verify", "absent.safetensors"],
        ["bench", "absent.safetensors"],
        ["run", "absent.safetensors", "--data", "absent.npy", "-o", "y.npy"],
        ["run", "absent.safetensors", "--data", "absent.npy", "-o", "y.csv"],
    ],
    ids=" ".join,
)
def test_errors_are_one_line_on_stderr_and_exit_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == FAILED
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_lets_the_error_through(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(tmp_path / "absent.safetensors"), "--debug"])
    assert isinstance(result.exception, IntactError)


def test_tree_and_json_exclude_each_other(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(tmp_path / "x"), "--tree", "--json"])
    assert result.exit_code == FAILED and "choose one" in result.stderr


def test_a_message_of_many_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, friendly(debug=False):
        raise IntactError("first\n  second [red]third[/red]")
    assert caught.value.exit_code == FAILED
    assert capsys.readouterr().err == "error: first second [red]third[/red]\n"


def test_an_unexpected_error_names_its_type_and_the_way_to_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, friendly(debug=False):
        raise ZeroDivisionError("oops")
    assert caught.value.exit_code == FAILED
    assert capsys.readouterr().err == "error: unexpected ZeroDivisionError: oops (--debug shows where)\n"


def test_ctrl_c_exits_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, friendly(debug=False):
        raise KeyboardInterrupt
    assert caught.value.exit_code == INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_an_exit_status_passes_through() -> None:
    with pytest.raises(typer.Exit) as caught, friendly(debug=False):
        raise typer.Exit(1)
    assert caught.value.exit_code == 1


def test_warnings_of_intact_are_one_yellow_line(capsys: pytest.CaptureFixture[str]) -> None:
    class OwnWarning(UserWarning):
        pass

    OwnWarning.__module__ = CalibrationError.__module__
    with friendly(debug=False):
        warnings.warn("8 samples are few", OwnWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: 8 samples are few\n"


def test_python_dash_m() -> None:
    shown = run_python("import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('intact8', run_name='__main__')")
    assert "quantize" in shown
