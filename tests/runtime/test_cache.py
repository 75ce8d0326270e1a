"""What is remembered: shared by processes that start at once, harmless when damaged, missing or read-only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intact8.runtime import cache, fastest, load
from intact8.runtime.probe_process import Outcome

pytestmark = pytest.mark.usefixtures("engines")

RESULT = Outcome("passed", "done", "4 samples").to_json()


def test_what_is_remembered_is_recalled(cache_dir: Path) -> None:
    assert cache.recall("key") is None
    assert cache.remember("key", RESULT) == ""
    assert cache.recall("key") == RESULT and cache.recall("other") is None
    assert [p.name for p in cache_dir.iterdir()] == ["key.json"]


@pytest.fixture
def cache_dir(cache: Path) -> Path:
    return cache


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'{"result": {}}', b'{"result": {"verdict": "passed"}, "sum": "0"}', b"\xff\x00" * 50,
     b"[" * 100_000, b"x" * (1 << 20)],
    ids=lambda v: repr(v[:12]),
)  # fmt: skip
def test_a_damaged_entry_costs_a_probe(path: Path, cache: Path, content: bytes) -> None:
    load(path, engine="fine")
    (entry,) = cache.glob("*.json")
    entry.write_bytes(content)
    assert load(path, engine="fine").info.probe == "passed"
    assert load(path, engine="fine").info.probe == "remembered"


def test_every_flipped_bit_is_noticed(cache_dir: Path) -> None:
    cache.remember("key", RESULT)
    entry = cache_dir / "key.json"
    whole = entry.read_bytes()
    for i in range(len(whole)):
        entry.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        assert cache.recall("key") in (None, RESULT)


def test_an_entry_of_another_key_does_not_count(cache_dir: Path) -> None:
    cache.remember("key", RESULT)
    (cache_dir / "key.json").rename(cache_dir / "other.json")
    assert cache.recall("other") is None


def test_another_library_is_probed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(path, engine="fine")
    assert load(path, engine="fine").info.probe == "remembered"
    monkeypatch.setattr(cache, "_library", lambda: [1, 2])
    assert load(path, engine="fine").info.probe == "passed"


def test_no_cache_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTACT8_CACHE_DIR", "")
    for _ in range(2):
        info = load(path, engine="fine").info
        assert "cannot be remembered" in info.probe and any("cannot be remembered" in r for r in info.remarks)


def test_a_cache_directory_that_cannot_be_written(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("mine")
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "a file" / "cache"))
    assert "cannot be remembered" in load(path, engine="fine").info.probe


def test_entries_that_are_folders(path: Path, cache: Path) -> None:
    load(path, engine="fine")
    (entry,) = cache.glob("*.json")
    entry.unlink()
    entry.mkdir()
    assert "cannot be remembered" in load(path, engine="fine").info.probe


@pytest.mark.skipif(sys.platform != "linux", reason="as on Linux")
def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("INTACT8_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "intact8"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "intact8"


LOAD = """
import os, sys, time
import intact8.engines, intact8.runtime
from intact8.runtime import probe_process
start = probe_process._start
def counted(module):
    os.write(1, b"probe\\n")
    return start(module)
probe_process._start = counted
children = []
for _ in range(32):
    child = os.fork()
    if child == 0:
        while time.time() < float(sys.argv[2]):
            time.sleep(0.001)
        os.write(1, intact8.runtime.load(sys.argv[1], engine="fine").info.probe.encode() + b"\\n")
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], file=sys.stderr)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="32 interpreters take too long to start where there is no fork")
def test_32_first_loads_at_once_share_one_probe(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOAD, str(path), str(time.time() + 2)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.stderr.strip() == str([0] * 32)
    assert sorted(done.stdout.split()) == ["passed", "probe", *["remembered"] * 31]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX's")
def test_a_load_killed_while_it_probes_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    command = [sys.executable, "-c", f"import intact8.runtime as r; r.load({str(path)!r}, engine='hang')"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    victim = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    # The lock file is there when the probe is about to start.
    folder = Path(os.environ["INTACT8_CACHE_DIR"])
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not list(folder.glob("*.lock")):
        time.sleep(0.02)
    time.sleep(0.5)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    started = time.monotonic()
    with pytest.raises(Exception, match="does not come to an end"):
        load(path, engine="hang", time_limit=1.0)
    assert time.monotonic() - started < 10
    if sys.platform == "linux":  # the child of the killed load died with it
        time.sleep(0.3)
        assert not _probes_of(str(path))


def _probes_of(path: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:  # ended meanwhile
            continue
        environment = entry.with_name("environ")
        if b"intact8.runtime.probe" in command:
            try:
                if path.rsplit("/", 1)[0].encode() in environment.read_bytes():
                    found.append(entry.parent.name)
            except OSError:
                continue
    return found


posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777], ids=oct)
def test_a_directory_others_can_write_is_neither_believed_nor_used(path: Path, cache: Path, mode: int) -> None:
    load(path, engine="fine")
    cache.chmod(mode)
    info = load(path, engine="fine").info
    assert info.probe.startswith("passed, but") and any("can be written by others" in r for r in info.remarks)
    cache.chmod(0o700)
    assert load(path, engine="fine").info.probe == "remembered"


@posix
def test_a_directory_of_somebody_else(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(path, engine="fine")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert "belongs to another user" in load(path, engine="fine").info.probe


@posix
def test_an_entry_others_can_write_costs_a_probe(path: Path, cache: Path) -> None:
    earlier = os.umask(0)
    try:
        load(path, engine="fine")
    finally:
        os.umask(earlier)
    assert {file.stat().st_mode & 0o777 for file in cache.iterdir()} == {0o600}
    (entry,) = cache.glob("*.json")
    entry.chmod(0o666)
    assert load(path, engine="fine").info.probe == "passed"


@posix
@pytest.mark.parametrize("suffix", ["json", "lock"])
@pytest.mark.parametrize("what", ["pipe", "link", "folder"])
def test_what_lies_where_an_entry_or_a_lock_belongs(path: Path, cache: Path, suffix: str, what: str) -> None:
    load(path, engine="fine")
    (entry,) = cache.glob("*.json")
    place = entry.with_suffix(f".{suffix}")
    place.unlink(missing_ok=True)
    entry.unlink(missing_ok=True)
    mine = cache.parent / "mine"
    mine.write_text("mine")
    if what == "pipe":
        os.mkfifo(place)
    elif what == "link":
        place.symlink_to(mine)
    else:
        place.mkdir()
    assert load(path, engine="fine").info.probe.startswith("passed")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "refused"},
        {"verdict": "late"},
        {"error": []},
        {"seconds": "x"},
        {"verdict": "died", "signal": "SIGKILL"},
    ],
    ids=str,
)
def test_an_outcome_that_would_not_be_remembered_is_not_recalled(change: dict[str, object]) -> None:
    assert Outcome.from_json({**RESULT, **change}) is None


def test_a_measurement_of_what_is_no_engine_is_none(cache_dir: Path) -> None:
    fastest.remember("key", {"reference": 2.0})
    assert fastest.recall("key") == {"reference": 2.0}
    fastest.remember("key", {"auto": 1.0, "reference": 2.0})
    assert fastest.recall("key") is None


@posix
def test_entries_are_regular_files_of_this_folder(cache_dir: Path) -> None:
    cache.remember("key", RESULT)
    entry = cache_dir / "key.json"
    elsewhere = entry.rename(cache_dir.parent / "elsewhere.json")
    entry.symlink_to(elsewhere)
    assert cache.recall("key") is None, "a link, whatever it leads to"
    entry.unlink()
    os.mkfifo(entry)
    pipe = os.open(entry, os.O_RDWR)
    try:
        os.write(pipe, elsewhere.read_bytes())
        assert cache.recall("key") is None, "a pipe, whatever is in it"
    finally:
        os.close(pipe)


def test_a_system_that_cannot_refuse_links_reads_entries(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"):
        monkeypatch.delattr(os, flag, raising=False)
    cache.remember("key", RESULT)
    assert cache.recall("key") == RESULT
