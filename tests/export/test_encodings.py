"""Encodings name tensors of the float model beside them; what has no float form is refused."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conformance import networks
from tests.program.build import certified

pytest.importorskip("onnxruntime")
import onnx

from intact8.errors import EngineError
from intact8.export.encodings import encodings, export_encodings
from intact8.opset.op import Tensor
from intact8.program.program import Program


def test_both_versions_and_the_cache_say_the_same(tmp_path: Path) -> None:
    program = networks.of_floats(networks.draw(3, steps=2)[0], 0.05, lo=0, hi=255)
    newer, older, model, cache = export_encodings(program, tmp_path / "net.encodings")
    new, old = json.loads(newer.read_text()), json.loads(older.read_text())
    assert (new["version"], old["version"]) == ("1.0.0", "0.6.1")
    graph = onnx.load(model).graph
    made = {n for node in graph.node for n in node.output} | {x.name for x in graph.input}
    names = {e["name"] for e in new["activation_encodings"]}
    assert names == set(old["activation_encodings"]) and names <= made and "x" in names
    weights = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    for entry in new["param_encodings"]:
        [first, *_] = old["param_encodings"][entry["name"]]
        assert first["scale"] == entry["scale"][0] and first["offset"] == entry["offset"][0] == -128
        steps = weights[entry["name"]][0] / np.float32(entry["scale"][0])
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    assert {n.op_type for n in graph.node}.isdisjoint({"QuantizeLinear", "DequantizeLinear"})
    lines = cache.read_text().splitlines()
    assert lines[0].startswith("TRT-") and len(lines) == 1 + len(names)
    scales = {name: struct.unpack(">f", bytes.fromhex(v))[0] for name, v in (line.split(": ") for line in lines[1:])}
    z = program.tensors["q"].zero_point or 0
    assert scales["x"] == pytest.approx(0.05 if z == 128 else 0.05 * max(z, 255 - z) / 127)


def test_symmetric_tensors_are_said_to_be_so() -> None:
    given = {"x": Tensor("x", "uint8", (None,), 0.5, 128)}
    assert encodings(given, {}, "1.0.0")["activation_encodings"][0]["is_sym"]
    [old] = encodings(given, {}, "0.6.1")["activation_encodings"]["x"]
    assert (old["is_symmetric"], old["min"], old["max"]) == ("True", -64.0, 63.5)


def floats() -> Program:
    program: Program = networks.of_floats(networks.draw(3, steps=2)[0], 0.05, lo=0, hi=255)
    return program


def test_an_int8_model_beside_the_encodings_stays(tmp_path: Path) -> None:
    program = floats()
    program.export(tmp_path / "model.onnx", "onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    report = program.export(tmp_path / "model.encodings", "encodings")
    assert report.elements > 0 and (tmp_path / "model.onnx").read_bytes() == before
    ends = [".encodings", ".v0.6.1.encodings", ".float.onnx", ".cache"]
    assert [path.name for path in report.files] == [f"model{end}" for end in ends]
    last = (tmp_path / "model.float.onnx").read_bytes()
    program.export(tmp_path / "model.onnx", "onnx")
    assert (tmp_path / "model.float.onnx").read_bytes() == last


@pytest.mark.parametrize("name", ["net.encodings", "net.v0.6.1.encodings", "net.float.onnx", "net.cache"])
def test_where_one_file_cannot_be_written_none_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(EngineError, match="cannot write the file. Reason: is a directory"):
        export_encodings(floats(), tmp_path / "net.encodings")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_that_four_files_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = floats()
    for name in ("", ".", "nul\0.encodings", "a" * 240 + ".encodings", "missing/net.encodings"):
        with pytest.raises(EngineError, match="cannot write the file"):
            export_encodings(program, Path(name))
    with pytest.raises(EngineError, match=r"another file of the encodings has this name.*ends in \.encodings"):
        export_encodings(program, Path("net.cache"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.cache")
    with pytest.raises(EngineError, match="a device, a pipe or a socket, which is not replaced"):
        export_encodings(floats(), tmp_path / "net.encodings")
    assert [path.name for path in tmp_path.iterdir()] == ["net.cache"]


def test_a_table_without_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="an operation of integers has no float form"):
        export_encodings(certified(), tmp_path / "net.encodings")
    assert list(tmp_path.iterdir()) == []
