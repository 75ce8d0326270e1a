"""What stands where a file is to be written is refused before anything is written, in every format."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.conformance import networks
from tests.program.build import certified
from typer.testing import CliRunner

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from intact8.cli.app import app
from intact8.errors import EngineError, IntactError
from intact8.export.files import write_together
from intact8.export.torch_module import export_program
from intact8.exporting.formats import FORMATS
from intact8.program.program import Program, target_of


def small() -> Program:
    program: Program = networks.of_floats(networks.draw(3, steps=2)[0], 0.05, lo=0, hi=255)
    return program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("to", FORMATS)
def test_folders_and_names_that_no_file_has_are_refused(to: str, folder: Path) -> None:
    program = small()
    (folder / "d").mkdir()
    for name in ("d", "", ".", "..", "nul\0.xml", "missing/net.pt2", "a" * 300):
        with pytest.raises(EngineError, match="cannot write the file"):
            program.export(name, to)
    with pytest.raises(EngineError, match="bytes is no path of the file"):
        program.export(b"net.xml", to)  # type: ignore[arg-type]
    assert [path.name for path in folder.iterdir()] == ["d"]


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
@pytest.mark.parametrize("to", FORMATS)
def test_pipes_are_refused(to: str, folder: Path) -> None:
    os.mkfifo("p")
    with pytest.raises(EngineError, match="p: cannot write the file. Reason: is a device, a pipe or a socket"):
        small().export("p", to)
    assert [path.name for path in folder.iterdir()] == ["p"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_in_a_circle_are_refused_and_those_to_a_file_to_come_are_not(folder: Path) -> None:
    os.symlink("loop.onnx", "loop.onnx")
    os.symlink("coming.onnx", "link.onnx")
    os.symlink("missing/net.onnx", "astray.onnx")
    for name in ("loop.onnx", "astray.onnx"):
        with pytest.raises(EngineError, match="cannot write the file"):
            target_of(name)
    assert target_of("link.onnx") == Path("link.onnx")


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
def test_the_command_refuses_folders_and_pipes(folder: Path) -> None:
    certified().save("net.safetensors")
    (folder / "d").mkdir()
    os.mkfifo("p")
    for name, why in {"d": "is a folder", "p": "is a device, a pipe or a socket"}.items():
        done = CliRunner().invoke(app, ["export", "net.safetensors", name, "--to", "openvino"])
        assert done.exit_code == 2 and why in " ".join(done.output.split())
    assert sorted(path.name for path in folder.iterdir()) == ["d", "net.safetensors", "p"]


def test_files_that_belong_together_are_looked_at_before_the_first_is_written(folder: Path) -> None:
    (folder / "net.xml").mkdir()
    with pytest.raises(EngineError, match=r"net\.xml: cannot write the file. Reason: is a directory"):
        write_together(
            Path("net.xml"), (".bin", ".xml"), lambda path: [path.with_suffix(s).touch() for s in (".bin", ".xml")]
        )
    assert [path.name for path in folder.iterdir()] == ["net.xml"]


def test_names_that_torch_does_not_open(folder: Path) -> None:
    program = small()
    for write in (lambda name: program.export(name, "exported-program"), lambda name: export_program(program, name)):
        with pytest.raises(IntactError, match="torch opens no file of this name. Reason: it is not UTF-8"):
            write("\udcff.pt2")
    assert list(folder.iterdir()) == []
