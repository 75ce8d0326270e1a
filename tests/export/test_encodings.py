"""Encodings name tensors of the float model beside them; what has no float form is refused."""

from __future__ import annotations

import json
import struct
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


def test_a_table_without_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="an operation of integers has no float form"):
        export_encodings(certified(), tmp_path / "net.encodings")
    assert list(tmp_path.iterdir()) == []
