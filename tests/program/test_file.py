"""Files come back as they were written; what is no whole program file is refused, and nothing half-written stays."""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.program.build import certified, network, q, with_op

from intact8.errors import IntactError, ProgramError
from intact8.opset import KINDS
from intact8.opset.op import Op, Tensor
from intact8.opset.violation import Violation
from intact8.program import integrity
from intact8.program.document import FORMAT, VERSION, to_document
from intact8.program.file import arrays_by_name, digest, identity, load, parse, save
from intact8.program.packed_weights import in_bytes
from intact8.program.program import Program
from intact8.program.schema import schema


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(certified(), tmp_path / "net.safetensors")


def rewrite(path: Path, **metadata: str | None) -> Path:
    """The same arrays under other metadata, as a file of a format that had no checksum."""
    with safe_open(path, framework="numpy") as file:
        kept = {**(file.metadata() or {}), "version": "2", "checksum": None, **metadata}
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    save_file(arrays, path, metadata={k: v for k, v in kept.items() if v is not None})
    return path


def document(program: Program, **changes: Any) -> str:
    return json.dumps({**to_document(program), **changes})


def test_round_trip(path: Path) -> None:
    before, after = certified(), load(path)
    assert to_document(after) == to_document(before)
    assert digest(after) == digest(before)
    assert list(after.tensors) == list(before.tensors)
    for a, b in zip(before.ops, after.ops, strict=True):
        assert a.attrs == b.attrs and a.certificate == b.certificate and set(a.arrays) == set(b.arrays)
        for role in a.arrays:
            assert a.arrays[role].dtype == b.arrays[role].dtype
            np.testing.assert_array_equal(a.arrays[role], b.arrays[role])


def test_any_safetensors_reader_sees_the_arrays(path: Path) -> None:
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["format"] == FORMAT and file.metadata()["version"] == "3"
        assert file.get_tensor("net.c1/weight").dtype == np.int8


def test_a_file_has_the_lowest_version_that_can_hold_it(tmp_path: Path) -> None:
    x, y = q("x", None, 4, 5), q("y", None, 5, 9)
    op = Op("op", "matmul", ("x", "y"), {"a": 3, "b": 1001, "lo": 0, "hi": 255})
    program = Program({"x": x, "y": y, "op": q("op", None, 4, 9)}, (op,), ("x", "y"), ("op",))
    with safe_open(save(program, tmp_path / "new"), framework="numpy") as file:
        assert file.metadata()["version"] == str(max(KINDS["matmul"].since, integrity.SINCE)) == "3"
    assert digest(load(tmp_path / "new")) == digest(program)
    keyed = replace(program, structure={"tuple": [{"pairs": [[["scale", 0], 0]]}]})
    with safe_open(save(keyed, tmp_path / "keyed"), framework="numpy") as file:
        assert file.metadata()["version"] == "6"
    assert load(tmp_path / "keyed").structure == keyed.structure


def test_equal_programs_are_equal_files(path: Path, tmp_path: Path) -> None:
    assert save(certified(), tmp_path / "again").read_bytes() == path.read_bytes()


def test_odd_values_survive(tmp_path: Path) -> None:
    x = Tensor("a/b [é]", "float32", (None, 2))
    mask = Op("m", "pad", ("a/b [é]",), {"pads": [[0, 0], [1, 0]], "value": float("-inf")})
    constant = Op("c/d", "constant", (), {}, {"value": np.array(3.5, np.float32)})
    tensors = {"a/b [é]": x, "m": Tensor("m", "float32", (None, 3)), "c/d": Tensor("c/d", "float32", ())}
    program = Program(tensors, (mask, constant), ("a/b [é]",), ("m",))
    back = load(save(program, tmp_path / "odd"))
    assert back.ops[0].attrs["value"] == float("-inf")
    assert back.ops[1].arrays["value"].shape == () and back.ops[1].arrays["value"] == 3.5


def test_fortran_ordered_and_big_endian_arrays(tmp_path: Path) -> None:
    program = network()
    weight = np.asfortranarray(program.ops[1].arrays["weight"])
    back = load(save(with_op(program, "net.c1", arrays={"weight": weight}), tmp_path / "f"))
    np.testing.assert_array_equal(back.ops[1].arrays["weight"], weight)


def test_every_truncation_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    header = struct.unpack("<Q", whole[:8])[0]
    cuts = {0, 1, 7, 8, 9, header // 2, header, header + 7, header + 8, header + 9, len(whole) // 2, len(whole) - 1}
    for cut in sorted(cuts):
        short = tmp_path / "short"
        short.write_bytes(whole[:cut])
        with pytest.raises(ProgramError) as caught:
            load(short)
        assert "short" in str(caught.value) and caught.value.remedy


@pytest.mark.parametrize("seed", range(5))
def test_flipped_bytes_are_refused_or_harmless(path: Path, tmp_path: Path, seed: int) -> None:
    """Whatever a byte becomes: a clear error, or a program that passes every check."""
    rng = np.random.default_rng(seed)
    whole = bytearray(path.read_bytes())
    for position in rng.integers(0, len(whole), 60):
        broken = bytearray(whole)
        broken[position] ^= 1 << int(rng.integers(8))
        target = tmp_path / "broken"
        target.write_bytes(broken)
        try:
            load(target)
        except IntactError as error:
            assert str(target) in str(error)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04" + b"\0" * 100, "a zip archive, not an intact8 program"),
        (struct.pack("<Q", 1 << 62) + b"{}", "header of"),
        (struct.pack("<Q", 5) + b"hello", "header"),
        (struct.pack("<Q", 2) + b"{}", "not an intact8 program"),
    ],
    ids=["zip", "huge header", "no JSON", "no metadata"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ProgramError) as caught:
        load(tmp_path / "x")
    assert reason in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="No such file"):
        load(tmp_path / "nowhere")
    with pytest.raises(ProgramError, match="directory"):
        load(tmp_path)


def test_newer_versions_are_refused_by_name(path: Path) -> None:
    with pytest.raises(
        ProgramError, match=rf"newer intact8 \(format {VERSION + 1}\), this reads up to {VERSION}.*upgrade"
    ):
        load(rewrite(path, version=str(VERSION + 1)))


@pytest.mark.parametrize("version", ["", "0", "-1", "1.5", "latest", "²"])
def test_senseless_versions(path: Path, version: str) -> None:
    with pytest.raises(ProgramError, match="format version"):
        load(rewrite(path, version=version))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[]", "expected an object"),
        ("{}", "tensors is missing"),
        (document(certified(), surprise=1), "unknown key 'surprise'"),
        (document(certified(), inputs="x"), "inputs has the wrong type"),
        (document(certified(), inputs=[1]), "must hold strings"),
        (document(certified(), tensors=[5]), "expected an object"),
        (document(certified(), ops=[]), "no op uses this array"),
        (
            document(
                certified(), tensors=[*to_document(certified())["tensors"], to_document(certified())["tensors"][0]]
            ),
            "twice",
        ),
        (document(certified(), structure={"list": [9]}), "index 9"),
    ],
    ids=lambda v: v[:20] if isinstance(v, str) else None,
)
def test_malformed_documents(path: Path, text: str, reason: str) -> None:
    with pytest.raises(ProgramError) as caught:
        load(rewrite(path, **{FORMAT: text}))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("kind", 5, "kind has the wrong type"),
        ("attrs", {"stride": {"float": "1"}}, "attribute stride"),
        ("attrs", {"stride": {"float": ["inf"]}}, "attribute stride"),
        ("attrs", {"stride": {"float": {}}}, "attribute stride"),
        ("arrays", ["weight", "nothing"], "nothing is missing from the file"),
        ("certificate", [], "certificate has the wrong type"),
        ("extra", 1, "unknown key 'extra'"),
        ("kind", "explode", "unknown kind"),
    ],
)
def test_malformed_ops(path: Path, key: str, value: Any, reason: str) -> None:
    ops = to_document(certified())["ops"]
    ops[1] = {**ops[1], key: value}
    with pytest.raises(ProgramError) as caught:
        load(rewrite(path, **{FORMAT: document(certified(), ops=ops)}))
    assert reason in str(caught.value) and "net.c1" in str(caught.value)


@pytest.mark.parametrize("key", ["scale", "zero_point"])
def test_truth_values_are_no_numbers(path: Path, key: str) -> None:
    tensors = to_document(certified())["tensors"]
    next(t for t in tensors if t.get("scale") is not None)[key] = True
    with pytest.raises(ProgramError, match=f"{key} has the wrong type"):
        load(rewrite(path, **{FORMAT: document(certified(), tensors=tensors)}))


def test_altered_certificate_in_a_file(path: Path) -> None:
    ops = to_document(certified())["ops"]
    ops[1]["certificate"]["accumulator"] = 1
    with pytest.raises(ProgramError, match="does not hold"):
        load(rewrite(path, **{FORMAT: document(certified(), ops=ops)}))


def test_extra_array_in_a_file(path: Path) -> None:
    metadata = {"format": FORMAT, "version": "2", FORMAT: document(certified())}
    save_file({**arrays_by_name(certified()), "ghost/weight": np.zeros(3)}, path, metadata=metadata)
    with pytest.raises(ProgramError, match="no op uses this array"):
        load(path)


def test_broken_programs_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ProgramError):
        save(replace(network(), outputs=("nowhere",)), tmp_path / "x")
    with pytest.raises(ProgramError, match="JSON"):
        save(replace(network(), provenance={"loss": float("nan")}), tmp_path / "x")
    with pytest.raises(ProgramError, match="JSON"):
        save(replace(network(), provenance={"when": object()}), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_unwritable_paths(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="does not exist"):
        save(network(), tmp_path / "no" / "such" / "x")
    with pytest.raises(ProgramError, match="directory"):
        save(network(), tmp_path)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ProgramError, match="cannot write"):
        save(network(), file / "x")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_one_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "link").symlink_to("deeper/net.safetensors")
    for _ in range(2):
        certified().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and load(tmp_path / "deeper" / "net.safetensors")
    assert [p.name for p in (tmp_path / "deeper").iterdir()] == ["net.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe has a name on POSIX")
def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name, words in (("pipe", "device"), ("link", "device"), ("a\0b", "characters"), ("\ud800", "characters"),
                        ("a" * 5000, "too long")):  # fmt: skip
        with pytest.raises(ProgramError, match=f"cannot write the file.*{words}"):
            certified().save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ProgramError, match="Permission"):
        save(network(), tmp_path / "x")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_interrupted_saves_leave_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, moment: str
) -> None:
    before = path.read_bytes()

    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(os, moment, fail)
    with pytest.raises((KeyboardInterrupt, ProgramError)):
        save(network(), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        assert save(network(), tmp_path / "x").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_digest_is_of_what_is_computed() -> None:
    program = certified()
    assert digest(replace(program, provenance={"created": "tomorrow"})) == digest(program)
    assert digest(with_op(program, "net.c1", arrays={"bias": np.zeros(4, np.int32)})) != digest(program)
    assert digest(with_op(program, "sum", attrs={"hi": 254})) != digest(program)


def test_a_loaded_program_is_told_apart_by_the_checksum_of_its_file(path: Path) -> None:
    loaded = load(save(certified(), path))
    assert identity(loaded) == integrity.checksum(path.read_bytes())
    assert identity(replace(loaded, recipe="other")) == digest(replace(loaded, recipe="other"))


def test_files_follow_the_schema(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema())
    with safe_open(path, framework="numpy") as file:
        validator.validate(json.loads(file.metadata()[FORMAT]))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**to_document(certified()), "surprise": 1})
    for spoiled in ({"kind": "convolve"}, {"attrs": {}}, {"arrays": ["weight"]}, {"arrays": ["gain"]}, {"inputs": []}):
        document = to_document(certified())
        document["ops"] = [{**op, **spoiled} if op["kind"] == "conv" else op for op in document["ops"]]
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(document)


def test_a_program_says_what_it_is_in_a_line() -> None:
    shown = repr(certified())
    assert (
        "\n" not in shown
        and shown.startswith("<intact8 program: x float32[batch, 3, 8, 8]")
        and "float islands" in shown
    )


def test_every_bit_is_covered(path: Path) -> None:
    """Every bit of the first 120 bytes, and every 499th of the rest: refused as damaged, by the path."""
    whole = bytearray(path.read_bytes())
    for bit in (*range(8 * 120), *range(8 * 120, 8 * len(whole), 499)):
        whole[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProgramError, match=r"net\.safetensors: the file is damaged"):
            parse(bytes(whole), path)
        whole[bit // 8] ^= 1 << bit % 8
    assert parse(bytes(whole), path).remarks == ()


def test_a_file_without_checksum_loads_with_a_remark(path: Path) -> None:
    assert "no checksum" in load(rewrite(path)).remarks[0]
    with pytest.raises(ProgramError, match="damaged: it is of format 3 and has no checksum"):
        load(rewrite(path, version="3"))
    with pytest.raises(ProgramError, match="damaged: its metadata holds 'more'"):
        load(rewrite(path, more="text"))


def test_a_checksum_does_not_make_an_old_file_new(path: Path) -> None:
    data = path.read_bytes().replace(b'"version":"3"', b'"version":"2"')
    with pytest.raises(ProgramError, match="damaged: its content"):
        parse(data, path)
    blank = data.replace(data[integrity.PLACE : integrity.PLACE + 64], b"0" * 64)
    with pytest.raises(ProgramError, match="'checksum', which format 2 does not know"):
        parse(integrity.seal(blank), path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "an empty file"),
        (b"\x08\x07\x12\x07pytorch\x1a\x05", "an ONNX model"),
        (b'<?xml version="1.0"?><net name="x">', "an XML or HTML file"),
        (b"PK\x03\x04" + bytes(26) + b"net/data.pkl", "a PyTorch file"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "a NumPy array"),
        (b"epochs = 3\nlearning rate = 0.1\n" * 40 + "é".encode(), "a text file"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_files_of_others_are_called_what_they_are(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ProgramError, match=f"{what}.*, not an intact8 program"):
        load(tmp_path / "x")


@pytest.mark.parametrize("number", [10**400, 1 << 63, -(1 << 63) - 1], ids=["400 digits", "64 bits", "negative"])
def test_numbers_beyond_bounds(path: Path, number: object) -> None:
    text = document(certified(), provenance={"n": "NUMBER"}).replace('"NUMBER"', str(number))
    with pytest.raises(ProgramError, match="beyond"):
        load(rewrite(path, **{FORMAT: text}))
    for fine in ((1 << 63) - 1, -(1 << 63), 0.1234567890123456789, 1e-300):
        assert load(rewrite(path, **{FORMAT: document(certified(), provenance={"n": fine})})).provenance == {"n": fine}


def test_half_characters(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="lone surrogate"):
        load(rewrite(path, **{FORMAT: document(certified(), recipe="\ud800")}))
    with pytest.raises(ProgramError, match="could not be read again"):
        save(replace(certified(), recipe="\ud800"), tmp_path / "x")
    with pytest.raises(ProgramError, match="could not be read again"):
        save(replace(certified(), provenance={"n": 1 << 64}), tmp_path / "x")


@pytest.mark.parametrize("count", [1, 3])
def test_packed_weights_of_other_sizes_are_refused(count: int) -> None:
    packed = {"w": np.full(2, 0x88, np.uint8)}
    assert in_bytes(packed, {"w": [4]})["w"].tolist() == [0, 0, 0, 0]
    for shape in (4, ["4"], [0, 4], [1] * 9):
        with pytest.raises(Violation, match="bad shape of the packed array 'w'"):
            in_bytes(packed, {"w": shape})
    with pytest.raises(Violation, match="has other bytes than its shape takes"):
        in_bytes(packed, {"w": [2 * count]})


def test_programs_are_compared_by_content(path: Path) -> None:
    before, after = certified(), load(path)
    assert before == certified() and after == load(path) and before in [after, certified()]
    op = next(op for op in before.ops if op.arrays)
    role, array = next(iter(op.arrays.items()))
    changed = replace(op, arrays={**op.arrays, role: array + array.dtype.type(1)})
    assert before != replace(before, ops=tuple(changed if o is op else o for o in before.ops))
    assert op == replace(op, arrays={name: a.copy() for name, a in op.arrays.items()})
    assert op != changed and op != replace(op, note="another") and op != role
