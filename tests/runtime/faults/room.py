"""Saving, and remembering a probe, where there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.runtime.faults import packages
from tests.runtime.faults.base import Case, Result
from tests.runtime.faults.caller import PATH
from tests.runtime.faults.kills import python
from tests.runtime.faults.machines import portable

from intact8.program.file import save

LIMITED = """
import resource, sys
from intact8.program.file import load, save
program = load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
save(program, sys.argv[2])
"""

FULL = """
import sys
from intact8.program.file import load, save
save(load(sys.argv[1]), sys.argv[2])
"""

CROWDED = """
import os, sys
import intact8.runtime
os.environ["INTACT8_CACHE_DIR"] = sys.argv[2]
runner = intact8.runtime.load(sys.argv[1], engine="fine")
assert any("cannot be remembered" in r for r in runner.info.remarks), runner.info
"""


def on_a_full_disk(
    code: str, source: Path, folder: Path, old: bytes | None, spare: int
) -> tuple[subprocess.CompletedProcess[str], list[str], bool]:
    """Run ``code`` with ``source`` and the path ``net`` on a file system that has ``spare`` bytes left.

    Args:
        old: content of ``net`` before, None for no such file.

    Returns:
        How it ended; what lay there afterwards; whether ``net`` was as before.

    Raises:
        OSError: a file system cannot be mounted here.
    """
    disk, script = folder / "disk", folder / "full.sh"
    disk.mkdir()
    (folder / "old").write_bytes(old or b"")
    (folder / "code.py").write_text(code)
    put = "cp old disk/net" if old is not None else "true"
    script.write_text(
        f"mount -t tmpfs -o size=64k none disk || exit 77\n{put}\n"
        f"dd if=/dev/zero of=disk/ballast bs=4k count=100 2>/dev/null\ntruncate -s -{spare} disk/ballast\n"
        f'"{sys.executable}" code.py "{source}" disk/net\nstatus=$?\n'
        "ls -A disk\ncmp -s disk/net old && echo same || echo differs\nexit $status\n"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", str(script)], capture_output=True, text=True,
        check=False, timeout=120, cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join([*PATH, *sys.path])},
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        raise OSError(f"no file system can be mounted here: {done.stderr.strip()[-100:]}")
    *left, last = done.stdout.split()
    return done, [name for name in left if name != "ballast"], last == "same"


def full() -> Iterator[Case]:
    """No room."""
    yield Case("disk full", "a limit on file size", _limited_save)
    for old in (b"the old file", None):
        over = "over an old file" if old else "to a new name"
        yield Case("disk full", f"no space left, saving {over}", _full_save(old))
    yield Case("disk full", "no space left where probes are remembered", _full_cache)


def _limited_save(folder: Path) -> Result:
    source, target = save(portable(), folder / "source"), folder / "out" / "net"
    target.parent.mkdir()
    target.write_bytes(b"the old file")
    done = python(LIMITED, str(source), str(target))
    return _no_room(
        done, [p.name for p in target.parent.iterdir()], target.read_bytes() == b"the old file", "File too large"
    )


def _full_save(old: bytes | None) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        source = save(portable(), folder / "source")
        done, left, same = on_a_full_disk(FULL, source, folder, old, 4096)
        return _no_room(done, left, same or (old is None and "net" not in left), "No space left on device")

    return run


def _no_room(done: subprocess.CompletedProcess[str], left: Sequence[str], same: bool, words: str) -> Result:
    last = (done.stderr.strip().splitlines() or [""])[-1]
    wrong = "" if "ProgramError" in last and words in last else f"it said {last!r}"
    deaths = int(done.returncode < 0 or done.returncode > 1)
    return Result(last, deaths=deaths, lost=int(not same), left=len(set(left) - {"net"}), wrong=wrong)


def _full_cache(folder: Path) -> Result:
    source, site = save(portable(), folder / "source"), packages.install(folder / "site")
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n" + CROWDED
    done, _, _ = on_a_full_disk(code, source, folder, None, 0)
    last = (done.stderr.strip().splitlines() or ["loads on fine, and says that the probe cannot be remembered"])[-1]
    return Result(last, deaths=int(done.returncode < 0), wrong="" if done.returncode == 0 else last)
