"""What a file's names, notes and provenance hold reaches neither a terminal nor a page as anything but text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.program.build import certified
from typer.testing import CliRunner

from intact8.cli.app import app
from intact8.errors import IntactError, ProgramError
from intact8.golden import with_golden
from intact8.program.file import load, save
from intact8.program.program import Program

HOSTILE = {
    "escape": "\x1b]0;title\x07\x1b[2J\x1b[31mred",
    "C1": "\x9b31mred\x9d0;title\x9c",
    "lines": "\nerror: forged\r\nmore\x0b\x0c\x85\u2028",
    "order": "\u202egnp.exe\u202c\u2066\u200b\ufeff\x7f",
    "markup": "[red]x[/red] [link=https://evil.example]y[/link] [/nothing] :smiley:",
    "HTML": "<img src=x onerror=alert(1)>\"'&{{7*7}}</script>",
}
STYLES = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;[^\x1b]*\x1b\\")
LIVE = re.compile(r"\x1b\[\??[\d;]*[A-Zhl]|\r")
"""What the progress bar moves the cursor with, on stderr."""

COMMANDS = (
    ["inspect"], ["inspect", "--tree"], ["inspect", "--json"], ["check", "--no-probe", "--engine", "reference"],
    ["lint"], ["lint", "--format", "sarif"], ["verify", "--engines", "reference", "--samples", "1"],
    ["report", "--seconds", "0"],
)  # fmt: skip


def hostile(text: str) -> Program:
    """A program with the text in every place that holds text."""
    program = certified()

    def named(name: str) -> str:
        return name + text

    ops = tuple(
        replace(
            op, name=named(op.name), inputs=tuple(map(named, op.inputs)), module=op.module + text, note=text,
            source=(text, text), attrs={k: text if k == "fn" else v for k, v in op.attrs.items()},
        )
        for op in program.ops
    )  # fmt: skip
    tensors = {named(n): replace(t, name=named(n)) for n, t in program.tensors.items()}
    provenance = {"machine": text, "created": text, "python": text, "intact8": text, "packages": {text: text}}
    inputs, outputs = tuple(map(named, program.inputs)), tuple(map(named, program.outputs))
    return with_golden(
        replace(program, tensors=tensors, ops=ops, inputs=inputs, outputs=outputs, provenance=provenance, recipe="")
    )


@pytest.mark.parametrize("kind", HOSTILE)
def test_commands_print_text(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    path = save(hostile(HOSTILE[kind]), tmp_path / "net.safetensors")
    for command, *options in COMMANDS:
        done = CliRunner().invoke(app, [command, str(path), *options])
        assert done.exit_code in (0, 1), (command, done.output)
        shown = STYLES.sub("", done.stdout + LIVE.sub("", done.stderr))
        bad = [c for c in shown if not c.isprintable() and c != "\n"]
        assert not bad, (command, bad[:5])
        assert not re.search("^(error: forged|more)", shown, re.M), command
        assert "evil.example" not in "".join(STYLES.findall(done.output)), command
        if kind == "markup" and "--json" in options:
            assert any("[red]x[/red]" in op["name"] for op in json.loads(done.stdout)["ops"])


@pytest.mark.parametrize("kind", HOSTILE)
def test_pages_hold_text(kind: str, tmp_path: Path) -> None:
    path = save(hostile(HOSTILE[kind]), tmp_path / "net.safetensors")
    done = CliRunner().invoke(app, ["report", str(path), "--seconds", "0", "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    bad = {c for c in page if not c.isprintable() and c not in "\n\t"}
    assert not bad & set(HOSTILE[kind]) and "<img" not in page
    assert not re.search(r"(?<!\\)(\\\\)*\\u(202e|009b|001b|007f|2028)", page.rsplit('type="application/json"', 1)[-1])


@pytest.mark.parametrize("kind", HOSTILE)
def test_errors_are_one_line_of_text(kind: str, tmp_path: Path) -> None:
    text = HOSTILE[kind]
    error = IntactError(f"what {text}", where=text, why=text, remedy=text)
    for part in (str(error), error.what, error.where, error.why, error.remedy):
        assert part.isprintable()
    with pytest.raises(ProgramError) as caught:
        load(tmp_path / text.replace("/", ""))
    assert str(caught.value).isprintable()
    for shown in (repr(hostile(text)), str(ProgramError("x", where=text))):
        assert shown.isprintable()
