"""Files for other tools are run after they were written, and what differs is said."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance import networks
from tests.program.build import certified
from typer.testing import CliRunner

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

from intact8.cli.app import app
from intact8.errors import EngineError, InputError
from intact8.exporting import export, formats
from intact8.exporting.report import compare
from intact8.program.program import Program


def small() -> Program:
    program: Program = networks.draw(3, steps=2)[0]
    return program


EVERY = [(to, runtime) for to, made in formats.FORMATS.items() for runtime in made.runs]


def around_128(program: Program) -> Program:
    """The network with the zero points TensorRT asks for: of another meaning, and as good for this."""
    tensors = {n: replace(t, zero_point=128) if t.quantized else t for n, t in program.tensors.items()}
    return replace(program, tensors=tensors)


@pytest.mark.parametrize(("to", "runtime"), EVERY)
def test_every_format_is_written_and_run(to: str, runtime: str, tmp_path: Path) -> None:
    pytest.importorskip(runtime)
    program = small() if "tensorrt" not in to else around_128(small())
    program = program if to != "encodings" else networks.of_floats(program, 0.05, lo=0, hi=255)
    report = program.export(tmp_path / ("net.pt2" if to == "exported-program" else "net.xml"), to, runtime=runtime)
    assert report.elements > 0 and report.format == to and all(path.exists() for path in report.files)
    assert not report.exact or report.mismatches == 0
    assert json.loads(json.dumps(report.to_json()))["mismatches"] == report.mismatches
    assert report.runtime in str(report)


def test_a_network_with_a_float_island_and_images_with_channels_last(tmp_path: Path) -> None:
    report = export(certified(), tmp_path / "net.onnx", uint8_input=True, layout="NHWC")
    assert report.exact and not [d for d in report.differences if not d.behind_float]


def test_integers_that_differ_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = formats.FORMATS["onnx"]

    def broken(*args: Any) -> Any:
        return {n: y ^ (y.dtype == np.uint8) for n, y in formats.run_onnxruntime(*args).items()}

    monkeypatch.setitem(formats.FORMATS, "onnx", replace(made, runs={"onnxruntime": broken}))
    with pytest.raises(EngineError, match="other integers for"):
        export(small(), tmp_path / "net.onnx")
    monkeypatch.setitem(formats.FORMATS, "onnx", replace(made, runs={"onnxruntime": broken}, exact=()))
    report = export(small(), tmp_path / "net.onnx")
    assert report.mismatches == report.elements and report.differences[0].max_step == 1
    assert "integers differ" in str(report)


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the format 'tflite' is not known"):
        export(small(), tmp_path / "net", "tflite")
    with pytest.raises(EngineError, match="channels first"):
        export(certified(), tmp_path / "net", "exported-program", layout="NHWC")
    with pytest.raises(InputError, match="onnx is not run by 'openvino' here"):
        export(small(), tmp_path / "net", runtime="openvino")
    with pytest.raises(InputError, match=r"names that end in \.pt2"):
        export(small(), tmp_path / "net", "exported-program")
    with pytest.raises(EngineError, match="no_such_runtime is not installed"):
        formats.version("no_such_runtime")
    for batch in (0, -1, 1.5, "a", None, True):
        with pytest.raises(InputError, match="batch is .*an integer of 1 or more"):
            export(small(), tmp_path / "net", "openvino", batch=batch)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_another_shape_is_an_error() -> None:
    program = small()
    name = program.ops[0].name
    with pytest.raises(EngineError, match="the file gives the shape"):
        compare(program, {name: np.zeros((2, 3))}, {name: np.zeros((3, 2))})


def test_the_command(tmp_path: Path) -> None:
    small().save(tmp_path / "net.safetensors")
    given = ["export", str(tmp_path / "net.safetensors")]
    done = CliRunner().invoke(app, [*given, str(tmp_path / "net.onnx"), "--to", "onnx", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["mismatches"] == 0
    assert CliRunner().invoke(app, [*given, "--onnx", str(tmp_path / "other.onnx")]).exit_code == 0
    assert CliRunner().invoke(app, given).exit_code == 2


def test_a_library_that_dies_ends_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = certified().save(tmp_path / "net.safetensors")
    (tmp_path / "fake" / "onnxruntime").mkdir(parents=True)
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "fake" / "onnxruntime" / "__init__.py").write_text(dies)
    monkeypatch.syspath_prepend(tmp_path / "fake")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", str(place), "net.onnx"])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit | EngineError)
    assert "the export to onnx dies of SIGSEGV" in done.output + str(done.exception)


FULL_DISK = """
import resource, signal, sys
import intact8
from intact8.errors import EngineError
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for path, to in zip(sys.argv[2::2], sys.argv[3::2]):
    try:
        intact8.Program.load(sys.argv[1]).export(path, to)
    except EngineError as error:
        assert "cannot write" in str(error) and "free space" in str(error), error
    else:
        raise AssertionError(to)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are POSIX's")
def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    program = small()
    program.save(tmp_path / "program.safetensors")
    asked = [(tmp_path / "p.xml", "openvino"), (tmp_path / "p.onnx", "onnx-qdq")]
    for path, to in asked:
        export(program, path, to)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = [str(word) for pair in asked for word in pair]
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "program.safetensors"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
