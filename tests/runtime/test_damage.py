"""Damaged files through the loader: each refused by a specific error, none accepted that the checks would not allow."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.program.build import certified
from tests.runtime.hostile import HOSTILE
from tests.runtime.mutate import mutations, unsealed
from tests.runtime.sound import accepted_is_sound

from intact8.errors import IntactError, ProgramError
from intact8.golden import with_golden
from intact8.program.document import FORMAT
from intact8.program.file import digest, load, parse, read, save
from intact8.program.read import bounded_json
from intact8.runtime import load as load_for_running

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save(with_golden(certified()), tmp_path_factory.mktemp("whole") / "x").read_bytes()


def test_longer_than_it_says(whole: bytes, tmp_path: Path) -> None:
    for extra in (1, 8, 4096):
        with pytest.raises(ProgramError, match="describes"):
            parse(whole + bytes(extra), tmp_path)


@pytest.mark.parametrize("count", [600, pytest.param(2000, marks=pytest.mark.long)])
def test_thousands_of_mutations(whole: bytes, tmp_path: Path, count: int) -> None:
    """A bounded part of what ``python -m tests.fuzz`` tries: the same mutations, with a fixed seed."""
    accepted = 0
    for data in mutations(whole, seed=1, count=count):
        started = time.process_time()
        try:
            program = parse(data, tmp_path / "mutated")
        except IntactError as error:
            assert "mutated" in str(error)
        else:
            accepted += 1
            accepted_is_sound(program)
        assert time.process_time() - started < 2
    assert 0 < accepted < 0.7 * count  # flips in names, notes and provenance are harmless; most are not


@pytest.mark.parametrize("name", HOSTILE)
def test_files_made_to_take_memory_are_refused_within_the_stated_bound(name: str) -> None:
    """A bounded part of what ``python -m tests.fuzz`` measures with larger files in processes of their own."""
    data = HOSTILE[name](300_000)
    tracemalloc.start()
    try:
        with pytest.raises(ProgramError):
            parse(data, "hostile")
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 50 * len(data) + (1 << 20)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F99", "shape": [1], "data_offsets": [0, 1]}, "dtype 'F99'"),
        ({"dtype": "U8", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]}, "not that of its shape"),
        ({"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}, "bad description"),
        ({"dtype": "U8", "shape": [1] * 9, "data_offsets": [0, 1]}, "bad description"),
        ({"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}, "bad description"),
        ({"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}, "not that of its shape"),
        ({"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 8]}, "bad description"),
        ({"dtype": "U8", "shape": [4], "data_offsets": [100, 104]}, "describes"),
        ({"dtype": "U8", "shape": [4]}, "bad description"),
        ([], "bad description"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_lying_headers(entry: object, words: str, tmp_path: Path) -> None:
    header = json.dumps({"a/b": entry}).encode()
    with pytest.raises(ProgramError) as caught:
        parse(struct.pack("<Q", len(header)) + header + bytes(4), tmp_path / "x")
    assert words in str(caught.value)


def test_names_that_occur_twice(tmp_path: Path) -> None:
    entry = '"a/b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}'
    header = f"{{{entry}, {entry}}}".encode()
    with pytest.raises(ProgramError, match="twice"):
        parse(struct.pack("<Q", len(header)) + header + bytes(4), tmp_path / "x")


def test_names_that_occur_twice_in_the_program(whole: bytes, tmp_path: Path) -> None:
    """Parsers differ in which of the two they read."""
    length = struct.unpack("<Q", unsealed(whole)[:8])[0]
    data = unsealed(whole)
    header = json.loads(data[8 : 8 + length])
    text = header["__metadata__"][FORMAT]
    header["__metadata__"][FORMAT] = text.replace('"outputs":', '"outputs":[],"outputs":', 1)
    changed = json.dumps(header).encode()
    with pytest.raises(ProgramError, match="twice"):
        parse(struct.pack("<Q", len(changed)) + changed + data[8 + length :], tmp_path / "x")


@pytest.mark.parametrize("text", ["[" * 201 + "]" * 201, '{"a":' * 300 + "1" + "}" * 300, "[" * 1_000_000])
def test_deep_json(text: str) -> None:
    with pytest.raises(ValueError, match="deep"):
        bounded_json(text)


@pytest.mark.parametrize("text", ['"' + '\\"' * 1_000_000, '"' + "\\" * 2_000_001, '"' * 1_000_001, '{"a":"' * 300_000])
def test_strings_without_an_end_take_linear_time(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError):
        bounded_json(text)
    assert time.process_time() - started < 1


def test_brackets_in_names_are_no_depth() -> None:
    assert bounded_json(json.dumps({"[" * 500: '\\"' + "{" * 500})) == {"[" * 500: '\\"' + "{" * 500}


def test_deep_json_in_a_thread_with_a_small_stack() -> None:
    """Where a parser that recurses would run off the stack and take the process along."""
    raised = []

    def parse_deep() -> None:
        try:
            bounded_json("[" * 200_000)
        except ValueError as error:
            raised.append(error)

    before = threading.stack_size(128 * 1024)
    try:
        thread = threading.Thread(target=parse_deep)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(raised) == 1


@posix
@pytest.mark.parametrize("what", ["fifo", "folder", "device"])
def test_what_is_no_file(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(ProgramError):
        load_for_running(path)


@posix
def test_a_huge_sparse_file_costs_nothing(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(whole)
    os.truncate(path, 1 << 35)
    started = time.process_time()
    with pytest.raises(ProgramError, match="describes"):
        load_for_running(path)
    assert time.process_time() - started < 2


def test_a_file_that_changes_meanwhile_does_not_change_what_is_loaded(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(whole)
    program = load(path)
    before = digest(program)
    path.write_bytes(b"")
    assert digest(program) == before
    np.asarray(program.ops[1].arrays["weight"])[...] = 0  # its own memory, writable as before


@posix
def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, (f"touch {tmp_path}/boom",))

    (tmp_path / "x").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ProgramError, match="damaged|not an intact8 program"):
        load_for_running(tmp_path / "x")
    assert not (tmp_path / "boom").exists()


@posix
def test_a_sweep_leaves_living_writers_alone(tmp_path: Path, whole: bytes) -> None:
    import fcntl

    mine = tmp_path / ".net.0123456789abcdef.tmp"
    other = tmp_path / ".net.notes.tmp"
    for file in (mine, other):
        file.write_bytes(b"half")
        os.utime(file, (1, 1))
    source = tmp_path / "source"
    source.write_bytes(whole)
    with open(mine, "rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        save(load(source), tmp_path / "net")
        assert mine.exists()
    save(load(source), tmp_path / "net")
    assert not mine.exists() and other.exists()


def test_saves_by_many_threads_to_one_path(tmp_path: Path, whole: bytes) -> None:
    program = parse(whole, "x")
    threads = [threading.Thread(target=save, args=(program, tmp_path / "net")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(tmp_path / "net") == whole and len(list(tmp_path.iterdir())) == 1
