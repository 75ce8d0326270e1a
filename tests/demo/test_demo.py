"""The demonstration as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the demonstration trains with torch")
pytest.importorskip("sklearn", reason="the demonstration trains on scikit-learn's digits")

from tests.engines.native.c_library import CC, CLASSIFY, build

from intact8.cli.app import app
from intact8.demo import digits
from intact8.demo import run as demo
from intact8.demo.tables import show
from intact8.engines import available_engines


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> demo.DemoReport:
    path = tmp_path_factory.mktemp("demo") / "digits.safetensors"
    return demo.run(path, seconds_per_timing=0.0)


def test_int8_classifies_as_well_as_float32(report: demo.DemoReport) -> None:
    assert report.images == 450
    assert report.accuracy["float32"] > 0.96
    assert abs(report.accuracy["int8"] - report.accuracy["float32"]) <= 0.01


def test_every_integer_of_simulation_and_engines_is_equal(report: demo.DemoReport) -> None:
    verification = report.verification
    assert verification.exact and verification.samples == 450
    assert "simulation" in verification.by_engine
    for engine in verification.by_engine.values():
        assert engine.elements == verification.elements > 10_000_000
        assert engine.mismatches == 0


def test_the_file_is_much_smaller_and_nothing_stays_float(report: demo.DemoReport) -> None:
    assert report.path.stat().st_size == report.nbytes["int8"] < 0.35 * report.nbytes["float32"]
    assert report.program.islands() == []


@pytest.mark.skipif(CC is None or "native" not in available_engines(), reason="needs a C compiler, and the library")
def test_a_c_program_classifies_with_the_file(
    report: demo.DemoReport, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    build(tmp_path_factory, tmp_path, CLASSIFY)
    images = digits.load(0).held_out_images[:50]
    images.tofile(tmp_path / "images.bin")
    command = [tmp_path / "classify", report.path, tmp_path / "images.bin"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    for line, row in zip(lines, report.program.run(images, engine="reference"), strict=True):
        best, _, scores = line.partition(":")
        assert int(best) == row.argmax() and np.array_equal(np.array(scores.split(), np.float32), row)


def test_batch_norms_and_relus_are_fused(report: demo.DemoReport) -> None:
    parts = {part for op in report.fused for part in op.source}
    assert {"block1.bn1", "block2.bn2", "down1.depthwise_bn"} <= parts


def test_the_tables_print_every_measurement(report: demo.DemoReport) -> None:
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=200).print(show(report))
    text = out.getvalue()
    for words in (
        f"{report.accuracy['int8']:.2%}",
        f"{report.nbytes['int8']:,}",
        "batch 64",
        "simulation",
        "stayed float",
    ):
        assert words in text
    assert json.loads(json.dumps(report.to_json()))["verification"]["mismatches"] == 0


def test_a_missing_scikit_learn_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = CliRunner().invoke(app, ["demo", "-o", str(tmp_path / "digits.safetensors")])
    assert result.exit_code == 2 and "pip install 'intact8[demo]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_written_and_linked(report: demo.DemoReport) -> None:
    from rich.console import Console

    pytest.importorskip("plotly", reason="the page needs the extra report")
    assert report.page is not None
    assert "Handwritten digits" in report.page.read_text(encoding="utf-8")
    console = Console(width=300)
    with console.capture() as printed:
        console.print(show(report))
    assert report.page.resolve().as_uri() in printed.get()


def test_without_the_extra_the_demonstration_says_how_to_get_the_page(report: demo.DemoReport) -> None:
    from dataclasses import replace

    from rich.console import Console

    console = Console(width=300)
    with console.capture() as printed:
        console.print(show(replace(report, page=None)))
    assert "pip install 'intact8[report]'" in printed.get()
